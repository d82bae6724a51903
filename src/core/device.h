/* What lower layers may ask of the GPU side, which stands above them: functions in src/cuda. */
#ifndef WEFT_CORE_DEVICE_H
#define WEFT_CORE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <weft/weft.h>

/* Whether operations run on that GPU: WEFT_OK, or UNSUPPORTED with the reason. */
weft_status weft__gpu_check(int gpu);

/* What one rank of an in-process world has on its GPU: its arena, a stream of its own, and the
 * event that keeps its kernels in one order. Shared by its views of every team. */
typedef struct weft__gpu_rank weft__gpu_rank;

/* Makes those of a world on GPUs, ranks[0] to ranks[world->ranks - 1], where GPUs that hold ranks
 * of one host reach each other's memory from then on. On an error none is made. Errors: UNSUPPORTED
 * (no such GPU, no peer access, more ranks on a GPU than can run at once), MEMORY. */
weft_status weft__gpu_world_create(const weft_world_config *world, weft__gpu_rank **ranks);
weft__gpu_rank *weft__gpu_rank_share(weft__gpu_rank *rank); /* NULL is allowed, here and below */
void weft__gpu_rank_drop(weft__gpu_rank *rank);
int32_t weft__gpu_rank_device(const weft__gpu_rank *rank); /* −1 for NULL */
int64_t weft__gpu_rank_sms(const weft__gpu_rank *rank);    /* SMs it may take; 0 for NULL */
void *weft__gpu_rank_stream(const weft__gpu_rank *rank);
/* Waits until the rank's kernels have ended. */
weft_status weft__gpu_rank_wait(weft__gpu_rank *rank);

/* Zeroed memory of the host that every GPU reads and writes at the same address; `gpu` is one that
 * is in use. */
weft_status weft__gpu_words_alloc(int32_t gpu, size_t bytes, uint32_t **words);
void weft__gpu_words_free(int32_t gpu, uint32_t *words); /* NULL is allowed */

#endif
