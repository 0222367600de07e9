/* Answers in the form of the OpenAI API: whole, or as the pieces of a stream. */
#ifndef QRUN_SERVE_OPENAI_ANSWER_H
#define QRUN_SERVE_OPENAI_ANSWER_H

#include <stdint.h>

#include <cjson/cJSON.h>

#include "qrun.h"

/* What all parts of an answer repeat. */
typedef struct openai_head {
    char id[48];
    const char *model; /* as the client named it; lent */
    int64_t created;   /* Unix time */
    bool is_chat;
} openai_head;

typedef struct openai_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens;
} openai_usage;

/* The lists of "logprobs", in the form of the endpoint; lent. */
typedef struct openai_logprobs {
    cJSON *content;                                          /* chat: array of tokens */
    cJSON *tokens, *token_logprobs, *top_logprobs, *offsets; /* completions: arrays */
    int64_t n_characters;                                    /* of text before the next token, as clients count it */
} openai_logprobs;

/* Begins empty lists in a new object, which the caller adds to a choice; `into` lends them. */
cJSON *openai_logprobs_begin(bool is_chat, int64_t n_characters_before, openai_logprobs *into);
void openai_logprobs_add(openai_logprobs *lists, const qrun_event *event, const qrun_tokenizer *tokenizer);

/* The object of a whole answer around its choices (taken), or of a piece of a stream; usage NULL: not said. */
cJSON *openai_answer(const openai_head *head, bool is_piece, cJSON *choices, const openai_usage *usage);

/* What a choice says; its parts are taken, and NULL afterwards. NULL: it has none. */
typedef struct openai_content {
    cJSON *text, *thought, *calls; /* calls: of openai_calls */
} openai_content;

/* A choice of a whole answer; it takes logprobs (may be NULL). */
cJSON *openai_choice(const openai_head *head, int index, openai_content *content, cJSON *logprobs,
                     const char *finish_reason);
/* A choice of a piece; finish_reason NULL: it continues. */
cJSON *openai_piece(const openai_head *head, int index, bool is_first, openai_content *content, cJSON *logprobs,
                    const char *finish_reason);

/* {"name", "arguments"} … as a message has them; the first one is the choice's first-th. */
cJSON *openai_calls(const openai_head *head, int index, int first, bool is_piece, const cJSON *calls);

/* A vector, as numbers or as text; the answer around a list of them (taken). */
cJSON *openai_embedding(const float *values, int32_t n, bool in_base64);
cJSON *openai_embeddings(const openai_head *head, cJSON *list, const openai_usage *usage);

#endif
