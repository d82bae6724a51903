/* The list of protocols that `weft check` knows, and one seed of one of them. */
#include <weft/loom.h>

#define PROTOCOLS_MAX 256

static const struct loom_protocol *list[PROTOCOLS_MAX];
static int count;

void loom_protocol_register(const struct loom_protocol *protocol) {
  for (int i = 0; i < count; i++)
    if (list[i] == protocol) return;
  if (count < PROTOCOLS_MAX) list[count++] = protocol;
}

int loom_protocol_count(void) {
  return count;
}

const struct loom_protocol *loom_protocol_at(int i) {
  return i >= 0 && i < count ? list[i] : 0;
}

int loom_protocol_run(const struct loom_protocol *protocol, const struct loom_options *options,
                      const struct loom_config *config) {
  struct loom_config own = *config;
  const uint32_t least = protocol->ranks ? protocol->ranks : 1;
  own.gpus = options->ranks > least ? options->ranks : least;
  own.gpus_per_host = options->hosts > 1 ? (own.gpus + options->hosts - 1) / options->hosts : 0;
  if (protocol->sms) own.sms_per_gpu = protocol->sms;
  if (protocol->fault) own.timeouts_expected = 1;
  if (loom_begin(&own) != 0) return -1;
  protocol->run(protocol, options);
  return loom_finding_count();
}
