/* Feeds every file of a folder to a fuzz target, under any compiler. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return 1;
  const long size = ftell(file);
  rewind(file);
  /* Exactly the file's bytes, so that a sanitizer sees a read past them. */
  uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
  const int bad = size < 0 || data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size;
  if (!bad) LLVMFuzzerTestOneInput(data, (size_t)size);
  free(data);
  fclose(file);
  return bad;
}

int main(int argc, char **argv) {
  DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
  if (folder == NULL) {
    fprintf(stderr, "usage: replay FOLDER\n");
    return 2;
  }
  int files = 0, bad = 0;
  for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
    files++;
    if (replay(path) != 0) {
      fprintf(stderr, "cannot read %s\n", path);
      bad++;
    }
  }
  closedir(folder);
  printf("%d files replayed\n", files);
  return bad > 0 || files == 0;
}
