/* config.json and generation_config.json, from the metadata of a GGUF file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/json_put.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/gguf_names.h"

enum { MAX_LAYERS = 1 << 12, MAX_HEADS = 1 << 12, MAX_FACTORS = 1 << 12 };
static const int64_t MOST = INT32_MAX;

/* What all writers here need. */
typedef struct reader {
    const qr_gguf *file;
    const qr_gguf_arch *arch;
    qr_buffer *out;
    qr_error *err;
    int64_t n_layers, hidden, n_heads, head_dim, window; /* window 0: none */
    double theta;
} reader;

static qrun_status get_int(const reader *r, const char *key, int64_t high, int64_t *value) {
    return qr_gguf_get_arch_int(r->file, r->arch, key, 0, high, value, r->err);
}

static qrun_status get_double(const reader *r, const char *key, double *value) {
    return qr_gguf_get_arch_double(r->file, r->arch, key, 0, 1e15, value, r->err);
}

static bool has(const reader *r, const char *key) { return qr_gguf_has(r->file, qr_gguf_arch_key(r->arch, key).text); }

static qrun_status require_int(const reader *r, const char *key, int64_t high, int64_t *value) {
    const qr_gguf_key full = qr_gguf_arch_key(r->arch, key);
    if (!qr_gguf_has(r->file, full.text)) { return qr_gguf_fail_missing(r->file, full.text, r->err); }
    if (qr_gguf_is_list(r->file, full.text)) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: %s is a list: layers of different sizes are not supported",
                       qr_gguf_path(r->file), full.text);
    }
    return qr_gguf_get_int(r->file, full.text, 1, high, value, r->err);
}

static bool is_arch(const reader *r, const char *name) { return strcmp(r->arch->name, name) == 0; }

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static qrun_status put_vocab(const reader *r) {
    const qr_gguf_tensor *table = qr_gguf_find_tensor(r->file, "token_embd.weight");
    if (table == NULL || table->n_dims != 2) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: has no matrix token_embd.weight", qr_gguf_path(r->file));
    }
    qr_json_put_int(r->out, "vocab_size", table->dims[0]);
    qr_json_put_text(r->out, "torch_dtype",
                     table->dtype == QR_DTYPE_F32    ? "float32"
                     : table->dtype == QR_DTYPE_BF16 ? "bfloat16"
                                                     : "float16");
    qr_json_put_bool(r->out, "tie_word_embeddings", qr_gguf_find_tensor(r->file, "output.weight") == NULL);
    return QRUN_OK;
}

/* That of dense layers, or of experts where a family has no other. */
static qrun_status read_mlp(const reader *r, int64_t *mlp) {
    const char *key = "feed_forward_length";
    if (r->arch->has_experts && (is_arch(r, "gpt-oss") || !has(r, key))) { key = "expert_feed_forward_length"; }
    return require_int(r, key, 1 << 22, mlp);
}

/* A router that works otherwise than these families' does: llama.cpp has no such files of them, and others may. */
static qrun_status check_router(const reader *r) {
    enum { SIGMOID = 2, N_GATING = 16 };
    const bool takes_sigmoid = r->arch->has_convs;
    double scale = 1;
    int64_t gating = 0, n_groups = 0;
    QR_RETURN_IF_ERROR(get_double(r, "expert_weights_scale", &scale));
    QR_RETURN_IF_ERROR(get_int(r, "expert_gating_func", N_GATING, &gating));
    QR_RETURN_IF_ERROR(get_int(r, "expert_group_count", QR_GGUF_MOST_EXPERTS, &n_groups));
    const char *what = scale != 0 && scale != 1              ? "scales the experts' shares"
                       : n_groups > 1                        ? "chooses among groups of experts"
                       : gating == SIGMOID && !takes_sigmoid ? "takes a sigmoid"
                       : gating != SIGMOID && takes_sigmoid  ? "takes no sigmoid"
                                                             : NULL;
    if (what == NULL) { return QRUN_OK; }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: its router %s, unlike that of a %s model here",
                   qr_gguf_path(r->file), what, r->arch->model_type);
}

/* LFM2-MoE: the first layers are dense, and experts are chosen by a bias besides. */
static qrun_status put_dense_layers(const reader *r) {
    char bias[QR_GGUF_NAME_BYTES];
    int64_t n_dense = 0;
    QR_RETURN_IF_ERROR(get_int(r, "leading_dense_block_count", MAX_LAYERS, &n_dense));
    if (n_dense >= r->n_layers) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s is %lld of %lld layers, and none is left for experts",
                       qr_gguf_path(r->file), qr_gguf_arch_key(r->arch, "leading_dense_block_count").text,
                       (long long)n_dense, (long long)r->n_layers);
    }
    (void)snprintf(bias, sizeof bias, "blk.%lld.exp_probs_b.bias", (long long)n_dense);
    qr_json_put_int(r->out, "num_dense_layers", n_dense);
    qr_json_put_bool(r->out, "use_expert_bias", qr_gguf_find_tensor(r->file, bias) != NULL);
    return QRUN_OK;
}

/* Whether the shares of a token's experts add up to 1 is part of the architecture there. */
static qrun_status put_experts(const reader *r) {
    int64_t n_experts = 0, n_per_token = 0, mlp = 0, shared = 0;
    QR_RETURN_IF_ERROR(check_router(r));
    QR_RETURN_IF_ERROR(require_int(r, "expert_count", QR_GGUF_MOST_EXPERTS, &n_experts));
    QR_RETURN_IF_ERROR(require_int(r, "expert_used_count", QR_GGUF_MOST_EXPERTS, &n_per_token));
    QR_RETURN_IF_ERROR(get_int(r, "expert_feed_forward_length", 1 << 22, &mlp));
    QR_RETURN_IF_ERROR(get_int(r, "expert_shared_feed_forward_length", 1 << 22, &shared));
    qr_json_put_int(r->out, "num_experts", n_experts);
    qr_json_put_int(r->out, "num_experts_per_tok", n_per_token);
    qr_json_put_bool(r->out, "norm_topk_prob", is_arch(r, "qwen3moe") || r->arch->has_delta || r->arch->has_convs);
    if (mlp > 0) { qr_json_put_int(r->out, "moe_intermediate_size", mlp); }
    if ((is_arch(r, "qwen2moe") || r->arch->has_delta) && shared > 0) {
        qr_json_put_int(r->out, "shared_expert_intermediate_size", shared);
    }
    return r->arch->has_convs ? put_dense_layers(r) : QRUN_OK;
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

/* Of LFM2: heads of keys for each layer, none where it is a convolution, and else as many everywhere. */
static qrun_status put_layer_kinds(const reader *r, const char *key, int64_t *n_kv_heads) {
    int64_t *list = NULL;
    size_t n = 0;
    qrun_status status = QRUN_OK;
    *n_kv_heads = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_ints(r->file, key, &list, &n, r->err));
    if (n != (size_t)r->n_layers) {
        QR_TRY(qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s has %zu items for %lld layers", qr_gguf_path(r->file), key, n,
                       (long long)r->n_layers));
    }
    qr_json_put_begin(r->out, "layer_types", '[');
    for (size_t l = 0; l < n; l++) {
        qr_json_put_text(r->out, NULL, list[l] == 0 ? "conv" : "full_attention");
        if (*n_kv_heads == 0) { *n_kv_heads = list[l]; }
        if (list[l] >= 0 && list[l] <= MAX_HEADS && (list[l] == 0 || list[l] == *n_kv_heads)) { continue; }
        QR_TRY(qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %s has %lld for layer %zu; one number of heads, up to %d, and 0 are supported",
                       qr_gguf_path(r->file), key, (long long)list[l], l, MAX_HEADS));
    }
    qr_json_put_end(r->out, ']');
    if (*n_kv_heads == 0) {
        QR_TRY(qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: %s is 0 for all layers, and a model needs one that attends",
                       qr_gguf_path(r->file), key));
    }
out:
    qr_free(list);
    return status;
}

static qrun_status put_kv_heads(const reader *r) {
    const qr_gguf_key key = qr_gguf_arch_key(r->arch, "attention.head_count_kv");
    int64_t n_kv_heads = r->n_heads;
    if (r->arch->has_convs && qr_gguf_is_list(r->file, key.text)) {
        QR_RETURN_IF_ERROR(put_layer_kinds(r, key.text, &n_kv_heads));
    } else if (qr_gguf_has(r->file, key.text)) {
        QR_RETURN_IF_ERROR(require_int(r, "attention.head_count_kv", MAX_HEADS, &n_kv_heads));
    }
    qr_json_put_int(r->out, "num_key_value_heads", n_kv_heads);
    return QRUN_OK;
}

/* ---- All sizes --------------------------------------------------------------------------------------------------- */

static qrun_status put_sizes(reader *r) {
    const bool gpt2 = r->arch->is_gpt2;
    int64_t mlp = 0, positions = 0;
    QR_RETURN_IF_ERROR(require_int(r, "block_count", MAX_LAYERS, &r->n_layers));
    if (r->arch->has_delta) { QR_RETURN_IF_ERROR(qr_gguf_count_layers(r->file, r->arch, &r->n_layers, r->err)); }
    QR_RETURN_IF_ERROR(require_int(r, "embedding_length", 1 << 20, &r->hidden));
    QR_RETURN_IF_ERROR(read_mlp(r, &mlp));
    QR_RETURN_IF_ERROR(require_int(r, "attention.head_count", MAX_HEADS, &r->n_heads));
    QR_RETURN_IF_ERROR(require_int(r, "context_length", MOST, &positions));
    qr_json_put_int(r->out, gpt2 ? "n_layer" : "num_hidden_layers", r->n_layers);
    qr_json_put_int(r->out, gpt2 ? "n_embd" : "hidden_size", r->hidden);
    qr_json_put_int(r->out, gpt2 ? "n_inner" : "intermediate_size", mlp);
    qr_json_put_int(r->out, gpt2 ? "n_head" : "num_attention_heads", r->n_heads);
    qr_json_put_int(r->out, gpt2 ? "n_positions" : "max_position_embeddings", positions);
    if (gpt2) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(put_kv_heads(r));
    r->head_dim = r->hidden / r->n_heads;
    int64_t value_dim = 0;
    QR_RETURN_IF_ERROR(get_int(r, "attention.key_length", 1 << 12, &r->head_dim));
    value_dim = r->head_dim;
    QR_RETURN_IF_ERROR(get_int(r, "attention.value_length", 1 << 12, &value_dim));
    if (value_dim != r->head_dim || r->head_dim == 0) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: heads of %lld for keys and %lld for values are not supported", qr_gguf_path(r->file),
                       (long long)r->head_dim, (long long)value_dim);
    }
    qr_json_put_int(r->out, "head_dim", r->head_dim);
    return QRUN_OK;
}

static qrun_status put_norms_and_biases(const reader *r) {
    const char *key = r->arch->is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    double eps = 0;
    if (!has(r, key)) { return qr_gguf_fail_missing(r->file, qr_gguf_arch_key(r->arch, key).text, r->err); }
    QR_RETURN_IF_ERROR(get_double(r, key, &eps));
    const char *name = r->arch->is_gpt2 ? "layer_norm_epsilon" : r->arch->has_convs ? "norm_eps" : "rms_norm_eps";
    qr_json_put_double(r->out, name, eps);
    if (r->arch->is_gpt2) { return QRUN_OK; }
    qr_json_put_bool(r->out, "attention_bias", qr_gguf_find_tensor(r->file, "blk.0.attn_output.bias") != NULL);
    qr_json_put_bool(r->out, "mlp_bias", qr_gguf_find_tensor(r->file, "blk.0.ffn_down.bias") != NULL);
    return QRUN_OK;
}

/* Experts in MXFP4, all of them, as a folder of gpt-oss says it: they are kept. */
static void put_quantization(const reader *r) {
    bool all = r->arch->has_experts;
    for (size_t i = 0; i < qr_gguf_tensor_count(r->file) && all; i++) {
        const qr_gguf_tensor *tensor = qr_gguf_get_tensor(r->file, i);
        all = tensor->n_dims != 3 || tensor->dtype == QR_DTYPE_MXFP4;
    }
    if (!all) { return; }
    qr_json_put_begin(r->out, "quantization_config", '{');
    qr_json_put_text(r->out, "quant_method", "mxfp4");
    qr_json_put_end(r->out, '}');
}

/* ---- Rotary positions -------------------------------------------------------------------------------------------- */

/* The elements of a small F32 vector. */
static qrun_status put_factors(const reader *r, const char *key, const qr_gguf_tensor *tensor) {
    if (tensor->dtype != QR_DTYPE_F32 || tensor->n_dims != 1 || tensor->dims[0] > MAX_FACTORS) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: tensor %.*s is not a small vector of F32", qr_gguf_path(r->file),
                       (int)tensor->name.n, tensor->name.bytes);
    }
    qr_json_put_begin(r->out, key, '[');
    for (int64_t i = 0; i < tensor->dims[0]; i++) {
        float factor;
        qr_elements_to_f32(QR_DTYPE_F32, tensor->data, i, 1, &factor);
        if (!(factor > 0 && factor < 1e30F)) {
            return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: tensor %.*s holds a factor that is not a positive number",
                           qr_gguf_path(r->file), (int)tensor->name.n, tensor->name.bytes);
        }
        qr_json_put_double(r->out, NULL, (double)factor);
    }
    qr_json_put_end(r->out, ']');
    return QRUN_OK;
}

/* The factor that llama.cpp multiplies cos and sin by for YaRN is relative to this one. */
static double yarn_attention_factor(double factor) { return factor <= 1 ? 1 : 0.1 * log(factor) + 1; }

static qrun_status put_yarn(const reader *r, double factor) {
    double fast = 32, slow = 1, attn = 1, log_multiplier = 0;
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.yarn_beta_fast", &fast));
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.yarn_beta_slow", &slow));
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.attn_factor", &attn));
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.yarn_log_multiplier", &log_multiplier));
    if (is_arch(r, "gpt-oss")) { qr_json_put_bool(r->out, "truncate", false); }
    qr_json_put_double(r->out, "beta_fast", fast);
    qr_json_put_double(r->out, "beta_slow", slow);
    if (log_multiplier > 0) {
        qr_json_put_double(r->out, "mscale", 1);
        qr_json_put_double(r->out, "mscale_all_dim", log_multiplier);
    } else if (attn != 1) {
        qr_json_put_double(r->out, "attention_factor", attn * yarn_attention_factor(factor));
    }
    return QRUN_OK;
}

/* llama.cpp keeps what Llama 3 derives from four numbers as one divider for each frequency, which is a LongRoPE with
 * the same dividers for every length. */
static qrun_status put_dividers(const reader *r, int64_t original) {
    const qr_gguf_tensor *freqs = qr_gguf_find_tensor(r->file, "rope_freqs.weight");
    const qr_gguf_tensor *factors_short = qr_gguf_find_tensor(r->file, "rope_factors_short.weight");
    const qr_gguf_tensor *factors_long = qr_gguf_find_tensor(r->file, "rope_factors_long.weight");
    const bool has_both = factors_short != NULL && factors_long != NULL;
    if (freqs == NULL && !has_both) {
        qr_json_put_text(r->out, "rope_type", "default");
        return QRUN_OK;
    }
    double attn = 1;
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.attn_factor", &attn));
    qr_json_put_text(r->out, "rope_type", "longrope");
    qr_json_put_double(r->out, "attention_factor", attn);
    qr_json_put_double(r->out, "factor", 1);
    if (has_both && original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    QR_RETURN_IF_ERROR(put_factors(r, "short_factor", has_both ? factors_short : freqs));
    return put_factors(r, "long_factor", has_both ? factors_long : freqs);
}

/* The members of the rotary parameters of full-attention layers. */
static qrun_status put_rope_members(const reader *r) {
    qr_gguf_text type = {"none", 4};
    double factor = 1, temperature = 0;
    int64_t original = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_text(r->file, qr_gguf_arch_key(r->arch, "rope.scaling.type").text, &type, r->err));
    QR_RETURN_IF_ERROR(get_double(r, "rope.scaling.factor", &factor));
    QR_RETURN_IF_ERROR(get_int(r, "rope.scaling.original_context_length", MOST, &original));
    QR_RETURN_IF_ERROR(get_double(r, "attention.temperature_scale", &temperature));
    qr_json_put_double(r->out, "rope_theta", r->theta);
    const bool is_yarn = qr_gguf_text_is(type, "yarn");
    if (!is_yarn && !qr_gguf_text_is(type, "linear")) {
        if (qr_gguf_text_is(type, "none") || qr_gguf_text_is(type, "longrope")) { return put_dividers(r, original); }
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: rotary scaling of type \"%.*s\" is not supported",
                       qr_gguf_path(r->file), (int)qr_min((int64_t)type.n, 40), type.bytes);
    }
    qr_json_put_text(r->out, "rope_type", is_yarn ? "yarn" : "linear");
    qr_json_put_double(r->out, "factor", factor);
    if (original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    if (temperature > 0) { qr_json_put_double(r->out, "llama_4_scaling_beta", temperature); }
    return is_yarn ? put_yarn(r, factor) : QRUN_OK;
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

/* One of two names for each layer: by the list in the file, or `most` for every layer but each n-th, where n is what
 * the file has in the list's place, or `every`; 0: for all. */
static qrun_status put_layer_types(const reader *r, const char *list_key, int64_t every, const char *most,
                                   const char *each) {
    const qr_gguf_key key = qr_gguf_arch_key(r->arch, list_key);
    int64_t *list = NULL;
    size_t n = 0;
    if (qr_gguf_is_list(r->file, key.text)) {
        QR_RETURN_IF_ERROR(qr_gguf_get_ints(r->file, key.text, &list, &n, r->err));
        if (n < (size_t)r->n_layers) {
            qr_free(list);
            return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s has %zu items for %lld layers", qr_gguf_path(r->file),
                           key.text, n, (long long)r->n_layers);
        }
    } else {
        QR_RETURN_IF_ERROR(qr_gguf_get_int(r->file, key.text, 1, MOST, &every, r->err));
    }
    qr_json_put_begin(r->out, "layer_types", '[');
    for (int64_t l = 0; l < r->n_layers; l++) {
        const bool is_usual = list != NULL ? list[l] != 0 : every == 0 || (l + 1) % every != 0;
        qr_json_put_text(r->out, NULL, is_usual ? most : each);
    }
    qr_json_put_end(r->out, ']');
    qr_free(list);
    return QRUN_OK;
}

static qrun_status put_windows(const reader *r, int64_t every) {
    return put_layer_types(r, "attention.sliding_window_pattern", every, "sliding_attention", "full_attention");
}

/* Gemma's attention is scaled by the size of a head, in the largest models by that of their share of the hidden size:
 * llama.cpp knows these by their number of layers, and so must we. */
static qrun_status put_gemma(const reader *r, int64_t layers_of_largest) {
    double attn = -1, final = -1;
    const int64_t scalar = r->n_layers == layers_of_largest ? r->hidden / r->n_heads : r->head_dim;
    qr_json_put_int(r->out, "query_pre_attn_scalar", scalar);
    QR_RETURN_IF_ERROR(get_double(r, "attn_logit_softcapping", &attn));
    QR_RETURN_IF_ERROR(get_double(r, "final_logit_softcapping", &final));
    if (attn > 0) { qr_json_put_double(r->out, "attn_logit_softcapping", attn); }
    if (final > 0) { qr_json_put_double(r->out, "final_logit_softcapping", final); }
    return QRUN_OK;
}

/* Gemma 3 and OLMo 3: two kinds of layers, two sets of rotary parameters. */
static qrun_status put_two_ropes(const reader *r, double local_theta) {
    QR_RETURN_IF_ERROR(get_double(r, "rope.freq_base_swa", &local_theta));
    qr_json_put_begin(r->out, "rope_parameters", '{');
    qr_json_put_begin(r->out, "sliding_attention", '{');
    qr_json_put_text(r->out, "rope_type", "default");
    qr_json_put_double(r->out, "rope_theta", local_theta);
    qr_json_put_end(r->out, '}');
    qr_json_put_begin(r->out, "full_attention", '{');
    QR_RETURN_IF_ERROR(put_rope_members(r));
    qr_json_put_end(r->out, '}');
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}

static qrun_status put_one_rope(const reader *r) {
    int64_t rotated = r->head_dim;
    double partial = 0;
    QR_RETURN_IF_ERROR(get_int(r, "rope.dimension_count", 1 << 12, &rotated));
    qr_json_put_double(r->out, "rope_theta", r->theta);
    if (r->arch->has_delta) {
        partial = (double)rotated / (double)r->head_dim;
    } else if (is_arch(r, "phi3")) {
        int64_t original = 0;
        QR_RETURN_IF_ERROR(get_int(r, "rope.scaling.original_context_length", MOST, &original));
        qr_json_put_double(r->out, "partial_rotary_factor", (double)rotated / (double)r->head_dim);
        if (original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    } else if (rotated != r->head_dim) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %lld of %lld elements of a head rotate, which is not supported", qr_gguf_path(r->file),
                       (long long)rotated, (long long)r->head_dim);
    }
    qr_json_put_begin(r->out, "rope_parameters", '{');
    if (partial > 0) { qr_json_put_double(r->out, "partial_rotary_factor", partial); }
    QR_RETURN_IF_ERROR(put_rope_members(r));
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}

static void put_window(const reader *r) {
    if (r->window > 0) {
        qr_json_put_int(r->out, "sliding_window", r->window);
    } else {
        qr_json_put_text(r->out, "sliding_window", NULL);
    }
}

static qrun_status put_delta(const reader *r) {
    qr_gguf_delta delta;
    int64_t interval = 4;
    QR_RETURN_IF_ERROR(get_int(r, "full_attention_interval", MAX_LAYERS, &interval));
    QR_RETURN_IF_ERROR(qr_gguf_read_delta(r->file, r->arch, &delta, r->err));
    qr_json_put_int(r->out, "linear_num_key_heads", delta.n_key_heads);
    qr_json_put_int(r->out, "linear_num_value_heads", delta.n_value_heads);
    qr_json_put_int(r->out, "linear_key_head_dim", delta.head_dim);
    qr_json_put_int(r->out, "linear_value_head_dim", delta.head_dim);
    qr_json_put_int(r->out, "linear_conv_kernel_dim", delta.kernel);
    return put_layer_types(r, "attention.recurrent_layers", interval, "linear_attention", "full_attention");
}

/* The size of the MLP is the adjusted one there. Windows of attention and tokens that see later ones, as some files of
 * this architecture have, are of no model here. */
static qrun_status put_convs(const reader *r) {
    int64_t kernel = 0;
    bool is_causal = true;
    QR_RETURN_IF_ERROR(require_int(r, "shortconv.l_cache", 8, &kernel));
    QR_RETURN_IF_ERROR(
        qr_gguf_get_bool(r->file, qr_gguf_arch_key(r->arch, "attention.causal").text, &is_causal, r->err));
    if (r->window > 0 || !is_causal) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: a %s model %s is not supported", qr_gguf_path(r->file),
                       r->arch->name, is_causal ? "with a sliding window" : "whose tokens see later ones");
    }
    qr_json_put_int(r->out, "conv_L_cache", kernel);
    qr_json_put_bool(r->out, "block_auto_adjust_ff_dim", false);
    return QRUN_OK;
}

static qrun_status put_family(const reader *r) {
    if (r->arch->has_convs) {
        QR_RETURN_IF_ERROR(put_convs(r));
        return put_one_rope(r);
    }
    if (r->arch->has_delta) {
        QR_RETURN_IF_ERROR(put_delta(r));
        return put_one_rope(r);
    }
    if (is_arch(r, "gemma2")) {
        QR_RETURN_IF_ERROR(put_gemma(r, 46));
        if (r->window > 0) { put_window(r); } /* llama.cpp has the same default */
        return put_one_rope(r);
    }
    put_window(r);
    if (is_arch(r, "gemma3")) {
        QR_RETURN_IF_ERROR(put_gemma(r, 62));
        if (r->window > 0) { QR_RETURN_IF_ERROR(put_windows(r, 6)); }
        return put_two_ropes(r, 10000);
    }
    if (is_arch(r, "gpt-oss")) { QR_RETURN_IF_ERROR(put_windows(r, 2)); }
    if (is_arch(r, "olmo2") && r->window > 0) {
        QR_RETURN_IF_ERROR(put_windows(r, 4));
        return put_two_ropes(r, r->theta);
    }
    return put_one_rope(r);
}

/* A family that shares its architecture's name with another. */
static const char *model_type(const reader *r) {
    if (is_arch(r, "olmo2") && r->window > 0) { return "olmo3"; }
    if (is_arch(r, "mistral3") && !has(r, "attention.temperature_scale")) { return "mistral"; }
    return r->arch->model_type;
}

qrun_status qr_gguf_write_config(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    reader r = {.file = file, .out = out, .err = err, .theta = 10000};
    QR_RETURN_IF_ERROR(qr_gguf_read_arch(file, &r.arch, err));
    QR_RETURN_IF_ERROR(get_int(&r, "attention.sliding_window", MOST, &r.window));
    QR_RETURN_IF_ERROR(get_double(&r, "rope.freq_base", &r.theta));
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "model_type", model_type(&r));
    QR_RETURN_IF_ERROR(put_sizes(&r));
    if (r.arch->has_experts) { QR_RETURN_IF_ERROR(put_experts(&r)); }
    QR_RETURN_IF_ERROR(put_vocab(&r));
    QR_RETURN_IF_ERROR(put_norms_and_biases(&r));
    if (!r.arch->is_gpt2) { QR_RETURN_IF_ERROR(put_family(&r)); }
    put_quantization(&r);
    qr_json_put_end(out, '}');
    return QRUN_OK;
}

/* ---- generation_config.json -------------------------------------------------------------------------------------- */

/* Tokens that end an answer wherever a vocabulary has them, as in llama.cpp: metadata name one or two of them. */
static bool ends_answers(qr_gguf_text token) {
    static const char *const texts[] = {
        "<|eot_id|>",      "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
        "<|end_of_text|>", "<|return|>", "<EOT>",   "<eos>",         "</s>",
    };
    for (size_t i = 0; i < QR_COUNT_OF(texts); i++) {
        if (qr_gguf_text_is(token, texts[i])) { return true; }
    }
    return false;
}

enum { MAX_ENDS = 8 };

static void add_end(int64_t id, int64_t ids[MAX_ENDS], int *n) {
    for (int i = 0; i < *n; i++) {
        if (ids[i] == id) { return; }
    }
    if (id >= 0 && *n < MAX_ENDS) { ids[(*n)++] = id; }
}

static qrun_status find_ends(const qr_gguf *file, int64_t ids[MAX_ENDS], int *n_ids, qr_error *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        int64_t id = -1;
        QR_RETURN_IF_ERROR(qr_gguf_get_int(file, keys[i], 0, UINT32_MAX, &id, err));
        if (id <= INT32_MAX) { add_end(id, ids, n_ids); }
    }
    qr_gguf_text *tokens;
    int64_t *types;
    size_t n = 0, n_types = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_texts(file, "tokenizer.ggml.tokens", &tokens, &n, err));
    const qrun_status status = qr_gguf_get_ints(file, "tokenizer.ggml.token_type", &types, &n_types, err);
    for (size_t i = 0; status == QRUN_OK && i < n && i < n_types && i <= INT32_MAX; i++) {
        if (types[i] == QR_GGUF_TOKEN_CONTROL && ends_answers(tokens[i])) { add_end((int64_t)i, ids, n_ids); }
    }
    qr_free(tokens);
    qr_free(types);
    return status;
}

qrun_status qr_gguf_write_generation_config(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    int64_t ids[MAX_ENDS], bos = -1;
    int n = 0;
    QR_RETURN_IF_ERROR(find_ends(file, ids, &n, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos, err));
    qr_json_put_begin(out, NULL, '{');
    if (bos >= 0 && bos <= INT32_MAX) { qr_json_put_int(out, "bos_token_id", bos); }
    qr_json_put_ints(out, "eos_token_id", ids, n);
    qr_json_put_end(out, '}');
    return QRUN_OK;
}

/* ---- By name ----------------------------------------------------------------------------------------------------- */

static qrun_status write_template(const qr_gguf *file, const char *key, qr_buffer *out, qr_error *err) {
    qr_gguf_text text = {0};
    QR_RETURN_IF_ERROR(qr_gguf_get_text(file, key, &text, err));
    if (text.bytes != NULL) { qr_buffer_append(out, text.bytes, text.n); }
    return QRUN_OK;
}

qrun_status qr_gguf_write_file(const qr_gguf *file, const char *name, qr_buffer *out, qr_error *err) {
    const bool has_tokenizer = qr_gguf_has(file, "tokenizer.ggml.tokens");
    if (strcmp(name, "config.json") == 0) { return qr_gguf_write_config(file, out, err); }
    if (!has_tokenizer) { return QRUN_OK; }
    if (strcmp(name, "generation_config.json") == 0) { return qr_gguf_write_generation_config(file, out, err); }
    if (strcmp(name, "tokenizer.json") == 0) { return qr_gguf_write_tokenizer(file, out, err); }
    if (strcmp(name, "tokenizer_config.json") == 0) { return qr_gguf_write_tokenizer_config(file, out, err); }
    if (strcmp(name, "chat_template.jinja") == 0) { return write_template(file, "tokenizer.chat_template", out, err); }
    return QRUN_OK;
}

qrun_status qr_gguf_has_tokenizer(const char *path, bool *found, qr_error *err) {
    qr_gguf *file;
    QR_RETURN_IF_ERROR(qr_gguf_open(path, &file, err));
    *found = qr_gguf_has(file, "tokenizer.ggml.tokens");
    qr_gguf_close(file);
    return QRUN_OK;
}
