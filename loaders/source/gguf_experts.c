/* The part of config.json about a mixture of experts, from the metadata of a GGUF file. */
#include "loaders/source/gguf_reader.h"

/* A router that works otherwise than these families' does: llama.cpp has no such files of them, and others may. */
static qrun_status check_router(const qr_gguf_reader *r, double scale) {
    enum { SIGMOID = 2, N_GATING = 16 };
    const qr_gguf_experts *experts = r->arch->experts;
    const bool takes_sigmoid = experts->router != QR_GGUF_SOFTMAX;
    int64_t gating = experts->router == QR_GGUF_SIGMOID ? SIGMOID : 0, n_groups = 0;
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_gating_func", N_GATING, &gating));
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_group_count", QR_GGUF_MOST_EXPERTS, &n_groups));
    const char *what = scale != 1 && !experts->scales_shares ? "scales the experts' shares"
                       : n_groups > 1                        ? "chooses among groups of experts"
                       : gating == SIGMOID && !takes_sigmoid ? "takes a sigmoid"
                       : gating != SIGMOID && takes_sigmoid  ? "takes no sigmoid"
                                                             : NULL;
    if (what == NULL) { return QRUN_OK; }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: its router %s, unlike that of a %s model here",
                   qr_gguf_path(r->file), what, r->arch->model_type);
}

/* The first layers are dense. LFM2-MoE says besides whether experts are chosen by a bias. */
static qrun_status put_dense_layers(const qr_gguf_reader *r) {
    int64_t n_dense = 0, step = 1;
    QR_RETURN_IF_ERROR(qr_read_int(r, "leading_dense_block_count", QR_GGUF_MOST_LAYERS, &n_dense));
    QR_RETURN_IF_ERROR(qr_read_int(r, "interleave_moe_layer_step", QR_GGUF_MOST_LAYERS, &step));
    if (n_dense >= r->n_layers) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s is %lld of %lld layers, and none is left for experts",
                       qr_gguf_path(r->file), qr_gguf_arch_key(r->arch, "leading_dense_block_count").text,
                       (long long)n_dense, (long long)r->n_layers);
    }
    qr_json_put_int(r->out, r->arch->experts->n_dense, n_dense);
    if (r->arch->experts->step != NULL) { qr_json_put_int(r->out, r->arch->experts->step, step); }
    if (r->arch->has_convs) {
        qr_json_put_bool(r->out, "use_expert_bias", qr_find_in_layer(r, n_dense, "exp_probs_b.bias") != NULL);
    }
    return QRUN_OK;
}

static void put_size(const qr_gguf_reader *r, const char *key, int64_t size) {
    if (key != NULL && size > 0) { qr_json_put_int(r->out, key, size); }
}

qrun_status qr_put_experts(const qr_gguf_reader *r) {
    const qr_gguf_experts *keys = r->arch->experts;
    int64_t n_experts = 0, n_per_token = 0, mlp = 0, shared = 0, n_shared = 0;
    double scale = 1;
    bool adds_up = keys->shares == QR_GGUF_SHARES_OF_ONE;
    QR_RETURN_IF_ERROR(qr_read_double(r, "expert_weights_scale", &scale));
    if (scale == 0) { scale = 1; } /* as llama.cpp takes it */
    QR_RETURN_IF_ERROR(check_router(r, scale));
    QR_RETURN_IF_ERROR(qr_require_int(r, "expert_count", QR_GGUF_MOST_EXPERTS, &n_experts));
    QR_RETURN_IF_ERROR(qr_require_int(r, "expert_used_count", QR_GGUF_MOST_EXPERTS, &n_per_token));
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_feed_forward_length", 1 << 22, &mlp));
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_shared_feed_forward_length", 1 << 22, &shared));
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_shared_count", QR_GGUF_MOST_EXPERTS, &n_shared));
    if (keys->shares == QR_GGUF_SHARES_SAID) {
        const qr_gguf_key key = qr_gguf_arch_key(r->arch, "expert_weights_norm");
        QR_RETURN_IF_ERROR(qr_gguf_get_bool(r->file, key.text, &adds_up, r->err));
    }
    put_size(r, keys->count, n_experts);
    put_size(r, keys->per_token, n_per_token);
    put_size(r, keys->size, mlp);
    put_size(r, keys->shared_size, shared);
    if (keys->shared_count != NULL) { qr_json_put_int(r->out, keys->shared_count, n_shared); }
    qr_json_put_bool(r->out, "norm_topk_prob", adds_up);
    if (keys->scales_shares) { qr_json_put_double(r->out, "routed_scaling_factor", scale); }
    return keys->n_dense != NULL ? put_dense_layers(r) : QRUN_OK;
}
