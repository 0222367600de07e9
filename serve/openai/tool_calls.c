#include "serve/openai/tool_calls.h"

#include <string.h>

#include "serve/openai/text.h"

enum { MAX_NAME_BYTES = 128, MAX_DEPTH = 32 };

/* What is left to read. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static size_t left_of(const cursor *c) { return (size_t)(c->end - c->at); }

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void skip_space(cursor *c) {
    while (c->at < c->end && is_space(*c->at)) { c->at++; }
}

static bool takes(cursor *c, const char *text) {
    const size_t n = strlen(text);
    if (left_of(c) < n || memcmp(c->at, text, n) != 0) { return false; }
    c->at += n;
    return true;
}

/* The first occurrence; NULL: none. */
static const char *find(const cursor *c, const char *text) {
    const size_t n = strlen(text);
    for (const char *at = c->at; (size_t)(c->end - at) >= n; at++) {
        if (memcmp(at, text, n) == 0) { return at; }
    }
    return NULL;
}

/* Everything before `text`, which is taken too. */
static bool takes_until(cursor *c, const char *text, cursor *before) {
    const char *at = find(c, text);
    if (at == NULL) { return false; }
    *before = (cursor){c->at, at};
    c->at = at + strlen(text);
    return true;
}

static void trim(cursor *c) {
    skip_space(c);
    while (c->end > c->at && is_space(c->end[-1])) { c->end--; }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* NULL where there is more than one value, which cJSON would leave unread. */
static cJSON *parse(const cursor *c) {
    const char *end = NULL;
    cJSON *parsed = cJSON_ParseWithLengthOpts(c->at, left_of(c), &end, false);
    cursor rest = {end, c->end};
    if (parsed == NULL) { return NULL; }
    skip_space(&rest);
    if (rest.at == rest.end) { return parsed; }
    cJSON_Delete(parsed);
    return NULL;
}

static bool is_object(const cursor *text) {
    cJSON *parsed = parse(text);
    const bool is = cJSON_IsObject(parsed);
    cJSON_Delete(parsed);
    return is;
}

/* Arguments are put together from parts of the answer: what does not come to a JSON object is no call. */
static bool add_call(cJSON *calls, const char *name, size_t n_name, const char *arguments, size_t n_arguments) {
    const cursor written = {arguments, arguments + n_arguments};
    if (n_name == 0 || n_name > MAX_NAME_BYTES || !is_object(&written)) { return false; }
    cJSON *call = cJSON_CreateObject();
    cJSON_AddItemToObject(call, "name", serve_text_to_json(name, n_name));
    cJSON_AddItemToObject(call, "arguments", serve_text_to_json(arguments, n_arguments));
    if (cJSON_GetArraySize(call) == 2 && cJSON_AddItemToArray(calls, call)) { return true; }
    cJSON_Delete(call);
    return false;
}

/* The function of that name among the request's tools; NULL: none. */
static const cJSON *find_tool(const cJSON *tools, const char *name, size_t n_name) {
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

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static bool skip_string(cursor *c) {
    for (c->at++; c->at < c->end; c->at++) {
        if (*c->at == '\\') {
            c->at++;
        } else if (*c->at == '"') {
            c->at++;
            return true;
        }
    }
    return false;
}

/* Over one value; whether it is well formed is for the parser. */
static bool skip_value(cursor *c) {
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

/* The text of a member of an object that was parsed before; false: it has none. */
static bool find_member(cursor object, const char *name, cursor *value) {
    object.at++; /* { */
    for (;;) {
        skip_space(&object);
        cursor key = {object.at + 1, NULL};
        if (object.at >= object.end || *object.at != '"' || !skip_string(&object)) { return false; }
        key.end = object.at - 1;
        skip_space(&object);
        if (!takes(&object, ":")) { return false; }
        skip_space(&object);
        value->at = object.at;
        if (!skip_value(&object)) { return false; }
        value->end = object.at;
        if (left_of(&key) == strlen(name) && memcmp(key.at, name, strlen(name)) == 0) { return true; }
        skip_space(&object);
        if (!takes(&object, ",")) { return false; }
    }
}

static void skip_digits(cursor *c) {
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') { c->at++; }
}

/* -12.5e+3, and not +1, 01, .5 or 1. as some parsers take them. */
static bool skip_number(cursor *c) {
    (void)takes(c, "-");
    const char *first = c->at;
    skip_digits(c);
    if (c->at == first || (c->at > first + 1 && *first == '0')) { return false; }
    if (takes(c, ".")) {
        const char *fraction = c->at;
        skip_digits(c);
        if (c->at == fraction) { return false; }
    }
    if (!takes(c, "e") && !takes(c, "E")) { return true; }
    if (!takes(c, "+")) { (void)takes(c, "-"); }
    const char *exponent = c->at;
    skip_digits(c);
    return c->at > exponent;
}

/* Of what cJSON has parsed: whether every parser takes it. cJSON is lenient with numbers and control characters. */
static bool is_strict(cursor c) {
    if (!serve_text_is_utf8(c.at, left_of(&c))) { return false; }
    for (const char *at = c.at; at < c.end; at++) {
        if ((unsigned char)*at < 0x20 && !is_space(*at)) { return false; }
    }
    while (c.at < c.end) {
        const char *first = c.at;
        if (*c.at == '"') {
            (void)skip_string(&c);
            for (const char *at = first; at < c.at; at++) {
                if ((unsigned char)*at < 0x20) { return false; }
            }
        } else if (*c.at == '+' || *c.at == '.' || *c.at == '-' || (*c.at >= '0' && *c.at <= '9')) {
            if (!skip_number(&c)) { return false; }
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
        serve_text_add(out, written->at, left_of(written));
    }
    cJSON_free(printed);
    return !out->failed;
}

static bool add_json_call(cJSON *calls, const char *name, size_t n_name, const cursor *arguments, const cJSON *parsed) {
    serve_text printed = {0};
    const bool added = cJSON_IsObject(parsed) && put_json(&printed, arguments, parsed) &&
                       add_call(calls, name, n_name, printed.data, printed.size);
    serve_text_free(&printed);
    return added;
}

/* Arguments as JSON, or as JSON in a text, or none. */
static bool add_with_arguments(cJSON *calls, const cJSON *name, const cursor *arguments) {
    const size_t n_name = strlen(name->valuestring);
    cJSON *value = arguments != NULL ? parse(arguments) : NULL;
    bool added = false;
    if (arguments == NULL || cJSON_IsNull(value)) {
        added = add_call(calls, name->valuestring, n_name, "{}", 2);
    } else if (cJSON_IsObject(value)) {
        added = add_json_call(calls, name->valuestring, n_name, arguments, value);
    } else if (cJSON_IsString(value)) {
        const cursor written = {value->valuestring, value->valuestring + strlen(value->valuestring)};
        cJSON *inner = parse(&written);
        added = add_json_call(calls, name->valuestring, n_name, &written, inner);
        cJSON_Delete(inner);
    }
    cJSON_Delete(value);
    return added;
}

/* {"name", "arguments"}, or "parameters" in their place, or {"function": {…}}. tools NULL: any name will do. */
static bool take_json_call(cursor *c, const cJSON *tools, cJSON *calls) {
    skip_space(c);
    cursor object = *c, arguments, inner;
    if (c->at >= c->end || *c->at != '{' || !skip_value(c)) { return false; }
    object.end = c->at;
    cJSON *root = parse(&object);
    bool added = false;
    if (root != NULL && find_member(object, "function", &inner) && *inner.at == '{') {
        added = take_json_call(&inner, tools, calls);
    } else if (root != NULL) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(root, "name");
        const bool has_arguments =
            find_member(object, "arguments", &arguments) || find_member(object, "parameters", &arguments);
        const bool known = cJSON_IsString(name) &&
                           (tools == NULL || find_tool(tools, name->valuestring, strlen(name->valuestring)) != NULL);
        added = known && add_with_arguments(calls, name, has_arguments ? &arguments : NULL);
    }
    cJSON_Delete(root);
    return added;
}

/* Calls after each other, between which there may be separators, and nothing else. */
static bool take_json_calls(cursor *c, const char *separators, const cJSON *tools, cJSON *calls) {
    do {
        if (!take_json_call(c, tools, calls)) { return false; }
        while (c->at < c->end && (is_space(*c->at) || strchr(separators, *c->at) != NULL)) { c->at++; }
    } while (c->at < c->end);
    return true;
}

/* ---- <function=name> <parameter=key> value </parameter> </function> ---------------------------------------------- */

static bool is_text_type(const cJSON *function, const char *key, size_t n_key) {
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters"), *property;
    cJSON_ArrayForEach(property, cJSON_GetObjectItemCaseSensitive(parameters, "properties")) {
        if (strlen(property->string) != n_key || memcmp(property->string, key, n_key) != 0) { continue; }
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(property, "type");
        return cJSON_IsString(type) && strcmp(type->valuestring, "string") == 0;
    }
    return false;
}

/* A value without quotes: JSON where it is some and the schema does not ask for a text. */
static bool put_value(serve_text *out, const cursor *value, bool is_text) {
    cJSON *parsed = is_text ? NULL : parse(value);
    cursor rest = *value;
    if (parsed != NULL && skip_value(&rest) && rest.at == rest.end) {
        const bool added = put_json(out, value, parsed);
        cJSON_Delete(parsed);
        return added;
    }
    cJSON_Delete(parsed);
    cJSON *string = serve_text_to_json(value->at, left_of(value));
    char *printed = cJSON_PrintUnformatted(string);
    if (printed != NULL) { serve_text_add(out, printed, strlen(printed)); }
    const bool added = printed != NULL;
    cJSON_free(printed);
    cJSON_Delete(string);
    return added;
}

static bool put_key(serve_text *out, cursor key) {
    trim(&key);
    serve_text_add(out, ",", out->size > 1 && out->data[out->size - 1] != '{' ? 1 : 0);
    const bool added = key.at < key.end && put_value(out, &key, true);
    serve_text_add(out, ":", 1);
    return added;
}

/* A value up to its closing tag. JSON may have such a tag in a string. */
static bool take_value(cursor *body, bool is_text, cursor *value) {
    static const char end[] = "</parameter>";
    cursor json = *body;
    skip_space(&json);
    if (!is_text && skip_value(&json)) {
        *value = (cursor){body->at, json.at};
        skip_space(&json);
        if (takes(&json, end)) {
            *body = json;
            return true;
        }
    }
    return takes_until(body, end, value);
}

/* Up to the tag that closes the function, which is taken too. */
static bool take_parameters(cursor *body, const cJSON *function, serve_text *out) {
    cursor key, value;
    serve_text_add(out, "{", 1);
    for (skip_space(body); takes(body, "<parameter="); skip_space(body)) {
        if (!takes_until(body, ">", &key)) { return false; }
        trim(&key);
        const bool is_text = is_text_type(function, key.at, left_of(&key));
        if (!take_value(body, is_text, &value)) { return false; }
        if (value.at < value.end && *value.at == '\n') { value.at++; }
        if (value.at < value.end && value.end[-1] == '\n') { value.end--; }
        if (!put_key(out, key) || !put_value(out, &value, is_text)) { return false; }
    }
    serve_text_add(out, "}", 1);
    return takes(body, "</function>");
}

static bool take_xml_calls(cursor *c, const cJSON *tools, cJSON *calls) {
    for (skip_space(c); takes(c, "<function="); skip_space(c)) {
        cursor name;
        serve_text arguments = {0};
        if (!takes_until(c, ">", &name)) { return false; }
        trim(&name);
        const bool added = take_parameters(c, find_tool(tools, name.at, left_of(&name)), &arguments) &&
                           !arguments.failed &&
                           add_call(calls, name.at, left_of(&name), arguments.data, arguments.size);
        serve_text_free(&arguments);
        if (!added) { return false; }
    }
    return c->at == c->end;
}

/* ---- call:name{key:value} ---------------------------------------------------------------------------------------- */

static const char *const quotes[] = {"<escape>", "<|\"|>"};

static bool take_gemma_value(cursor *c, int depth, serve_text *out);

static bool take_gemma_object(cursor *c, int depth, serve_text *out) {
    cursor key;
    serve_text_add(out, "{", 1);
    for (skip_space(c); !takes(c, "}"); skip_space(c)) {
        if (!takes_until(c, ":", &key)) { return false; }
        for (size_t i = 0; i < sizeof quotes / sizeof quotes[0]; i++) {
            if (takes(&key, quotes[i])) { key.end -= strlen(quotes[i]); }
        }
        if (key.end < key.at || !put_key(out, key) || !take_gemma_value(c, depth + 1, out)) { return false; }
        skip_space(c);
        if (!takes(c, ",") && (c->at >= c->end || *c->at != '}')) { return false; }
    }
    serve_text_add(out, "}", 1);
    return true;
}

static bool take_gemma_list(cursor *c, int depth, serve_text *out) {
    serve_text_add(out, "[", 1);
    for (skip_space(c); !takes(c, "]"); skip_space(c)) {
        serve_text_add(out, ",", out->data[out->size - 1] != '[' ? 1 : 0);
        if (!take_gemma_value(c, depth + 1, out)) { return false; }
        skip_space(c);
        if (!takes(c, ",") && (c->at >= c->end || *c->at != ']')) { return false; }
    }
    serve_text_add(out, "]", 1);
    return true;
}

static bool take_gemma_value(cursor *c, int depth, serve_text *out) {
    cursor value;
    skip_space(c);
    if (depth > MAX_DEPTH || out->failed) { return false; }
    if (takes(c, "{")) { return take_gemma_object(c, depth, out); }
    if (takes(c, "[")) { return take_gemma_list(c, depth, out); }
    for (size_t i = 0; i < sizeof quotes / sizeof quotes[0]; i++) {
        if (takes(c, quotes[i])) { return takes_until(c, quotes[i], &value) && put_value(out, &value, true); }
    }
    value.at = c->at;
    while (c->at < c->end && strchr(",}]", *c->at) == NULL) { c->at++; }
    value.end = c->at;
    trim(&value);
    return value.at < value.end && put_value(out, &value, false);
}

static bool take_gemma_calls(cursor *c, cJSON *calls) {
    for (skip_space(c); takes(c, "call:"); skip_space(c)) {
        cursor name;
        serve_text arguments = {0};
        if (!takes_until(c, "{", &name)) { return false; }
        trim(&name);
        const bool added = take_gemma_object(c, 0, &arguments) && !arguments.failed &&
                           add_call(calls, name.at, left_of(&name), arguments.data, arguments.size);
        serve_text_free(&arguments);
        if (!added) { return false; }
    }
    return c->at == c->end;
}

/* ---- Mistral ----------------------------------------------------------------------------------------------------- */

/* [{…}, {…}], or name[ARGS]{…}, the next of which has a marker of its own. */
static bool take_mistral_calls(cursor *c, cJSON *calls) {
    trim(c);
    if (takes(c, "[")) {
        if (c->at >= c->end || c->end[-1] != ']') { return false; }
        c->end--;
        trim(c);
        return take_json_calls(c, ",", NULL, calls);
    }
    do {
        cursor name = {c->at, NULL}, arguments;
        while (c->at < c->end && *c->at != '{') { c->at++; }
        name.end = arguments.at = c->at;
        if (c->at >= c->end || !skip_value(c)) { return false; }
        arguments.end = c->at;
        const char *mark = find(&name, "[");
        if (mark != NULL) { name.end = mark; } /* [CALL_ID]…, [ARGS] */
        trim(&name);
        cJSON *parsed = parse(&arguments);
        const bool added = add_json_call(calls, name.at, left_of(&name), &arguments, parsed);
        cJSON_Delete(parsed);
        if (!added) { return false; }
        skip_space(c);
    } while (takes(c, "[TOOL_CALLS]"));
    return c->at == c->end;
}

/* ---- Harmony ----------------------------------------------------------------------------------------------------- */

/* A message: its header, which has to=functions.name, and after <|message|> the arguments. */
static bool take_harmony_call(cursor *c, cJSON *calls) {
    cursor header, name;
    if (!takes_until(c, "<|message|>", &header) || !takes_until(&header, "to=functions.", &name)) { return false; }
    name = (cursor){header.at, header.at};
    while (name.end < header.end && !is_space(*name.end) && *name.end != '<') { name.end++; }
    trim(c);
    cursor rest = *c;
    if (c->at == c->end || !skip_value(&rest) || rest.at != rest.end) { return false; }
    cJSON *parsed = parse(c);
    const bool added = add_json_call(calls, name.at, left_of(&name), c, parsed);
    cJSON_Delete(parsed);
    return added;
}

/* ---- By style ---------------------------------------------------------------------------------------------------- */

static bool take_calls(call_style style, cursor *c, const cJSON *tools, cJSON *calls) {
    switch (style) {
        case CALLS_TAGGED: return *c->at == '<' ? take_xml_calls(c, tools, calls) : take_json_calls(c, "", NULL, calls);
        case CALLS_LLAMA: return take_json_calls(c, ";", tools, calls);
        case CALLS_MISTRAL: return take_mistral_calls(c, calls);
        case CALLS_GEMMA: return take_gemma_calls(c, calls);
        case CALLS_HARMONY: return take_harmony_call(c, calls);
        default: return false;
    }
}

bool tool_calls_parse(call_style style, const char *body, size_t n_bytes, const cJSON *tools, cJSON *calls) {
    cursor c = {body, body + n_bytes};
    const int n_before = cJSON_GetArraySize(calls);
    trim(&c);
    if (c.at < c.end && take_calls(style, &c, tools, calls)) { return cJSON_GetArraySize(calls) > n_before; }
    while (cJSON_GetArraySize(calls) > n_before) { cJSON_DeleteItemFromArray(calls, n_before); }
    return false;
}
