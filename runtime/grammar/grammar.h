/* Answers in a form: which tokens may come next, so that the whole answer is JSON that a schema accepts.
 *
 * A grammar is made of a schema, or of several between texts, when a request has none to share (grammar_shelf.h). It is
 * read alone after that, but for its masks, which have a lock. A room is what a session needs besides: the tokens'
 * bytes, and scratch for each thread. A place is where the text of one sample is. Masks depend on the text so far, the
 * schema and the tokenizer, and on nothing else. */
#ifndef QR_RUNTIME_GRAMMAR_GRAMMAR_H
#define QR_RUNTIME_GRAMMAR_GRAMMAR_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/grammar/matcher.h"
#include "runtime/grammar/schema.h"
#include "runtime/grammar/token_trie.h"

enum { QR_GRAMMAR_MAX_SCHEMA_BYTES = 256 << 10, QR_GRAMMAR_MASKS = 16 };

/* A mask that was made before. */
typedef struct qr_kept_mask {
    uint64_t key[2];
    bool is_set;
    uint32_t *mask;
} qr_kept_mask;

typedef struct qr_grammar {
    qr_automaton automaton;
    atomic_int n_users;
    pthread_mutex_t lock; /* of what follows */
    qr_kept_mask kept[QR_GRAMMAR_MASKS];
    uint32_t *masks; /* of `kept`; NULL until qr_grammar_start */
    int next;        /* of `kept`, to be replaced */
} qr_grammar;

/* From the text of a schema; QRUN_ERROR_INPUT or QRUN_ERROR_UNSUPPORTED with the place in the schema. */
qrun_status qr_grammar_create(const char *schema, size_t n_bytes, qr_grammar **grammar, qr_error *err);
qr_grammar *qr_grammar_share(qr_grammar *grammar);   /* it has one more user */
void qr_grammar_destroy(qr_grammar *grammar);        /* of its last user; NULL is fine */
int64_t qr_grammar_bytes(const qr_grammar *grammar); /* of memory, before it starts */
/* One of the forms that an answer may have: `before`, a value that the schema accepts, `after`. In its texts the name
 * of a special token stands for that token. */
typedef struct qr_grammar_form {
    const char *name; /* in messages */
    const char *before, *schema, *after;
    bool is_tagged;      /* the value is an object whose members stand between tags */
    qr_schema_tags tags; /* then */
} qr_grammar_form;

/* From forms (at least one), as qr_grammar_create. */
qrun_status qr_grammar_create_forms(const qr_tokenizer *tokenizer, const qr_grammar_form *forms, size_t n_forms,
                                    qr_grammar **grammar, qr_error *err);
/* Allocates its masks, where another user has not. */
qrun_status qr_grammar_start(qr_grammar *grammar, int64_t vocab, qr_error *err);

/* Scratch of one thread. */
typedef struct qr_grammar_worker {
    qr_match_arena arena;
    qr_match_place place; /* after a draft, so that drafts take no more of the arena than tokens do */
    qr_match_set *sets;   /* [QR_TOKEN_MAX_BYTES + 1] of a walk, by depth */
    uint32_t *mask;
} qr_grammar_worker;

typedef struct qr_grammar_room {
    qr_token_trie trie;
    qr_grammar_worker *workers; /* [n_workers] */
    int n_workers;
} qr_grammar_room;

qrun_status qr_grammar_room_create(const qr_tokenizer *tokenizer, int64_t vocab, int n_workers, qr_grammar_room **room,
                                   qr_error *err);
void qr_grammar_room_destroy(qr_grammar_room *room); /* NULL is fine */

/* The place of the empty text. */
bool qr_grammar_begin(const qr_grammar *grammar, qr_grammar_worker *worker, qr_match_place *place);

/* What a sample may continue with. */
typedef enum qr_grammar_result {
    QR_GRAMMAR_OK,
    QR_GRAMMAR_MISMATCH, /* the drafts do not fit: nobody asks for what follows them */
    QR_GRAMMAR_TOO_MUCH  /* the schema has too many ways to read a text */
} qr_grammar_result;

/* The tokens that end an answer: two lists. */
typedef struct qr_grammar_ends {
    const int32_t *ids[2];
    int64_t n[2];
} qr_grammar_ends;

/* *mask: a bit for each token that may come after the text of a place and these drafts; the worker's, until its next
 * call. Tokens that end an answer are set where it may end, and never else. */
qr_grammar_result qr_grammar_mask(qr_grammar *grammar, const qr_grammar_room *room, qr_grammar_worker *worker,
                                  const qr_match_place *place, const int32_t *drafts, int64_t n_drafts,
                                  const qr_grammar_ends *ends, const uint32_t **mask);

/* Moves a place on by a token that the mask had. */
qr_grammar_result qr_grammar_advance(const qr_grammar *grammar, const qr_grammar_room *room, qr_grammar_worker *worker,
                                     int32_t token, qr_match_place *place);

/* Whether the text is an answer and nothing can follow it. */
bool qr_grammar_is_over(const qr_match_place *place);

#endif
