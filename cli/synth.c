/* Random bits are a counter through two rounds of a 64-bit mixer; normal numbers are made in pairs
 * by Box and Muller's method. Logarithm, sine and cosine are polynomials in plain float arithmetic:
 * libm's differ in the last bit between machines, and these are vectorised by the compiler. */
#include "synth.h"

#include <math.h>
#include <string.h>

#include "dtype.h"
#include "parallel.h"

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static const uint64_t GOLDEN = UINT64_C(0x9e3779b97f4a7c15);

/* Where an array's stream begins. */
static uint64_t stream(uint64_t seed, synth_array array) {
  return mix(mix(seed + GOLDEN) + (uint64_t)array * GOLDEN);
}

static uint64_t bits_at(uint64_t stream, uint64_t index) {
  return mix(stream + index * GOLDEN);
}

uint64_t synth_bits(uint64_t seed, synth_array array, int64_t index) {
  return bits_at(stream(seed, array), (uint64_t)index);
}

int64_t synth_below(uint64_t seed, synth_array array, int64_t index, int64_t bound) {
  /* The upper half of bits × bound; its bias is bound / 2^64. */
  return (int64_t)((unsigned __int128)synth_bits(seed, array, index) * (uint64_t)bound >> 64);
}

/* √(−2·ln u) for u = (bits + 1) / 2^32, in (0, 1]. */
static inline float radius(uint32_t bits) {
  /* u = m·2^e with m in [√½, √2): ln u = e·ln 2 + 2·atanh((m − 1) / (m + 1)). */
  const float u = ((float)(bits >> 8) + 1.0f) * 0x1p-24f;
  int32_t raw;
  memcpy(&raw, &u, sizeof raw);
  const int32_t exponent = (raw - 0x3f3504f3) >> 23;
  const int32_t mantissa = raw - exponent * (1 << 23);
  float m;
  memcpy(&m, &mantissa, sizeof m);
  const float s = (m - 1.0f) / (m + 1.0f), q = s * s;
  const float series = 1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7 + q * (1.0f / 9))));
  const float log_u = (float)exponent * 0.69314718f + 2.0f * s * series;
  return sqrtf(fmaxf(-2.0f * log_u, 0.0f));
}

/* The sine and cosine of 2π·bits / 2^32: the nearest quarter turn, and a rest within ±π/4. */
static inline void turn(uint32_t bits, float *sine, float *cosine) {
  const uint32_t quarter = (bits + 0x20000000u) >> 30;
  const float x = (float)(int32_t)(bits - (quarter << 30)) * (6.28318531f * 0x1p-32f), q = x * x;
  const float s = x * (1.0f + q * (-1.0f / 6 + q * (1.0f / 120 + q * (-1.0f / 5040))));
  const float c = 1.0f + q * (-0.5f + q * (1.0f / 24 + q * (-1.0f / 720 + q * (1.0f / 40320))));
  const float a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
  *sine = quarter & 2 ? -a : a;
  *cosine = (quarter + 1) & 2 ? -b : b;
}

enum { BLOCK_PAIRS = 256, PIECE_BLOCKS = 256 };

typedef struct normal_job {
  tensor *tensor;
  uint64_t stream;
  float scale;
} normal_job;

/* Blocks of 2·BLOCK_PAIRS values. Value 2p is r·cos, value 2p + 1 is r·sin of pair p. */
static void normal_blocks(void *context, int64_t begin, int64_t end) {
  const normal_job *job = context;
  const int64_t element = dtype_bytes(job->tensor->dtype);
  for (int64_t block = begin; block < end; block++) {
    uint32_t first[BLOCK_PAIRS], second[BLOCK_PAIRS];
    float values[2 * BLOCK_PAIRS];
    for (int i = 0; i < BLOCK_PAIRS; i++) {
      const uint64_t bits = bits_at(job->stream, (uint64_t)(block * BLOCK_PAIRS + i));
      first[i] = (uint32_t)(bits >> 32);
      second[i] = (uint32_t)bits;
    }
    for (int i = 0; i < BLOCK_PAIRS; i++) {
      float sine, cosine;
      turn(second[i], &sine, &cosine);
      const float r = radius(first[i]) * job->scale;
      values[2 * i] = r * cosine;
      values[2 * i + 1] = r * sine;
    }
    const int64_t at = block * 2 * BLOCK_PAIRS, rest = job->tensor->count - at;
    dtype_store((char *)job->tensor->data + at * element, job->tensor->dtype, values,
                rest < 2 * BLOCK_PAIRS ? rest : 2 * BLOCK_PAIRS);
  }
}

void synth_normal(tensor *tensor, uint64_t seed, synth_array array, float scale) {
  normal_job job = {tensor, stream(seed, array), scale};
  const int64_t blocks = (tensor->count + 2 * BLOCK_PAIRS - 1) / (2 * BLOCK_PAIRS);
  parallel_for(blocks, PIECE_BLOCKS, normal_blocks, &job);
}

void synth_gradient(float *to, int64_t count, uint64_t seed, synth_array array) {
  const uint64_t start = stream(seed, array);
  for (int64_t i = 0; i < count; i++)
    to[i] = 0.25f + (float)(bits_at(start, (uint64_t)i) >> 41) * 0x1p-23f;
}

void synth_targets(tensor *tensor, uint64_t seed, int64_t vocab, double ignored,
                   int64_t ignore_index) {
  int64_t *to = tensor->data;
  for (int64_t i = 0; i < tensor->count; i++) {
    const double draw = (double)(synth_bits(seed, SYNTH_IGNORE, i) >> 11) * 0x1p-53;
    to[i] = draw < ignored ? ignore_index : synth_below(seed, SYNTH_TARGET, i, vocab);
  }
}
