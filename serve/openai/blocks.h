/* An answer as blocks, one after the other: a thought, text, or a call each. Protocols that say answers so see every
 * block begin, grow and end. */
#ifndef QRUN_SERVE_OPENAI_BLOCKS_H
#define QRUN_SERVE_OPENAI_BLOCKS_H

#include "serve/openai/answer_parser.h"

typedef enum block_kind { BLOCK_NONE, BLOCK_THOUGHT, BLOCK_TEXT, BLOCK_CALL } block_kind;

/* A zeroed one has no blocks yet. */
typedef struct answer_blocks {
    block_kind open; /* the kind of the last block, while it may grow */
    int number;      /* of the last block, from 0 */
    int n, n_calls;  /* that have begun */
    bool has_text;   /* one was text */
    serve_text text; /* of the last block: its text, or the arguments of a call */
    cJSON *call;     /* of a call: {"name", "arguments"}; lent while it is open */
} answer_blocks;
void answer_blocks_free(answer_blocks *b);

typedef struct block_events {
    void (*begin)(void *user, const answer_blocks *b);
    void (*grow)(void *user, const answer_blocks *b, const char *bytes, size_t n_bytes);
    void (*end)(void *user, const answer_blocks *b);
} block_events;

/* What a piece of the answer gives: its thought, then text and calls as they came. */
void answer_blocks_take(answer_blocks *b, const answer_delta *delta, const block_events *events, void *user);
/* The answer is over. */
void answer_blocks_end(answer_blocks *b, const block_events *events, void *user);

#endif
