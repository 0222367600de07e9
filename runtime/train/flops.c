/* What a training step computes: the operations of matrix products and attention, by what the policy keeps. A
 * parameter of a matrix is 2 operations a token forward, 2 where it is computed again, and 2 for the gradient of its
 * input; one that is trained 2 more for its own gradient. */
#include "base/sizes.h"
#include "runtime/train/trainer.h"

/* Parameters of a layer's matrices by where they stand. */
typedef struct layer_sizes {
    double attn_in, attn_out, mlp_in, mlp_out;
} layer_sizes;

/* A matrix and the factors of its LoRA. */
static double size_of(const qrun_trainer *trainer, const qr_linear_layer *linear) {
    const int64_t rows = linear->weight.desc.rows, cols = linear->weight.desc.cols;
    if (rows == 0) { return 0; }
    const bool adapted = qr_lora_pair_of(&trainer->parameters, linear) != NULL;
    return (double)(rows * cols) + (adapted ? (double)(trainer->parameters.lora.rank * (rows + cols)) : 0.0);
}

static layer_sizes sizes_of(const qrun_trainer *trainer, const qr_layer *layer) {
    layer_sizes sizes = {.attn_out = size_of(trainer, &layer->attn_out), .mlp_out = size_of(trainer, &layer->mlp_out)};
    for (int i = 0; i < QR_MAX_ATTN_IN; i++) { sizes.attn_in += size_of(trainer, &layer->attn_in[i]); }
    for (int i = 0; i < QR_MAX_MLP_IN; i++) { sizes.mlp_in += size_of(trainer, &layer->mlp_in[i]); }
    return sizes;
}

/* Products of scores and values with one token of a full row, on average. */
static double attention_flops(const qrun_trainer *trainer, const qr_layer *layer) {
    const qr_model_shape *s = &trainer->model->shape;
    const int64_t n = trainer->settings.seq_tokens, n_seen = layer->window > 0 ? qr_min(n, layer->window) : n;
    const double length = (double)n, window = (double)n_seen;
    const double seen = window - window * (window - 1.0) / (2.0 * length); /* positions, the mean over the row */
    return 4.0 * seen * (double)(s->n_heads * s->head_dim);
}

/* What the backward pass has computed again of a layer, attention included: the last product of all is left out where
 * no norm behind it needs it. */
static double again_flops(const qrun_trainer *trainer, const qr_segment *segment, const qr_kept_layer *kept,
                          const qr_layer *layer, bool is_last) {
    const layer_sizes sizes = sizes_of(trainer, layer);
    const bool post_norms = qr_model_has_post_norms(trainer->model);
    const bool attn = !segment->kept || !kept->attn_kept, mlp = !segment->kept || !kept->mlp_kept;
    const bool attn_out = attn && (!segment->kept || post_norms);
    const bool mlp_out = mlp && ((!segment->kept && !is_last) || post_norms);
    return 2.0 * ((attn ? sizes.attn_in : 0.0) + (attn_out ? sizes.attn_out : 0.0) + (mlp ? sizes.mlp_in : 0.0) +
                  (mlp_out ? sizes.mlp_out : 0.0)) +
           (attn ? attention_flops(trainer, layer) : 0.0);
}

static double layer_flops(const qrun_trainer *trainer, const qr_layer *layer) {
    const layer_sizes sizes = sizes_of(trainer, layer);
    const double matrices = sizes.attn_in + sizes.attn_out + sizes.mlp_in + sizes.mlp_out;
    return 4.0 * matrices + 3.5 * attention_flops(trainer, layer);
}

qrun_status qr_trainer_count_flops(qrun_trainer *trainer, qr_error *err) {
    const qrun_model *model = trainer->model;
    qr_activations activations;
    QR_RETURN_IF_ERROR(qr_activations_lay_out(model, &trainer->policy, 1, NULL, NULL, &activations, err));
    double flops = 4.0 * (double)(model->head.desc.rows * model->head.desc.cols);
    for (int64_t i = 0; i < trainer->parameters.n; i++) {
        const qr_parameter *p = &trainer->parameters.list[i];
        const bool looked_up = p->role == QR_ROLE_EMBEDDING || p->role == QR_ROLE_POSITION_EMBEDDING;
        flops += looked_up ? 0.0 : 2.0 * (double)(p->rows * p->cols);
    }
    for (int64_t s = 0; s < activations.n_segments; s++) {
        const qr_segment *segment = &activations.segments[s];
        for (int64_t l = segment->first; l < segment->first + segment->n; l++) {
            const bool is_last = l + 1 == segment->first + segment->n;
            flops += layer_flops(trainer, &model->layers[l]) +
                     again_flops(trainer, segment, &activations.layers[l], &model->layers[l], is_last);
        }
    }
    qr_activations_free(&activations);
    trainer->flops_per_token = flops;
    return QRUN_OK;
}
