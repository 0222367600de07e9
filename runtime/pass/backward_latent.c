/* Multi-head latent attention backward: from the gradient of [q | k | v] to that of the layer's normed input. */
#include "runtime/pass/pass_state.h"

#include "runtime/layers/layer_latent.h"

/* Parts of b.dlatent, one after the other, each of all rows. */
typedef struct work {
    float *q;          /* [N, query_rank]: of the latent of queries, after its norm and then before */
    float *kv;         /* [N, kv_rank]: of that of keys and values, after its norm */
    float *kv_columns; /* [N, kv_rank + rotated_dim]: the same before its norm, and of keys' shared part */
} work;

int64_t qr_pass_latent_work_columns(const qr_model_shape *shape) {
    return qr_latent_columns(shape) + shape->latent.kv_rank;
}

static work work_of(const qr_train_pass *pass) {
    const qr_latent_config *c = &pass->model->shape.latent;
    const int64_t n = pass->n_tokens;
    float *at = pass->b.dlatent;
    return (work){.q = at, .kv = at + n * c->query_rank, .kv_columns = at + n * (c->query_rank + c->kv_rank)};
}

/* [T, n_heads, dim]: dst = src, or dst += src. */
static qrun_status copy_heads(qr_train_pass *pass, const float *src, int64_t src_stride, int64_t src_head_stride,
                              float *dst, int64_t dst_stride, int64_t dst_head_stride, int64_t n_heads, int64_t dim,
                              bool accumulate, qr_error *err) {
    const qr_copy_heads_args args = {.src = src,
                                     .dst = dst,
                                     .dtype = QR_DTYPE_F32,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = n_heads,
                                     .dim = dim,
                                     .src_stride = src_stride,
                                     .src_head_stride = src_head_stride,
                                     .dst_stride = dst_stride,
                                     .dst_head_stride = dst_head_stride,
                                     .accumulate = accumulate};
    return dim > 0 ? qr_copy_heads(pass->backend, &args, pass->workspace, err) : QRUN_OK;
}

/* dx [T, dim], rows dx_stride apart, of a latent before its norm, from dy [T, dim] of the one after it. */
static qrun_status norm_backward(qr_train_pass *pass, const qr_norm *norm, const float *x, const float *dy, float *dx,
                                 int64_t dx_stride, qr_error *err) {
    return qr_pass_rms_norm_backward(pass, norm, 1, x, qr_latent_columns(&pass->model->shape), dy, norm->dim, dx,
                                     dx_stride, pass->n_tokens, false, err);
}

/* To b.dnormed, which it overwrites. */
static qrun_status queries_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *kept = &pass->current->buffers;
    const qr_latent_layers *latent = &layer->latent;
    const int64_t stride = qr_qkv_columns(layer);
    float *dq = pass->b.dqkv, *dlatent = work_of(pass).q;
    QR_RETURN_IF_ERROR(qr_pass_rotate_back(pass, layer->query_rope_kind, dq + qr_latent_rotated_from(s), s->n_heads,
                                           layer->head_dim, stride, err));
    if (s->latent.query_rank == 0) {
        return qr_pass_linear_backward(pass, &layer->attn_in[0], kept->attn_normed, dq, stride, pass->b.dnormed, false,
                                       err);
    }
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &latent->q_up, kept->q_latent, dq, stride, dlatent, false, err));
    QR_RETURN_IF_ERROR(norm_backward(pass, &latent->q_norm, kept->latent, dlatent, dlatent, s->latent.query_rank, err));
    return qr_pass_linear_backward(pass, &latent->q_down, kept->attn_normed, dlatent, s->latent.query_rank,
                                   pass->b.dnormed, false, err);
}

/* The gradients of keys and values, as the latent's matrix made them, to b.kv_up; and of what all keys share, head by
 * head in their order, to the end of kv_columns. */
static qrun_status gather_heads(qr_train_pass *pass, const qr_layer *layer, float *dshared, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_latent_config *c = &s->latent;
    const int64_t stride = qr_qkv_columns(layer), dim = layer->head_dim, of_head = c->plain_dim + c->value_dim;
    const int64_t up = qr_latent_up_columns(s), columns = qr_latent_kv_columns(s);
    const float *dk = pass->b.dqkv + s->n_heads * dim, *dv = dk + s->n_heads * dim;
    float *dup = pass->b.kv_up;
    QR_RETURN_IF_ERROR(copy_heads(pass, dk, stride, dim, dup, up, of_head, s->n_heads, c->plain_dim, false, err));
    QR_RETURN_IF_ERROR(
        copy_heads(pass, dv, stride, dim, dup + c->plain_dim, up, of_head, s->n_heads, c->value_dim, false, err));
    for (int64_t h = 0; h < s->n_heads; h++) {
        QR_RETURN_IF_ERROR(copy_heads(pass, dk + h * dim + c->plain_dim, stride, c->rotated_dim, dshared, columns,
                                      c->rotated_dim, 1, c->rotated_dim, h > 0, err));
    }
    return qr_pass_rotate_back(pass, layer->key_rope_kind, dshared, 1, c->rotated_dim, columns, err);
}

qrun_status qr_pass_latent_heads_backward(qr_train_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const qr_layer_buffers *kept = &pass->current->buffers;
    const qr_latent_layers *latent = &layer->latent;
    const work w = work_of(pass);
    const int64_t columns = qr_latent_kv_columns(s);
    QR_RETURN_IF_ERROR(queries_backward(pass, layer, err));
    QR_RETURN_IF_ERROR(gather_heads(pass, layer, w.kv_columns + s->latent.kv_rank, err));
    QR_RETURN_IF_ERROR(qr_pass_linear_backward(pass, &latent->kv_up, kept->kv_latent, pass->b.kv_up,
                                               qr_latent_up_columns(s), w.kv, false, err));
    QR_RETURN_IF_ERROR(
        norm_backward(pass, &latent->kv_norm, kept->latent + s->latent.query_rank, w.kv, w.kv_columns, columns, err));
    return qr_pass_linear_backward(pass, &latent->kv_down, kept->attn_normed, w.kv_columns, columns, pass->b.dnormed,
                                   true, err);
}
