/* Tensors and byte sources. A file that shrinks while it is read is an error, not a fault: it is
 * read by fread, not mapped. */
#include "tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtype.h"

enum { ALIGNMENT = 64 };
static const int64_t READ_PIECE = (int64_t)16 << 20;

bool shape_count(const int64_t *shape, int dims, int64_t element, int64_t *count, int64_t *bytes) {
  *count = 1;
  for (int i = 0; i < dims; i++)
    if (!multiply(*count, shape[i], count)) return false;
  return multiply(*count, element, bytes) && *bytes <= PTRDIFF_MAX - ALIGNMENT;
}

bool tensor_allocate(tensor *tensor, error *error) {
  int64_t bytes = 0;
  tensor->data = NULL;
  if (!shape_count(tensor->shape, tensor->dims, dtype_bytes(tensor->dtype), &tensor->count, &bytes))
    return error_set(error, "a tensor of this shape does not fit the address space");
  /* The kernel grants more than it has, and kills who uses it. */
  const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  if (machine > 0 && (double)bytes > machine)
    return error_set(error, "no memory for a tensor of %.1f MiB: this machine has %.1f",
                     (double)bytes / (1 << 20), machine / (1 << 20));
  const int64_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
  tensor->data = aligned_alloc(ALIGNMENT, (size_t)rounded);
  if (tensor->data == NULL)
    return error_set(error, "no memory for a tensor of %.1f MiB", (double)bytes / (1 << 20));
  return true;
}

void tensor_free(tensor *tensor) {
  free(tensor->data);
  *tensor = (struct tensor){0};
}

bool source_open(source *source, const char *path, error *error) {
  *source = (struct source){.name = path};
  struct stat info;
  /* a named pipe would make a plain open wait for its writer */
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  source->file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
  if (source->file == NULL && descriptor >= 0) close(descriptor);
  if (source->file == NULL) return error_set(error, "%s: cannot open: %s", path, strerror(errno));
  if (fstat(fileno(source->file), &info) != 0 || !S_ISREG(info.st_mode)) {
    source_close(source);
    return error_set(error, "%s: not a regular file", path);
  }
  source->bytes = info.st_size;
  return true;
}

void source_memory(source *source, const void *bytes, int64_t count) {
  *source = (struct source){.name = "memory", .memory = bytes, .bytes = count};
}

void source_close(source *source) {
  if (source->file != NULL) fclose(source->file);
  *source = (struct source){0};
}

bool source_read(source *source, int64_t offset, void *to, int64_t count, error *error) {
  if (offset < 0 || count < 0 || offset > source->bytes || count > source->bytes - offset)
    return error_set(error, "%s: truncated: %lld bytes wanted at offset %lld, the file has %lld",
                     source->name, (long long)count, (long long)offset, (long long)source->bytes);
  if (count == 0) return true;
  if (source->file == NULL) {
    memcpy(to, source->memory + offset, (size_t)count);
    return true;
  }
  if (fseeko(source->file, offset, SEEK_SET) != 0)
    return error_set(error, "%s: cannot seek: %s", source->name, strerror(errno));
  for (int64_t done = 0; done < count;) {
    const int64_t rest = count - done;
    const size_t piece = (size_t)(rest < READ_PIECE ? rest : READ_PIECE);
    const size_t got = fread((char *)to + done, 1, piece, source->file);
    if (got == 0)
      return error_set(error, "%s: cannot read on at offset %lld", source->name,
                       (long long)(offset + done));
    done += (int64_t)got;
  }
  return true;
}

bool finish_writing(FILE *file, const char *path, bool good, error *error) {
  struct stat info;
  int reason = errno;
  const bool regular = fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode);
  if (fclose(file) != 0 && good) {
    reason = errno;
    good = false;
  }
  if (good) return true;
  if (regular) remove(path);
  return error_set(error, "%s: cannot write: %s", path, strerror(reason));
}
