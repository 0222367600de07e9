#include "serve/openai/chat.h"

#include <string.h>

/* Adds an item that is taken. */
static bool put(cJSON *object, const char *name, cJSON *item, openai_error *error) {
    if (item != NULL && cJSON_AddItemToObject(object, name, item)) { return true; }
    cJSON_Delete(item);
    return openai_refuse_for_memory(error);
}

static bool put_text(cJSON *object, const char *name, const char *text, openai_error *error) {
    return put(object, name, cJSON_CreateString(text), error);
}

static bool append(cJSON *list, cJSON *item, openai_error *error) {
    if (item != NULL && cJSON_AddItemToArray(list, item)) { return true; }
    cJSON_Delete(item);
    return openai_refuse_for_memory(error);
}

/* A new object in a list or, with a name, in an object. NULL with *error set. */
static cJSON *new_object(cJSON *parent, const char *name, openai_error *error) {
    cJSON *object = cJSON_CreateObject();
    const bool added = name != NULL ? put(parent, name, object, error) : append(parent, object, error);
    return added ? object : NULL;
}

const cJSON *chat_get(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(item) ? NULL : item;
}

bool chat_is(const cJSON *item, const char *text) {
    return cJSON_IsString(item) && strcmp(item->valuestring, text) == 0;
}

bool chat_take_members(cJSON *root, cJSON *chat, const openai_member *table, size_t n_members, openai_error *error) {
    uint64_t seen = 0;
    for (cJSON *item = root->child, *next; item != NULL; item = next) {
        next = item->next;
        const openai_member *member = openai_member_find(table, n_members, table->endpoints, item, &seen, error);
        if (member == NULL) { return false; }
        if (member->use != USE_SAME) { continue; }
        const char *name = member->as != NULL ? member->as : member->name;
        if (!put(chat, name, cJSON_DetachItemViaPointer(root, item), error)) { return false; }
    }
    return true;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

bool chat_begin(chat_messages *m, cJSON *chat, openai_error *error) {
    *m = (chat_messages){.list = cJSON_AddArrayToObject(chat, "messages")};
    return m->list != NULL || openai_refuse_for_memory(error);
}

void chat_free(chat_messages *m) {
    serve_text_free(&m->thought);
    *m = (chat_messages){.list = NULL};
}

/* A message of calls alone has no content, as in answers of OpenAI's server. */
bool chat_end(chat_messages *m, openai_error *error) {
    cJSON *last = m->last;
    m->last = NULL;
    if (last == NULL) { return true; }
    if (m->thought.failed) { return openai_refuse_for_memory(error); }
    if (m->thought.size > 0 && !put_text(last, "reasoning_content", m->thought.data, error)) { return false; }
    serve_text_clear(&m->thought);
    if (cJSON_HasObjectItem(last, "content")) { return true; }
    return put(last, "content", cJSON_HasObjectItem(last, "tool_calls") ? cJSON_CreateNull() : cJSON_CreateString(""),
               error);
}

bool chat_begin_turn(chat_messages *m, const char *role, openai_error *error) {
    m->separates = m->last != NULL && strcmp(m->role, role) == 0;
    return m->separates || chat_end(m, error);
}

/* The message of a role that things are added to. NULL with *error set. */
static cJSON *message_of(chat_messages *m, const char *role, openai_error *error) {
    if (m->last != NULL && strcmp(m->role, role) == 0) { return m->last; }
    if (!chat_end(m, error)) { return NULL; }
    cJSON *message = new_object(m->list, NULL, error);
    if (message == NULL || !put_text(message, "role", role, error)) { return NULL; }
    m->last = message;
    m->role = role;
    m->separates = false;
    if (strcmp(role, "assistant") == 0) { m->calls = NULL, m->n_calls = 0; }
    return message;
}

bool chat_add_nothing(chat_messages *m, const char *role, openai_error *error) {
    return message_of(m, role, error) != NULL;
}

static cJSON *text_part(const char *text) {
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "type", "text");
    if (cJSON_AddStringToObject(part, "text", text) != NULL) { return part; }
    cJSON_Delete(part);
    return NULL;
}

bool chat_add_part(chat_messages *m, const char *role, cJSON *part, openai_error *error) {
    cJSON *message = message_of(m, role, error);
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (message != NULL && content == NULL) { content = cJSON_AddArrayToObject(message, "content"); }
    if (content == NULL) {
        cJSON_Delete(part);
        return message != NULL ? openai_refuse_for_memory(error) : false;
    }
    if (m->separates && content->child != NULL && !append(content, text_part("\n\n"), error)) {
        cJSON_Delete(part);
        return false;
    }
    m->separates = false;
    return append(content, part, error);
}

bool chat_add_text(chat_messages *m, const char *role, const char *text, openai_error *error) {
    cJSON *part = text_part(text);
    return part != NULL ? chat_add_part(m, role, part, error) : openai_refuse_for_memory(error);
}

bool chat_add_thought(chat_messages *m, const char *text, openai_error *error) {
    if (message_of(m, "assistant", error) == NULL) { return false; }
    if (m->thought.size > 0) { serve_text_add(&m->thought, "\n", 1); }
    serve_text_add(&m->thought, text, strlen(text));
    return !m->thought.failed || openai_refuse_for_memory(error);
}

bool chat_add_call(chat_messages *m, const char *id, const char *name, cJSON *arguments, openai_error *error) {
    cJSON *message = message_of(m, "assistant", error);
    if (message != NULL && m->calls == NULL) { m->calls = cJSON_AddArrayToObject(message, "tool_calls"); }
    const bool fits = m->n_calls < CHAT_MAX_CALLS;
    cJSON *call = message != NULL && m->calls != NULL && fits ? new_object(m->calls, NULL, error) : NULL;
    cJSON *function = call != NULL ? new_object(call, "function", error) : NULL;
    if (function == NULL) {
        cJSON_Delete(arguments);
        if (!fits) {
            return openai_refuse(error, 400, NULL, "a message can have at most %d calls of tools", CHAT_MAX_CALLS);
        }
        return message != NULL ? openai_refuse_for_memory(error) : false;
    }
    m->n_calls++;
    return put(function, "arguments", arguments, error) && put_text(function, "name", name, error) &&
           put_text(call, "id", id, error) && put_text(call, "type", "function", error);
}

static const cJSON *find_call(const chat_messages *m, const char *id) {
    const cJSON *call;
    cJSON_ArrayForEach(call, m->calls) {
        const cJSON *known = cJSON_GetObjectItemCaseSensitive(call, "id");
        if (cJSON_IsString(known) && strcmp(known->valuestring, id) == 0) { return call; }
    }
    return NULL;
}

bool chat_has_call(const chat_messages *m, const char *id) { return find_call(m, id) != NULL; }

/* *content: NULL, a text or a list; becomes a list. */
static bool mark_error(cJSON **content, openai_error *error) {
    cJSON *given = *content, *list = cJSON_CreateArray();
    bool marked = append(list, text_part("Error: "), error);
    if (cJSON_IsString(given)) { marked = marked && append(list, text_part(given->valuestring), error); }
    while (marked && cJSON_IsArray(given) && given->child != NULL) {
        marked = append(list, cJSON_DetachItemViaPointer(given, given->child), error);
    }
    cJSON_Delete(given);
    *content = list;
    return marked;
}

bool chat_add_result(chat_messages *m, const char *id, cJSON *content, bool is_error, openai_error *error) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(find_call(m, id), "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
    if (content != NULL && !cJSON_IsNull(content) && !cJSON_IsString(content) && !cJSON_IsArray(content)) {
        cJSON_Delete(content);
        return openai_refuse(error, 400, NULL, "the result of a call must be a text or a list of parts");
    }
    const bool is_ready = (!is_error || mark_error(&content, error)) && chat_end(m, error);
    cJSON *message = is_ready ? new_object(m->list, NULL, error) : NULL;
    if (message == NULL) {
        cJSON_Delete(content);
        return false;
    }
    if (content == NULL || cJSON_IsNull(content)) {
        cJSON_Delete(content);
        content = cJSON_CreateString("");
    }
    return put(message, "content", content, error) && put_text(message, "role", "tool", error) &&
           put_text(message, "tool_call_id", id, error) &&
           (name == NULL || put_text(message, "name", name->valuestring, error));
}

/* ---- Tools ------------------------------------------------------------------------------------------------------- */

bool chat_take_tools(cJSON *root, cJSON *chat, bool (*take)(cJSON *tool, cJSON *list, openai_error *error),
                     openai_error *error) {
    const cJSON *tools = chat_get(root, "tools");
    if (tools == NULL) { return true; }
    if (!cJSON_IsArray(tools)) { return openai_refuse(error, 400, "tools", "\"tools\" must be a list of tools"); }
    cJSON *list = cJSON_AddArrayToObject(chat, "tools");
    if (list == NULL) { return openai_refuse_for_memory(error); }
    for (cJSON *tool = tools->child; tool != NULL; tool = tool->next) {
        if (!take(tool, list, error)) { return false; }
    }
    if (list->child == NULL) { cJSON_DeleteItemFromObjectCaseSensitive(chat, "tools"); }
    return true;
}

bool chat_add_tool(cJSON *list, cJSON *tool, const char *schema, openai_error *error) {
    static const char *const same[] = {"name", "description", "strict"};
    cJSON *made = new_object(list, NULL, error);
    if (made == NULL || !put_text(made, "type", "function", error)) { return false; }
    cJSON *function = new_object(made, "function", error);
    if (function == NULL) { return false; }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(tool, same[i]);
        if (item == NULL || cJSON_IsNull(item)) { continue; }
        if (!put(function, same[i], cJSON_Duplicate(item, true), error)) { return false; }
    }
    cJSON *parameters = cJSON_DetachItemFromObjectCaseSensitive(tool, schema);
    if (parameters == NULL || cJSON_IsNull(parameters)) {
        cJSON_Delete(parameters);
        return true;
    }
    return put(function, "parameters", parameters, error);
}

/* Makes an object that of a function. */
static bool name_function(cJSON *object, const char *name, openai_error *error) {
    if (!put_text(object, "type", "function", error)) { return false; }
    cJSON *function = new_object(object, "function", error);
    return function != NULL && put_text(function, "name", name, error);
}

bool chat_name_tool(cJSON *chat, const char *name, openai_error *error) {
    cJSON *choice = new_object(chat, "tool_choice", error);
    return choice != NULL && name_function(choice, name, error);
}

bool chat_allow_tools(cJSON *chat, const char *mode, const cJSON *tools, openai_error *error) {
    const cJSON *tool;
    cJSON *choice = new_object(chat, "tool_choice", error);
    if (choice == NULL || !put_text(choice, "type", "allowed_tools", error)) { return false; }
    cJSON *allowed = new_object(choice, "allowed_tools", error);
    if (allowed == NULL || !put_text(allowed, "mode", mode, error)) { return false; }
    cJSON *list = cJSON_AddArrayToObject(allowed, "tools");
    if (list == NULL) { return openai_refuse_for_memory(error); }
    cJSON_ArrayForEach(tool, tools) {
        cJSON *entry = cJSON_CreateObject();
        if (entry == NULL || !cJSON_AddItemToArray(list, entry)) {
            cJSON_Delete(entry);
            return openai_refuse_for_memory(error);
        }
        if (!name_function(entry, chat_get(tool, "name")->valuestring, error)) { return false; }
    }
    return true;
}

/* ---- Thoughts and forms ------------------------------------------------------------------------------------------ */

bool chat_set_argument(cJSON *chat, const char *name, cJSON *value, openai_error *error) {
    cJSON *arguments = cJSON_GetObjectItemCaseSensitive(chat, "chat_template_kwargs");
    if (cJSON_IsNull(arguments)) {
        cJSON_Delete(cJSON_DetachItemViaPointer(chat, arguments));
        arguments = NULL;
    }
    if (arguments == NULL) { arguments = new_object(chat, "chat_template_kwargs", error); }
    if (arguments == NULL) {
        cJSON_Delete(value);
        return false;
    }
    if (cJSON_IsObject(arguments) && cJSON_GetObjectItemCaseSensitive(arguments, name) == NULL) {
        return put(arguments, name, value, error);
    }
    cJSON_Delete(value); /* what is no object is refused later */
    return true;
}

/* Templates know three efforts. */
bool chat_set_effort(cJSON *chat, const cJSON *effort, const char *member, openai_error *error) {
    static const char *const efforts[][2] = {{"minimal", "low"}, {"low", "low"},    {"medium", "medium"},
                                             {"high", "high"},   {"xhigh", "high"}, {"max", "high"}};
    if (effort == NULL) { return true; }
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++) {
        if (chat_is(effort, efforts[i][0])) {
            return chat_set_argument(chat, "reasoning_effort", cJSON_CreateString(efforts[i][1]), error);
        }
    }
    if (chat_is(effort, "none")) {
        return chat_set_argument(chat, "enable_thinking", cJSON_CreateFalse(), error) &&
               chat_set_argument(chat, "thinking", cJSON_CreateFalse(), error);
    }
    return openai_refuse(error, 400, member,
                         "\"%s\" can be \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"",
                         strcmp(member, "reasoning_effort") == 0 ? member : "effort");
}

bool chat_set_schema(cJSON *chat, const char *name, cJSON *schema, openai_error *error) {
    cJSON *format = new_object(chat, "response_format", error);
    cJSON *form = format != NULL && put_text(format, "type", "json_schema", error)
                      ? new_object(format, "json_schema", error)
                      : NULL;
    if (form == NULL || !put_text(form, "name", name, error)) {
        cJSON_Delete(schema);
        return false;
    }
    return put(form, "schema", schema, error);
}
