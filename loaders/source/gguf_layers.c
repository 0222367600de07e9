/* The parts of config.json about layers that are not alike, from the metadata of a GGUF file. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/source/gguf_reader.h"

/* ---- Gemma 4 ----------------------------------------------------------------------------------------------------- */

/* What a file has for each layer; [n_layers] each. */
typedef struct gemma4_layers {
    int64_t *slides, *n_kv_heads;
    int64_t n_shared; /* the last layers, without keys of their own */
} gemma4_layers;

static qrun_status fail_layer(const qr_gguf_reader *r, const char *key, int64_t value, int64_t layer, const char *usual,
                              qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s is %lld for layer %lld, and %s is supported",
                   qr_gguf_path(r->file), qr_gguf_arch_key(r->arch, key).text, (long long)value, (long long)layer,
                   usual);
}

/* Sizes of MLPs: one, or twice that in the layers without keys of their own. */
static qrun_status put_wide_mlps(const qr_gguf_reader *r, const int64_t *mlp, int64_t n_shared) {
    const int64_t n_own = r->n_layers - n_shared;
    const bool are_wide = n_shared > 0 && mlp[n_own] != mlp[0];
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (mlp[l] == (are_wide && l >= n_own ? 2 : 1) * mlp[0]) { continue; }
        return fail_layer(r, "feed_forward_length", mlp[l], l,
                          "one size, with twice that in layers that share keys and values", r->err);
    }
    qr_json_put_bool(r->out, "use_double_wide_mlp", are_wide);
    return QRUN_OK;
}

/* The heads of the layers with full attention, and those of the others. */
static qrun_status put_heads_of_kinds(const qr_gguf_reader *r, const gemma4_layers *layers) {
    int64_t full_dim = r->head_dim, of_sliding = 0;
    bool values_are_keys = false;
    QR_RETURN_IF_ERROR(qr_read_int(r, "attention.key_length", 1 << 12, &full_dim));
    for (int64_t l = 0; l < r->n_layers; l++) {
        const int64_t n = layers->n_kv_heads[l];
        if (n < 1 || n > QR_GGUF_MOST_HEADS) {
            return fail_layer(r, "attention.head_count_kv", n, l, "a number from 1 to 4096", r->err);
        }
        const bool owns = l < r->n_layers - layers->n_shared;
        values_are_keys |= owns && layers->slides[l] == 0 && qr_find_in_layer(r, l, "attn_v.weight") == NULL;
        if (layers->slides[l] == 0) { continue; }
        if (of_sliding == 0) { of_sliding = n; }
        if (n == of_sliding) { continue; }
        return fail_layer(r, "attention.head_count_kv", n, l, "one number for all with a window", r->err);
    }
    qr_json_put_int(r->out, "num_key_value_heads", of_sliding > 0 ? of_sliding : layers->n_kv_heads[0]);
    qr_json_put_int(r->out, "head_dim", r->head_dim);
    qr_json_put_bool(r->out, "attention_k_eq_v", values_are_keys);
    qr_json_put_begin(r->out, "per_layer_config", '{');
    for (int64_t l = 0; l < r->n_layers; l++) {
        char key[24];
        if (layers->slides[l] != 0) { continue; }
        (void)snprintf(key, sizeof key, "%lld", (long long)l);
        qr_json_put_begin(r->out, key, '{');
        qr_json_put_int(r->out, "head_dim", full_dim);
        qr_json_put_int(r->out, "num_key_value_heads", layers->n_kv_heads[l]);
        qr_json_put_end(r->out, '}');
    }
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}

static void put_kinds(const qr_gguf_reader *r, const int64_t *slides) {
    qr_json_put_begin(r->out, "layer_types", '[');
    for (int64_t l = 0; l < r->n_layers; l++) {
        qr_json_put_text(r->out, NULL, slides[l] != 0 ? "sliding_attention" : "full_attention");
    }
    qr_json_put_end(r->out, ']');
}

/* Inputs to each layer: E models alone have a table of them. */
static qrun_status put_layer_inputs(const qr_gguf_reader *r) {
    const qr_gguf_tensor *table = qr_gguf_find_tensor(r->file, "per_layer_token_embd.weight");
    int64_t size = 0;
    QR_RETURN_IF_ERROR(qr_read_int(r, "embedding_length_per_layer_input", 1 << 14, &size));
    qr_json_put_int(r->out, "hidden_size_per_layer_input", size);
    if (size == 0) { return QRUN_OK; }
    if (table == NULL || table->n_dims != 2) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: has no matrix per_layer_token_embd.weight",
                       qr_gguf_path(r->file));
    }
    qr_json_put_int(r->out, "vocab_size_per_layer_input", table->dims[0]);
    return QRUN_OK;
}

qrun_status qr_put_gemma4(const qr_gguf_reader *r, const int64_t *mlp) {
    static const char pattern[] = "attention.sliding_window_pattern";
    gemma4_layers layers = {0};
    double softcap = 0;
    qrun_status status = QRUN_OK;
    if (!qr_reads(r, pattern)) {
        return qr_gguf_fail_missing(r->file, qr_gguf_arch_key(r->arch, pattern).text, r->err);
    }
    QR_TRY(qr_read_layers(r, pattern, 0, &layers.slides));
    QR_TRY(qr_read_layers(r, "attention.head_count_kv", r->n_heads, &layers.n_kv_heads));
    QR_TRY(qr_read_int(r, "attention.shared_kv_layers", r->n_layers - 1, &layers.n_shared));
    QR_TRY(put_wide_mlps(r, mlp, layers.n_shared));
    QR_TRY(put_heads_of_kinds(r, &layers));
    put_kinds(r, layers.slides);
    qr_json_put_int(r->out, "num_kv_shared_layers", layers.n_shared);
    QR_TRY(put_layer_inputs(r));
    QR_TRY(qr_read_double(r, "final_logit_softcapping", &softcap));
    if (softcap > 0) { qr_json_put_double(r->out, "final_logit_softcapping", softcap); }
    qr_json_put_bool(r->out, "enable_moe_block", r->arch->experts != NULL);
out:
    qr_free(layers.slides);
    qr_free(layers.n_kv_heads);
    return status;
}

/* ---- Layers of a state space ------------------------------------------------------------------------------------- */

/* What the two families call its numbers. */
typedef struct space_keys {
    const char *kernel, *state, *groups, *heads, *head_dim, *has_conv_bias;
} space_keys;

static qrun_status put_space(const qr_gguf_reader *r, const space_keys *keys, int64_t *inner) {
    int64_t kernel = 0, state = 0, groups = 0, heads = 0;
    QR_RETURN_IF_ERROR(qr_require_int(r, "ssm.conv_kernel", 8, &kernel));
    QR_RETURN_IF_ERROR(qr_require_int(r, "ssm.state_size", 1 << 10, &state));
    QR_RETURN_IF_ERROR(qr_require_int(r, "ssm.group_count", 1 << 12, &groups));
    QR_RETURN_IF_ERROR(qr_require_int(r, "ssm.time_step_rank", 1 << 12, &heads));
    QR_RETURN_IF_ERROR(qr_require_int(r, "ssm.inner_size", 1 << 22, inner));
    if (*inner % heads != 0) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %s.ssm has %lld values, which %lld heads cannot share",
                       qr_gguf_path(r->file), r->arch->name, (long long)*inner, (long long)heads);
    }
    qr_json_put_int(r->out, keys->kernel, kernel);
    qr_json_put_int(r->out, keys->state, state);
    qr_json_put_int(r->out, keys->groups, groups);
    qr_json_put_int(r->out, keys->heads, heads);
    qr_json_put_int(r->out, keys->head_dim, *inner / heads);
    qr_json_put_bool(r->out, keys->has_conv_bias, qr_any_layer_has(r, "ssm_conv1d.bias"));
    return QRUN_OK;
}

/* Heads of keys, one number but in layers that have none. */
static qrun_status find_kv_heads(const qr_gguf_reader *r, const int64_t *list, int64_t *n) {
    *n = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (*n == 0) { *n = list[l]; }
        if (list[l] >= 0 && list[l] <= QR_GGUF_MOST_HEADS && (list[l] == 0 || list[l] == *n)) { continue; }
        return fail_layer(r, "attention.head_count_kv", list[l], l, "one number of heads, or 0,", r->err);
    }
    if (*n > 0) { return QRUN_OK; }
    return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: %s is 0 for all layers, and a model needs one that attends",
                   qr_gguf_path(r->file), qr_gguf_arch_key(r->arch, "attention.head_count_kv").text);
}

qrun_status qr_put_kv_heads_of_list(const qr_gguf_reader *r) {
    int64_t *list = NULL, n_kv_heads = 0;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_read_layers(r, "attention.head_count_kv", r->n_heads, &list));
    QR_TRY(find_kv_heads(r, list, &n_kv_heads));
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (list[l] == 0) { QR_TRY(fail_layer(r, "attention.head_count_kv", 0, l, "one number for all", r->err)); }
    }
    qr_json_put_int(r->out, "num_key_value_heads", n_kv_heads);
out:
    qr_free(list);
    return status;
}

/* The MLP is the shared expert's there, where a model has experts and where not. */
static qrun_status put_granite_sizes(const qr_gguf_reader *r) {
    static const space_keys keys = {"mamba_d_conv",  "mamba_d_state", "mamba_n_groups",
                                    "mamba_n_heads", "mamba_d_head",  "mamba_conv_bias"};
    int64_t inner = 0, shared = 0;
    QR_RETURN_IF_ERROR(qr_read_int(r, "expert_shared_feed_forward_length", 1 << 22, &shared));
    if (r->arch->experts == NULL) {
        if (shared == 0) { QR_RETURN_IF_ERROR(qr_require_int(r, "feed_forward_length", 1 << 22, &shared)); }
        qr_json_put_int(r->out, "shared_intermediate_size", shared);
        qr_json_put_int(r->out, "num_local_experts", 0);
    } else if (shared == 0) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: a %s model without a shared expert is not supported",
                       qr_gguf_path(r->file), r->arch->name);
    }
    if (!r->arch->has_spaces) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(put_space(r, &keys, &inner));
    if (inner % r->hidden != 0) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: a state space of %lld values, no multiple of the hidden size %lld, is not supported",
                       qr_gguf_path(r->file), (long long)inner, (long long)r->hidden);
    }
    qr_json_put_int(r->out, "mamba_expand", inner / r->hidden);
    return QRUN_OK;
}

qrun_status qr_put_granite_hybrid(const qr_gguf_reader *r) {
    int64_t *list = NULL, n_kv_heads = 0;
    bool rotates = true;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_read_layers(r, "attention.head_count_kv", r->n_heads, &list));
    QR_TRY(find_kv_heads(r, list, &n_kv_heads));
    QR_TRY(put_granite_sizes(r));
    QR_TRY(qr_gguf_get_bool(r->file, qr_gguf_arch_key(r->arch, "rope.scaling.finetuned").text, &rotates, r->err));
    qr_json_put_text(r->out, "position_embedding_type", rotates ? "rope" : "nope");
    qr_json_put_int(r->out, "num_key_value_heads", n_kv_heads);
    qr_json_put_begin(r->out, "layer_types", '[');
    for (int64_t l = 0; l < r->n_layers; l++) {
        qr_json_put_text(r->out, NULL, list[l] == 0 ? "linear_attention" : "full_attention");
    }
    qr_json_put_end(r->out, ']');
out:
    qr_free(list);
    return status;
}

/* ---- Nemotron-H -------------------------------------------------------------------------------------------------- */

static const char *block_of(const qr_gguf_reader *r, int64_t layer, int64_t n_kv_heads, int64_t mlp) {
    if (mlp == 0) { return n_kv_heads > 0 ? "full_attention" : "linear_attention"; }
    return qr_find_in_layer(r, layer, "ffn_gate_inp.weight") != NULL ? "moe" : "mlp";
}

qrun_status qr_put_nemotron_h(const qr_gguf_reader *r, const int64_t *mlp) {
    static const space_keys keys = {"conv_kernel",     "ssm_state_size", "n_groups",
                                    "mamba_num_heads", "mamba_head_dim", "use_conv_bias"};
    int64_t *list = NULL, n_kv_heads = 0, inner = 0;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_read_layers(r, "attention.head_count_kv", r->n_heads, &list));
    QR_TRY(find_kv_heads(r, list, &n_kv_heads));
    QR_TRY(put_space(r, &keys, &inner));
    qr_json_put_int(r->out, "num_key_value_heads", n_kv_heads);
    qr_json_put_begin(r->out, "layers_block_type", '[');
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (list[l] > 0 && mlp[l] > 0) {
            QR_TRY(fail_layer(r, "feed_forward_length", mlp[l], l, "0 for a layer that attends", r->err));
        }
        qr_json_put_text(r->out, NULL, block_of(r, l, list[l], mlp[l]));
    }
    qr_json_put_end(r->out, ']');
out:
    qr_free(list);
    return status;
}

/* ---- Latent attention -------------------------------------------------------------------------------------------- */

qrun_status qr_put_latents(qr_gguf_reader *r) {
    int64_t query_rank = 0, kv_rank = 0, rotated = 0, key_dim = 0, value_dim = r->hidden / r->n_heads;
    QR_RETURN_IF_ERROR(qr_read_int(r, "attention.q_lora_rank", 1 << 15, &query_rank));
    QR_RETURN_IF_ERROR(qr_require_int(r, "attention.kv_lora_rank", 1 << 15, &kv_rank));
    QR_RETURN_IF_ERROR(qr_require_int(r, "rope.dimension_count", 1 << 12, &rotated));
    const bool is_apart = qr_reads(r, "attention.key_length_mla"); /* else the others are of what is attended to */
    QR_RETURN_IF_ERROR(
        qr_require_int(r, is_apart ? "attention.key_length_mla" : "attention.key_length", 1 << 12, &key_dim));
    QR_RETURN_IF_ERROR(
        qr_read_int(r, is_apart ? "attention.value_length_mla" : "attention.value_length", 1 << 12, &value_dim));
    if (key_dim <= rotated) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: %lld of %lld elements of a key rotate, and some must not",
                       qr_gguf_path(r->file), (long long)rotated, (long long)key_dim);
    }
    if (query_rank > 0) {
        qr_json_put_int(r->out, "q_lora_rank", query_rank);
    } else {
        qr_json_put_text(r->out, "q_lora_rank", NULL);
    }
    qr_json_put_int(r->out, "kv_lora_rank", kv_rank);
    qr_json_put_int(r->out, "qk_rope_head_dim", rotated);
    qr_json_put_int(r->out, "qk_nope_head_dim", key_dim - rotated);
    qr_json_put_int(r->out, "v_head_dim", value_dim);
    qr_json_put_int(r->out, "num_key_value_heads", r->n_heads);
    r->head_dim = rotated;
    return QRUN_OK;
}
