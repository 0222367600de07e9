/* Calls of tools as models write them: a name, and arguments that become JSON text. */
#ifndef QRUN_SERVE_OPENAI_TOOL_CALLS_H
#define QRUN_SERVE_OPENAI_TOOL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "serve/openai/answer_format.h"

/* The calls in what stands between the markers of the style, appended to an array as {"name", "arguments"}, both texts;
 * arguments of JSON stay as they are written. tools: those of the request, for the types of arguments that are written
 * without; they decide which answers of CALLS_LLAMA are calls. False, and nothing appended: not all of it is calls. */
bool tool_calls_parse(call_style style, const char *body, size_t n_bytes, const cJSON *tools, cJSON *calls);

#endif
