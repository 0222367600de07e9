#include "runtime/generate/request.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/params.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "runtime/model/rope.h"
#include "runtime/model/vocabulary.h"

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static qrun_status check_params(const qrun_request_params *params, qr_error *err) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_request_params, params, err));
    const int n_prompts = (params->prompt != NULL) + (params->token_ids != NULL) + (params->messages_json != NULL);
    if (n_prompts != 1) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a request needs one of `prompt`, `token_ids` and `messages_json`; it has %d", n_prompts);
    }
    const qr_range ranges[] = {
        {"temperature", (double)params->temperature, 0, 100},
        {"top_k", params->top_k, 0, INT32_MAX},
        {"top_p", (double)params->top_p, 0, 1},
        {"min_p", (double)params->min_p, 0, 1},
        {"repetition_penalty", (double)params->repetition_penalty, 0.01, 100},
        {"presence_penalty", (double)params->presence_penalty, -100, 100},
        {"frequency_penalty", (double)params->frequency_penalty, -100, 100},
        {"max_tokens", params->max_tokens, 0, INT32_MAX},
        {"n", params->n, 0, QR_MAX_SAMPLES},
        {"logprobs", params->logprobs, -1, QR_MAX_TOP_LOGPROBS},
        {"n_stop", params->n_stop, 0, QR_MAX_STOPS},
    };
    return qr_check_ranges(ranges, QR_COUNT_OF(ranges), err);
}

/* ---- The prompt -------------------------------------------------------------------------------------------------- */

static qrun_status encode_text(const qrun_model *model, const char *text, size_t n_bytes, bool add_special,
                               bool parse_special, qr_tokens *tokens, qr_error *err) {
    const qr_encode_options options = {add_special, parse_special};
    return qr_tokenizer_encode(model->tokenizer->tokenizer, text, n_bytes, &options, tokens, err);
}

static qrun_status encode_messages(const qrun_model *model, const qrun_request_params *params, qr_tokens *tokens,
                                   qr_error *err) {
    char *text;
    size_t n_bytes;
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
    if (params->token_ids != NULL) {
        for (int64_t i = 0; i < params->n_token_ids; i++) {
            QR_RETURN_IF_ERROR(qr_tokens_push(tokens, params->token_ids[i], err));
        }
    } else if (model->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s has no tokenizer.json; give the prompt as `token_ids`, or add the file", model->folder);
    } else if (params->messages_json != NULL) {
        QR_RETURN_IF_ERROR(encode_messages(model, params, tokens, err));
    } else {
        const size_t n_bytes = params->prompt_bytes > 0 ? params->prompt_bytes : strlen(params->prompt);
        QR_RETURN_IF_ERROR(
            encode_text(model, params->prompt, n_bytes, !params->no_special, params->parse_special, tokens, err));
    }
    return check_ids(model, tokens, err);
}

/* *capacity: the most tokens of prompt and answer together. */
static qrun_status fit(const qrun_model *model, const qr_request_limits *limits, const qrun_request_params *params,
                       int64_t n_prompt, int64_t *capacity, qr_error *err) {
    if (n_prompt >= model->shape.context_tokens) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "the prompt has %lld tokens and this model's context is %lld; shorten it", (long long)n_prompt,
                       (long long)model->shape.context_tokens);
    }
    if (n_prompt >= limits->context_tokens) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "the prompt has %lld tokens and the context is %lld; shorten it, or raise `context_tokens` (up to %lld)",
            (long long)n_prompt, (long long)limits->context_tokens, (long long)model->shape.context_tokens);
    }
    const bool open_ended = params->max_tokens == 0;
    *capacity = open_ended ? limits->context_tokens : qr_min(limits->context_tokens, n_prompt + params->max_tokens);
    if (open_ended && n_prompt < limits->pool_tokens) { *capacity = qr_min(*capacity, limits->pool_tokens); }
    if (*capacity <= limits->pool_tokens) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_MEMORY,
        "prompt and answer need %lld tokens of K/V cache and the pool holds %lld; give more `memory_bytes`%s",
        (long long)*capacity, (long long)limits->pool_tokens,
        limits->kv_is_smallest ? " or a smaller `max_tokens`" : ", a smaller `max_tokens`, or `kv=int8`");
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* Equal requests get equal seeds, whenever they are submitted. */
static uint64_t default_seed(const qr_tokens *tokens) {
    return qr_hash_mix(qr_hash_bytes(QR_HASH_START, tokens->ids, tokens->n * sizeof *tokens->ids));
}

static qrun_status copy_stops(const qrun_request_params *params, qr_request *request, qr_error *err) {
    if (params->n_stop > 0 && params->stop == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_stop=%d`, but `stop` is NULL", params->n_stop);
    }
    request->stops = qr_alloc_array_zeroed((size_t)params->n_stop, sizeof *request->stops);
    if (request->stops == NULL) { return qr_fail_memory(err, "stop texts", (unsigned)params->n_stop * sizeof(char *)); }
    for (int32_t i = 0; i < params->n_stop; i++) {
        if (params->stop[i] == NULL || params->stop[i][0] == '\0') {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "stop text %d is empty", i + 1);
        }
        if (qr_utf8_valid_prefix(params->stop[i], strlen(params->stop[i])) != strlen(params->stop[i])) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "stop text %d is not UTF-8", i + 1);
        }
        request->stops[i] = qr_strdup(params->stop[i]);
        if (request->stops[i] == NULL) { return qr_fail_memory(err, "a stop text", strlen(params->stop[i])); }
        request->n_stops++;
    }
    return QRUN_OK;
}

static qrun_status make_sequence(const qrun_model *model, qr_kv_cache *cache, qr_request *request,
                                 const qr_tokens *prompt, int32_t sample, qr_error *err) {
    qr_sequence *sequence = &request->sequences[sample];
    *sequence = (qr_sequence){.request = request,
                              .sample = sample,
                              .n_tokens = (int64_t)prompt->n,
                              .slot = -1,
                              .state = sample == 0 ? QR_SEQUENCE_WAITING : QR_SEQUENCE_HELD};
    sequence->tokens = qr_alloc_array((size_t)request->capacity, sizeof *sequence->tokens);
    if (sequence->tokens == NULL) {
        return qr_fail_memory(err, "a sequence", (unsigned long long)request->capacity * 4);
    }
    memcpy(sequence->tokens, prompt->ids, prompt->n * sizeof *prompt->ids);
    const qr_kv_key key = {(int64_t)(intptr_t)request->adapter,
                           qr_rope_length_class(&model->config, request->rope_tokens)};
    QR_RETURN_IF_ERROR(qr_kv_sequence_create(cache, request->capacity, key, &sequence->kv, err));
    const qr_stop_list stops = {request->stops, request->n_stops};
    const qr_tokenizer *tokenizer = model->tokenizer != NULL ? model->tokenizer->tokenizer : NULL;
    return qr_answer_start(&sequence->answer, tokenizer, prompt->ids, (int64_t)prompt->n, &stops, err);
}

static void copy_options(const qrun_request_params *params, const qr_tokens *prompt, qr_request *request) {
    request->sampling = (qr_sampling){
        .temperature = params->temperature,
        .top_k = params->top_k,
        .top_p = params->top_p,
        .min_p = params->min_p,
        .repetition_penalty = params->repetition_penalty,
        .presence_penalty = params->presence_penalty,
        .frequency_penalty = params->frequency_penalty,
        .seed = params->has_seed ? params->seed : default_seed(prompt),
    };
    request->ignore_eos = params->ignore_eos;
    request->logprobs = params->logprobs;
    request->adapter = params->adapter;
    request->on_event = params->on_event;
    request->user = params->user;
    request->n_samples = request->n_open = params->n > 1 ? params->n : 1;
}

qrun_status qr_request_create(const qrun_model *model, qr_kv_cache *cache, const qr_request_limits *limits,
                              const qrun_request_params *params, qr_request **request, qr_error *err) {
    *request = NULL;
    qr_tokens prompt = {0};
    qr_request *made = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(check_params(params, err));
    QR_TRY(make_prompt(model, params, &prompt, err));
    made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { QR_TRY(qr_fail_memory(err, "a request", sizeof *made)); }
    copy_options(params, &prompt, made);
    made->n_prompt = (int64_t)prompt.n;
    QR_TRY(fit(model, limits, params, made->n_prompt, &made->capacity, err));
    made->rope_tokens = made->capacity;
    QR_TRY(copy_stops(params, made, err));
    made->sequences = qr_alloc_array_zeroed((size_t)made->n_samples, sizeof *made->sequences);
    if (made->sequences == NULL) { QR_TRY(qr_fail_memory(err, "a request", sizeof *made->sequences)); }
    for (int32_t i = 0; i < made->n_samples; i++) { QR_TRY(make_sequence(model, cache, made, &prompt, i, err)); }
    made->submit_time = qr_now_seconds();
    *request = made;
out:
    qr_tokens_free(&prompt);
    if (status != QRUN_OK) { qr_request_destroy(made, cache); }
    return status;
}

void qr_request_destroy(qr_request *request, qr_kv_cache *cache) {
    if (request == NULL) { return; }
    for (int32_t i = 0; request->sequences != NULL && i < request->n_samples; i++) {
        qr_kv_sequence_destroy(cache, &request->sequences[i].kv);
        qr_answer_free(&request->sequences[i].answer);
        qr_free(request->sequences[i].tokens);
    }
    for (int32_t i = 0; i < request->n_stops; i++) { qr_free(request->stops[i]); }
    qr_free(request->stops);
    qr_free(request->sequences);
    qr_free(request);
}
