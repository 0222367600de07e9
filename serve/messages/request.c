#include "serve/messages/request.h"

#include <string.h>

#include "serve/openai/chat.h"

/* ---- Members ----------------------------------------------------------------------------------------------------- */

enum { ANY = 1 };

static const openai_member members[] = {
    {"model", ANY, USE_SAME, NULL},
    {"messages", ANY, USE_HERE, NULL},
    {"system", ANY, USE_HERE, NULL},
    {"max_tokens", ANY, USE_SAME, NULL},
    {"stream", ANY, USE_SAME, NULL},
    {"stop_sequences", ANY, USE_SAME, "stop"},
    {"temperature", ANY, USE_SAME, NULL},
    {"top_p", ANY, USE_SAME, NULL},
    {"top_k", ANY, USE_SAME, NULL},
    {"tools", ANY, USE_HERE, NULL},
    {"tool_choice", ANY, USE_HERE, NULL},
    {"thinking", ANY, USE_HERE, NULL},
    {"output_config", ANY, USE_HERE, NULL},
    CHAT_OWN_MEMBERS(ANY),
    {"metadata", ANY, USE_NOT, NULL},
    {"service_tier", ANY, USE_NOT, NULL},
    {"cache_control", ANY, USE_NOT, NULL},
    {"context_management", ANY, USE_NOT, NULL},
    {"diagnostics", ANY, USE_NOT, NULL},
    {"inference_geo", ANY, USE_NOT, NULL},
    {"speed", ANY, USE_NOT, NULL},
    {"user_profile_id", ANY, USE_NOT, NULL},
    {"container", ANY, USE_ONLY_EMPTY, NULL},
    {"mcp_servers", ANY, USE_ONLY_EMPTY, NULL},
};
_Static_assert(sizeof members / sizeof members[0] <= OPENAI_MOST_MEMBERS, "a bit for each member");

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* The blocks of one message, which becomes one or more of a chat. */
typedef struct turn {
    chat_messages *chat;
    cJSON *tools; /* of the request, may be NULL */
    int *n_found; /* references to tools */
    const char *role;
    int number; /* from 1 */
    openai_error *error;
} turn;

static bool refuse_block(const turn *t, const char *what) {
    return openai_refuse(t->error, 400, "messages", "message %d: %s", t->number, what);
}

static bool take_call(const turn *t, cJSON *block) {
    const cJSON *id = chat_get(block, "id"), *name = chat_get(block, "name");
    if (!cJSON_IsString(id) || !cJSON_IsString(name)) {
        return refuse_block(t, "a \"tool_use\" must have \"id\" and \"name\", both texts");
    }
    cJSON *input = cJSON_DetachItemFromObjectCaseSensitive(block, "input");
    if (!cJSON_IsObject(input)) {
        cJSON_Delete(input);
        return refuse_block(t, "\"input\" of a \"tool_use\" must be an object");
    }
    return chat_add_call(t->chat, id->valuestring, name->valuestring, input, t->error);
}

/* Tools that are deferred are none of the prompt's until a result refers to them. In the result stands that it does. */
static bool take_references(const turn *t, cJSON *content) {
    enum { MOST_REFERENCES = 1024 };
    for (cJSON *part = cJSON_IsArray(content) ? content->child : NULL; part != NULL; part = part->next) {
        const cJSON *name = chat_get(part, "tool_name"), *tool;
        cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        if (!chat_is(type, "tool_reference") || !cJSON_IsString(name)) { continue; }
        if (++*t->n_found > MOST_REFERENCES) { return refuse_block(t, "a request can have at most 1024 references"); }
        cJSON_ArrayForEach(tool, t->tools) {
            if (!chat_is(chat_get(tool, "name"), name->valuestring)) { continue; }
            cJSON_DeleteItemFromObjectCaseSensitive((cJSON *)tool, "defer_loading");
        }
        cJSON_DeleteItemFromObjectCaseSensitive(part, "text");
        serve_text said = {0};
        serve_text_add_format(&said, "The tool %s can be called now.\n", name->valuestring);
        const bool added = !said.failed && cJSON_SetValuestring(type, "text") != NULL &&
                           cJSON_AddStringToObject(part, "text", said.data) != NULL;
        serve_text_free(&said);
        if (!added) { return openai_refuse_for_memory(t->error); }
    }
    return true;
}

static bool take_result(const turn *t, cJSON *block) {
    const cJSON *id = chat_get(block, "tool_use_id");
    if (!cJSON_IsString(id)) { return refuse_block(t, "a \"tool_result\" must have a \"tool_use_id\", a text"); }
    if (!chat_has_call(t->chat, id->valuestring)) {
        return openai_refuse(t->error, 400, "messages",
                             "message %d: \"tool_result\": the message before it has no \"tool_use\" with id \"%.60s\"",
                             t->number, id->valuestring);
    }
    if (!take_references(t, cJSON_GetObjectItemCaseSensitive(block, "content"))) { return false; }
    cJSON *content = cJSON_DetachItemFromObjectCaseSensitive(block, "content");
    return chat_add_result(t->chat, id->valuestring, content, cJSON_IsTrue(chat_get(block, "is_error")), t->error);
}

/* What is neither a call, a result nor a thought goes on as it is, and is refused later where it is no text. */
static bool take_block(const turn *t, cJSON *list, cJSON *block) {
    const cJSON *type = chat_get(block, "type");
    const bool is_assistant = strcmp(t->role, "assistant") == 0, is_user = strcmp(t->role, "user") == 0;
    if (!cJSON_IsString(type)) { return refuse_block(t, "a block of content must be an object with a \"type\""); }
    if (is_assistant && chat_is(type, "tool_use")) { return take_call(t, block); }
    if (is_user && chat_is(type, "tool_result")) { return take_result(t, block); }
    if (is_assistant && chat_is(type, "redacted_thinking")) { /* nobody here can read it */
        return chat_add_nothing(t->chat, t->role, t->error);
    }
    if (is_assistant && chat_is(type, "thinking")) {
        const cJSON *thought = chat_get(block, "thinking");
        if (!cJSON_IsString(thought)) { return refuse_block(t, "\"thinking\" must be a text"); }
        return chat_add_thought(t->chat, thought->valuestring, t->error);
    }
    return chat_add_part(t->chat, t->role, cJSON_DetachItemViaPointer(list, block), t->error);
}

static bool take_content(const turn *t, cJSON *content) {
    if (cJSON_IsString(content)) { return chat_add_text(t->chat, t->role, content->valuestring, t->error); }
    if (!cJSON_IsArray(content)) { return refuse_block(t, "\"content\" must be a text or a list of blocks"); }
    if (content->child == NULL) { return chat_add_nothing(t->chat, t->role, t->error); }
    for (cJSON *block = content->child, *next; block != NULL; block = next) {
        next = block->next;
        if (!take_block(t, content, block)) { return false; }
    }
    return true;
}

/* A turn that follows one of the same role is part of it, as Anthropic's server has it. */
static bool take_message(turn *t, cJSON *message) {
    static const char *const roles[] = {"user", "assistant", "system"};
    const cJSON *role = chat_get(message, "role");
    t->role = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (chat_is(role, roles[i])) { t->role = roles[i]; }
    }
    if (t->role == NULL) { return refuse_block(t, "\"role\" can be \"user\", \"assistant\" or \"system\""); }
    return chat_begin_turn(t->chat, t->role, t->error) &&
           take_content(t, cJSON_GetObjectItemCaseSensitive(message, "content"));
}

static bool take_system(chat_messages *chat, cJSON *system, openai_error *error) {
    if (system == NULL || cJSON_IsNull(system)) { return true; }
    if (cJSON_IsString(system)) { return chat_add_text(chat, "system", system->valuestring, error); }
    if (!cJSON_IsArray(system)) {
        return openai_refuse(error, 400, "system", "\"system\" must be a text or a list of blocks of text");
    }
    for (cJSON *block = system->child, *next; block != NULL; block = next) {
        next = block->next;
        if (!chat_add_part(chat, "system", cJSON_DetachItemViaPointer(system, block), error)) { return false; }
    }
    return true;
}

static bool take_messages(cJSON *root, cJSON *into, openai_error *error) {
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(root, "messages");
    chat_messages chat;
    if (!cJSON_IsArray(messages) || messages->child == NULL) {
        return openai_refuse(error, 400, "messages", "\"messages\" must be a list of messages");
    }
    bool taken =
        chat_begin(&chat, into, error) && take_system(&chat, cJSON_GetObjectItemCaseSensitive(root, "system"), error);
    int n_found = 0;
    turn t = {
        .chat = &chat, .tools = cJSON_GetObjectItemCaseSensitive(root, "tools"), .n_found = &n_found, .error = error};
    for (cJSON *message = messages->child; taken && message != NULL; message = message->next) {
        t.number++;
        taken = take_message(&t, message);
    }
    taken = taken && chat_end(&chat, error);
    chat_free(&chat);
    const bool continues = taken && chat_is(chat_get(messages->child->prev, "role"), "assistant"); /* the last one */
    if (continues && cJSON_AddTrueToObject(into, "continue_final_message") == NULL) {
        return openai_refuse_for_memory(error);
    }
    return taken;
}

/* ---- Tools ------------------------------------------------------------------------------------------------------- */

static bool take_tool(cJSON *tool, cJSON *list, openai_error *error) {
    const cJSON *type = chat_get(tool, "type"), *name = chat_get(tool, "name");
    if (type != NULL && !chat_is(type, "custom")) {
        return openai_refuse(error, 400, "tools",
                             "tools of type \"%.60s\" are not supported: this server has none of its own",
                             cJSON_IsString(type) ? type->valuestring : "?");
    }
    if (!cJSON_IsString(name) || !cJSON_IsObject(chat_get(tool, "input_schema"))) {
        return openai_refuse(error, 400, "tools",
                             "a tool must have a \"name\", a text, and an \"input_schema\", an object");
    }
    return cJSON_IsTrue(chat_get(tool, "defer_loading")) || chat_add_tool(list, tool, "input_schema", error);
}

static bool take_tool_choice(const cJSON *root, cJSON *chat, openai_error *error) {
    static const char *const choices[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const cJSON *choice = chat_get(root, "tool_choice"), *type = chat_get(choice, "type"),
                *name = chat_get(choice, "name");
    if (choice == NULL) { return true; }
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (chat_is(type, choices[i][0])) {
            return cJSON_AddStringToObject(chat, "tool_choice", choices[i][1]) != NULL ||
                   openai_refuse_for_memory(error);
        }
    }
    if (chat_is(type, "tool") && cJSON_IsString(name)) { return chat_name_tool(chat, name->valuestring, error); }
    return openai_refuse(error, 400, "tool_choice",
                         "\"tool_choice\" can be {\"type\": \"auto\"}, \"any\", \"none\", or "
                         "{\"type\": \"tool\", \"name\": …}");
}

/* ---- Thoughts and forms ------------------------------------------------------------------------------------------ */

/* Under the names that templates have for it. */
static bool take_thinking(const cJSON *root, cJSON *chat, openai_error *error) {
    const cJSON *thinking = chat_get(root, "thinking"), *type = chat_get(thinking, "type");
    const cJSON *budget = chat_get(thinking, "budget_tokens");
    const bool is_enabled = chat_is(type, "enabled");
    if (thinking == NULL || chat_is(type, "adaptive")) { return true; }
    if (!is_enabled && !chat_is(type, "disabled")) {
        return openai_refuse(error, 400, "thinking",
                             "\"thinking\" can be of type \"enabled\", \"adaptive\" or \"disabled\"");
    }
    if (budget != NULL && !(cJSON_IsNumber(budget) && budget->valueint > 0)) {
        return openai_refuse(error, 400, "thinking", "\"budget_tokens\" must be a positive integer");
    }
    return chat_set_argument(chat, "enable_thinking", cJSON_CreateBool(is_enabled), error) &&
           chat_set_argument(chat, "thinking", cJSON_CreateBool(is_enabled), error) &&
           (budget == NULL || chat_set_argument(chat, "thinking_budget", cJSON_CreateNumber(budget->valueint), error));
}

static bool take_form(cJSON *format, cJSON *chat, openai_error *error) {
    if (!chat_is(chat_get(format, "type"), "json_schema") || chat_get(format, "schema") == NULL) {
        return openai_refuse(error, 400, "output_config",
                             "\"format\" of \"output_config\" can be {\"type\": \"json_schema\", \"schema\": …}");
    }
    return chat_set_schema(chat, "answer", cJSON_DetachItemFromObjectCaseSensitive(format, "schema"), error);
}

static bool take_output_config(const cJSON *root, cJSON *chat, openai_error *error) {
    const cJSON *config = chat_get(root, "output_config"), *item;
    if (config == NULL) { return true; }
    if (!cJSON_IsObject(config)) {
        return openai_refuse(error, 400, "output_config", "\"output_config\" must be an object");
    }
    cJSON_ArrayForEach(item, config) {
        if (strcmp(item->string, "effort") == 0 || strcmp(item->string, "format") == 0) { continue; }
        return openai_refuse(error, 400, "output_config", "\"%.60s\" is not a member of \"output_config\"",
                             item->string);
    }
    cJSON *format = cJSON_GetObjectItemCaseSensitive(config, "format");
    return chat_set_effort(chat, chat_get(config, "effort"), "output_config", error) &&
           (format == NULL || cJSON_IsNull(format) || take_form(format, chat, error));
}

/* ---- The request ------------------------------------------------------------------------------------------------- */

static bool check_stops(cJSON *chat, openai_error *error) {
    const cJSON *stops = chat_get(chat, "stop"), *stop;
    bool fits = stops == NULL || cJSON_IsArray(stops);
    cJSON_ArrayForEach(stop, stops) { fits = fits && cJSON_IsString(stop); }
    if (!fits) { return openai_refuse(error, 400, "stop_sequences", "\"stop_sequences\" must be a list of texts"); }
    if (stops != NULL && stops->child == NULL) { cJSON_DeleteItemFromObjectCaseSensitive(chat, "stop"); }
    return true;
}

bool messages_to_count(cJSON *root, cJSON *chat, openai_error *error) {
    return chat_take_members(root, chat, members, sizeof members / sizeof members[0], error) &&
           check_stops(chat, error) && take_thinking(root, chat, error) && take_output_config(root, chat, error) &&
           take_messages(root, chat, error) && chat_take_tools(root, chat, take_tool, error) &&
           take_tool_choice(root, chat, error);
}

bool messages_to_chat(cJSON *root, cJSON *chat, openai_error *error) {
    if (chat_get(root, "max_tokens") == NULL) {
        return openai_refuse(error, 400, "max_tokens", "\"max_tokens\" is missing: how many tokens an answer may have");
    }
    return messages_to_count(root, chat, error);
}
