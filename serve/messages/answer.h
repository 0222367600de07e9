/* Answers and errors in the form of Anthropic's Messages API, whole or as the events of a stream. */
#ifndef QRUN_SERVE_MESSAGES_ANSWER_H
#define QRUN_SERVE_MESSAGES_ANSWER_H

#include "serve/openai/protocol.h"

extern const answer_protocol messages_protocol, messages_count_protocol;

/* {"type": "error", "error": {…}}; NULL when memory is short; cJSON_free. */
char *messages_error_text(const openai_error *error);

#endif
