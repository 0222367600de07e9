/* The chat template of a model folder: messages in, the model's prompt out, as transformers' apply_chat_template.
 *
 * A folder's templates are chat_template.jinja ("default") and additional_chat_templates/<name>.jinja. Where it has
 * none of these, "chat_template" in tokenizer_config.json: a text, a list of {"name", "template"}, or an object of
 * names and texts. Where there is none either, chat_template.json of image processors. "default" is used, and
 * "tool_use", where the folder has it, when tools are given.
 *
 * The special tokens of tokenizer_config.json are variables of the template: bos_token, eos_token …, other members
 * whose name ends in _token, and those of an object "extra_special_tokens". */
#ifndef QR_LOADERS_TEMPLATE_CHAT_TEMPLATE_H
#define QR_LOADERS_TEMPLATE_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/status.h"
#include "loaders/files/json.h"

/* Immutable once made: any number of threads may render it at once. */
typedef struct qr_chat_template qr_chat_template;

#define QR_MORE_TEMPLATES "additional_chat_templates"

/* The files of a folder that decide what its templates are and write; the last is NULL. */
extern const char *const qr_chat_template_files[];

/* A folder without a chat template gives QRUN_OK and *chat_template = NULL. QRUN_ERROR_INPUT for several templates
 * without a "default", for a malformed file and for a syntax error in a template. */
qrun_status qr_chat_template_open(const char *folder, qr_chat_template **chat_template, qr_error *err);

/* A template from text[0, n_bytes), without special tokens; `what` names it in messages. */
qrun_status qr_chat_template_parse(const char *text, size_t n_bytes, const char *what, qr_chat_template **chat_template,
                                   qr_error *err);
void qr_chat_template_free(qr_chat_template *chat_template); /* NULL is fine */

/* Appends the prompt to out; nothing is appended when it fails.
 *
 * messages: an array of objects. The template does not see members that are null; but a message that calls tools and
 * has no content has an empty one for it, or null where the template writes the calls with that alone. What an
 * assistant thought, whether it is called "reasoning_content", "thinking" or "reasoning", has the first two of these
 * names for the template.
 *
 * tools: an array, or NULL (the template then sees none). extra: an object whose members become variables
 * (enable_thinking, documents, …), or NULL; they may replace special tokens, and not messages, tools and
 * add_generation_prompt. now: unix time for strftime_now, shown in local time.
 *
 * When the template calls raise_exception the status is QRUN_ERROR_INPUT and the message is the template's own. */
qrun_status qr_chat_template_render(const qr_chat_template *chat_template, const qr_json *messages,
                                    const qr_json *tools, const qr_json *extra, bool add_generation_prompt, int64_t now,
                                    qr_buffer *out, qr_error *err);

/* Whether the template writes what a message has: the calls of a message of the assistant's, and what it thought, where
 * the message has any; and tools. What cannot be found out counts as written. */
bool qr_chat_template_writes_calls(const qr_chat_template *chat_template, const qr_json *message, const qr_json *tools,
                                   const qr_json *extra, int64_t now);
bool qr_chat_template_writes_thoughts(const qr_chat_template *chat_template, const qr_json *message,
                                      const qr_json *extra, int64_t now);
bool qr_chat_template_writes_tools(const qr_chat_template *chat_template, const qr_json *tools, const qr_json *extra,
                                   int64_t now);

#endif
