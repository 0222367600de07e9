/* The prompt of a chat: its messages as the template writes them, and where an answer begins. A request that continues
 * its last message has a prompt that ends where the text of that message does, as in transformers. */
#ifndef QRUN_SERVE_OPENAI_CHAT_PROMPT_H
#define QRUN_SERVE_OPENAI_CHAT_PROMPT_H

#include "serve/openai/request.h"

/* As the engine renders it; qrun_free. *error is filled, and may not be NULL. */
qrun_status chat_prompt_render(const openai_request *request, const qrun_tokenizer *tokenizer, char **rendered,
                               size_t *n_bytes, qrun_error *error);

/* The tokens take the place of the messages in `prompts`. False: memory is short. */
bool chat_prompt_set(openai_request *request, const int32_t *ids, int64_t n_ids);

#endif
