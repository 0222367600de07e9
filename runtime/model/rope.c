#include "runtime/model/rope.h"

#include <math.h>

#include "base/sizes.h"

static const double PI = 3.14159265358979323846;

int64_t qr_rope_half(const qr_model_config *config) { return config->has_rope ? config->rope.rotary_dim / 2 : 0; }

static bool has_local_base(const qr_model_config *config) {
    return config->has_rope && config->sliding_window > 0 && !qr_rope_config_equal(&config->rope_local, &config->rope);
}

int32_t qr_rope_kinds(const qr_model_config *config) { return !config->has_rope ? 0 : has_local_base(config) ? 2 : 1; }

int32_t qr_rope_kind(const qr_model_config *config, int64_t layer) {
    return has_local_base(config) && config->layer_slides[layer] ? 1 : 0;
}

static float base_frequency(double theta, int64_t i, int64_t half) {
    const float exponent = (float)(2 * i) / (float)(2 * half);
    return 1.0F / (float)pow(theta, exponent);
}

static double dynamic_theta(const qr_rope_config *rope, const qr_model_config *config, int64_t total_tokens) {
    const double trained = (double)config->max_position_embeddings;
    const double length = (double)qr_max(total_tokens, config->max_position_embeddings);
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

/* ---- LongRoPE (Ding et al., 2024) -------------------------------------------------------------------------------- */

static bool is_long(const qr_rope_config *rope, int64_t total_tokens) {
    return total_tokens > rope->original_max_position_embeddings;
}

static void longrope_frequencies(const qr_rope_config *rope, int64_t half, int64_t total_tokens, float *inv_freq) {
    const double *factors = is_long(rope, total_tokens) ? rope->long_factors : rope->short_factors;
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

void qr_rope_frequencies(const qr_model_config *config, int32_t kind, int64_t total_tokens, float *inv_freq,
                         float *attention_factor) {
    const qr_rope_config *rope = kind == 0 ? &config->rope : &config->rope_local;
    const int64_t half = rope->rotary_dim / 2;
    *attention_factor = 1.0F;
    if (rope->type == QR_ROPE_YARN) {
        yarn_frequencies(rope, half, inv_freq);
        *attention_factor = (float)yarn_attention_factor(rope);
        return;
    }
    if (rope->type == QR_ROPE_LONGROPE) {
        longrope_frequencies(rope, half, total_tokens, inv_freq);
        *attention_factor = (float)longrope_attention_factor(rope);
        return;
    }
    const double theta = rope->type == QR_ROPE_DYNAMIC ? dynamic_theta(rope, config, total_tokens) : rope->theta;
    for (int64_t i = 0; i < half; i++) {
        inv_freq[i] = base_frequency(theta, i, half);
        if (rope->type == QR_ROPE_LINEAR) { inv_freq[i] /= (float)rope->factor; }
        if (rope->type == QR_ROPE_LLAMA3) { inv_freq[i] = llama3_frequency(rope, inv_freq[i]); }
    }
}

/* Below 2^32: lengths are positions, which are 32 bits. */
static int64_t length_class(const qr_rope_config *rope, const qr_model_config *config, int64_t total_tokens) {
    if (rope->type == QR_ROPE_DYNAMIC) { return total_tokens > config->max_position_embeddings ? total_tokens : 0; }
    return rope->type == QR_ROPE_LONGROPE && is_long(rope, total_tokens) ? 1 : 0;
}

int64_t qr_rope_length_class(const qr_model_config *config, int64_t total_tokens) {
    if (!config->has_rope) { return 0; }
    const int64_t global = length_class(&config->rope, config, total_tokens);
    return has_local_base(config) ? length_class(&config->rope_local, config, total_tokens) << 32 | global : global;
}

int64_t qr_rope_context_tokens(const qr_model_config *config) {
    const double scale = config->has_rope && config->rope.type == QR_ROPE_DYNAMIC ? config->rope.factor : 1.0;
    return (int64_t)((double)config->max_position_embeddings * scale);
}
