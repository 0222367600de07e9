/* The backward part of residual streams (layer_streams.h): from b.dstreams of what a layer leaves to that of what it
 * reads, with b.dx, the gradient of what the layer computes with, in between. What is cheap is computed again. */
#include "runtime/pass/pass_state.h"

#include "runtime/layers/layer_inputs.h"
#include "runtime/layers/layer_streams.h"
#include "runtime/pass/whole_parameters.h"

/* dst = src, or dst += src; rows of D, so far apart. */
static qrun_status copy_rows(qr_train_pass *pass, const float *src, int64_t src_stride, float *dst, int64_t dst_stride,
                             bool accumulate, qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden;
    const qr_copy_heads_args args = {.src = src,
                                     .dst = dst,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = hidden,
                                     .src_stride = src_stride,
                                     .src_head_stride = hidden,
                                     .dst_stride = dst_stride,
                                     .dst_head_stride = hidden,
                                     .accumulate = accumulate};
    return qr_copy_heads(pass->backend, &args, pass->workspace, err);
}

/* Through the coefficients, whose gradient is b.dcoefs, to dx, which grows; x is what they are made of. */
static qrun_status coefs_backward(qr_train_pass *pass, const qr_layer *layer, const qr_norm *mixes, const float *x,
                                  int64_t x_stride, float *dx, int64_t dx_stride, qr_error *err) {
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const int64_t hidden = pass->model->shape.hidden;
    const qr_stream_coefs_backward_args args = {
        .forward = qr_layer_stream_coefs_args(&blocks, layer, mixes),
        .dcoefs = pass->b.dcoefs,
        .dx = pass->b.dnormed,
        .drouter = qr_parameters_gradient(pass->parameters, layer->streams.router.weight),
        .dmixes = qr_parameters_gradient(pass->parameters, mixes->weight)};
    QR_RETURN_IF_ERROR(qr_stream_coefs_backward(pass->backend, &args, pass->workspace, err));
    return qr_pass_rms_norm_backward(pass, &layer->streams.norm, 1, x, x_stride, pass->b.dnormed, hidden, dx, dx_stride,
                                     pass->n_tokens, true, err);
}

/* b.dnormed, the gradient of what makes the layer's input, from those of the streams that it goes to. */
static qrun_status input_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    for (int64_t i = 1; i < s->n_streams; i++) {
        QR_RETURN_IF_ERROR(copy_rows(pass, pass->b.dstreams + i * s->hidden, qr_stream_columns(s), pass->b.dbranch,
                                     s->hidden, i > 1, err));
    }
    QR_RETURN_IF_ERROR(qr_pass_norm_backward(pass, &layer->post_input_norm, pass->current->buffers.input_branch,
                                             pass->b.dbranch, pass->b.dbranch, pass->n_tokens, false, err));
    return qr_pass_input_gated_backward(pass, layer, pass->b.dbranch, pass->b.dnormed, false, err);
}

qrun_status qr_pass_streams_correct_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_kept_layer *kept = pass->current;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const float *scale = s->scales_stream ? layer->streams.scale.weight : NULL;
    const qr_stream_correct_backward_args args = {
        .active = kept->x_in,
        .coefs = pass->b.stream_coefs,
        .x = kept->x_out,
        .scale = scale,
        .dy = pass->b.dnormed,
        .dstreams = pass->b.dstreams,
        .dx = pass->b.dx,
        .dcoefs = pass->b.dcoefs,
        .dscale = scale != NULL ? qr_parameters_gradient(pass->parameters, scale) : NULL,
        .n_rows = pass->n_tokens,
        .dim = s->hidden,
        .n_streams = s->n_streams};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(input_backward(pass, layer, err));
    QR_RETURN_IF_ERROR(qr_layer_stream_coefs(&blocks, layer, &layer->streams.correct, kept->x_out, s->hidden, err));
    QR_RETURN_IF_ERROR(qr_stream_correct_backward(pass->backend, &args, pass->workspace, err));
    return coefs_backward(pass, layer, &layer->streams.correct, kept->x_out, s->hidden, pass->b.dx, s->hidden, err);
}

qrun_status qr_pass_streams_predict_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const float *streams = pass->current->streams_in;
    const int64_t columns = qr_stream_columns(s);
    const qr_stream_predict_backward_args args = {.streams = streams,
                                                  .coefs = pass->b.stream_coefs,
                                                  .dactive = pass->b.dx,
                                                  .dstreams = pass->b.dstreams,
                                                  .dcoefs = pass->b.dcoefs,
                                                  .n_rows = pass->n_tokens,
                                                  .dim = s->hidden,
                                                  .n_streams = s->n_streams};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_stream_coefs(&blocks, layer, &layer->streams.predict, streams, columns, err));
    QR_RETURN_IF_ERROR(qr_stream_predict_backward(pass->backend, &args, pass->workspace, err));
    return coefs_backward(pass, layer, &layer->streams.predict, streams, columns, pass->b.dstreams, columns, err);
}

/* ---- Of all layers ----------------------------------------------------------------------------------------------- */

static qrun_status level_backward(qr_train_pass *pass, qr_error *err) {
    const qr_stream_level_backward_args args = {.streams = pass->b.stream_work,
                                                .dstreams = pass->b.dstreams,
                                                .n_rows = pass->n_tokens,
                                                .dim = pass->model->shape.hidden,
                                                .n_streams = pass->model->shape.n_streams};
    return qr_stream_level_backward(pass->backend, &args, pass->workspace, err);
}

qrun_status qr_pass_streams_leave_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qrun_model *model = pass->model;
    const qr_model_shape *s = &model->shape;
    const int64_t hidden = s->hidden, columns = qr_stream_columns(s);
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_scale_args mean = {
        .x = pass->b.dx, .n = pass->n_tokens * hidden, .factor = 1.0F / (float)(s->n_streams > 0 ? s->n_streams : 1)};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_scale(pass->backend, &mean, pass->workspace, err));
    for (int64_t i = 0; i < s->n_streams; i++) {
        QR_RETURN_IF_ERROR(copy_rows(pass, pass->b.dx, hidden, pass->b.dstreams + i * hidden, columns, false, err));
    }
    QR_RETURN_IF_ERROR(qr_layer_streams_end(&blocks, err));
    QR_RETURN_IF_ERROR(level_backward(pass, err));
    for (int64_t i = 1; i < s->n_streams; i++) {
        float *dstream = pass->b.dstreams + i * hidden;
        QR_RETURN_IF_ERROR(qr_layer_stream_round(&blocks, i, err));
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &model->stream_ends.out[i - 1], pass->b.stream_x, dstream,
                                                   columns, pass->b.dnormed, false, err));
        QR_RETURN_IF_ERROR(copy_rows(pass, pass->b.dnormed, hidden, dstream, columns, false, err));
    }
    return QRUN_OK;
}

qrun_status qr_pass_streams_enter_backward(qr_train_pass *pass, const qr_layer *none, qr_error *err) {
    (void)none;
    const qrun_model *model = pass->model;
    const qr_model_shape *s = &model->shape;
    const int64_t columns = qr_stream_columns(s);
    const qr_layer_pass blocks = qr_pass_layer(pass);
    const qr_embedding_args tokens = {.table = &model->embedding,
                                      .ids = pass->b.ids,
                                      .dst = pass->b.dbranch,
                                      .n_tokens = pass->n_tokens,
                                      .scale = s->embedding_scale};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_embedding(pass->backend, &tokens, pass->workspace, err));
    QR_RETURN_IF_ERROR(copy_rows(pass, pass->b.dbranch, s->hidden, pass->b.stream_work, columns, false, err));
    QR_RETURN_IF_ERROR(qr_layer_streams_begin(&blocks, pass->b.stream_work, err));
    QR_RETURN_IF_ERROR(level_backward(pass, err));
    QR_RETURN_IF_ERROR(copy_rows(pass, pass->b.dstreams, columns, pass->b.dx, s->hidden, false, err));
    for (int64_t i = 1; i < s->n_streams; i++) {
        QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &model->stream_ends.in[i - 1], pass->b.inputs_x,
                                                   pass->b.dstreams + i * s->hidden, columns, pass->b.dx, true, err));
    }
    return QRUN_OK;
}

/* ---- Beside attention -------------------------------------------------------------------------------------------- */

qrun_status qr_pass_residual_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->current->buffers;
    const int64_t hidden = pass->model->shape.hidden, rank = layer->residual_down.weight.desc.rows;
    const qr_add_args add = {.x = pass->b.dnormed, .y = pass->b.dx, .n = pass->n_tokens * hidden};
    if (!qr_layer_has_residual(layer)) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_pass_norm_backward(pass, &layer->residual_norm, b->residual_branch, pass->b.dx,
                                             pass->b.dbranch, pass->n_tokens, false, err));
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->residual_up, b->residual_x, pass->b.dbranch, hidden,
                                               pass->b.dresidual, false, err));
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &layer->residual_down, b->attn_normed, pass->b.dresidual, rank,
                                               pass->b.dnormed, true, err));
    return qr_add(pass->backend, &add, pass->workspace, err);
}
