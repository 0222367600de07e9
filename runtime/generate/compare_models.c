/* How much the outputs of two models differ: logits at every token of a text. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/params.h"
#include "base/random.h"
#include "base/sizes.h"
#include "runtime/generate/scored_text.h"
#include "runtime/model/vocabulary.h"
#include "runtime/sampling/penalties.h"

enum { DEFAULT_TOKENS = 256, STEP_TOKENS = 128 };

/* Prose, a list, numbers, code and another language. */
static const char default_text[] =
    "The ferry left the harbour at half past six, and nobody on the quay looked up. Anna counted the lamps along the "
    "pier, as she had done as a child: one, two, three, and then the dark. \"You will write?\" he asked. \"Every "
    "week,\" she said.\n\n"
    "Question: A shop sells pens at 3 for $2.40. How much do 10 pens cost?\n"
    "Answer: One pen costs 2.40 / 3 = 0.80, so 10 pens cost 10 * 0.80 = $8.00.\n\n"
    "def mean(values):\n    return sum(values) / len(values)\n\n"
    "Paris est la capitale de la France. Water boils at 100 degrees Celsius at sea level.\n";

typedef struct compare_state {
    const qrun_compare_params *params;
    int32_t *ids; /* [n] */
    int64_t n, vocab;
    float *logits;  /* [n, vocab]: of the first model */
    bool is_other;  /* the second one is running */
    int64_t n_done; /* tokens of both, for progress */
    qrun_difference *difference;
    double sum_difference, sum_kl;
} compare_state;

/* ---- One row ----------------------------------------------------------------------------------------------------- */

static int64_t best(const float *logits, int64_t n) {
    int64_t index = 0;
    for (int64_t i = 1; i < n; i++) { index = logits[i] > logits[index] ? i : index; }
    return index;
}

static void compare_row(compare_state *state, const float *p, const float *q) {
    qrun_difference *d = state->difference;
    const int64_t vocab = state->vocab;
    const double p_sum = qr_log_sum_exp(p, vocab), q_sum = qr_log_sum_exp(q, vocab);
    const double kl = qr_logits_kl(p, p_sum, q, q_sum, vocab);
    for (int64_t i = 0; i < vocab; i++) {
        const double difference = fabs((double)p[i] - (double)q[i]);
        state->sum_difference += difference;
        d->max_logit_difference = fmax(d->max_logit_difference, difference);
        d->max_abs_logit = fmax(d->max_abs_logit, fabs((double)p[i]));
    }
    state->sum_kl += kl;
    d->max_kl = fmax(d->max_kl, kl);
    d->n_same_greedy += best(p, vocab) == best(q, vocab);
    d->n_tokens++;
}

/* ---- One model --------------------------------------------------------------------------------------------------- */

static qrun_status take_pass(void *arg, qrun_session *session, int64_t first, int64_t n, qr_error *err) {
    compare_state *state = arg;
    const int64_t most = session->sizes.forward.max_logit_rows;
    for (int64_t at = 0; at < n; at += most) {
        const int64_t n_rows = qr_min(most, n - at);
        float *kept = state->logits + (first + at) * state->vocab;
        float *logits = state->is_other ? session->logits : kept;
        QR_RETURN_IF_ERROR(qr_forward_logits(session->forward, at, n_rows, logits, err));
        for (int64_t i = 0; i < n_rows; i++) {
            if (!qr_logits_are_finite(logits + i * state->vocab, state->vocab)) {
                return qr_fail(err, QRUN_ERROR_INPUT, "%s: computes non-finite values; are its weights intact?",
                               session->model->folder);
            }
            if (state->is_other) { compare_row(state, kept + i * state->vocab, logits + i * state->vocab); }
        }
    }
    const qrun_compare_params *params = state->params;
    state->n_done += n;
    return qr_scored_text_progress(params->progress, params->progress_user, state->n_done, 2 * state->n, err);
}

static qrun_status tokenize(compare_state *state, const qrun_model *model, qr_tokens *tokens, qr_error *err) {
    const qrun_compare_params *params = state->params;
    const char *text = params->text != NULL ? params->text : default_text;
    return qr_scored_text_encode(model, text, params->text != NULL ? params->text_bytes : 0, tokens, err);
}

/* The tokens to compare at, from the first model's tokenizer, and memory for its logits. */
static qrun_status make_ids(compare_state *state, const qrun_model *model, qr_error *err) {
    const int64_t asked = state->params->max_tokens > 0 ? state->params->max_tokens : DEFAULT_TOKENS;
    const int64_t most = qr_min(asked, model->shape.context_tokens);
    qr_tokens tokens = {0};
    qrun_status status = QRUN_OK;
    if (model->tokenizer != NULL) { QR_TRY(tokenize(state, model, &tokens, err)); }
    if (model->tokenizer == NULL && state->params->text != NULL) {
        QR_TRY(qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s has no tokenizer.json, so a text cannot be compared on",
                       model->folder));
    }
    state->vocab = model->shape.vocab;
    state->n = model->tokenizer != NULL ? qr_min((int64_t)tokens.n, most) : most;
    if (state->n == 0) {
        QR_TRY(qr_fail(err, QRUN_ERROR_ARGUMENT, "there is nothing to compare on: the text is empty"));
    }
    state->ids = qr_alloc_array((size_t)state->n, sizeof *state->ids);
    state->logits = qr_alloc_array((size_t)(state->n * state->vocab), sizeof *state->logits);
    if (state->ids == NULL || state->logits == NULL) {
        QR_TRY(qr_fail_memory(err, "the first model's logits", (unsigned long long)(state->n * state->vocab) * 4));
    }
    for (int64_t i = 0; i < state->n; i++) {
        state->ids[i] = model->tokenizer != NULL
                            ? tokens.ids[i]
                            : (int32_t)(qr_random_uniform(0, 0, (uint64_t)i) * (double)state->vocab);
        QR_TRY(qr_token_id_check(model, state->ids[i], i, "text", err));
    }
out:
    qr_tokens_free(&tokens);
    return status;
}

static qrun_status run_session(compare_state *state, qrun_model *model, const qrun_adapter *adapter, qr_error *err) {
    qrun_session *session = NULL;
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.max_sequences = 1;
    params.speculate = "off";
    params.max_step_tokens = (int32_t)qr_min(STEP_TOKENS, state->n);
    params.context_tokens = (int32_t)state->n;
    qrun_status status;
    QR_TRY(qrun_session_create(model, &params, &session, err));
    QR_TRY(qr_scored_text_begin(session, err));
    status = qr_scored_text_run(session, adapter, state->ids, state->n, state->n, take_pass, state, err);
    qr_scored_text_end(session);
out:
    qrun_session_destroy(session);
    return status;
}

static qrun_status run_model(compare_state *state, qrun_context *context, const qrun_model_params *params,
                             const char *adapter_path, qr_error *err) {
    qrun_model *model = NULL;
    qrun_adapter *adapter = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(qrun_model_open(context, params, &model, err));
    if (adapter_path != NULL) { QR_TRY(qrun_adapter_open(model, adapter_path, NULL, &adapter, err)); }
    if (!state->is_other) { QR_TRY(make_ids(state, model, err)); }
    if (model->shape.vocab != state->vocab) {
        QR_TRY(qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: has %lld tokens where the other model has %lld", model->folder,
                       (long long)model->shape.vocab, (long long)state->vocab));
    }
    QR_TRY(run_session(state, model, adapter, err));
out:
    qrun_model_destroy(model); /* with its adapter */
    return status;
}

qrun_status qrun_compare_outputs(qrun_context *context, const qrun_compare_params *params, qrun_difference *difference,
                                 qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_compare_params, params, error));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_difference, difference, error));
    if (params->model == NULL || params->other == NULL || params->max_tokens < 0) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "comparing needs two models and a number of tokens, or 0");
    }
    *difference = (qrun_difference)QRUN_DIFFERENCE_INIT;
    compare_state state = {.params = params, .difference = difference};
    qrun_status status = QRUN_OK;
    QR_TRY(run_model(&state, context, params->model, params->adapter, error));
    state.is_other = true;
    QR_TRY(run_model(&state, context, params->other, params->other_adapter, error));
    difference->mean_logit_difference = state.sum_difference / (double)(state.n * state.vocab);
    difference->mean_kl = state.sum_kl / (double)state.n;
out:
    qr_free(state.ids);
    qr_free(state.logits);
    return status;
}
