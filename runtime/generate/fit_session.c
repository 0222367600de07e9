/* Planning backwards: the largest session that memory allows, by plans of it. */
#include "base/params.h"
#include "base/sizes.h"
#include "runtime/engine/plan.h"
#include "runtime/generate/session_sizes.h"
#include "runtime/model/model_open.h"

typedef struct session_search {
    qrun_context *context;
    const qrun_model_params *model_params;
    qrun_session_params params;
    qrun_fit what;
} session_search;

static qrun_status plan(const session_search *search, qrun_plan_info *info, qr_error *err) {
    qrun_plan_entry *entries;
    int32_t n_entries;
    const qrun_status status =
        qrun_plan_session(search->context, search->model_params, &search->params, &entries, &n_entries, info, err);
    qrun_free(entries);
    return status;
}

static qrun_status session_fits(void *arg, int64_t n, bool *fits, qr_error *err) {
    session_search *search = arg;
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    const bool batch = search->what == QRUN_FIT_BATCH;
    *(batch ? &search->params.max_sequences : &search->params.context_tokens) = (int32_t)n;
    const qrun_status status = plan(search, &info, NULL);
    *fits = status == QRUN_OK && (!batch || info.full_sequences >= n);
    return status == QRUN_OK || status == QRUN_ERROR_MEMORY ? QRUN_OK : plan(search, &info, err);
}

/* The model's context, and what a session may take where no budget is given: it is then the same for every plan. */
static qrun_status settle(session_search *search, int64_t *context_tokens, qr_error *err) {
    qrun_plan_info info = QRUN_PLAN_INFO_INIT;
    QR_RETURN_IF_ERROR(qr_model_read_context(search->context, search->model_params, context_tokens, err));
    if (search->params.memory_bytes > 0) { return QRUN_OK; }
    const qrun_status status = plan(search, &info, err);
    search->params.memory_bytes = info.budget_bytes;
    return info.budget_bytes > 0 ? QRUN_OK : status;
}

qrun_status qrun_fit_session(qrun_context *context, const qrun_model_params *model_params,
                             const qrun_session_params *session_params, qrun_fit what, qrun_fit_result *result,
                             qrun_error *error) {
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_fit_result, result, error));
    QR_RETURN_IF_ERROR(QR_CHECK_STRUCT(qrun_session_params, session_params, error));
    if (what != QRUN_FIT_CONTEXT && what != QRUN_FIT_BATCH) {
        return qr_fail(error, QRUN_ERROR_ARGUMENT, "a session has no rank: its context or its batch can be fitted");
    }
    session_search search = {context, model_params, *session_params, what};
    QR_RETURN_IF_ERROR(settle(&search, &result->limit, error));
    if (what == QRUN_FIT_BATCH) { result->limit = QR_MAX_SESSION_SEQUENCES; }
    return qr_plan_largest(1, result->limit, session_fits, &search, &result->largest, error);
}
