/* Answers in the form of the OpenAI API: whole, or as the pieces of a stream. */
#ifndef QRUN_SERVE_OPENAI_ANSWER_H
#define QRUN_SERVE_OPENAI_ANSWER_H

#include <stdint.h>

#include <cjson/cJSON.h>

#include "qrun.h"
#include "serve/openai/protocol.h"

extern const answer_protocol openai_text_protocol, openai_chat_protocol, openai_embedding_protocol;

/* The lists of "logprobs", in the form of the endpoint; lent. */
typedef struct openai_logprobs {
    cJSON *content;                                          /* chat: array of tokens */
    cJSON *tokens, *token_logprobs, *top_logprobs, *offsets; /* completions: arrays */
    int64_t n_characters;                                    /* of text before the next token, as clients count it */
} openai_logprobs;

/* Begins empty lists in a new object, which the caller adds to a choice; `into` lends them. */
cJSON *openai_logprobs_begin(bool is_chat, int64_t n_characters_before, openai_logprobs *into);
/* n_characters: of the text that the token stands for. */
void openai_logprobs_add(openai_logprobs *lists, const qrun_event *event, int64_t n_characters,
                         const qrun_tokenizer *tokenizer);
/* The name of a special token, which texts of tokens leave out; lent, not NUL-terminated. NULL of any other. */
const char *openai_special_name(const qrun_tokenizer *tokenizer, int32_t id, size_t *n_bytes);

/* A vector, as numbers or as text; the answer around a list of them (taken). */
cJSON *openai_embedding(const float *values, int32_t n, bool in_base64);
cJSON *openai_embeddings(const openai_head *head, cJSON *list, const openai_usage *usage);

#endif
