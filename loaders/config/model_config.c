#include "loaders/config/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/config/config_dtype.h"
#include "loaders/config/family_defaults.h"
#include "loaders/config/family_keys.h"
#include "loaders/config/unsupported_family.h"
#include "loaders/files/suffix.h"
#include "loaders/source/model_source.h"

enum { DERIVED = 0, NO_WINDOW = 0 };

/* ---- families ---------------------------------------------------------------------------------------------------- */

const char *qr_model_family_name(qr_model_family family) {
    static const char *const names[] = {
#define QR_X(suffix, name) name,
        QR_MODEL_FAMILIES(QR_X)
#undef QR_X
    };
    return (unsigned)family < QR_FAMILY_COUNT ? names[family] : "?";
}

static qrun_status fail_unsupported(const qr_unsupported_family *known, const char *model_type, const char *what,
                                    qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: %s (model_type \"%.60s\") has %s, which is not supported; the nearest that works is %s", what,
                   known->name, model_type, known->missing, known->nearest);
}

/* Names that a family has besides its own. */
static const char *usual_type(const char *model_type) {
#define QR_X(name, usual) {name, usual},
    static const char *const others[][2] = {QR_MODEL_OTHER_NAMES(QR_X)};
#undef QR_X
    for (size_t i = 0; i < QR_COUNT_OF(others); i++) {
        if (strcmp(model_type, others[i][0]) == 0) { return others[i][1]; }
    }
    return model_type;
}

/* The supported types that begin with the same letters, each after a space, as many as there is room for. */
static void list_kin(const char *model_type, char *names, size_t n_bytes) {
    enum { SAME_LETTERS = 3 };
#define QR_X(name, ...) name,
#define QR_FAMILY_X(suffix, name) name,
    static const char *const types[] = {QR_MODEL_WRAPPERS(QR_X) QR_MODEL_FAMILIES(QR_FAMILY_X)
                                            QR_MODEL_OTHER_NAMES(QR_X)};
#undef QR_FAMILY_X
#undef QR_X
    for (size_t i = 0; i < QR_COUNT_OF(types); i++) {
        const size_t n = strlen(names);
        if (strncmp(types[i], model_type, SAME_LETTERS) != 0 || n + 1 + strlen(types[i]) >= n_bytes) { continue; }
        (void)snprintf(names + n, n_bytes - n, " %s", types[i]);
    }
}

static qrun_status find_family(const char *model_type, const char *what, qr_model_family *family, qr_error *err) {
    model_type = usual_type(model_type);
    for (int i = 0; i < QR_FAMILY_COUNT; i++) {
        if (strcmp(model_type, qr_model_family_name((qr_model_family)i)) != 0) { continue; }
        *family = (qr_model_family)i;
        return QRUN_OK;
    }
    const qr_unsupported_family *known = qr_unsupported_family_find(model_type);
    if (known != NULL) { return fail_unsupported(known, model_type, what, err); }
    char names[256] = "";
    list_kin(model_type, names, sizeof names);
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: model_type \"%.60s\" is not supported%s%s; docs/formats.md has the models that are", what,
                   model_type, names[0] != '\0' ? "; these are:" : "", names);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static qrun_status read_own(const qr_config_source *s, qr_family_keys_fn *read, qr_model_config *config) {
    return read != NULL ? read(s, config) : QRUN_OK;
}

/* Where values are shorter than keys. */
static qrun_status read_value_dim(const qr_config_source *s, qr_model_config *config) {
    int64_t value_dim = s->defaults->value_dim;
    if (value_dim == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "v_head_dim", 1, 1 << 12, &value_dim));
    if (value_dim < config->head_dim) { config->value_dim = value_dim; }
    if (value_dim <= config->head_dim) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"v_head_dim\" %lld is more than the \"head_dim\" %lld, which is not supported", s->what,
                   (long long)value_dim, (long long)config->head_dim);
}

/* Latent attention: every head has keys and values of its own, whatever num_key_value_heads and head_dim say. */
static qrun_status read_latent(const qr_config_source *s, qr_model_config *config) {
    config->latent = s->defaults->latent;
    if (config->latent.kv_rank == 0) { return QRUN_OK; }
    if (config->latent.value_dim == 0) { config->latent.value_dim = qr_max(config->hidden_size / config->n_heads, 1); }
    QR_RETURN_IF_ERROR(qr_latent_config_read(s->json, s->what, &config->latent, s->err));
    config->n_kv_heads = config->n_heads;
    config->head_dim = config->latent.plain_dim + config->latent.rotated_dim;
    return QRUN_OK;
}

static qrun_status read_sizes(const qr_config_source *s, qr_model_config *config) {
    const qr_family_defaults *row = s->defaults;
    int64_t intermediate = row->intermediate_size, kv_heads = row->n_kv_heads, head_dim = row->head_dim;
    config->vocab_size = row->vocab_size;
    config->hidden_size = row->hidden_size;
    config->n_layers = row->n_layers;
    config->n_heads = row->n_heads;
    config->max_position_embeddings = row->max_positions;
    /* null means "derive it" for these two, whatever the default for an absent key is. */
    const qr_json *member = qr_json_get(s->json, "num_key_value_heads");
    if (member != NULL && qr_json_is_null(member)) { kv_heads = DERIVED; }
    member = qr_json_get(s->json, "head_dim");
    if (member != NULL && qr_json_is_null(member)) { head_dim = DERIVED; }
    const struct {
        const char *key;
        int64_t high, *value;
    } sizes[] = {
        {"vocab_size", 1 << 24, &config->vocab_size},
        {row->names->hidden_size, 1 << 20, &config->hidden_size},
        {row->names->intermediate_size, 1 << 22, &intermediate},
        {row->names->n_layers, 1 << 12, &config->n_layers},
        {row->names->n_heads, 1 << 12, &config->n_heads},
        {"num_key_value_heads", 1 << 12, &kv_heads},
        {"head_dim", 1 << 12, &head_dim},
        {row->names->max_positions, QR_CONFIG_MAX_POSITIONS, &config->max_position_embeddings},
    };
    const bool lists_mlps = cJSON_IsArray(qr_json_get(s->json, row->names->intermediate_size));
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        if (row->may_list_mlps && lists_mlps && sizes[i].value == &intermediate) { continue; }
        QR_RETURN_IF_ERROR(qr_config_get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    config->embedding_rows = config->vocab_size;
    config->intermediate_size = intermediate == DERIVED ? 4 * config->hidden_size : intermediate;
    QR_RETURN_IF_ERROR(read_own(s, qr_family_keys_of(config->family)->sizes, config));
    config->n_kv_heads = kv_heads == DERIVED ? config->n_heads : kv_heads;
    const bool has_latent = row->latent.kv_rank > 0;
    if (head_dim == DERIVED && !has_latent && config->hidden_size % config->n_heads != 0) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: hidden size %lld is not divisible by %lld heads", s->what,
                       (long long)config->hidden_size, (long long)config->n_heads);
    }
    config->head_dim = head_dim == DERIVED ? config->hidden_size / config->n_heads : head_dim;
    QR_RETURN_IF_ERROR(read_latent(s, config));
    QR_RETURN_IF_ERROR(read_value_dim(s, config));
    if (config->n_heads % config->n_kv_heads == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld heads are not divisible by %lld key/value heads", s->what,
                   (long long)config->n_heads, (long long)config->n_kv_heads);
}

static qrun_status read_activation(const qr_config_source *s, qr_model_config *config) {
    static const struct {
        const char *name;
        qr_mlp_activation activation;
    } known[] = {
        {"silu", QR_ACTIVATION_SILU},
        {"swish", QR_ACTIVATION_SILU},
        {"gelu_pytorch_tanh", QR_ACTIVATION_GELU_TANH},
        {"gelu_new", QR_ACTIVATION_GELU_TANH},
        {"gelu_fast", QR_ACTIVATION_GELU_TANH},
        {"gelu", QR_ACTIVATION_GELU_ERF},
        {"relu2", QR_ACTIVATION_RELU2},
        {"xielu", QR_ACTIVATION_XIELU},
    };
    const char *name = s->defaults->activation;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, s->defaults->names->activation, &name, s->what, s->err));
    /* The official files say so, and mean the approximation. */
    if (s->defaults->gelu_is_own && strcmp(name, "gelu") == 0) { name = s->defaults->activation; }
    const bool has_xielu = strcmp(s->defaults->activation, "xielu") == 0; /* no other has it, nor it another */
    for (size_t i = 0; i < QR_COUNT_OF(known) && has_xielu == (strcmp(name, "xielu") == 0); i++) {
        if (strcmp(name, known[i].name) == 0) {
            config->activation = known[i].activation;
            return QRUN_OK;
        }
    }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: activation \"%.60s\" is not supported", s->what, name);
}

/* Most families let the file say which projections have biases. */
static qrun_status read_biases(const qr_config_source *s, qr_model_config *config) {
    if (qr_family_keys_of(config->family)->biases != NULL) {
        return qr_family_keys_of(config->family)->biases(s, config);
    }
    if (s->defaults->bias_key != NULL) {
        if (config->experts.n_experts > 0) { return qr_config_refuse_flag(s, s->defaults->bias_key); }
        config->qkv_bias = s->defaults->qkv_bias;
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, s->defaults->bias_key, &config->qkv_bias));
        config->o_bias = config->mlp_bias = config->qkv_bias;
        return QRUN_OK;
    }
    config->qkv_bias = s->defaults->qkv_bias;
    if (s->defaults->qkv_bias_key != NULL) {
        return qr_config_get_bool(s, s->defaults->qkv_bias_key, &config->qkv_bias);
    }
    if (s->defaults->biases_are_fixed) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "attention_bias", &config->qkv_bias));
    config->o_bias = config->qkv_bias && !s->defaults->o_has_no_bias;
    if (s->defaults->o_bias_key != NULL) {
        config->o_bias = false;
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, s->defaults->o_bias_key, &config->o_bias));
    }
    config->mlp_bias = s->defaults->mlp_bias;
    return s->defaults->asks_mlp_bias ? qr_config_get_bool(s, "mlp_bias", &config->mlp_bias) : QRUN_OK;
}

/* Granite's four factors. */
static qrun_status read_multipliers(const qr_config_source *s, qr_model_config *config) {
    config->embedding_multiplier = config->residual_multiplier = config->logits_scaling = 1;
    config->attention_out_multiplier = config->space_out_multiplier = 1;
    config->mlp_out_multiplier = config->gate_multiplier = 1;
    if (!s->defaults->has_multipliers) { return read_own(s, qr_family_keys_of(config->family)->factors, config); }
    config->attention_multiplier = 1;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "embedding_multiplier", 1e-9, 1e9, &config->embedding_multiplier));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "residual_multiplier", 1e-9, 1e9, &config->residual_multiplier));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "attention_multiplier", 1e-9, 1e9, &config->attention_multiplier));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "logits_scaling", 1e-9, 1e9, &config->logits_scaling));
    return read_own(s, qr_family_keys_of(config->family)->factors, config);
}

/* GLM-4.5 and DeepSeek have layers after the last. */
static qrun_status read_layers_ahead(const qr_config_source *s, qr_model_config *config) {
    config->n_layers_ahead = s->defaults->n_layers_ahead;
    if (config->n_layers_ahead == 0) { return QRUN_OK; }
    return qr_config_get_int(s, "num_nextn_predict_layers", 0, 64, &config->n_layers_ahead);
}

static qrun_status read_attention(const qr_config_source *s, qr_model_config *config) {
    config->query_pre_attn_scalar = (double)config->head_dim;
    config->attn_sinks = s->defaults->has_sinks;
    QR_RETURN_IF_ERROR(read_own(s, qr_family_keys_of(config->family)->attention, config));
    QR_RETURN_IF_ERROR(read_layers_ahead(s, config));
    return read_biases(s, config);
}

/* ---- layers without rotary positions, sliding windows ------------------------------------------------------------ */

static qrun_status make_rotated_layers(const qr_config_source *s, qr_model_config *config) {
    config->layer_rotates = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_rotates);
    return config->layer_rotates != NULL ? QRUN_OK : qr_fail_memory(s->err, s->what, (size_t)config->n_layers);
}

static qrun_status read_rotated_layers(const qr_config_source *s, qr_model_config *config) {
    if (qr_family_keys_of(config->family)->rotated_layers == NULL) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(make_rotated_layers(s, config));
    return qr_family_keys_of(config->family)->rotated_layers(s, config);
}

static qrun_status read_layer_types(const qr_config_source *s, const qr_json *list, qr_model_config *config) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        const bool slides = strcmp(type, "sliding_attention") == 0;
        const bool is_conv = s->defaults->recurrent == QR_RECURRENT_CONV && strcmp(type, "conv") == 0;
        if (!slides && !is_conv && strcmp(type, "full_attention") != 0) {
            return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: layers of type \"%.60s\" are not supported", s->what,
                           type);
        }
        if (n < config->n_layers) { config->layer_slides[n] = slides; }
    }
    if (cJSON_IsArray(list) && n == config->n_layers) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"layer_types\" should be a list of %lld layer%s", s->what,
                   (long long)config->n_layers, qr_plural(config->n_layers));
}

/* The layers that slide by the family's own rule. */
static qrun_status apply_window_rule(const qr_config_source *s, qr_model_config *config) {
    const qr_window_rule rule = s->defaults->window;
    int64_t first = s->defaults->first_window > 0 ? s->defaults->first_window : 28;
    int64_t pattern = s->defaults->window_pattern;
    if (rule == QR_WINDOW_FROM_LAYER || rule == QR_WINDOW_LATE || rule == QR_WINDOW_EVERY_OTHER) {
        QR_RETURN_IF_ERROR(qr_config_get_int(s, "max_window_layers", 0, 1 << 20, &first));
    } else if (s->defaults->asks_window_pattern) {
        const char *key = s->defaults->window_pattern_key;
        QR_RETURN_IF_ERROR(qr_config_get_int(s, key != NULL ? key : "sliding_window_pattern", 1, 1 << 20, &pattern));
    }
    for (int64_t i = 0; i < config->n_layers; i++) {
        config->layer_slides[i] = rule == QR_WINDOW_ALL || rule == QR_WINDOW_WHERE_USED ||
                                  rule == QR_WINDOW_ALL_UNLESS_LISTED || (rule == QR_WINDOW_FROM_LAYER && i >= first) ||
                                  (rule == QR_WINDOW_LATE && i >= first) ||
                                  (rule == QR_WINDOW_EVERY_OTHER && i < first && i % 2 == 0) ||
                                  (rule == QR_WINDOW_PATTERN && (i + 1) % pattern != 0) ||
                                  (rule == QR_WINDOW_PATTERN_FROM_FIRST && i % pattern != 0) ||
                                  (rule == QR_WINDOW_PATTERN_BUT_FIRST && i > 0 && (i + 1) % pattern != 0) ||
                                  (rule == QR_WINDOW_PATTERN_FROM_LAST && (config->n_layers - 1 - i) % pattern != 0) ||
                                  (rule == QR_WINDOW_UNROTATED && !config->layer_rotates[i]) ||
                                  (rule == QR_WINDOW_FOURTHS && i > 0 && i % 4 == 0);
    }
    return QRUN_OK;
}

/* EXAONE 4 rotates in layers with a window alone, where the model has windows. */
static qrun_status rotate_in_windows(const qr_config_source *s, qr_model_config *config) {
    QR_RETURN_IF_ERROR(make_rotated_layers(s, config));
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = config->layer_slides[i]; }
    return QRUN_OK;
}

static qrun_status read_windows(const qr_config_source *s, qr_model_config *config) {
    config->layer_slides = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_slides);
    if (config->layer_slides == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers); }
    if (s->defaults->window == QR_WINDOW_NEVER) { return QRUN_OK; }
    const qr_window_rule rule = s->defaults->window;
    bool used = rule == QR_WINDOW_PATTERN_FROM_FIRST || rule == QR_WINDOW_PATTERN_BUT_FIRST || rule == QR_WINDOW_ALL ||
                rule == QR_WINDOW_PATTERN || rule == QR_WINDOW_PATTERN_FROM_LAST || rule == QR_WINDOW_FOURTHS ||
                rule == QR_WINDOW_LISTED || rule == QR_WINDOW_ALL_UNLESS_LISTED || rule == QR_WINDOW_LATE;
    if (!used) { QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_sliding_window", &used)); }
    if (!used) { return QRUN_OK; }
    const qr_json *window = qr_json_get(s->json, "sliding_window");
    config->sliding_window = window != NULL && qr_json_is_null(window) ? NO_WINDOW : s->defaults->sliding_window;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "sliding_window", 1, QR_CONFIG_MAX_POSITIONS, &config->sliding_window));
    if (config->sliding_window == NO_WINDOW && s->defaults->needs_window) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a %s model without \"sliding_window\" is not supported",
                       s->what, qr_model_family_name(config->family));
    }
    if (config->sliding_window == NO_WINDOW) { return QRUN_OK; }
    const qr_json *types = qr_json_get(s->json, "layer_types");
    const bool listed = rule != QR_WINDOW_ALL && rule != QR_WINDOW_WHERE_USED && !qr_json_is_null(types);
    QR_RETURN_IF_ERROR(listed ? read_layer_types(s, types, config) : apply_window_rule(s, config));
    if (s->defaults->rotates_in_windows) { QR_RETURN_IF_ERROR(rotate_in_windows(s, config)); }
    QR_RETURN_IF_ERROR(read_own(s, qr_family_keys_of(config->family)->windows, config));
    bool any = false;
    for (int64_t i = 0; i < config->n_layers; i++) { any |= config->layer_slides[i]; }
    if (!any) { config->sliding_window = NO_WINDOW; }
    return QRUN_OK;
}

/* ---- heads that differ between layers ---------------------------------------------------------------------------- */

static qrun_status read_layer_heads(const qr_config_source *s, qr_model_config *config) {
    const qr_layer_heads heads = {
        .head_dim = config->head_dim, .n_heads = config->n_heads, .n_kv_heads = config->n_kv_heads};
    config->attention = (qr_attention_config){.full = heads, .sliding = heads};
    return read_own(s, qr_family_keys_of(config->family)->heads, config);
}

qr_layer_heads qr_model_config_heads(const qr_model_config *config, int64_t layer) {
    return config->layer_slides[layer] ? config->attention.sliding : config->attention.full;
}

int64_t qr_model_config_kv_owner(const qr_model_config *config, int64_t layer) {
    int64_t owner = config->n_layers - config->attention.n_shared_layers;
    if (layer < owner) { return layer; }
    do { owner--; } while (config->layer_slides[owner] != config->layer_slides[layer]);
    return owner;
}

int64_t qr_model_config_mlp_size(const qr_model_config *config, int64_t layer) {
    if (config->layer_mlp != NULL) { return config->layer_mlp[layer]; }
    const bool is_wide = config->attention.shared_are_wide && qr_model_config_kv_owner(config, layer) != layer;
    return config->intermediate_size * (is_wide ? 2 : 1);
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

static bool is_nested(const qr_json *parameters) {
    return cJSON_IsObject(qr_json_get(parameters, "full_attention")) ||
           cJSON_IsObject(qr_json_get(parameters, "sliding_attention"));
}

/* Layers with a window have parameters of their own; rope_scaling and rope_theta are for the others. */
static qrun_status read_two_ropes(const qr_config_source *s, qr_rope_context *context, qr_model_config *config) {
    const qr_json *parameters = qr_json_get(s->json, "rope_parameters");
    if (!qr_json_is_null(parameters) && !is_nested(parameters)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: \"rope_parameters\" should have \"full_attention\" and "
                       "\"sliding_attention\"",
                       s->what);
    }
    const qr_json *scaling = qr_json_get(s->json, "rope_scaling");
    const qr_json *full = qr_json_is_null(scaling) ? qr_json_get(parameters, "full_attention") : scaling;
    QR_RETURN_IF_ERROR(qr_json_get_double(qr_json_get(parameters, "full_attention"), "rope_theta", 1, 1e15,
                                          &context->default_theta, s->what, s->err));
    context->head_dim = config->attention.full.head_dim;
    QR_RETURN_IF_ERROR(qr_rope_config_read(full, context, &config->rope, s->err));
    context->head_dim = config->attention.sliding.head_dim;
    context->type = NULL;
    if (s->defaults->proportional_part > 0) { context->partial_rotary_factor = 1; }
    context->default_theta = s->defaults->window_theta;
    if (s->defaults->window_theta_key != NULL) {
        QR_RETURN_IF_ERROR(qr_config_get_double(s, s->defaults->window_theta_key, 1, 1e15, &context->default_theta));
    }
    return qr_rope_config_read(qr_json_get(parameters, "sliding_attention"), context, &config->rope_local, s->err);
}

/* Ministral 3 keeps these with its rotary parameters. */
static qrun_status read_attn_temperature(const qr_config_source *s, const qr_json *parameters,
                                         qr_model_config *config) {
    static const char *const keys[] = {"llama_4_scaling_beta", "original_max_position_embeddings"};
    if (!s->defaults->scales_queries) { return QRUN_OK; }
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        if (!qr_json_is_null(qr_json_get(parameters, keys[i]))) { continue; }
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: the rotary parameters of a %s model need \"%s\"", s->what,
                       qr_model_family_name(config->family), keys[i]);
    }
    QR_RETURN_IF_ERROR(
        qr_json_get_double(parameters, keys[0], 0, 1e6, &config->attn_temperature_beta, s->what, s->err));
    return qr_json_get_int(parameters, keys[1], 1, INT32_MAX, &config->attn_temperature_tokens, s->what, s->err);
}

/* MiniMax M2: a number of elements, not a part. */
static qrun_status read_rotated_count(const qr_config_source *s, const qr_model_config *config,
                                      qr_rope_context *context) {
    int64_t n = config->head_dim;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, s->defaults->rotated_key, 2, config->head_dim, &n));
    context->partial_rotary_factor = (double)n / (double)config->head_dim;
    return QRUN_OK;
}

static bool has_null_theta(const qr_config_source *s) {
    static const char key[] = "rope_theta";
    const qr_json *parameters = qr_json_get(s->json, "rope_parameters");
    const qr_json *theta = qr_json_get(cJSON_IsObject(parameters) ? parameters : s->json, key);
    return theta != NULL && qr_json_is_null(theta);
}

static qrun_status read_rope(const qr_config_source *s, qr_model_config *config) {
    config->has_rope = !s->defaults->has_no_rope && !(s->defaults->null_theta_is_no_rope && has_null_theta(s));
    if (!config->has_rope) { return QRUN_OK; }
    const bool has_latent = config->latent.kv_rank > 0;
    qr_rope_context context = {.what = s->what,
                               .head_dim = has_latent ? config->latent.rotated_dim : config->head_dim,
                               .max_position_embeddings = config->max_position_embeddings,
                               .default_theta = s->defaults->theta,
                               .interleaved = s->defaults->interleaves_rope,
                               .reversed = s->defaults->reverses_rope,
                               .has_sections = s->defaults->has_rope_sections,
                               .has_fixed_alpha = s->defaults->has_fixed_alpha,
                               .su_is_longrope = s->defaults->su_is_longrope,
                               .original_max_position_embeddings = s->defaults->original_positions,
                               .partial_rotary_factor = 1};
    if (s->defaults->interleave_key != NULL) {
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, s->defaults->interleave_key, &context.interleaved));
    }
    const char *theta_key = s->defaults->theta_key != NULL ? s->defaults->theta_key : "rope_theta";
    QR_RETURN_IF_ERROR(qr_config_get_double(s, theta_key, 1, 1e15, &context.default_theta));
    if (s->defaults->rotated_part > 0) { /* sections for images (mrope) are one for text */
        context.heads_rotate_in_part = true;
        context.partial_rotary_factor = s->defaults->rotated_part;
        if (s->defaults->rotated_key != NULL) { QR_RETURN_IF_ERROR(read_rotated_count(s, config, &context)); }
        const char *key = s->defaults->rotated_part_key;
        QR_RETURN_IF_ERROR(
            qr_config_get_double(s, key != NULL ? key : "partial_rotary_factor", 0, 1, &context.partial_rotary_factor));
    }
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "original_max_position_embeddings", 1, QR_CONFIG_MAX_POSITIONS,
                                         &context.original_max_position_embeddings));
    if (s->defaults->proportional_part > 0 && qr_json_is_null(qr_json_get(s->json, "rope_parameters"))) {
        context.type = "proportional";
        context.partial_rotary_factor = s->defaults->proportional_part;
    }
    if (s->defaults->window_theta > 0) { return read_two_ropes(s, &context, config); }
    const qr_json *parameters = qr_json_get(s->json, "rope_scaling");
    if (qr_json_is_null(parameters)) { parameters = qr_json_get(s->json, "rope_parameters"); }
    if (s->defaults->needs_rope_scaling && qr_json_is_null(parameters)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: a %s model needs \"rope_scaling\"", s->what,
                       qr_model_family_name(config->family));
    }
    if (is_nested(parameters)) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: rotary parameters by layer type are not supported for %s",
                       s->what, qr_model_family_name(config->family));
    }
    QR_RETURN_IF_ERROR(read_attn_temperature(s, parameters, config));
    QR_RETURN_IF_ERROR(qr_rope_config_read(parameters, &context, &config->rope, s->err));
    QR_RETURN_IF_ERROR(qr_rope_config_read(parameters, &context, &config->rope_local, s->err));
    return read_own(s, qr_family_keys_of(config->family)->rope, config);
}

/* ---- types and ids ----------------------------------------------------------------------------------------------- */

/* The wrapper of Gemma 3 keeps these at the top; what is there wins over the text model's. */
static qrun_status read_identity(const qr_config_source *s, qr_model_config *config) {
    config->dtype = QR_DTYPE_F32;
    config->bos_token_id = s->defaults->bos;
    config->pad_token_id = s->defaults->pad;
    if (s->defaults->eos >= 0) { config->eos = (qr_token_ids){{(int32_t)s->defaults->eos}, 1}; }
    for (size_t i = 0; i < QR_COUNT_OF(s->defaults->more_eos) && s->defaults->more_eos[i] > 0; i++) {
        config->eos.ids[config->eos.n++] = s->defaults->more_eos[i];
    }
    config->tie_word_embeddings = s->defaults->tied;
    const qr_json *const objects[] = {s->json, s->root};
    for (size_t i = 0; i < QR_COUNT_OF(objects); i++) {
        QR_RETURN_IF_ERROR(qr_config_dtype_read(objects[i], "torch_dtype", &config->dtype, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_config_dtype_read(objects[i], "dtype", &config->dtype, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_token_id_read(objects[i], "bos_token_id", &config->bos_token_id, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_token_id_read(objects[i], "pad_token_id", &config->pad_token_id, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_token_ids_read(objects[i], "eos_token_id", &config->eos, s->what, s->err));
        QR_RETURN_IF_ERROR(
            qr_json_get_bool(objects[i], "tie_word_embeddings", &config->tie_word_embeddings, s->what, s->err));
        if (s->defaults->tie_key == NULL) { continue; }
        QR_RETURN_IF_ERROR(
            qr_json_get_bool(objects[i], s->defaults->tie_key, &config->tie_word_embeddings, s->what, s->err));
    }
    return QRUN_OK;
}

/* A classifier of a supported family has no language-model head. */
static qrun_status check_architecture(const qr_config_source *s) {
    const qr_json *name = qr_json_first(qr_json_get(s->root, "architectures"));
    if (!cJSON_IsString(name) || qr_ends_with(name->valuestring, "ForCausalLM") ||
        qr_ends_with(name->valuestring, "LMHeadModel") || qr_ends_with(name->valuestring, "ForConditionalGeneration")) {
        return QRUN_OK;
    }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: architecture \"%.100s\" does not generate text; a model "
                   "\"…ForCausalLM\" is needed",
                   s->what, name->valuestring);
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

/* Of a model with images the text model is read: what it is, and where it is in config.json. */
static qrun_status enter_wrapper(qr_config_source *s, const char **model_type, qr_model_config *config) {
#define QR_X(wrapper, text, may_be_flat) {wrapper, text, may_be_flat},
    static const struct {
        const char *wrapper, *text;
        bool may_be_flat;
    } wrappers[] = {QR_MODEL_WRAPPERS(QR_X)};
#undef QR_X
    for (size_t i = 0; i < QR_COUNT_OF(wrappers); i++) {
        if (strcmp(*model_type, wrappers[i].wrapper) != 0) { continue; }
        const qr_json *text = qr_json_get(s->root, "text_config");
        config->is_multimodal = true;
        *model_type = wrappers[i].text;
        if (text == NULL && wrappers[i].may_be_flat) { return QRUN_OK; }
        if (!cJSON_IsObject(text)) {
            return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: a %s model should have a \"text_config\"", s->what,
                           wrappers[i].wrapper);
        }
        s->json = text;
        return qr_json_get_string(s->json, "model_type", model_type, s->what, s->err);
    }
    return QRUN_OK;
}

static qrun_status read_all(qr_config_source *s, qr_model_config *config) {
    const char *model_type = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->root, "model_type", &model_type, s->what, s->err));
    if (model_type == NULL) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: has no \"model_type\"; is this the config.json of a model?",
                       s->what);
    }
    QR_RETURN_IF_ERROR(enter_wrapper(s, &model_type, config));
    QR_RETURN_IF_ERROR(find_family(model_type, s->what, &config->family, s->err));
    s->defaults = qr_family_defaults_of(config->family);
    config->norm_eps = s->defaults->norm_eps;
    config->initializer_range = 0.02;
    QR_RETURN_IF_ERROR(check_architecture(s));
    const qr_json *quantization = qr_json_get(s->root, "quantization_config");
    if (qr_json_is_null(quantization)) { quantization = qr_json_get(s->json, "quantization_config"); }
    QR_RETURN_IF_ERROR(qr_quantization_config_read(quantization, s->what, &config->quantization, s->err));
    QR_RETURN_IF_ERROR(read_sizes(s, config));
    QR_RETURN_IF_ERROR(read_own(s, qr_family_keys_of(config->family)->layers, config));
    QR_RETURN_IF_ERROR(qr_expert_config_read(s->json, s->what, &s->defaults->experts, config->n_layers,
                                             config->intermediate_size, config->blocks, &config->experts, s->err));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, s->defaults->names->norm_eps, 0, 1, &config->norm_eps));
    config->post_norm_eps = config->norm_eps;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "initializer_range", 0, 100, &config->initializer_range));
    QR_RETURN_IF_ERROR(read_activation(s, config));
    QR_RETURN_IF_ERROR(read_multipliers(s, config));
    QR_RETURN_IF_ERROR(read_attention(s, config));
    QR_RETURN_IF_ERROR(read_rotated_layers(s, config));
    QR_RETURN_IF_ERROR(read_windows(s, config));
    QR_RETURN_IF_ERROR(read_layer_heads(s, config));
    const qr_recurrent_context recurrent = {.what = s->what,
                                            .kind = s->defaults->recurrent,
                                            .conv_kernel = s->defaults->conv_kernel,
                                            .n_layers = config->n_layers,
                                            .hidden_size = config->hidden_size,
                                            .n_heads = s->defaults->delta_has_heads_of_attention ? config->n_heads : 0,
                                            .by_channel = s->defaults->delta_by_channel,
                                            .has_windows = s->defaults->window != QR_WINDOW_NEVER,
                                            .beside_attention = s->defaults->state_beside_attention,
                                            .attending_key = s->defaults->attending_key,
                                            .blocks = config->blocks};
    QR_RETURN_IF_ERROR(qr_recurrent_config_read(s->json, &recurrent, &config->recurrent, s->err));
    QR_RETURN_IF_ERROR(read_rope(s, config));
    return read_identity(s, config);
}

static qrun_status hash_content(const qr_json *root, qr_model_config *config, qr_error *err) {
    qr_buffer text = {0};
    qr_json_append(&text, root);
    const qrun_status status = qr_buffer_ok(&text) ? QRUN_OK : qr_fail_memory(err, "config.json", text.size);
    if (status == QRUN_OK) { config->content_hash = qr_hash_bytes(QR_HASH_START, text.data, text.size); }
    qr_buffer_free(&text);
    return status;
}

qrun_status qr_model_config_parse(const qr_json *root, const char *what, qr_model_config *config, qr_error *err) {
    *config = (qr_model_config){0};
    if (!cJSON_IsObject(root)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what); }
    qr_config_source s = {.json = root, .root = root, .what = what, .err = err};
    qrun_status status = read_all(&s, config);
    if (status == QRUN_OK) { status = hash_content(root, config, err); }
    if (status != QRUN_OK) { qr_model_config_free(config); }
    return status;
}

qrun_status qr_model_config_read(const char *folder, qr_model_config *config, qr_error *err) {
    qr_json *root = NULL;
    char *what = NULL;
    *config = (qr_model_config){0};
    qrun_status status = qr_source_read_json(folder, "config.json", QR_MODEL_CONFIG_BYTES, &root, &what, err);
    if (status == QRUN_OK && root == NULL) {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: there is no such file", what);
    }
    if (status == QRUN_OK) { status = qr_model_config_parse(root, what, config, err); }
    if (status == QRUN_OK && qr_source_is_converted(folder)) {
        config->norm_adds_one = false;
        config->outputs_first = true;
    }
    qr_json_free(root);
    qr_free(what);
    return status;
}

void qr_model_config_free(qr_model_config *config) {
    qr_quantization_config_free(&config->quantization);
    qr_free(config->layer_slides);
    qr_free(config->layer_rotates);
    qr_free(config->layer_mlp);
    qr_free(config->gate_parts);
    qr_free(config->blocks);
    qr_expert_config_free(&config->experts);
    qr_recurrent_config_free(&config->recurrent);
    qr_rope_config_free(&config->rope);
    qr_rope_config_free(&config->rope_local);
    *config = (qr_model_config){0};
}
