#include "serve/openai/request_tools.h"

#include <string.h>

#include "serve/openai/chat.h"

enum { MAX_ALLOWED = 256 }; /* as many as can be required (tool_choice.c) */

static cJSON *tools_of(const openai_request *request) {
    return cJSON_GetObjectItemCaseSensitive(request->body, "tools");
}

/* Of {"type": "function", "function": {"name": …}}; NULL: it is none. */
static const cJSON *name_of(const cJSON *tool) {
    const cJSON *name = chat_get(chat_get(tool, "function"), "name");
    return cJSON_IsString(name) ? name : NULL;
}

static cJSON *find_tool(const openai_request *request, const char *name) {
    cJSON *tool;
    cJSON_ArrayForEach(tool, tools_of(request)) {
        const cJSON *known = name_of(tool);
        if (known != NULL && strcmp(known->valuestring, name) == 0) { return tool; }
    }
    return NULL;
}

/* ---- The tools that may be called -------------------------------------------------------------------------------- */

static bool refuse_choice(openai_error *error) {
    return openai_refuse(
        error, 400, "tool_choice",
        "\"tool_choice\" can be \"auto\", \"none\", \"required\", {\"type\": \"function\", "
        "\"function\": {\"name\": …}} or {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": …, "
        "\"tools\": […]}}");
}

/* The request's tool that an entry of "tool_choice" means; NULL with *error set. */
static cJSON *chosen_tool(const openai_request *request, const cJSON *entry, openai_error *error) {
    const cJSON *name = chat_is(chat_get(entry, "type"), "function") ? name_of(entry) : NULL;
    if (name == NULL) {
        (void)refuse_choice(error);
        return NULL;
    }
    cJSON *tool = find_tool(request, name->valuestring);
    if (tool == NULL) {
        (void)openai_refuse(error, 400, "tool_choice", "\"tool_choice\": \"%.64s\" is none of the request's \"tools\"",
                            name->valuestring);
    }
    return tool;
}

/* Whether a list of entries has the name of a tool. */
static bool is_among(const cJSON *entries, const cJSON *tool) {
    const cJSON *name = name_of(tool), *entry;
    cJSON_ArrayForEach(entry, entries) {
        if (name != NULL && chat_is(name_of(entry), name->valuestring)) { return true; }
    }
    return false;
}

/* Of {"mode": …, "tools": […]}: the request's other tools go, so the model does not see them. */
static bool keep_allowed(const cJSON *allowed, openai_request *request, openai_error *error) {
    const cJSON *entries = chat_get(allowed, "tools"), *entry;
    if (!cJSON_IsArray(entries) || entries->child == NULL) { return refuse_choice(error); }
    if (cJSON_GetArraySize(entries) > MAX_ALLOWED) {
        return openai_refuse(error, 400, "tool_choice", "\"tool_choice\" can allow at most %d tools", MAX_ALLOWED);
    }
    cJSON_ArrayForEach(entry, entries) {
        if (chosen_tool(request, entry, error) == NULL) { return false; }
    }
    for (cJSON *tool = tools_of(request)->child, *next; tool != NULL; tool = next) {
        next = tool->next;
        if (!is_among(entries, tool)) { cJSON_Delete(cJSON_DetachItemViaPointer(tools_of(request), tool)); }
    }
    return true;
}

static bool require_call(openai_request *request, openai_error *error) {
    const cJSON *tools = tools_of(request);
    request->must_call = true;
    return (cJSON_IsArray(tools) && tools->child != NULL) ||
           openai_refuse(error, 400, "tool_choice", "\"tool_choice\": a call is required, and there are no \"tools\"");
}

static bool read_choice(const cJSON *choice, openai_request *request, openai_error *error) {
    if (choice == NULL || cJSON_IsNull(choice) || chat_is(choice, "auto")) { return true; }
    if (chat_is(choice, "none")) {
        cJSON_DeleteItemFromObjectCaseSensitive(request->body, "tools");
        return true;
    }
    if (chat_is(choice, "required")) { return require_call(request, error); }
    if (chat_is(chat_get(choice, "type"), "allowed_tools")) {
        const cJSON *allowed = chat_get(choice, "allowed_tools"), *mode = chat_get(allowed, "mode");
        const bool must_call = chat_is(mode, "required");
        if (!must_call && !chat_is(mode, "auto")) { return refuse_choice(error); }
        return keep_allowed(allowed, request, error) && (!must_call || require_call(request, error));
    }
    const cJSON *tool = chosen_tool(request, choice, error);
    if (tool == NULL) { return false; }
    request->called = name_of(tool)->valuestring;
    return require_call(request, error);
}

/* ---- Their forms ------------------------------------------------------------------------------------------------- */

/* Templates read tools as they are, and would fail in words of their own. */
static bool check_tools(const openai_request *request, openai_error *error) {
    const cJSON *tools = tools_of(request), *tool;
    if (tools != NULL && !cJSON_IsArray(tools)) {
        return openai_refuse(error, 400, "tools", "\"tools\" must be a list of tools");
    }
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *type = chat_get(tool, "type");
        if (type != NULL && !chat_is(type, "function")) {
            return openai_refuse(error, 400, "tools", "tools of type \"%.60s\" are not supported: \"function\" is",
                                 cJSON_IsString(type) ? type->valuestring : "?");
        }
        if (name_of(tool) == NULL) {
            return openai_refuse(error, 400, "tools",
                                 "a tool must be {\"type\": \"function\", \"function\": {\"name\": …}}");
        }
    }
    return true;
}

bool openai_read_tools(const cJSON *root, openai_request *request, openai_error *error) {
    return read_choice(chat_get(root, "tool_choice"), request, error) && check_tools(request, error);
}
