#include "serve/openai/call_json.h"

#include <string.h>

/* ---- JSON as it is written --------------------------------------------------------------------------------------- */

cJSON *call_json_parse(const cursor *c) {
    const char *end = NULL;
    cJSON *parsed = cJSON_ParseWithLengthOpts(c->at, cursor_left(c), &end, false);
    cursor rest = {end, c->end};
    if (parsed == NULL) { return NULL; }
    cursor_skip_space(&rest);
    if (rest.at == rest.end) { return parsed; }
    cJSON_Delete(parsed);
    return NULL;
}

static bool skip_string(cursor *c) {
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at == '\\') {
            c->at++;
        } else if (*c->at == '"') {
            c->at++;
            return true;
        }
    }
    c->at = c->end; /* a backslash may be the last byte */
    return false;
}

bool call_json_skip_value(cursor *c) {
    const char *first = c->at;
    for (int depth = 0; c->at < c->end;) {
        if (*c->at == '"') {
            if (!skip_string(c)) { return false; }
        } else if (*c->at == '{' || *c->at == '[') {
            depth++;
            c->at++;
        } else if (*c->at == '}' || *c->at == ']') {
            if (depth-- == 0) { return false; }
            c->at++;
        } else if (depth > 0) {
            c->at++;
        } else {
            while (c->at < c->end && strchr(",:}] \t\r\n", *c->at) == NULL) { c->at++; }
            return c->at > first;
        }
        if (depth == 0) { return true; }
    }
    return false;
}

bool call_json_find_member(cursor object, const char *name, cursor *value) {
    object.at++; /* { */
    for (;;) {
        cursor_skip_space(&object);
        cursor key = {object.at + 1, NULL};
        if (!cursor_sees(&object, '"') || !skip_string(&object)) { return false; }
        key.end = object.at - 1;
        cursor_skip_space(&object);
        if (!cursor_takes(&object, ":")) { return false; }
        cursor_skip_space(&object);
        value->at = object.at;
        if (!call_json_skip_value(&object)) { return false; }
        value->end = object.at;
        if (cursor_left(&key) == strlen(name) && memcmp(key.at, name, strlen(name)) == 0) { return true; }
        cursor_skip_space(&object);
        if (!cursor_takes(&object, ",")) { return false; }
    }
}

static void skip_digits(cursor *c) {
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') { c->at++; }
}

bool call_json_skip_number(cursor *c) {
    (void)cursor_takes(c, "-");
    const char *first = c->at;
    skip_digits(c);
    if (c->at == first || (c->at > first + 1 && *first == '0')) { return false; }
    if (cursor_takes(c, ".")) {
        const char *fraction = c->at;
        skip_digits(c);
        if (c->at == fraction) { return false; }
    }
    if (!cursor_takes(c, "e") && !cursor_takes(c, "E")) { return true; }
    if (!cursor_takes(c, "+")) { (void)cursor_takes(c, "-"); }
    const char *exponent = c->at;
    skip_digits(c);
    return c->at > exponent;
}

/* Of what cJSON has parsed: whether every parser takes it. cJSON is lenient with numbers and control characters. */
static bool is_strict(cursor c) {
    if (!serve_text_is_utf8(c.at, cursor_left(&c))) { return false; }
    for (const char *at = c.at; at < c.end; at++) {
        if ((unsigned char)*at < 0x20 && !call_is_space(*at)) { return false; }
    }
    while (c.at < c.end) {
        const char *first = c.at;
        if (*c.at == '"') {
            (void)skip_string(&c);
            for (const char *at = first; at < c.at; at++) {
                if ((unsigned char)*at < 0x20) { return false; }
            }
        } else if (*c.at == '+' || *c.at == '.' || *c.at == '-' || (*c.at >= '0' && *c.at <= '9')) {
            if (!call_json_skip_number(&c)) { return false; }
        } else {
            c.at++;
        }
    }
    return true;
}

/* As it is written, or printed anew where not every parser would take it. */
static bool put_json(serve_text *out, const cursor *written, const cJSON *parsed) {
    char *printed = is_strict(*written) ? NULL : cJSON_PrintUnformatted(parsed);
    if (printed != NULL) {
        serve_text_add(out, printed, strlen(printed));
    } else {
        serve_text_add(out, written->at, cursor_left(written));
    }
    cJSON_free(printed);
    return !out->failed;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* Of one type, or of a list of them. */
static value_kind kind_of_type(const cJSON *type) {
    bool has_text = false, has_null = false, has_other = false;
    const cJSON *item = cJSON_IsArray(type) ? type->child : type;
    for (; item != NULL; item = type == item ? NULL : item->next) {
        const char *name = cJSON_GetStringValue(item);
        has_text = has_text || (name != NULL && strcmp(name, "string") == 0);
        has_null = has_null || (name != NULL && strcmp(name, "null") == 0);
        has_other = has_other || name == NULL || (strcmp(name, "string") != 0 && strcmp(name, "null") != 0);
    }
    if (has_text) { return has_other ? VALUE_ANY : has_null ? VALUE_TEXT_OR_NULL : VALUE_TEXT; }
    return has_null || has_other ? VALUE_NO_TEXT : VALUE_ANY;
}

/* [{"type": "string"}, {"type": "null"}], as Pydantic writes an optional text. */
static value_kind kind_of_choices(const cJSON *choices) {
    bool has_text = false, has_other = false;
    const cJSON *choice;
    cJSON_ArrayForEach(choice, choices) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(choice, "type"));
        if (name == NULL) { return VALUE_ANY; }
        has_text = has_text || strcmp(name, "string") == 0;
        has_other = has_other || (strcmp(name, "string") != 0 && strcmp(name, "null") != 0);
    }
    if (has_text) { return has_other ? VALUE_ANY : VALUE_TEXT_OR_NULL; }
    return has_other ? VALUE_NO_TEXT : VALUE_ANY;
}

value_kind call_value_kind(const cJSON *function, const char *key, size_t n_key) {
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters"), *property;
    cJSON_ArrayForEach(property, cJSON_GetObjectItemCaseSensitive(parameters, "properties")) {
        if (strlen(property->string) != n_key || memcmp(property->string, key, n_key) != 0) { continue; }
        const cJSON *choices = cJSON_GetObjectItemCaseSensitive(property, "anyOf");
        return choices != NULL ? kind_of_choices(choices)
                               : kind_of_type(cJSON_GetObjectItemCaseSensitive(property, "type"));
    }
    return VALUE_ANY;
}

bool call_put_text(serve_text *out, const char *bytes, size_t n_bytes) {
    cJSON *string = serve_text_to_json(bytes, n_bytes);
    char *printed = cJSON_PrintUnformatted(string);
    if (printed != NULL) { serve_text_add(out, printed, strlen(printed)); }
    const bool added = printed != NULL && !out->failed;
    cJSON_free(printed);
    cJSON_Delete(string);
    return added;
}

bool call_put_key(serve_text *out, cursor key) {
    cursor_trim(&key);
    serve_text_add(out, ",", out->size > 1 && out->data[out->size - 1] != '{' ? 1 : 0);
    const bool added = key.at < key.end && call_put_text(out, key.at, cursor_left(&key));
    serve_text_add(out, ":", 1);
    return added;
}

bool call_put_json(serve_text *out, cursor value) {
    cursor_trim(&value);
    cursor rest = value;
    const bool is_whole = value.at < value.end && call_json_skip_value(&rest) && rest.at == rest.end;
    cJSON *parsed = is_whole ? call_json_parse(&value) : NULL;
    const bool added = parsed != NULL && put_json(out, &value, parsed);
    cJSON_Delete(parsed);
    return added;
}

/* Of an optional text, JSON is what has quotes, and null. */
static bool may_be_json(cursor value, value_kind kind) {
    if (kind != VALUE_TEXT_OR_NULL) { return kind != VALUE_TEXT; }
    cursor_trim(&value);
    return cursor_sees(&value, '"') || (cursor_takes(&value, "null") && value.at == value.end);
}

bool call_put_value(serve_text *out, const cursor *value, value_kind kind) {
    return (may_be_json(*value, kind) && call_put_json(out, *value)) ||
           call_put_text(out, value->at, cursor_left(value));
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

const cJSON *call_find_tool(const cJSON *tools, const char *name, size_t n_name) {
    const cJSON *tool;
    cJSON_ArrayForEach(tool, tools) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        if (function == NULL) { function = tool; }
        const cJSON *known = cJSON_GetObjectItemCaseSensitive(function, "name");
        if (!cJSON_IsString(known)) { continue; }
        if (strlen(known->valuestring) == n_name && memcmp(known->valuestring, name, n_name) == 0) { return function; }
    }
    return NULL;
}

static bool is_object(const cursor *text) {
    cJSON *parsed = call_json_parse(text);
    const bool is = cJSON_IsObject(parsed);
    cJSON_Delete(parsed);
    return is;
}

/* Arguments are put together from parts of the answer: what does not come to a JSON object is no call. */
static bool add_call(cJSON *calls, const cursor *name, const char *arguments, size_t n_arguments) {
    const cursor written = {arguments, arguments + n_arguments};
    const size_t n_name = cursor_left(name);
    if (n_name == 0 || n_name > CALL_MAX_NAME_BYTES || !is_object(&written)) { return false; }
    cJSON *call = cJSON_CreateObject();
    cJSON_AddItemToObject(call, "name", serve_text_to_json(name->at, n_name));
    cJSON_AddItemToObject(call, "arguments", serve_text_to_json(arguments, n_arguments));
    if (cJSON_GetArraySize(call) == 2 && cJSON_AddItemToArray(calls, call)) { return true; }
    cJSON_Delete(call);
    return false;
}

bool call_add(cJSON *calls, const cursor *name, const serve_text *arguments) {
    return !arguments->failed && arguments->size > 0 && add_call(calls, name, arguments->data, arguments->size);
}

bool call_add_json(cJSON *calls, const cursor *name, const cursor *arguments) {
    serve_text printed = {0};
    const bool added = call_put_json(&printed, *arguments) && call_add(calls, name, &printed);
    serve_text_free(&printed);
    return added;
}

bool call_add_any_json(cJSON *calls, const cursor *name, const cursor *arguments) {
    cJSON *value = arguments != NULL ? call_json_parse(arguments) : NULL;
    bool added = false;
    if (arguments == NULL || cJSON_IsNull(value)) {
        added = add_call(calls, name, "{}", 2);
    } else if (cJSON_IsObject(value)) {
        added = call_add_json(calls, name, arguments);
    } else if (cJSON_IsString(value)) {
        const cursor written = {value->valuestring, value->valuestring + strlen(value->valuestring)};
        added = call_add_json(calls, name, &written);
    }
    cJSON_Delete(value);
    return added;
}
