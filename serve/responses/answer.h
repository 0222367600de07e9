/* Answers and errors in the form of OpenAI's Responses API, whole or as the events of a stream. */
#ifndef QRUN_SERVE_RESPONSES_ANSWER_H
#define QRUN_SERVE_RESPONSES_ANSWER_H

#include "serve/openai/protocol.h"

extern const answer_protocol responses_protocol;

/* {"error": {…}}, about members as this API calls them; NULL when memory is short; cJSON_free. */
char *responses_error_text(const openai_error *error);

#endif
