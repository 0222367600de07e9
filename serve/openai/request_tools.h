/* The tools of a chat request, and which of them an answer may or must call ("tool_choice"). */
#ifndef QRUN_SERVE_OPENAI_REQUEST_TOOLS_H
#define QRUN_SERVE_OPENAI_REQUEST_TOOLS_H

#include "serve/openai/request.h"

/* root: the request. Checks the "tools" that request->body has, leaves those in it that may be called, and sets
 * must_call and called. False with *error set. */
bool openai_read_tools(const cJSON *root, openai_request *request, openai_error *error);

#endif
