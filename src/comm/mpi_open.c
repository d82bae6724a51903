/* Finds the MPI plugin: beside the library or program that holds this code, else where the loader
 * looks; WEFT_MPI names another. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/mpi.h"
#include "core/error.h"

#define PLUGIN "libweft_mpi.so.0"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const weft__mpi_engine *engine;
static char description[512];

static void *open_plugin(char *why, size_t room) {
  const char *asked = getenv("WEFT_MPI");
  char beside[4096] = "";
  Dl_info self;
  /* global: MPI opens components of its own, which look for its symbols */
  if (asked != NULL && *asked != '\0') {
    void *handle = dlopen(asked, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL) snprintf(why, room, "WEFT_MPI is \"%.100s\": %s", asked, dlerror());
    return handle;
  }
  if (dladdr((const void *)&once, &self) != 0 && self.dli_fname != NULL) {
    const char *slash = strrchr(self.dli_fname, '/');
    if (slash != NULL)
      snprintf(beside, sizeof beside, "%.*s/" PLUGIN, (int)(slash - self.dli_fname),
               self.dli_fname);
  }
  void *handle = *beside != '\0' ? dlopen(beside, RTLD_NOW | RTLD_GLOBAL) : NULL;
  if (handle == NULL) handle = dlopen(PLUGIN, RTLD_NOW | RTLD_GLOBAL);
  if (handle == NULL) snprintf(why, room, "%s", dlerror());
  return handle;
}

static void open_once(void) {
  char why[400] = "";
  void *handle = open_plugin(why, sizeof why);
  const weft__mpi_engine *(*get)(void) = NULL;
  if (handle != NULL)
    get = (const weft__mpi_engine *(*)(void))dlsym(handle, WEFT__MPI_ENGINE_SYMBOL);
  const weft__mpi_engine *found = get != NULL ? get() : NULL;
  if (handle == NULL)
    snprintf(description, sizeof description,
             "no MPI transport: %s (it is built where MPI's headers are; Debian: apt-get install "
             "libopenmpi-dev openmpi-bin)",
             why);
  else if (found == NULL || found->version != WEFT__MPI_ENGINE_VERSION)
    snprintf(description, sizeof description,
             "no MPI transport: " PLUGIN " is of another version of weft");
  else {
    engine = found;
    snprintf(description, sizeof description, "%s", found->library);
  }
}

weft_status weft__mpi_open(const weft__mpi_engine **out) {
  pthread_once(&once, open_once);
  *out = engine;
  return engine != NULL ? WEFT_OK : weft__fail(WEFT_ERR_UNSUPPORTED, "%s", description);
}

const char *weft__mpi_description(void) {
  pthread_once(&once, open_once);
  return description;
}
