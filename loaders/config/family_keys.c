#include "loaders/config/family_keys.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"

/* ---- LFM2 and LFM3 ----------------------------------------------------------------------------------------------- */

/* LFM2 names the size of its MLP otherwise, or has it adjusted: two thirds of it, times a factor, rounded up. */
static qrun_status read_lfm2_mlp(const qr_config_source *s, qr_model_config *config) {
    bool adjusts = true;
    int64_t multiple = 256, *const size = &config->intermediate_size;
    const qr_json *const given = qr_json_get(s->json, "block_ffn_dim_multiplier");
    double factor = 1;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "block_ff_dim", 1, 1 << 22, size));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "block_auto_adjust_ff_dim", &adjusts));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "block_multiple_of", 1, 1 << 16, &multiple));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "block_ffn_dim_multiplier", 1e-6, 64, &factor));
    if (!adjusts) { return QRUN_OK; }
    *size = 2 * *size / 3;
    if (given == NULL || !qr_json_is_null(given)) { *size = qr_round_up((int64_t)(factor * (double)*size), multiple); }
    if (*size > 0 && *size <= 1 << 22) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: the adjusted size of its MLPs is %lld", s->what, (long long)*size);
}

static qrun_status read_lfm3(const qr_config_source *s, qr_model_config *config) {
    bool has_post_norms = true;
    config->attn_gate_apart = true;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_attention_gate", &config->attn_gate_apart));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_sandwich_norm", &has_post_norms));
    config->attn_gate_by_head = config->attn_gate_apart;
    config->without_post_norms = !has_post_norms;
    return QRUN_OK;
}

/* ---- Command R --------------------------------------------------------------------------------------------------- */

/* The dense layers of a mixture name their MLPs as its experts do. */
static qrun_status read_cohere_sizes(const qr_config_source *s, qr_model_config *config) {
    if (!qr_json_is_null(qr_json_get(s->json, s->defaults->names->intermediate_size))) { return QRUN_OK; }
    return qr_config_get_int(s, "intermediate_size", 1, 1 << 22, &config->intermediate_size);
}

static qrun_status read_cohere(const qr_config_source *s, qr_model_config *config) {
    double logit_scale = 0.0625;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "logit_scale", 1e-9, 1e9, &logit_scale));
    config->logits_scaling = 1 / logit_scale;
    return QRUN_OK;
}

/* Command R+ has norms of heads with a weight for each. */
static qrun_status read_command_r(const qr_config_source *s, qr_model_config *config) {
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "use_qk_norm"));
    return read_cohere(s, config);
}

static qrun_status read_cohere_experts(const qr_config_source *s, qr_model_config *config) {
    const char *const rms = "rms_norm_eps";
    QR_RETURN_IF_ERROR(read_cohere(s, config));
    if (qr_json_is_null(qr_json_get(s->json, rms))) { return QRUN_OK; }
    config->has_rms_norms = true;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, rms, 0, 1, &config->norm_eps));
    config->post_norm_eps = config->norm_eps;
    return QRUN_OK;
}

/* The dense layers that come first have a pattern of windows of their own, and without windows
 * they rotate all the same. */
static qrun_status read_cohere_windows(const qr_config_source *s, qr_model_config *config) {
    const bool listed = !qr_json_is_null(qr_json_get(s->json, "layer_types"));
    int64_t of_dense = 1, of_others = s->defaults->window_pattern, n_dense = 0;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "prefix_dense_sliding_window_pattern", 1, 1 << 20, &of_dense));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "sliding_window_pattern", 1, 1 << 20, &of_others));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "first_k_dense_replace", 0, 1 << 12, &n_dense));
    for (int64_t i = 0; i < config->n_layers; i++) {
        const bool is_ahead = i < n_dense;
        if (!listed) {
            config->layer_slides[i] = ((is_ahead ? i : i - n_dense) + 1) % (is_ahead ? of_dense : of_others) != 0;
        }
        config->layer_rotates[i] = config->layer_slides[i] || (!config->experts.layer_has_experts[i] && of_dense == 1);
    }
    return QRUN_OK;
}

/* ---- Falcon-H1 and Nemotron-H ------------------------------------------------------------------------------------ */

/* Falcon-H1's. What scales attention's input scales scores twice and values once, so that it is a factor of what
 * attention adds. */
static qrun_status read_falcon_h1_factors(const qr_config_source *s, qr_model_config *config) {
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
        QR_RETURN_IF_ERROR(qr_config_get_double(s, factors[i].key, 1e-9, 1e9, factors[i].value));
    }
    QR_RETURN_IF_ERROR(qr_config_read_factors(s->json, "mlp_multipliers", 2, of_mlp, s->what, s->err));
    config->gate_multiplier = of_mlp[0];
    config->mlp_out_multiplier = of_mlp[1];
    config->logits_scaling = 1 / of_logits;
    config->attention_out_multiplier *= of_input;
    config->attention_multiplier = of_keys * of_input * of_input / sqrt((double)config->head_dim);
    return QRUN_OK;
}

/* Falcon-H1 may have biases, and no published model has. */
static qrun_status refuse_falcon_h1_biases(const qr_config_source *s, qr_model_config *config) {
    static const char *const keys[] = {"attention_bias", "mlp_bias", "projectors_bias"};
    bool has_mlp = true;
    (void)config;
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) { QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, keys[i])); }
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "mamba_use_mlp", &has_mlp));
    if (has_mlp) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"mamba_use_mlp\": false is not supported", s->what);
}

/* Which blocks a model of Nemotron-H has. Older files name the size of attention's heads a second time. */
static qrun_status read_blocks(const qr_config_source *s, qr_model_config *config) {
    int64_t head_dim = config->head_dim;
    QR_RETURN_IF_ERROR(qr_blocks_read(s->json, s->what, &config->blocks, &config->n_layers, s->err));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "attention_head_dim", 1, 1 << 12, &head_dim));
    if (head_dim != config->head_dim) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"attention_head_dim\" is %lld, and \"head_dim\" %lld", s->what,
                       (long long)head_dim, (long long)config->head_dim);
    }
    return QRUN_OK;
}

/* Nemotron-H has biases in its MLPs alone. */
static qrun_status read_nemotron_h_biases(const qr_config_source *s, qr_model_config *config) {
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "attention_bias"));
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "use_bias"));
    return qr_config_get_bool(s, "mlp_bias", &config->mlp_bias);
}

/* ---- Gemma, VaultGemma ------------------------------------------------------------------------------------------- */

static qrun_status read_gemma(const qr_config_source *s, qr_model_config *config) {
    config->scale_embeddings = config->norm_adds_one = true;
    return qr_config_refuse_flag(s, "use_bidirectional_attention");
}

static qrun_status read_gemma_2(const qr_config_source *s, qr_model_config *config) {
    config->query_pre_attn_scalar = 256;
    config->attn_logit_softcapping = s->defaults->attn_softcap;
    config->final_logit_softcapping = s->defaults->final_softcap;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "query_pre_attn_scalar", 1e-6, 1e9, &config->query_pre_attn_scalar));
    QR_RETURN_IF_ERROR(qr_config_get_nullable(s, "attn_logit_softcapping", 1e9, &config->attn_logit_softcapping));
    QR_RETURN_IF_ERROR(qr_config_get_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
    return read_gemma(s, config);
}

/* It may let images see all of themselves, which are none here, or all tokens. */
static qrun_status read_gemma_4(const qr_config_source *s, qr_model_config *config) {
    const char *who = NULL;
    config->scale_embeddings = true;
    config->attention_multiplier = 1;
    QR_RETURN_IF_ERROR(qr_config_get_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "use_bidirectional_attention", &who, s->what, s->err));
    if (who == NULL || strcmp(who, "vision") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"use_bidirectional_attention\" is \"%.60s\", not supported",
                   s->what, who);
}

/* As transformers, whatever the list says. */
static qrun_status read_gemma_4_windows(const qr_config_source *s, qr_model_config *config) {
    (void)s;
    config->layer_slides[config->n_layers - 1] = false;
    return QRUN_OK;
}

static qrun_status read_gemma_4_heads(const qr_config_source *s, qr_model_config *config) {
    const qr_attention_context context = {.what = s->what,
                                          .n_layers = config->n_layers,
                                          .n_heads = config->n_heads,
                                          .layer_slides = config->layer_slides};
    QR_RETURN_IF_ERROR(qr_attention_config_read(s->json, &context, &config->attention, s->err));
    return qr_layer_inputs_config_read(s->json, s->what, config->vocab_size, &config->layer_inputs, s->err);
}

/* ---- Gemma 3n ---------------------------------------------------------------------------------------------------- */

static qrun_status fail_list(const qr_config_source *s, const char *key, const qr_model_config *config) {
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of %lld number%s", s->what, key,
                   (long long)config->n_layers, qr_plural(config->n_layers));
}

/* One size for all layers, or a list of them. */
static qrun_status read_mlp_list(const qr_config_source *s, qr_model_config *config) {
    static const char key[] = "intermediate_size";
    const qr_json *list = qr_json_get(s->json, key);
    int64_t n = 0;
    if (!cJSON_IsArray(list)) { return QRUN_OK; }
    config->layer_mlp = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->layer_mlp);
    if (config->layer_mlp == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers * 8); }
    config->intermediate_size = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL && n < config->n_layers; item = item->next, n++) {
        const double size = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(size >= 1 && size <= 1 << 22) || size != floor(size)) { return fail_list(s, key, config); }
        config->layer_mlp[n] = (int64_t)size;
        config->intermediate_size = qr_max(config->intermediate_size, config->layer_mlp[n]);
    }
    return n == config->n_layers && cJSON_GetArraySize(list) == n ? QRUN_OK : fail_list(s, key, config);
}

/* activation_sparsity_pattern: by default 0.95 of the first ten layers, where there are more. */
static qrun_status read_gate_parts(const qr_config_source *s, qr_model_config *config) {
    static const char key[] = "activation_sparsity_pattern";
    enum { FIRST_LAYERS = 10 };
    const qr_json *list = qr_json_get(s->json, key), *item = qr_json_first(list);
    const bool is_listed = !qr_json_is_null(list);
    config->gate_parts = qr_alloc_array_zeroed((size_t)config->n_layers, sizeof *config->gate_parts);
    if (config->gate_parts == NULL) { return qr_fail_memory(s->err, s->what, (size_t)config->n_layers * 4); }
    if (is_listed && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != config->n_layers)) {
        return fail_list(s, key, config);
    }
    for (int64_t l = 0; l < config->n_layers; l++) {
        double part = config->n_layers > FIRST_LAYERS && l < FIRST_LAYERS ? 0.95 : 0.0;
        if (is_listed) {
            part = cJSON_IsNumber(item) ? item->valuedouble : -1;
            item = item->next;
        }
        if (!(part >= 0 && part < 1)) {
            return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should have numbers from 0 to below 1", s->what, key);
        }
        config->gate_parts[l] = (float)part;
    }
    return QRUN_OK;
}

/* Scores have no factor, whatever query_pre_attn_scalar says. */
static qrun_status read_gemma_3n(const qr_config_source *s, qr_model_config *config) {
    config->scale_embeddings = true;
    config->attention_multiplier = 1;
    config->final_logit_softcapping = s->defaults->final_softcap;
    QR_RETURN_IF_ERROR(qr_config_get_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping));
    QR_RETURN_IF_ERROR(read_gate_parts(s, config));
    return qr_streams_config_read(s->json, s->what, &config->streams, s->err);
}

static qrun_status read_gemma_3n_heads(const qr_config_source *s, qr_model_config *config) {
    enum { SHARED_LAYERS = 15 };
    const qr_attention_context context = {.what = s->what,
                                          .n_layers = config->n_layers,
                                          .n_heads = config->n_heads,
                                          .layer_slides = config->layer_slides};
    config->attention.norms_values = true;
    config->attention.n_shared_layers = SHARED_LAYERS;
    QR_RETURN_IF_ERROR(qr_shared_layers_read(s->json, &context, &config->attention, s->err));
    QR_RETURN_IF_ERROR(qr_layer_inputs_config_read(s->json, s->what, 1, &config->layer_inputs, s->err));
    if (config->layer_inputs.size > 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: a gemma3n_text model without \"hidden_size_per_layer_input\" is "
                   "not supported",
                   s->what);
}

/* ---- GPT-2 ------------------------------------------------------------------------------------------------------- */

static qrun_status read_gpt2(const qr_config_source *s, qr_model_config *config) {
    bool scales = true;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "scale_attn_weights", &scales));
    if (!scales) { config->query_pre_attn_scalar = 1; }
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "scale_attn_by_inverse_layer_idx"));
    return qr_config_refuse_flag(s, "add_cross_attention");
}

static qrun_status set_all_biases(const qr_config_source *s, qr_model_config *config) {
    (void)s;
    config->qkv_bias = config->o_bias = config->mlp_bias = true;
    return QRUN_OK;
}

/* ---- GPT-NeoX ---------------------------------------------------------------------------------------------------- */

/* Its matrix makes queries, keys and values of one size, which is a part of the hidden one. */
static qrun_status read_gpt_neox(const qr_config_source *s, qr_model_config *config) {
    bool is_parallel = true;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_parallel_residual", &is_parallel));
    config->blocks_in_turn = !is_parallel;
    if (config->n_kv_heads == config->n_heads && config->head_dim * config->n_heads == config->hidden_size) {
        return QRUN_OK;
    }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"%s\" is not supported for this family; heads have %lld of the %lld elements", s->what,
                   config->n_kv_heads != config->n_heads ? "num_key_value_heads" : "head_dim",
                   (long long)config->head_dim, (long long)config->hidden_size);
}

static qrun_status read_gpt_neox_biases(const qr_config_source *s, qr_model_config *config) {
    config->qkv_bias = config->mlp_bias = true;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "attention_bias", &config->qkv_bias));
    config->o_bias = config->qkv_bias;
    return QRUN_OK;
}

/* ---- Granite and SmolLM3: layers without positions --------------------------------------------------------------- */

/* Granite 4 rotates in all layers or in none. */
static qrun_status read_positions(const qr_config_source *s, qr_model_config *config) {
    const char *type = "nope";
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "position_embedding_type", &type, s->what, s->err));
    const bool rotates = strcmp(type, "rope") == 0;
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = rotates; }
    if (rotates || strcmp(type, "nope") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"position_embedding_type\" is \"%.60s\", not supported",
                   s->what, type);
}

/* layer_rope_theta is 0 for a layer that does not rotate. Without it the layers stay as they are. */
static qrun_status read_layer_thetas(const qr_config_source *s, qr_model_config *config) {
    const qr_json *list = qr_json_get(s->json, "layer_rope_theta");
    double theta = 0;
    int64_t n = 0;
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

static qrun_status read_granite_rotated_layers(const qr_config_source *s, qr_model_config *config) {
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = true; }
    return read_layer_thetas(s, config);
}

/* The list is the base of the layers that rotate, too. */
static qrun_status read_granite_theta(const qr_config_source *s, qr_model_config *config) {
    const qr_json *list = qr_json_get(s->json, "layer_rope_theta");
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        if (item->valuedouble > 0) {
            config->rope.theta = config->rope_local.theta = item->valuedouble;
            break;
        }
    }
    return QRUN_OK;
}

/* no_rope_layers has a 1 for every layer that rotates; without it every n-th layer does not. */
static qrun_status read_smollm3_rotated_layers(const qr_config_source *s, qr_model_config *config) {
    int64_t interval = 4, n = 0;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "no_rope_layer_interval", 1, 1 << 20, &interval));
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

/* ---- HyperCLOVA X and MiniCPM ------------------------------------------------------------------------------------ */

/* HyperCLOVA X multiplies logits where Granite divides them, and need not say how scores are scaled. */
static qrun_status read_hyperclovax(const qr_config_source *s, qr_model_config *config) {
    bool has_post_norms = true;
    if (qr_json_is_null(qr_json_get(s->json, "attention_multiplier"))) { config->attention_multiplier = 0; }
    config->logits_scaling = 1 / config->logits_scaling;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_post_norm", &has_post_norms));
    config->without_post_norms = !has_post_norms;
    return QRUN_OK;
}

/* MiniCPM's three, which depend on the depth and the width. */
static qrun_status read_minicpm_factors(const qr_config_source *s, qr_model_config *config) {
    double of_branches = sqrt((double)config->n_layers), base = (double)config->hidden_size;
    const qr_json *depth = qr_json_get(s->json, "scale_depth"), *width = qr_json_get(s->json, "dim_model_base");
    if (depth == NULL) { of_branches = 1.4; }
    if (width == NULL) { base = 256; }
    config->embedding_multiplier = 12;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "scale_emb", 1e-9, 1e9, &config->embedding_multiplier));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "scale_depth", 1e-9, 1e9, &of_branches));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "dim_model_base", 1, 1e9, &base));
    config->residual_multiplier = of_branches / sqrt((double)config->n_layers);
    config->logits_scaling = (double)config->hidden_size / base;
    return QRUN_OK;
}

/* ---- MiMo-V2-Flash ----------------------------------------------------------------------------------------------- */

static qrun_status read_mimo_sizes(const qr_config_source *s, qr_model_config *config) {
    return qr_config_get_double(s, "layernorm_epsilon", 0, 1, &config->norm_eps); /* as its files call it */
}

/* A key that may repeat what another says, and nothing else. */
static qrun_status refuse_other(const qr_config_source *s, const char *key, const char *usual_key, int64_t usual) {
    int64_t value = usual;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, key, 0, 1 << 20, &value));
    if (value == usual) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: a \"%s\" of %lld, where \"%s\" is %lld, is not supported",
                   s->what, key, (long long)value, usual_key, (long long)usual);
}

/* Values have a factor, which is one of what attention adds. transformers has fixed what the model's own
 * code asks of config.json: sinks in layers with a window, no expert of all tokens, and heads of one size. */
static qrun_status read_mimo(const qr_config_source *s, qr_model_config *config) {
    bool in_full = false, in_windows = true;
    int64_t n_shared = 0;
    const qr_json *factor = qr_json_get(s->json, "attention_value_scale");
    const int64_t value_dim = config->value_dim > 0 ? config->value_dim : config->head_dim;
    config->sinks_in_windows = true;
    config->attention_out_multiplier = factor != NULL && qr_json_is_null(factor) ? 1 : 0.707;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "attention_value_scale", 1e-9, 1e9, &config->attention_out_multiplier));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "add_full_attention_sink_bias", &in_full));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "add_swa_attention_sink_bias", &in_windows));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_num_attention_heads", "num_attention_heads", config->n_heads));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_head_dim", "head_dim", config->head_dim));
    QR_RETURN_IF_ERROR(refuse_other(s, "swa_v_head_dim", "v_head_dim", value_dim));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "n_shared_experts", 0, 1 << 12, &n_shared));
    if (n_shared > 0) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"n_shared_experts\" is not supported for this family",
                       s->what);
    }
    if (!in_full && in_windows) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\": %s is not supported", s->what,
                   in_full ? "add_full_attention_sink_bias" : "add_swa_attention_sink_bias",
                   in_full ? "true" : "false");
}

/* sliding_window_size is without the position itself, as transformers has it; and what files have in
 * place of layer_types is a 1 for each layer with a window. */
static qrun_status read_mimo_windows(const qr_config_source *s, qr_model_config *config) {
    static const char key[] = "hybrid_layer_pattern";
    const qr_json *list = qr_json_get(s->json, key);
    int64_t size = config->sliding_window - 1, n = 0, slides = 0;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "sliding_window_size", 1, QR_CONFIG_MAX_POSITIONS - 1, &size));
    config->sliding_window = size + 1;
    if (qr_json_is_null(list) || !qr_json_is_null(qr_json_get(s->json, "layer_types"))) { return QRUN_OK; }
    for (const qr_json *item = qr_json_first(list); item != NULL && n < config->n_layers; item = item->next, n++) {
        if (!qr_json_as_int(item, 0, 1, &slides)) { break; }
        config->layer_slides[n] = slides == 1;
    }
    if (cJSON_IsArray(list) && n == config->n_layers && (size_t)n == qr_json_count(list)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of 0 or 1 for each of %lld layer%s", s->what,
                   key, (long long)config->n_layers, qr_plural(config->n_layers));
}

/* There are twice as many heads of keys in layers with a window. */
static qrun_status read_mimo_heads(const qr_config_source *s, qr_model_config *config) {
    int64_t *const n = &config->attention.sliding.n_kv_heads;
    *n *= 2;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "swa_num_key_value_heads", 1, 1 << 12, n));
    config->n_kv_heads = *n;
    if (config->n_heads % *n == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: %lld heads are not divisible by %lld key/value heads of windows",
                   s->what, (long long)config->n_heads, (long long)*n);
}

/* ---- Kimi Linear ------------------------------------------------------------------------------------------------- */

static qrun_status read_kimi_sizes(const qr_config_source *s, qr_model_config *config) {
    return qr_config_get_int(s, "model_max_length", 1, QR_CONFIG_MAX_POSITIONS, &config->max_position_embeddings);
}

/* What the model's own code asks of config.json, and transformers has fixed. */
static qrun_status refuse_other_kimi(const qr_config_source *s, qr_model_config *config) {
    static const char *const flags[] = {"mla_use_nope", "use_grouped_topk"};
    const char *scores = "sigmoid";
    for (size_t i = 0; i < QR_COUNT_OF(flags); i++) {
        bool is_set = true;
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, flags[i], &is_set));
        if (is_set || (i == 1 && config->experts.n_groups == 1)) { continue; }
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\": false is not supported for this family", s->what,
                       flags[i]);
    }
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "moe_router_activation_func", &scores, s->what, s->err));
    if (strcmp(scores, "sigmoid") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: the router's \"moe_router_activation_func\" is not supported for this family", s->what);
}

/* ---- Muse Glimmer and nanochat ----------------------------------------------------------------------------------- */

/* Muse Glimmer's own keys. */
static qrun_status read_muse_glimmer(const qr_config_source *s, qr_model_config *config) {
    double query_scale = 3.87, logit_scale = 0.19611613513818404;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "qk_scale_factor", 1e-9, 1e9, &query_scale));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "output_multiplier", 1e-9, 1e9, &logit_scale));
    config->post_norm_eps = 1e-8;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "post_norm_eps", 0, 1, &config->post_norm_eps));
    config->attention_multiplier = query_scale / sqrt((double)config->head_dim);
    config->logits_scaling = 1 / logit_scale;
    config->final_logit_softcapping = s->defaults->final_softcap;
    config->norm_adds_one = config->final_norm_is_plain = true;
    config->norms_embeddings = config->norms_heads = config->attn_gate_apart = true;
    return qr_config_get_double(s, "final_logit_softcapping", 1e-6, 1e9, &config->final_logit_softcapping);
}

/* Every fourth layer from the last does not rotate. The others do by the model's own theta, as in transformers. */
static qrun_status read_muse_glimmer_rotated_layers(const qr_config_source *s, qr_model_config *config) {
    for (int64_t i = 0; i < config->n_layers; i++) { config->layer_rotates[i] = (config->n_layers - 1 - i) % 4 != 0; }
    return read_layer_thetas(s, config);
}

static qrun_status read_nanochat(const qr_config_source *s, qr_model_config *config) {
    config->norms_layers = config->norms_heads = config->norms_embeddings = true;
    config->final_logit_softcapping = s->defaults->final_softcap;
    return qr_config_get_nullable(s, "final_logit_softcapping", 1e9, &config->final_logit_softcapping);
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

/* The gated delta rule of Qwen comes with gated attention and norms that add 1. */
static qrun_status set_qwen_delta(const qr_config_source *s, qr_model_config *config) {
    (void)s;
    config->norm_adds_one = config->attn_output_gate = true;
    return QRUN_OK;
}

static qrun_status set_nemotron(const qr_config_source *s, qr_model_config *config) {
    (void)s;
    config->norm_adds_one = true;
    return QRUN_OK;
}

static qrun_status read_glm4_moe(const qr_config_source *s, qr_model_config *config) {
    bool has_head_norms = false;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_qk_norm", &has_head_norms));
    config->without_head_norms = !has_head_norms;
    return QRUN_OK;
}

/* Sarvam's own keys beside transformers'. */
static qrun_status read_sarvam_moe(const qr_config_source *s, qr_model_config *config) {
    bool has_head_norms = true, has_choice_bias = true;
    const char *scores = "sigmoid";
    const int64_t usual = config->experts.shared_intermediate_size;
    int64_t shared_size = usual;
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "use_bias"));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_qk_norm", &has_head_norms));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "moe_router_enable_expert_bias", &has_choice_bias));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "score_function", &scores, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "moe_shared_expert_intermediate_size", 1, 1 << 22, &shared_size));
    config->without_head_norms = !has_head_norms;
    if (has_choice_bias && strcmp(scores, "sigmoid") == 0 && (usual == 0 || shared_size == usual)) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: this \"%s\" is not supported for this family", s->what,
                   !has_choice_bias                 ? "moe_router_enable_expert_bias"
                   : strcmp(scores, "sigmoid") != 0 ? "score_function"
                                                    : "moe_shared_expert_intermediate_size");
}

static qrun_status read_sarvam_moe_biases(const qr_config_source *s, qr_model_config *config) {
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "use_qkv_bias", &config->qkv_bias));
    return qr_config_get_bool(s, "attention_bias", &config->qkv_bias);
}

/* Trinity: what its own code has beside transformers', and embeddings that are scaled by a factor. */
static qrun_status read_afmoe(const qr_config_source *s, qr_model_config *config) {
    bool scales = false, normalizes = true;
    const char *scores = "sigmoid";
    int64_t n_groups = 1;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "mup_enabled", &scales));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "route_norm", &normalizes));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "score_func", &scores, s->what, s->err));
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "num_expert_groups", 1, 1 << 12, &n_groups));
    if (scales) { config->embedding_multiplier = sqrt((double)config->hidden_size); }
    config->attn_gate_apart = true;
    if (normalizes && strcmp(scores, "sigmoid") == 0 && n_groups == 1) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: the router's \"%s\" is not supported for this family", s->what,
                   !normalizes     ? "route_norm"
                   : n_groups != 1 ? "num_expert_groups"
                                   : "score_func");
}

/* ---- Laguna ------------------------------------------------------------------------------------------------------ */

/* "per-head" or "per-element", as "gating" says it, and published files of each layer again, with underscores. */
static bool is_granularity(const qr_json *value, bool by_head) {
    const char *const names[2][2] = {{"per-element", "per_element"}, {"per-head", "per_head"}};
    return cJSON_IsString(value) &&
           (strcmp(value->valuestring, names[by_head][0]) == 0 || strcmp(value->valuestring, names[by_head][1]) == 0);
}

static qrun_status read_laguna_gates(const qr_config_source *s, qr_model_config *config) {
    const qr_json *gating = qr_json_get(s->json, "gating");
    config->attn_gate_apart = config->attn_gate_by_softplus = true;
    config->attn_gate_by_head = gating == NULL || cJSON_IsTrue(gating) || is_granularity(gating, true);
    bool known = config->attn_gate_by_head || is_granularity(gating, false);
    for (const qr_json *of_layer = qr_json_first(qr_json_get(s->json, "gating_types")); known && of_layer != NULL;
         of_layer = of_layer->next) {
        known = is_granularity(of_layer, config->attn_gate_by_head);
    }
    if (known) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: \"gating\" should be true, \"per-head\" or \"per-element\", and the same in all layers",
                   s->what);
}

/* What the model's own code may do, and no published model has. */
static qrun_status read_laguna(const qr_config_source *s, qr_model_config *config) {
    static const char *const flags[] = {"moe_apply_router_weight_on_input", "swa_attention_sink_enabled"};
    static const char *const needed[] = {"norm_topk_prob", "moe_router_use_sigmoid"};
    double cap = 0;
    for (size_t i = 0; i < QR_COUNT_OF(flags); i++) { QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, flags[i])); }
    for (size_t i = 0; i < QR_COUNT_OF(needed); i++) {
        bool is_set = true;
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, needed[i], &is_set));
        if (is_set) { continue; }
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\": false is not supported for this family", s->what,
                       needed[i]);
    }
    QR_RETURN_IF_ERROR(qr_config_get_nullable(s, "moe_router_logit_softcapping", 1e9, &cap));
    if (cap > 0) {
        return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: the router's \"moe_router_logit_softcapping\" is not supported", s->what);
    }
    if (qr_json_is_null(qr_json_get(s->json, "rope_parameters"))) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: a laguna model needs \"rope_parameters\"", s->what);
    }
    return read_laguna_gates(s, config);
}

/* Heads of queries are listed by layer. Layers with a window have as many, and so have those without. */
static qrun_status read_laguna_heads(const qr_config_source *s, qr_model_config *config) {
    static const char key[] = "num_attention_heads_per_layer";
    qr_layer_heads *const kinds[] = {&config->attention.full, &config->attention.sliding};
    const qr_json *const list = qr_json_get(s->json, key), *item = qr_json_first(list);
    const bool fits = cJSON_IsArray(list) && qr_json_count(list) == (size_t)config->n_layers;
    bool found[2] = {false, false};
    if (qr_json_is_null(list)) { return QRUN_OK; }
    for (int64_t l = 0; l < config->n_layers; l++, item = item->next) {
        const bool slides = config->layer_slides[l];
        int64_t n = 0;
        if (!fits || !qr_json_as_int(item, 1, 1 << 12, &n) || n % config->n_kv_heads != 0) {
            return qr_fail(s->err, QRUN_ERROR_INPUT,
                           "%s: \"%s\" should be a list of a multiple of %lld for each of %lld layers", s->what, key,
                           (long long)config->n_kv_heads, (long long)config->n_layers);
        }
        if (found[slides] && kinds[slides]->n_heads != n) {
            return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                           "%s: layer %lld has other heads than layers of the same attention (\"%s\"), which is not "
                           "supported",
                           s->what, (long long)l, key);
        }
        kinds[slides]->n_heads = n;
        found[slides] = true;
    }
    for (int i = 0; i < 2; i++) {
        if (!found[i]) { kinds[i]->n_heads = kinds[!i]->n_heads; }
    }
    config->n_heads = qr_max(kinds[0]->n_heads, kinds[1]->n_heads);
    return QRUN_OK;
}

/* The head of Apertus 1.5 has no rows for the last tokens, which images and sounds are made of. */
static qrun_status read_apertus_sizes(const qr_config_source *s, qr_model_config *config) {
    bool tied = s->defaults->tied;
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "output_vocab_size", 1, config->embedding_rows, &config->vocab_size));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "tie_word_embeddings", &tied));
    QR_RETURN_IF_ERROR(qr_json_get_bool(s->root, "tie_word_embeddings", &tied, s->what, s->err));
    if (!tied || config->vocab_size == config->embedding_rows) { return QRUN_OK; }
    return qr_fail(
        s->err, QRUN_ERROR_INPUT,
        "%s: \"output_vocab_size\" is %lld, and with \"tie_word_embeddings\" the head has the %lld rows of the "
        "embedding",
        s->what, (long long)config->vocab_size, (long long)config->embedding_rows);
}

/* What configurations of Apertus say of a family of models that it is one of. */
static qrun_status refuse_apertus_flags(const qr_config_source *s, qr_model_config *config) {
    (void)config;
    bool has_head_norms = true;
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "mlp_bias"));
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "post_norm"));
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, "qk_norm", &has_head_norms));
    if (has_head_norms) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"qk_norm\": false is not supported", s->what);
}

/* InternLM3 has biases everywhere or nowhere, as its own keys say, or as transformers calls them. */
static qrun_status read_internlm3_biases(const qr_config_source *s, qr_model_config *config) {
    static const char *const keys[][2] = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}};
    bool has[2] = {false, false};
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, keys[i][0], &has[i]));
        QR_RETURN_IF_ERROR(qr_config_get_bool(s, keys[i][1], &has[i]));
    }
    config->qkv_bias = config->o_bias = config->mlp_bias = has[0];
    if (has[0] == has[1]) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" and \"%s\" differ, which is not supported", s->what,
                   keys[0][0], keys[1][0]);
}

/* As StableLM 2 12B has them. */
static qrun_status refuse_stablelm_12b(const qr_config_source *s, qr_model_config *config) {
    (void)config;
    QR_RETURN_IF_ERROR(qr_config_refuse_flag(s, "use_parallel_residual"));
    return qr_config_refuse_flag(s, "qk_layernorm");
}

/* OLMo can clip queries, keys and values; no published OLMoE does, and some of the first OLMo do. */
static qrun_status refuse_clipping(const qr_config_source *s, qr_model_config *config) {
    (void)config;
    double limit = 0;
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "clip_qkv", 0, 1e30, &limit));
    if (limit == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"clip_qkv\" is not supported", s->what);
}

/* EXAONE 3's own names of what all families have. */
static qrun_status read_exaone_sizes(const qr_config_source *s, qr_model_config *config) {
    const char *activation = "silu";
    QR_RETURN_IF_ERROR(qr_config_get_int(s, "num_layers", 1, 1 << 12, &config->n_layers));
    QR_RETURN_IF_ERROR(qr_config_get_double(s, "layer_norm_epsilon", 0, 1, &config->norm_eps));
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "activation_function", &activation, s->what, s->err));
    if (strcmp(activation, "silu") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: activation \"%.60s\" is not supported", s->what, activation);
}

/* The norms have no weights, and one epsilon, whatever the file says. */
static qrun_status read_olmo(const qr_config_source *s, qr_model_config *config) {
    config->norms_layers = true;
    config->norm_eps = config->post_norm_eps = 1e-5;
    return refuse_clipping(s, config);
}

/* Mistral 4 scales whole heads of queries, of which a part rotates. So they rotate as a whole, by nothing where they
 * should not: neighbours together, and without a factor of YaRN's. */
static qrun_status check_scaled_queries(const qr_config_source *s, qr_model_config *config) {
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

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const qr_family_keys families[QR_FAMILY_COUNT] = {
    [QR_FAMILY_GPT2] = {.attention = read_gpt2, .biases = set_all_biases},
    [QR_FAMILY_GPT_NEOX] = {.attention = read_gpt_neox, .biases = read_gpt_neox_biases},
    [QR_FAMILY_GEMMA] = {.attention = read_gemma},
    [QR_FAMILY_GEMMA2] = {.attention = read_gemma_2},
    [QR_FAMILY_GEMMA3] = {.attention = read_gemma_2},
    [QR_FAMILY_VAULT_GEMMA] = {.attention = read_gemma_2},
    [QR_FAMILY_GEMMA3N] = {.sizes = read_mlp_list, .attention = read_gemma_3n, .heads = read_gemma_3n_heads},
    [QR_FAMILY_GEMMA4] = {.attention = read_gemma_4, .windows = read_gemma_4_windows, .heads = read_gemma_4_heads},
    [QR_FAMILY_QWEN3_NEXT] = {.attention = set_qwen_delta},
    [QR_FAMILY_QWEN3_5] = {.attention = set_qwen_delta},
    [QR_FAMILY_QWEN3_5_MOE] = {.attention = set_qwen_delta},
    [QR_FAMILY_SMOLLM3] = {.rotated_layers = read_smollm3_rotated_layers},
    [QR_FAMILY_GRANITE4] = {.rotated_layers = read_positions},
    [QR_FAMILY_GRANITE_SWA] = {.rotated_layers = read_granite_rotated_layers, .rope = read_granite_theta},
    [QR_FAMILY_GRANITE_MOE_SWA] = {.rotated_layers = read_granite_rotated_layers, .rope = read_granite_theta},
    [QR_FAMILY_MUSE_GLIMMER] = {.attention = read_muse_glimmer, .rotated_layers = read_muse_glimmer_rotated_layers},
    [QR_FAMILY_NANOCHAT] = {.attention = read_nanochat},
    [QR_FAMILY_COHERE] = {.attention = read_command_r},
    [QR_FAMILY_COHERE2] = {.attention = read_cohere},
    [QR_FAMILY_COHERE2_MOE] = {.sizes = read_cohere_sizes,
                               .attention = read_cohere_experts,
                               .windows = read_cohere_windows},
    [QR_FAMILY_LFM2] = {.sizes = read_lfm2_mlp},
    [QR_FAMILY_LFM3] = {.attention = read_lfm3},
    [QR_FAMILY_FALCON_H1] = {.factors = read_falcon_h1_factors, .biases = refuse_falcon_h1_biases},
    [QR_FAMILY_NEMOTRON_H] = {.layers = read_blocks, .biases = read_nemotron_h_biases},
    [QR_FAMILY_NEMOTRON] = {.attention = set_nemotron},
    [QR_FAMILY_MINICPM3] = {.factors = read_minicpm_factors},
    [QR_FAMILY_HYPERCLOVAX] = {.factors = read_hyperclovax},
    [QR_FAMILY_INTERNLM3] = {.biases = read_internlm3_biases},
    [QR_FAMILY_MIMO_V2_FLASH] = {.sizes = read_mimo_sizes,
                                 .attention = read_mimo,
                                 .windows = read_mimo_windows,
                                 .heads = read_mimo_heads},
    [QR_FAMILY_KIMI_LINEAR] = {.sizes = read_kimi_sizes, .attention = refuse_other_kimi},
    [QR_FAMILY_GLM4_MOE] = {.attention = read_glm4_moe},
    [QR_FAMILY_SARVAM_MOE] = {.attention = read_sarvam_moe, .biases = read_sarvam_moe_biases},
    [QR_FAMILY_AFMOE] = {.attention = read_afmoe},
    [QR_FAMILY_LAGUNA] = {.attention = read_laguna, .heads = read_laguna_heads},
    [QR_FAMILY_APERTUS] = {.sizes = read_apertus_sizes, .attention = refuse_apertus_flags},
    [QR_FAMILY_STABLELM] = {.attention = refuse_stablelm_12b},
    [QR_FAMILY_EXAONE] = {.sizes = read_exaone_sizes},
    [QR_FAMILY_OLMO] = {.attention = read_olmo},
    [QR_FAMILY_OLMOE] = {.attention = refuse_clipping},
    [QR_FAMILY_MISTRAL4] = {.rope = check_scaled_queries},
};

const qr_family_keys *qr_family_keys_of(qr_model_family family) { return &families[family]; }
