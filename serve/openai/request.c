#include "serve/openai/request.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai/chat.h"
#include "serve/openai/request_tools.h"
#include "serve/openai/text.h"

bool openai_refuse(openai_error *error, int status, const char *member, const char *format, ...) {
    va_list args;
    error->status = status;
    (void)snprintf(error->member, sizeof error->member, "%s", member != NULL ? member : "");
    va_start(args, format);
    (void)vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return false;
}

char *openai_error_text(const openai_error *error) {
    cJSON *root = cJSON_CreateObject();
    cJSON *inner = cJSON_AddObjectToObject(root, "error");
    const char *type = error->status == 401   ? "authentication_error"
                       : error->status == 429 ? "rate_limit_error"
                       : error->status >= 500 ? "server_error"
                                              : "invalid_request_error";
    cJSON_AddStringToObject(inner, "message", error->message);
    cJSON_AddStringToObject(inner, "type", type);
    cJSON_AddItemToObject(inner, "param",
                          error->member[0] != '\0' ? cJSON_CreateString(error->member) : cJSON_CreateNull());
    cJSON_AddItemToObject(inner, "code",
                          error->status == 404 && strcmp(error->member, "model") == 0
                              ? cJSON_CreateString("model_not_found")
                              : cJSON_CreateNull());
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}

bool openai_refuse_for_memory(openai_error *error) {
    return openai_refuse(error, 503, NULL, "the server is out of memory");
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

enum { TEXT = 1 << OPENAI_TEXT, CHAT = 1 << OPENAI_CHAT, BOTH = CHAT | TEXT, EMBED = 1 << OPENAI_EMBEDDING };

static const openai_member members[] = {
    {"model", BOTH | EMBED, USE_HERE, NULL},
    {"input", EMBED, USE_HERE, NULL},
    {"pooling", EMBED, USE_HERE, NULL},
    {"encoding_format", EMBED, USE_HERE, NULL},
    {"messages", CHAT, USE_HERE, NULL},
    {"prompt", TEXT, USE_HERE, NULL},
    {"stream", BOTH, USE_HERE, NULL},
    {"stream_options", BOTH, USE_HERE, NULL},
    {"logprobs", BOTH, USE_HERE, NULL},
    {"top_logprobs", CHAT, USE_HERE, NULL},
    {"n", BOTH, USE_HERE, NULL},
    {"tool_choice", CHAT, USE_HERE, NULL},
    {"response_format", BOTH, USE_SAME, NULL},
    {"echo", TEXT, USE_HERE, NULL},
    {"logit_bias", BOTH, USE_HERE, NULL},
    {"max_tokens", BOTH, USE_SAME, NULL},
    {"max_completion_tokens", CHAT, USE_SAME, "max_tokens"},
    {"temperature", BOTH, USE_SAME, NULL},
    {"top_p", BOTH, USE_SAME, NULL},
    {"top_k", BOTH, USE_SAME, NULL},
    {"min_p", BOTH, USE_SAME, NULL},
    {"presence_penalty", BOTH, USE_SAME, NULL},
    {"frequency_penalty", BOTH, USE_SAME, NULL},
    {"repetition_penalty", BOTH, USE_SAME, NULL},
    {"seed", BOTH, USE_SAME, NULL},
    {"stop", BOTH, USE_SAME, NULL},
    {"stop_token_ids", BOTH, USE_SAME, NULL},
    {"min_tokens", BOTH, USE_SAME, NULL},
    {"ignore_eos", BOTH, USE_SAME, NULL},
    {"tools", CHAT, USE_SAME, NULL},
    {"chat_template_kwargs", CHAT, USE_SAME, "template_args"},
    {"reasoning_effort", CHAT, USE_HERE, NULL},
    {"continue_final_message", CHAT, USE_HERE, NULL},
    {"add_generation_prompt", CHAT, USE_HERE, NULL},
    {"user", BOTH | EMBED, USE_NOT, NULL},
    {"safety_identifier", BOTH, USE_NOT, NULL},
    {"prompt_cache_key", BOTH, USE_NOT, NULL},
    {"prompt_cache_retention", BOTH, USE_NOT, NULL},
    {"prompt_cache_options", BOTH, USE_NOT, NULL},
    {"verbosity", CHAT, USE_NOT, NULL},
    {"store", BOTH, USE_NOT, NULL},
    {"metadata", BOTH, USE_NOT, NULL},
    {"service_tier", BOTH, USE_NOT, NULL},
    {"parallel_tool_calls", CHAT, USE_NOT, NULL},
    {"modalities", CHAT, USE_NOT, NULL},
    {"suffix", TEXT, USE_ONLY_EMPTY, NULL},
    {"best_of", TEXT, USE_ONLY_ONE, NULL},
    {"functions", CHAT, USE_ONLY_EMPTY, NULL},
    {"function_call", CHAT, USE_ONLY_EMPTY, NULL},
    {"audio", CHAT, USE_ONLY_EMPTY, NULL},
    {"prediction", CHAT, USE_ONLY_EMPTY, NULL},
    {"web_search_options", CHAT, USE_ONLY_EMPTY, NULL},
    {"dimensions", EMBED, USE_ONLY_EMPTY, NULL},
};

_Static_assert(sizeof members / sizeof members[0] <= OPENAI_MOST_MEMBERS, "a bit for each member");

static const double MOST_EXACT = 9007199254740991.0; /* of the integers that a double holds */

static bool is_empty(const cJSON *value) {
    if (cJSON_IsNull(value) || cJSON_IsFalse(value)) { return true; }
    if (cJSON_IsNumber(value)) { return value->valuedouble == 0; }
    if (cJSON_IsString(value)) { return value->valuestring[0] == '\0'; }
    return (cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL;
}

/* A copy of a value. cJSON prints 15 digits, and a seed may have 16: whole numbers are copied as text. */
static cJSON *copy_of(const cJSON *item) {
    char text[32];
    if (!cJSON_IsNumber(item) || item->valuedouble != (double)(int64_t)item->valuedouble) {
        return cJSON_Duplicate(item, true);
    }
    (void)snprintf(text, sizeof text, "%lld", (long long)item->valuedouble);
    return cJSON_CreateRaw(text);
}

const openai_member *openai_member_find(const openai_member *table, size_t n_members, int endpoint, const cJSON *item,
                                        uint64_t *seen, openai_error *error) {
    for (size_t i = 0; i < n_members; i++) {
        const openai_member *member = &table[i];
        if (strcmp(item->string, member->name) != 0 || (member->endpoints & endpoint) == 0) { continue; }
        if ((*seen >> i & 1) != 0) {
            (void)openai_refuse(error, 400, item->string, "\"%s\" is given twice", item->string);
            return NULL;
        }
        *seen |= UINT64_C(1) << i;
        const bool is_one = member->use == USE_ONLY_ONE && cJSON_IsNumber(item) && item->valueint == 1;
        if (member->use < USE_ONLY_EMPTY || is_empty(item) || is_one) { return member; }
        (void)openai_refuse(error, 400, item->string, "\"%s\" is not supported yet", item->string);
        return NULL;
    }
    (void)openai_refuse(error, 400, item->string, "\"%.60s\" is not a member of this request", item->string);
    return NULL;
}

/* OpenAI's seeds are integers of 64 bits; qrun's requests hold 53 bits, and -1 for no seed. Others become some of
 * these, by the bits of the double that they were read as. */
static cJSON *fold_seed(double seed) {
    uint64_t bits;
    char text[32];
    memcpy(&bits, &seed, sizeof bits);
    bits = (bits ^ bits >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)(bits >> 11));
    return cJSON_CreateRaw(text);
}

static bool is_far_seed(const cJSON *item) {
    static const double most = 9223372036854775808.0; /* 2^63 */
    if (strcmp(item->string, "seed") != 0 || !cJSON_IsNumber(item)) { return false; }
    const double seed = item->valuedouble;
    return (seed < -1 || seed > MOST_EXACT) && fabs(seed) <= most && seed == nearbyint(seed);
}

/* Puts a member where it belongs. */
static bool take_member(const cJSON *item, openai_request *request, uint64_t *seen, openai_error *error) {
    const openai_member *member =
        openai_member_find(members, sizeof members / sizeof members[0], 1 << request->kind, item, seen, error);
    if (member == NULL) { return false; }
    if (member->use != USE_SAME || cJSON_IsNull(item)) { return true; }
    const bool is_far = is_far_seed(item);
    if (strcmp(item->string, "seed") == 0) { request->has_seed = item->valuedouble != -1; }
    if (cJSON_IsNumber(item) && !is_far && !(fabs(item->valuedouble) <= MOST_EXACT)) {
        return openai_refuse(error, 400, item->string, "\"%s\" is too large", item->string);
    }
    const char *name = member->as != NULL ? member->as : member->name;
    if (cJSON_GetObjectItemCaseSensitive(request->body, name) != NULL) {
        return openai_refuse(error, 400, item->string, "\"%s\" is said twice, by another name; give one of them",
                             item->string);
    }
    cJSON *copy = is_far ? fold_seed(item->valuedouble) : copy_of(item);
    return (copy != NULL && cJSON_AddItemToObject(request->body, name, copy)) || openai_refuse_for_memory(error);
}

/* ---- What is read here ------------------------------------------------------------------------------------------- */

static bool read_flag(const cJSON *root, const char *name, bool *value, openai_error *error) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (item == NULL || cJSON_IsNull(item)) { return true; }
    *value = cJSON_IsTrue(item);
    return cJSON_IsBool(item) || openai_refuse(error, 400, name, "\"%s\" must be true or false", name);
}

static bool read_count(const cJSON *root, const char *name, int low, int high, int *value, openai_error *error) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (item == NULL || cJSON_IsNull(item)) { return true; }
    *value = item->valueint;
    const bool fits = cJSON_IsNumber(item) && item->valuedouble == (double)item->valueint && item->valueint >= low &&
                      item->valueint <= high;
    return fits || openai_refuse(error, 400, name, "\"%s\" must be an integer from %d to %d", name, low, high);
}

/* A chat asks with a flag and a number, a completion with the number alone. */
static bool read_logprobs(const cJSON *root, openai_request *request, openai_error *error) {
    bool wanted = false;
    int n_top = 0;
    request->logprobs = -1;
    if (request->kind != OPENAI_CHAT) { return read_count(root, "logprobs", 0, 20, &request->logprobs, error); }
    if (!read_flag(root, "logprobs", &wanted, error) || !read_count(root, "top_logprobs", 0, 20, &n_top, error)) {
        return false;
    }
    if (n_top > 0 && !wanted) {
        return openai_refuse(error, 400, "top_logprobs", "\"top_logprobs\" needs \"logprobs\": true");
    }
    if (wanted) { request->logprobs = n_top; }
    return true;
}

/* The number as JSON text of as few digits as it needs. */
static void print_number(double number, char text[32]) {
    if (number == nearbyint(number) && fabs(number) <= MOST_EXACT) {
        (void)snprintf(text, 32, "%.0f", number);
        return;
    }
    int n_digits = 15;
    do { (void)snprintf(text, 32, "%.*g", n_digits, number); } while (n_digits++ < 17 && strtod(text, NULL) != number);
}

bool openai_write_numbers(cJSON *json, const char *member, openai_error *error) {
    char text[32];
    for (cJSON *item = json != NULL ? json->child : NULL; item != NULL; item = item->next) {
        if (!openai_write_numbers(item, member, error)) { return false; }
    }
    if (!cJSON_IsNumber(json)) { return true; }
    const double number = json->valuedouble;
    if (member != NULL && (!isfinite(number) || (fabs(number) > MOST_EXACT && number == nearbyint(number)))) {
        return openai_refuse(error, 400, member, "\"%s\": a whole number can be from -%.0f to %.0f", member, MOST_EXACT,
                             MOST_EXACT);
    }
    if (!isfinite(number)) { return true; }
    print_number(number, text);
    cJSON *raw = cJSON_CreateRaw(text);
    if (raw == NULL) { return openai_refuse_for_memory(error); }
    json->type = (json->type & ~0xFF) | cJSON_Raw;
    json->valuestring = raw->valuestring;
    raw->valuestring = NULL;
    cJSON_Delete(raw);
    return true;
}

/* An answer in a form is all content: there is no room in it for a call. */
static bool check_format(openai_request *request, openai_error *error) {
    cJSON *format = cJSON_GetObjectItemCaseSensitive(request->body, "response_format");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(format, "type");
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(request->body, "tools");
    const bool is_text = cJSON_IsString(type) && strcmp(type->valuestring, "text") == 0;
    if (!openai_write_numbers(format, "response_format", error)) { return false; }
    request->has_format = format != NULL && !cJSON_IsNull(format) && !is_text;
    return !request->has_format || tools == NULL || tools->child == NULL ||
           openai_refuse(error, 400, "response_format",
                         "\"response_format\" with \"tools\" is not supported: the answer could be no call; leave one "
                         "out, or give \"tool_choice\": \"none\"");
}

static bool read_choices_of_form(const cJSON *root, openai_request *request, openai_error *error) {
    return openai_read_tools(root, request, error) && check_format(request, error);
}

/* OpenAI's {"id": bias} as the sequence_bias of generation_config.json: [[[id], bias], …]. */
static bool read_biases(const cJSON *root, openai_request *request, openai_error *error) {
    const cJSON *biases = cJSON_GetObjectItemCaseSensitive(root, "logit_bias"), *bias;
    if (biases == NULL || is_empty(biases)) { return true; }
    if (!cJSON_IsObject(biases) || cJSON_GetArraySize(biases) > OPENAI_MAX_BIASES) {
        return openai_refuse(error, 400, "logit_bias", "\"logit_bias\" must be an object of at most %d ids and biases",
                             OPENAI_MAX_BIASES);
    }
    cJSON *list = cJSON_AddArrayToObject(request->body, "sequence_bias");
    cJSON_ArrayForEach(bias, biases) {
        char *end;
        const long id = strtol(bias->string, &end, 10);
        if (bias->string[0] < '0' || bias->string[0] > '9' || *end != '\0' || id > INT32_MAX || !cJSON_IsNumber(bias) ||
            !(fabs(bias->valuedouble) <= 100)) {
            return openai_refuse(error, 400, "logit_bias",
                                 "\"logit_bias\": \"%.20s\" must be a token id with a bias "
                                 "from -100 to 100",
                                 bias->string);
        }
        if (id > request->largest_bias_id) { request->largest_bias_id = (int32_t)id; }
        cJSON *pair = cJSON_CreateArray(), *ids = cJSON_CreateArray();
        cJSON_AddItemToArray(ids, cJSON_CreateNumber((double)id));
        cJSON_AddItemToArray(pair, ids);
        cJSON_AddItemToArray(pair, cJSON_Duplicate(bias, false));
        if (!cJSON_AddItemToArray(list, pair)) {
            cJSON_Delete(pair);
            return openai_refuse_for_memory(error);
        }
    }
    return true;
}

/* One of two names; false where it is said and is neither. */
static bool read_choice(const cJSON *root, const char *name, const char *first, const char *second, bool *is_second,
                        openai_error *error) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, name);
    if (item == NULL || cJSON_IsNull(item)) { return true; }
    *is_second = cJSON_IsString(item) && strcmp(item->valuestring, second) == 0;
    if (*is_second || (cJSON_IsString(item) && strcmp(item->valuestring, first) == 0)) { return true; }
    return openai_refuse(error, 400, name, "\"%s\" can be \"%s\" or \"%s\"", name, first, second);
}

static bool read_embedding(const cJSON *root, openai_request *request, openai_error *error) {
    bool is_mean = false;
    if (!read_choice(root, "pooling", "last", "mean", &is_mean, error) ||
        !read_choice(root, "encoding_format", "float", "base64", &request->in_base64, error)) {
        return false;
    }
    request->pooling = is_mean ? QRUN_POOLING_MEAN : QRUN_POOLING_LAST;
    request->is_prompt_alone = true;
    return true;
}

/* No token at all is something that qrun says in another way. */
static void read_most_tokens(openai_request *request) {
    const cJSON *most = cJSON_GetObjectItemCaseSensitive(request->body, "max_tokens");
    if (!cJSON_IsNumber(most) || most->valuedouble != 0) {
        /* a copy of a whole number is raw text */
        if (!cJSON_IsRaw(most) || strcmp(most->valuestring, "0") != 0) { return; }
    }
    cJSON_DeleteItemFromObjectCaseSensitive(request->body, "max_tokens");
    request->is_prompt_alone = true;
}

static bool read_stream(const cJSON *root, openai_request *request, openai_error *error) {
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(root, "stream_options"), *item;
    if (!read_flag(root, "stream", &request->stream, error)) { return false; }
    if (options == NULL || cJSON_IsNull(options)) { return true; }
    if (!cJSON_IsObject(options)) {
        return openai_refuse(error, 400, "stream_options", "\"stream_options\" must be an object");
    }
    if (!request->stream) {
        return openai_refuse(error, 400, "stream_options", "\"stream_options\" needs \"stream\": true");
    }
    cJSON_ArrayForEach(item, options) { /* what hides lengths of pieces does not change an answer */
        if (strcmp(item->string, "include_usage") == 0 || strcmp(item->string, "include_obfuscation") == 0) {
            continue;
        }
        return openai_refuse(error, 400, "stream_options", "\"%.60s\" is not a member of \"stream_options\"",
                             item->string);
    }
    return read_flag(options, "include_usage", &request->include_usage, error);
}

/* vLLM's two names for it. */
static bool read_continuation(const cJSON *root, openai_request *request, openai_error *error) {
    if (!read_flag(root, "continue_final_message", &request->continues, error)) { return false; }
    bool begins = !request->continues;
    if (!read_flag(root, "add_generation_prompt", &begins, error)) { return false; }
    return begins != request->continues ||
           openai_refuse(error, 400, "add_generation_prompt",
                         "\"add_generation_prompt\" is false where \"continue_final_message\" is true, and true where "
                         "it is not");
}

static bool check_samples(const openai_request *request, openai_error *error) {
    return request->n_samples == 1 || !request->is_prompt_alone ||
           openai_refuse(error, 400, "n", "\"max_tokens\" 0 generates nothing, so \"n\" must be 1");
}

static bool read_options(const cJSON *root, openai_request *request, openai_error *error) {
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
    if (model != NULL && !cJSON_IsNull(model)) {
        if (!cJSON_IsString(model) || strlen(model->valuestring) >= sizeof request->model) {
            return openai_refuse(error, 400, "model", "\"model\" must be a name");
        }
        strcpy(request->model, model->valuestring);
    }
    request->n_samples = 1;
    read_most_tokens(request);
    return read_stream(root, request, error) && read_flag(root, "echo", &request->echo, error) &&
           read_biases(root, request, error) && read_continuation(root, request, error) &&
           (request->kind != OPENAI_EMBEDDING || read_embedding(root, request, error)) &&
           read_count(root, "n", 1, 256, &request->n_samples, error) && read_logprobs(root, request, error) &&
           read_choices_of_form(root, request, error) && check_samples(request, error);
}

/* ---- Prompts ----------------------------------------------------------------------------------------------------- */

/* Content in parts becomes the text of its parts. */
static bool flatten_content(cJSON *message, openai_error *error) {
    cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (!cJSON_IsArray(content)) { return true; }
    size_t n_bytes = 1;
    for (const cJSON *part = content->child; part != NULL; part = part->next) {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text");
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
        if (!cJSON_IsString(text) || !cJSON_IsString(type) || strcmp(type->valuestring, "text") != 0) {
            return openai_refuse(error, 400, "messages",
                                 "content of type \"%.40s\" is not supported: this server reads text",
                                 cJSON_IsString(type) ? type->valuestring : "?");
        }
        n_bytes += strlen(text->valuestring);
    }
    char *joined = cJSON_malloc(n_bytes);
    if (joined == NULL) { return openai_refuse_for_memory(error); }
    joined[0] = '\0';
    char *end = joined;
    for (const cJSON *part = content->child; part != NULL; part = part->next) {
        const char *text = cJSON_GetObjectItemCaseSensitive(part, "text")->valuestring;
        const size_t n = strlen(text);
        memcpy(end, text, n + 1);
        end += n;
    }
    cJSON *whole = cJSON_CreateString(joined);
    cJSON_free(joined);
    return (whole != NULL && cJSON_ReplaceItemInObjectCaseSensitive(message, "content", whole)) ||
           openai_refuse_for_memory(error);
}

/* Clients send the arguments of calls as JSON in a text, and templates expect the JSON itself. */
static bool read_arguments(cJSON *function, openai_error *error) {
    const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
    if (!cJSON_IsString(arguments)) { return true; }
    const char *text = arguments->valuestring[0] != '\0' ? arguments->valuestring : "{}";
    char why[SERVE_WHY_BYTES];
    cJSON *parsed = serve_text_parse_json(text, strlen(text), why);
    if (cJSON_IsObject(parsed) && cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", parsed)) {
        return true;
    }
    cJSON_Delete(parsed);
    return openai_refuse(error, 400, "messages", "\"arguments\" of a tool call must be a JSON object in a text");
}

static bool read_calls(const cJSON *message, openai_error *error) {
    const cJSON *calls = chat_get(message, "tool_calls");
    cJSON *call;
    if (calls != NULL && !cJSON_IsArray(calls)) {
        return openai_refuse(error, 400, "messages", "\"tool_calls\" must be a list of calls");
    }
    cJSON_ArrayForEach(call, calls) {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        if (!read_arguments(function, error)) { return false; }
        if (!cJSON_IsString(chat_get(function, "name"))) {
            return openai_refuse(error, 400, "messages",
                                 "a call of \"tool_calls\" must have a \"function\" with a \"name\", a text");
        }
        cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
        if (!openai_write_numbers(arguments, NULL, error)) { return false; }
    }
    return true;
}

/* What OpenAI calls a developer is the system of templates. */
static bool read_role(cJSON *message, openai_error *error) {
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    if (!cJSON_IsString(role) || strcmp(role->valuestring, "developer") != 0) { return true; }
    cJSON *system = cJSON_CreateString("system");
    return (system != NULL && cJSON_ReplaceItemInObjectCaseSensitive(message, "role", system)) ||
           openai_refuse_for_memory(error);
}

/* Calls come after a message's text, and so does nothing. A form is that of a whole answer. */
static bool check_continuation(const cJSON *last, const openai_request *request, openai_error *error) {
    if (!chat_is(chat_get(last, "role"), "assistant") || !cJSON_IsString(chat_get(last, "content")) ||
        cJSON_GetArraySize(chat_get(last, "tool_calls")) > 0) {
        return openai_refuse(error, 400, "messages",
                             "an answer can continue a last message of the assistant that has a text and no calls");
    }
    return (!request->must_call && !request->has_format) ||
           openai_refuse(error, 400, "messages",
                         "an answer that continues the last message can be neither JSON in a form nor a required call");
}

static bool read_messages(cJSON *root, openai_request *request, openai_error *error) {
    cJSON *messages = cJSON_DetachItemFromObjectCaseSensitive(root, "messages");
    if (messages != NULL && !cJSON_AddItemToArray(request->prompts, messages)) {
        cJSON_Delete(messages);
        return openai_refuse_for_memory(error);
    }
    if (!cJSON_IsArray(messages) || messages->child == NULL) {
        return openai_refuse(error, 400, "messages", "\"messages\" must be a list of messages");
    }
    for (cJSON *message = messages->child; message != NULL; message = message->next) {
        if (!cJSON_IsObject(message)) {
            return openai_refuse(error, 400, "messages", "\"messages\" must be a list of messages");
        }
        if (!flatten_content(message, error) || !read_calls(message, error) || !read_role(message, error)) {
            return false;
        }
    }
    return !request->continues || check_continuation(messages->child->prev, request, error);
}

/* A text, a list of token ids, or a list of either. */
static bool read_prompts(cJSON *root, openai_request *request, openai_error *error) {
    const char *name = request->kind == OPENAI_EMBEDDING ? "input" : "prompt";
    cJSON *prompt = cJSON_DetachItemFromObjectCaseSensitive(root, name);
    const bool is_list = cJSON_IsArray(prompt) && prompt->child != NULL && !cJSON_IsNumber(prompt->child);
    if (is_list) {
        cJSON_Delete(request->prompts);
        request->prompts = prompt;
    } else if (prompt != NULL && !cJSON_AddItemToArray(request->prompts, prompt)) {
        cJSON_Delete(prompt);
        return openai_refuse_for_memory(error);
    }
    if (cJSON_GetArraySize(request->prompts) > OPENAI_MAX_PROMPTS) {
        return openai_refuse(error, 400, name, "a request can have at most %d prompts", OPENAI_MAX_PROMPTS);
    }
    for (const cJSON *item = request->prompts->child; item != NULL; item = item->next) {
        if (cJSON_IsString(item) || (cJSON_IsArray(item) && cJSON_IsNumber(item->child))) { continue; }
        return openai_refuse(error, 400, name, "\"%s\" must be a text, a list of token ids, or a list of these", name);
    }
    return request->prompts->child != NULL || openai_refuse(error, 400, name, "\"%s\" is missing", name);
}

/* ---- The request ------------------------------------------------------------------------------------------------- */

static bool read_root(cJSON *root, openai_request *request, openai_error *error) {
    if (!cJSON_IsObject(root)) { return openai_refuse(error, 400, NULL, "the body is not a JSON object"); }
    if (request->body == NULL || request->prompts == NULL) { return openai_refuse_for_memory(error); }
    uint64_t seen = 0; /* bits of members */
    if (request->kind == OPENAI_CHAT &&
        !chat_set_effort(root, chat_get(root, "reasoning_effort"), "reasoning_effort", error)) {
        return false;
    }
    for (const cJSON *item = root->child; item != NULL; item = item->next) {
        if (!take_member(item, request, &seen, error)) { return false; }
    }
    if (!read_options(root, request, error)) { return false; }
    return request->kind == OPENAI_CHAT ? read_messages(root, request, error) : read_prompts(root, request, error);
}

static bool translate_root(cJSON *root, openai_translation translate, openai_request *request, openai_error *error) {
    if (!cJSON_IsObject(root)) { return openai_refuse(error, 400, NULL, "the body is not a JSON object"); }
    cJSON *chat = cJSON_CreateObject();
    if (chat == NULL) { return openai_refuse_for_memory(error); }
    const bool read = translate(root, chat, error) && read_root(chat, request, error);
    cJSON_Delete(chat);
    return read;
}

bool openai_request_read(const char *json, size_t n_bytes, openai_kind kind, openai_translation translate,
                         openai_request *request, openai_error *error) {
    char why[SERVE_WHY_BYTES];
    *request = (openai_request){.kind = kind, .body = cJSON_CreateObject(), .prompts = cJSON_CreateArray()};
    cJSON *root = serve_text_parse_json(json, n_bytes, why);
    const bool read = root == NULL        ? openai_refuse(error, 400, NULL, "%s", why)
                      : translate != NULL ? translate_root(root, translate, request, error)
                                          : read_root(root, request, error);
    cJSON_Delete(root);
    return read;
}

void openai_request_free(openai_request *request) {
    cJSON_Delete(request->body);
    cJSON_Delete(request->prompts);
    *request = (openai_request){0};
}

bool openai_request_keep_text_arguments(openai_request *request, openai_error *error) {
    const cJSON *messages, *message, *call;
    cJSON_ArrayForEach(messages, request->prompts) {
        cJSON_ArrayForEach(message, messages) {
            cJSON_ArrayForEach(call, cJSON_GetObjectItemCaseSensitive(message, "tool_calls")) {
                cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
                const cJSON *arguments = cJSON_GetObjectItemCaseSensitive(function, "arguments");
                if (!cJSON_IsObject(arguments)) { continue; }
                char *printed = cJSON_PrintUnformatted(arguments);
                cJSON *text = printed != NULL ? cJSON_CreateString(printed) : NULL;
                cJSON_free(printed);
                if (text == NULL) { return openai_refuse_for_memory(error); }
                cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", text);
            }
        }
    }
    return true;
}

static bool has_role(const cJSON *message, const char *role) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, "role");
    return cJSON_IsString(item) && strcmp(item->valuestring, role) == 0;
}

/* What follows `first`, which is the user's or the system's, and is of either too, becomes part of it. */
static bool join_turns(cJSON *messages, cJSON *first, openai_error *error) {
    serve_text joined = {0};
    for (const cJSON *message = first; message != NULL; message = message->next) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
        if (message != first && !has_role(message, "user") && !has_role(message, "system")) { break; }
        if (message != first) { serve_text_add(&joined, "\n\n", 2); }
        if (cJSON_IsString(content)) { serve_text_add(&joined, content->valuestring, strlen(content->valuestring)); }
    }
    cJSON *role = cJSON_CreateString("user");
    cJSON *content = joined.failed ? NULL : cJSON_CreateString(joined.data != NULL ? joined.data : "");
    serve_text_free(&joined);
    if (role == NULL || content == NULL) {
        cJSON_Delete(role);
        cJSON_Delete(content);
        return openai_refuse_for_memory(error);
    }
    cJSON_ReplaceItemInObjectCaseSensitive(first, "role", role);
    cJSON_ReplaceItemInObjectCaseSensitive(first, "content", content);
    while (first->next != NULL && (has_role(first->next, "user") || has_role(first->next, "system"))) {
        cJSON_Delete(cJSON_DetachItemViaPointer(messages, first->next));
    }
    return true;
}

bool openai_request_move_late_system(openai_request *request, openai_error *error) {
    cJSON *messages;
    cJSON_ArrayForEach(messages, request->prompts) {
        for (cJSON *message = messages->child; message != NULL; message = message->next) {
            const bool is_late = message != messages->child && has_role(message, "system");
            const bool is_before = has_role(message, "user") && has_role(message->next, "system");
            if ((is_late || is_before) && !join_turns(messages, message, error)) { return false; }
        }
    }
    return true;
}

char *openai_request_line(const openai_request *request, int prompt, const char *adapter) {
    const cJSON *value = cJSON_GetArrayItem(request->prompts, prompt);
    const bool is_ids = cJSON_IsArray(value) && cJSON_IsNumber(value->child);
    const char *name = is_ids ? "token_ids" : request->kind == OPENAI_CHAT ? "messages" : "prompt";
    cJSON *line = cJSON_Duplicate(request->body, true);
    if (is_ids) { /* they have what a template was given */
        cJSON_DeleteItemFromObjectCaseSensitive(line, "tools");
        cJSON_DeleteItemFromObjectCaseSensitive(line, "template_args");
    }
    cJSON *copy = cJSON_Duplicate(value, true);
    char *text = NULL;
    if (line != NULL && copy != NULL && cJSON_AddItemToObject(line, name, copy)) {
        cJSON_AddNumberToObject(line, "n", request->n_samples);
        if (request->logprobs >= 0) { cJSON_AddNumberToObject(line, "logprobs", request->logprobs); }
        if (request->logprobs >= 0 && request->echo) {
            cJSON_AddNumberToObject(line, "prompt_logprobs", request->logprobs);
        }
        if (request->is_prompt_alone) { cJSON_AddTrueToObject(line, "prompt_only"); }
        cJSON_AddStringToObject(line, "adapter", adapter != NULL ? adapter : "");
        text = cJSON_PrintUnformatted(line);
    } else {
        cJSON_Delete(copy);
    }
    cJSON_Delete(line);
    return text;
}
