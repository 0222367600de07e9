/* Requests as JSON objects: one line of a JSONL file, or the body that a server received. */
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/params.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/files/json.h"
#include "runtime/generate/session.h"
#include "runtime/model/adapter.h"

/* Owns what the parameters point at until they are submitted. */
typedef struct parsed_request {
    const char *what;
    qr_json *root;
    char *messages_json, *tools_json, *template_json, *json_schema;
    int32_t *token_ids, *stop_token_ids;
    const char **stops;
    const struct qrun_adapter *adapter; /* taken by name */
} parsed_request;

static void free_parsed(parsed_request *parsed) {
    qr_json_free(parsed->root);
    qr_free(parsed->messages_json);
    qr_free(parsed->tools_json);
    qr_free(parsed->template_json);
    qr_free(parsed->json_schema);
    qr_free(parsed->token_ids);
    qr_free(parsed->stop_token_ids);
    qr_free(parsed->stops);
    qr_adapter_count_requests(parsed->adapter, -1);
}

/* The members of a request, beside those of generation_json. Those with an offset are read into that field of the
 * parameters. */
typedef enum member_kind { MEMBER_OTHER, MEMBER_FLOAT, MEMBER_INT, MEMBER_COUNT } member_kind;
#define FIELD(name) .key = #name, .offset = offsetof(qrun_request_params, name)
static const struct {
    const char *key;
    size_t offset;
    member_kind kind;
} members[] = {
    {.key = "prompt"},
    {.key = "token_ids"},
    {.key = "messages"},
    {.key = "tools"},
    {.key = "template_args"},
    {.key = "adapter"},
    {FIELD(temperature), .kind = MEMBER_FLOAT},
    {FIELD(top_k), .kind = MEMBER_INT},
    {FIELD(top_p), .kind = MEMBER_FLOAT},
    {FIELD(min_p), .kind = MEMBER_FLOAT},
    {FIELD(repetition_penalty), .kind = MEMBER_FLOAT},
    {FIELD(presence_penalty), .kind = MEMBER_FLOAT},
    {FIELD(frequency_penalty), .kind = MEMBER_FLOAT},
    {.key = "seed"},
    {.key = "stop"},
    {.key = "stop_token_ids"},
    {FIELD(min_tokens), .kind = MEMBER_INT},
    {FIELD(max_tokens), .kind = MEMBER_INT},
    {FIELD(max_length), .kind = MEMBER_INT},
    {FIELD(n), .kind = MEMBER_COUNT}, /* 1 or more */
    {FIELD(logprobs), .kind = MEMBER_INT},
    {.key = "ignore_eos"},
    {FIELD(prompt_logprobs), .kind = MEMBER_INT},
    {.key = "prompt_only"},
    {.key = "response_format"},
};
#undef FIELD

static qrun_status check_keys(const parsed_request *parsed, qr_error *err) {
    if (!cJSON_IsObject(parsed->root)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", parsed->what);
    }
    for (const qr_json *item = qr_json_first(parsed->root); item != NULL; item = item->next) {
        size_t i = 0;
        while (i < QR_COUNT_OF(members) && strcmp(item->string, members[i].key) != 0) { i++; }
        if (i == QR_COUNT_OF(members) && !qr_generation_rules_know(item->string)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is not a member of a request", parsed->what,
                           item->string);
        }
    }
    return QRUN_OK;
}

static qrun_status wrong_type(const parsed_request *parsed, const char *key, const char *wanted, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" must be %s", parsed->what, key, wanted);
}

/* ---- Numbers and switches ---------------------------------------------------------------------------------------- */

static qrun_status read_sampling(const parsed_request *parsed, qrun_request_params *params, qr_error *err) {
    for (size_t i = 0; i < QR_COUNT_OF(members); i++) {
        void *field = (unsigned char *)params + members[i].offset;
        if (members[i].kind == MEMBER_FLOAT) {
            double number = (double)*(float *)field;
            QR_RETURN_IF_ERROR(
                qr_json_get_double(parsed->root, members[i].key, -1e30, 1e30, &number, parsed->what, err));
            *(float *)field = (float)number;
        } else if (members[i].kind == MEMBER_INT || members[i].kind == MEMBER_COUNT) {
            const int64_t least = members[i].kind == MEMBER_COUNT ? 1 : INT32_MIN;
            int64_t number = *(int32_t *)field;
            QR_RETURN_IF_ERROR(
                qr_json_get_int(parsed->root, members[i].key, least, INT32_MAX, &number, parsed->what, err));
            *(int32_t *)field = (int32_t)number;
        }
    }
    /* Of the two the one that the line has counts. */
    const bool has_most = qr_json_get(parsed->root, "max_tokens") != NULL;
    const bool has_length = qr_json_get(parsed->root, "max_length") != NULL;
    if (has_length && !has_most) { params->max_tokens = 0; }
    if (has_most && !has_length) { params->max_length = 0; }
    QR_RETURN_IF_ERROR(qr_json_get_bool(parsed->root, "ignore_eos", &params->ignore_eos, parsed->what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(parsed->root, "prompt_only", &params->prompt_only, parsed->what, err));
    if (qr_json_is_null(qr_json_get(parsed->root, "seed"))) { return QRUN_OK; }
    int64_t seed; /* -1: as if it were not there, as for vLLM and llama.cpp */
    QR_RETURN_IF_ERROR(qr_json_get_int(parsed->root, "seed", -1, INT64_C(1) << 53, &seed, parsed->what, err));
    if (seed >= 0) {
        params->has_seed = true;
        params->seed = (uint64_t)seed;
    }
    return QRUN_OK;
}

/* *ids [the array's length] is the caller's, also after an error. */
static qrun_status read_ids(const parsed_request *parsed, const qr_json *array, const char *key, int32_t **ids,
                            qr_error *err) {
    if (!cJSON_IsArray(array)) { return wrong_type(parsed, key, "an array of token ids", err); }
    const int n = cJSON_GetArraySize(array);
    *ids = qr_alloc_array((size_t)n, sizeof **ids);
    if (*ids == NULL) { return qr_fail_memory(err, parsed->what, (unsigned)n * sizeof **ids); }
    const qr_json *item = qr_json_first(array);
    for (int i = 0; i < n; i++, item = item->next) {
        const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(value >= 0 && value <= INT32_MAX) || value != (double)(int32_t)value) {
            return wrong_type(parsed, key, "an array of token ids", err);
        }
        (*ids)[i] = (int32_t)value;
    }
    return QRUN_OK;
}

static qrun_status read_stop_ids(parsed_request *parsed, qrun_request_params *params, qr_error *err) {
    const qr_json *array = qr_json_get(parsed->root, "stop_token_ids");
    if (qr_json_is_null(array)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(read_ids(parsed, array, "stop_token_ids", &parsed->stop_token_ids, err));
    params->stop_token_ids = parsed->stop_token_ids;
    params->n_stop_token_ids = cJSON_GetArraySize(array);
    return QRUN_OK;
}

static qrun_status read_stops(parsed_request *parsed, qrun_request_params *params, qr_error *err) {
    const qr_json *stop = qr_json_get(parsed->root, "stop");
    if (qr_json_is_null(stop)) { return QRUN_OK; }
    const int n = cJSON_IsArray(stop) ? cJSON_GetArraySize(stop) : 1;
    parsed->stops = qr_alloc_array((size_t)n, sizeof *parsed->stops);
    if (parsed->stops == NULL) { return qr_fail_memory(err, parsed->what, (unsigned)n * sizeof(char *)); }
    const qr_json *item = cJSON_IsArray(stop) ? qr_json_first(stop) : stop;
    for (int i = 0; i < n; i++, item = item->next) {
        if (!cJSON_IsString(item)) { return wrong_type(parsed, "stop", "a text or an array of texts", err); }
        parsed->stops[i] = item->valuestring;
    }
    params->stop = parsed->stops;
    params->n_stop = n;
    return QRUN_OK;
}

static qrun_status read_adapter(parsed_request *parsed, qrun_model *model, qrun_request_params *params, qr_error *err) {
    const char *name = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(parsed->root, "adapter", &name, parsed->what, err));
    if (name == NULL) { return QRUN_OK; }
    params->adapter = parsed->adapter = name[0] == '\0' ? NULL : qr_adapter_take(model, name);
    if (params->adapter != NULL || name[0] == '\0') { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: no adapter named \"%s\" is open; open it first (`adapter`)",
                   parsed->what, name);
}

/* ---- The prompt -------------------------------------------------------------------------------------------------- */

static qrun_status take_text(const parsed_request *parsed, qr_buffer *buffer, char **text, qr_error *err) {
    *text = qr_buffer_take(buffer);
    return *text != NULL ? QRUN_OK : qr_fail_memory(err, parsed->what, 0);
}

static qrun_status print_json(const parsed_request *parsed, const qr_json *value, char **text, qr_error *err) {
    qr_buffer buffer = {0};
    qr_json_append(&buffer, value);
    return take_text(parsed, &buffer, text, err);
}

static qrun_status read_token_ids(parsed_request *parsed, const qr_json *array, qrun_request_params *params,
                                  qr_error *err) {
    const qrun_status status = read_ids(parsed, array, "token_ids", &parsed->token_ids, err);
    params->token_ids = parsed->token_ids;
    params->n_token_ids = cJSON_GetArraySize(array);
    return status;
}

static void add_message(qr_buffer *messages, const char *role, const char *content) {
    qr_buffer_append_format(messages, "%c{\"role\":\"%s\",\"content\":", messages->size > 0 ? ',' : '[', role);
    qr_buffer_append_json_string(messages, content, strlen(content));
    qr_buffer_append_char(messages, '}');
}

static qrun_status wrap_prompt(parsed_request *parsed, const char *prompt, const char *system_prompt, qr_error *err) {
    qr_buffer messages = {0};
    const size_t n_system = system_prompt != NULL ? strlen(system_prompt) : 0;
    if (n_system > 0 && qr_utf8_valid_prefix(system_prompt, n_system) < n_system) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the system prompt is not UTF-8", parsed->what);
    }
    if (system_prompt != NULL) { add_message(&messages, "system", system_prompt); }
    add_message(&messages, "user", prompt);
    qr_buffer_append_char(&messages, ']');
    return take_text(parsed, &messages, &parsed->messages_json, err);
}

static qrun_status read_messages(parsed_request *parsed, const qr_json *messages, qrun_request_params *params,
                                 qr_error *err) {
    if (!cJSON_IsArray(messages)) { return wrong_type(parsed, "messages", "an array of {\"role\", \"content\"}", err); }
    const qrun_status status = print_json(parsed, messages, &parsed->messages_json, err);
    params->messages_json = parsed->messages_json;
    return status;
}

static qrun_status read_template_arguments(parsed_request *parsed, qrun_request_params *params, qr_error *err) {
    const qr_json *tools = qr_json_get(parsed->root, "tools"), *arguments = qr_json_get(parsed->root, "template_args");
    if (!qr_json_is_null(tools)) {
        QR_RETURN_IF_ERROR(print_json(parsed, tools, &parsed->tools_json, err));
        params->tools_json = parsed->tools_json;
    }
    if (!qr_json_is_null(arguments)) {
        QR_RETURN_IF_ERROR(print_json(parsed, arguments, &parsed->template_json, err));
        params->template_json = parsed->template_json;
    }
    return QRUN_OK;
}

static qrun_status read_prompt(parsed_request *parsed, bool chat, const char *system_prompt,
                               qrun_request_params *params, qr_error *err) {
    const qr_json *prompt = qr_json_get(parsed->root, "prompt"), *ids = qr_json_get(parsed->root, "token_ids");
    const qr_json *messages = qr_json_get(parsed->root, "messages");
    if (!qr_json_is_null(prompt) + !qr_json_is_null(ids) + !qr_json_is_null(messages) != 1) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: needs one of \"prompt\", \"messages\" and \"token_ids\", and one alone", parsed->what);
    }
    params->prompt = NULL, params->prompt_bytes = 0;
    params->token_ids = NULL, params->messages_json = NULL;
    if (!qr_json_is_null(ids)) { return read_token_ids(parsed, ids, params, err); }
    if (!qr_json_is_null(messages)) { return read_messages(parsed, messages, params, err); }
    if (!cJSON_IsString(prompt)) { return wrong_type(parsed, "prompt", "a text", err); }
    params->prompt = prompt->valuestring;
    if (!chat) { return QRUN_OK; }
    const qrun_status status = wrap_prompt(parsed, prompt->valuestring, system_prompt, err);
    params->prompt = NULL;
    params->messages_json = parsed->messages_json;
    return status;
}

/* The template alone reads these, and a prompt that is not of messages has none. */
static qrun_status refuse_unused(const parsed_request *parsed, const qrun_request_params *params, qr_error *err) {
    const char *key = parsed->tools_json != NULL ? "tools" : parsed->template_json != NULL ? "template_args" : NULL;
    if (key == NULL || params->messages_json != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is for the chat template; give the prompt as \"messages\"",
                   parsed->what, key);
}

/* ---- The form of the answer -------------------------------------------------------------------------------------- */

/* OpenAI's members of response_format, by type: what else there is would not be obeyed. */
static qrun_status check_format_keys(const parsed_request *parsed, const qr_json *object, const char *const *keys,
                                     size_t n_keys, qr_error *err) {
    for (const qr_json *item = qr_json_first(object); item != NULL; item = item->next) {
        size_t i = 0;
        while (i < n_keys && strcmp(item->string, keys[i]) != 0) { i++; }
        if (i < n_keys) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is not a member of \"response_format\"", parsed->what,
                       item->string);
    }
    return QRUN_OK;
}

/* "strict" changes nothing: a schema is obeyed, or refused. */
static qrun_status read_schema(parsed_request *parsed, const qr_json *format, qrun_request_params *params,
                               qr_error *err) {
    static const char *const outer[] = {"type", "json_schema"};
    static const char *const inner[] = {"name", "description", "schema", "strict"};
    const qr_json *described = qr_json_get(format, "json_schema"), *schema = qr_json_get(described, "schema");
    if (!cJSON_IsObject(schema) && !cJSON_IsBool(schema)) {
        return wrong_type(parsed, "response_format", "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {…}}}",
                          err);
    }
    QR_RETURN_IF_ERROR(check_format_keys(parsed, format, outer, QR_COUNT_OF(outer), err));
    QR_RETURN_IF_ERROR(check_format_keys(parsed, described, inner, QR_COUNT_OF(inner), err));
    QR_RETURN_IF_ERROR(print_json(parsed, schema, &parsed->json_schema, err));
    params->json_schema = parsed->json_schema;
    return QRUN_OK;
}

static qrun_status read_response_format(parsed_request *parsed, qrun_request_params *params, qr_error *err) {
    const qr_json *format = qr_json_get(parsed->root, "response_format");
    const qr_json *named = qr_json_get(format, "type");
    const char *type = cJSON_IsString(named) ? named->valuestring : "";
    if (qr_json_is_null(format)) { return QRUN_OK; }
    if (strcmp(type, "json_schema") == 0) { return read_schema(parsed, format, params, err); }
    if (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0) {
        return wrong_type(parsed, "response_format",
                          "an object whose \"type\" is \"text\", \"json_object\" or \"json_schema\"", err);
    }
    static const char *const keys[] = {"type"};
    params->json_schema = strcmp(type, "text") == 0 ? NULL : "{\"type\":\"object\"}";
    return check_format_keys(parsed, format, keys, QR_COUNT_OF(keys), err);
}

/* How a line is read, as both calls below take it. */
typedef struct line_form {
    const char *json;
    size_t n_bytes;
    const qrun_request_params *defaults; /* NULL: none */
    bool chat;
    const char *system_prompt;
} line_form;

static qrun_status parse(parsed_request *parsed, const line_form *form, qrun_model *model, qrun_request_params *params,
                         qr_error *err) {
    *params = (qrun_request_params)QRUN_REQUEST_PARAMS_INIT;
    if (form->json == NULL) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: no JSON was given", parsed->what); }
    if (form->defaults != NULL) {
        QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, form->defaults, err));
        *params = *form->defaults;
    }
    QR_RETURN_IF_ERROR(qr_json_parse_line(form->json, form->n_bytes, parsed->what, &parsed->root, err));
    QR_RETURN_IF_ERROR(check_keys(parsed, err));
    QR_RETURN_IF_ERROR(read_sampling(parsed, params, err));
    QR_RETURN_IF_ERROR(read_stops(parsed, params, err));
    QR_RETURN_IF_ERROR(read_stop_ids(parsed, params, err));
    QR_RETURN_IF_ERROR(read_adapter(parsed, model, params, err));
    QR_RETURN_IF_ERROR(read_template_arguments(parsed, params, err));
    QR_RETURN_IF_ERROR(read_response_format(parsed, params, err));
    QR_RETURN_IF_ERROR(read_prompt(parsed, form->chat, form->system_prompt, params, err));
    return refuse_unused(parsed, params, err);
}

qrun_status qrun_session_submit_json(qrun_session *session, const char *json, size_t n_bytes, const char *what,
                                     const qrun_request_params *defaults, bool chat, const char *system_prompt,
                                     uint64_t *request, qrun_error *error) {
    const line_form form = {json, n_bytes, defaults, chat, system_prompt};
    parsed_request parsed = {.what = what != NULL ? what : "request"};
    qrun_request_params params;
    qrun_status status;
    QR_TRY(parse(&parsed, &form, session->model, &params, error));
    status = qr_session_submit(session, &params, parsed.root, parsed.what, request, error);
    if (status != QRUN_OK && strstr(error != NULL ? error->message : parsed.what, parsed.what) == NULL) {
        qr_error_prefix(error, parsed.what);
    }
out:
    free_parsed(&parsed);
    return status;
}

qrun_status qrun_request_measure_json(qrun_model *model, const char *json, size_t n_bytes, const char *what,
                                      const qrun_request_params *defaults, bool chat, const char *system_prompt,
                                      qrun_request_size *size, qrun_error *error) {
    const line_form form = {json, n_bytes, defaults, chat, system_prompt};
    parsed_request parsed = {.what = what != NULL ? what : "request"};
    qrun_request_params params;
    qrun_status status;
    QR_TRY(parse(&parsed, &form, model, &params, error));
    status = qrun_request_measure(model, &params, size, error);
out:
    free_parsed(&parsed);
    return status;
}

qrun_status qrun_request_params_from_model(const qrun_model *model, qrun_request_params *params, qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, params, error));
    const qr_generation_config *config = &model->generation;
    params->repetition_penalty = (float)config->repetition_penalty;
    params->generation_json = config->text;
    params->max_length = (int32_t)config->max_length;
    if (config->max_new_tokens > 0) { params->max_tokens = (int32_t)config->max_new_tokens; }
    if (!config->do_sample) {
        params->temperature = 0.0F;
        return QRUN_OK;
    }
    params->temperature = (float)config->temperature;
    params->top_k = (int32_t)config->top_k;
    params->top_p = (float)config->top_p;
    params->min_p = (float)config->min_p;
    return QRUN_OK;
}
