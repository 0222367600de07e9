#include "runtime/folders/gguf_metadata.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/model/rope.h"

static const double PI = 3.14159265358979323846;

/* ---- What llama.cpp computes ------------------------------------------------------------------------------------- */

static bool is_arch(const qr_gguf_arch *arch, const char *name) { return strcmp(arch->name, name) == 0; }

/* Families whose sliding window llama.cpp does not have: within the window nothing differs. */
static bool loses_window(qr_model_family family) {
    return family == QR_FAMILY_MISTRAL || family == QR_FAMILY_MINISTRAL3 || family == QR_FAMILY_PHI3 ||
           family == QR_FAMILY_MIXTRAL;
}

static bool has_windows(const qrun_model *model) {
    return model->config.sliding_window > 0 && !loses_window(model->config.family);
}

qr_gguf_heads qr_gguf_heads_of(const qrun_model *model) {
    const qr_recurrent_shape *delta = &model->shape.recurrent;
    return (qr_gguf_heads){.head_dim = model->shape.head_dim,
                           .n_key_heads = delta->n_key_heads,
                           .n_value_heads = delta->n_value_heads,
                           .key_dim = delta->key_dim,
                           .value_dim = delta->value_dim,
                           .n_latent_heads = model->shape.n_heads,
                           .plain_dim = model->config.latent.plain_dim,
                           .latent_value_dim = model->config.latent.value_dim};
}

int64_t qr_gguf_context_tokens(const qrun_model *model) {
    const qr_model_config *config = &model->config;
    if (config->sliding_window == 0 || !loses_window(config->family)) { return config->max_position_embeddings; }
    return qr_min(config->max_position_embeddings, config->sliding_window);
}

static bool rotates_as_smollm3(const qr_model_config *config) {
    for (int64_t l = 0; config->layer_rotates != NULL && l < config->n_layers; l++) {
        if (config->layer_rotates[l] != ((l + 1) % 4 != 0)) { return false; }
    }
    return true;
}

/* llama.cpp knows Gemma's largest models by their layers, and scales their scores by another size. */
static double gemma_scalar(const qr_model_config *config) {
    const int64_t largest = config->family == QR_FAMILY_GEMMA2 ? 46 : 62;
    return (double)(config->n_layers == largest ? config->hidden_size / config->n_heads : config->head_dim);
}

/* The layers before the first with experts; all where none has any. */
static int64_t count_dense_layers(const qr_model_config *config) {
    const qr_expert_config *experts = &config->experts;
    int64_t n = 0;
    while (n < config->n_layers && (experts->n_experts == 0 || !experts->layer_has_experts[n])) { n++; }
    return n;
}

static bool all_layers_have_experts(const qr_gguf_arch *arch, const qr_model_config *config) {
    const qr_expert_config *experts = &config->experts;
    if (config->blocks != NULL) { return true; } /* which blocks have them is said */
    const int64_t first = arch->experts != NULL && arch->experts->n_dense != NULL ? count_dense_layers(config) : 0;
    for (int64_t l = first; experts->n_experts > 0 && l < config->n_layers; l++) {
        if (!experts->layer_has_experts[l]) { return false; }
    }
    return true;
}

/* Whether a token's shares add up to 1 where they do in that architecture. */
static bool normalizes_as_usual(const qr_gguf_arch *arch, const qr_model_config *config) {
    const qr_gguf_experts *experts = arch->experts;
    return experts == NULL || experts->shares == QR_GGUF_SHARES_SAID ||
           config->experts.normalizes == (experts->shares == QR_GGUF_SHARES_OF_ONE);
}

/* Which matrices have biases: bits. */
static unsigned biases_of(const qr_model_config *config) {
    return (config->qkv_bias ? QR_GGUF_QKV_BIASES : 0U) | (config->o_bias ? QR_GGUF_OUT_BIASES : 0U) |
           (config->mlp_bias ? QR_GGUF_MLP_BIASES : 0U);
}

/* DeepSeek-V2-Lite and its like, which llama.cpp knows by their layers. */
static bool is_lite(const qr_model_config *config) {
    return config->n_layers == 26 || config->n_layers == 27 || (config->n_layers == 48 && config->vocab_size == 128256);
}

/* What llama.cpp has as constants. */
static bool scales_as_minicpm3(const qr_model_config *config) {
    const double depth = 1.4 / sqrt((double)config->n_layers), width = (double)config->hidden_size / 256;
    return config->embedding_multiplier == 12 && fabs(config->residual_multiplier - depth) < 1e-9 &&
           fabs(config->logits_scaling - width) < 1e-9;
}

static bool has_dense_blocks(const qr_model_config *config) {
    return qr_blocks_have(config->blocks, config->n_layers, QR_BLOCK_MLP);
}

/* Gemma 4's last layers: there they read the keys of the two layers before them, of which the last attends fully. */
static bool shares_as_gemma4(const qr_model_config *config) {
    const int64_t n_own = config->n_layers - config->attention.n_shared_layers;
    for (int64_t l = n_own; l < config->n_layers; l++) {
        if (qr_model_config_kv_owner(config, l) != n_own - (config->layer_slides[l] ? 2 : 1)) { return false; }
    }
    return true;
}

/* NULL: nothing. */
static const char *find_obstacle(const qrun_model *model, const qr_gguf_arch *arch) {
    const qr_model_config *c = &model->config;
    const bool is_gemma4 = c->family == QR_FAMILY_GEMMA4;
    const bool is_gemma = c->family == QR_FAMILY_GEMMA2 || c->family == QR_FAMILY_GEMMA3;
    const bool has_delta = arch->has_delta, is_gemma_1 = c->family == QR_FAMILY_GEMMA;
    const unsigned too_many = biases_of(c) & ~arch->biases;
    const bool chooses_by_bias = c->experts.has_choice_bias || !c->experts.has_sigmoid_router;
    const bool two_ropes = c->family == QR_FAMILY_GEMMA3 || c->family == QR_FAMILY_OLMO3 || is_gemma4;
    const bool yarn_is_usual =
        c->rope.truncate && ((c->rope.beta_fast == 32 && c->rope.beta_slow == 1) || c->family == QR_FAMILY_MINISTRAL3);
    const double scalar = is_gemma ? gemma_scalar(c) : (double)c->head_dim;
    const bool is_nemotron_h = c->family == QR_FAMILY_NEMOTRON_H;
    const qr_mlp_activation activation = is_nemotron_h ? QR_ACTIVATION_RELU2
                                         : is_gemma || is_gemma_1 || is_gemma4 || arch->is_gpt2
                                             ? QR_ACTIVATION_GELU_TANH
                                             : QR_ACTIVATION_SILU;
    const struct {
        bool holds;
        const char *what;
    } obstacles[] = {
        {c->activation != activation, "its activation"},
        {has_delta && model->shape.recurrent.key_dim != model->shape.recurrent.value_dim,
         "heads of the gated delta rule with values of another size than keys"},
        {!all_layers_have_experts(arch, c), "layers without experts"},
        {!normalizes_as_usual(arch, c), "its shares of experts (norm_topk_prob)"},
        {arch->experts != NULL && !arch->experts->scales_shares && c->experts.share_factor != 1,
         "its routed_scaling_factor"},
        {!chooses_by_bias, "experts that are chosen without a bias (use_expert_bias)"},
        {arch->has_convs && c->recurrent.conv_kernel < 2, "convolutions of one token (conv_L_cache)"},
        {(too_many & ~(unsigned)QR_GGUF_QKV_BIASES) != 0, "biases of its attention or MLP"},
        {too_many != 0, "biases of its attention"},
        {c->query_pre_attn_scalar != scalar, "its query_pre_attn_scalar"},
        {c->has_rope && c->rope.type == QR_ROPE_DYNAMIC, "dynamic rotary scaling"},
        {c->has_rope && c->rope.type == QR_ROPE_LONGROPE && !is_arch(arch, "phi3") && !is_arch(arch, "llama") &&
             !is_arch(arch, "minicpm3"),
         "longrope rotary scaling"},
        {c->has_rope && c->rope.type == QR_ROPE_LLAMA3 && !arch->pairs_rows && !arch->has_dividers,
         "llama3 rotary scaling"},
        {is_gemma4 && c->rope.type != QR_ROPE_PROPORTIONAL,
         "rotary positions of full attention that are not proportional"},
        {!is_gemma4 && c->has_rope && c->rope.type == QR_ROPE_PROPORTIONAL, "proportional rotary scaling"},
        {is_gemma4 && !has_windows(model), "full attention in all layers"},
        {!shares_as_gemma4(c), "its order of layers that share keys and values"},
        {is_gemma4 && c->layer_inputs.size > 0 && c->layer_inputs.vocab_size != c->vocab_size,
         "inputs of layers for more tokens than its vocabulary has (vocab_size_per_layer_input)"},
        {two_ropes && c->rope_local.type != QR_ROPE_DEFAULT, "rotary scaling of sliding layers"},
        {c->has_rope && c->rope.type == QR_ROPE_YARN && !yarn_is_usual, "the borders of its YaRN scaling"},
        {c->has_rope && c->rope.rotary_dim != c->head_dim && !arch->rotates_in_part, "heads that rotate in part"},
        {has_windows(model) && !arch->has_windows, "its sliding window"},
        {arch->splits_latents && is_lite(c) != (c->latent.query_rank == 0),
         is_lite(c) ? "queries that are made of a latent (q_lora_rank), but where it has other numbers of layers"
                    : "queries that are made of no latent (q_lora_rank), but where it has 26 or 27 layers"},
        {arch->has_latents && fabs(c->norm_eps - 1e-6) > 1e-5,
         "norms of latents with another rms_norm_eps than its others"},
        {arch->splits_latents && !c->rope.interleaved, "rotary positions of halves (rope_interleave)"},
        {arch->splits_latents && c->rope.type == QR_ROPE_YARN &&
             (c->rope.mscale != c->rope.mscale_all_dim || c->rope.mscale == 0 || c->rope.attention_factor != 0),
         "the factors of its YaRN scaling (mscale, mscale_all_dim)"},
        {is_arch(arch, "minicpm3") && !scales_as_minicpm3(c), "its scale_emb, scale_depth or dim_model_base"},
        {is_arch(arch, "minicpm3") && c->latent.query_rank == 0, "queries that are made of no latent (q_lora_rank)"},
        {arch->has_spaces && !c->recurrent.has_conv_bias, "convolutions without biases"},
        {is_arch(arch, "granitehybrid") && model->shape.recurrent.values != 2 * c->hidden_size,
         "a state space that is not of twice its hidden size (mamba_expand)"},
        {arch->has_multipliers && !arch->has_spaces && c->layer_rotates != NULL && !c->layer_rotates[0],
         "attention without rotary positions in all layers"},
        {is_nemotron_h && arch->experts != NULL && has_dense_blocks(c), "MLPs beside blocks of experts"},
        {c->family == QR_FAMILY_EXAONE4 && has_windows(model) != (c->n_layers == 64),
         has_windows(model) ? "its sliding window, but where it has 64 layers" : "64 layers without a sliding window"},
        {is_arch(arch, "smollm3") && !rotates_as_smollm3(c), "its layers without rotary positions"},
        {c->family == QR_FAMILY_GEMMA2 && c->attn_logit_softcapping == 0, "attention without a soft cap"},
        {c->family == QR_FAMILY_GEMMA3 && c->attn_logit_softcapping != 0, "a soft cap of attention"},
        {is_arch(arch, "olmoe") && c->n_kv_heads != c->n_heads, "fewer heads for keys than for queries"},
        {(is_arch(arch, "olmo2") || is_arch(arch, "exaone4") || is_arch(arch, "phi3") || arch->has_convs) &&
             c->head_dim * c->n_heads != c->hidden_size,
         "heads that are not a share of its hidden size"},
        {(c->family == QR_FAMILY_GEMMA2 || is_gemma_1) && !model->shape.tied_head,
         "an output head apart from the embedding"},
    };
    for (size_t i = 0; i < QR_COUNT_OF(obstacles); i++) {
        if (obstacles[i].holds) { return obstacles[i].what; }
    }
    return NULL;
}

qrun_status qr_gguf_choose_arch(const qrun_model *model, const qr_gguf_arch **arch, qr_error *err) {
    const bool has_spaces = model->config.recurrent.kind == QR_RECURRENT_SPACE;
    *arch =
        qr_gguf_arch_of_model_type(qr_model_family_name(model->config.family), model->shape.n_experts > 0, has_spaces);
    if (*arch == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: a %s model has no name in llama.cpp that is written here",
                       model->folder, model->family->name);
    }
    if (model->config.experts.has_biases) {
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s: gpt-oss is read from GGUF and not written: llama.cpp rounds the borders of its YaRN scaling, so "
            "the file would answer differently; keep the folder",
            model->folder);
    }
    if (model->config.experts.n_groups > 1) {
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s: experts that are chosen in groups (n_group) are neither read from GGUF nor written; keep the "
            "folder",
            model->folder);
    }
    const char *obstacle = find_obstacle(model, *arch);
    if (obstacle == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: llama.cpp's %s model does not have %s, so the file would answer differently; keep the folder",
                   model->folder, (*arch)->name, obstacle);
}

/* ---- Rotary positions -------------------------------------------------------------------------------------------- */

/* What llama.cpp divides each frequency by for Llama 3's scaling, computed as its converter does. */
static void llama3_dividers(const qr_rope_config *rope, float *values) {
    const double positions = (double)rope->original_max_position_embeddings;
    for (int64_t i = 0; i < rope->rotary_dim / 2; i++) {
        const double length = 2 * PI * pow(rope->theta, 2.0 * (double)i / (double)rope->rotary_dim);
        const double smooth =
            (positions / length - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
        values[i] = (float)(smooth > 1 ? 1.0 : smooth < 0 ? rope->factor : 1 / ((1 - smooth) / rope->factor + smooth));
    }
}

int qr_gguf_rope_factors(const qrun_model *model, const char *names[2], float *values) {
    const qr_rope_config *rope = &model->config.rope;
    const int64_t n = rope->rotary_dim / 2;
    if (!model->config.has_rope) { return 0; }
    if (rope->type == QR_ROPE_LLAMA3) {
        names[0] = "rope_freqs.weight";
        llama3_dividers(rope, values);
        return 1;
    }
    if (rope->type == QR_ROPE_PROPORTIONAL) {
        names[0] = "rope_freqs.weight";
        for (int64_t i = 0; i < n; i++) { values[i] = i < rope->n_rotated ? 1.0F : 1e30F; }
        return 1;
    }
    if (rope->type != QR_ROPE_LONGROPE) { return 0; }
    names[0] = "rope_factors_long.weight";
    names[1] = "rope_factors_short.weight";
    for (int64_t i = 0; i < n; i++) {
        values[i] = (float)rope->long_factors[i];
        values[n + i] = (float)rope->short_factors[i];
    }
    return 2;
}

static void put_number(qr_gguf_writer *w, const qr_gguf_arch *arch, const char *key, double value) {
    qr_gguf_put_f32(w, qr_gguf_arch_key(arch, key).text, (float)value);
}

static void put_count(qr_gguf_writer *w, const qr_gguf_arch *arch, const char *key, int64_t value) {
    qr_gguf_put_u32(w, qr_gguf_arch_key(arch, key).text, (uint32_t)value);
}

static void put_scaling_type(qr_gguf_writer *w, const qr_gguf_arch *arch, const char *type) {
    qr_gguf_put_text(w, qr_gguf_arch_key(arch, "rope.scaling.type").text, type, strlen(type));
}

enum { MAX_PAIRS = 1 << 11 };

/* What multiplies cos and sin. */
static double attention_factor(const qr_model_config *config) {
    float frequencies[MAX_PAIRS], factor;
    qr_rope_frequencies(config, 0, 1, 1, frequencies, &factor);
    return (double)factor;
}

/* llama.cpp multiplies YaRN's cos and sin by the logarithm of the factor, and by what the file says besides. */
static void put_yarn(qr_gguf_writer *w, const qr_gguf_arch *arch, const qr_model_config *config) {
    const qr_rope_config *rope = &config->rope;
    const double usual = rope->factor <= 1 ? 1 : 0.1 * log(rope->factor) + 1;
    put_number(w, arch, "rope.scaling.yarn_beta_fast", rope->beta_fast);
    put_number(w, arch, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    if (arch->splits_latents) { /* a tenth, which llama.cpp multiplies by ten; cos and sin have no factor then */
        put_number(w, arch, "rope.scaling.yarn_log_multiplier", 0.1 * rope->mscale_all_dim);
        return;
    }
    put_number(w, arch, "rope.scaling.attn_factor", attention_factor(config) / usual);
}

static void put_rope(qr_gguf_writer *w, const qrun_model *model, const qr_gguf_arch *arch) {
    const qr_model_config *c = &model->config;
    const qr_rope_config *rope = &c->rope;
    put_count(w, arch, "rope.dimension_count", rope->rotary_dim);
    put_number(w, arch, "rope.freq_base", rope->theta);
    if (c->family == QR_FAMILY_GEMMA4) { put_count(w, arch, "rope.dimension_count_swa", c->rope_local.rotary_dim); }
    if (c->family == QR_FAMILY_GEMMA3 || c->family == QR_FAMILY_GEMMA4) {
        put_number(w, arch, "rope.freq_base_swa", c->rope_local.theta);
    }
    const bool is_scaled = rope->type == QR_ROPE_LINEAR || rope->type == QR_ROPE_YARN || rope->type == QR_ROPE_LONGROPE;
    if (is_scaled) { put_scaling_type(w, arch, qr_rope_type_name(rope->type)); }
    if (rope->type == QR_ROPE_LINEAR || rope->type == QR_ROPE_YARN) {
        put_number(w, arch, "rope.scaling.factor", rope->factor);
    }
    if (rope->type == QR_ROPE_YARN || rope->type == QR_ROPE_LONGROPE || c->family == QR_FAMILY_PHI3) {
        put_count(w, arch, "rope.scaling.original_context_length", rope->original_max_position_embeddings);
    }
    if (rope->type == QR_ROPE_YARN) { put_yarn(w, arch, c); }
    if (rope->type == QR_ROPE_LONGROPE) { put_number(w, arch, "rope.scaling.attn_factor", attention_factor(c)); }
    if (c->attn_temperature_tokens > 0) {
        put_number(w, arch, "attention.temperature_scale", c->attn_temperature_beta);
    }
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static void put_windows(qr_gguf_writer *w, const qrun_model *model, const qr_gguf_arch *arch) {
    const qr_model_config *c = &model->config;
    if (!has_windows(model)) {
        if (c->family == QR_FAMILY_PHI3) { put_count(w, arch, "attention.sliding_window", 0); }
        return;
    }
    put_count(w, arch, "attention.sliding_window", c->sliding_window);
    qr_gguf_put_list(w, qr_gguf_arch_key(arch, "attention.sliding_window_pattern").text, QR_GGUF_BOOL,
                     (uint64_t)c->n_layers);
    for (int64_t l = 0; l < c->n_layers; l++) { qr_gguf_put_bool_item(w, c->layer_slides[l]); }
}

static const char *base_name(const char *path, size_t *n) {
    *n = strlen(path);
    while (*n > 1 && path[*n - 1] == '/') { (*n)--; }
    size_t begin = *n;
    while (begin > 0 && path[begin - 1] != '/') { begin--; }
    *n -= begin;
    return path + begin;
}

/* The sections are of images' positions; those of text are the same in all three. llama.cpp wants them said. */
static void put_sections(qr_gguf_writer *w, const qr_gguf_arch *arch, const qrun_model *model) {
    const int64_t half = model->config.rope.rotary_dim / 2, third = half * 5 / 16; /* as in Qwen3-VL, and so of text */
    const int32_t of_qwen3_5[4] = {11, 11, 10, 0};
    const int32_t sections[4] = {(int32_t)(half - 2 * third), (int32_t)third, (int32_t)third, 0};
    const int32_t *const written = arch->has_delta ? of_qwen3_5 : sections;
    qr_gguf_put_list(w, qr_gguf_arch_key(arch, "rope.dimension_sections").text, QR_GGUF_I32, QR_COUNT_OF(sections));
    for (size_t i = 0; i < QR_COUNT_OF(sections); i++) { qr_gguf_put_i32_item(w, written[i]); }
}

/* Of the delta rule and of state spaces. */
static void put_states(qr_gguf_writer *w, const qr_gguf_arch *arch, const qrun_model *model) {
    const qr_recurrent_shape *delta = &model->shape.recurrent;
    put_count(w, arch, "ssm.conv_kernel", delta->kernel);
    put_count(w, arch, "ssm.state_size", delta->key_dim);
    put_count(w, arch, "ssm.group_count", delta->n_key_heads);
    put_count(w, arch, "ssm.time_step_rank", delta->n_value_heads);
    put_count(w, arch, "ssm.inner_size", delta->values);
    if (!arch->has_delta) { return; }
    qr_gguf_put_list(w, qr_gguf_arch_key(arch, "attention.recurrent_layers").text, QR_GGUF_BOOL,
                     (uint64_t)model->shape.n_layers);
    for (int64_t l = 0; l < model->shape.n_layers; l++) { qr_gguf_put_bool_item(w, model->layers[l].is_recurrent); }
}

static void put_layer_counts(qr_gguf_writer *w, const qr_gguf_arch *arch, const char *key, const qrun_model *model,
                             int64_t (*count)(const qrun_model *model, int64_t layer)) {
    const int64_t n_layers = model->shape.n_layers;
    qr_gguf_put_list(w, qr_gguf_arch_key(arch, key).text, QR_GGUF_I32, (uint64_t)n_layers);
    for (int64_t l = 0; l < n_layers; l++) { qr_gguf_put_i32_item(w, (int32_t)count(model, l)); }
}

/* A layer without heads of keys is a convolution or a state space; or a block that is an MLP. */
static int64_t kv_heads_of(const qrun_model *model, int64_t layer) {
    const bool attends = !model->layers[layer].is_recurrent && qr_model_config_mixes(&model->config, layer);
    return !attends ? 0 : qr_model_config_heads(&model->config, layer).n_kv_heads;
}

static int64_t mlp_size_of(const qrun_model *model, int64_t layer) {
    const qr_block *blocks = model->config.blocks;
    if (!qr_model_config_has_mlp(&model->config, layer)) { return 0; }
    if (blocks != NULL && blocks[layer] == QR_BLOCK_EXPERTS) { return model->config.experts.intermediate_size; }
    return qr_model_config_mlp_size(&model->config, layer);
}

static void put_latents(qr_gguf_writer *w, const qr_gguf_arch *arch, const qr_model_config *config) {
    const qr_latent_config *latent = &config->latent;
    const char *key = arch->splits_latents ? "attention.key_length_mla" : "attention.key_length";
    const char *value = arch->splits_latents ? "attention.value_length_mla" : "attention.value_length";
    put_count(w, arch, key, config->head_dim);
    put_count(w, arch, value, latent->value_dim);
    if (arch->splits_latents) {
        put_count(w, arch, "attention.key_length", latent->kv_rank + latent->rotated_dim);
        put_count(w, arch, "attention.value_length", latent->kv_rank);
    }
    if (latent->query_rank > 0) { put_count(w, arch, "attention.q_lora_rank", latent->query_rank); }
    put_count(w, arch, "attention.kv_lora_rank", latent->kv_rank);
}

/* Heads, and the sizes of MLPs. */
static void put_layer_sizes(qr_gguf_writer *w, const qr_gguf_arch *arch, const qrun_model *model) {
    const qr_model_config *c = &model->config;
    const qr_layer_heads *full = &c->attention.full, *sliding = &c->attention.sliding;
    const bool is_gemma4 = c->family == QR_FAMILY_GEMMA4;
    put_count(w, arch, "attention.head_count", c->n_heads);
    const bool is_granite_moe = arch->experts != NULL && c->family == QR_FAMILY_GRANITE4;
    if (c->attention.shared_are_wide || c->blocks != NULL) {
        put_layer_counts(w, arch, "feed_forward_length", model, mlp_size_of);
    } else {
        put_count(w, arch, "feed_forward_length", is_granite_moe ? c->experts.intermediate_size : c->intermediate_size);
    }
    if (arch->splits_latents) { /* all heads attend to one latent */
        put_count(w, arch, "attention.head_count_kv", 1);
    } else if (arch->has_convs || arch->has_spaces || full->n_kv_heads != sliding->n_kv_heads) {
        put_layer_counts(w, arch, "attention.head_count_kv", model, kv_heads_of);
    } else {
        put_count(w, arch, "attention.head_count_kv", c->n_kv_heads);
    }
    if (arch->has_convs) { put_count(w, arch, "shortconv.l_cache", c->recurrent.conv_kernel); }
    if (arch->has_latents) {
        put_latents(w, arch, c);
        return;
    }
    put_count(w, arch, "attention.key_length", full->head_dim);
    put_count(w, arch, "attention.value_length", full->head_dim);
    if (!is_gemma4) { return; }
    put_count(w, arch, "attention.key_length_swa", sliding->head_dim);
    put_count(w, arch, "attention.value_length_swa", sliding->head_dim);
    put_count(w, arch, "attention.shared_kv_layers", c->attention.n_shared_layers);
    put_count(w, arch, "embedding_length_per_layer_input", c->layer_inputs.size);
}

static void put_experts(qr_gguf_writer *w, const qr_gguf_arch *arch, const qr_model_config *config) {
    enum { SIGMOID = 2 };
    const qr_expert_config *experts = &config->experts;
    const qr_gguf_experts *keys = arch->experts;
    put_count(w, arch, "expert_count", experts->n_experts);
    put_count(w, arch, "expert_used_count", experts->n_per_token);
    put_count(w, arch, "expert_feed_forward_length", experts->intermediate_size);
    if (experts->shared_intermediate_size > 0) {
        put_count(w, arch, "expert_shared_feed_forward_length", experts->shared_intermediate_size);
    }
    if (keys->shared_count != NULL) {
        put_count(w, arch, "expert_shared_count", experts->shared_intermediate_size / experts->intermediate_size);
    }
    if (keys->n_dense != NULL) { put_count(w, arch, "leading_dense_block_count", count_dense_layers(config)); }
    if (keys->step != NULL) { put_count(w, arch, "interleave_moe_layer_step", 1); }
    if (experts->has_sigmoid_router) { put_count(w, arch, "expert_gating_func", SIGMOID); }
    if (keys->scales_shares) { put_number(w, arch, "expert_weights_scale", experts->share_factor); }
    if (keys->shares == QR_GGUF_SHARES_SAID) {
        qr_gguf_put_bool(w, qr_gguf_arch_key(arch, "expert_weights_norm").text, experts->normalizes);
    }
}

/* Granite's; and whether its layers rotate. */
static void put_multipliers(qr_gguf_writer *w, const qr_gguf_arch *arch, const qr_model_config *config) {
    put_number(w, arch, "attention.scale", config->attention_multiplier);
    put_number(w, arch, "embedding_scale", config->embedding_multiplier);
    put_number(w, arch, "residual_scale", config->residual_multiplier);
    put_number(w, arch, "logit_scale", config->logits_scaling);
    if (config->layer_rotates == NULL) { return; }
    qr_gguf_put_bool(w, qr_gguf_arch_key(arch, "rope.scaling.finetuned").text, config->layer_rotates[0]);
}

/* How the model's authors suggest to sample; nothing where answers are greedy. */
static void put_sampling(qr_gguf_writer *w, const qr_generation_config *g) {
    if (!g->do_sample) { return; }
    qr_gguf_put_f32(w, "general.sampling.temp", (float)g->temperature);
    qr_gguf_put_u32(w, "general.sampling.top_k", (uint32_t)g->top_k);
    qr_gguf_put_f32(w, "general.sampling.top_p", (float)g->top_p);
    qr_gguf_put_f32(w, "general.sampling.min_p", (float)g->min_p);
    qr_gguf_put_f32(w, "general.sampling.penalty_repeat", (float)g->repetition_penalty);
}

/* In letters of any case; `lower` has none that are capital. */
static bool contains(const char *text, size_t n, const char *lower) {
    const size_t n_lower = strlen(lower);
    for (size_t i = 0; i + n_lower <= n; i++) {
        size_t k = 0;
        while (k < n_lower && (text[i + k] | 0x20) == lower[k]) { k++; }
        if (k == n_lower) { return true; }
    }
    return false;
}

/* llama.cpp knows by a model's name that tokens of Phi-3 take the blanks after them. */
static bool needs_name_of_phi3(const qrun_model *model, const char *name, size_t n) {
    if (model->config.family != QR_FAMILY_PHI3 || model->tokenizer == NULL) { return false; }
    qr_tokenizer_info info;
    qr_tokenizer_get_info(model->tokenizer->tokenizer, &info);
    return info.byte_fallback && !info.byte_level && !contains(name, n, "phi3") && !contains(name, n, "phi-3");
}

static void put_name(qr_gguf_writer *w, const qrun_model *model) {
    size_t n;
    const char *name = base_name(model->folder, &n);
    qr_buffer text = {0};
    if (needs_name_of_phi3(model, name, n)) { qr_buffer_append_text(&text, "Phi-3 "); }
    qr_buffer_append(&text, name, n);
    qr_gguf_put_text(w, "general.name", qr_buffer_ok(&text) ? text.data : name, qr_buffer_ok(&text) ? text.size : n);
    qr_buffer_free(&text);
}

void qr_gguf_put_model(qr_gguf_writer *w, const qrun_model *model, const qr_gguf_arch *arch) {
    const qr_model_config *c = &model->config;
    qr_gguf_put_text(w, "general.architecture", arch->name, strlen(arch->name));
    qr_gguf_put_text(w, "general.type", "model", 5);
    put_name(w, model);
    put_sampling(w, &model->generation);
    put_count(w, arch, "block_count", c->n_layers);
    put_count(w, arch, "context_length", qr_gguf_context_tokens(model));
    put_count(w, arch, "embedding_length", c->hidden_size);
    put_layer_sizes(w, arch, model);
    put_number(w, arch, arch->is_gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
               c->norm_eps);
    if (c->family == QR_FAMILY_NEMOTRON_H) { put_number(w, arch, "attention.layer_norm_epsilon", c->norm_eps); }
    if (arch->has_multipliers) { put_multipliers(w, arch, c); }
    put_count(w, arch, "vocab_size", c->vocab_size);
    if (arch->experts != NULL) { put_experts(w, arch, c); }
    if (arch->has_delta || arch->has_spaces) { put_states(w, arch, model); }
    if (arch->turns_heads || c->family == QR_FAMILY_QWEN3_VL) { put_sections(w, arch, model); }
    put_windows(w, model, arch);
    if (c->has_rope) { put_rope(w, model, arch); }
    if (c->family == QR_FAMILY_GEMMA2) { put_number(w, arch, "attn_logit_softcapping", c->attn_logit_softcapping); }
    if (c->family == QR_FAMILY_GEMMA2 || c->final_logit_softcapping > 0) {
        put_number(w, arch, "final_logit_softcapping", c->final_logit_softcapping);
    }
}
