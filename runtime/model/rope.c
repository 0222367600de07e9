#include "runtime/model/rope.h"

#include <math.h>

#include "base/sizes.h"

static const double PI = 3.14159265358979323846;

static bool has_local_base(const qr_model_config *config) {
    return config->has_rope && config->sliding_window > 0 && !qr_rope_config_equal(&config->rope_local, &config->rope);
}

static const qr_rope_config *rope_of(const qr_model_config *config, int32_t kind) {
    return kind == 0 || !has_local_base(config) ? &config->rope : &config->rope_local;
}

/* Pairs of a head of queries that do not rotate, and are scaled with those that do: the first ones. */
static int64_t still_pairs(const qr_model_config *config, int32_t kind) {
    const bool scales = kind == 1 && config->attn_temperature_tokens > 0;
    return scales && config->latent.kv_rank > 0 ? config->latent.plain_dim / 2 : 0;
}

int64_t qr_rope_half(const qr_model_config *config, int32_t kind) {
    return config->has_rope ? still_pairs(config, kind) + rope_of(config, kind)->rotary_dim / 2 : 0;
}

int32_t qr_rope_kinds(const qr_model_config *config) {
    if (!config->has_rope) { return 0; }
    return has_local_base(config) || config->attn_temperature_tokens > 0 ? 2 : 1;
}

int32_t qr_rope_key_kind(const qr_model_config *config, int64_t layer) {
    if (!config->has_rope || (config->layer_rotates != NULL && !config->layer_rotates[layer])) { return QR_ROPE_NONE; }
    return has_local_base(config) && config->layer_slides[layer] ? 1 : 0;
}

int32_t qr_rope_query_kind(const qr_model_config *config, int64_t layer) {
    const int32_t kind = qr_rope_key_kind(config, layer);
    return kind == 0 && config->attn_temperature_tokens > 0 ? 1 : kind;
}

/* ---- Lengths ----------------------------------------------------------------------------------------------------- */

/* The longest sequence with the plain (or short) frequencies. */
static int64_t short_tokens(const qr_rope_config *rope, const qr_model_config *config) {
    if (rope->type == QR_ROPE_DYNAMIC) { return config->max_position_embeddings; }
    return rope->type == QR_ROPE_LONGROPE ? rope->original_max_position_embeddings : INT64_MAX;
}

int64_t qr_rope_short_tokens(const qr_model_config *config) {
    if (!config->has_rope) { return INT64_MAX; }
    const int64_t global = short_tokens(&config->rope, config);
    return has_local_base(config) ? qr_min(global, short_tokens(&config->rope_local, config)) : global;
}

/* Below 2^32: lengths are positions, which are 32 bits. */
static int64_t length_class(const qr_rope_config *rope, const qr_model_config *config, int64_t n_tokens,
                            int64_t most_tokens) {
    if (n_tokens <= short_tokens(rope, config)) { return 0; }
    return rope->type == QR_ROPE_DYNAMIC ? most_tokens : 1;
}

int64_t qr_rope_length_class(const qr_model_config *config, int64_t n_tokens, int64_t most_tokens) {
    if (!config->has_rope) { return 0; }
    const int64_t global = length_class(&config->rope, config, n_tokens, most_tokens);
    if (!has_local_base(config)) { return global; }
    return length_class(&config->rope_local, config, n_tokens, most_tokens) << 32 | global;
}

/* ---- Frequencies ------------------------------------------------------------------------------------------------- */

static float base_frequency(double theta, int64_t i, int64_t half) {
    const float exponent = (float)(2 * i) / (float)(2 * half);
    return 1.0F / (float)pow(theta, exponent);
}

static double dynamic_theta(const qr_rope_config *rope, const qr_model_config *config, int64_t class_of_length) {
    const double trained = (double)config->max_position_embeddings;
    const double length = (double)qr_max(class_of_length, config->max_position_embeddings);
    const double dim = (double)rope->rotary_dim;
    return rope->theta * pow(rope->factor * length / trained - (rope->factor - 1.0), dim / (dim - 2.0));
}

static float llama3_frequency(const qr_rope_config *rope, float frequency) {
    const double original = (double)rope->original_max_position_embeddings;
    const float wavelength = (float)(2.0 * PI) / frequency;
    if (wavelength > (float)(original / rope->low_freq_factor)) { return frequency / (float)rope->factor; }
    if (wavelength < (float)(original / rope->high_freq_factor)) { return frequency; }
    const float smooth = ((float)original / wavelength - (float)rope->low_freq_factor) /
                         (float)(rope->high_freq_factor - rope->low_freq_factor);
    return (1.0F - smooth) * frequency / (float)rope->factor + smooth * frequency;
}

/* ---- YaRN (Peng et al., 2023) ------------------------------------------------------------------------------------ */

static double yarn_correction(const qr_rope_config *rope, double n_rotations) {
    return (double)rope->rotary_dim * log((double)rope->original_max_position_embeddings / (n_rotations * 2.0 * PI)) /
           (2.0 * log(rope->theta));
}

static void yarn_range(const qr_rope_config *rope, double *low, double *high) {
    *low = yarn_correction(rope, rope->beta_fast);
    *high = yarn_correction(rope, rope->beta_slow);
    if (rope->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0.0);
    *high = fmin(*high, (double)rope->rotary_dim - 1.0);
    if (*low == *high) { *high += 0.001; }
}

static void yarn_frequencies(const qr_rope_config *rope, int64_t half, float *inv_freq) {
    double low, high;
    yarn_range(rope, &low, &high);
    for (int64_t i = 0; i < half; i++) {
        const float extrapolated = base_frequency(rope->theta, i, half);
        const float interpolated = 1.0F / ((float)rope->factor / extrapolated);
        const float ramp = ((float)i - (float)low) / (float)(high - low);
        const float share = 1.0F - fminf(fmaxf(ramp, 0.0F), 1.0F);
        inv_freq[i] = interpolated * (1.0F - share) + extrapolated * share;
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double yarn_attention_factor(const qr_rope_config *rope) {
    if (rope->attention_factor > 0.0) { return rope->attention_factor; }
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0) {
        return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
    }
    return yarn_mscale(rope->factor, 1.0);
}

double qr_rope_score_factor(const qr_model_config *config) {
    const qr_rope_config *rope = &config->rope;
    if (config->latent.kv_rank == 0 || rope->type != QR_ROPE_YARN || rope->mscale_all_dim == 0.0) { return 1.0; }
    const double factor = yarn_mscale(rope->factor, rope->mscale_all_dim);
    return factor * factor;
}

/* ---- LongRoPE (Ding et al., 2024) -------------------------------------------------------------------------------- */

static void longrope_frequencies(const qr_rope_config *rope, int64_t half, bool is_long, float *inv_freq) {
    const double *factors = is_long ? rope->long_factors : rope->short_factors;
    for (int64_t i = 0; i < half; i++) {
        const float exponent = (float)(2 * i) / (float)(2 * half);
        inv_freq[i] = 1.0F / ((float)factors[i] * (float)pow(rope->theta, exponent));
    }
}

static double longrope_attention_factor(const qr_rope_config *rope) {
    if (rope->attention_factor > 0.0) { return rope->attention_factor; }
    if (rope->factor <= 1.0) { return 1.0; }
    return sqrt(1.0 + log(rope->factor) / log((double)rope->original_max_position_embeddings));
}

/* Of the pairs that rotate. */
static void rotating_frequencies(const qr_model_config *config, const qr_rope_config *rope, int64_t class_of_length,
                                 float *inv_freq, float *attention_factor) {
    const int64_t half = rope->rotary_dim / 2;
    *attention_factor = 1.0F;
    if (rope->type == QR_ROPE_YARN) {
        yarn_frequencies(rope, half, inv_freq);
        *attention_factor = (float)yarn_attention_factor(rope);
        return;
    }
    if (rope->type == QR_ROPE_LONGROPE) {
        longrope_frequencies(rope, half, class_of_length != 0, inv_freq);
        *attention_factor = (float)longrope_attention_factor(rope);
        return;
    }
    const double theta = rope->type == QR_ROPE_DYNAMIC ? dynamic_theta(rope, config, class_of_length) : rope->theta;
    for (int64_t i = 0; i < half; i++) {
        inv_freq[i] = base_frequency(theta, i, half);
        if (rope->type == QR_ROPE_PROPORTIONAL && i >= rope->n_rotated) { inv_freq[i] = 0.0F; }
        if (rope->type == QR_ROPE_LINEAR || rope->type == QR_ROPE_PROPORTIONAL) { inv_freq[i] /= (float)rope->factor; }
        if (rope->type == QR_ROPE_LLAMA3) { inv_freq[i] = llama3_frequency(rope, inv_freq[i]); }
    }
}

void qr_rope_frequencies(const qr_model_config *config, int32_t kind, int64_t n_tokens, int64_t most_tokens,
                         float *inv_freq, float *attention_factor) {
    const qr_rope_config *rope = rope_of(config, kind);
    const int64_t half = rope->rotary_dim / 2, n_still = still_pairs(config, kind);
    for (int64_t i = 0; i < n_still; i++) { inv_freq[i] = 0.0F; }
    inv_freq += n_still;
    rotating_frequencies(config, rope, length_class(rope, config, n_tokens, most_tokens), inv_freq, attention_factor);
    for (int64_t i = 0; rope->reversed && i < half; i++) { inv_freq[i] = -inv_freq[i]; }
}

int64_t qr_rope_context_tokens(const qr_model_config *config) {
    const qr_rope_config *rope = &config->rope;
    const double positions = (double)config->max_position_embeddings;
    double longest = positions;
    if (config->has_rope && rope->type == QR_ROPE_DYNAMIC) { longest = positions * rope->factor; }
    if (config->has_rope && rope->type == QR_ROPE_YARN) {
        longest = fmax(positions, (double)rope->original_max_position_embeddings * rope->factor);
    }
    return (int64_t)fmin(longest, (double)QR_CONFIG_MAX_POSITIONS);
}
