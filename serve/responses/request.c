#include "serve/responses/request.h"

#include <string.h>

#include "serve/openai/chat.h"

/* ---- Members ----------------------------------------------------------------------------------------------------- */

enum { ANY = 1 };

static const openai_member members[] = {
    {"model", ANY, USE_SAME, NULL},
    {"input", ANY, USE_HERE, NULL},
    {"instructions", ANY, USE_HERE, NULL},
    {"max_output_tokens", ANY, USE_SAME, "max_tokens"},
    {"stream", ANY, USE_SAME, NULL},
    {"temperature", ANY, USE_SAME, NULL},
    {"top_p", ANY, USE_SAME, NULL},
    {"tools", ANY, USE_HERE, NULL},
    {"tool_choice", ANY, USE_HERE, NULL},
    {"text", ANY, USE_HERE, NULL},
    {"reasoning", ANY, USE_HERE, NULL},
    {"include", ANY, USE_HERE, NULL},
    {"previous_response_id", ANY, USE_HERE, NULL},
    {"conversation", ANY, USE_HERE, NULL},
    {"top_k", ANY, USE_SAME, NULL},
    CHAT_OWN_MEMBERS(ANY),
    {"stop", ANY, USE_SAME, NULL},
    {"store", ANY, USE_NOT, NULL},
    {"metadata", ANY, USE_NOT, NULL},
    {"client_metadata", ANY, USE_NOT, NULL},
    {"user", ANY, USE_NOT, NULL},
    {"safety_identifier", ANY, USE_NOT, NULL},
    {"prompt_cache_key", ANY, USE_NOT, NULL},
    {"prompt_cache_retention", ANY, USE_NOT, NULL},
    {"prompt_cache_options", ANY, USE_NOT, NULL},
    {"service_tier", ANY, USE_NOT, NULL},
    {"parallel_tool_calls", ANY, USE_NOT, NULL},
    {"max_tool_calls", ANY, USE_NOT, NULL},
    {"truncation", ANY, USE_NOT, NULL},
    {"stream_options", ANY, USE_NOT, NULL},
    {"background", ANY, USE_ONLY_EMPTY, NULL},
    {"prompt", ANY, USE_ONLY_EMPTY, NULL},
    {"top_logprobs", ANY, USE_ONLY_EMPTY, NULL},
};
_Static_assert(sizeof members / sizeof members[0] <= OPENAI_MOST_MEMBERS, "a bit for each member");

/* ---- Items of the input ------------------------------------------------------------------------------------------ */

static bool refuse_item(openai_error *error, int number, const char *what) {
    return openai_refuse(error, 400, "input", "item %d of \"input\": %s", number, what);
}

/* Parts of text have several types here, and one in a chat. What is none goes on, and is refused by its type. */
static void rename_text_parts(cJSON *parts) {
    static const char *const names[] = {"input_text", "output_text"};
    for (cJSON *part = cJSON_IsArray(parts) ? parts->child : NULL; part != NULL; part = part->next) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
            if (chat_is(type, names[i])) { (void)cJSON_SetValuestring(type, "text"); }
        }
    }
}

static bool take_message(chat_messages *chat, cJSON *item, int number, openai_error *error) {
    static const char *const roles[][2] = {
        {"user", "user"}, {"assistant", "assistant"}, {"system", "system"}, {"developer", "system"}};
    cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    const char *role = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (chat_is(chat_get(item, "role"), roles[i][0])) { role = roles[i][1]; }
    }
    if (role == NULL) {
        return refuse_item(error, number, "\"role\" can be \"user\", \"assistant\", \"system\" or \"developer\"");
    }
    if (!chat_begin_turn(chat, role, error)) { return false; }
    if (cJSON_IsString(content)) { return chat_add_text(chat, role, content->valuestring, error); }
    if (!cJSON_IsArray(content)) { return refuse_item(error, number, "\"content\" must be a text or a list of parts"); }
    if (content->child == NULL) { return chat_add_nothing(chat, role, error); }
    rename_text_parts(content);
    for (cJSON *part = content->child, *next; part != NULL; part = next) {
        next = part->next;
        if (!chat_add_part(chat, role, cJSON_DetachItemViaPointer(content, part), error)) { return false; }
    }
    return true;
}

static bool take_call(chat_messages *chat, cJSON *item, int number, openai_error *error) {
    const cJSON *id = chat_get(item, "call_id"), *name = chat_get(item, "name");
    if (!cJSON_IsString(id) || !cJSON_IsString(name) || !cJSON_IsString(chat_get(item, "arguments"))) {
        return refuse_item(error, number,
                           "a \"function_call\" must have \"call_id\", \"name\" and \"arguments\", all texts");
    }
    return chat_add_call(chat, id->valuestring, name->valuestring,
                         cJSON_DetachItemFromObjectCaseSensitive(item, "arguments"), error);
}

static bool take_output(chat_messages *chat, cJSON *item, int number, openai_error *error) {
    const cJSON *id = chat_get(item, "call_id");
    if (!cJSON_IsString(id) || chat_get(item, "output") == NULL) {
        return refuse_item(error, number,
                           "a \"function_call_output\" must have a \"call_id\", a text, and an \"output\"");
    }
    if (!chat_has_call(chat, id->valuestring)) {
        return openai_refuse(error, 400, "input",
                             "item %d of \"input\": \"function_call_output\": the calls before it have none with "
                             "call_id \"%.60s\"",
                             number, id->valuestring);
    }
    cJSON *output = cJSON_DetachItemFromObjectCaseSensitive(item, "output");
    rename_text_parts(output);
    return chat_add_result(chat, id->valuestring, output, false, error);
}

/* The thought itself, or else what was said of it. */
static bool take_reasoning(chat_messages *chat, const cJSON *item, int number, openai_error *error) {
    const cJSON *parts = chat_get(item, "content"), *part;
    if (cJSON_GetArraySize(parts) == 0) { parts = chat_get(item, "summary"); }
    cJSON_ArrayForEach(part, parts) {
        const cJSON *text = chat_get(part, "text");
        if (!cJSON_IsString(text)) {
            return refuse_item(error, number, "a part of \"reasoning\" must have a \"text\"");
        }
        if (!chat_add_thought(chat, text->valuestring, error)) { return false; }
    }
    return true;
}

static bool take_item(chat_messages *chat, cJSON *item, int number, openai_error *error) {
    const cJSON *type = chat_get(item, "type");
    if (!cJSON_IsObject(item)) { return refuse_item(error, number, "an item must be an object"); }
    if (type == NULL || chat_is(type, "message")) { return take_message(chat, item, number, error); }
    if (chat_is(type, "function_call")) { return take_call(chat, item, number, error); }
    if (chat_is(type, "function_call_output")) { return take_output(chat, item, number, error); }
    if (chat_is(type, "reasoning")) { return take_reasoning(chat, item, number, error); }
    return openai_refuse(error, 400, "input", "item %d of \"input\": type \"%.60s\" is not supported", number,
                         cJSON_IsString(type) ? type->valuestring : "?");
}

static bool take_instructions(chat_messages *chat, const cJSON *root, openai_error *error) {
    const cJSON *instructions = chat_get(root, "instructions");
    if (instructions == NULL) { return true; }
    return cJSON_IsString(instructions) ? chat_add_text(chat, "system", instructions->valuestring, error)
                                        : openai_refuse(error, 400, "instructions", "\"instructions\" must be a text");
}

static bool take_input(chat_messages *chat, cJSON *root, openai_error *error) {
    cJSON *input = cJSON_GetObjectItemCaseSensitive(root, "input");
    if (cJSON_IsString(input)) { return chat_add_text(chat, "user", input->valuestring, error); }
    if (!cJSON_IsArray(input) || input->child == NULL) {
        return openai_refuse(error, 400, "input", "\"input\" must be a text or a list of items");
    }
    int number = 1;
    for (cJSON *item = input->child; item != NULL; item = item->next) {
        if (!take_item(chat, item, number++, error)) { return false; }
    }
    return true;
}

static bool take_messages(cJSON *root, cJSON *into, openai_error *error) {
    chat_messages chat;
    const bool taken = chat_begin(&chat, into, error) && take_instructions(&chat, root, error) &&
                       take_input(&chat, root, error) && chat_end(&chat, error);
    chat_free(&chat);
    return taken;
}

/* ---- Tools ------------------------------------------------------------------------------------------------------- */

static bool take_tool(cJSON *tool, cJSON *list, openai_error *error) {
    const cJSON *type = chat_get(tool, "type");
    if (!chat_is(type, "function")) {
        return openai_refuse(error, 400, "tools",
                             "tools of type \"%.60s\" are not supported: \"function\" is, and this server has none of "
                             "its own",
                             cJSON_IsString(type) ? type->valuestring : "?");
    }
    if (!cJSON_IsString(chat_get(tool, "name"))) {
        return openai_refuse(error, 400, "tools", "a tool must have a \"name\", a text");
    }
    return chat_add_tool(list, tool, "parameters", error);
}

/* {"type": "function", "name": …} */
static bool names_function(const cJSON *choice) {
    return chat_is(chat_get(choice, "type"), "function") && cJSON_IsString(chat_get(choice, "name"));
}

/* {"type": "allowed_tools", "mode": …, "tools": […]} */
static bool allows_functions(const cJSON *choice) {
    const cJSON *mode = chat_get(choice, "mode"), *tools = chat_get(choice, "tools"), *tool;
    if (!chat_is(chat_get(choice, "type"), "allowed_tools") || !cJSON_IsArray(tools)) { return false; }
    if (!chat_is(mode, "auto") && !chat_is(mode, "required")) { return false; }
    cJSON_ArrayForEach(tool, tools) {
        if (!names_function(tool)) { return false; }
    }
    return true;
}

static bool take_tool_choice(cJSON *root, cJSON *chat, openai_error *error) {
    const cJSON *choice = chat_get(root, "tool_choice");
    if (choice == NULL) { return true; }
    if (names_function(choice)) { return chat_name_tool(chat, chat_get(choice, "name")->valuestring, error); }
    if (allows_functions(choice)) {
        return chat_allow_tools(chat, chat_get(choice, "mode")->valuestring, chat_get(choice, "tools"), error);
    }
    if (chat_is(choice, "auto") || chat_is(choice, "none") || chat_is(choice, "required")) {
        return cJSON_AddStringToObject(chat, "tool_choice", choice->valuestring) != NULL ||
               openai_refuse_for_memory(error);
    }
    return openai_refuse(
        error, 400, "tool_choice",
        "\"tool_choice\" can be \"auto\", \"none\", \"required\", {\"type\": \"function\", \"name\": …} "
        "or {\"type\": \"allowed_tools\", \"mode\": …, \"tools\": […]}");
}

/* ---- Forms and thoughts ------------------------------------------------------------------------------------------ */

static bool take_format(cJSON *format, cJSON *chat, openai_error *error) {
    const cJSON *type = chat_get(format, "type"), *name = chat_get(format, "name");
    if (chat_is(type, "text")) { return true; }
    if (chat_is(type, "json_object")) {
        cJSON *made = cJSON_AddObjectToObject(chat, "response_format");
        return cJSON_AddStringToObject(made, "type", "json_object") != NULL || openai_refuse_for_memory(error);
    }
    if (chat_is(type, "json_schema") && chat_get(format, "schema") != NULL) {
        return chat_set_schema(chat, cJSON_IsString(name) ? name->valuestring : "answer",
                               cJSON_DetachItemFromObjectCaseSensitive(format, "schema"), error);
    }
    return openai_refuse(error, 400, "text.format",
                         "\"format\" of \"text\" can be of type \"text\", \"json_object\", or \"json_schema\" with a "
                         "\"schema\"");
}

static bool take_text(cJSON *root, cJSON *chat, openai_error *error) {
    const cJSON *text = chat_get(root, "text");
    if (text == NULL) { return true; }
    if (!cJSON_IsObject(text)) { return openai_refuse(error, 400, "text", "\"text\" must be an object"); }
    cJSON *format = cJSON_GetObjectItemCaseSensitive(text, "format");
    return format == NULL || cJSON_IsNull(format) || take_format(format, chat, error);
}

static bool take_effort(cJSON *root, cJSON *chat, openai_error *error) {
    const cJSON *reasoning = chat_get(root, "reasoning");
    if (reasoning != NULL && !cJSON_IsObject(reasoning)) {
        return openai_refuse(error, 400, "reasoning", "\"reasoning\" must be an object");
    }
    return chat_set_effort(chat, chat_get(reasoning, "effort"), "reasoning", error);
}

/* ---- What there is not ------------------------------------------------------------------------------------------- */

static bool check_state(const cJSON *root, openai_error *error) {
    static const char *const names[] = {"previous_response_id", "conversation"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (chat_get(root, names[i]) == NULL) { continue; }
        return openai_refuse(error, 400, names[i],
                             "\"%s\" is not supported: nothing is stored here; send the whole conversation as "
                             "\"input\"",
                             names[i]);
    }
    return true;
}

/* Most of what can be included is of tools that this server has not. */
static bool check_include(const cJSON *root, openai_error *error) {
    const cJSON *include = chat_get(root, "include"), *name;
    if (include != NULL && !cJSON_IsArray(include)) {
        return openai_refuse(error, 400, "include", "\"include\" must be a list of texts");
    }
    cJSON_ArrayForEach(name, include) {
        if (chat_is(name, "message.output_text.logprobs")) {
            return openai_refuse(error, 400, "include",
                                 "\"message.output_text.logprobs\" is not supported here; /v1/chat/completions has "
                                 "\"logprobs\"");
        }
    }
    return true;
}

bool responses_to_chat(cJSON *root, cJSON *chat, openai_error *error) {
    return chat_take_members(root, chat, members, sizeof members / sizeof members[0], error) &&
           check_state(root, error) && check_include(root, error) && chat_take_tools(root, chat, take_tool, error) &&
           take_tool_choice(root, chat, error) && take_text(root, chat, error) && take_effort(root, chat, error) &&
           take_messages(root, chat, error);
}
