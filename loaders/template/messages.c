#include "loaders/template/messages.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

/* The names under which clients pass what was thought, the most usual one first. Templates read the first two. */
static const char *const reasoning_names[] = {"reasoning_content", "thinking", "reasoning"};

static const qr_json *find_reasoning(const qr_json *message) {
    for (size_t i = 0; i < QR_COUNT_OF(reasoning_names); i++) {
        const qr_json *member = qr_json_get(message, reasoning_names[i]);
        if (!qr_json_is_null(member)) { return member; }
    }
    return NULL;
}

qr_json *qr_message_without_thoughts(const qr_json *message) {
    if (find_reasoning(message) == NULL) { return NULL; }
    qr_json *without = cJSON_Duplicate(message, true);
    for (size_t i = 0; without != NULL && i < QR_COUNT_OF(reasoning_names); i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(without, reasoning_names[i]);
    }
    return without;
}

/* Takes the next of the nodes for a member. */
static void put(qr_json **next, const qr_json *value, const char *name) {
    **next = *value;
    (*next)->string = (char *)(uintptr_t)name;
    (*next)->next = *next + 1;
    (*next)++;
}

bool qr_message_is_bare_call(const qr_json *message) {
    return qr_json_count(qr_json_get(message, "tool_calls")) > 0 && qr_json_is_null(qr_json_get(message, "content"));
}

static void put_bare_content(qr_json **next, qr_bare_content bare) {
    static char no_text[] = "";
    const qr_json empty = {.type = cJSON_String, .valuestring = no_text}, none = {.type = cJSON_NULL};
    if (bare != QR_BARE_LEFT_OUT) { put(next, bare == QR_BARE_NONE ? &none : &empty, "content"); }
}

enum { MOST_ADDED = 3 };

/* The members of one message, and up to MOST_ADDED more, into *next and on: as {"thinking": r, **message,
 * "reasoning_content": r} orders them. */
static void prepare_members(const qr_json *message, qr_bare_content bare, qr_json *prepared, qr_json **next) {
    const qr_json *reasoning = find_reasoning(message), *thinking = qr_json_get(message, reasoning_names[1]);
    const bool has_thinking = !qr_json_is_null(thinking);
    qr_json *const first = *next;
    bool has_content = false;
    if (reasoning != NULL) { put(next, has_thinking ? thinking : reasoning, reasoning_names[1]); }
    for (const qr_json *member = qr_json_first(message); member != NULL; member = member->next) {
        if (qr_json_is_null(member) || member == thinking) { continue; }
        has_content = has_content || strcmp(member->string, reasoning_names[0]) == 0;
        put(next, member, member->string);
    }
    if (reasoning != NULL && !has_content) { put(next, reasoning, reasoning_names[0]); }
    if (qr_message_is_bare_call(message)) { put_bare_content(next, bare); }
    prepared->child = *next > first ? first : NULL;
    if (*next > first) { (*next)[-1].next = NULL; }
}

static qrun_status check(const qr_json *messages, size_t *n_nodes, qr_error *err) {
    if (!cJSON_IsArray(messages)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"messages\" should be a list of messages");
    }
    int n = 0;
    *n_nodes = 0;
    for (const qr_json *message = qr_json_first(messages); message != NULL; message = message->next) {
        n++;
        if (!cJSON_IsObject(message)) { return qr_fail(err, QRUN_ERROR_INPUT, "message %d is not an object", n); }
        *n_nodes += 1 + qr_json_count(message) + MOST_ADDED;
    }
    return QRUN_OK;
}

qrun_status qr_template_messages_prepare(const qr_json *messages, qr_bare_content bare, qr_template_messages *prepared,
                                         qr_error *err) {
    *prepared = (qr_template_messages){0};
    size_t n_nodes = 0;
    QR_RETURN_IF_ERROR(check(messages, &n_nodes, err));
    prepared->list = *messages;
    if (n_nodes == 0) { return QRUN_OK; }
    prepared->nodes = qr_alloc_array(n_nodes, sizeof *prepared->nodes);
    if (prepared->nodes == NULL) { return qr_fail_memory(err, "the messages", n_nodes * sizeof *prepared->nodes); }
    const size_t n_messages = qr_json_count(messages);
    qr_json *next = prepared->nodes + n_messages; /* the messages themselves come first */
    size_t i = 0;
    for (const qr_json *message = qr_json_first(messages); message != NULL; message = message->next, i++) {
        prepared->nodes[i] = *message;
        prepared->nodes[i].next = i + 1 < n_messages ? &prepared->nodes[i + 1] : NULL;
        prepare_members(message, bare, &prepared->nodes[i], &next);
    }
    prepared->list.child = prepared->nodes;
    return QRUN_OK;
}

void qr_template_messages_free(qr_template_messages *prepared) { qr_free(prepared->nodes); }
