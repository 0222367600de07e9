#include "loaders/config/attention_config.h"

#include <stdio.h>
#include <string.h>

#include "base/sizes.h"

enum { MOST_HEADS = 1 << 12, MOST_HEAD_DIM = 1 << 12 };

static qrun_status get_int(const qr_json *json, const qr_attention_context *context, const char *key, int64_t high,
                           int64_t *value, qr_error *err) {
    return qr_json_get_int(json, key, 1, high, value, context->what, err);
}

/* As configs were before transformers 5.20: global_head_dim and num_global_key_value_heads. The latter counts only
 * where values are keys. */
static qrun_status read_global_keys(const qr_json *json, const qr_attention_context *context, qr_layer_heads *full,
                                    qr_error *err) {
    int64_t n_kv_heads = full->n_kv_heads;
    full->head_dim = 512;
    QR_RETURN_IF_ERROR(get_int(json, context, "global_head_dim", MOST_HEAD_DIM, &full->head_dim, err));
    QR_RETURN_IF_ERROR(get_int(json, context, "num_global_key_value_heads", MOST_HEADS, &n_kv_heads, err));
    if (full->values_are_keys) { full->n_kv_heads = n_kv_heads; }
    return QRUN_OK;
}

/* The heads of layer l in per_layer_config, {"3": {"head_dim": 512, "num_key_value_heads": 1}}; a layer or a member
 * that is absent has those of `usual`. */
static qrun_status read_layer(const qr_json *layers, const qr_attention_context *context, int64_t l,
                              const qr_layer_heads *usual, qr_layer_heads *heads, qr_error *err) {
    char key[24];
    (void)snprintf(key, sizeof key, "%lld", (long long)l);
    const qr_json *layer = qr_json_get(layers, key);
    *heads = *usual;
    for (const qr_json *member = qr_json_first(layer); member != NULL; member = member->next) {
        if (strcmp(member->string, "head_dim") == 0 || strcmp(member->string, "num_key_value_heads") == 0) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: \"%.60s\" of one layer (\"per_layer_config\") is not supported", context->what,
                       member->string);
    }
    QR_RETURN_IF_ERROR(get_int(layer, context, "head_dim", MOST_HEAD_DIM, &heads->head_dim, err));
    return get_int(layer, context, "num_key_value_heads", MOST_HEADS, &heads->n_kv_heads, err);
}

static qrun_status read_per_layer(const qr_json *layers, const qr_attention_context *context,
                                  qr_attention_config *attention, qr_error *err) {
    const qr_layer_heads usual = attention->sliding;
    bool has_full = false;
    if (!cJSON_IsObject(layers)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"per_layer_config\" is not an object", context->what);
    }
    for (int64_t l = 0; l < context->n_layers; l++) {
        qr_layer_heads heads;
        QR_RETURN_IF_ERROR(read_layer(layers, context, l, &usual, &heads, err));
        qr_layer_heads *kind = context->layer_slides[l] ? &attention->sliding : &attention->full;
        if (!context->layer_slides[l] && !has_full) {
            kind->head_dim = heads.head_dim;
            kind->n_kv_heads = heads.n_kv_heads;
            has_full = true;
        }
        if (heads.head_dim == kind->head_dim && heads.n_kv_heads == kind->n_kv_heads) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: layer %lld has other heads than layers of the same attention (\"per_layer_config\"), which "
                       "is not supported",
                       context->what, (long long)l);
    }
    return QRUN_OK;
}

static qrun_status check_heads(const qr_attention_context *context, const qr_layer_heads *heads, qr_error *err) {
    if (heads->head_dim % 2 != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: heads of %lld elements cannot be rotated in pairs", context->what,
                       (long long)heads->head_dim);
    }
    if (context->n_heads % heads->n_kv_heads == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: %lld heads are not divisible by %lld key/value heads of full attention",
                   context->what, (long long)context->n_heads, (long long)heads->n_kv_heads);
}

/* Each of the last layers needs one of its kind before them. */
static qrun_status check_owners(const qr_attention_context *context, int64_t n_shared, qr_error *err) {
    const int64_t n_owners = context->n_layers - n_shared;
    bool found[2] = {false, false};
    for (int64_t l = 0; l < context->n_layers; l++) {
        const bool slides = context->layer_slides[l];
        if (l < n_owners) { found[slides] = true; }
        if (found[slides]) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: with \"num_kv_shared_layers\" %lld, layer %lld shares keys and values of a %s layer before "
                       "layer %lld, and there is none",
                       context->what, (long long)n_shared, (long long)l, slides ? "sliding" : "full-attention",
                       (long long)n_owners);
    }
    return QRUN_OK;
}

qrun_status qr_shared_layers_read(const qr_json *json, const qr_attention_context *context,
                                  qr_attention_config *attention, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "num_kv_shared_layers", 0, context->n_layers - 1,
                                       &attention->n_shared_layers, context->what, err));
    return check_owners(context, attention->n_shared_layers, err);
}

qrun_status qr_attention_config_read(const qr_json *json, const qr_attention_context *context,
                                     qr_attention_config *attention, qr_error *err) {
    const qr_json *layers = qr_json_get(json, "per_layer_config");
    attention->norms_values = true;
    QR_RETURN_IF_ERROR(
        qr_json_get_bool(json, "attention_k_eq_v", &attention->full.values_are_keys, context->what, err));
    QR_RETURN_IF_ERROR(qr_json_is_null(layers) ? read_global_keys(json, context, &attention->full, err)
                                               : read_per_layer(layers, context, attention, err));
    QR_RETURN_IF_ERROR(check_heads(context, &attention->sliding, err));
    QR_RETURN_IF_ERROR(check_heads(context, &attention->full, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(json, "use_double_wide_mlp", &attention->shared_are_wide, context->what, err));
    return qr_shared_layers_read(json, context, attention, err);
}

qrun_status qr_layer_inputs_config_read(const qr_json *json, const char *what, int64_t least,
                                        qr_layer_inputs_config *inputs, qr_error *err) {
    const qr_json *size = qr_json_get(json, "hidden_size_per_layer_input");
    *inputs = (qr_layer_inputs_config){.size = 256, .vocab_size = 262144};
    if (size != NULL && qr_json_is_null(size)) { inputs->size = 0; }
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "hidden_size_per_layer_input", 0, 1 << 14, &inputs->size, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "vocab_size_per_layer_input", 1, 1 << 24, &inputs->vocab_size, what, err));
    if (inputs->size == 0 || inputs->vocab_size >= least) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: \"vocab_size_per_layer_input\" is %lld, fewer tokens than the %lld of \"vocab_size\"", what,
                   (long long)inputs->vocab_size, (long long)least);
}

qrun_status qr_streams_config_read(const qr_json *json, const char *what, qr_streams_config *streams, qr_error *err) {
    int64_t active = 0;
    *streams = (qr_streams_config){.n = 4, .scales = true, .residual_rank = 64};
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "altup_num_inputs", 1, 1 << 10, &streams->n, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "altup_active_idx", 0, 1 << 10, &active, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(json, "altup_correct_scale", &streams->scales, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "laurel_rank", 1, 1 << 14, &streams->residual_rank, what, err));
    if (active == 0 && streams->n >= 2 && streams->n <= QR_MOST_STREAMS) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"altup_num_inputs\" %lld with \"altup_active_idx\" %lld is not supported; 2 to %d streams, of "
                   "which the first is a layer's, are",
                   what, (long long)streams->n, (long long)active, (int)QR_MOST_STREAMS);
}

/* ---- Latent attention -------------------------------------------------------------------------------------------- */

qrun_status qr_latent_config_read(const qr_json *json, const char *what, qr_latent_config *latent, qr_error *err) {
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {{"q_lora_rank", &latent->query_rank},
                 {"kv_lora_rank", &latent->kv_rank},
                 {"qk_rope_head_dim", &latent->rotated_dim},
                 {"qk_nope_head_dim", &latent->plain_dim},
                 {"v_head_dim", &latent->value_dim}};
    const qr_json *query_rank = qr_json_get(json, sizes[0].key);
    if (query_rank != NULL && qr_json_is_null(query_rank)) { latent->query_rank = 0; }
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(qr_json_get_int(json, sizes[i].key, 1, 1 << 15, sizes[i].value, what, err));
    }
    if (latent->rotated_dim % 2 != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"qk_rope_head_dim\" is %lld; it must be even", what,
                       (long long)latent->rotated_dim);
    }
    if (latent->value_dim <= latent->plain_dim + latent->rotated_dim) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"v_head_dim\" %lld is more than the %lld of a query's head, which is not supported", what,
                   (long long)latent->value_dim, (long long)(latent->plain_dim + latent->rotated_dim));
}
