/* Makes a request of /v1/chat/completions of what other protocols say: members, turns made of blocks, tools, forms.
 * Everything is checked when that request is read (openai_request_read); here only what it could not know. Functions
 * return false with *error set, and take what they are given as cJSON * in any case, unless they say otherwise. */
#ifndef QRUN_SERVE_OPENAI_CHAT_H
#define QRUN_SERVE_OPENAI_CHAT_H

#include "serve/openai/request.h"
#include "serve/openai/text.h"

enum { CHAT_MAX_CALLS = 256 }; /* of a message */

/* A member that is not null; NULL: there is none. */
const cJSON *chat_get(const cJSON *object, const char *name);
/* Whether an item, which may be NULL, is this text. */
bool chat_is(const cJSON *item, const char *text);

/* Rows of openai_member: what requests of other protocols may say under qrun's own names. */
#define CHAT_OWN_MEMBERS(endpoints)                                                                          \
    {"min_p", endpoints, USE_SAME, NULL}, {"presence_penalty", endpoints, USE_SAME, NULL},                   \
        {"frequency_penalty", endpoints, USE_SAME, NULL}, {"repetition_penalty", endpoints, USE_SAME, NULL}, \
        {"seed", endpoints, USE_SAME, NULL}, {"stop_token_ids", endpoints, USE_SAME, NULL},                  \
        {"min_tokens", endpoints, USE_SAME, NULL}, {"ignore_eos", endpoints, USE_SAME, NULL}, {              \
        "chat_template_kwargs", endpoints, USE_SAME, NULL                                                    \
    }

/* Moves members of the use USE_SAME from root to chat, under their names there. */
bool chat_take_members(cJSON *root, cJSON *chat, const openai_member *table, size_t n_members, openai_error *error);

/* The messages of a chat, one after the other. */
typedef struct chat_messages {
    cJSON *list;        /* of the chat; lent */
    cJSON *last;        /* the message that what comes next of its role belongs to; NULL: none. Lent by list */
    const char *role;   /* of last; lent */
    bool separates;     /* what comes next of last is another turn */
    serve_text thought; /* of last */
    cJSON *calls;       /* of the last message that has some; lent by list */
    int n_calls;
} chat_messages;

bool chat_begin(chat_messages *m, cJSON *chat, openai_error *error);
bool chat_end(chat_messages *m, openai_error *error);
void chat_free(chat_messages *m);

/* Turns of one role that follow each other become one message. Roles: texts that stay. */
bool chat_begin_turn(chat_messages *m, const char *role, openai_error *error);
/* The turn has a message, also where it stays empty: templates may ask for turns that alternate. */
bool chat_add_nothing(chat_messages *m, const char *role, openai_error *error);
bool chat_add_text(chat_messages *m, const char *role, const char *text, openai_error *error);
bool chat_add_part(chat_messages *m, const char *role, cJSON *part, openai_error *error);
/* Of the assistant: */
bool chat_add_thought(chat_messages *m, const char *text, openai_error *error);
bool chat_add_call(chat_messages *m, const char *id, const char *name, cJSON *arguments, openai_error *error);
/* Whether the last calls have one with this id. */
bool chat_has_call(const chat_messages *m, const char *id);
/* The result of one of them; content: a text, a list of parts, or NULL. Templates have no place for is_error, so the
 * content begins with it. */
bool chat_add_result(chat_messages *m, const char *id, cJSON *content, bool is_error, openai_error *error);

/* "tools" of root, one after the other; what take appends to the list are tools of a chat. None: there are no "tools".
 */
bool chat_take_tools(cJSON *root, cJSON *chat, bool (*take)(cJSON *tool, cJSON *list, openai_error *error),
                     openai_error *error);
/* Appends a tool with a "name" to a list; it keeps its owner, and loses its schema, a member that may be missing. */
bool chat_add_tool(cJSON *list, cJSON *tool, const char *schema, openai_error *error);
/* "tool_choice": this one. */
bool chat_name_tool(cJSON *chat, const char *name, openai_error *error);
/* The same for some of them, [{"name": …}], of which one is called ("required") or may be ("auto"). */
bool chat_allow_tools(cJSON *chat, const char *mode, const cJSON *tools, openai_error *error);

/* An argument of the template, unless the request has it already. */
bool chat_set_argument(cJSON *chat, const char *name, cJSON *value, openai_error *error);
/* How much to think; lent, may be NULL. `member` is where it was said. */
bool chat_set_effort(cJSON *chat, const cJSON *effort, const char *member, openai_error *error);
/* The answer is JSON that a schema accepts. */
bool chat_set_schema(cJSON *chat, const char *name, cJSON *schema, openai_error *error);

#endif
