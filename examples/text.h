/* Turns the text files of a machine into token ids for the language model of train_lm.c. Knows
 * nothing of weft. */
#ifndef TEXT_H
#define TEXT_H

#include <stdint.h>

struct tokens {
  int64_t *ids;
  int64_t count;
};

struct text {
  struct tokens train, held; /* ids in [0, vocab); 0 stands where the text is cut */
  int64_t files, bytes;
  int64_t vocab;
  int64_t used; /* ids that occur in the training text */
};

/* Reads the text files below the `roots`, cuts every tenth block of them away as held-out text, and
 * learns byte-pair pieces from the rest until `used_least` different ids occur in it. Paths are
 * visited in sorted order, so the same files give the same ids. Returns NULL, or what went wrong.
 */
const char *text_read(struct text *text, const char *const *roots, int root_count,
                      int64_t used_least);
void text_free(struct text *text);

#endif
