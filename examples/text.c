/* Reads text files and tokenises them by byte-pair encoding: the ids start as bytes, and the most
 * frequent neighbours are joined to new ids, round by round. A round joins many pairs at once, so
 * that the whole vocabulary takes a second or two. Pieces may span words, because a few hundred
 * kilobytes of licences and C do not hold 8,000 words. Knows nothing of weft or of the model. */
#define _XOPEN_SOURCE 700
#include "text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
  BYTES = 256,
  ROOT_MAX = 1000000, /* bytes read below one root: keeps the work the same as a tree grows */
  TEXT_MAX = 3000000, /* bytes read in all */
  FILE_MAX = 100000,  /* larger files are data or generated */
  BLOCK = 2048,       /* bytes of text that are held out together, up to the end of a line */
  HELD_EVERY = 10,    /* one block of so many is held out */
  PIECE_MAX = 16,     /* bytes of a piece; repeated passages would become one piece otherwise */
  COUNT_LEAST = 2,    /* occurrences that make a pair worth an id */
  ROUND_PAIRS = 200,  /* pairs joined in one round */
  SLOT_BITS = 22,
  SLOTS = 1 << SLOT_BITS, /* of the pair table: more than a text of TEXT_MAX has pairs */
  VOCAB_MAX = 1 << 16,    /* ids fit 16 bits, a pair 32 */
};

struct buffer {
  char *bytes;
  int64_t count, limit, files;
};

static int is_text(const char *name) {
  static const char *const endings[] = {".c", ".h", ".cu", ".py", ".sh", ".md", ".txt", ".cmake"};
  const char *dot = strrchr(name, '.');
  if (!strcmp(name, "LICENSE")) return 1;
  for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++) {
    if (!strcmp(dot, endings[i])) return 1;
  }
  return 0;
}

static void append_file(struct buffer *text, const char *path, int64_t size) {
  FILE *file = fopen(path, "rb");
  if (!file) return;
  if (text->count + size < text->limit) {
    int64_t count = (int64_t)fread(text->bytes + text->count, 1, (size_t)size, file);
    if (count > 0 && !memchr(text->bytes + text->count, 0, (size_t)count)) {
      text->count += count;
      text->bytes[text->count++] = '\0'; /* the cut between two files */
      text->files++;
    }
  }
  fclose(file);
}

/* Every file of a licence folder is text, whatever its name; of a source tree, those named so. */
static void append_tree(struct buffer *text, const char *root, int all) {
  struct dirent **entries;
  int count = scandir(root, &entries, NULL, alphasort);
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    char path[4096];
    struct stat info;
    int length = snprintf(path, sizeof path, "%s/%s", root, name);
    if (name[0] != '.' && length < (int)sizeof path && lstat(path, &info) == 0) {
      if (S_ISDIR(info.st_mode) && strncmp(name, "build", 5) != 0 && strcmp(name, "out") != 0) {
        append_tree(text, path, all);
      } else if (S_ISREG(info.st_mode) && info.st_size <= FILE_MAX && (all || is_text(name))) {
        append_file(text, path, info.st_size);
      }
    }
    free(entries[i]);
  }
  if (count >= 0) free(entries);
}

/* Cuts the text into blocks that end with a line and deals them out. A cut (id 0) follows wherever
 * the next block does not go to the same side. */
static void deal_blocks(const struct buffer *from, struct tokens *train, struct tokens *held) {
  int64_t begin = 0;
  for (int64_t block = 0; begin < from->count; block++) {
    int64_t end = begin + BLOCK < from->count ? begin + BLOCK : from->count;
    while (end < from->count && from->bytes[end - 1] != '\n' && from->bytes[end - 1] != '\0')
      end++;
    struct tokens *to = block % HELD_EVERY == HELD_EVERY - 1 ? held : train;
    for (int64_t i = begin; i < end; i++)
      to->ids[to->count++] = (unsigned char)from->bytes[i];
    if (block % HELD_EVERY >= HELD_EVERY - 2) to->ids[to->count++] = 0;
    begin = end;
  }
}

struct pair {
  uint32_t key; /* left id << 16 | right id; 0: an empty slot, since no pair begins with the cut */
  int32_t count;
  int32_t joined; /* the new id, 0: none */
};

static struct pair *find_pair(struct pair *table, int64_t left, int64_t right) {
  uint32_t key = (uint32_t)left << 16 | (uint32_t)right;
  uint32_t slot = key * 2654435761u >> (32 - SLOT_BITS);
  while (table[slot].key && table[slot].key != key)
    slot = (slot + 1) % SLOTS;
  table[slot].key = key;
  return &table[slot];
}

static int by_count(const void *a, const void *b) {
  const struct pair *p = *(struct pair *const *)a, *q = *(struct pair *const *)b;
  if (p->count != q->count) return p->count < q->count ? 1 : -1;
  return p->key < q->key ? -1 : p->key > q->key;
}

static void join_pairs(struct tokens *tokens, struct pair *table) {
  int64_t kept = 0;
  for (int64_t i = 0; i < tokens->count; i++) {
    int64_t id = tokens->ids[i];
    if (id && i + 1 < tokens->count && tokens->ids[i + 1]) {
      struct pair *pair = find_pair(table, id, tokens->ids[i + 1]);
      if (pair->joined) {
        id = pair->joined;
        i++;
      }
    }
    tokens->ids[kept++] = id;
  }
  tokens->count = kept;
}

static int64_t count_used(const struct tokens *tokens, int64_t vocab) {
  static char seen[VOCAB_MAX];
  int64_t used = 0;
  memset(seen, 0, sizeof seen);
  for (int64_t i = 0; i < tokens->count; i++)
    seen[tokens->ids[i]] = 1;
  for (int64_t id = 0; id < vocab; id++)
    used += seen[id];
  return used;
}

/* One round. Pairs are counted in the training text alone; the held-out text is only rewritten.
 * Returns how many ids it added. */
static int64_t learn_round(struct text *text, struct pair *table, struct pair **best,
                           int32_t *length) {
  static char is_left[VOCAB_MAX], is_right[VOCAB_MAX];
  int64_t candidates = 0, added = 0;
  memset(is_left, 0, sizeof is_left);
  memset(is_right, 0, sizeof is_right);
  memset(table, 0, SLOTS * sizeof *table);
  for (int64_t i = 0; i + 1 < text->train.count; i++) {
    int64_t left = text->train.ids[i], right = text->train.ids[i + 1];
    if (!left || !right || length[left] + length[right] > PIECE_MAX) continue;
    struct pair *pair = find_pair(table, left, right);
    if (++pair->count == COUNT_LEAST) best[candidates++] = pair;
  }
  qsort(best, (size_t)candidates, sizeof *best, by_count);
  for (int64_t i = 0; i < candidates && added < ROUND_PAIRS && text->vocab < VOCAB_MAX; i++) {
    uint32_t left = best[i]->key >> 16, right = best[i]->key & 0xffff;
    if (best[i]->count < best[0]->count / 2) break;
    if (is_right[left] || is_left[right]) continue; /* it would take another's occurrences */
    is_left[left] = is_right[right] = 1;
    length[text->vocab] = length[left] + length[right];
    best[i]->joined = (int32_t)text->vocab++;
    added++;
  }
  join_pairs(&text->train, table);
  join_pairs(&text->held, table);
  return added;
}

const char *text_read(struct text *text, const char *const *roots, int root_count,
                      int64_t used_least) {
  static int32_t length[VOCAB_MAX];
  const char *error = "no memory for the text";
  struct buffer raw = {malloc(TEXT_MAX), 0, 0, 0};
  struct pair *table = malloc(SLOTS * sizeof *table);
  struct pair **best = malloc(TEXT_MAX * sizeof *best);
  memset(text, 0, sizeof *text);
  text->train.ids = malloc(2 * TEXT_MAX * sizeof *text->train.ids);
  text->held.ids = malloc(2 * TEXT_MAX * sizeof *text->held.ids);
  if (!raw.bytes || !table || !best || !text->train.ids || !text->held.ids) goto cleanup;

  for (int i = 0; i < root_count; i++) {
    raw.limit = raw.count + ROOT_MAX < TEXT_MAX ? raw.count + ROOT_MAX : TEXT_MAX;
    append_tree(&raw, roots[i], strstr(roots[i], "licenses") != NULL);
  }
  text->files = raw.files;
  text->bytes = raw.count;
  deal_blocks(&raw, &text->train, &text->held);

  text->vocab = BYTES;
  for (int i = 0; i < BYTES; i++)
    length[i] = 1;
  while ((text->used = count_used(&text->train, text->vocab)) < used_least) {
    if (!learn_round(text, table, best, length)) {
      error = "too little text for the vocabulary: name more folders";
      goto cleanup;
    }
  }
  error = NULL;

cleanup:
  free(best);
  free(table);
  free(raw.bytes);
  if (error) text_free(text);
  return error;
}

void text_free(struct text *text) {
  free(text->train.ids);
  free(text->held.ids);
  memset(text, 0, sizeof *text);
}
