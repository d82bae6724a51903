/* A loop over [0, count) on all cores, in pieces that free threads take one after the other. */
#ifndef CLI_PARALLEL_H
#define CLI_PARALLEL_H

#include <stdint.h>

typedef void (*parallel_body)(void *context, int64_t begin, int64_t end);

/* Calls body(context, begin, end) for pieces of at most `piece` that cover [0, count). Pieces run
 * at the same time; which thread takes which is not fixed. Returns when all have ended. Runs on the
 * calling thread alone where no other can be started. */
void parallel_for(int64_t count, int64_t piece, parallel_body body, void *context);

#endif
