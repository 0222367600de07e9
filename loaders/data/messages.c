#include "loaders/data/messages.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

enum { WHERE_BYTES = 64 };

/* ---- contents ---------------------------------------------------------------------------------------------------- */

static const char *kind_of(const qr_json *value) {
    return cJSON_IsNull(value)     ? "null"
           : cJSON_IsBool(value)   ? cJSON_IsTrue(value) ? "true" : "false"
           : cJSON_IsNumber(value) ? "a number"
           : cJSON_IsArray(value)  ? "a list"
           : cJSON_IsObject(value) ? "an object"
                                   : "a text";
}

static qrun_status append_part(const qr_json *part, const char *where, size_t number, qr_buffer *out, qr_error *err) {
    const qr_json *type = qr_json_get(part, "type"), *text = qr_json_get(part, "text");
    if (cJSON_IsString(type) && strcmp(type->valuestring, "text") != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: part %zu is of the type \"%.40s\", and only text is trained on",
                       where, number, type->valuestring);
    }
    if (type == NULL && qr_json_get(part, "role") != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s holds messages; give conversations as \"messages\"", where);
    }
    if (!cJSON_IsString(type) || !cJSON_IsString(text)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: part %zu should be {\"type\": \"text\", \"text\": …}", where,
                       number);
    }
    qr_buffer_append_text(out, text->valuestring);
    return QRUN_OK;
}

qrun_status qr_content_text(const qr_json *value, const char *where, const char **text, char **joined, qr_error *err) {
    *text = "";
    *joined = NULL;
    if (cJSON_IsString(value)) {
        *text = value->valuestring;
        return QRUN_OK;
    }
    if (value == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "%s is missing", where); }
    if (!cJSON_IsArray(value)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s should be a text, not %s", where, kind_of(value));
    }
    qr_buffer out = {0};
    qrun_status status = QRUN_OK;
    size_t n = 0;
    for (const qr_json *part = qr_json_first(value); part != NULL; part = part->next) {
        QR_TRY(append_part(part, where, ++n, &out, err));
    }
    if (n == 0) { goto out; }
    *joined = qr_buffer_take(&out);
    if (*joined == NULL) { QR_TRY(qr_fail_memory(err, "a message", out.size)); }
    *text = *joined;
out:
    qr_buffer_free(&out);
    return status;
}

/* ---- one message ------------------------------------------------------------------------------------------------- */

/* A reader's position: the message it is at, numbered as in the file. */
typedef struct reader {
    const qr_messages_source *source;
    qr_messages *messages;
    qr_message_notes *notes;
    qr_json *next_member; /* the free ones of messages->members */
    qr_json **end;        /* of the members of the node that is made */
} reader;

/* The role of a speaker in ShareGPT's form; NULL for an unknown one. */
static const char *role_of_speaker(const char *from) {
    static const struct {
        const char *from, *role;
    } names[] = {{"human", "user"},          {"user", "user"},         {"gpt", "assistant"},
                 {"assistant", "assistant"}, {"chatgpt", "assistant"}, {"bing", "assistant"},
                 {"bard", "assistant"},      {"model", "assistant"},   {"system", "system"}};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(from, names[i].from) == 0) { return names[i].role; }
    }
    return NULL;
}

static qrun_status read_role(const reader *r, const qr_json *item, size_t number, const char **role, qr_error *err) {
    const qr_json *member = qr_json_get(item, r->source->is_sharegpt ? "from" : "role");
    if (!r->source->is_sharegpt) {
        if (!cJSON_IsString(member)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "message %zu has no \"role\" that is a text", number);
        }
        *role = member->valuestring;
        return QRUN_OK;
    }
    if (!cJSON_IsString(member) || qr_json_get(item, "value") == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "\"conversations\" should be a list of objects with the texts \"from\" and \"value\"");
    }
    *role = role_of_speaker(member->valuestring);
    if (*role != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "\"from\" is \"%.40s\"; human, gpt and system are understood; give other conversations as "
                   "\"messages\"",
                   member->valuestring);
}

/* "weight", "train" and "training" of a message, into *counts. */
static qrun_status read_counts(const qr_json *item, size_t number, const char *role, bool in_prompt, bool *counts,
                               qr_error *err) {
    static const char *const flags[] = {"train", "training"}, *const details[] = {"train_detail", "training_detail"};
    const bool is_answer = strcmp(role, "assistant") == 0;
    const qr_json *weight = qr_json_get(item, "weight");
    bool is_said = !qr_json_is_null(weight);
    *counts = is_answer && !in_prompt;
    if (is_said) {
        if (!cJSON_IsNumber(weight) || (weight->valuedouble != 0 && weight->valuedouble != 1)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "message %zu: \"weight\" should be 0 or 1", number);
        }
        *counts = weight->valuedouble == 1;
        if (*counts && !is_answer) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "message %zu: \"weight\" is for what the assistant says; \"train\": true makes another "
                           "role's message count",
                           number);
        }
    }
    for (size_t i = 0; i < QR_COUNT_OF(flags); i++) {
        const qr_json *flag = qr_json_get(item, flags[i]);
        if (!qr_json_is_null(qr_json_get(item, details[i]))) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "message %zu has \"%s\", and a message counts as a whole or not at all; split it, and give "
                           "each its own \"train\"",
                           number, details[i]);
        }
        if (qr_json_is_null(flag)) { continue; }
        if (!cJSON_IsBool(flag)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "message %zu: \"%s\" should be true or false, not %s", number,
                           flags[i], kind_of(flag));
        }
        const bool value = cJSON_IsTrue(flag);
        if (is_said && value != *counts) {
            return qr_fail(err, QRUN_ERROR_INPUT, "message %zu: \"%s\" contradicts another member of the message",
                           number, flags[i]);
        }
        *counts = value;
        is_said = true;
    }
    return QRUN_OK;
}

/* A content may be missing where the answer is a call. */
static bool may_lack_content(const qr_json *item, const char *role) {
    return strcmp(role, "assistant") == 0 && (qr_json_first(qr_json_get(item, "tool_calls")) != NULL ||
                                              cJSON_IsObject(qr_json_get(item, "function_call")));
}

/* What is added next belongs to nodes[at]. */
static void begin_node(reader *r, size_t at) {
    r->messages->nodes[at] = (qr_json){.type = cJSON_Object};
    r->end = &r->messages->nodes[at].child;
}

static void add_member(reader *r, const char *name, const qr_json *value) {
    qr_json *made = r->next_member++;
    *made = *value;
    made->string = (char *)(uintptr_t)name; /* nodes are read only; cJSON's type has no const */
    made->next = NULL;
    *r->end = made;
    r->end = &made->next;
}

static void add_text(reader *r, const char *name, const char *text) {
    add_member(r, name, &(qr_json){.type = cJSON_String, .valuestring = (char *)(uintptr_t)text});
}

/* Members that have a meaning of their own, here or in chat templates at large. */
static bool is_known(const char *name) {
    static const char *const names[] = {"name",          "tool_calls",        "tool_call_id",
                                        "function_call", "reasoning_content", "reasoning",
                                        "thinking",      "train_detail",      "training_detail"};
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) { return true; }
    }
    return false;
}

static bool is_control(const char *name) {
    return strcmp(name, "weight") == 0 || strcmp(name, "train") == 0 || strcmp(name, "training") == 0;
}

/* A member that is neither role nor content: for the template, unless it is for us. */
static void pass_on(reader *r, const qr_json *member) {
    const char *name = member->string;
    if (is_control(name)) { return; }
    const bool is_taken = strcmp(name, "role") == 0 || strcmp(name, "content") == 0; /* beside "from" and "value" */
    if (!is_taken) { add_member(r, name, member); }
    if (cJSON_IsNull(member) || is_known(name)) { return; }
    qr_buffer_append(&r->notes->unknown_members, name, strlen(name) + 1);
}

/* item into nodes[at]; in_prompt: an answer follows that is apart. */
static qrun_status read_message(reader *r, size_t at, const qr_json *item, bool in_prompt, qr_error *err) {
    qr_messages *m = r->messages;
    const char *role_key = r->source->is_sharegpt ? "from" : "role";
    const char *content_key = r->source->is_sharegpt ? "value" : "content";
    const size_t number = at + 1 - m->n_added;
    const char *role, *text = NULL;
    char where[WHERE_BYTES];
    QR_RETURN_IF_ERROR(read_role(r, item, number, &role, err));
    QR_RETURN_IF_ERROR(read_counts(item, number, role, in_prompt, &m->counts[at], err));
    r->notes->sets_aside |= strcmp(role, "assistant") == 0 && !m->counts[at] && !in_prompt;
    (void)snprintf(where, sizeof where, "message %zu: \"%s\"", number, content_key);
    const qr_json *content = qr_json_get(item, content_key);
    if (!qr_json_is_null(content) || !may_lack_content(item, role)) {
        QR_RETURN_IF_ERROR(qr_content_text(content, where, &text, &m->texts[at], err));
    }
    begin_node(r, at);
    for (const qr_json *member = qr_json_first(item); member != NULL; member = member->next) {
        if (strcmp(member->string, role_key) == 0) {
            add_text(r, "role", role);
        } else if (strcmp(member->string, content_key) != 0) {
            pass_on(r, member);
        } else if (text != NULL) {
            add_text(r, "content", text);
        } else {
            add_member(r, "content", member);
        }
    }
    return QRUN_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static qrun_status allocate(const qr_messages_source *source, qr_messages *m, qr_error *err) {
    size_t n_members = 2; /* of the added message */
    for (const qr_json *item = qr_json_first(source->list); item != NULL; item = item->next) {
        n_members += qr_json_count(item);
    }
    for (const qr_json *item = qr_json_first(source->answer); item != NULL; item = item->next) {
        n_members += qr_json_count(item);
    }
    m->nodes = qr_alloc_array(m->n, sizeof *m->nodes);
    m->members = qr_alloc_array(n_members, sizeof *m->members);
    m->counts = qr_alloc_array_zeroed(m->n, sizeof *m->counts);
    m->texts = qr_alloc_array_zeroed(m->n, sizeof *m->texts);
    if (m->nodes != NULL && m->members != NULL && m->counts != NULL && m->texts != NULL) { return QRUN_OK; }
    return qr_fail_memory(err, "the messages", n_members * sizeof *m->members);
}

/* "system" beside the messages: a text that the first of them does not say too. */
static qrun_status check_system(const qr_messages_source *source, bool *has_system, qr_error *err) {
    const qr_json *system = source->system;
    const qr_json *role = qr_json_get(qr_json_first(source->list), source->is_sharegpt ? "from" : "role");
    *has_system = cJSON_IsString(system) && system->valuestring[0] != '\0';
    if (!qr_json_is_null(system) && !cJSON_IsString(system)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "\"system\" should be a text, not %s", kind_of(system));
    }
    if (!*has_system || !cJSON_IsString(role) || strcmp(role->valuestring, "system") != 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "it has a \"system\", and a first message of the role system; give one of them");
}

qrun_status qr_messages_read(const qr_messages_source *source, qr_messages *messages, qr_message_notes *notes,
                             qr_error *err) {
    *messages = (qr_messages){0};
    if (!cJSON_IsArray(source->list)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s",
                       source->is_sharegpt ? "\"conversations\" should be a list"
                                           : "\"messages\" should be a list of messages");
    }
    bool has_system;
    QR_RETURN_IF_ERROR(check_system(source, &has_system, err));
    if (source->answer != NULL && !cJSON_IsArray(source->answer)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "the prompt is a list of messages, so what completes it should be one too");
    }
    const size_t n_own = qr_json_count(source->list) + qr_json_count(source->answer);
    messages->n_added = has_system ? 1 : 0;
    messages->n = n_own + messages->n_added;
    if (n_own == 0) { return qr_fail(err, QRUN_ERROR_INPUT, "it has no messages"); }
    QR_RETURN_IF_ERROR(allocate(source, messages, err));
    reader r = {source, messages, notes, messages->members, NULL};
    if (has_system) {
        begin_node(&r, 0);
        add_text(&r, "role", "system");
        add_text(&r, "content", source->system->valuestring);
    }
    size_t at = messages->n_added;
    for (const qr_json *item = qr_json_first(source->list); item != NULL; item = item->next, at++) {
        const bool in_prompt = source->answer != NULL || at - messages->n_added < source->n_prompt;
        QR_RETURN_IF_ERROR(read_message(&r, at, item, in_prompt, err));
    }
    for (const qr_json *item = qr_json_first(source->answer); item != NULL; item = item->next, at++) {
        QR_RETURN_IF_ERROR(read_message(&r, at, item, false, err));
    }
    for (size_t i = 0; i < messages->n; i++) {
        messages->nodes[i].next = i + 1 < messages->n ? &messages->nodes[i + 1] : NULL;
    }
    return qr_buffer_ok(&notes->unknown_members) ? QRUN_OK : qr_fail_memory(err, "the messages", 0);
}

void qr_messages_free(qr_messages *messages) {
    for (size_t i = 0; messages->texts != NULL && i < messages->n; i++) { qr_free(messages->texts[i]); }
    qr_free(messages->nodes);
    qr_free(messages->members);
    qr_free(messages->counts);
    qr_free(messages->texts);
    *messages = (qr_messages){0};
}

const char *qr_message_role(const qr_json *node) { return qr_json_get(node, "role")->valuestring; }

qr_json *qr_message_content(const qr_json *node) {
    for (qr_json *member = node->child; member != NULL; member = member->next) {
        if (strcmp(member->string, "content") == 0) { return member; }
    }
    return NULL;
}
