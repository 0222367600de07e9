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

/* Makes the texts; *tools and *arguments stay empty (data NULL) where nothing was given. Returns 0 or an exit code. */
int template_read(const template_options *options, text_buffer *tools, text_buffer *arguments);

/* A JSON array of {"role", "content"} that grows. Zero-initialise; its text is complete after each call. */
typedef struct conversation {
    text_buffer json;
    size_t *ends; /* [n_messages]: size of the text without its ']' after each message */
    int n_messages;
} conversation;

void conversation_add(conversation *c, const char *role, const char *content, size_t n_bytes);
void conversation_drop(conversation *c, int n_messages); /* keeps the first n_messages */
void conversation_free(conversation *c);

#endif
