/* Calls of tools as models write them: a name, and arguments that become JSON text. */
#ifndef QRUN_SERVE_OPENAI_TOOL_CALLS_H
#define QRUN_SERVE_OPENAI_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "serve/openai/answer_format.h"

/* What begins a call in an answer of a style, and what ends it. */
typedef struct call_mark {
    call_style style;
    const char *begin, *end; /* end NULL: the answer's end does */
    bool in_body;            /* the markers are part of the call */
} call_mark;
extern const call_mark call_marks[];
extern const int n_call_marks;

/* The end marker of the body of a call; NULL: it is not there yet, or it is part of the call. is_last: no more of the
 * answer will come. */
const char *tool_calls_find_end(call_style style, const char *mark, const char *body, size_t n_bytes, bool is_last);

/* Whether text at the beginning of an answer can still become a call that no marker begins. */
bool tool_calls_may_begin(call_style style, const char *text, size_t n_bytes, const cJSON *tools);

/* The calls in what stands between the markers of the style, appended to an array as {"name", "arguments"}, both texts;
 * arguments of JSON stay as they are written. tools: those of the request, for the types of arguments that are written
 * without; they decide which answers are calls that no marker begins. False, and nothing appended: not all of it is
 * calls. */
bool tool_calls_parse(call_style style, const char *body, size_t n_bytes, const cJSON *tools, cJSON *calls);

#endif
