/* A protocol: how requests that generate are read, and how their answers are written, whole or as the pieces of a
 * stream. What lies between is the same for all: the request of a chat, text or embedding, and what the answer's parser
 * gives. */
#ifndef QRUN_SERVE_OPENAI_PROTOCOL_H
#define QRUN_SERVE_OPENAI_PROTOCOL_H

#include "serve/openai/answer_parser.h"
#include "serve/openai/blocks.h"
#include "serve/openai/request.h"

/* What all parts of an answer repeat. */
typedef struct openai_head {
    char id[48];
    const char *model; /* as the client named it; lent */
    int64_t created;   /* Unix time */
    bool is_chat;
} openai_head;

typedef struct openai_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    int64_t thought_tokens; /* of completion_tokens: those of thoughts, with the markers that end them */
} openai_usage;

/* What is new of a choice, or all of it in a whole answer. */
typedef struct answer_piece {
    int index; /* of the choice */
    bool is_first;
    answer_delta *delta;       /* may be empty */
    int n_calls;               /* of the choice up to now, with those of delta */
    cJSON *logprobs;           /* taken; NULL: none */
    const char *finish_reason; /* as chat completions say it; NULL: the choice goes on */
    const char *stop_text;     /* what ended it; NULL: no text did */
    openai_usage usage;        /* of the choice: of its prompt, and at its end of all */
} answer_piece;

/* What an answer's writer remembers between pieces. A zeroed one is freed without harm. */
typedef struct answer_writer {
    openai_head head;
    const openai_request *request; /* lent */
    /* Of protocols that know one choice, made of blocks: */
    answer_blocks blocks;
    cJSON *done;      /* array of blocks that have ended, in the form of the protocol; owned */
    serve_text *out;  /* of the call: where events go; NULL: nowhere */
    int64_t n_events; /* that were written */
    bool is_cut;      /* the last block is not all that there would be */
} answer_writer;
void answer_writer_free(answer_writer *w);

typedef struct answer_protocol {
    openai_kind kind;
    const char *id_prefix;
    const char *id_header;        /* a further header with the answer's id; NULL: none */
    bool counts;                  /* the answer is the number of the prompt's tokens */
    openai_translation translate; /* NULL: requests are in OpenAI's form */
    /* Appends a piece, as it is sent. False: it has nothing to say. */
    bool (*write_piece)(answer_writer *w, answer_piece *piece, serve_text *out);
    /* Appends what keeps a client waiting while there is nothing to say, or is_first: what begins the stream. NULL:
     * nothing is. */
    void (*write_wait)(answer_writer *w, bool is_first, serve_text *out);
    /* Appends what follows the last piece; NULL: nothing. */
    void (*write_end)(answer_writer *w, const openai_usage *usage, serve_text *out);
    /* Appends an error that ends a stream. */
    void (*write_error)(answer_writer *w, const openai_error *error, serve_text *out);
    /* The whole answer of n choices; NULL when memory is short. */
    cJSON *(*whole)(answer_writer *w, answer_piece *pieces, int n, const openai_usage *usage);
    /* An error as a whole answer; NULL when memory is short; cJSON_free. */
    char *(*error_text)(const openai_error *error);
} answer_protocol;

/* Appends an event of a stream, and frees its JSON. name NULL: it has none. */
void protocol_write_event(serve_text *out, const char *name, cJSON *json);

/* The id of a call of an answer: nine letters and digits, as templates of Mistral ask for. */
enum { PROTOCOL_CALL_ID_BYTES = 10 };
void protocol_call_id(const openai_head *head, int index, int number, char id[PROTOCOL_CALL_ID_BYTES]);

#endif
