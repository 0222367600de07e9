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
#include "loaders/config/unsupported_family.h"
#include "loaders/files/suffix.h"
#include "loaders/source/model_source.h"

static const int64_t MAX_POSITIONS = INT64_C(1) << 31;

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

/* ---- reading values ---------------------------------------------------------------------------------------------- */

/* What every reader here needs. */
typedef struct source {
    const qr_json *json; /* the text model's object */
    const qr_json *root; /* the whole file: differs for Gemma 3 with pictures */
    const char *what;
    const qr_family_defaults *defaults;
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

/* LFM2 names the size of its MLP otherwise, or has it adjusted: two thirds of it, times a factor, rounded up. */
static qrun_status read_lfm2_mlp(const source *s, qr_model_config *config) {
    bool adjusts = true;
    int64_t multiple = 256, *const size = &config->intermediate_size;
    const qr_json *const given = qr_json_get(s->json, "block_ffn_dim_multiplier");
    double factor = 1;
    QR_RETURN_IF_ERROR(get_int(s, "block_ff_dim", 1, 1 << 22, size));
    QR_RETURN_IF_ERROR(get_bool(s, "block_auto_adjust_ff_dim", &adjusts));
    QR_RETURN_IF_ERROR(get_int(s, "block_multiple_of", 1, 1 << 16, &multiple));
    QR_RETURN_IF_ERROR(get_double(s, "block_ffn_dim_multiplier", 1e-6, 64, &factor));
    if (!adjusts) { return QRUN_OK; }
    *size = 2 * *size / 3;
    if (given == NULL || !qr_json_is_null(given)) { *size = qr_round_up((int64_t)(factor * (double)*size), multiple); }
    if (*size > 0 && *size <= 1 << 22) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: the adjusted size of its MLPs is %lld", s->what, (long long)*size);
}

/* Where values are shorter than keys. */
static qrun_status read_value_dim(const source *s, qr_model_config *config) {
    int64_t value_dim = s->defaults->value_dim;
    if (value_dim == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(get_int(s, "v_head_dim", 1, 1 << 12, &value_dim));
    if (value_dim < config->head_dim) { config->value_dim = value_dim; }
    if (value_dim <= config->head_dim) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"v_head_dim\" %lld is more than the \"head_dim\" %lld, which is not supported", s->what,
                   (long long)value_dim, (long long)config->head_dim);
}

/* Latent attention: every head has keys and values of its own, whatever num_key_value_heads and head_dim say. */
static qrun_status read_latent(const source *s, qr_model_config *config) {
    config->latent = s->defaults->latent;
    if (config->latent.kv_rank == 0) { return QRUN_OK; }
    if (config->latent.value_dim == 0) { config->latent.value_dim = qr_max(config->hidden_size / config->n_heads, 1); }
    QR_RETURN_IF_ERROR(qr_latent_config_read(s->json, s->what, &config->latent, s->err));
    config->n_kv_heads = config->n_heads;
    config->head_dim = config->latent.plain_dim + config->latent.rotated_dim;
    return QRUN_OK;
}

static qrun_status read_sizes(const source *s, qr_model_config *config) {
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
        {row->names->max_positions, MAX_POSITIONS, &config->max_position_embeddings},
    };
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(get_int(s, sizes[i].key, 1, sizes[i].high, sizes[i].value));
    }
    if (config->family == QR_FAMILY_COHERE2_MOE &&
        qr_json_is_null(qr_json_get(s->json, row->names->intermediate_size))) {
        QR_RETURN_IF_ERROR(get_int(s, "intermediate_size", 1, 1 << 22, &intermediate)); /* as its experts */
    }
    config->intermediate_size = intermediate == DERIVED ? 4 * config->hidden_size : intermediate;
    if (config->family == QR_FAMILY_LFM2) { QR_RETURN_IF_ERROR(read_lfm2_mlp(s, config)); }
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
        {"relu2", QR_ACTIVATION_RELU2},
        {"xielu", QR_ACTIVATION_XIELU},
    };
    const char *name = s->defaults->activation;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, s->defaults->names->activation, &name, s->what, s->err));
    /* The official files say so, and mean the approximation. */
    if (config->family == QR_FAMILY_GEMMA && strcmp(name, "gelu") == 0) { name = s->defaults->activation; }
    const bool has_xielu = config->family == QR_FAMILY_APERTUS; /* no other is read with it, nor it with another */
    for (size_t i = 0; i < QR_COUNT_OF(known) && has_xielu == (strcmp(name, "xielu") == 0); i++) {
        if (strcmp(name, known[i].name) == 0) {
            config->activation = known[i].activation;
            return QRUN_OK;
        }
    }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: activation \"%.60s\" is not supported", s->what, name);
}

static qrun_status refuse_flag(const source *s, const char *key) {
    bool set = false;
    QR_RETURN_IF_ERROR(get_bool(s, key, &set));
    if (!set) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is not supported", s->what, key);
}

/* Nemotron-H has biases in its MLPs alone. */
static qrun_status read_nemotron_h_biases(const source *s, qr_model_config *config) {
    QR_RETURN_IF_ERROR(refuse_flag(s, "attention_bias"));
    QR_RETURN_IF_ERROR(refuse_flag(s, "use_bias"));
    return get_bool(s, "mlp_bias", &config->mlp_bias);
}

/* Falcon-H1 may have biases, and no published model has. */
static qrun_status refuse_falcon_h1_flags(const source *s) {
    static const char *const keys[] = {"attention_bias", "mlp_bias", "projectors_bias"};
    bool has_mlp = true;
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) { QR_RETURN_IF_ERROR(refuse_flag(s, keys[i])); }
    QR_RETURN_IF_ERROR(get_bool(s, "mamba_use_mlp", &has_mlp));
    if (has_mlp) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"mamba_use_mlp\": false is not supported", s->what);
}

/* What configurations of Apertus say of a family of models that it is one of. */
static qrun_status refuse_apertus_flags(const source *s) {
    bool has_head_norms = true;
    QR_RETURN_IF_ERROR(refuse_flag(s, "mlp_bias"));
    QR_RETURN_IF_ERROR(refuse_flag(s, "post_norm"));
    QR_RETURN_IF_ERROR(get_bool(s, "qk_norm", &has_head_norms));
    if (has_head_norms) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"qk_norm\": false is not supported", s->what);
}

/* InternLM3 has biases everywhere or nowhere, as its own keys say, or as transformers calls them. */
static qrun_status read_internlm3_biases(const source *s, qr_model_config *config) {
    static const char *const keys[][2] = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}};
    bool has[2] = {false, false};
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        QR_RETURN_IF_ERROR(get_bool(s, keys[i][0], &has[i]));
        QR_RETURN_IF_ERROR(get_bool(s, keys[i][1], &has[i]));
    }
    config->qkv_bias = config->o_bias = config->mlp_bias = has[0];
    if (has[0] == has[1]) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" and \"%s\" differ, which is not supported", s->what,
                   keys[0][0], keys[1][0]);
}

/* Most families let the file say which projections have biases. */
static qrun_status read_biases(const source *s, qr_model_config *config) {
    const qr_model_family family = config->family;
    if (family == QR_FAMILY_GPT2) {
        config->qkv_bias = config->o_bias = config->mlp_bias = true;
        return QRUN_OK;
    }
    if (s->defaults->bias_key != NULL) {
        if (config->experts.n_experts > 0) { return refuse_flag(s, s->defaults->bias_key); }
        config->qkv_bias = s->defaults->qkv_bias;
        QR_RETURN_IF_ERROR(get_bool(s, s->defaults->bias_key, &config->qkv_bias));
        config->o_bias = config->mlp_bias = config->qkv_bias;
        return QRUN_OK;
    }
    if (family == QR_FAMILY_NEMOTRON_H) { return read_nemotron_h_biases(s, config); }
    if (family == QR_FAMILY_FALCON_H1) { return refuse_falcon_h1_flags(s); }
    if (family == QR_FAMILY_APERTUS) { QR_RETURN_IF_ERROR(refuse_apertus_flags(s)); }
    config->qkv_bias = s->defaults->qkv_bias;
    if (s->defaults->qkv_bias_key != NULL) { return get_bool(s, s->defaults->qkv_bias_key, &config->qkv_bias); }
    if (family == QR_FAMILY_INTERNLM3) { return read_internlm3_biases(s, config); }
    if (s->defaults->biases_are_fixed) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(get_bool(s, "attention_bias", &config->qkv_bias));
    config->o_bias = config->qkv_bias && !s->defaults->o_has_no_bias;
    if (family == QR_FAMILY_SEED_OSS) {
        config->o_bias = false;
        QR_RETURN_IF_ERROR(get_bool(s, "attention_out_bias", &config->o_bias));
    }
    config->mlp_bias = s->defaults->mlp_bias;
    return s->defaults->asks_mlp_bias ? get_bool(s, "mlp_bias", &config->mlp_bias) : QRUN_OK;
}

/* OLMoE can clip queries, keys and values; none of its published models does. */
static qrun_status refuse_clipping(const source *s) {
    double limit = 0;
    QR_RETURN_IF_ERROR(get_double(s, "clip_qkv", 0, 1e30, &limit));
    if (limit == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"clip_qkv\" is not supported", s->what);
}

/* As StableLM 2 12B has them. */
static qrun_status refuse_stablelm_12b(const source *s) {
    QR_RETURN_IF_ERROR(refuse_flag(s, "use_parallel_residual"));
    return refuse_flag(s, "qk_layernorm");
}

/* Gemma 4 may let images see all of themselves, which are none here, or all tokens. */
static qrun_status refuse_looking_ahead(const source *s) {
    const char *who = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "use_bidirectional_attention", &who, s->what, s->err));
    if (who == NULL || strcmp(who, "vision") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" is \"%.60s\", not supported",
                   s->what, who);
}

/* MiniCPM's three, which depend on the depth and the width. */
static qrun_status read_minicpm_factors(const source *s, qr_model_config *config) {
    double of_branches = sqrt((double)config->n_layers), base = (double)config->hidden_size;
    const qr_json *depth = qr_json_get(s->json, "scale_depth"), *width = qr_json_get(s->json, "dim_model_base");
    if (depth == NULL) { of_branches = 1.4; }
    if (width == NULL) { base = 256; }
    config->embedding_multiplier = 12;
    QR_RETURN_IF_ERROR(get_double(s, "scale_emb", 1e-9, 1e9, &config->embedding_multiplier));
    QR_RETURN_IF_ERROR(get_double(s, "scale_depth", 1e-9, 1e9, &of_branches));
    QR_RETURN_IF_ERROR(get_double(s, "dim_model_base", 1, 1e9, &base));
    config->residual_multiplier = of_branches / sqrt((double)config->n_layers);
    config->logits_scaling = (double)config->hidden_size / base;
    return QRUN_OK;
}

/* HyperCLOVA X multiplies logits where Granite divides them, and need not say how scores are scaled. */
static qrun_status read_hyperclovax(const source *s, qr_model_config *config) {
    bool has_post_norms = true;
    if (qr_json_is_null(qr_json_get(s->json, "attention_multiplier"))) { config->attention_multiplier = 0; }
    config->logits_scaling = 1 / config->logits_scaling;
    QR_RETURN_IF_ERROR(get_bool(s, "use_post_norm", &has_post_norms));
    config->without_post_norms = !has_post_norms;
    return QRUN_OK;
}

/* Falcon-H1's. What scales attention's input scales scores twice and values once, so that it is a factor of what
 * attention adds. */
static qrun_status read_falcon_h1_factors(const source *s, qr_model_config *config) {
    double of_input = 1, of_keys = 1, of_logits = 1, of_mlp[2] = {1, 1};
    const struct {
        const char *key;
        double *value;
    } factors[] = {{"embedding_multiplier", &config->embedding_multiplier},
                   {"lm_head_multiplier", &of_logits},
                   {"key_multiplier", &of_keys},
                   {"attention_in_multiplier", &of_input},
                   {"attention_out_multiplier", &config->attention_out_multiplier},
                   {"ssm_out_multiplier", &config->space_out_multiplier}};
    for (size_t i = 0; i < QR_COUNT_OF(factors); i++) {
        QR_RETURN_IF_ERROR(get_double(s, factors[i].key, 1e-9, 1e9, factors[i].value));
    }
    QR_RETURN_IF_ERROR(qr_config_read_factors(s->json, "mlp_multipliers", 2, of_mlp, s->what, s->err));
    config->gate_multiplier = of_mlp[0];
    config->mlp_out_multiplier = of_mlp[1];
    config->logits_scaling = 1 / of_logits;
    config->attention_out_multiplier *= of_input;
    config->attention_multiplier = of_keys * of_input * of_input / sqrt((double)config->head_dim);
    return QRUN_OK;
}

/* Granite's four factors. */
static qrun_status read_multipliers(const source *s, qr_model_config *config) {
    config->embedding_multiplier = config->residual_multiplier = config->logits_scaling = 1;
    config->attention_out_multiplier = config->space_out_multiplier = 1;
    config->mlp_out_multiplier = config->gate_multiplier = 1;
    if (config->family == QR_FAMILY_FALCON_H1) { return read_falcon_h1_factors(s, config); }
    if (config->family == QR_FAMILY_MINICPM3) { return read_minicpm_factors(s, config); }
    if (!s->defaults->has_multipliers) { return QRUN_OK; }
    config->attention_multiplier = 1;
    QR_RETURN_IF_ERROR(get_double(s, "embedding_multiplier", 1e-9, 1e9, &config->embedding_multiplier));
    QR_RETURN_IF_ERROR(get_double(s, "residual_multiplier", 1e-9, 1e9, &config->residual_multiplier));
    QR_RETURN_IF_ERROR(get_double(s, "attention_multiplier", 1e-9, 1e9, &config->attention_multiplier));
    QR_RETURN_IF_ERROR(get_double(s, "logits_scaling", 1e-9, 1e9, &config->logits_scaling));
    return config->family == QR_FAMILY_HYPERCLOVAX ? read_hyperclovax(s, config) : QRUN_OK;
}

/* Command R's. Command R+ has norms of heads with a weight for each. */
static qrun_status read_cohere(const source *s, qr_model_config *config) {
    double logit_scale = 0.0625;
    if (config->family == QR_FAMILY_COHERE) { QR_RETURN_IF_ERROR(refuse_flag(s, "use_qk_norm")); }
    QR_RETURN_IF_ERROR(get_double(s, "logit_scale", 1e-9, 1e9, &logit_scale));
    config->logits_scaling = 1 / logit_scale;
    const char *const rms = "rms_norm_eps";
    if (config->family != QR_FAMILY_COHERE2_MOE || qr_json_is_null(qr_json_get(s->json, rms))) { return QRUN_OK; }
    config->has_rms_norms = true;
    QR_RETURN_IF_ERROR(get_double(s, rms, 0, 1, &config->norm_eps));
    config->post_norm_eps = config->norm_eps;
    return QRUN_OK;
}

/* Muse Glimmer's own keys. */
static qrun_status read_muse_glimmer(const source *s, qr_model_config *config) {
    double query_scale = 3.87, logit_scale = 0.19611613513818404;
    QR_RETURN_IF_ERROR(get_double(s, "qk_scale_factor", 1e-9, 1e9, &query_scale));
    QR_RETURN_IF_ERROR(get_double(s, "output_multiplier", 1e-9, 1e9, &logit_scale));
    config->post_norm_eps = 1e-8;
    QR_RETURN_IF_ERROR(get_double(s, "post_norm_eps", 0, 1, &config->post_norm_eps));
    config->attention_multiplier = query_scale / sqrt((double)config->head_dim);
    config->logits_scaling = 1 / logit_scale;
    config->final_logit_softcapping = s->defaults->final_softcap;
    config->norm_adds_one = config->final_norm_is_plain = true;
    config->norms_embeddings = config->norms_heads = config->attn_gate_apart = true;
    return get_double(s, "final_logit_softcapping", 1e-6, 1e9, &config->final_logit_softcapping);
}

/* Trinity: what its own code has beside transformers', and embeddings that are scaled by a factor. */
static qrun_status read_afmoe(const source *s, qr_model_config *config) {
    bool scales = false, normalizes = true;
    const char *scores = "sigmoid";
    int64_t n_groups = 1;
    QR_RETURN_IF_ERROR(get_bool(s, "mup_enabled", &scales));
    QR_RETURN_IF_ERROR(get_bool(s, "route_norm", &normalizes));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "score_func", &scores, s->what, s->err));
    QR_RETURN_IF_ERROR(get_int(s, "num_expert_groups", 1, 1 << 12, &n_groups));
    if (scales) { config->embedding_multiplier = sqrt((double)config->hidden_size); }
    config->attn_gate_apart = true;
    if (normalizes && strcmp(scores, "sigmoid") == 0 && n_groups == 1) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: the router's \"%s\" is not supported for this family", s->what,
                   !normalizes     ? "route_norm"
                   : n_groups != 1 ? "num_expert_groups"
                                   : "score_func");
}

/* A key that may repeat what another says, and nothing else. */
static qrun_status refuse_other(const source *s, const char *key, const char *usual_key, int64_t usual) {
    int64_t value = usual;
    QR_RETURN_IF_ERROR(get_int(s, key, 0, 1 << 20, &value));
    if (value == usual) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a \"%s\" of %lld, where \"%s\" is %lld, is not supported",
                   s->what, key, (long long)value, usual_key, (long long)usual);
}

/* MiMo-V2-Flash: values have a factor, which is one of what attention adds. transformers has fixed what the model's own
 * code asks of config.json: sinks in layers with a window, no expert of all tokens, and heads of one size. */
static qrun_status read_mimo(const source *s, qr_model_config *config) {
    bool in_full = false, in_windows = true;
    int64_t n_shared = 0;
    const qr_json *factor = qr_json_get(s->json, "attention_value_scale");
    const int64_t value_dim = config->value_dim > 0 ? config->value_dim : config->head_dim;
    config->sinks_in_windows = true;
    config->attention_out_multiplier = factor != NULL && qr_json_is_null(factor) ? 1 : 0.707;
    QR_RETURN_IF_ERROR(get_double(s, "attention_value_scale", 1e-9, 1e9, &config->attention_out_multiplier));
    QR_RETURN_IF_ERROR(get_bool(s, "add_full_attention_sink_bias", &in_full));
    QR_RETURN_IF_ERROR(get_bool(s, "add_swa_attention_sink_bias", &in_windows));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_num_attention_heads", "num_attention_heads", config->n_heads));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_head_dim", "head_dim", config->head_dim));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_v_head_dim", "v_head_dim", value_dim));
    QR_RETURN_IF_ERROR(get_int(s, "n_shared_experts", 0, 1 << 12, &n_shared));
    if (n_shared > 0) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"n_shared_experts\" is not supported for this family",
                       s->what);
    }
    if (!in_full && in_windows) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\": %s is not supported", s->what,
                   in_full ? "add_full_attention_sink_bias" : "add_swa_attention_sink_bias",
                   in_full ? "true" : "false");
}

static qrun_status read_lfm3(const source *s, qr_model_config *config) {
    bool has_post_norms = true;
    config->attn_gate_apart = true;
    QR_RETURN_IF_ERROR(get_bool(s, "use_attention_gate", &config->attn_gate_apart));
    QR_RETURN_IF_ERROR(get_bool(s, "use_sandwich_norm", &has_post_norms));
    config->attn_gate_by_head = config->attn_gate_apart;
    config->without_post_norms = !has_post_norms;
    return QRUN_OK;
}

/* GLM-4.5 and DeepSeek have layers after the last. */
static qrun_status read_layers_ahead(const source *s, qr_model_config *config) {
    config->n_layers_ahead = s->defaults->n_layers_ahead;
    if (config->n_layers_ahead == 0) { return QRUN_OK; }
    return get_int(s, "num_nextn_predict_layers", 0, 64, &config->n_layers_ahead);
}

static qrun_status read_glm4_moe(const source *s, qr_model_config *config) {
    bool has_head_norms = false;
    QR_RETURN_IF_ERROR(get_bool(s, "use_qk_norm", &has_head_norms));
    config->without_head_norms = !has_head_norms;
    return QRUN_OK;
}

static qrun_status read_attention(const source *s, qr_model_config *config) {
    const bool is_gemma = config->family == QR_FAMILY_GEMMA2 || config->family == QR_FAMILY_GEMMA3 ||
                          config->family == QR_FAMILY_VAULT_GEMMA;
    const bool is_gemma_1 = config->family == QR_FAMILY_GEMMA;
    config->query_pre_attn_scalar = (double)config->head_dim;
    config->scale_embeddings = config->norm_adds_one = is_gemma || is_gemma_1;
    if (config->family == QR_FAMILY_NEMOTRON) { config->norm_adds_one = true; }
    if (s->defaults->recurrent == QR_RECURRENT_DELTA && config->family != QR_FAMILY_OLMO_HYBRID) {
        config->norm_adds_one = config->attn_output_gate = true;
    }
    config->attn_sinks = s->defaults->has_sinks;
    if (is_gemma) {
        config->query_pre_attn_scalar = 256;
        config->attn_logit_softcapping = s->defaults->attn_softcap;
        config->final_logit_softcapping = s->defaults->final_softcap;
        QR_RETURN_IF_ERROR(get_double(s, "query_pre_attn_scalar", 1e-6, 1e9, &config->query_pre_attn_scalar));
        QR_RETURN_IF_ERROR(read_nullable(s, "attn_logit_softcapping", 1e9, &config->attn_logit_softcapping));
        QR_RETURN_IF_ERROR(read_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
        QR_RETURN_IF_ERROR(refuse_flag(s, "use_bidirectional_attention"));
    }
    if (is_gemma_1) { QR_RETURN_IF_ERROR(refuse_flag(s, "use_bidirectional_attention")); }
    if (config->family == QR_FAMILY_STABLELM) { QR_RETURN_IF_ERROR(refuse_stablelm_12b(s)); }
    if (config->family == QR_FAMILY_GEMMA4) {
        config->scale_embeddings = true;
        config->attention_multiplier = 1;
        QR_RETURN_IF_ERROR(read_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
        QR_RETURN_IF_ERROR(refuse_looking_ahead(s));
    }
    if (config->family == QR_FAMILY_GPT2) {
        bool scales = true;
        QR_RETURN_IF_ERROR(get_bool(s, "scale_attn_weights", &scales));
        if (!scales) { config->query_pre_attn_scalar = 1; }
        QR_RETURN_IF_ERROR(refuse_flag(s, "scale_attn_by_inverse_layer_idx"));
        QR_RETURN_IF_ERROR(refuse_flag(s, "add_cross_attention"));
    }
    if (config->family == QR_FAMILY_COHERE || config->family == QR_FAMILY_COHERE2 ||
        config->family == QR_FAMILY_COHERE2_MOE) {
        QR_RETURN_IF_ERROR(read_cohere(s, config));
    }
    if (config->family == QR_FAMILY_MUSE_GLIMMER) { QR_RETURN_IF_ERROR(read_muse_glimmer(s, config)); }
    if (config->family == QR_FAMILY_GLM4_MOE) { QR_RETURN_IF_ERROR(read_glm4_moe(s, config)); }
    if (config->family == QR_FAMILY_NANOCHAT) {
        config->norms_layers = config->norms_heads = config->norms_embeddings = true;
        config->final_logit_softcapping = s->defaults->final_softcap;
        QR_RETURN_IF_ERROR(read_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
    }
    if (config->family == QR_FAMILY_AFMOE) { QR_RETURN_IF_ERROR(read_afmoe(s, config)); }
    if (config->family == QR_FAMILY_LFM3) { QR_RETURN_IF_ERROR(read_lfm3(s, config)); }
    if (config->family == QR_FAMILY_MIMO_V2_FLASH) { QR_RETURN_IF_ERROR(read_mimo(s, config)); }
    if (config->family == QR_FAMILY_OLMOE) { QR_RETURN_IF_ERROR(refuse_clipping(s)); }
    QR_RETURN_IF_ERROR(read_layers_ahead(s, config));
    return read_biases(s, config);
}

/* ---- layers without rotary positions ------------------------------------------------------------------------------
 */

/* Granite 4 rotates in all layers or in none. */
static qrun_status read_positions(const source *s, qr_model_config *config) {
    const char *type = "nope";
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "position_embedding_type", &type, s->what, s->err));
    const bool rotates = strcmp(type, "rope") == 0;
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = rotates; }
    if (rotates || strcmp(type, "nope") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"position_embedding_type\" is \"%.60s\", not supported",
                   s->what, type);
}

/* layer_rope_theta is 0 for a layer that does not rotate. Without it all rotate, or of Muse Glimmer every fourth one
 * from the last does not. There the others rotate by the model's own theta, as in transformers. */
static qrun_status read_layer_thetas(const source *s, qr_model_config *config) {
    const bool all = config->family != QR_FAMILY_MUSE_GLIMMER;
    const qr_json *list = qr_json_get(s->json, "layer_rope_theta");
    double theta = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < config->n_layers; i++) {
        config->layer_rotates[i] = all || (config->n_layers - 1 - i) % 4 != 0;
    }
    if (qr_json_is_null(list)) { return QRUN_OK; }
    for (const qr_json *item = qr_json_first(list); item != NULL && n < config->n_layers; item = item->next, n++) {
        if (!cJSON_IsNumber(item) || item->valuedouble < 0) { break; }
        config->layer_rotates[n] = item->valuedouble > 0;
        if (item->valuedouble == 0) { continue; }
        if (theta > 0 && theta != item->valuedouble) {
            return qr_fail(
                s->err, QRUN_ERROR_UNSUPPORTED,
                "%s: \"layer_rope_theta\" has %g and %g, and layers that rotate by several are not supported", s->what,
                theta, item->valuedouble);
        }
        theta = item->valuedouble;
    }
    if (cJSON_IsArray(list) && n == config->n_layers) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"layer_rope_theta\" should be a list of %lld number%s", s->what,
                   (long long)config->n_layers, qr_plural(config->n_layers));
}

/* Granite's list is the base of the layers that rotate too; 0: there is none. */
static double listed_theta(const source *s) {
    const qr_json *list = qr_json_get(s->json, "layer_rope_theta");
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        if (item->valuedouble > 0) { return item->valuedouble; }
    }
    return 0;
}

static bool is_granite_with_windows(qr_model_family family) {
    return family == QR_FAMILY_GRANITE_SWA || family == QR_FAMILY_GRANITE_MOE_SWA;
}

static bool has_layer_thetas(qr_model_family family) {
    return family == QR_FAMILY_MUSE_GLIMMER || is_granite_with_windows(family);
}

/* SmolLM3: no_rope_layers has a 1 for every layer that rotates; without it every n-th layer does not. */
static qrun_status read_rotated_layers(const source *s, qr_model_config *config) {
    const bool has_thetas = has_layer_thetas(config->family);
    if (config->family != QR_FAMILY_SMOLLM3 && config->family != QR_FAMILY_GRANITE4 && !has_thetas) { return QRUN_OK; }
    config->layer_rotates = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_rotates);
    if (config->layer_rotates == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers); }
    if (config->family == QR_FAMILY_GRANITE4) { return read_positions(s, config); }
    if (has_thetas) { return read_layer_thetas(s, config); }
    int64_t interval = 4, n = 0;
    QR_RETURN_IF_ERROR(get_int(s, "no_rope_layer_interval", 1, 1 << 20, &interval));
    const qr_json *list = qr_json_get(s->json, "no_rope_layers");
    if (qr_json_is_null(list)) {
        for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = (i + 1) % interval != 0; }
        return QRUN_OK;
    }
    for (const qr_json *item = qr_json_first(list); item != NULL && n < config->n_layers; item = item->next, n++) {
        if (!cJSON_IsNumber(item) || (item->valuedouble != 0 && item->valuedouble != 1)) { break; }
        config->layer_rotates[n] = item->valuedouble == 1;
    }
    if (cJSON_IsArray(list) && n == config->n_layers) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT,
                   "%s: \"no_rope_layers\" should be a list of 0 or 1 for each of %lld layer%s", s->what,
                   (long long)config->n_layers, qr_plural(config->n_layers));
}

/* ---- sliding windows --------------------------------------------------------------------------------------------- */

static qrun_status read_layer_types(const source *s, const qr_json *list, qr_model_config *config) {
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
static qrun_status apply_window_rule(const source *s, qr_model_config *config) {
    const qr_window_rule rule = s->defaults->window;
    int64_t first = s->defaults->first_window > 0 ? s->defaults->first_window : 28;
    int64_t pattern = s->defaults->window_pattern;
    if (rule == QR_WINDOW_FROM_LAYER || rule == QR_WINDOW_LATE || rule == QR_WINDOW_EVERY_OTHER) {
        QR_RETURN_IF_ERROR(get_int(s, "max_window_layers", 0, 1 << 20, &first));
    } else if (s->defaults->asks_window_pattern) {
        const char *key = s->defaults->window_pattern_key;
        QR_RETURN_IF_ERROR(get_int(s, key != NULL ? key : "sliding_window_pattern", 1, 1 << 20, &pattern));
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

/* Command A with experts: the dense layers that come first have a pattern of windows of their own, and without windows
 * they rotate all the same. */
static qrun_status adapt_dense_layers(const source *s, bool listed, qr_model_config *config) {
    int64_t of_dense = 1, of_others = s->defaults->window_pattern, n_dense = 0;
    QR_RETURN_IF_ERROR(get_int(s, "prefix_dense_sliding_window_pattern", 1, 1 << 20, &of_dense));
    QR_RETURN_IF_ERROR(get_int(s, "sliding_window_pattern", 1, 1 << 20, &of_others));
    QR_RETURN_IF_ERROR(get_int(s, "first_k_dense_replace", 0, 1 << 12, &n_dense));
    for (int64_t i = 0; i < config->n_layers; i++) {
        const bool is_ahead = i < n_dense;
        if (!listed) {
            config->layer_slides[i] = ((is_ahead ? i : i - n_dense) + 1) % (is_ahead ? of_dense : of_others) != 0;
        }
        config->layer_rotates[i] = config->layer_slides[i] || (!config->experts.layer_has_experts[i] && of_dense == 1);
    }
    return QRUN_OK;
}

/* EXAONE 4 rotates in layers with a window alone, where the model has windows. */
static qrun_status rotate_in_windows(const source *s, qr_model_config *config) {
    config->layer_rotates = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_rotates);
    if (config->layer_rotates == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers); }
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = config->layer_slides[i]; }
    return QRUN_OK;
}

/* MiMo-V2-Flash: sliding_window_size is without the position itself, as transformers has it; and what files have in
 * place of layer_types is a 1 for each layer with a window. */
static qrun_status read_mimo_windows(const source *s, bool listed, qr_model_config *config) {
    static const char key[] = "hybrid_layer_pattern";
    const qr_json *list = qr_json_get(s->json, key);
    int64_t size = config->sliding_window - 1, n = 0, slides = 0;
    QR_RETURN_IF_ERROR(get_int(s, "sliding_window_size", 1, MAX_POSITIONS - 1, &size));
    config->sliding_window = size + 1;
    if (listed || qr_json_is_null(list)) { return QRUN_OK; }
    for (const qr_json *item = qr_json_first(list); item != NULL && n < config->n_layers; item = item->next, n++) {
        if (!qr_json_as_int(item, 0, 1, &slides)) { break; }
        config->layer_slides[n] = slides == 1;
    }
    if (cJSON_IsArray(list) && n == config->n_layers && (size_t)n == qr_json_count(list)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of 0 or 1 for each of %lld layer%s", s->what,
                   key, (long long)config->n_layers, qr_plural(config->n_layers));
}

static qrun_status read_windows(const source *s, qr_model_config *config) {
    config->layer_slides = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_slides);
    if (config->layer_slides == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers); }
    if (s->defaults->window == QR_WINDOW_NEVER) { return QRUN_OK; }
    const qr_window_rule rule = s->defaults->window;
    bool used = rule == QR_WINDOW_PATTERN_FROM_FIRST || rule == QR_WINDOW_PATTERN_BUT_FIRST || rule == QR_WINDOW_ALL ||
                rule == QR_WINDOW_PATTERN || rule == QR_WINDOW_PATTERN_FROM_LAST || rule == QR_WINDOW_FOURTHS ||
                rule == QR_WINDOW_LISTED || rule == QR_WINDOW_ALL_UNLESS_LISTED || rule == QR_WINDOW_LATE;
    if (!used) { QR_RETURN_IF_ERROR(get_bool(s, "use_sliding_window", &used)); }
    if (!used) { return QRUN_OK; }
    const qr_json *window = qr_json_get(s->json, "sliding_window");
    config->sliding_window = window != NULL && qr_json_is_null(window) ? NO_WINDOW : s->defaults->sliding_window;
    QR_RETURN_IF_ERROR(get_int(s, "sliding_window", 1, MAX_POSITIONS, &config->sliding_window));
    if (config->sliding_window == NO_WINDOW && s->defaults->needs_window) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a %s model without \"sliding_window\" is not supported",
                       s->what, qr_model_family_name(config->family));
    }
    if (config->sliding_window == NO_WINDOW) { return QRUN_OK; }
    const qr_json *types = qr_json_get(s->json, "layer_types");
    const bool listed = rule != QR_WINDOW_ALL && rule != QR_WINDOW_WHERE_USED && !qr_json_is_null(types);
    QR_RETURN_IF_ERROR(listed ? read_layer_types(s, types, config) : apply_window_rule(s, config));
    if (config->family == QR_FAMILY_MIMO_V2_FLASH) { QR_RETURN_IF_ERROR(read_mimo_windows(s, listed, config)); }
    if (s->defaults->rotates_in_windows) { QR_RETURN_IF_ERROR(rotate_in_windows(s, config)); }
    if (config->family == QR_FAMILY_COHERE2_MOE) { QR_RETURN_IF_ERROR(adapt_dense_layers(s, listed, config)); }
    if (config->family == QR_FAMILY_GEMMA4) { /* as transformers, whatever the list says */
        config->layer_slides[config->n_layers - 1] = false;
    }
    bool any = false;
    for (int64_t i = 0; i < config->n_layers; i++) { any |= config->layer_slides[i]; }
    if (!any) { config->sliding_window = NO_WINDOW; }
    return QRUN_OK;
}

/* ---- heads that differ between layers ---------------------------------------------------------------------------- */

/* MiMo-V2-Flash has twice as many heads of keys in layers with a window. */
static qrun_status read_mimo_heads(const source *s, qr_model_config *config) {
    int64_t *const n = &config->attention.sliding.n_kv_heads;
    *n *= 2;
    QR_RETURN_IF_ERROR(get_int(s, "swa_num_key_value_heads", 1, 1 << 12, n));
    config->n_kv_heads = *n;
    if (config->n_heads % *n == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld heads are not divisible by %lld key/value heads of windows",
                   s->what, (long long)config->n_heads, (long long)*n);
}

static qrun_status read_layer_heads(const source *s, qr_model_config *config) {
    const qr_layer_heads heads = {.head_dim = config->head_dim, .n_kv_heads = config->n_kv_heads};
    const qr_attention_context context = {.what = s->what,
                                          .n_layers = config->n_layers,
                                          .n_heads = config->n_heads,
                                          .layer_slides = config->layer_slides};
    config->attention = (qr_attention_config){.full = heads, .sliding = heads};
    if (config->family == QR_FAMILY_MIMO_V2_FLASH) { return read_mimo_heads(s, config); }
    if (config->family != QR_FAMILY_GEMMA4) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_attention_config_read(s->json, &context, &config->attention, s->err));
    return qr_layer_inputs_config_read(s->json, s->what, config->vocab_size, &config->layer_inputs, s->err);
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
    const bool is_wide = config->attention.shared_are_wide && qr_model_config_kv_owner(config, layer) != layer;
    return config->intermediate_size * (is_wide ? 2 : 1);
}

/* ---- rotary embedding -------------------------------------------------------------------------------------------- */

static bool is_nested(const qr_json *parameters) {
    return cJSON_IsObject(qr_json_get(parameters, "full_attention")) ||
           cJSON_IsObject(qr_json_get(parameters, "sliding_attention"));
}

/* Gemma 3 and OLMo 3: full-attention and sliding layers have parameters of their own; rope_scaling is for the former.
 */
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
    context->head_dim = config->attention.full.head_dim;
    QR_RETURN_IF_ERROR(qr_rope_config_read(full, context, &config->rope, s->err));
    context->head_dim = config->attention.sliding.head_dim;
    context->type = NULL;
    const bool is_mimo = config->family == QR_FAMILY_MIMO_V2_FLASH;
    if (!is_mimo) { context->partial_rotary_factor = 1; }
    context->default_theta = s->defaults->theta; /* transformers does not take rope_theta for these layers */
    if (config->family != QR_FAMILY_OLMO3) { context->default_theta = 1e4; }
    if (is_mimo) { QR_RETURN_IF_ERROR(get_double(s, "swa_rope_theta", 1, 1e15, &context->default_theta)); }
    if (config->family == QR_FAMILY_GEMMA3) {
        QR_RETURN_IF_ERROR(get_double(s, "rope_local_base_freq", 1, 1e15, &context->default_theta));
    }
    return qr_rope_config_read(qr_json_get(parameters, "sliding_attention"), context, &config->rope_local, s->err);
}

/* Ministral 3 keeps these with its rotary parameters. */
static qrun_status read_attn_temperature(const source *s, const qr_json *parameters, qr_model_config *config) {
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

/* Mistral 4 scales whole heads of queries, of which a part rotates. So they rotate as a whole, by nothing where they
 * should not: neighbours together, and without a factor of YaRN's. */
static qrun_status check_scaled_queries(const source *s, const qr_model_config *config) {
    const qr_rope_config *rope = &config->rope;
    const bool has_factor =
        rope->type == QR_ROPE_LONGROPE ||
        (rope->type == QR_ROPE_YARN && rope->attention_factor != 1 &&
         (rope->attention_factor != 0 || rope->mscale == 0 || rope->mscale != rope->mscale_all_dim));
    if (rope->interleaved && config->latent.plain_dim % 2 == 0 && !has_factor) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: a mistral4 model needs \"rope_interleave\", an even \"qk_nope_head_dim\", and \"mscale\" as "
                   "\"mscale_all_dim\"; others are not supported",
                   s->what);
}

/* MiniMax M2: a number of elements, not a part. */
static qrun_status read_rotated_count(const source *s, const qr_model_config *config, qr_rope_context *context) {
    int64_t n = config->head_dim;
    QR_RETURN_IF_ERROR(get_int(s, s->defaults->rotated_key, 2, config->head_dim, &n));
    context->partial_rotary_factor = (double)n / (double)config->head_dim;
    return QRUN_OK;
}

/* OLMo Hybrid as published has no positions: it says so by a base that is null. */
static bool has_null_theta(const source *s) {
    static const char key[] = "rope_theta";
    const qr_json *parameters = qr_json_get(s->json, "rope_parameters");
    const qr_json *theta = qr_json_get(cJSON_IsObject(parameters) ? parameters : s->json, key);
    return theta != NULL && qr_json_is_null(theta);
}

static qrun_status read_rope(const source *s, qr_model_config *config) {
    config->has_rope = config->family != QR_FAMILY_GPT2 && config->family != QR_FAMILY_NEMOTRON_H &&
                       (config->family != QR_FAMILY_OLMO_HYBRID || !has_null_theta(s));
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
                               .partial_rotary_factor = 1};
    if (s->defaults->interleave_key != NULL) {
        QR_RETURN_IF_ERROR(get_bool(s, s->defaults->interleave_key, &context.interleaved));
    }
    QR_RETURN_IF_ERROR(get_double(s, "rope_theta", 1, 1e15, &context.default_theta));
    if (s->defaults->rotated_part > 0) { /* sections for images (mrope) are one for text */
        context.heads_rotate_in_part = true;
        context.partial_rotary_factor = s->defaults->rotated_part;
        if (s->defaults->rotated_key != NULL) { QR_RETURN_IF_ERROR(read_rotated_count(s, config, &context)); }
        QR_RETURN_IF_ERROR(get_double(s, "partial_rotary_factor", 0, 1, &context.partial_rotary_factor));
    }
    if (config->family == QR_FAMILY_PHI3) {
        context.su_is_longrope = true;
        context.original_max_position_embeddings = 4096;
    }
    QR_RETURN_IF_ERROR(
        get_int(s, "original_max_position_embeddings", 1, MAX_POSITIONS, &context.original_max_position_embeddings));
    const bool is_lfm3 = config->family == QR_FAMILY_LFM3;
    if ((config->family == QR_FAMILY_GEMMA4 || is_lfm3) && qr_json_is_null(qr_json_get(s->json, "rope_parameters"))) {
        context.type = "proportional";
        context.partial_rotary_factor = is_lfm3 ? 0.5 : 0.25;
    }
    if (config->family == QR_FAMILY_GEMMA3 || config->family == QR_FAMILY_GEMMA4 || config->family == QR_FAMILY_OLMO3 ||
        config->family == QR_FAMILY_MELLUM || config->family == QR_FAMILY_MIMO_V2_FLASH || is_lfm3) {
        return read_two_ropes(s, &context, config);
    }
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
    if (is_granite_with_windows(config->family) && listed_theta(s) > 0) {
        config->rope.theta = config->rope_local.theta = listed_theta(s);
    }
    return config->family == QR_FAMILY_MISTRAL4 ? check_scaled_queries(s, config) : QRUN_OK;
}

/* ---- types and ids ----------------------------------------------------------------------------------------------- */

/* The wrapper of Gemma 3 keeps these at the top; what is there wins over the text model's. */
static qrun_status read_identity(const source *s, qr_model_config *config) {
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
        if (config->family != QR_FAMILY_LFM2 && config->family != QR_FAMILY_LFM2_MOE) { continue; }
        QR_RETURN_IF_ERROR(
            qr_json_get_bool(objects[i], "tie_embedding", &config->tie_word_embeddings, s->what, s->err));
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

/* ---- layers that are blocks -------------------------------------------------------------------------------------- */

/* Which blocks a model of Nemotron-H has. Older files name the size of attention's heads a second time. */
static qrun_status read_blocks(const source *s, qr_model_config *config) {
    int64_t head_dim = config->head_dim;
    if (config->family != QR_FAMILY_NEMOTRON_H) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_blocks_read(s->json, s->what, &config->blocks, &config->n_layers, s->err));
    QR_RETURN_IF_ERROR(get_int(s, "attention_head_dim", 1, 1 << 12, &head_dim));
    if (head_dim != config->head_dim) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"attention_head_dim\" is %lld, and \"head_dim\" %lld", s->what,
                       (long long)head_dim, (long long)config->head_dim);
    }
    return QRUN_OK;
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

/* Of a model with images the text model is read: what it is, and where it is in config.json. */
static qrun_status enter_wrapper(source *s, const char **model_type, qr_model_config *config) {
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

static qrun_status read_all(source *s, qr_model_config *config) {
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
    QR_RETURN_IF_ERROR(read_blocks(s, config));
    QR_RETURN_IF_ERROR(qr_expert_config_read(s->json, s->what, &s->defaults->experts, config->n_layers,
                                             config->intermediate_size, config->blocks, &config->experts, s->err));
    if (config->family == QR_FAMILY_MIMO_V2_FLASH) { /* as its files call it */
        QR_RETURN_IF_ERROR(get_double(s, "layernorm_epsilon", 0, 1, &config->norm_eps));
    }
    QR_RETURN_IF_ERROR(get_double(s, s->defaults->names->norm_eps, 0, 1, &config->norm_eps));
    config->post_norm_eps = config->norm_eps;
    QR_RETURN_IF_ERROR(get_double(s, "initializer_range", 0, 100, &config->initializer_range));
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
                                            .n_heads = config->family == QR_FAMILY_OLMO_HYBRID ? config->n_heads : 0,
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
    source s = {.json = root, .root = root, .what = what, .err = err};
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
    qr_free(config->blocks);
    qr_expert_config_free(&config->experts);
    qr_recurrent_config_free(&config->recurrent);
    qr_rope_config_free(&config->rope);
    qr_rope_config_free(&config->rope_local);
    *config = (qr_model_config){0};
}
