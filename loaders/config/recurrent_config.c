#include "loaders/config/recurrent_config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"

static const char FULL[] = "full_attention", SLIDING[] = "sliding_attention";
static const char LINEAR_ATTENTION[] = "linear_attn_config";

/* What every reader here needs. */
typedef struct source {
    const qr_json *json;
    const char *what;
    int64_t n_layers, hidden_size, n_heads;
    bool by_channel;
    bool has_windows;
    bool beside_attention;
    const char *attending_key;
    const qr_block *blocks;
    qr_error *err;
} source;

static qrun_status get_int(const source *s, const char *key, int64_t low, int64_t high, int64_t *value) {
    return qr_json_get_int(s->json, key, low, high, value, s->what, s->err);
}

qrun_status qr_config_read_factors(const qr_json *json, const char *key, int64_t n, double *factors, const char *what,
                                   qr_error *err) {
    const qr_json *list = qr_json_get(json, key), *item = qr_json_first(list);
    int64_t n_read = 0;
    if (qr_json_is_null(list)) { return QRUN_OK; }
    for (; item != NULL && n_read < n && cJSON_IsNumber(item); item = item->next) {
        if (!(item->valuedouble >= 1e-9 && item->valuedouble <= 1e9)) { break; }
        factors[n_read++] = item->valuedouble;
    }
    if (cJSON_IsArray(list) && n_read == n && item == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of %lld positive numbers", what, key,
                   (long long)n);
}

/* ---- Which layers ------------------------------------------------------------------------------------------------ */

/* What layer_types calls the layers of a kind, and what older files call those and the ones that attend; NULL: no
 * other. */
static const struct {
    const char *recurrent, *older_recurrent, *older_attends;
} type_names[] = {[QR_RECURRENT_DELTA] = {"linear_attention", NULL, NULL},
                  [QR_RECURRENT_CONV] = {"conv", NULL, NULL},
                  [QR_RECURRENT_SPACE] = {"linear_attention", "mamba", "attention"}};

static bool is_either(const char *type, const char *name, const char *older) {
    return strcmp(type, name) == 0 || (older != NULL && strcmp(type, older) == 0);
}

static qrun_status read_listed(const source *s, const qr_json *list, qr_recurrent_kind kind, bool *layers) {
    const char *recurrent = type_names[kind].recurrent, *attends = type_names[kind].older_attends;
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        const bool is_recurrent = is_either(type, recurrent, type_names[kind].older_recurrent);
        if (!is_recurrent && !is_either(type, FULL, attends) && !(s->has_windows && strcmp(type, SLIDING) == 0)) {
            return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                           "%s: layers of type \"%.60s\" are not supported in this family; its layers are \"%s\" or "
                           "\"%s\"",
                           s->what, type, recurrent, FULL);
        }
        if (n < s->n_layers) { layers[n] = is_recurrent; }
    }
    if (cJSON_IsArray(list) && n == s->n_layers) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"layer_types\" should be a list of %lld layer%s", s->what,
                   (long long)s->n_layers, qr_plural(s->n_layers));
}

/* A list of layers, which counts them from 1. Each layer is in one list. */
static qrun_status read_counted(const source *s, const char *key, bool is_recurrent, bool *seen, bool *layers) {
    const qr_json *list = qr_json_get(qr_json_get(s->json, LINEAR_ATTENTION), key);
    bool is_list = cJSON_IsArray(list);
    for (const qr_json *item = qr_json_first(list); is_list && item != NULL; item = item->next) {
        int64_t layer = 0;
        is_list = qr_json_as_int(item, 1, s->n_layers, &layer) && !seen[layer - 1];
        if (is_list) {
            seen[layer - 1] = true;
            layers[layer - 1] = is_recurrent;
        }
    }
    if (is_list) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"%s\" should be a list of layers, each from 1 to %lld and in no other list", s->what, key,
                   (long long)s->n_layers);
}

/* Kimi Linear: the two lists, or every fourth layer attends, but the first. */
static qrun_status read_kimi_layers(const source *s, bool *layers) {
    static const char *const keys[] = {"full_attn_layers", "kda_layers"};
    const qr_json *given = qr_json_get(s->json, LINEAR_ATTENTION);
    const bool has_lists = qr_json_get(given, keys[0]) != NULL && qr_json_get(given, keys[1]) != NULL;
    for (int64_t l = 0; !has_lists && l < s->n_layers; l++) { layers[l] = l == 0 || l % 4 != 0; }
    if (!has_lists) { return QRUN_OK; }
    bool *seen = qr_alloc_array_zeroed((size_t)s->n_layers, sizeof *seen);
    if (seen == NULL) { return qr_fail_memory(s->err, s->what, (size_t)s->n_layers); }
    qrun_status status = QRUN_OK;
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) { QR_TRY(read_counted(s, keys[i], i == 1, seen, layers)); }
    for (int64_t l = 0; l < s->n_layers; l++) {
        if (seen[l]) { continue; }
        QR_TRY(qr_fail(s->err, QRUN_ERROR_INPUT, "%s: layer %lld is in neither \"%s\" nor \"%s\"", s->what,
                       (long long)(l + 1), keys[0], keys[1]));
    }
out:
    qr_free(seen);
    return status;
}

/* Every full_attention_interval-th layer attends; of OLMo Hybrid every fourth, or the last where there is none. */
static qrun_status read_interval(const source *s, bool *layers) {
    int64_t interval = 4;
    const bool is_olmo = s->n_heads > 0;
    if (!is_olmo) { QR_RETURN_IF_ERROR(get_int(s, "full_attention_interval", 1, 1 << 12, &interval)); }
    for (int64_t l = 0; l < s->n_layers; l++) { layers[l] = (l + 1) % interval != 0; }
    if (is_olmo && s->n_layers < interval) { layers[s->n_layers - 1] = false; }
    return QRUN_OK;
}

/* Without any list, all layers of LFM2 attend. Of LFM3, which has windows, the first does not, and then every other. */
static void attend_by_default(const source *s, bool *layers) {
    for (int64_t l = 0; l < s->n_layers; l++) { layers[l] = s->has_windows && (l == 0 || l % 2 == 1); }
}

/* The layers that attend, by number. */
static qrun_status read_attending(const source *s, const char *key, bool *layers) {
    const qr_json *list = qr_json_get(s->json, key);
    bool is_list = cJSON_IsArray(list);
    for (int64_t l = 0; l < s->n_layers; l++) { layers[l] = true; }
    for (const qr_json *item = qr_json_first(list); is_list && item != NULL; item = item->next) {
        int64_t layer = 0;
        is_list = qr_json_as_int(item, 0, INT64_MAX, &layer);
        if (is_list && layer < s->n_layers) { layers[layer] = false; }
    }
    if (is_list) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of layers", s->what, key);
}

static bool any_layer(const source *s, const qr_recurrent_config *config, bool is_recurrent) {
    for (int64_t l = 0; l < s->n_layers; l++) {
        if (config->layers[l] == is_recurrent) { return true; }
    }
    return false;
}

/* Those that are a state space; attention is among the others (block_config.h). */
static qrun_status take_blocks(const source *s, qr_recurrent_config *config) {
    config->layers = qr_alloc_array((size_t)s->n_layers, sizeof *config->layers);
    if (config->layers == NULL) { return qr_fail_memory(s->err, s->what, (size_t)s->n_layers); }
    for (int64_t l = 0; l < s->n_layers; l++) { config->layers[l] = s->blocks[l] == QR_BLOCK_SPACE; }
    return QRUN_OK;
}

/* All of them. */
static qrun_status take_all(const source *s, qr_recurrent_config *config) {
    config->layers = qr_alloc_array((size_t)s->n_layers, sizeof *config->layers);
    if (config->layers == NULL) { return qr_fail_memory(s->err, s->what, (size_t)s->n_layers); }
    for (int64_t l = 0; l < s->n_layers; l++) { config->layers[l] = true; }
    return QRUN_OK;
}

static qrun_status read_layers(const source *s, qr_recurrent_config *config) {
    if (s->blocks != NULL) { return take_blocks(s, config); }
    if (s->beside_attention) { return take_all(s, config); }
    const qr_json *list = qr_json_get(s->json, "layer_types");
    if (qr_json_is_null(list) && config->kind == QR_RECURRENT_SPACE) {
        list = qr_json_get(s->json, "layers_block_type");
    }
    config->layers = qr_alloc_array_zeroed((size_t)s->n_layers, sizeof *config->layers);
    if (config->layers == NULL) { return qr_fail_memory(s->err, s->what, (size_t)s->n_layers); }
    if (s->attending_key != NULL && !qr_json_is_null(qr_json_get(s->json, s->attending_key))) {
        QR_RETURN_IF_ERROR(read_attending(s, s->attending_key, config->layers));
    } else if (!qr_json_is_null(list)) {
        QR_RETURN_IF_ERROR(read_listed(s, list, config->kind, config->layers));
    } else if (s->by_channel) {
        QR_RETURN_IF_ERROR(read_kimi_layers(s, config->layers));
    } else if (config->kind == QR_RECURRENT_DELTA) {
        QR_RETURN_IF_ERROR(read_interval(s, config->layers));
    } else if (config->kind == QR_RECURRENT_CONV) {
        const char *key = "full_attn_idxs";
        const bool is_listed = !s->has_windows && !qr_json_is_null(qr_json_get(s->json, key));
        if (is_listed) { QR_RETURN_IF_ERROR(read_attending(s, key, config->layers)); }
        if (!is_listed) { attend_by_default(s, config->layers); }
    } else {
        for (int64_t l = 0; l < s->n_layers; l++) { config->layers[l] = true; }
    }
    if (any_layer(s, config, false)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: no layer is \"%s\", and a model needs at least one", s->what,
                   FULL);
}

/* ---- Their sizes ------------------------------------------------------------------------------------------------- */

static qrun_status check_sizes(const source *s, const qr_recurrent_config *config, const char *heads,
                               const char *shared) {
    if (config->n_value_heads % config->n_key_heads != 0) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %s %lld is not divisible by %s %lld", s->what, heads,
                       (long long)config->n_value_heads, shared, (long long)config->n_key_heads);
    }
    if (config->n_value_heads > INT32_MAX / (config->key_dim * config->value_dim)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld %s of %lld by %lld are too many", s->what,
                       (long long)config->n_value_heads, heads, (long long)config->key_dim,
                       (long long)config->value_dim);
    }
    return QRUN_OK;
}

/* OLMo Hybrid: what it does otherwise, and sizes that follow from others unless they are given. */
static qrun_status read_olmo_hybrid(const source *s, qr_recurrent_config *config) {
    config->doubles_beta = true;
    config->norm_eps = 1e-5; /* whatever config.json says */
    config->n_key_heads = config->n_value_heads = s->n_heads;
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "linear_allow_neg_eigval", &config->doubles_beta, s->what, s->err));
    QR_RETURN_IF_ERROR(get_int(s, "linear_num_key_heads", 1, 1 << 12, &config->n_key_heads));
    config->key_dim = qr_max(3 * s->hidden_size / (4 * config->n_key_heads), 1);
    QR_RETURN_IF_ERROR(get_int(s, "linear_key_head_dim", 1, 1 << 10, &config->key_dim));
    config->value_dim = 2 * config->key_dim;
    return QRUN_OK;
}

/* Kimi Linear: keys of transformers, and those of published files, which count. */
static qrun_status read_kimi_sizes(const source *s, qr_recurrent_config *config) {
    const qr_json *given = qr_json_get(s->json, LINEAR_ATTENTION);
    int64_t n_heads = 32, dim = 128;
    const struct {
        const char *key, *given_key;
        int64_t high, *value;
    } sizes[] = {{"linear_num_heads", "num_heads", 1 << 12, &n_heads},
                 {"linear_head_dim", "head_dim", 1 << 10, &dim},
                 {"linear_conv_kernel_dim", "short_conv_kernel_size", 8, &config->conv_kernel}};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
        QR_RETURN_IF_ERROR(
            qr_json_get_int(given, sizes[i].given_key, 1, sizes[i].high, sizes[i].value, s->what, s->err));
    }
    config->n_key_heads = config->n_value_heads = n_heads;
    config->key_dim = config->value_dim = config->gate_rank = dim;
    config->decays_channels = true;
    return check_sizes(s, config, "linear_num_heads", "linear_num_heads");
}

static qrun_status read_delta_sizes(const source *s, qr_recurrent_config *config) {
    if (s->by_channel) { return read_kimi_sizes(s, config); }
    config->n_key_heads = 16;
    config->n_value_heads = 32;
    config->key_dim = config->value_dim = 128;
    if (s->n_heads > 0) { QR_RETURN_IF_ERROR(read_olmo_hybrid(s, config)); }
    const struct {
        const char *key;
        int64_t high, *value;
    } sizes[] = {{"linear_num_key_heads", 1 << 12, &config->n_key_heads},
                 {"linear_num_value_heads", 1 << 12, &config->n_value_heads},
                 {"linear_key_head_dim", 1 << 10, &config->key_dim},
                 {"linear_value_head_dim", 1 << 10, &config->value_dim},
                 {"linear_conv_kernel_dim", 8, &config->conv_kernel}};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    return check_sizes(s, config, "linear_num_value_heads", "linear_num_key_heads");
}

static qrun_status read_conv_sizes(const source *s, qr_recurrent_config *config) {
    bool has_biases = false;
    QR_RETURN_IF_ERROR(get_int(s, "conv_L_cache", 1, 8, &config->conv_kernel));
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "conv_bias", &has_biases, s->what, s->err));
    if (!has_biases) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"conv_bias\" is not supported", s->what);
}

/* A number, or as transformers 5 writes one that JSON does not have. */
static double limit_of(const qr_json *item) {
    const qr_json *text = cJSON_IsObject(item) ? qr_json_get(item, "__float__") : NULL;
    if (cJSON_IsString(text) && strcmp(text->valuestring, "Infinity") == 0) { return INFINITY; }
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Steps are softplus of something, so 0 limits none from below, and no activation is so large that it would meet the
 * upper limits that are read. */
static qrun_status refuse_step_limits(const source *s, const char *key) {
    const double longest = 1e4;
    const qr_json *limits = qr_json_get(s->json, key), *low = qr_json_first(limits);
    if (qr_json_is_null(limits)) { return QRUN_OK; }
    const bool is_pair = cJSON_IsArray(limits) && qr_json_count(limits) == 2;
    if (is_pair && limit_of(low) == 0 && limit_of(low->next) >= longest) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a \"%s\" other than from 0 to Infinity is not supported",
                   s->what, key);
}

/* Falcon-H1's keys: how many values there are, whether a norm follows their gate, and factors. */
static qrun_status read_falcon_h1(const source *s, int64_t *values, qr_recurrent_config *config) {
    bool has_norm = false, gates_last = true;
    double of_input = 1;
    const qr_json *n_values = qr_json_get(s->json, "mamba_d_ssm");
    if (n_values == NULL) { *values = 1024; } /* null: as mamba_expand says */
    QR_RETURN_IF_ERROR(get_int(s, "mamba_d_ssm", 1, 1 << 24, values));
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "mamba_rms_norm", &has_norm, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "mamba_norm_before_gate", &gates_last, s->what, s->err));
    config->without_norm = !has_norm;
    if (has_norm && gates_last) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"mamba_norm_before_gate\" is not supported", s->what);
    }
    QR_RETURN_IF_ERROR(qr_json_get_double(s->json, "ssm_in_multiplier", 1e-9, 1e9, &of_input, s->what, s->err));
    QR_RETURN_IF_ERROR(
        qr_config_read_factors(s->json, "ssm_multipliers", QR_SPACE_PARTS, config->multipliers, s->what, s->err));
    for (size_t i = 0; i < QR_SPACE_PARTS; i++) { config->multipliers[i] *= of_input; }
    return QRUN_OK;
}

/* Mamba-2 in Granite 4, Bamba and Falcon-H1. */
static qrun_status read_space_sizes(const source *s, qr_recurrent_config *config) {
    int64_t expand = 2;
    bool has_biases = false;
    const qr_json *head_dim = qr_json_get(s->json, "mamba_d_head");
    config->n_key_heads = 1;
    config->n_value_heads = 128;
    config->key_dim = 256;
    config->has_conv_bias = true;
    const struct {
        const char *key;
        int64_t high, *value;
    } sizes[] = {{"mamba_n_groups", 1 << 12, &config->n_key_heads},
                 {"mamba_n_heads", 1 << 12, &config->n_value_heads},
                 {"mamba_d_state", 1 << 10, &config->key_dim},
                 {"mamba_d_conv", 8, &config->conv_kernel},
                 {"mamba_expand", 1 << 10, &expand}};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    int64_t values = expand * s->hidden_size;
    if (s->beside_attention) { QR_RETURN_IF_ERROR(read_falcon_h1(s, &values, config)); }
    config->value_dim = values / config->n_value_heads;
    if (!cJSON_IsString(head_dim) || strcmp(head_dim->valuestring, "auto") != 0) {
        QR_RETURN_IF_ERROR(get_int(s, "mamba_d_head", 1, 1 << 10, &config->value_dim));
    }
    if (config->value_dim * config->n_value_heads != values) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld mamba_n_heads of %lld are not the %lld that %s", s->what,
                       (long long)config->n_value_heads, (long long)config->value_dim, (long long)values,
                       s->beside_attention ? "mamba_d_ssm says" : "mamba_expand times hidden_size gives");
    }
    QR_RETURN_IF_ERROR(qr_json_get_switch(s->json, "mamba_conv_bias", &config->has_conv_bias, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "mamba_proj_bias", &has_biases, s->what, s->err));
    if (has_biases) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"mamba_proj_bias\" is not supported", s->what);
    }
    QR_RETURN_IF_ERROR(refuse_step_limits(s, "time_step_limit"));
    return check_sizes(s, config, "mamba_n_heads", "mamba_n_groups");
}

static qrun_status refuse_space_flags(const source *s) {
    static const char *const keys[] = {"use_bias", "mamba_proj_bias"};
    const char *activation = "silu";
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        bool set = false;
        QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, keys[i], &set, s->what, s->err));
        if (set) { return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is not supported", s->what, keys[i]); }
    }
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "mamba_hidden_act", &activation, s->what, s->err));
    if (strcmp(activation, "silu") == 0 || strcmp(activation, "swish") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"mamba_hidden_act\" is \"%.60s\", not supported", s->what,
                   activation);
}

/* Mamba-2 in Nemotron-H; the second name of a size is an older one, which counts. transformers 5.24 lets no step of a
 * prompt be below time_step_min, but any step of an answer. In the model's own code that key is of new weights alone,
 * as it is here. */
static qrun_status read_block_space_sizes(const source *s, qr_recurrent_config *config) {
    config->n_key_heads = 8;
    config->n_value_heads = 128;
    config->key_dim = 128;
    config->value_dim = 64;
    config->has_conv_bias = true;
    const struct {
        const char *key;
        int64_t high, *value;
    } sizes[] = {{"n_groups", 1 << 12, &config->n_key_heads},
                 {"mamba_n_groups", 1 << 12, &config->n_key_heads},
                 {"mamba_num_heads", 1 << 12, &config->n_value_heads},
                 {"mamba_head_dim", 1 << 10, &config->value_dim},
                 {"ssm_state_size", 1 << 10, &config->key_dim},
                 {"conv_kernel", 8, &config->conv_kernel},
                 {"mamba_d_conv", 8, &config->conv_kernel}};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->json, "use_conv_bias", &config->has_conv_bias, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_switch(s->json, "mamba_conv_bias", &config->has_conv_bias, s->what, s->err));
    QR_RETURN_IF_ERROR(refuse_space_flags(s));
    QR_RETURN_IF_ERROR(refuse_step_limits(s, "time_step_limit"));
    QR_RETURN_IF_ERROR(refuse_step_limits(s, "mamba_dt_limit"));
    return check_sizes(s, config, "mamba_num_heads", "n_groups");
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

qrun_status qr_recurrent_config_read(const qr_json *json, const qr_recurrent_context *context,
                                     qr_recurrent_config *config, qr_error *err) {
    const source s = {.json = json,
                      .what = context->what,
                      .n_layers = context->n_layers,
                      .hidden_size = context->hidden_size,
                      .n_heads = context->n_heads,
                      .by_channel = context->by_channel,
                      .has_windows = context->has_windows,
                      .beside_attention = context->beside_attention,
                      .attending_key = context->attending_key,
                      .blocks = context->blocks,
                      .err = err};
    *config = (qr_recurrent_config){
        .kind = context->kind, .conv_kernel = context->conv_kernel, .beside_attention = context->beside_attention};
    for (size_t i = 0; i < QR_SPACE_PARTS; i++) { config->multipliers[i] = 1; }
    switch (context->kind) {
        case QR_RECURRENT_DELTA: QR_RETURN_IF_ERROR(read_delta_sizes(&s, config)); break;
        case QR_RECURRENT_CONV: QR_RETURN_IF_ERROR(read_conv_sizes(&s, config)); break;
        case QR_RECURRENT_SPACE: break; /* of models that have them: below */
        default: return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(read_layers(&s, config));
    if (context->kind != QR_RECURRENT_SPACE) { return QRUN_OK; }
    if (any_layer(&s, config, true)) {
        return s.blocks != NULL ? read_block_space_sizes(&s, config) : read_space_sizes(&s, config);
    }
    qr_recurrent_config_free(config);
    return QRUN_OK;
}

void qr_recurrent_config_free(qr_recurrent_config *config) {
    qr_free(config->layers);
    *config = (qr_recurrent_config){0};
}
