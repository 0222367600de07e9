#include "session_run.h"

#include "base/random.h"
#include "check_open.h"

void run_on_event(void *user, const qrun_event *event) {
    run_record *record = user;
    if (event->type == QRUN_EVENT_PROMPT) { return; }
    if (record->n_last > 0 || event->sample < 0 || event->sample >= 4 || event->text == NULL) {
        record->malformed = true;
        return;
    }
    run_sample *sample = &record->samples[event->sample];
    record->n_last += event->is_last;
    sample->text_hash = qr_hash_bytes(qr_hash_mix(sample->text_hash + 1), event->text, event->text_bytes);
    if (event->type == QRUN_EVENT_ERROR) {
        record->n_errors++;
        record->malformed |= !event->is_last || event->message == NULL || event->status == QRUN_OK;
    } else if (sample->finish_reason[0] != '\0') {
        record->malformed = true;
    } else if (event->type == QRUN_EVENT_DONE) {
        record->n_done++;
        snprintf(sample->finish_reason, sizeof sample->finish_reason, "%s", event->finish_reason);
        sample->cached_tokens = event->cached_tokens;
        record->malformed |= event->completion_tokens != sample->n_tokens;
    } else if (sample->n_tokens < RUN_MAX_TOKENS) {
        const int32_t t = sample->n_tokens++;
        sample->tokens[t] = event->token_id;
        sample->logprobs[t] = event->has_logprob ? event->logprob : 0;
        sample->n_top = event->n_top;
        for (int32_t i = 0; i < event->n_top && i < RUN_MAX_TOP; i++) { sample->top[t][i] = event->top[i]; }
    }
}

bool run_samples_are_equal(const run_sample *a, const run_sample *b, const char *what) {
    for (int32_t t = 0; t < a->n_tokens && t < b->n_tokens; t++) {
        const bool equal = a->tokens[t] == b->tokens[t] &&
                           memcmp(&a->logprobs[t], &b->logprobs[t], sizeof(float)) == 0 &&
                           memcmp(a->top[t], b->top[t], sizeof a->top[t]) == 0;
        CHECK_MSG(equal, "%s: token %d is %d (%a), alone it was %d (%a)", what, t, a->tokens[t], (double)a->logprobs[t],
                  b->tokens[t], (double)b->logprobs[t]);
        if (!equal) { return false; }
    }
    const bool same_end = a->n_tokens == b->n_tokens && strcmp(a->finish_reason, b->finish_reason) == 0;
    CHECK_MSG(same_end, "%s: %d tokens (%s), alone %d (%s)", what, a->n_tokens, a->finish_reason, b->n_tokens,
              b->finish_reason);
    CHECK_MSG(a->text_hash == b->text_hash, "%s: the texts differ", what);
    return same_end && a->text_hash == b->text_hash;
}

qrun_model *run_open_fixture(qrun_context *context, const char *folder, qrun_quant quant, qrun_dtype dtype) {
    char path[512];
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", folder);
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path, params.quant = quant, params.dtype = dtype;
    return check_open_model(context, &params);
}

qrun_session *run_session(qrun_model *model, const qrun_session_params *params) {
    qrun_session *session = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_session_create(model, params, &session, &error) == QRUN_OK, "%s", error.message);
    return session;
}
