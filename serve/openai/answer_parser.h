/* An answer taken apart while it arrives: text, thoughts, and calls of tools. What looks like a call and is none stays
 * text. However the pieces are cut, their sum is the same. */
#ifndef QRUN_SERVE_OPENAI_ANSWER_PARSER_H
#define QRUN_SERVE_OPENAI_ANSWER_PARSER_H

#include "serve/openai/answer_format.h"
#include "serve/openai/text.h"

/* What a piece of the answer gives. */
typedef struct answer_delta {
    serve_text content, thought;
    cJSON *calls;       /* {"name", "arguments"} …; NULL: none */
    cJSON *calls_after; /* of each: the bytes of content that came before it */
} answer_delta;
void answer_delta_free(answer_delta *delta);

typedef enum parser_state {
    PARSER_TEXT,
    PARSER_THOUGHT,
    PARSER_CALL,      /* up to an end marker */
    PARSER_CALL_REST, /* up to the end of the answer */
    PARSER_HEADER,    /* of Harmony: what precedes a message */
    PARSER_MESSAGE
} parser_state;

/* What a message of Harmony is. */
typedef enum message_kind { MESSAGE_TEXT, MESSAGE_THOUGHT, MESSAGE_CALL } message_kind;

/* A zeroed one is freed without harm. */
typedef struct answer_parser {
    const answer_format *format; /* lent */
    const cJSON *tools;          /* of the request; NULL: calls are text. Lent */
    parser_state state;
    serve_text pending; /* not decided yet */
    serve_text lead;    /* of a call: the space before it, and its marker; of a message: its header */
    size_t n_searched;  /* of a call: bytes of pending in which its end was looked for */
    int mark;           /* of a call: which one; −1: none, it is the whole answer */
    bool has_text;      /* text or a call was given: no thought begins, and no answer that is a call as a whole */
    bool has_content;   /* text was given */
    bool has_thought;   /* a thought was given: there is one at most */
    bool is_no_call;    /* the answer is no call as a whole */
    bool trims;         /* space that comes next follows a block, and goes */
    int n_calls;
    message_kind message;
    int n_messages;
    bool separates; /* what comes next of its kind does not follow what was given: another message, or a call, came */
} answer_parser;

/* tools NULL: none. thinks: the prompt ends within a thought. */
void answer_parser_start(answer_parser *p, const answer_format *format, const cJSON *tools, bool thinks);
void answer_parser_free(answer_parser *p);

/* Whether what comes next belongs to a thought, or ends it. */
static inline bool answer_parser_thinks(const answer_parser *p) {
    return p->state == PARSER_THOUGHT || (p->state == PARSER_MESSAGE && p->message == MESSAGE_THOUGHT);
}

/* The next bytes of the answer. */
void answer_parser_push(answer_parser *p, const char *bytes, size_t n_bytes, answer_delta *delta);
/* A marker that the answer's text leaves out (answer_format_hidden). */
void answer_parser_push_hidden(answer_parser *p, const char *marker, answer_delta *delta);
/* The answer is over. */
void answer_parser_finish(answer_parser *p, answer_delta *delta);

#endif
