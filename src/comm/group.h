/* Calls of several ranks issued by one thread, between weft_group_start() and weft_group_end():
 * those that meet other ranks on the host are kept until the end, where each rank's run on a thread
 * of its own. Calls that only enqueue work on streams never block and are made at once. */
#ifndef WEFT_COMM_GROUP_H
#define WEFT_COMM_GROUP_H

#include "comm/comm.h"

/* Whether the calling thread has a group open and the team is of GPU ranks of this process. */
bool weft__group_open(const weft_comm *comm);

/* Keeps call(arguments) for the end of the group: `bytes` of arguments are copied. The arguments'
 * own pointers must stay good until then. */
weft_status weft__group_keep(weft_comm *comm, weft_status (*call)(void *arguments),
                             const void *arguments, size_t bytes);

#endif
