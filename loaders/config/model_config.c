#include "loaders/config/model_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/files/suffix.h"

static const size_t MAX_CONFIG_BYTES = 16 << 20;
static const int64_t MAX_POSITIONS = INT64_C(1) << 31;

enum { FROM_N_HEADS = -1, FROM_HIDDEN = -2, NO_WINDOW = 0 };

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* Where a family keeps what all of them have. */
typedef struct key_names {
    const char *hidden_size, *intermediate_size, *n_layers, *n_heads, *max_positions, *norm_eps, *activation;
} key_names;

static const key_names usual_names = {"hidden_size",         "intermediate_size",       "num_hidden_layers",
                                      "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
                                      "hidden_act"};
static const key_names gemma_names = {"hidden_size",         "intermediate_size",       "num_hidden_layers",
                                      "num_attention_heads", "max_position_embeddings", "rms_norm_eps",
                                      "hidden_activation"};
static const key_names gpt2_names = {
    "n_embd", "n_inner", "n_layer", "n_head", "n_positions", "layer_norm_epsilon", "activation_function"};

/* Which layers have a sliding window. */
typedef enum window_rule {
    WINDOW_NEVER,      /* the key is ignored */
    WINDOW_ALL,        /* every layer, when sliding_window is set */
    WINDOW_FROM_LAYER, /* use_sliding_window, layers from max_window_layers on */
    WINDOW_PATTERN     /* every layer but each n-th */
} window_rule;

/* The defaults of transformers' configuration classes. */
typedef struct family_row {
    const key_names *names;
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, max_positions;
    double norm_eps;
    const char *activation;
    bool tied;
    double theta;
    int64_t bos, eos, pad;
    window_rule window;
    int64_t sliding_window, window_pattern;
    double attn_softcap, final_softcap;
} family_row;

static const family_row families[QR_FAMILY_COUNT] = {
    [QR_FAMILY_LLAMA] =
        {&usual_names, 32000, 4096, 11008, 32, 32,           FROM_N_HEADS, FROM_HIDDEN, 2048, 1e-6, "silu",
         false,        1e4,   1,    2,     -1, WINDOW_NEVER, NO_WINDOW,    0,           0,    0},
    [QR_FAMILY_MISTRAL] = {&usual_names, 32000, 4096, 14336, 32, 32,         8,    FROM_HIDDEN, 131072, 1e-6, "silu",
                           false,        1e4,   1,    2,     -1, WINDOW_ALL, 4096, 0,           0,      0},
    [QR_FAMILY_QWEN2] =
        {&usual_names,      151936, 4096, 22016, 32, 32, 32, FROM_HIDDEN, 32768, 1e-6, "silu", false, 1e4, -1, -1, -1,
         WINDOW_FROM_LAYER, 4096,   0,    0,     0},
    [QR_FAMILY_QWEN3] =
        {&usual_names,      151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, "silu", false, 1e4, -1, -1, -1,
         WINDOW_FROM_LAYER, 4096,   0,    0,     0},
    [QR_FAMILY_GEMMA2] =
        {&gemma_names,   256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6, "gelu_pytorch_tanh", true, 1e4, 2, 1, 0,
         WINDOW_PATTERN, 4096,   2,    50,   30},
    [QR_FAMILY_GEMMA3] =
        {&gemma_names,   262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, "gelu_pytorch_tanh", true, 1e6, 2, 1, 0,
         WINDOW_PATTERN, 4096,   6,    0,    0},
    [QR_FAMILY_PHI3] = {&usual_names, 32064, 3072,       8192,      32,    32,  FROM_N_HEADS,
                        FROM_HIDDEN,  4096,  1e-5,       "silu",    false, 1e4, 1,
                        32000,        32000, WINDOW_ALL, NO_WINDOW, 0,     0,   0},
    [QR_FAMILY_GPT2] = {&gpt2_names, 50257, 768,          FROM_HIDDEN, 12,   12, FROM_N_HEADS,
                        FROM_HIDDEN, 1024,  1e-5,         "gelu_new",  true, 0,  50256,
                        50256,       -1,    WINDOW_NEVER, NO_WINDOW,   0,    0,  0},
};

const char *qr_model_family_name(qr_model_family family) {
    static const char *const names[] = {
#define QR_X(suffix, name) name,
        QR_MODEL_FAMILIES(QR_X)
#undef QR_X
    };
    return (unsigned)family < QR_FAMILY_COUNT ? names[family] : "?";
}

static qrun_status find_family(const char *model_type, const char *what, qr_model_family *family, qr_error *err) {
    for (int i = 0; i < QR_FAMILY_COUNT; i++) {
        if (strcmp(model_type, qr_model_family_name((qr_model_family)i)) != 0) { continue; }
        *family = (qr_model_family)i;
        return QRUN_OK;
    }
#define QR_X(suffix, name) ", " name
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: model_type \"%.60s\" is not supported; supported are gemma3" QR_MODEL_FAMILIES(QR_X), what,
                   model_type);
#undef QR_X
}

/* ---- reading values ---------------------------------------------------------------------------------------------- */

/* What every reader here needs. */
typedef struct source {
    const qr_json *json; /* the text model's object */
    const qr_json *root; /* the whole file: differs for Gemma 3 with pictures */
    const char *what;
    const family_row *defaults;
    qr_error *err;
} source;

static qrun_status get_bool(const source *s, const char *key, bool *value) {
    return qr_json_get_bool(s->json, key, value, s->what, s->err);
}

static qrun_status get_int(const source *s, const char *key, int64_t low, int64_t high, int64_t *value) {
    return qr_json_get_int(s->json, key, low, high, value, s->what, s->err);
}

static qrun_status get_double(const source *s, const char *key, double low, double high, double *value) {
    return qr_json_get_double(s->json, key, low, high, value, s->what, s->err);
}

/* Absent gives *value as it is; null gives 0. */
static qrun_status read_nullable(const source *s, const char *key, double high, double *value) {
    const qr_json *member = qr_json_get(s->json, key);
    if (member != NULL && qr_json_is_null(member)) { *value = 0; }
    return get_double(s, key, 0, high, value);
}

static qrun_status read_sizes(const source *s, qr_model_config *config) {
    const family_row *row = s->defaults;
    int64_t intermediate = row->intermediate_size, kv_heads = row->n_kv_heads, head_dim = row->head_dim;
    config->vocab_size = row->vocab_size;
    config->hidden_size = row->hidden_size;
    config->n_layers = row->n_layers;
    config->n_heads = row->n_heads;
    config->max_position_embeddings = row->max_positions;
    /* null means "derive it" for these two, whatever the default for an absent key is. */
    const qr_json *member = qr_json_get(s->json, "num_key_value_heads");
    if (member != NULL && qr_json_is_null(member)) { kv_heads = FROM_N_HEADS; }
    member = qr_json_get(s->json, "head_dim");
    if (member != NULL && qr_json_is_null(member)) { head_dim = FROM_HIDDEN; }
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
        {row->names->max_positions, MAX_POSITIONS, &config->max_position_embeddings},
    };
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    config->intermediate_size = intermediate == FROM_HIDDEN ? 4 * config->hidden_size : intermediate;
    config->n_kv_heads = kv_heads == FROM_N_HEADS ? config->n_heads : kv_heads;
    if (head_dim == FROM_HIDDEN && config->hidden_size % config->n_heads != 0) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: hidden size %lld is not divisible by %lld heads", s->what,
                       (long long)config->hidden_size, (long long)config->n_heads);
    }
    config->head_dim = head_dim == FROM_HIDDEN ? config->hidden_size / config->n_heads : head_dim;
    if (config->n_heads % config->n_kv_heads == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld heads are not divisible by %lld key/value heads", s->what,
                   (long long)config->n_heads, (long long)config->n_kv_heads);
}

static qrun_status read_activation(const source *s, qr_model_config *config) {
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
    };
    const char *name = s->defaults->activation;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, s->defaults->names->activation, &name, s->what, s->err));
    for (size_t i = 0; i < QR_COUNT_OF(known); i++) {
        if (strcmp(name, known[i].name) == 0) {
            config->activation = known[i].activation;
            return QRUN_OK;
        }
    }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: activation \"%.60s\" is not supported", s->what, name);
}

/* Llama, Qwen3 and Gemma let the file say which projections have biases; the others are fixed. */
static qrun_status read_biases(const source *s, qr_model_config *config) {
    const qr_model_family family = config->family;
    if (family == QR_FAMILY_GPT2) {
        config->qkv_bias = config->o_bias = config->mlp_bias = true;
        return QRUN_OK;
    }
    config->qkv_bias = family == QR_FAMILY_QWEN2;
    if (family == QR_FAMILY_QWEN2 || family == QR_FAMILY_MISTRAL || family == QR_FAMILY_PHI3) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(get_bool(s, "attention_bias", &config->qkv_bias));
    config->o_bias = config->qkv_bias;
    if (family != QR_FAMILY_LLAMA) { return QRUN_OK; }
    return get_bool(s, "mlp_bias", &config->mlp_bias);
}

static qrun_status refuse_flag(const source *s, const char *key) {
    bool set = false;
    QR_RETURN_IF_ERROR(get_bool(s, key, &set));
    if (!set) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is not supported", s->what, key);
}

static qrun_status read_attention(const source *s, qr_model_config *config) {
    const bool is_gemma = config->family == QR_FAMILY_GEMMA2 || config->family == QR_FAMILY_GEMMA3;
    config->query_pre_attn_scalar = (double)config->head_dim;
    config->scale_embeddings = config->norm_adds_one = is_gemma;
    if (is_gemma) {
        config->query_pre_attn_scalar = 256;
        config->attn_logit_softcapping = s->defaults->attn_softcap;
        config->final_logit_softcapping = s->defaults->final_softcap;
        QR_RETURN_IF_ERROR(get_double(s, "query_pre_attn_scalar", 1e-6, 1e9, &config->query_pre_attn_scalar));
        QR_RETURN_IF_ERROR(read_nullable(s, "attn_logit_softcapping", 1e9, &config->attn_logit_softcapping));
        QR_RETURN_IF_ERROR(read_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
        QR_RETURN_IF_ERROR(refuse_flag(s, "use_bidirectional_attention"));
    }
    if (config->family == QR_FAMILY_GPT2) {
        bool scales = true;
        QR_RETURN_IF_ERROR(get_bool(s, "scale_attn_weights", &scales));
        if (!scales) { config->query_pre_attn_scalar = 1; }
        QR_RETURN_IF_ERROR(refuse_flag(s, "scale_attn_by_inverse_layer_idx"));
        QR_RETURN_IF_ERROR(refuse_flag(s, "add_cross_attention"));
    }
    return read_biases(s, config);
}

/* ---- sliding windows --------------------------------------------------------------------------------------------- */

static qrun_status read_layer_types(const source *s, const qr_json *list, qr_model_config *config) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        const bool slides = strcmp(type, "sliding_attention") == 0;
        if (!slides && strcmp(type, "full_attention") != 0) {
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
static qrun_status apply_window_rule(const source *s, qr_model_config *config) {
    const window_rule rule = s->defaults->window;
    int64_t first = 28, pattern = s->defaults->window_pattern;
    if (rule == WINDOW_FROM_LAYER) {
        QR_RETURN_IF_ERROR(get_int(s, "max_window_layers", 0, 1 << 20, &first));
    } else if (config->family == QR_FAMILY_GEMMA3) {
        QR_RETURN_IF_ERROR(get_int(s, "sliding_window_pattern", 1, 1 << 20, &pattern));
    }
    for (int64_t i = 0; i < config->n_layers; i++) {
        config->layer_slides[i] = rule == WINDOW_ALL || (rule == WINDOW_FROM_LAYER && i >= first) ||
                                  (rule == WINDOW_PATTERN && (i + 1) % pattern != 0);
    }
    return QRUN_OK;
}

static qrun_status read_windows(const source *s, qr_model_config *config) {
    config->layer_slides = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_slides);
    if (config->layer_slides == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers); }
    if (s->defaults->window == WINDOW_NEVER) { return QRUN_OK; }
    bool used = s->defaults->window != WINDOW_FROM_LAYER;
    if (!used) { QR_RETURN_IF_ERROR(get_bool(s, "use_sliding_window", &used)); }
    if (!used) { return QRUN_OK; }
    const qr_json *window = qr_json_get(s->json, "sliding_window");
    config->sliding_window = window != NULL && qr_json_is_null(window) ? NO_WINDOW : s->defaults->sliding_window;
    QR_RETURN_IF_ERROR(get_int(s, "sliding_window", 1, MAX_POSITIONS, &config->sliding_window));
    if (config->sliding_window == NO_WINDOW) { return QRUN_OK; }
    const qr_json *types = qr_json_get(s->json, "layer_types");
    const bool listed = s->defaults->window != WINDOW_ALL && !qr_json_is_null(types);
    QR_RETURN_IF_ERROR(listed ? read_layer_types(s, types, config) : apply_window_rule(s, config));
    bool any = false;
    for (int64_t i = 0; i < config->n_layers; i++) { any |= config->layer_slides[i]; }
    if (!any) { config->sliding_window = NO_WINDOW; }
    return QRUN_OK;
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

static bool is_nested(const qr_json *parameters) {
    return cJSON_IsObject(qr_json_get(parameters, "full_attention")) ||
           cJSON_IsObject(qr_json_get(parameters, "sliding_attention"));
}

/* Gemma 3: full-attention and sliding layers have parameters of their own; rope_scaling is for the former. */
static qrun_status read_two_ropes(const source *s, qr_rope_context *context, qr_model_config *config) {
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
    QR_RETURN_IF_ERROR(qr_rope_config_read(full, context, &config->rope, s->err));
    context->default_theta = 1e4;
    QR_RETURN_IF_ERROR(get_double(s, "rope_local_base_freq", 1, 1e15, &context->default_theta));
    return qr_rope_config_read(qr_json_get(parameters, "sliding_attention"), context, &config->rope_local, s->err);
}

static qrun_status read_rope(const source *s, qr_model_config *config) {
    config->has_rope = config->family != QR_FAMILY_GPT2;
    if (!config->has_rope) { return QRUN_OK; }
    qr_rope_context context = {.what = s->what,
                               .head_dim = config->head_dim,
                               .max_position_embeddings = config->max_position_embeddings,
                               .default_theta = s->defaults->theta,
                               .partial_rotary_factor = 1};
    QR_RETURN_IF_ERROR(get_double(s, "rope_theta", 1, 1e15, &context.default_theta));
    if (config->family == QR_FAMILY_PHI3) {
        context.heads_rotate_in_part = true;
        QR_RETURN_IF_ERROR(get_double(s, "partial_rotary_factor", 0, 1, &context.partial_rotary_factor));
        context.su_is_longrope = true;
        context.original_max_position_embeddings = 4096;
    }
    QR_RETURN_IF_ERROR(
        get_int(s, "original_max_position_embeddings", 1, MAX_POSITIONS, &context.original_max_position_embeddings));
    if (config->family == QR_FAMILY_GEMMA3) { return read_two_ropes(s, &context, config); }
    const qr_json *parameters = qr_json_get(s->json, "rope_scaling");
    if (qr_json_is_null(parameters)) { parameters = qr_json_get(s->json, "rope_parameters"); }
    if (is_nested(parameters)) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: rotary parameters by layer type are not supported for %s",
                       s->what, qr_model_family_name(config->family));
    }
    QR_RETURN_IF_ERROR(qr_rope_config_read(parameters, &context, &config->rope, s->err));
    return qr_rope_config_read(parameters, &context, &config->rope_local, s->err);
}

/* ---- types, ids, quantisation ------------------------------------------------------------------------------------ */

static qrun_status read_dtype(const qr_json *object, const char *key, const char *what, qr_dtype *dtype,
                              qr_error *err) {
    static const struct {
        const char *name;
        qr_dtype dtype;
    } known[] = {{"float32", QR_DTYPE_F32}, {"float16", QR_DTYPE_F16}, {"bfloat16", QR_DTYPE_BF16}};
    const char *name = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(object, key, &name, what, err));
    if (name == NULL) { return QRUN_OK; }
    if (strncmp(name, "torch.", 6) == 0) { name += 6; }
    for (size_t i = 0; i < QR_COUNT_OF(known); i++) {
        if (strcmp(name, known[i].name) == 0) {
            *dtype = known[i].dtype;
            return QRUN_OK;
        }
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is \"%.60s\"; supported are float32, float16 and bfloat16",
                   what, key, name);
}

/* The wrapper of Gemma 3 keeps these at the top; what is there wins over the text model's. */
static qrun_status read_identity(const source *s, qr_model_config *config) {
    config->dtype = QR_DTYPE_F32;
    config->bos_token_id = s->defaults->bos;
    config->pad_token_id = s->defaults->pad;
    if (s->defaults->eos >= 0) { config->eos = (qr_token_ids){{(int32_t)s->defaults->eos}, 1}; }
    config->tie_word_embeddings = s->defaults->tied;
    const qr_json *const objects[] = {s->json, s->root};
    for (size_t i = 0; i < QR_COUNT_OF(objects); i++) {
        QR_RETURN_IF_ERROR(read_dtype(objects[i], "torch_dtype", s->what, &config->dtype, s->err));
        QR_RETURN_IF_ERROR(read_dtype(objects[i], "dtype", s->what, &config->dtype, s->err));
        QR_RETURN_IF_ERROR(qr_token_id_read(objects[i], "bos_token_id", &config->bos_token_id, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_token_id_read(objects[i], "pad_token_id", &config->pad_token_id, s->what, s->err));
        QR_RETURN_IF_ERROR(qr_token_ids_read(objects[i], "eos_token_id", &config->eos, s->what, s->err));
        QR_RETURN_IF_ERROR(
            qr_json_get_bool(objects[i], "tie_word_embeddings", &config->tie_word_embeddings, s->what, s->err));
    }
    return QRUN_OK;
}

/* A classifier of a supported family has no language-model head. */
static qrun_status check_architecture(const source *s) {
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

static qrun_status read_skip_modules(const qr_json *list, const source *s, qr_quantization_config *quantization) {
    if (qr_json_is_null(list)) { return QRUN_OK; }
    if (!cJSON_IsArray(list)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"llm_int8_skip_modules\" is not a list", s->what);
    }
    size_t capacity = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) {
            return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"llm_int8_skip_modules\" holds something other than names",
                           s->what);
        }
        char *name = qr_strdup(item->valuestring);
        if (name == NULL || !qr_array_reserve(&quantization->skip_modules, &capacity, quantization->n_skip_modules + 1,
                                              sizeof *quantization->skip_modules)) {
            qr_free(name);
            return qr_fail_memory(s->err, s->what, strlen(item->valuestring));
        }
        quantization->skip_modules[quantization->n_skip_modules++] = name;
    }
    return QRUN_OK;
}

static qrun_status check_bnb_4bit(const qr_json *object, const source *s) {
    const char *type = "fp4";
    QR_RETURN_IF_ERROR(qr_json_get_string(object, "bnb_4bit_quant_type", &type, s->what, s->err));
    if (strcmp(type, "nf4") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is quantised as bitsandbytes \"%.20s\", and only \"nf4\" can be "
                   "read; use the original model instead",
                   s->what, type);
}

static qrun_status read_quantization(const source *s, qr_model_config *config) {
    qr_quantization_config *quantization = &config->quantization;
    quantization->compute_dtype = QR_DTYPE_F32;
    const qr_json *object = qr_json_get(s->root, "quantization_config");
    if (qr_json_is_null(object)) { object = qr_json_get(s->json, "quantization_config"); }
    if (qr_json_is_null(object)) { return QRUN_OK; }
    bool in_4bit = false, in_8bit = false;
    const char *method = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_bool(object, "load_in_4bit", &in_4bit, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(object, "load_in_8bit", &in_8bit, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_json_get_string(object, "quant_method", &method, s->what, s->err));
    if (method == NULL && (in_4bit || in_8bit)) { method = "bitsandbytes"; }
    if (method == NULL || strcmp(method, "bitsandbytes") != 0) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: the model is stored in the %.40s format, which is not supported; use the original 16-bit "
                       "model instead, qrun quantises it while loading",
                       s->what, method != NULL ? method : "unknown");
    }
    if (in_4bit == in_8bit) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: quantization_config should say either load_in_4bit or load_in_8bit", s->what);
    }
    quantization->stored = in_4bit ? QR_STORED_BNB_NF4 : QR_STORED_BNB_INT8;
    if (in_4bit) { QR_RETURN_IF_ERROR(check_bnb_4bit(object, s)); }
    QR_RETURN_IF_ERROR(
        qr_json_get_bool(object, "bnb_4bit_use_double_quant", &quantization->double_quantised, s->what, s->err));
    QR_RETURN_IF_ERROR(read_dtype(object, "bnb_4bit_compute_dtype", s->what, &quantization->compute_dtype, s->err));
    return read_skip_modules(qr_json_get(object, "llm_int8_skip_modules"), s, quantization);
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static qrun_status read_all(source *s, qr_model_config *config) {
    const char *model_type = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->root, "model_type", &model_type, s->what, s->err));
    if (model_type == NULL) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: has no \"model_type\"; is this the config.json of a model?",
                       s->what);
    }
    if (strcmp(model_type, "gemma3") == 0) {
        config->is_multimodal = true;
        s->json = qr_json_get(s->root, "text_config");
        if (!cJSON_IsObject(s->json)) {
            return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: a gemma3 model should have a \"text_config\"", s->what);
        }
        model_type = "gemma3_text";
    }
    QR_RETURN_IF_ERROR(find_family(model_type, s->what, &config->family, s->err));
    s->defaults = &families[config->family];
    config->norm_eps = s->defaults->norm_eps;
    config->initializer_range = 0.02;
    QR_RETURN_IF_ERROR(check_architecture(s));
    QR_RETURN_IF_ERROR(read_quantization(s, config));
    QR_RETURN_IF_ERROR(read_sizes(s, config));
    QR_RETURN_IF_ERROR(get_double(s, s->defaults->names->norm_eps, 0, 1, &config->norm_eps));
    QR_RETURN_IF_ERROR(get_double(s, "initializer_range", 0, 100, &config->initializer_range));
    QR_RETURN_IF_ERROR(read_activation(s, config));
    QR_RETURN_IF_ERROR(read_attention(s, config));
    QR_RETURN_IF_ERROR(read_windows(s, config));
    QR_RETURN_IF_ERROR(read_rope(s, config));
    return read_identity(s, config);
}

qrun_status qr_model_config_parse(const qr_json *root, const char *what, qr_model_config *config, qr_error *err) {
    *config = (qr_model_config){0};
    if (!cJSON_IsObject(root)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a JSON object", what); }
    source s = {.json = root, .root = root, .what = what, .err = err};
    const qrun_status status = read_all(&s, config);
    if (status != QRUN_OK) { qr_model_config_free(config); }
    return status;
}

qrun_status qr_model_config_read(const char *folder, qr_model_config *config, qr_error *err) {
    *config = (qr_model_config){0};
    char *path = qr_path_join(folder, "config.json");
    if (path == NULL) { return qr_fail_memory(err, folder, strlen(folder)); }
    qr_json *root;
    qrun_status status = qr_json_read(path, MAX_CONFIG_BYTES, &root, err);
    if (status == QRUN_OK) { status = qr_model_config_parse(root, path, config, err); }
    qr_json_free(root);
    qr_free(path);
    return status;
}

void qr_model_config_free(qr_model_config *config) {
    for (size_t i = 0; i < config->quantization.n_skip_modules; i++) { qr_free(config->quantization.skip_modules[i]); }
    qr_free(config->quantization.skip_modules);
    qr_free(config->layer_slides);
    qr_rope_config_free(&config->rope);
    qr_rope_config_free(&config->rope_local);
    *config = (qr_model_config){0};
}
