#include "runtime/layers/layer_adapters.h"

#include "base/random.h"

qr_dropout_args qr_layer_dropout_args(const qr_layer_dropout *dropout, qr_dtype dtype, const qr_linear_layer *linear,
                                      const void *x, void *dst, int64_t n_rows) {
    const int64_t in = linear->weight.desc.cols;
    return (qr_dropout_args){.x = x,
                             .x_dtype = dtype,
                             .dst = dst,
                             .row_key = dropout->row_key,
                             .key = qr_hash_mix(dropout->key + (uint64_t)linear->slot),
                             .p = dropout->p,
                             .n_rows = n_rows,
                             .dim = in,
                             .x_stride = in,
                             .dst_stride = in};
}

qr_dora_args qr_layer_dora_args(const qr_layer_pass *pass, const qr_linear_layer *linear, const float *src,
                                int64_t src_stride, float *dst, int64_t dst_stride) {
    const qr_layer_adapters *adapters = &pass->adapters;
    return (qr_dora_args){.factors = adapters->table + (int64_t)linear->slot * adapters->n_adapters,
                          .row_adapter = adapters->row_dora,
                          .src = src,
                          .dst = dst,
                          .n_rows = pass->n_tokens,
                          .dim = linear->weight.desc.rows,
                          .src_stride = src_stride,
                          .dst_stride = dst_stride,
                          .n_adapters = adapters->n_adapters};
}

/* ---- LoRA -------------------------------------------------------------------------------------------------------- */

/* y += scale · B A x for rows that row_adapter gives an adapter. */
static qr_lora_args lora_args(const qr_layer_pass *pass, const qr_linear_layer *linear, const int32_t *row_adapter,
                              const void *x, float *y, int64_t y_stride) {
    const qr_layer_adapters *adapters = &pass->adapters;
    const qr_weight_desc *desc = &linear->weight.desc;
    return (qr_lora_args){.factors = adapters->table + (int64_t)linear->slot * adapters->n_adapters,
                          .row_adapter = row_adapter,
                          .x = x,
                          .x_dtype = pass->model->act_dtype,
                          .y = y + linear->out_offset,
                          .n_rows = pass->n_tokens,
                          .in = desc->cols,
                          .out = desc->rows,
                          .x_stride = desc->cols,
                          .y_stride = y_stride,
                          .n_adapters = adapters->n_adapters,
                          .max_rank = adapters->max_rank,
                          .in_pairs = pass->any_order};
}

static qrun_status run_lora(const qr_layer_pass *pass, const qr_linear_layer *linear, const int32_t *row_adapter,
                            const void *x, float *y, int64_t y_stride, qr_error *err) {
    const qr_lora_args args = lora_args(pass, linear, row_adapter, x, y, y_stride);
    return qr_layer_op_lora(pass, &args, err);
}

/* `lora`: of the same y; NULL: none. */
static qrun_status run_linear(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                              int64_t y_stride, bool accumulate, const qr_lora_args *lora, qr_error *err) {
    const qr_linear_args args = {.weight = &linear->weight,
                                 .bias = linear->bias,
                                 .x = x,
                                 .x_dtype = pass->model->act_dtype,
                                 .y = y + linear->out_offset,
                                 .n_rows = pass->n_tokens,
                                 .x_stride = linear->weight.desc.cols,
                                 .y_stride = y_stride,
                                 .accumulate = accumulate,
                                 .any_order = pass->any_order,
                                 .lora = lora};
    return qr_layer_op_linear(pass, &args, err);
}

static qrun_status run_base(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                            int64_t y_stride, bool accumulate, qr_error *err) {
    return run_linear(pass, linear, x, y, y_stride, accumulate, NULL, err);
}

qrun_status qr_layer_adapter_input(const qr_layer_pass *pass, const qr_linear_layer *linear, const void **x,
                                   qr_error *err) {
    if (pass->dropout.p <= 0) { return QRUN_OK; }
    const qr_dropout_args args = qr_layer_dropout_args(&pass->dropout, pass->model->act_dtype, linear, *x,
                                                       pass->dropout.dropped, pass->n_tokens);
    *x = pass->dropout.dropped;
    return qr_layer_op_dropout(pass, &args, err);
}

/* A layer whose output goes to a buffer of its own, without the bias. */
static qr_linear_layer standing_alone(const qr_linear_layer *linear) {
    qr_linear_layer alone = *linear;
    alone.bias = NULL;
    alone.out_offset = 0;
    return alone;
}

/* ---- DoRA -------------------------------------------------------------------------------------------------------- */

qrun_status qr_layer_dora_sum(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, bool update,
                              qr_error *err) {
    const int64_t out = linear->weight.desc.rows;
    const qr_linear_layer alone = standing_alone(linear);
    const qrun_status status = run_base(pass, &alone, x, pass->buffers.dora, out, false, err);
    if (status != QRUN_OK || !update) { return status; }
    return run_lora(pass, &alone, pass->adapters.row_dora, x, pass->buffers.dora, out, err);
}

/* y is the sum of linear and LoRA: its rows of DoRA become bias + ratio · (y − bias), in place. */
static qrun_status scale_in_place(const qr_layer_pass *pass, const qr_linear_layer *linear, float *y, int64_t stride,
                                  qr_error *err) {
    qr_dora_args args = qr_layer_dora_args(pass, linear, y, stride, y, stride);
    args.bias = linear->bias;
    args.minus = 1.0F;
    args.accumulate = true;
    return qr_layer_op_dora(pass, &args, err);
}

/* x [T, D] += the layer's output, or this rank's columns of it. Rows of DoRA are put together in a buffer of their own;
 * the others add up as they do in a pass without any, so that their bits do not depend on it. */
static qrun_status add_with_dora(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                                 int64_t y_stride, qr_error *err) {
    float *own = pass->buffers.dora;
    const int64_t n = pass->n_tokens * y_stride;
    if (qr_row_share_is_part(&linear->share)) { /* what it adds to other ranks' columns, these replace */
        QR_RETURN_IF_ERROR(pass->backend->fill_zero(pass->backend, own, (size_t)n * sizeof *own, err));
    }
    QR_RETURN_IF_ERROR(run_base(pass, linear, x, own, y_stride, false, err));
    QR_RETURN_IF_ERROR(run_lora(pass, linear, pass->adapters.row_dora, x, own, y_stride, err));
    QR_RETURN_IF_ERROR(scale_in_place(pass, linear, own + linear->out_offset, y_stride, err));
    const qr_add_args add = {.x = y, .y = own, .n = n};
    QR_RETURN_IF_ERROR(qr_layer_op_add(pass, &add, err));
    if (pass->adapters.row_plain == NULL) { return QRUN_OK; }
    return run_lora(pass, linear, pass->adapters.row_plain, x, y, y_stride, err);
}

/* As PEFT has DoRA after dropout: y = W x + bias + (ratio − 1) · W x' + ratio · scale · B A x', with x' what dropout
 * left. */
static qrun_status linear_with_dropped_dora(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x,
                                            float *y, int64_t y_stride, bool accumulate, qr_error *err) {
    const qr_linear_layer alone = standing_alone(linear);
    const int64_t out = linear->weight.desc.rows;
    float *own = pass->buffers.dora;
    QR_RETURN_IF_ERROR(run_base(pass, linear, x, y, y_stride, accumulate, err));
    QR_RETURN_IF_ERROR(qr_layer_adapter_input(pass, linear, &x, err));
    QR_RETURN_IF_ERROR(qr_layer_dora_sum(pass, linear, x, false, err));
    qr_dora_args args = qr_layer_dora_args(pass, linear, own, out, y + linear->out_offset, y_stride);
    args.accumulate = true;
    args.minus = 1.0F;
    QR_RETURN_IF_ERROR(qr_layer_op_dora(pass, &args, err));
    const size_t own_bytes = (size_t)(pass->n_tokens * out) * sizeof *own;
    QR_RETURN_IF_ERROR(pass->backend->fill_zero(pass->backend, own, own_bytes, err));
    QR_RETURN_IF_ERROR(run_lora(pass, &alone, pass->adapters.row_dora, x, own, out, err));
    args.minus = 0.0F;
    return qr_layer_op_dora(pass, &args, err);
}

static qrun_status linear_with_dora(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                                    int64_t y_stride, bool accumulate, qr_error *err) {
    if (pass->dropout.p > 0) { return linear_with_dropped_dora(pass, linear, x, y, y_stride, accumulate, err); }
    if (accumulate) { return add_with_dora(pass, linear, x, y, y_stride, err); }
    QR_RETURN_IF_ERROR(run_base(pass, linear, x, y, y_stride, false, err));
    QR_RETURN_IF_ERROR(run_lora(pass, linear, pass->adapters.row_adapter, x, y, y_stride, err));
    return scale_in_place(pass, linear, y + linear->out_offset, y_stride, err);
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static bool is_adapted(const qr_layer_adapters *adapters, const qr_linear_layer *linear) {
    return adapters->table != NULL && (adapters->pair_of_slot == NULL || adapters->pair_of_slot[linear->slot] >= 0);
}

qrun_status qr_layer_linear(const qr_layer_pass *pass, const qr_linear_layer *linear, const void *x, float *y,
                            int64_t y_stride, bool accumulate, qr_error *err) {
    if (is_adapted(&pass->adapters, linear) && pass->adapters.row_dora != NULL) {
        return linear_with_dora(pass, linear, x, y, y_stride, accumulate, err);
    }
    if (!is_adapted(&pass->adapters, linear)) { return run_base(pass, linear, x, y, y_stride, accumulate, err); }
    const void *adapter_x = x;
    QR_RETURN_IF_ERROR(qr_layer_adapter_input(pass, linear, &adapter_x, err));
    const qr_lora_args lora = lora_args(pass, linear, pass->adapters.row_adapter, adapter_x, y, y_stride);
    if (pass->any_order) { return run_linear(pass, linear, x, y, y_stride, accumulate, &lora, err); }
    QR_RETURN_IF_ERROR(run_base(pass, linear, x, y, y_stride, accumulate, err));
    return qr_layer_op_lora(pass, &lora, err);
}
