#include "runtime/generate/request.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/params.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/files/json.h"
#include "runtime/generate/answer_form.h"
#include "runtime/model/adapter.h"
#include "runtime/model/vocabulary.h"

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static qrun_status check_params(const qrun_request_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, params, err));
    const int n_prompts = (params->prompt != NULL) + (params->token_ids != NULL) + (params->messages_json != NULL);
    if (n_prompts != 1) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a request needs one of `prompt`, `token_ids` and `messages_json`; it has %d", n_prompts);
    }
    if (params->n_token_ids != 0 && params->token_ids == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_token_ids=%lld`, but `token_ids` is NULL",
                       (long long)params->n_token_ids);
    }
    const qr_range ranges[] = {
        {"temperature", (double)params->temperature, 0, 100},
        {"top_k", params->top_k, -1, INT32_MAX},
        {"top_p", (double)params->top_p, 0, 1},
        {"min_p", (double)params->min_p, 0, 1},
        {"repetition_penalty", (double)params->repetition_penalty, 0.01, 100},
        {"presence_penalty", (double)params->presence_penalty, -100, 100},
        {"frequency_penalty", (double)params->frequency_penalty, -100, 100},
        {"the number of `stop_token_ids`", params->n_stop_token_ids, 0, QR_MAX_STOPS},
        {"min_tokens", params->min_tokens, 0, INT32_MAX},
        {"max_tokens", params->max_tokens, 0, INT32_MAX},
        {"max_length", params->max_length, 0, INT32_MAX},
        {"n", params->n, 0, QR_MAX_SAMPLES},
        {"logprobs", params->logprobs, -1, QR_MAX_TOP_LOGPROBS},
        {"prompt_logprobs", params->prompt_logprobs, -1, QR_MAX_TOP_LOGPROBS},
        {"the number of stop texts", params->n_stop, 0, QR_MAX_STOPS},
        {"the number of `answer_forms`", params->n_answer_forms, 0, QR_MAX_ANSWER_FORMS},
        {"pooling", (double)params->pooling, QRUN_POOLING_NONE, QRUN_POOLING_MEAN},
    };
    if (params->prompt_only && params->n > 1) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`prompt_only` generates nothing, so there are no `n=%d` samples",
                       params->n);
    }
    if (params->pooling != QRUN_POOLING_NONE && !params->prompt_only) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`pooling` needs `prompt_only`: nothing is generated beside it");
    }
    if (params->pooling != QRUN_POOLING_NONE && params->prompt_logprobs >= 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`pooling` and `prompt_logprobs` take a request each");
    }
    QR_RETURN_IF_ERROR(qr_check_ranges(ranges, QR_COUNT_OF(ranges), err));
    if (!params->prompt_only && params->max_tokens > 0 && params->min_tokens > params->max_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`min_tokens=%d` is more than `max_tokens=%d`", params->min_tokens,
                       params->max_tokens);
    }
    return QRUN_OK;
}

/* ---- The prompt -------------------------------------------------------------------------------------------------- */

/* A text that is surely longer than the context is not looked at. A token has 4 bytes or so; most that a vocabulary has
 * beyond 64 are of spaces. */
static qrun_status check_length(const qrun_model *model, size_t n_bytes, qr_error *err) {
    enum { BYTES_A_TOKEN = 64, OTHER_BYTES = 1 << 20 };
    const int64_t context = model->shape.context_tokens;
    if ((int64_t)n_bytes / BYTES_A_TOKEN <= context + OTHER_BYTES / BYTES_A_TOKEN) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "the prompt has %zu bytes, far more than this model's context of %lld tokens holds; shorten it",
                   n_bytes, (long long)context);
}

/* Ends once there are more tokens than the context has. */
static qrun_status encode_text(const qrun_model *model, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, qr_tokens *tokens, qr_error *err) {
    const qr_encode_options options = {add_special, parse_special, model->shape.context_tokens};
    QR_RETURN_IF_ERROR(check_length(model, n_bytes, err));
    return qr_tokenizer_encode(model->tokenizer->tokenizer, text, n_bytes, &options, tokens, err);
}

static qrun_status encode_messages(const qrun_model *model, const qrun_request_params *params, qr_tokens *tokens,
                                   qr_error *err) {
    char *text;
    size_t n_bytes;
    QR_RETURN_IF_ERROR(check_length(model, strlen(params->messages_json), err));
    QR_RETURN_IF_ERROR(qrun_chat_render(model->tokenizer, params->messages_json, params->tools_json,
                                        params->template_json, true, &text, &n_bytes, err));
    const qrun_status status =
        encode_text(model, text, n_bytes, false, true, tokens, err); /* the template writes BOS itself */
    qr_free(text);
    return status;
}

static qrun_status check_ids(const qrun_model *model, const qr_tokens *tokens, qr_error *err) {
    if (tokens->n == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "the prompt is empty and this tokenizer adds no token of its own; give at least one character");
    }
    for (size_t i = 0; i < tokens->n; i++) {
        QR_RETURN_IF_ERROR(qr_token_id_check(model, tokens->ids[i], (int64_t)i, "prompt", err));
    }
    return QRUN_OK;
}

static qrun_status make_prompt(const qrun_model *model, const qrun_request_params *params, qr_tokens *tokens,
                               qr_error *err) {
    if (params->n_token_ids < 0) { return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_token_ids` cannot be negative"); }
    if (params->token_ids != NULL) {
        for (int64_t i = 0; i < params->n_token_ids; i++) {
            QR_RETURN_IF_ERROR(qr_tokens_push(tokens, params->token_ids[i], err));
        }
    } else if (model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s has no tokenizer.json; add the file, or give the prompt as \"token_ids\"", model->folder);
    } else if (params->messages_json != NULL) {
        QR_RETURN_IF_ERROR(encode_messages(model, params, tokens, err));
    } else {
        const size_t n_bytes = params->prompt_bytes > 0 ? params->prompt_bytes : strlen(params->prompt);
        QR_RETURN_IF_ERROR(
            encode_text(model, params->prompt, n_bytes, !params->no_special, !params->plain_text, tokens, err));
    }
    return check_ids(model, tokens, err);
}

/* Of an answer; 0: as many as there is room for. Where nothing is generated there is room for one, as nothing reads it.
 */
static int64_t most_new_tokens(const qrun_request_params *params) {
    return params->prompt_only ? 1 : params->max_tokens;
}

/* *capacity: the most tokens of prompt and answer together. The last one is never read, so it needs no position and no
 * K/V. */
static qrun_status fit(const qrun_model *model, const qr_request_limits *limits, const qrun_request_params *params,
                       int64_t n_prompt, int64_t *capacity, qr_error *err) {
    if (n_prompt > model->shape.context_tokens && params->token_ids == NULL) { /* how many more is not known */
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "the prompt has more than the %lld tokens of this model's context; shorten it",
                       (long long)model->shape.context_tokens);
    }
    if (n_prompt > model->shape.context_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "the prompt has %lld tokens and this model's context is %lld; shorten it", (long long)n_prompt,
                       (long long)model->shape.context_tokens);
    }
    if (n_prompt > limits->context_tokens) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "the prompt has %lld tokens and the context is %lld; shorten it, or raise `context_tokens` (up to %lld)",
            (long long)n_prompt, (long long)limits->context_tokens, (long long)model->shape.context_tokens);
    }
    const int64_t max_tokens = most_new_tokens(params);
    const bool open_ended = max_tokens == 0;
    if (open_ended && params->max_length > 0 && n_prompt >= params->max_length) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "the prompt has %lld tokens, and prompt and answer together may have %d (max_length); shorten it, or give "
            "`max_tokens`",
            (long long)n_prompt, params->max_length);
    }
    int64_t n_read = limits->context_tokens;
    if (!open_ended) { n_read = qr_min(n_read, n_prompt + max_tokens - 1); }
    if (open_ended && params->max_length > 0) { n_read = qr_min(n_read, params->max_length - 1); }
    if (open_ended && n_prompt <= limits->pool_tokens) { n_read = qr_min(n_read, limits->pool_tokens); }
    *capacity = n_read + 1;
    if (n_read <= limits->pool_tokens) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_MEMORY,
        "prompt and answer need %lld tokens of K/V cache and the pool holds %lld; give more `memory_bytes`%s",
        (long long)n_read, (long long)limits->pool_tokens,
        limits->kv_is_smallest ? " or a smaller `max_tokens`" : ", a smaller `max_tokens`, or `kv=int8`");
}

/* ---- Seed and stop texts ----------------------------------------------------------------------------------------- */

/* Equal requests get equal seeds, whenever they are submitted. */
static uint64_t default_seed(const qr_tokens *tokens) {
    return qr_hash_mix(qr_hash_bytes(QR_HASH_START, tokens->ids, tokens->n * sizeof *tokens->ids));
}

static qrun_status copy_stops(const qrun_request_params *params, qr_request *request, qr_error *err) {
    if (params->n_stop > 0 && params->stop == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_stop=%d`, but `stop` is NULL", params->n_stop);
    }
    if (params->n_stop == 0) { return QRUN_OK; }
    request->waiting_bytes += params->n_stop * (int64_t)sizeof *request->stops;
    request->stops = qr_alloc_array_zeroed((size_t)params->n_stop, sizeof *request->stops);
    if (request->stops == NULL) { return qr_fail_memory(err, "stop texts", (unsigned)params->n_stop * sizeof(char *)); }
    for (int32_t i = 0; i < params->n_stop; i++) {
        if (params->stop[i] == NULL || params->stop[i][0] == '\0') {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "stop text %d is empty", i + 1);
        }
        if (qr_utf8_valid_prefix(params->stop[i], strlen(params->stop[i])) != strlen(params->stop[i])) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "stop text %d is not UTF-8", i + 1);
        }
        const size_t n_bytes = strlen(params->stop[i]) + 1;
        request->stops[i] = qr_strdup(params->stop[i]);
        if (request->stops[i] == NULL) { return qr_fail_memory(err, "a stop text", n_bytes); }
        request->waiting_bytes += (int64_t)n_bytes;
        request->n_stops++;
    }
    return QRUN_OK;
}

static qrun_status copy_stop_ids(const qrun_model *model, const qrun_request_params *params, qr_request *request,
                                 qr_error *err) {
    const size_t n_bytes = (size_t)params->n_stop_token_ids * sizeof *request->stop_ids;
    if (params->n_stop_token_ids == 0) { return QRUN_OK; }
    if (params->stop_token_ids == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_stop_token_ids=%d`, but `stop_token_ids` is NULL",
                       params->n_stop_token_ids);
    }
    for (int32_t i = 0; i < params->n_stop_token_ids; i++) {
        const int32_t id = params->stop_token_ids[i];
        if (id >= 0 && id < model->shape.vocab) { continue; }
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`stop_token_ids`: token %d is outside the vocabulary of %lld", id,
                       (long long)model->shape.vocab);
    }
    request->stop_ids = qr_alloc(n_bytes);
    if (request->stop_ids == NULL) { return qr_fail_memory(err, "stop tokens", n_bytes); }
    memcpy(request->stop_ids, params->stop_token_ids, n_bytes);
    request->n_stop_ids = params->n_stop_token_ids;
    request->waiting_bytes += (int64_t)n_bytes;
    return QRUN_OK;
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

static bool has_rules(const qr_json *object) {
    for (const qr_json *item = qr_json_first(object); item != NULL; item = item->next) {
        if (qr_generation_rules_know(item->string)) { return true; }
    }
    return false;
}

/* of_model: the text is the model's own file, which has other members too. */
static qrun_status read_rules(const qrun_model *model, const char *text, bool of_model, qr_generation_rules *rules,
                              qr_error *err) {
    static const char what[] = "`generation_json`";
    qr_json *root = NULL;
    qrun_status status;
    QR_TRY(qr_json_parse_line(text, strlen(text), what, &root, err));
    if (!cJSON_IsObject(root)) { QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s is not a JSON object", what)); }
    for (const qr_json *item = qr_json_first(root); item != NULL && !of_model; item = item->next) {
        if (qr_generation_rules_know(item->string)) { continue; }
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is not a member of it", what, item->string));
    }
    QR_TRY(qr_generation_rules_read(root, what, model->shape.vocab, of_model, rules, err));
out:
    qr_json_free(root);
    return status;
}

/* The model's own rules are shared, so that requests that wait hold no copies. */
static qrun_status make_rules(const qrun_model *model, const qrun_request_params *params, const qr_json *overrides,
                              const char *what, qr_request *request, qr_error *err) {
    const char *text = params->generation_json;
    const bool of_model = text != NULL && text == model->generation.text, overridden = has_rules(overrides);
    const qr_generation_rules *rules = &model->generation.rules;
    const bool has_least = params->min_tokens > 0;
    if (!overridden && !has_least && text == NULL) { return QRUN_OK; }
    if (overridden || has_least || !of_model) {
        qr_generation_rules *own = request->own_rules = qr_alloc_zeroed(sizeof *own);
        if (own == NULL) { return qr_fail_memory(err, "a request's rules", sizeof *own); }
        *own = (qr_generation_rules)QR_GENERATION_RULES_INIT;
        if (text != NULL) { QR_RETURN_IF_ERROR(read_rules(model, text, of_model, own, err)); }
        QR_RETURN_IF_ERROR(qr_generation_rules_read(overrides, what, model->shape.vocab, false, own, err));
        own->min_new_tokens = qr_max(own->min_new_tokens, params->min_tokens);
        request->waiting_bytes += (int64_t)sizeof *own + own->n_bytes;
        rules = own;
    }
    if (!qr_generation_rules_are_neutral(rules)) { request->sampling.rules = rules; }
    return QRUN_OK;
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status copy_prompt(const qr_tokens *prompt, qr_request *request, qr_error *err) {
    const size_t n_bytes = prompt->n * sizeof *prompt->ids;
    request->prompt = qr_alloc(n_bytes);
    if (request->prompt == NULL) { return qr_fail_memory(err, "a prompt", n_bytes); }
    memcpy(request->prompt, prompt->ids, n_bytes);
    request->n_prompt = (int64_t)prompt->n;
    request->waiting_bytes += (int64_t)n_bytes;
    return QRUN_OK;
}

static void copy_options(const qrun_request_params *params, const qr_tokens *prompt, qr_request *request) {
    request->sampling = (qr_sampling){
        .temperature = params->temperature,
        .top_k = params->top_k < 0 ? 0 : params->top_k,
        .top_p = params->top_p,
        .min_p = params->min_p,
        .repetition_penalty = params->repetition_penalty,
        .presence_penalty = params->presence_penalty,
        .frequency_penalty = params->frequency_penalty,
        .seed = params->has_seed ? params->seed : default_seed(prompt),
    };
    request->ignore_eos = params->ignore_eos;
    request->logprobs = params->logprobs;
    request->prompt_logprobs = params->prompt_logprobs;
    request->prompt_only = params->prompt_only;
    request->pooling = params->pooling;
    request->adapter = params->adapter;
    qr_adapter_count_requests(request->adapter, 1);
    request->on_event = params->on_event;
    request->user = params->user;
    request->n_samples = request->n_open = params->n > 1 ? params->n : 1;
}

qrun_status qr_request_create(const qrun_model *model, const qr_request_limits *limits,
                              const qrun_request_params *params, const qr_json *overrides, const char *what,
                              qr_request **request, qr_error *err) {
    *request = NULL;
    qr_tokens prompt = {0};
    qr_request *made = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(check_params(params, err));
    QR_TRY(make_prompt(model, params, &prompt, err));
    made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { QR_TRY(qr_fail_memory(err, "a request", sizeof *made)); }
    made->waiting_bytes = sizeof *made;
    copy_options(params, &prompt, made);
    QR_TRY(fit(model, limits, params, (int64_t)prompt.n, &made->capacity, err));
    made->rope_tokens = qr_min(made->prompt_only ? (int64_t)prompt.n : made->capacity, limits->context_tokens);
    QR_TRY(copy_stops(params, made, err));
    QR_TRY(copy_stop_ids(model, params, made, err));
    QR_TRY(make_rules(model, params, overrides, what, made, err));
    QR_TRY(qr_form_make(model, limits->grammars, params, overrides, made, err));
    QR_TRY(copy_prompt(&prompt, made, err));
    made->submit_time = qr_now_seconds();
    *request = made;
out:
    qr_tokens_free(&prompt);
    if (status != QRUN_OK) { qr_request_destroy(made, NULL); }
    return status;
}

qrun_status qrun_request_measure(const qrun_model *model, const qrun_request_params *params, qrun_request_size *size,
                                 qrun_error *error) {
    qr_tokens prompt = {0};
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_size, size, error));
    QR_RETURN_IF_ERROR(check_params(params, error));
    const qrun_status status = make_prompt(model, params, &prompt, error);
    size->prompt_tokens = (int64_t)prompt.n;
    size->n_sequences = params->n > 1 ? params->n : 1;
    const int64_t max_tokens = most_new_tokens(params);
    size->sequence_tokens = max_tokens > 0           ? size->prompt_tokens + max_tokens - 1
                            : params->max_length > 0 ? qr_max(params->max_length - 1, size->prompt_tokens)
                                                     : 0;
    qr_tokens_free(&prompt);
    return status;
}

/* ---- The start --------------------------------------------------------------------------------------------------- */

static qrun_status make_sequence(const qrun_model *model, const qr_kv_cache *cache, qr_request *request, int32_t sample,
                                 qr_error *err) {
    qr_sequence *sequence = &request->sequences[sample];
    *sequence = (qr_sequence){.request = request,
                              .sample = sample,
                              .n_tokens = request->n_prompt,
                              .slot = -1,
                              .state = sample == 0 ? QR_SEQUENCE_WAITING : QR_SEQUENCE_HELD};
    qr_drafts_init(&sequence->drafts);
    sequence->tokens = qr_alloc_array((size_t)request->capacity, sizeof *sequence->tokens);
    if (sequence->tokens == NULL) {
        return qr_fail_memory(err, "a sequence", (unsigned long long)request->capacity * 4);
    }
    memcpy(sequence->tokens, request->prompt, (size_t)request->n_prompt * sizeof *request->prompt);
    /* The scheduler sets the length class. */
    const qr_kv_key key = {.adapter = qr_adapter_identity(request->adapter),
                           .content = qr_adapter_content(request->adapter)};
    QR_RETURN_IF_ERROR(qr_kv_sequence_create(cache, request->capacity - 1, key, &sequence->kv, err));
    const qr_stop_list stops = {request->stops, request->n_stops};
    const qr_tokenizer *tokenizer = model->tokenizer != NULL ? model->tokenizer->tokenizer : NULL;
    return qr_answer_start(&sequence->answer, tokenizer, request->prompt, request->n_prompt, &stops, err);
}

static void free_results(qr_prompt_results *results) {
    if (results == NULL) { return; }
    qr_answer_free(&results->text);
    qr_free(results->pooled);
    qr_free(results->embedding);
    qr_free(results);
}

static void free_sequences(qr_request *request, qr_kv_cache *cache) {
    for (int32_t i = 0; request->sequences != NULL && i < request->n_samples; i++) {
        qr_kv_sequence_destroy(cache, &request->sequences[i].kv);
        qr_answer_free(&request->sequences[i].answer);
        qr_match_place_free(&request->sequences[i].place);
        qr_free(request->sequences[i].tokens);
    }
    qr_free(request->sequences);
    request->sequences = NULL;
    free_results(request->results);
    request->results = NULL;
}

static qrun_status make_results(const qrun_model *model, qr_request *request, qr_error *err) {
    const size_t hidden = (size_t)model->shape.hidden;
    const bool pools = request->pooling != QRUN_POOLING_NONE;
    if (!pools && request->prompt_logprobs < 0) { return QRUN_OK; }
    qr_prompt_results *results = request->results = qr_alloc_zeroed(sizeof *results);
    if (results == NULL) { return qr_fail_memory(err, "what a prompt gives", sizeof *results); }
    if (!pools) {
        const qr_stop_list none = {NULL, 0};
        const qr_tokenizer *tokenizer = model->tokenizer != NULL ? model->tokenizer->tokenizer : NULL;
        return qr_answer_start(&results->text, tokenizer, request->prompt, 0, &none, err);
    }
    if (request->pooling == QRUN_POOLING_LAST) { results->n_taken = request->n_prompt - 1; }
    results->pooled = qr_alloc_array_zeroed(hidden, sizeof *results->pooled);
    results->embedding = qr_alloc_array(hidden, sizeof *results->embedding);
    if (results->pooled != NULL && results->embedding != NULL) { return QRUN_OK; }
    return qr_fail_memory(err, "an embedding", hidden * sizeof *results->pooled);
}

qrun_status qr_request_start(const qrun_model *model, qr_kv_cache *cache, const qr_grammar_room *grammars,
                             qr_request *request, qr_error *err) {
    const size_t n_samples = (size_t)request->n_samples;
    request->sequences = qr_alloc_array_zeroed(n_samples, sizeof *request->sequences);
    if (request->sequences == NULL) {
        return qr_fail_memory(err, "a request's samples", n_samples * sizeof *request->sequences);
    }
    qrun_status status = make_results(model, request, err);
    for (int32_t i = 0; status == QRUN_OK && i < request->n_samples; i++) {
        status = make_sequence(model, cache, request, i, err);
    }
    if (status == QRUN_OK) { status = qr_form_start(model, grammars, request, err); }
    if (status != QRUN_OK) {
        free_sequences(request, cache);
        return status;
    }
    request->n_waiting = 1;
    qr_free(request->prompt);
    request->prompt = NULL;
    return QRUN_OK;
}

void qr_request_destroy(qr_request *request, qr_kv_cache *cache) {
    if (request == NULL) { return; }
    qr_adapter_count_requests(request->adapter, -1);
    free_sequences(request, cache);
    for (int32_t i = 0; i < request->n_stops; i++) { qr_free(request->stops[i]); }
    qr_free(request->stops);
    qr_free(request->stop_ids);
    if (request->own_rules != NULL) { qr_generation_rules_free(request->own_rules); }
    qr_free(request->own_rules);
    qr_grammar_destroy(request->grammar);
    qr_free(request->prompt);
    qr_free(request);
}
