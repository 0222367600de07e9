/* config.json and generation_config.json, from the metadata of a GGUF file. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/gguf_reader.h"

static const int64_t MOST = INT32_MAX;

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

qrun_status qr_require_int(const qr_gguf_reader *r, const char *key, int64_t high, int64_t *value) {
    const qr_gguf_key full = qr_gguf_arch_key(r->arch, key);
    if (!qr_gguf_has(r->file, full.text)) { return qr_gguf_fail_missing(r->file, full.text, r->err); }
    return qr_gguf_get_arch_int(r->file, r->arch, key, 1, high, value, r->err);
}

qrun_status qr_read_layers(const qr_gguf_reader *r, const char *key, int64_t usual, int64_t **values) {
    const qr_gguf_key full = qr_gguf_arch_key(r->arch, key);
    size_t n = 0;
    *values = NULL;
    if (qr_gguf_is_list(r->file, full.text)) {
        QR_RETURN_IF_ERROR(qr_gguf_get_ints(r->file, full.text, values, &n, r->err));
        if (n >= (size_t)r->n_layers) { return QRUN_OK; }
        qr_free(*values);
        *values = NULL;
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s has %zu items for %lld layers", qr_gguf_path(r->file),
                       full.text, n, (long long)r->n_layers);
    }
    QR_RETURN_IF_ERROR(qr_gguf_get_int(r->file, full.text, 0, MOST, &usual, r->err));
    *values = qr_alloc_array((size_t)r->n_layers, sizeof **values);
    if (*values == NULL) { return qr_fail_memory(r->err, full.text, (size_t)r->n_layers * sizeof **values); }
    for (int64_t l = 0; l < r->n_layers; l++) { (*values)[l] = usual; }
    return QRUN_OK;
}

const qr_gguf_tensor *qr_find_in_layer(const qr_gguf_reader *r, int64_t layer, const char *name) {
    char full[QR_GGUF_NAME_BYTES];
    (void)snprintf(full, sizeof full, "blk.%lld.%s", (long long)layer, name);
    return qr_gguf_find_tensor(r->file, full);
}

bool qr_any_layer_has(const qr_gguf_reader *r, const char *name) {
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (qr_find_in_layer(r, l, name) != NULL) { return true; }
    }
    return false;
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static qrun_status put_vocab(const qr_gguf_reader *r) {
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

/* Of a dense MLP, in the first layer that has one, or of experts where a family has no other. Layers differ in it where
 * *layers is not NULL after it: [n_layers], the caller's. */
static qrun_status read_mlp(const qr_gguf_reader *r, int64_t *mlp, int64_t **layers) {
    static const char shared[] = "expert_shared_feed_forward_length"; /* the MLP's own, where Granite 4 has one */
    const char *key = "feed_forward_length";
    if (!r->arch->has_own_sizes) {
        if (r->arch->experts != NULL && (qr_reads_arch(r, "gpt-oss") || !qr_reads(r, key))) {
            key = "expert_feed_forward_length";
        }
        if (qr_reads_arch(r, "granite")) { QR_RETURN_IF_ERROR(qr_read_int(r, shared, 1 << 22, mlp)); }
        return *mlp > 0 ? QRUN_OK : qr_require_int(r, key, 1 << 22, mlp);
    }
    QR_RETURN_IF_ERROR(qr_read_layers(r, key, 0, layers));
    for (int64_t l = r->n_layers; l-- > 0;) {
        const int64_t size = (*layers)[l];
        if (size < 0 || size > 1 << 22) {
            return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s is %lld for layer %lld", qr_gguf_path(r->file),
                           qr_gguf_arch_key(r->arch, key).text, (long long)size, (long long)l);
        }
        if (size > 0) { *mlp = size; }
    }
    if (*mlp > 0) { return QRUN_OK; }
    return qr_gguf_fail_missing(r->file, qr_gguf_arch_key(r->arch, key).text, r->err);
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

/* Of LFM2: heads of keys for each layer, none where it is a convolution, and else as many everywhere. */
static qrun_status put_layer_kinds(const qr_gguf_reader *r, const char *key, int64_t *n_kv_heads) {
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
        if (list[l] >= 0 && list[l] <= QR_GGUF_MOST_HEADS && (list[l] == 0 || list[l] == *n_kv_heads)) { continue; }
        QR_TRY(qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %s has %lld for layer %zu; one number of heads, up to %d, and 0 are supported",
                       qr_gguf_path(r->file), key, (long long)list[l], l, QR_GGUF_MOST_HEADS));
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

static qrun_status put_kv_heads(const qr_gguf_reader *r) {
    const qr_gguf_key key = qr_gguf_arch_key(r->arch, "attention.head_count_kv");
    int64_t n_kv_heads = r->n_heads;
    if (qr_reads_arch(r, "granite") && qr_gguf_is_list(r->file, key.text)) { return qr_put_kv_heads_of_list(r); }
    if (r->arch->has_convs && qr_gguf_is_list(r->file, key.text)) {
        QR_RETURN_IF_ERROR(put_layer_kinds(r, key.text, &n_kv_heads));
    } else if (qr_gguf_has(r->file, key.text)) {
        QR_RETURN_IF_ERROR(qr_require_int(r, "attention.head_count_kv", QR_GGUF_MOST_HEADS, &n_kv_heads));
    }
    qr_json_put_int(r->out, "num_key_value_heads", n_kv_heads);
    return QRUN_OK;
}

/* ---- All sizes --------------------------------------------------------------------------------------------------- */

/* One size of heads, of keys and values; of layers with a window where they have their own. */
static qrun_status read_head_dim(qr_gguf_reader *r) {
    const bool has_own = qr_reads(r, "attention.key_length_swa");
    int64_t value_dim = 0;
    r->head_dim = r->hidden / r->n_heads;
    QR_RETURN_IF_ERROR(
        qr_read_int(r, has_own ? "attention.key_length_swa" : "attention.key_length", 1 << 12, &r->head_dim));
    value_dim = r->head_dim;
    QR_RETURN_IF_ERROR(
        qr_read_int(r, has_own ? "attention.value_length_swa" : "attention.value_length", 1 << 12, &value_dim));
    if (value_dim == r->head_dim && r->head_dim > 0) { return QRUN_OK; }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: heads of %lld for keys and %lld for values are not supported",
                   qr_gguf_path(r->file), (long long)r->head_dim, (long long)value_dim);
}

/* Heads of keys, and what goes with them. */
static qrun_status put_heads(qr_gguf_reader *r, const int64_t *mlp) {
    if (r->arch->is_gpt2) { return QRUN_OK; }
    if (qr_reads_arch(r, "gemma4")) {
        QR_RETURN_IF_ERROR(read_head_dim(r));
        return qr_put_gemma4(r, mlp);
    }
    if (r->arch->has_latents) { return qr_put_latents(r); }
    QR_RETURN_IF_ERROR(read_head_dim(r));
    const bool is_granite4 = strcmp(r->arch->model_type, "granitemoehybrid") == 0;
    QR_RETURN_IF_ERROR(is_granite4                                      ? qr_put_granite_hybrid(r)
                       : strcmp(r->arch->model_type, "nemotron_h") == 0 ? qr_put_nemotron_h(r, mlp)
                                                                        : put_kv_heads(r));
    qr_json_put_int(r->out, "head_dim", r->head_dim);
    return QRUN_OK;
}

static qrun_status put_sizes(qr_gguf_reader *r) {
    const bool gpt2 = r->arch->is_gpt2;
    int64_t mlp = 0, positions = 0, n_ahead = 0, *mlps = NULL;
    qrun_status status = QRUN_OK;
    QR_RETURN_IF_ERROR(qr_require_int(r, "block_count", QR_GGUF_MOST_LAYERS, &r->n_layers));
    QR_RETURN_IF_ERROR(qr_gguf_count_layers(r->file, r->arch, &r->n_layers, &n_ahead, r->err));
    QR_RETURN_IF_ERROR(qr_require_int(r, "embedding_length", 1 << 20, &r->hidden));
    QR_TRY(read_mlp(r, &mlp, &mlps));
    QR_TRY(qr_require_int(r, "attention.head_count", QR_GGUF_MOST_HEADS, &r->n_heads));
    QR_TRY(qr_require_int(r, "context_length", MOST, &positions));
    qr_json_put_int(r->out, gpt2 ? "n_layer" : "num_hidden_layers", r->n_layers);
    qr_json_put_int(r->out, gpt2 ? "n_embd" : "hidden_size", r->hidden);
    qr_json_put_int(r->out, gpt2 ? "n_inner" : "intermediate_size", mlp);
    qr_json_put_int(r->out, gpt2 ? "n_head" : "num_attention_heads", r->n_heads);
    qr_json_put_int(r->out, gpt2 ? "n_positions" : "max_position_embeddings", positions);
    QR_TRY(put_heads(r, mlps));
out:
    qr_free(mlps);
    return status;
}

static qrun_status put_norms_and_biases(const qr_gguf_reader *r) {
    static const char plain[] = "attention.layer_norm_epsilon", rms[] = "attention.layer_norm_rms_epsilon";
    const bool is_nemotron_h = strcmp(r->arch->model_type, "nemotron_h") == 0;
    const char *key = r->arch->is_gpt2 || (is_nemotron_h && !qr_reads(r, rms)) ? plain : rms;
    double eps = 0;
    if (!qr_reads(r, key)) { return qr_gguf_fail_missing(r->file, qr_gguf_arch_key(r->arch, key).text, r->err); }
    QR_RETURN_IF_ERROR(qr_read_double(r, key, &eps));
    const char *name = r->arch->is_gpt2 || is_nemotron_h ? "layer_norm_epsilon"
                       : r->arch->has_convs              ? "norm_eps"
                                                         : "rms_norm_eps";
    qr_json_put_double(r->out, name, eps);
    if (r->arch->is_gpt2) { return QRUN_OK; }
    const bool of_queries = (r->arch->biases & QR_GGUF_ALL_BIASES) == QR_GGUF_QKV_BIASES;
    const bool has_bias = qr_any_layer_has(r, of_queries ? "attn_q.bias" : "attn_output.bias");
    qr_json_put_bool(r->out, "attention_bias", has_bias);
    qr_json_put_bool(r->out, "mlp_bias", qr_any_layer_has(r, "ffn_down.bias"));
    qr_json_put_bool(r->out, "use_bias", has_bias); /* as ERNIE calls all of them */
    return QRUN_OK;
}

/* Experts in MXFP4, all of them, as a folder of gpt-oss says it: they are kept. */
static void put_quantization(const qr_gguf_reader *r) {
    bool all = r->arch->experts != NULL;
    for (size_t i = 0; i < qr_gguf_tensor_count(r->file) && all; i++) {
        const qr_gguf_tensor *tensor = qr_gguf_get_tensor(r->file, i);
        all = tensor->n_dims != 3 || tensor->dtype == QR_DTYPE_MXFP4;
    }
    if (!all) { return; }
    qr_json_put_begin(r->out, "quantization_config", '{');
    qr_json_put_text(r->out, "quant_method", "mxfp4");
    qr_json_put_end(r->out, '}');
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

/* One of two names for each layer: by the list in the file, or `most` for every layer but each n-th, where n is what
 * the file has in the list's place, or `every`; 0: for all. */
static qrun_status put_layer_types(const qr_gguf_reader *r, const char *list_key, int64_t every, const char *most,
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

static qrun_status put_windows(const qr_gguf_reader *r, int64_t every) {
    return put_layer_types(r, "attention.sliding_window_pattern", every, "sliding_attention", "full_attention");
}

/* Gemma's attention is scaled by the size of a head, in the largest models by that of their share of the hidden size:
 * llama.cpp knows these by their number of layers, and so must we. */
static qrun_status put_gemma(const qr_gguf_reader *r, int64_t layers_of_largest) {
    double attn = -1, final = -1;
    const int64_t scalar = r->n_layers == layers_of_largest ? r->hidden / r->n_heads : r->head_dim;
    qr_json_put_int(r->out, "query_pre_attn_scalar", scalar);
    QR_RETURN_IF_ERROR(qr_read_double(r, "attn_logit_softcapping", &attn));
    QR_RETURN_IF_ERROR(qr_read_double(r, "final_logit_softcapping", &final));
    if (attn > 0) { qr_json_put_double(r->out, "attn_logit_softcapping", attn); }
    if (final > 0) { qr_json_put_double(r->out, "final_logit_softcapping", final); }
    return QRUN_OK;
}

static void put_window(const qr_gguf_reader *r) {
    if (r->window > 0) {
        qr_json_put_int(r->out, "sliding_window", r->window);
    } else {
        qr_json_put_text(r->out, "sliding_window", NULL);
    }
}

static qrun_status put_delta(const qr_gguf_reader *r) {
    qr_gguf_delta delta;
    int64_t interval = 4;
    QR_RETURN_IF_ERROR(qr_read_int(r, "full_attention_interval", QR_GGUF_MOST_LAYERS, &interval));
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
static qrun_status put_convs(const qr_gguf_reader *r) {
    int64_t kernel = 0;
    bool is_causal = true;
    QR_RETURN_IF_ERROR(qr_require_int(r, "shortconv.l_cache", 8, &kernel));
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

/* GLM-4 with sections for images has rows in another order. GLM-4.5 may be without norms of heads. */
static qrun_status put_glm4(const qr_gguf_reader *r) {
    int64_t *sections = NULL;
    size_t n = 0;
    const qr_gguf_key key = qr_gguf_arch_key(r->arch, "rope.dimension_sections");
    if (qr_reads_arch(r, "glm4moe")) {
        qr_json_put_bool(r->out, "use_qk_norm", qr_any_layer_has(r, "attn_q_norm.weight"));
        qr_json_put_int(r->out, "num_nextn_predict_layers", 0);
        return qr_put_one_rope(r);
    }
    QR_RETURN_IF_ERROR(qr_gguf_get_ints(r->file, key.text, &sections, &n, r->err));
    const bool has_sections = n > 0 && sections[0] != 0;
    qr_free(sections);
    if (!has_sections) { return qr_put_one_rope(r); }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: a %s model with rotary positions for images (%s) is not supported", qr_gguf_path(r->file),
                   r->arch->name, key.text);
}

/* Granite's. llama.cpp passes over one that is 0. Its switch for rotary positions is part of the hybrids' layers. */
static qrun_status put_multipliers(const qr_gguf_reader *r) {
    const struct {
        const char *key, *name;
        double usual;
    } multipliers[] = {{"attention.scale", "attention_multiplier", 1 / sqrt((double)r->head_dim)},
                       {"embedding_scale", "embedding_multiplier", 1},
                       {"residual_scale", "residual_multiplier", 1},
                       {"logit_scale", "logits_scaling", 1}};
    bool rotates = true;
    for (size_t i = 0; i < QR_COUNT_OF(multipliers); i++) {
        double value = 0;
        QR_RETURN_IF_ERROR(qr_read_double(r, multipliers[i].key, &value));
        qr_json_put_double(r->out, multipliers[i].name, value != 0 ? value : multipliers[i].usual);
    }
    const qr_gguf_key key = qr_gguf_arch_key(r->arch, "rope.scaling.finetuned");
    QR_RETURN_IF_ERROR(qr_gguf_get_bool(r->file, key.text, &rotates, r->err));
    if (rotates || strcmp(r->arch->model_type, "granite") != 0) { return qr_put_one_rope(r); }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: a granite model without rotary positions is not supported",
                   qr_gguf_path(r->file));
}

static qrun_status put_family(const qr_gguf_reader *r) {
    if (strcmp(r->arch->model_type, "nemotron_h") == 0) { return QRUN_OK; }
    if (r->arch->has_multipliers) { return put_multipliers(r); }
    if (r->arch->has_convs) {
        QR_RETURN_IF_ERROR(put_convs(r));
        return qr_put_one_rope(r);
    }
    if (r->arch->has_delta) {
        QR_RETURN_IF_ERROR(put_delta(r));
        return qr_put_one_rope(r);
    }
    if (qr_reads_arch(r, "gemma4")) {
        put_window(r);
        return qr_put_gemma4_ropes(r);
    }
    if (qr_reads_arch(r, "gemma2")) {
        QR_RETURN_IF_ERROR(put_gemma(r, 46));
        if (r->window > 0) { put_window(r); } /* llama.cpp has the same default */
        return qr_put_one_rope(r);
    }
    put_window(r);
    if (qr_reads_arch(r, "gemma3")) {
        QR_RETURN_IF_ERROR(put_gemma(r, 62));
        if (r->window > 0) { QR_RETURN_IF_ERROR(put_windows(r, 6)); }
        return qr_put_two_ropes(r, 10000);
    }
    if (r->arch->splits_latents) { /* of experts in groups nothing is read */
        qr_json_put_int(r->out, "num_nextn_predict_layers", 0);
        qr_json_put_int(r->out, "n_group", 1);
        qr_json_put_int(r->out, "topk_group", 1);
    }
    if (qr_reads_arch(r, "glm4") || qr_reads_arch(r, "glm4moe")) { return put_glm4(r); }
    if (qr_reads_arch(r, "exaone4") && r->window > 0) { QR_RETURN_IF_ERROR(put_windows(r, 4)); }
    if (qr_reads_arch(r, "gpt-oss")) { QR_RETURN_IF_ERROR(put_windows(r, 2)); }
    if (qr_reads_arch(r, "olmo2") && r->window > 0) {
        QR_RETURN_IF_ERROR(put_windows(r, 4));
        return qr_put_two_ropes(r, r->theta);
    }
    return qr_put_one_rope(r);
}

/* A family that shares its architecture's name with another. */
static const char *model_type(const qr_gguf_reader *r) {
    if (qr_reads_arch(r, "olmo2") && r->window > 0) { return "olmo3"; }
    if (qr_reads_arch(r, "mistral3") && !qr_reads(r, "attention.temperature_scale")) { return "mistral"; }
    return r->arch->read_as != NULL ? r->arch->read_as : r->arch->model_type;
}

qrun_status qr_gguf_write_config(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    qr_gguf_reader r = {.file = file, .out = out, .err = err, .theta = 10000};
    QR_RETURN_IF_ERROR(qr_gguf_read_arch(file, &r.arch, err));
    QR_RETURN_IF_ERROR(qr_read_int(&r, "attention.sliding_window", MOST, &r.window));
    QR_RETURN_IF_ERROR(qr_read_double(&r, "rope.freq_base", &r.theta));
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "model_type", model_type(&r));
    QR_RETURN_IF_ERROR(put_sizes(&r));
    if (qr_reads_arch(&r, "exaone4") && r.n_layers == 64 && r.window == 0) {
        r.window = 4096;
    } /* as llama.cpp has it */
    if (r.arch->experts != NULL) { QR_RETURN_IF_ERROR(qr_put_experts(&r)); }
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
        "<|eot_id|>", "<|im_end|>",      "<|end|>",    "<end_of_turn>", "<|endoftext|>",
        "<|eom_id|>", "<|end_of_text|>", "<|return|>", "<EOT>",         "<eos>",
        "</s>",       "<turn|>",         "[EOT]",      "[EOS]",         "<｜end▁of▁sentence｜>",
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

/* How to sample, as llama.cpp's converter takes it from a generation_config.json. A temperature of 0 is greedy. */
static qrun_status put_sampling(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    static const struct {
        const char *key, *name;
        double high;
    } numbers[] = {{"general.sampling.temp", "temperature", 1e6},
                   {"general.sampling.top_p", "top_p", 1},
                   {"general.sampling.min_p", "min_p", 1},
                   {"general.sampling.penalty_repeat", "repetition_penalty", 1e6}};
    double temperature = -1;
    int64_t top_k = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_double(file, numbers[0].key, 0, numbers[0].high, &temperature, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, "general.sampling.top_k", INT32_MIN, INT32_MAX, &top_k, err));
    if (temperature > 0) { qr_json_put_bool(out, "do_sample", true); }
    if (qr_gguf_has(file, "general.sampling.top_k")) { qr_json_put_int(out, "top_k", qr_max(top_k, 0)); }
    for (size_t i = 0; i < QR_COUNT_OF(numbers); i++) {
        double value = 0;
        QR_RETURN_IF_ERROR(qr_gguf_get_double(file, numbers[i].key, 0, numbers[i].high, &value, err));
        if (qr_gguf_has(file, numbers[i].key) && value > 0) { qr_json_put_double(out, numbers[i].name, value); }
    }
    return QRUN_OK;
}

qrun_status qr_gguf_write_generation_config(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    int64_t ids[MAX_ENDS], bos = -1;
    int n = 0;
    QR_RETURN_IF_ERROR(find_ends(file, ids, &n, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos, err));
    qr_json_put_begin(out, NULL, '{');
    if (bos >= 0 && bos <= INT32_MAX) { qr_json_put_int(out, "bos_token_id", bos); }
    qr_json_put_ints(out, "eos_token_id", ids, n);
    QR_RETURN_IF_ERROR(put_sampling(file, out, err));
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
