/* What the GPU side says where it can't run. Each case is a process of its own, since the driver is
 * opened once; the fake driver beside this file is found through LD_LIBRARY_PATH. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cuda/cuda.h"

struct expectation {
  const char *fault;
  const char *driver; /* part of cuda_driver_why_off(), NULL where the driver opens */
  const char *device; /* part of the device's why_off, NULL where it is fine, or there is none */
  enum cuda_arch arch;
  const char *description; /* part of it */
};

static int contains(const char *text, const char *part) {
  return strstr(text, part) != NULL;
}

/* In the child: 0, or the number of the first law that is broken. */
static int check(const struct expectation *e) {
  const struct cuda_driver *driver = weft__cuda_driver();
  if ((driver == NULL) != (e->driver != NULL)) return 1;
  if (e->driver && !contains(weft__cuda_driver_why_off(), e->driver)) return 2;
  if (!e->driver && weft__cuda_driver_why_off()[0]) return 3;
  if (!contains(weft__cuda_description(), e->description)) return 4;
  if (weft__cuda_runs()) return 5; /* nothing runs on a fake */
  struct cuda_device_info info;
  const weft_status status = weft__cuda_device_query(0, &info);
  if (e->driver) return status == WEFT_ERR_UNSUPPORTED && weft__cuda_device_count() == 0 ? 0 : 6;
  if (status != WEFT_OK) return 7;
  if (info.arch != e->arch) return 8;
  if (weft__device_images.count == 0) return contains(info.why_off, "without nvcc") ? 0 : 9;
  if (e->device) return contains(info.why_off, e->device) ? 0 : 10;
  return info.why_off[0] ? 11 : 0;
}

static void expect(const struct expectation *e) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("WEFT_FAKE_CUDA", e->fault, 1);
    const int law = check(e);
    if (law)
      fprintf(stderr, "%s: law %d; driver \"%s\", description \"%s\"\n", e->fault, law,
              weft__cuda_driver_why_off(), weft__cuda_description());
    _exit(law);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void reasons(void **state) {
  (void)state;
  static const struct expectation expectations[] = {
      {"no-tensor-map-function", "has no cuTensorMapEncodeTiled", NULL, 0,
       "cuTensorMapEncodeTiled"},
      {"no-device-node", "CUDA_ERROR_NO_DEVICE", NULL, 0, "cuInit failed"},
      {"version", "CUDA 11.8", NULL, 0, "12.0 is needed"},
      {"empty", NULL, NULL, CUDA_ARCH_SM90, "shows no device"},
      {"ampere", NULL, "compute capability 8.0", CUDA_ARCH_NONE, "can't be used"},
      {"blackwell", NULL, NULL, CUDA_ARCH_SM100, "can't be used"},
      {"no-cooperative", NULL, "cooperative launches", CUDA_ARCH_SM90, "can't be used"},
      {"no-clusters", NULL, "clusters", CUDA_ARCH_SM90, "can't be used"},
      {"no-tensor-maps", NULL, "tensor maps", CUDA_ARCH_SM90, "can't be used"},
      {"", NULL, NULL, CUDA_ARCH_SM90, "can't be used"},
  };
  for (size_t i = 0; i < sizeof expectations / sizeof *expectations; i++)
    expect(&expectations[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(reasons)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
