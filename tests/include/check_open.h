/* Contexts and models as tests open them: NULL after a failed check. */
#ifndef QR_TESTS_CHECK_OPEN_H
#define QR_TESTS_CHECK_OPEN_H

#include <qrun.h>

#include "check.h"

/* device: as in qrun_context_params. */
static inline qrun_context *check_open_context(const char *device, int32_t n_threads) {
    qrun_context_params params = QRUN_CONTEXT_PARAMS_INIT;
    qrun_context *context = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    params.device = device, params.n_threads = n_threads;
    CHECK_MSG(qrun_context_create(&params, &context, &error) == QRUN_OK, "%s", error.message);
    return context;
}

static inline qrun_model *check_open_model(qrun_context *context, const qrun_model_params *params) {
    qrun_model *model = NULL;
    qrun_error error = QRUN_ERROR_INIT;
    CHECK_MSG(qrun_model_open(context, params, &model, &error) == QRUN_OK, "%s: %s", params->path, error.message);
    return model;
}

#endif
