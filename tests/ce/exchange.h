/* The caller's exchange of an external world whose ranks are threads of the test: shared memory and
 * a barrier. */
#ifndef WEFT_TESTS_CE_EXCHANGE_H
#define WEFT_TESTS_CE_EXCHANGE_H

#include <stdint.h>
#include <weft/weft.h>

typedef struct exchange exchange;

exchange *exchange_new(int64_t ranks);
void exchange_free(exchange *e);

/* Makes one rank's world. Collective over the ranks' threads. */
weft_status exchange_world(exchange *e, int64_t rank, int64_t hosts, weft_comm **comm);

#endif
