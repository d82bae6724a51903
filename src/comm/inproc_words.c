/* The error words of a team of GPU ranks, which kernels read and write while they run: what a
 * kernel found becomes the team's error, and what stops the team ends the waits of its kernels. One
 * word a rank, in memory of the host. Knows how a word reads, nothing of kernels. */
#include <stdio.h>

#include "comm/inproc.h"
#include "device/comm/peers.h"

static const char *const phases[PEER_PHASE_COUNT] = {"",
#define X(name, text) text,
                                                     PEER_PHASES(X)
#undef X
};

static uint32_t *word_of(const inproc_team *team, int64_t rank) {
  return team->words + rank * INPROC_WORD_STRIDE;
}

void weft__inproc_words_stop(inproc_team *team) {
  for (int64_t rank = 0; team->words != NULL && rank < team->ranks; rank++) {
    uint32_t none = 0;
    __atomic_compare_exchange_n(word_of(team, rank), &none,
                                peer_error(PEER_ERROR_ABORTED, PEER_PHASE_NONE, 0), 0,
                                __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

void weft__inproc_words_clear(inproc_team *team) {
  for (int64_t rank = 0; team->words != NULL && rank < team->ranks; rank++)
    __atomic_store_n(word_of(team, rank), 0, __ATOMIC_RELAXED);
}

/* The team's error for a word that is not 0. */
static weft_status read_word(const inproc_team *team, int64_t rank, uint32_t word, int64_t *peer,
                             char *text, size_t size) {
  const uint32_t phase = (uint32_t)peer_error_phase(word);
  const char *const name = phase < PEER_PHASE_COUNT ? phases[phase] : "unknown phase";
  *peer = peer_error_rank(word);
  switch (peer_error_kind(word)) {
  case PEER_ERROR_TIMEOUT:
    snprintf(text, size, "%s: rank %lld of %lld waited %lld ms for rank %lld", name,
             (long long)rank, (long long)team->ranks, (long long)team->timeout_ms,
             (long long)*peer);
    return WEFT_ERR_TIMEOUT;
  case PEER_ERROR_DIFFERS:
    snprintf(text, size,
             "%s: rank %lld and rank %lld make different calls, or for different "
             "numbers of tokens",
             name, (long long)rank, (long long)*peer);
    return WEFT_ERR_MISMATCH;
  case PEER_ERROR_REFUSED:
    snprintf(text, size, "%s: rank %lld refused its arguments", name, (long long)*peer);
    return WEFT_ERR_PEER;
  case PEER_ERROR_DATA:
    snprintf(text, size,
             "%s: rank %lld's topk_idx holds an expert that is not one, or one twice in a token",
             name, (long long)*peer);
    return WEFT_ERR_ARGUMENT;
  case PEER_ERROR_BUSY:
    snprintf(text, size,
             "%s: an operation of rank %lld found its slot in use, or without its send half: more "
             "are in flight in a replayed graph than may be",
             name, (long long)*peer);
    return WEFT_ERR_BUSY;
  case PEER_ERROR_ABORTED:
    *peer = -1;
    snprintf(text, size, "rank %lld: the team was stopped", (long long)rank);
    return WEFT_ERR_ABORTED;
  default:
    *peer = -1;
    snprintf(text, size, "%s: a kernel of rank %lld gave up waiting for its own grid", name,
             (long long)rank);
    return WEFT_ERR_TIMEOUT;
  }
}

/* What may be the consequence of another rank's error. */
static bool is_wait(uint32_t word) {
  return peer_error_kind(word) == PEER_ERROR_TIMEOUT || peer_error_kind(word) == PEER_ERROR_LOCAL;
}

/* Errors that are not of waits come first: they are causes. */
void weft__inproc_words_poll(inproc_team *team) {
  const int64_t words = team->words != NULL ? 2 * team->ranks : 0;
  for (int64_t i = 0; i < words; i++) {
    const int64_t rank = i % team->ranks;
    const uint32_t word = __atomic_load_n(word_of(team, rank), __ATOMIC_RELAXED);
    if (word == 0 || peer_error_kind(word) == PEER_ERROR_ABORTED || team->stopped != WEFT_OK ||
        is_wait(word) != (i >= team->ranks))
      continue;
    char message[200];
    int64_t peer = -1;
    const weft_status status = read_word(team, rank, word, &peer, message, sizeof message);
    team->stopped = status;
    /* what stops the team comes before what does not */
    if (!weft__is_sticky((weft_status)team->error.status)) team->error.status = WEFT_OK;
    weft__error_keep(&team->error, status, rank, peer, 1, message);
    pthread_cond_broadcast(&team->wake);
    weft__inproc_words_stop(team);
  }
}

weft_status weft__inproc_check(weft_comm *comm, const char *call) {
  inproc_team *const team = ((inproc_comm *)comm)->team;
  weft_status status = WEFT_OK;
  pthread_mutex_lock(&team->lock);
  weft__inproc_words_poll(team);
  if (team->stopped != WEFT_OK) status = weft__inproc_stopped(team, call);
  pthread_mutex_unlock(&team->lock);
  return status;
}
