/* Conversations and the arguments of the chat template, as the JSON texts that the library takes. */
#ifndef QRUN_CLI_REQUESTS_CONVERSATION_H
#define QRUN_CLI_REQUESTS_CONVERSATION_H

#include "cli/options/options.h"
#include "cli/terminal/text.h"

typedef struct template_options {
    const char *tools;           /* a JSON file */
    option_texts arguments;      /* KEY=VALUE */
    const char *enable_thinking; /* "true", "false"; NULL: not given */
} template_options;

enum { N_TEMPLATE_OPTIONS = 3 };
extern const option template_option_table[N_TEMPLATE_OPTIONS];

/* Without --chat there is neither a template nor a system message: 0, or an exit code where one of them was given. */
int template_require_chat(const template_options *options, const char *system);

/* A conversation as the library takes it. Zero-initialise; `messages` is complete after each call. */
typedef struct conversation {
    text_buffer messages;                  /* a JSON array of {"role", "content"}; empty before the first */
    text_buffer tools, template_arguments; /* JSON; data NULL where nothing was given */
} conversation;

/* Makes the texts of the options. Returns 0 or an exit code. */
int template_read(const template_options *options, conversation *c);

/* Forgets all messages but a system message; NULL: none. */
void conversation_start(conversation *c, const char *system);
void conversation_add(conversation *c, const char *role, const char *content, size_t n_bytes);
void conversation_cut(conversation *c, size_t messages_size); /* back to what messages.size was before */

/* A file with one line, {"messages": […]}, as `qrun generate --prompts` and `qrun finetune --data` read it. Return 0 or
 * an exit code, after telling the user. What cannot be read leaves the conversation as it is. */
int conversation_save(const conversation *c, const char *path);
int conversation_load(conversation *c, const char *path);
/* Of a file that is there: whether it is a conversation, or empty. Others are not lost by a name mistyped. */
int conversation_may_replace(const char *path);
/* How many messages of that role there are, and the text of the first; NULL: it has none, or is no text (free). */
int64_t conversation_count(const conversation *c, const char *role, char **first);

void conversation_free(conversation *c);

#endif
