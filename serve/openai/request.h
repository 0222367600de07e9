/* Requests of the OpenAI API as those of qrun: the members that both know, under qrun's names. What is left to
 * qrun_session_submit_json is checked there, so that a request means the same as a line of `qrun generate`. */
#ifndef QRUN_SERVE_OPENAI_REQUEST_H
#define QRUN_SERVE_OPENAI_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "qrun.h"

/* Why a request is refused: an HTTP status, a sentence, and the member it is about (may be empty). */
typedef struct openai_error {
    int status;
    char message[640];
    char member[64];
} openai_error;

/* The endpoint that a request is for. */
typedef enum openai_kind { OPENAI_TEXT, OPENAI_CHAT, OPENAI_EMBEDDING } openai_kind;

typedef struct openai_request {
    openai_kind kind;
    bool stream, include_usage;
    bool echo;               /* the answer begins with the prompt */
    bool is_prompt_alone;    /* nothing is generated */
    bool in_base64;          /* embeddings */
    bool has_format;         /* the answer is JSON in a form: it has neither thoughts nor calls */
    bool continues;          /* the answer continues the last message, which has text */
    bool has_seed;           /* other than -1, which is none */
    bool must_call;          /* the answer is a call of one of the tools */
    char *called;            /* of this one; NULL: of any. Lent by `body` */
    qrun_pooling pooling;    /* embeddings */
    int logprobs;            /* −1: none; else how many of the best are wanted beside the token's own */
    int n_samples;           /* of each prompt */
    int32_t largest_bias_id; /* of logit_bias */
    char model[256];         /* as asked for; empty: not said */
    cJSON *body;             /* the request in qrun's form, without its prompt; owned */
    cJSON *prompts;          /* array of texts, arrays of token ids, or (chat) arrays of messages; owned */
} openai_request;

enum { OPENAI_MAX_PROMPTS = 128, OPENAI_MAX_BIASES = 1024 };

/* Makes a request of another protocol one of /v1/chat/completions: moves what it can from `root`, an object, to `chat`,
 * an empty one. False with *error set. */
typedef bool (*openai_translation)(cJSON *root, cJSON *chat, openai_error *error);

/* translate NULL: the request is in OpenAI's form; else it becomes one of kind OPENAI_CHAT. False with *error set.
 * openai_request_free in any case. */
bool openai_request_read(const char *json, size_t n_bytes, openai_kind kind, openai_translation translate,
                         openai_request *request, openai_error *error);
void openai_request_free(openai_request *request);

/* The arguments of calls in messages as JSON in texts, as clients send them: openai_request_read makes them JSON, which
 * some templates do not take. False with *error set. */
bool openai_request_keep_text_arguments(openai_request *request, openai_error *error);

/* Messages of the system after others become the user's, with an empty line between what then is one message: some
 * templates take none. False with *error set. */
bool openai_request_move_late_system(openai_request *request, openai_error *error);

/* The text for qrun_session_submit_json of one of the prompts; adapter: a name, or NULL for the base model. NULL when
 * memory is short; cJSON_free. */
char *openai_request_line(const openai_request *request, int prompt, const char *adapter);

/* Turns numbers into texts with all their digits: cJSON prints 15 of some, and prompts and answers are made of them.
 * False with *error, about `member`, set: where its reader has rounded a number, as a double does not hold it. member
 * NULL: such a number is no error. */
bool openai_write_numbers(cJSON *json, const char *member, openai_error *error);

/* What becomes of a member of a request. */
typedef enum openai_member_use {
    USE_SAME,       /* goes on, under the name `as` where there is one */
    USE_HERE,       /* read by a function of its own */
    USE_NOT,        /* sent by clients out of habit; it does not change an answer here */
    USE_ONLY_EMPTY, /* null, false, 0 or empty; anything else is refused */
    USE_ONLY_ONE,   /* the same, and 1 */
} openai_member_use;

typedef struct openai_member {
    const char *name;
    int endpoints; /* that have it, in bits */
    openai_member_use use;
    const char *as; /* NULL: the same name */
} openai_member;

/* The row of a member of a request, of up to OPENAI_MOST_MEMBERS; `seen` has a bit for each, 0 at first. NULL with
 * *error set: it is unknown, was seen already, or has to be empty. */
enum { OPENAI_MOST_MEMBERS = 64 };
const openai_member *openai_member_find(const openai_member *table, size_t n_members, int endpoint, const cJSON *item,
                                        uint64_t *seen, openai_error *error);

/* Fills an error; `member` may be NULL. Returns false. */
bool openai_refuse(openai_error *error, int status, const char *member, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool openai_refuse_for_memory(openai_error *error);

/* {"error": {…}} in OpenAI's form; NULL when memory is short; cJSON_free. */
char *openai_error_text(const openai_error *error);

#endif
