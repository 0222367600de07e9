#include "runtime/layers/layer_streams.h"

#include <assert.h>
#include <math.h>

#include "base/sizes.h"
#include "runtime/layers/layer_adapters.h"
#include "runtime/layers/layer_inputs.h"

static_assert((int)QR_MAX_STREAMS == (int)QR_MOST_STREAMS, "kernels and configurations agree");

/* ---- Rows of one stream ------------------------------------------------------------------------------------------ */

/* dst = src, or dst += src; rows of D, so far apart. */
static qrun_status copy_rows(const qr_layer_pass *pass, const float *src, int64_t src_stride, float *dst,
                             int64_t dst_stride, bool accumulate, qr_error *err) {
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
    return qr_layer_op_copy_heads(pass, &args, err);
}

static qrun_status level(const qr_layer_pass *pass, float *streams, qr_error *err) {
    const qr_stream_level_args args = {.streams = streams,
                                       .n_rows = pass->n_tokens,
                                       .dim = pass->model->shape.hidden,
                                       .n_streams = pass->model->shape.n_streams};
    return qr_layer_op_stream_level(pass, &args, err);
}

/* ---- Of all layers ----------------------------------------------------------------------------------------------- */

qrun_status qr_layer_streams_begin(const qr_layer_pass *pass, float *streams, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t hidden = model->shape.hidden;
    for (int64_t i = 1; i < model->shape.n_streams; i++) {
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &model->stream_ends.in[i - 1], pass->inputs_x, streams + i * hidden,
                                           qr_stream_columns(&model->shape), false, err));
    }
    return QRUN_OK;
}

qrun_status qr_layer_streams_enter(const qr_layer_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(copy_rows(pass, pass->x, s->hidden, pass->streams, qr_stream_columns(s), false, err));
    QR_RETURN_IF_ERROR(qr_layer_streams_begin(pass, pass->streams, err));
    return level(pass, pass->streams, err);
}

qrun_status qr_layer_stream_round(const qr_layer_pass *pass, int64_t stream, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_round_act_args args = {.src = pass->streams + stream * s->hidden,
                                    .dst = pass->stream_x,
                                    .dst_dtype = pass->model->act_dtype,
                                    .n_rows = pass->n_tokens,
                                    .dim = s->hidden,
                                    .src_stride = qr_stream_columns(s),
                                    .dst_stride = s->hidden};
    return qr_layer_op_round_act(pass, &args, err);
}

qrun_status qr_layer_streams_end(const qr_layer_pass *pass, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t hidden = model->shape.hidden, columns = qr_stream_columns(&model->shape);
    if (pass->stream_work != pass->streams) {
        QR_RETURN_IF_ERROR(copy_rows(pass, pass->streams, columns, pass->stream_work, columns, false, err));
    }
    for (int64_t i = 1; i < model->shape.n_streams; i++) {
        QR_RETURN_IF_ERROR(qr_layer_stream_round(pass, i, err));
        QR_RETURN_IF_ERROR(qr_layer_linear(pass, &model->stream_ends.out[i - 1], pass->stream_x,
                                           pass->stream_work + i * hidden, columns, false, err));
    }
    return QRUN_OK;
}

qrun_status qr_layer_streams_leave(const qr_layer_pass *pass, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_scale_args mean = {
        .x = pass->x, .n = pass->n_tokens * s->hidden, .factor = 1.0F / (float)qr_max(s->n_streams, 1)};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_streams_end(pass, err));
    QR_RETURN_IF_ERROR(level(pass, pass->stream_work, err));
    for (int64_t i = 0; i < s->n_streams; i++) {
        QR_RETURN_IF_ERROR(
            copy_rows(pass, pass->stream_work + i * s->hidden, qr_stream_columns(s), pass->x, s->hidden, i > 0, err));
    }
    return qr_layer_op_scale(pass, &mean, err);
}

/* ---- Around a layer ---------------------------------------------------------------------------------------------- */

qr_stream_coefs_args qr_layer_stream_coefs_args(const qr_layer_pass *pass, const qr_layer *layer,
                                                const qr_norm *mixes) {
    const qr_model_shape *s = &pass->model->shape;
    return (qr_stream_coefs_args){.x = pass->buffers.branch_normed,
                                  .router = layer->streams.router.weight,
                                  .mixes = mixes->weight,
                                  .dst = pass->stream_coefs,
                                  .n_rows = pass->n_tokens,
                                  .dim = s->hidden,
                                  .n_streams = s->n_streams,
                                  .n_coefs = (int32_t)(mixes->dim / s->n_streams)};
}

qrun_status qr_layer_stream_coefs(const qr_layer_pass *pass, const qr_layer *layer, const qr_norm *mixes,
                                  const float *x, int64_t stride, qr_error *err) {
    const qr_stream_coefs_args args = qr_layer_stream_coefs_args(pass, layer, mixes);
    const int64_t hidden = pass->model->shape.hidden;
    QR_RETURN_IF_ERROR(qr_layer_rms_norm(pass, &layer->streams.norm, x, stride, pass->buffers.branch_normed,
                                         QR_DTYPE_F32, hidden, pass->n_tokens, 1, err));
    return qr_layer_op_stream_coefs(pass, &args, err);
}

qrun_status qr_layer_streams_predict(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_stream_predict_args args = {.streams = pass->streams,
                                         .coefs = pass->stream_coefs,
                                         .active = pass->x,
                                         .n_rows = pass->n_tokens,
                                         .dim = s->hidden,
                                         .n_streams = s->n_streams};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(
        qr_layer_stream_coefs(pass, layer, &layer->streams.predict, pass->streams, qr_stream_columns(s), err));
    return qr_layer_op_stream_predict(pass, &args, err);
}

qrun_status qr_layer_streams_correct(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *b = &pass->buffers;
    const qr_stream_correct_args args = {.streams = pass->streams,
                                         .coefs = pass->stream_coefs,
                                         .x = pass->x,
                                         .scale = s->scales_stream ? layer->streams.scale.weight : NULL,
                                         .dst = b->input_x,
                                         .dst_dtype = pass->model->act_dtype,
                                         .n_rows = pass->n_tokens,
                                         .dim = s->hidden,
                                         .n_streams = s->n_streams};
    if (s->n_streams == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_stream_coefs(pass, layer, &layer->streams.correct, pass->x, s->hidden, err));
    QR_RETURN_IF_ERROR(qr_layer_op_stream_correct(pass, &args, err));
    QR_RETURN_IF_ERROR(qr_layer_input_gated(pass, layer, err));
    QR_RETURN_IF_ERROR(
        qr_layer_linear(pass, &layer->input_out, b->input_gated, b->input_branch, s->hidden, false, err));
    if (pass->buffers_only) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_layer_rms_norm(pass, &layer->post_input_norm, b->input_branch, s->hidden, b->branch_normed,
                                         QR_DTYPE_F32, s->hidden, pass->n_tokens, 1, err));
    for (int64_t i = 1; i < s->n_streams; i++) {
        QR_RETURN_IF_ERROR(copy_rows(pass, b->branch_normed, s->hidden, pass->streams + i * s->hidden,
                                     qr_stream_columns(s), true, err));
    }
    return QRUN_OK;
}

/* ---- Beside attention -------------------------------------------------------------------------------------------- */

float qr_layer_residual_factor(void) { return (float)sqrt(0.5); }

qrun_status qr_layer_residual_make(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t rank = layer->residual_down.weight.desc.rows, hidden = pass->model->shape.hidden;
    const qr_round_act_args round = {.src = b->residual,
                                     .dst = b->residual_x,
                                     .dst_dtype = pass->model->act_dtype,
                                     .n_rows = pass->n_tokens,
                                     .dim = rank,
                                     .src_stride = rank,
                                     .dst_stride = rank};
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->residual_down, b->attn_normed, b->residual, rank, false, err));
    QR_RETURN_IF_ERROR(qr_layer_op_round_act(pass, &round, err));
    return qr_layer_linear(pass, &layer->residual_up, b->residual_x, b->residual_branch, hidden, false, err);
}

qrun_status qr_layer_residual_add(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t hidden = pass->model->shape.hidden;
    const qr_add_args add = {.x = pass->x, .y = b->residual_normed, .n = pass->n_tokens * hidden};
    QR_RETURN_IF_ERROR(qr_layer_rms_norm(pass, &layer->attn_norm, pass->x, hidden, b->residual_normed, QR_DTYPE_F32,
                                         hidden, pass->n_tokens, 1, err));
    QR_RETURN_IF_ERROR(qr_layer_op_add(pass, &add, err));
    QR_RETURN_IF_ERROR(qr_layer_rms_norm(pass, &layer->residual_norm, b->residual_branch, hidden, b->residual_normed,
                                         QR_DTYPE_F32, hidden, pass->n_tokens, 1, err));
    return qr_layer_op_add(pass, &add, err);
}
