/* What the library says of itself and of this machine, and the answers' form. */
#include <inttypes.h>
#include <stdio.h>

#include "text.h"

const char *json_string(char *out, size_t bytes, const char *text) {
  size_t n = 0;
  if (bytes < 3) return "\"\"";
  out[n++] = '"';
  for (const char *c = text != NULL ? text : ""; *c != '\0' && n + 8 < bytes; c++) {
    if (*c == '"' || *c == '\\') {
      out[n++] = '\\';
      out[n++] = *c;
    } else if ((unsigned char)*c < 0x20) {
      n += (size_t)snprintf(out + n, bytes - n, "\\u%04x", (unsigned char)*c);
    } else {
      out[n++] = *c;
    }
  }
  out[n++] = '"';
  out[n] = '\0';
  return out;
}

void give_async_error(ffi_call *call, ffi_any *result, const weft_async_error *error) {
  char message[512], text[1024];
  snprintf(text, sizeof text,
           "{\"status\":%d,\"name\":\"%s\",\"rank\":%" PRId64 ",\"peer\":%" PRId64
           ",\"count\":%" PRId64 ",\"message\":%s}",
           error->status, weft_status_string((weft_status)error->status), error->rank, error->peer,
           error->count, json_string(message, sizeof message, error->message));
  give_text(call, result, text);
}

EXPORT(version) { /* → int, as WEFT_VERSION_NUMBER */
  CALL("version");
  taken(call);
  give_int(result, weft_version());
  return finish(call, WEFT_OK);
}

EXPORT(system_info) { /* → JSON */
  CALL("system_info");
  weft_system_info i = WEFT_SYSTEM_INFO_INIT;
  char isa[64], blas[600], cuda[600], mpi[600], nvshmem[600], text[3072];
  weft_status status = WEFT_OK;
  if (taken(call)) status = weft_system_info_get(&i);
  if (call->failed || status != WEFT_OK) return finish(call, status);
  snprintf(text, sizeof text,
           "{\"cores\":%" PRId64
           ",\"isa\":%s,\"blas\":%s,\"cpu_available\":%s,\"cuda_available\":%s,"
           "\"cuda_reason\":%s,\"mpi_available\":%s,\"mpi_reason\":%s,\"nvshmem_available\":%s,"
           "\"nvshmem_reason\":%s}",
           i.cores, json_string(isa, sizeof isa, i.isa), json_string(blas, sizeof blas, i.blas),
           i.cpu_available ? "true" : "false", i.cuda_available ? "true" : "false",
           json_string(cuda, sizeof cuda, i.cuda_reason), i.mpi_available ? "true" : "false",
           json_string(mpi, sizeof mpi, i.mpi_reason), i.nvshmem_available ? "true" : "false",
           json_string(nvshmem, sizeof nvshmem, i.nvshmem_reason));
  give_text(call, result, text);
  return finish(call, WEFT_OK);
}
