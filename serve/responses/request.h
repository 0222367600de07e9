/* Requests of OpenAI's Responses API as those of /v1/chat/completions (openai_translation). Nothing is stored: a
 * request has all of its conversation. */
#ifndef QRUN_SERVE_RESPONSES_REQUEST_H
#define QRUN_SERVE_RESPONSES_REQUEST_H

#include "serve/openai/request.h"

bool responses_to_chat(cJSON *root, cJSON *chat, openai_error *error);

#endif
