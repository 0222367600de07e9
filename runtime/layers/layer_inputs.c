#include "runtime/layers/layer_inputs.h"

#include <math.h>

#include "runtime/layers/layer_adapters.h"

float qr_layer_inputs_eps(const qr_model_shape *shape) { return shape->norm_eps * (float)shape->hidden; }

float qr_layer_inputs_factor(void) { return (float)sqrt(0.5); }

/* pass->x in the type of activations. */
static qrun_status round_x(const qr_layer_pass *pass, void *dst, qr_error *err) {
    const int64_t hidden = pass->model->shape.hidden;
    const qr_round_act_args args = {.src = pass->x,
                                    .dst = dst,
                                    .dst_dtype = pass->model->act_dtype,
                                    .n_rows = pass->n_tokens,
                                    .dim = hidden,
                                    .src_stride = hidden,
                                    .dst_stride = hidden};
    return qr_layer_op_round_act(pass, &args, err);
}

qrun_status qr_layer_inputs_project(const qr_layer_pass *pass, const void *x, qr_error *err) {
    const qr_linear_layer *linear = &pass->model->inputs.linear;
    return qr_layer_linear(pass, linear, x, pass->inputs, linear->weight.desc.rows, false, err);
}

qrun_status qr_layer_inputs_make(const qr_layer_pass *pass, const int32_t *ids, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t columns = s->n_layers * s->layer_input;
    const qr_rms_norm_args norm = {.src = pass->inputs,
                                   .weight = pass->model->inputs.norm.weight,
                                   .dst = pass->inputs,
                                   .dst_dtype = QR_DTYPE_F32,
                                   .n_rows = pass->n_tokens,
                                   .n_groups = s->n_layers,
                                   .dim = s->layer_input,
                                   .src_stride = columns,
                                   .dst_stride = columns,
                                   .eps = qr_layer_inputs_eps(s),
                                   .weight_offset = s->norm_offset};
    const qr_embedding_args rows = {.table = &pass->model->inputs.embedding,
                                    .ids = ids,
                                    .sampled = pass->sampled,
                                    .n_sampled = pass->n_sampled,
                                    .dst = pass->inputs,
                                    .n_tokens = pass->n_tokens,
                                    .scale = s->input_scale,
                                    .accumulate = true,
                                    .first_beyond = true};
    const qr_scale_args scale = {.x = pass->inputs, .n = pass->n_tokens * columns, .factor = qr_layer_inputs_factor()};
    if (s->layer_input == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(round_x(pass, pass->inputs_x, err));
    QR_RETURN_IF_ERROR(qr_layer_inputs_project(pass, pass->inputs_x, err));
    QR_RETURN_IF_ERROR(qr_layer_op_rms_norm(pass, &norm, err));
    QR_RETURN_IF_ERROR(qr_layer_op_embedding(pass, &rows, err));
    return qr_layer_op_scale(pass, &scale, err);
}

/* buffers.input's second half: the layer's own of the pass's inputs, beside its gates. */
static qrun_status take_input(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_model_shape *s = &pass->model->shape;
    const int64_t p = s->layer_input, columns = s->n_layers * p;
    const qr_copy_heads_args args = {.src = pass->inputs + (layer - pass->model->layers) * p,
                                     .dst = pass->buffers.input + p,
                                     .n_rows = pass->n_tokens,
                                     .n_heads = 1,
                                     .dim = p,
                                     .src_stride = columns,
                                     .src_head_stride = p,
                                     .dst_stride = 2 * p,
                                     .dst_head_stride = p};
    return qr_layer_op_copy_heads(pass, &args, err);
}

qrun_status qr_layer_input_gated(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    const int64_t p = pass->model->shape.layer_input;
    const qr_gate_args gate = {.fn = pass->model->shape.activation,
                               .g = b->input,
                               .u = b->input + p,
                               .dst = b->input_gated,
                               .dst_dtype = pass->model->act_dtype,
                               .n_rows = pass->n_tokens,
                               .dim = p,
                               .g_stride = 2 * p,
                               .u_stride = 2 * p};
    QR_RETURN_IF_ERROR(qr_layer_linear(pass, &layer->input_gate, b->input_x, b->input, 2 * p, false, err));
    QR_RETURN_IF_ERROR(take_input(pass, layer, err));
    return qr_layer_op_gate(pass, &gate, err);
}

qrun_status qr_layer_add_input(const qr_layer_pass *pass, const qr_layer *layer, qr_error *err) {
    const qr_layer_buffers *b = &pass->buffers;
    QR_RETURN_IF_ERROR(round_x(pass, b->input_x, err));
    QR_RETURN_IF_ERROR(qr_layer_input_gated(pass, layer, err));
    return qr_layer_add_linear(pass, &layer->input_out, b->input_gated, &layer->post_input_norm, b->input_branch,
                               layer->mlp_scale, err);
}
