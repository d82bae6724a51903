/* The program from outside: exit codes, what goes where, formats, files. The arguments are its path
 * and that of the program on a faulty library. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmocka_all.h"
#include "dtype.h"
#include "npy.h"
#include "safetensors.h"

enum { MOST_WORDS = 64, MOST_TEXT = 1 << 16 };

static const char *program, *right_program, *faulty_program;
static char folder[] = "/tmp/weft-program-XXXXXX";
static char out[MOST_TEXT], err[MOST_TEXT];

static void slurp(const char *path, char *text) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t length = fread(text, 1, MOST_TEXT - 1, file);
  text[length] = '\0';
  fclose(file);
}

static const char *in_folder(const char *name) {
  static char paths[8][200];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

/* Runs the program on the words of `line`, its stdout going to `out_path`; fills err, and returns
 * its exit code. */
static int run_to(const char *line, const char *out_path) {
  char copy[2000], *words[MOST_WORDS] = {(char *)program};
  snprintf(copy, sizeof copy, "%s", line);
  int count = 1;
  for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
    words[count++] = word;
  const char *err_path = in_folder("stderr");
  const pid_t child = fork();
  if (child == 0) {
    const int to = open(out_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    const int log = open(err_path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (dup2(to, 1) < 0 || dup2(log, 2) < 0) _exit(126);
    execv(program, words);
    _exit(127);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  slurp(err_path, err);
  if (!WIFEXITED(status)) fail_msg("%s: signal %d\n%s", line, WTERMSIG(status), err);
  return WEXITSTATUS(status);
}

/* The same with stdout in `out`. */
static int run(const char *line) {
  const char *out_path = in_folder("stdout");
  const int code = run_to(line, out_path);
  slurp(out_path, out);
  return code;
}

static void expect(const char *line, int code) {
  const int got = run(line);
  if (got != code) fail_msg("weft %s: exit %d; expected %d\n%s%s", line, got, code, out, err);
}

static void exit_codes(void **state) {
  (void)state;
  static const struct {
    const char *line;
    int code;
    const char *words; /* in stdout when right, else in stderr */
  } cases[] = {
      {"", 2, "usage:"},
      {"--help", 0, "usage:"},
      {"--version", 0, "weft 0."},
      {"--version extra", 2, "\"extra\" was given"},
      {"--help ce", 2, "\"ce\" was given"},
      {"ce --ranks 513", 2, "--ranks is 513; expected at most 512"},
      {"ce --ranks 65537", 2, "--ranks is \"65537\""},
      {"ce --plan --ranks 1024", 0, "1024 ranks"},
      {"ep --ranks 513", 2, "--ranks is \"513\""},
      {"ce --help", 0, "--workspace-mib"},
      {"info --help", 0, "--format"},
      {"frobnicate", 2, "unknown command \"frobnicate\""},
      {"bench", 2, "unknown command"},
      {"ep --help", 0, "--strategy"},
      {"ep --fence off", 2, "--unsafe"},
      {"ep --backend cuda", 3, "--backend cuda:"},
      {"ep --transport nvshmem", 3, "--transport nvshmem:"},
      {"ep --experts 10", 2, "a multiple of --ranks"},
      {"ep --hidden 12", 2, "a multiple of 8"},
      {"ep --ranks 1 --strategy remote-rand", 2, "--topk is 8; expected at most 0"},
      {"ep --strategy frob", 2, "remote-rand"},
      {"check --help", 0, "--drop-each"},
      {"check --list", 0, "gemm-tails"},
      {"check --list", 0, "ce-backward-unclean"},
      {"check ep-combine --seeds 2", 0, "clean"},
      {"check nothing", 2, "no protocol is called \"nothing\""},
      {"check --seeds 0", 2, "--seeds is \"0\""},
      {"info --verbose", 2, "unknown flag \"--verbose\""},
      {"ce --tokens", 2, "--tokens has no value"},
      {"ce --tokens 99999999999999999999", 2, "--tokens is \"99999999999999999999\""},
      {"ce extra", 2, "unknown flag \"extra\""},
      {"ce --ranks 3 --hosts 2", 2, "divisor"},
      {"ce --backend cuda", 3, "--backend cuda:"},
      {"ce --transport nvshmem", 3, "--transport nvshmem:"},
      {"ce --x nowhere.npy", 4, "nowhere.npy: cannot open"},
      {"ce --x file.bin", 2, "expected FILE.npy"},
      {"ce --x a.safetensors", 2, "FILE.safetensors:TENSOR"},
      {"ce --x a.safetensors:", 2, "FILE.safetensors:TENSOR"},
      {"ce --tokens 9223372036854775807 --hidden 2 --vocab 3", 4, "address space"},
      {"ce --tokens 100000000 --hidden 1000000 --vocab 3", 4, "no memory"},
      {"ce --tokens 4 --hidden 4 --vocab 4 --out /nonexistent/o.safetensors --iters 1", 4,
       "/nonexistent/o.safetensors"},
      {"ce --tokens 4 --hidden 4 --vocab 4 --ranks 2 --dx none --out o.safetensors", 2, "parts"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    expect(cases[i].line, cases[i].code);
    const char *text = cases[i].code == 0 ? out : err;
    if (strstr(text, cases[i].words) == NULL)
      fail_msg("weft %s: \"%s\" is not in \"%s\"", cases[i].line, cases[i].words, text);
    if (cases[i].code == 0)
      assert_string_equal(err, "");
    else
      assert_string_equal(out, "");
  }
}

/* A variable that is not understood is said on stderr, once, and does not stop the program. */
static void environment(void **state) {
  (void)state;
  static const struct {
    const char *name, *value, *expected;
  } cases[] = {{"WEFT_TIMEOUT_MS", "soon", "expected a whole number of at least 1"},
               {"WEFT_TIMEOUT_MS", "0", "expected a whole number of at least 1"},
               {"WEFT_NUM_THREADS", "-3", "expected a whole number from 1 to 1024"},
               {"WEFT_NUM_THREADS", "1025", "expected a whole number from 1 to 1024"},
               {"WEFT_NUM_THREADS", "2x", "expected a whole number from 1 to 1024"},
               {"WEFT_ISA", "sse9", "expected baseline, avx2 or avx512"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char named[100];
    setenv(cases[i].name, cases[i].value, 1);
    expect("ce --tokens 4 --hidden 4 --vocab 8 --ranks 2 --iters 1", 0);
    unsetenv(cases[i].name);
    snprintf(named, sizeof named, "%s=\"%s\"", cases[i].name, cases[i].value);
    const char *first = strstr(err, named);
    if (first == NULL || strstr(err, cases[i].expected) == NULL)
      fail_msg("%s, %s: \"%s\"", named, cases[i].expected, err);
    if (strstr(first + 1, named) != NULL) fail_msg("said twice: %s", err);
  }
  setenv("WEFT_MPI", "/nonexistent", 1);
  expect("ce --transport mpi", 3);
  assert_non_null(strstr(err, "--transport mpi: no MPI transport: WEFT_MPI is \"/nonexistent\""));
  expect("ep --transport mpi", 3);
  expect("ce --tokens 4 --hidden 4 --vocab 8 --iters 1", 0);
  unsetenv("WEFT_MPI");
  setenv("WEFT_BLAS", "/nonexistent", 1);
  expect("ce --tokens 4 --hidden 4 --vocab 8", 3);
  unsetenv("WEFT_BLAS");
  assert_non_null(
      strstr(err, "WEFT_BLAS is \"/nonexistent\", expected a library with cblas_sgemm"));
  assert_non_null(strstr(err, "No such file"));
}

/* A full disk below stdout is a failure, whatever was to be printed. */
static void full_disk(void **state) {
  (void)state;
  static const char *const lines[] = {
      "--help",      "--version",          "info",
      "info --help", "info --format json", "ce --help",
      "ep --help",   "ce --plan",          "ce --tokens 4 --hidden 4 --vocab 4 --iters 1"};
  if (access("/dev/full", W_OK) != 0) skip();
  for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
    const int code = run_to(lines[i], "/dev/full");
    if (code != 4 || strstr(err, "cannot write to stdout") == NULL)
      fail_msg("weft %s > /dev/full: exit %d, \"%s\"", lines[i], code, err);
  }
}

static json_t *parse(void) {
  json_error_t error;
  json_t *root = json_loads(out, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) fail_msg("%s: %s", error.text, out);
  return root;
}

static double real_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_number(value)) fail_msg("%s is no number: %s", key, out);
  return json_number_value(value);
}

static void info(void **state) {
  (void)state;
  expect("info --format json", 0);
  json_t *root = parse();
  assert_string_equal(json_string_value(json_object_get(root, "op")), "info");
  assert_true(real_of(root, "cores") >= 1);
  assert_true(json_is_object(json_object_get(root, "backends")));
  json_decref(root);
  expect("info", 0);
  assert_int_equal(out[0], '#');
  expect("info --format csv", 0);
  assert_memory_equal(out, "name,value,detail\n", 18);
}

/* The shape of the JSON, and that it verifies, over ranks, dtypes, phases and dX modes. */
static void verified(void **state) {
  (void)state;
  static const char *const dtypes[] = {"f32", "bf16", "f16"};
  static const char *const modes[] = {"all_reduce", "reduce_scatter", "none"};
  static const char *const ranks[] = {"1", "2", "3", "4", "8"};
  static const char *const phases[] = {"all", "forward", "backward", "step"};
  for (int i = 0; i < 15; i++) {
    char line[400];
    snprintf(line, sizeof line,
             "ce --tokens 65 --hidden 33 --vocab 507 --ranks %s --dtype %s --dx %s --phase %s "
             "--ignore 0.2 --softcap 5 --temperature 0.9 --verify --iters 1 --warmup 0 %s"
             "--format json",
             ranks[i % 5], dtypes[i % 3], modes[(i + i / 3) % 3], phases[i % 4],
             i % 2 ? "--entropy " : "");
    expect(line, 0);
    assert_string_equal(err, "");
    json_t *root = parse();
    assert_string_equal(json_string_value(json_object_get(root, "op")), "ce");
    assert_true(json_is_string(json_object_get(root, "device")));
    assert_true(real_of(json_object_get(root, "plan"), "least_bytes") > 0);
    const json_t *config = json_object_get(root, "config");
    assert_true(real_of(config, "tokens") == 65 && real_of(config, "vocab") == 507);
    const json_t *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), i % 4 == 0 ? 3 : 1);
    for (size_t k = 0; k < json_array_size(results); k++) {
      const json_t *result = json_array_get(results, k);
      const char *phase = json_string_value(json_object_get(result, "phase"));
      const bool forward = !strcmp(phase, "forward");
      assert_true(real_of(result, "ms_p50") >= real_of(result, "ms_min"));
      assert_true(real_of(result, "tflops") > 0 && real_of(result, "workspace_mib") > 0);
      assert_true(real_of(result, "perplexity") > 1);
      assert_true(json_is_null(json_object_get(result, "mean_entropy")) == !(i % 2));
      assert_true(real_of(result, "wrong") == 0);
      assert_true(json_is_true(json_object_get(result, "ok")));
      const json_t *errors = json_object_get(result, "max_rel_err");
      assert_true(real_of(errors, "nll") < 2e-5 && real_of(errors, "lse") < 2e-5);
      assert_true(json_is_null(json_object_get(errors, "dx")) == forward);
      assert_true(json_is_null(json_object_get(errors, "dw")) == forward);
    }
    json_decref(root);
  }
}

static void formats(void **state) {
  (void)state;
  expect("ce --tokens 8 --hidden 8 --vocab 20 --iters 1 --format csv", 0);
  int lines = 0;
  for (const char *at = out; *at; at++)
    lines += *at == '\n';
  assert_int_equal(lines, 4);
  assert_memory_equal(out, "phase,ms_p50,ms_min,tflops,workspace_mib,err_nll,", 49);
  expect("ce --tokens 8 --hidden 8 --vocab 20 --iters 1 --phase step", 0);
  assert_non_null(strstr(out, "\nphase "));
  assert_non_null(strstr(out, "p50[ms]"));
  assert_non_null(strstr(out, " #wrong\n"));
  assert_non_null(strstr(out, "\nstep "));
  assert_null(strstr(out, "\nforward "));
}

static void edges(void **state) {
  (void)state;
  expect("ce --tokens 0 --hidden 3 --vocab 5 --ranks 2 --iters 1 --verify --format json", 0);
  json_t *root = parse();
  json_decref(root);
  expect("ce --tokens 3 --hidden 1 --vocab 1 --iters 1 --verify --entropy", 0);
  expect("ce --tokens 9 --hidden 5 --vocab 3 --ranks 8 --iters 1 --verify --entropy", 0);
  expect("ce --tokens 9 --hidden 5 --vocab 30 --ranks 4 --hosts 2 --iters 1 --verify", 0);
  expect("ce --tokens 9 --hidden 5 --vocab 30 --ignore 1 --iters 1 --verify --entropy", 0);
  expect("ce --tokens 9 --hidden 5 --vocab 30 --ignore 0.5 --ignore-index 7 --iters 1 --verify", 0);
}

static void plans(void **state) {
  (void)state;
  expect("ce --plan --format json", 0);
  json_t *root = parse();
  assert_int_equal(json_array_size(json_object_get(root, "results")), 0);
  assert_true(real_of(json_object_get(root, "plan"), "local_bytes") > 0);
  json_decref(root);
  expect("ce --plan --sms 8 --ranks 4", 0);
  expect("ce --plan --format csv", 0);
  /* A budget that is too small is refused, in words that name the least. */
  expect("ce --plan --tokens 4096 --hidden 4096 --workspace-mib 1", 2);
  assert_non_null(strstr(err, "least"));
  expect("ce --tokens 64 --hidden 16384 --vocab 64 --workspace-mib 1", 2);
  assert_non_null(strstr(err, "least"));
}

static tensor make_tensor(weft_dtype dtype, int64_t rows, int64_t columns) {
  tensor t = {.dtype = dtype, .dims = columns > 0 ? 2 : 1, .shape = {rows, columns}};
  error e;
  assert_true(tensor_allocate(&t, &e));
  return t;
}

/* One token per row of an identity X, so that every logit is an element of W. */
static void files(void **state) {
  (void)state;
  enum { M = 4, H = 4, V = 3 };
  tensor x = make_tensor(WEFT_F32, M, H), w = make_tensor(WEFT_F32, V, H);
  tensor target = make_tensor(WEFT_I32, M, 0);
  error e;
  for (int i = 0; i < M * H; i++)
    ((float *)x.data)[i] = i % (H + 1) == 0;
  for (int i = 0; i < V * H; i++)
    ((float *)w.data)[i] = (float)(i % H) * (float)(i / H);
  for (int i = 0; i < M; i++)
    ((int32_t *)target.data)[i] = i % V;
  assert_true(npy_write(in_folder("x.npy"), &x, &e));
  const named_tensor head[] = {{"w", &w}, {"t", &target}};
  assert_true(safetensors_write(in_folder("head.safetensors"), head, 2, &e));
  char line[1000];
  snprintf(line, sizeof line,
           "ce --x %s --w %s:w --targets %s:t --ranks 2 --phase step --entropy --iters 1 --verify "
           "--out %s",
           in_folder("x.npy"), in_folder("head.safetensors"), in_folder("head.safetensors"),
           in_folder("out.safetensors"));
  expect(line, 0);
  source source;
  tensor nll, dx, dw;
  assert_true(source_open(&source, in_folder("out.safetensors"), &e));
  assert_true(safetensors_read(&source, "nll", &nll, &e));
  assert_true(safetensors_read(&source, "dx", &dx, &e));
  assert_true(safetensors_read(&source, "dw", &dw, &e));
  assert_true(nll.dtype == WEFT_F32 && nll.dims == 1 && nll.shape[0] == M);
  assert_true(dx.dims == 2 && dx.shape[0] == M && dx.shape[1] == H);
  assert_true(dw.dims == 2 && dw.shape[0] == V && dw.shape[1] == H);
  for (int i = 0; i < M; i++) {
    const double z[V] = {0, i, 2 * i}, lse = log(1 + exp(z[1]) + exp(z[2]));
    assert_true(fabs(((float *)nll.data)[i] - (lse - z[i % V])) < 1e-5);
  }
  assert_int_equal(mkfifo(in_folder("pipe.npy"), 0600), 0);
  snprintf(line, sizeof line, "ce --x %s", in_folder("pipe.npy")); /* nobody will ever write */
  expect(line, 4);
  assert_non_null(strstr(err, "not a regular file"));
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, before.rlim_max}), 0);
  snprintf(line, sizeof line, "ce --tokens 99 --hidden 99 --vocab 9 --iters 1 --out %s",
           in_folder("large.safetensors"));
  const int code = run(line);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(code, 4);
  assert_non_null(strstr(err, "cannot write: File too large"));
  tensor_free(&nll);
  tensor_free(&dx);
  tensor_free(&dw);
  source_close(&source);

  static const struct {
    const char *flags;
    int code;
    const char *words;
  } refused[] = {
      {"--tokens 5", 2, "--tokens is 5"},
      {"--vocab 7", 2, "--vocab is 7"},
      {"--hidden 7", 2, "--hidden is 7"},
      {"--dtype bf16", 2, "--dtype is bf16"},
  };
  for (int i = 0; i < 4; i++) {
    snprintf(line, sizeof line, "ce --x %s --w %s:w %s", in_folder("x.npy"),
             in_folder("head.safetensors"), refused[i].flags);
    expect(line, refused[i].code);
    if (strstr(err, refused[i].words) == NULL) fail_msg("%s: %s", line, err);
  }
  snprintf(line, sizeof line, "ce --x %s:t", in_folder("head.safetensors"));
  expect(line, 2);
  assert_non_null(strstr(err, "expected f32, bf16 or f16 with 2"));
  snprintf(line, sizeof line, "ce --w %s:none", in_folder("head.safetensors"));
  expect(line, 4);
  assert_non_null(strstr(err, "the file holds \"w\", \"t\""));
  /* A target outside the vocabulary is the library's to refuse. */
  ((int32_t *)target.data)[2] = V;
  assert_true(npy_write(in_folder("bad.npy"), &target, &e));
  snprintf(line, sizeof line, "ce --targets %s --hidden 4 --vocab 3 --ranks 2",
           in_folder("bad.npy"));
  expect(line, 4);
  assert_non_null(strstr(err, "target"));
  assert_int_equal(truncate(in_folder("x.npy"), 100), 0);
  snprintf(line, sizeof line, "ce --x %s", in_folder("x.npy"));
  expect(line, 4);
  tensor_free(&x);
  tensor_free(&w);
  tensor_free(&target);
}

/* The same problem over 1 and 4 ranks, and run again, gives the same file where bits must agree. */
static void repeatable(void **state) {
  (void)state;
  char line[600];
  static const char *const names[] = {"a.safetensors", "b.safetensors"};
  static char bytes[2][MOST_TEXT];
  for (int i = 0; i < 2; i++) {
    snprintf(line, sizeof line,
             "ce --tokens 33 --hidden 17 --vocab 101 --ranks 3 --entropy --iters 1 --out %s",
             in_folder(names[i]));
    expect(line, 0);
    memset(bytes[i], 0, MOST_TEXT);
    slurp(in_folder(names[i]), bytes[i]);
  }
  assert_memory_equal(bytes[0], bytes[1], MOST_TEXT);
}

/* Each fault of the library gives exit code 1, and is counted in the rows where it is. */
static void faults(void **state) {
  (void)state;
  static const struct {
    const char *name, *flags;
    int code, wrong;
  } cases[] = {
      {"none", "--verify", 0, 0},
      {"nll", "--verify", 1, 1},
      {"lse", "--verify", 1, 1},
      {"entropy", "--verify", 1, 1},
      {"dx", "--verify", 1, 1},
      {"dw", "--verify", 1, 2}, /* every rank adds 1 to a row of its own */
      {"one rank", "--verify", 1, 1},
      {"one rank", "", 1, 1},
      {"nll", "", 0, 0}, /* without the oracle, ranks that agree pass */
      /* 20 rows of nll, lse, entropy and dX, 30 of dW */
      {"nothing written", "--verify", 1, 4 * 20 + 30},
  };
  program = faulty_program;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char line[300];
    setenv("WEFT_TEST_FAULT", cases[i].name, 1);
    snprintf(line, sizeof line,
             "ce --tokens 20 --hidden 8 --vocab 30 --ranks 2 --phase step --entropy --iters 1 "
             "--warmup 0 --format json %s",
             cases[i].flags);
    expect(line, cases[i].code);
    json_t *root = parse();
    const json_t *result = json_array_get(json_object_get(root, "results"), 0);
    if (real_of(result, "wrong") != cases[i].wrong) fail_msg("%s: %s", cases[i].name, out);
    assert_true(json_is_true(json_object_get(result, "ok")) == (cases[i].code == 0));
    json_decref(root);
  }
  unsetenv("WEFT_TEST_FAULT");
  program = right_program;
}

/* Each strategy, dtype and layout is right, and says so in each format. */
static void ep_verified(void **state) {
  (void)state;
  static const char *const strategies[] = {"random", "random-same", "local-rand", "local-same",
                                           "remote-rand"};
  for (int i = 0; i < 20; i++) {
    char line[300];
    snprintf(line, sizeof line,
             "ep --tokens 30 --hidden 136 --experts 32 --topk 5 --ranks 4 --strategy %s --dtype %s "
             "--layout %s --iters 2 --verify --format json",
             strategies[i % 5], i / 5 % 2 ? "fp8" : "bf16", i / 10 ? "packed" : "slab");
    expect(line, 0);
    json_t *root = parse();
    assert_string_equal(json_string_value(json_object_get(root, "op")), "ep");
    for (size_t phase = 0; phase < 2; phase++) {
      const json_t *result = json_array_get(json_object_get(root, "results"), phase);
      assert_string_equal(json_string_value(json_object_get(result, "phase")),
                          phase ? "combine" : "dispatch");
      assert_true(json_is_integer(json_object_get(result, "wrong")));
      assert_true(real_of(result, "wrong") == 0 && real_of(result, "us_p50") > 0);
      assert_true(real_of(result, "gbps") > 0);
      assert_true(json_is_true(json_object_get(result, "ok")));
    }
    json_decref(root);
  }
  expect("ep --tokens 0 --hidden 8 --experts 8 --ranks 1 --verify", 0);
  expect("ep --tokens 9 --hidden 8 --experts 8 --ranks 1 --fence off --unsafe", 0);
  assert_non_null(strstr(out, "\ncombine "));
  expect("ep --tokens 9 --hidden 8 --experts 8 --ranks 1 --format csv", 0);
  assert_non_null(strstr(out, "\ncombine,9,8,8,8,1,1,bf16,slab,random,"));
}

/* Faults of one bit are found, by the oracle or by the comparison of rounds. */
static void ep_faults(void **state) {
  (void)state;
  static const struct {
    const char *name, *flags;
    int phase, code, wrong, differ;
  } cases[] = {{"none", "--verify", 0, 0, 0, 0},
               {"row", "--verify", 0, 1, 2, 0},
               {"row", "--verify --dtype fp8", 0, 1, 2, 0},
               {"count", "--verify", 0, 1, 2, 0},
               {"out", "--verify", 1, 1, 2, 0},
               {"one call", "", 1, 1, 0, 1}};
  program = faulty_program;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char line[300];
    setenv("WEFT_TEST_FAULT", cases[i].name, 1);
    snprintf(line, sizeof line,
             "ep --tokens 20 --hidden 8 --experts 4 --topk 2 --ranks 2 --warmup 0 --iters 1 "
             "--repeat 3 --format json %s",
             cases[i].flags);
    expect(line, cases[i].code);
    json_t *root = parse();
    const json_t *result = json_array_get(json_object_get(root, "results"), (size_t)cases[i].phase);
    const json_t *wrong = json_object_get(result, "wrong");
    if (json_integer_value(wrong) != cases[i].wrong ||
        real_of(result, "rounds_differ") != cases[i].differ)
      fail_msg("%s: %s", cases[i].name, out);
    json_decref(root);
  }
  unsetenv("WEFT_TEST_FAULT");
  program = right_program;
}

static int clean(void **state) {
  (void)state;
  char command[300];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(int argc, char **argv) {
  if (argc != 3 || mkdtemp(folder) == NULL) return 2;
  program = right_program = argv[1];
  faulty_program = argv[2];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exit_codes), cmocka_unit_test(environment), cmocka_unit_test(full_disk),
      cmocka_unit_test(info),       cmocka_unit_test(verified),    cmocka_unit_test(formats),
      cmocka_unit_test(edges),      cmocka_unit_test(plans),       cmocka_unit_test(files),
      cmocka_unit_test(repeatable), cmocka_unit_test(faults),      cmocka_unit_test(ep_verified),
      cmocka_unit_test(ep_faults)};
  return cmocka_run_group_tests(tests, NULL, clean);
}
