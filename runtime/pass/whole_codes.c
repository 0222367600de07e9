#include "runtime/pass/whole_codes.h"

#include <string.h>

#include "base/half.h"
#include "base/sizes.h"
#include "runtime/model/layer_stream.h"

size_t qr_whole_code_bytes(const qr_parameters *p, const qr_whole_tensor *tensor) {
    return tensor->matrix == NULL ? sizeof(float) : qr_dtype_bytes(p->model->act_dtype);
}

void qr_whole_encode(const qr_parameters *p, const qr_whole_tensor *tensor, const float *values, int64_t n,
                     unsigned char *codes) {
    const bool is_bf16 = p->model->act_dtype == QR_DTYPE_BF16;
    if (qr_whole_code_bytes(p, tensor) == sizeof(float)) {
        memcpy(codes, values, (size_t)n * sizeof *values);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint16_t code = is_bf16 ? qr_f32_to_bf16(values[i]) : qr_f32_to_f16(values[i]);
        memcpy(codes + (size_t)i * sizeof code, &code, sizeof code);
    }
}

int64_t qr_whole_code_rows(const qr_parameters *p, const qr_whole_tensor *tensor, size_t n_bytes) {
    const qr_parameter *parameter = &p->list[tensor->parameter];
    const int64_t n = (int64_t)(n_bytes / ((size_t)parameter->cols * qr_whole_code_bytes(p, tensor)));
    return qr_min(parameter->rows, qr_max(n / QR_WEIGHT_ROW_GROUP, 1) * QR_WEIGHT_ROW_GROUP);
}

qrun_status qr_whole_write_codes(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t row, int64_t n,
                                 const unsigned char *codes, qr_error *err) {
    qr_backend *backend = p->backend;
    const qr_parameter *parameter = &p->list[tensor->parameter];
    if (tensor->matrix != NULL) { return backend->weight_put_rows(backend, tensor->matrix, row, n, codes, err); }
    return backend->copy_in(backend, (void *)(uintptr_t)*tensor->vector, codes, (size_t)parameter->cols * sizeof(float),
                            err);
}

/* ---- From host memory -------------------------------------------------------------------------------------------- */

enum { TASK_FLOATS = 1 << 14 };

typedef struct encode_task {
    const qr_parameters *parameters;
    const qr_whole_tensor *tensor;
    const float *values;
    int64_t n;
    unsigned char *codes;
} encode_task;

static void encode_part(void *arg, int64_t index, int worker) {
    (void)worker;
    const encode_task *t = arg;
    const int64_t first = index * TASK_FLOATS;
    qr_whole_encode(t->parameters, t->tensor, t->values + first, qr_min(TASK_FLOATS, t->n - first),
                    t->codes + (size_t)first * qr_whole_code_bytes(t->parameters, t->tensor));
}

/* Rows [row, row + n). Of a plan there is nothing to encode. */
static qrun_status write_rows(const qr_parameters *p, const qr_whole_tensor *tensor, int64_t row, int64_t n, bool plans,
                              qr_error *err) {
    const qr_parameter *parameter = &p->list[tensor->parameter];
    const float *values = p->values + parameter->offset + row * parameter->cols;
    encode_task task = {p, tensor, values, n * parameter->cols, p->codes};
    if (qr_whole_code_bytes(p, tensor) == sizeof(float)) {
        return qr_whole_write_codes(p, tensor, row, n, (const unsigned char *)values, err);
    }
    if (!plans) { qr_threads_run(p->model->context->threads, qr_ceil_div(task.n, TASK_FLOATS), encode_part, &task); }
    return qr_whole_write_codes(p, tensor, row, n, p->codes, err);
}

static qrun_status write_tensor(const qr_parameters *p, const qr_whole_tensor *tensor, qr_error *err) {
    qrun_model *model = p->model;
    const qr_parameter *parameter = &p->list[tensor->parameter];
    const bool as_they_are = qr_whole_code_bytes(p, tensor) == sizeof(float);
    const int64_t most = as_they_are ? parameter->rows : qr_whole_code_rows(p, tensor, qr_parameters_codes_bytes(p));
    const bool plans = p->backend != model->context->backend;
    for (int64_t row = 0; row < parameter->rows; row += most) {
        QR_RETURN_IF_ERROR(write_rows(p, tensor, row, qr_min(most, parameter->rows - row), plans, err));
    }
    const bool staged = model->stream != NULL && tensor->matrix != NULL && qr_parameter_layer(parameter) >= 0;
    return staged && !plans ? qr_layer_stream_keep(model, parameter->layer, tensor->matrix, err) : QRUN_OK;
}

qrun_status qr_whole_write_layer(const qr_parameters *p, int64_t l, qr_error *err) {
    if (l >= 0) { QR_RETURN_IF_ERROR(qr_layer_stream_rewrite(p->model, p->backend, l, err)); }
    for (int64_t i = 0; i < p->whole.n; i++) {
        const qr_whole_tensor *tensor = &p->whole.tensors[i];
        if (qr_parameter_layer(&p->list[tensor->parameter]) != l) { continue; }
        QR_RETURN_IF_ERROR(write_tensor(p, tensor, err));
    }
    return QRUN_OK;
}
