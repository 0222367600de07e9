#include "runtime/train/adapter_backward.h"

static bool rounds_dy(const qr_adapter_backward *b) { return b->pass.model->act_dtype != QR_DTYPE_F32; }

/* b->dy [T, out] = dy, contiguous, in the type of activations, unless that is F32. */
static qrun_status round_dy(const qr_adapter_backward *b, const float *dy, int64_t dy_stride, int64_t out,
                            qr_error *err) {
    if (!rounds_dy(b)) { return QRUN_OK; }
    const qr_round_act_args args = {.src = dy,
                                    .dst = b->dy,
                                    .dst_dtype = b->pass.model->act_dtype,
                                    .n_rows = b->pass.n_tokens,
                                    .dim = out,
                                    .src_stride = dy_stride};
    return qr_round_act(b->pass.backend, &args, b->pass.workspace, err);
}

qrun_status qr_linear_dx(const qr_adapter_backward *b, const qr_linear_layer *linear, const float *dy,
                         int64_t dy_stride, float *dx, bool accumulate, qr_error *err) {
    const qr_weight_desc *desc = &linear->weight.desc;
    const qr_linear_backward_args args = {.weight = &linear->weight,
                                          .dy = rounds_dy(b) ? b->dy : dy,
                                          .dy_dtype = b->pass.model->act_dtype,
                                          .dx = dx,
                                          .n_rows = b->pass.n_tokens,
                                          .dy_stride = rounds_dy(b) ? desc->rows : dy_stride,
                                          .dx_stride = desc->cols,
                                          .accumulate = accumulate,
                                          .any_order = true};
    QR_RETURN_IF_ERROR(round_dy(b, dy, dy_stride, desc->rows, err));
    return qr_linear_backward(b->pass.backend, &args, b->pass.workspace, err);
}

/* b->dy is dy rounded, as qr_linear_dx left it. */
static qrun_status lora_dx(const qr_adapter_backward *b, const qr_lora_pair *pair, const void *x, const float *dy,
                           int64_t dy_stride, float *dx, qr_error *err) {
    const qr_parameters *p = b->parameters;
    const qr_lora_backward_args args = {.a = p->values + pair->a_offset,
                                        .b = p->values + pair->b_offset,
                                        .da = p->gradients + pair->a_offset,
                                        .db = p->gradients + pair->b_offset,
                                        .x = x,
                                        .x_dtype = b->pass.model->act_dtype,
                                        .dy = dy,
                                        .dy_rounded = rounds_dy(b) ? b->dy : NULL,
                                        .dx = dx,
                                        .n_rows = b->pass.n_tokens,
                                        .in = pair->in,
                                        .out = pair->out,
                                        .x_stride = pair->in,
                                        .dy_stride = dy_stride,
                                        .dx_stride = pair->in,
                                        .rank = p->lora.rank,
                                        .scale = p->lora.scale,
                                        .in_pairs = true};
    return qr_lora_backward(b->pass.backend, &args, b->pass.workspace, err);
}

/* buffers.dora [T, out] = (ratio − less) · dy. */
static qrun_status scale_dy(const qr_adapter_backward *b, const qr_linear_layer *linear, const float *dy,
                            int64_t dy_stride, float less, qr_error *err) {
    qr_dora_args args =
        qr_layer_dora_args(&b->pass, linear, dy, dy_stride, b->pass.buffers.dora, linear->weight.desc.rows);
    args.less = less;
    return qr_dora(b->pass.backend, &args, b->pass.workspace, err);
}

/* Gradient of the magnitudes, for which what they scale is computed again from the adapter's input x; then
 * buffers.dora = ratio · dy, the gradient of that. */
static qrun_status dora_dy(const qr_adapter_backward *b, const qr_linear_layer *linear, const qr_lora_pair *pair,
                           const void *x, const float *dy, int64_t dy_stride, qr_error *err) {
    const qr_parameters *p = b->parameters;
    QR_RETURN_IF_ERROR(qr_layer_dora_sum(&b->pass, linear, x, true, err));
    const qr_dora_backward_args args = {.dy = dy,
                                        .z = b->pass.buffers.dora,
                                        .norm = p->lora.norms + pair->output_offset,
                                        .dmagnitude = p->gradients + pair->magnitude_offset,
                                        .n_rows = b->pass.n_tokens,
                                        .dim = pair->out,
                                        .dy_stride = dy_stride,
                                        .z_stride = pair->out};
    QR_RETURN_IF_ERROR(qr_dora_backward(b->pass.backend, &args, b->pass.workspace, err));
    return scale_dy(b, linear, dy, dy_stride, 0.0F, err);
}

/* dx += the gradient of the adapter's input, through dropout. With DoRA that input goes through the matrix too.
 * `scaled` is dy, or ratio · dy. */
static qrun_status dropped_dx(const qr_adapter_backward *b, const qr_linear_layer *linear, const qr_lora_pair *pair,
                              const void *x, const float *dy, int64_t dy_stride, const float *scaled,
                              int64_t scaled_stride, float *dx, qr_error *err) {
    qr_backend *backend = b->pass.backend;
    const int64_t n_elements = b->pass.n_tokens * pair->in;
    QR_RETURN_IF_ERROR(backend->fill_zero(backend, b->ddropped, (size_t)n_elements * sizeof(float), err));
    if (b->parameters->lora.dora) { QR_RETURN_IF_ERROR(round_dy(b, scaled, scaled_stride, pair->out, err)); }
    QR_RETURN_IF_ERROR(lora_dx(b, pair, x, scaled, scaled_stride, b->ddropped, err));
    if (b->parameters->lora.dora) {
        QR_RETURN_IF_ERROR(scale_dy(b, linear, dy, dy_stride, 1.0F, err));
        QR_RETURN_IF_ERROR(qr_linear_dx(b, linear, b->pass.buffers.dora, pair->out, b->ddropped, true, err));
    }
    const qr_dropout_args back =
        qr_layer_dropout_args(&b->pass.dropout, QR_DTYPE_F32, linear, b->ddropped, b->ddropped, b->pass.n_tokens);
    QR_RETURN_IF_ERROR(qr_dropout(backend, &back, b->pass.workspace, err));
    const qr_add_args add = {.x = dx, .y = b->ddropped, .n = n_elements};
    return qr_add(backend, &add, b->pass.workspace, err);
}

qrun_status qr_adapter_dx(const qr_adapter_backward *b, const qr_linear_layer *linear, const qr_lora_pair *pair,
                          const void *x, const float *dy, int64_t dy_stride, float *dx, bool accumulate,
                          qr_error *err) {
    const bool dora = b->parameters->lora.dora, dropped = b->pass.dropout.p > 0;
    const float *scaled = dora ? b->pass.buffers.dora : dy;
    const int64_t scaled_stride = dora ? pair->out : dy_stride;
    QR_RETURN_IF_ERROR(qr_layer_adapter_input(&b->pass, linear, &x, err));
    if (dora) { QR_RETURN_IF_ERROR(dora_dy(b, linear, pair, x, dy, dy_stride, err)); }
    if (dropped) {
        QR_RETURN_IF_ERROR(qr_linear_dx(b, linear, dy, dy_stride, dx, accumulate, err));
        return dropped_dx(b, linear, pair, x, dy, dy_stride, scaled, scaled_stride, dx, err);
    }
    QR_RETURN_IF_ERROR(qr_linear_dx(b, linear, scaled, scaled_stride, dx, accumulate, err));
    return lora_dx(b, pair, x, scaled, scaled_stride, dx, err);
}
