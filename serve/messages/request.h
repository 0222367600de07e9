/* Requests of Anthropic's Messages API as those of /v1/chat/completions (openai_translation). */
#ifndef QRUN_SERVE_MESSAGES_REQUEST_H
#define QRUN_SERVE_MESSAGES_REQUEST_H

#include "serve/openai/request.h"

bool messages_to_chat(cJSON *root, cJSON *chat, openai_error *error);
/* Of /v1/messages/count_tokens: "max_tokens" may be missing. */
bool messages_to_count(cJSON *root, cJSON *chat, openai_error *error);

#endif
