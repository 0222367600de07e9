/* The rotary part of config.json, from the metadata of a GGUF file. */
#include <math.h>

#include "base/half.h"
#include "base/sizes.h"
#include "loaders/source/gguf_reader.h"

enum { MAX_FACTORS = 1 << 12 };
static const int64_t MOST = INT32_MAX;

/* The elements of a small F32 vector, times a number. */
static qrun_status put_factors(const qr_gguf_reader *r, const char *key, const qr_gguf_tensor *tensor, double times) {
    if (tensor->dtype != QR_DTYPE_F32 || tensor->n_dims != 1 || tensor->dims[0] > MAX_FACTORS) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: tensor %.*s is not a small vector of F32", qr_gguf_path(r->file),
                       (int)tensor->name.n, tensor->name.bytes);
    }
    qr_json_put_begin(r->out, key, '[');
    for (int64_t i = 0; i < tensor->dims[0]; i++) {
        float factor;
        qr_elements_to_f32(QR_DTYPE_F32, tensor->data, i, 1, &factor);
        if (!(factor > 0 && factor < 1e30F)) {
            return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: tensor %.*s holds a factor that is not a positive number",
                           qr_gguf_path(r->file), (int)tensor->name.n, tensor->name.bytes);
        }
        qr_json_put_double(r->out, NULL, (double)factor * times);
    }
    qr_json_put_end(r->out, ']');
    return QRUN_OK;
}

/* The factor that llama.cpp multiplies cos and sin by for YaRN is relative to this one. */
static double yarn_attention_factor(double factor) { return factor <= 1 ? 1 : 0.1 * log(factor) + 1; }

static qrun_status put_yarn(const qr_gguf_reader *r, double factor) {
    double fast = 32, slow = 1, attn = 1, log_multiplier = 0;
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.scaling.yarn_beta_fast", &fast));
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.scaling.yarn_beta_slow", &slow));
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.scaling.attn_factor", &attn));
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.scaling.yarn_log_multiplier", &log_multiplier));
    if (qr_reads_arch(r, "gpt-oss")) { qr_json_put_bool(r->out, "truncate", false); }
    qr_json_put_double(r->out, "beta_fast", fast);
    qr_json_put_double(r->out, "beta_slow", slow);
    if (log_multiplier > 0 && r->arch->splits_latents) { /* a tenth of it, for reasons of old files */
        const double multiplier = (double)(float)(log_multiplier / 0.1);
        qr_json_put_double(r->out, "mscale", multiplier);
        qr_json_put_double(r->out, "mscale_all_dim", multiplier);
    } else if (log_multiplier > 0) {
        qr_json_put_double(r->out, "mscale", 1);
        qr_json_put_double(r->out, "mscale_all_dim", log_multiplier);
    } else if (attn != 1) {
        qr_json_put_double(r->out, "attention_factor", attn * yarn_attention_factor(factor));
    }
    return QRUN_OK;
}

/* llama.cpp keeps what Llama 3 derives from four numbers as one divider for each frequency, which is a LongRoPE with
 * the same dividers for every length. All are multiplied by `times`. */
static qrun_status put_dividers(const qr_gguf_reader *r, int64_t original, double times) {
    const qr_gguf_tensor *freqs = qr_gguf_find_tensor(r->file, "rope_freqs.weight");
    const qr_gguf_tensor *factors_short = qr_gguf_find_tensor(r->file, "rope_factors_short.weight");
    const qr_gguf_tensor *factors_long = qr_gguf_find_tensor(r->file, "rope_factors_long.weight");
    const bool has_both = factors_short != NULL && factors_long != NULL;
    if (freqs == NULL && !has_both) {
        qr_json_put_text(r->out, "rope_type", "default");
        return QRUN_OK;
    }
    double attn = 1;
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.scaling.attn_factor", &attn));
    qr_json_put_text(r->out, "rope_type", "longrope");
    qr_json_put_double(r->out, "attention_factor", attn);
    qr_json_put_double(r->out, "factor", 1);
    if (has_both && original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    QR_RETURN_IF_ERROR(put_factors(r, "short_factor", has_both ? factors_short : freqs, times));
    return put_factors(r, "long_factor", has_both ? factors_long : freqs, times);
}

static bool has_dividers(const qr_gguf_reader *r) {
    return qr_gguf_find_tensor(r->file, "rope_freqs.weight") != NULL ||
           (qr_gguf_find_tensor(r->file, "rope_factors_short.weight") != NULL &&
            qr_gguf_find_tensor(r->file, "rope_factors_long.weight") != NULL);
}

/* llama.cpp takes a factor without a type as linear, and the key that old files have for one. 0 is none. */
static qrun_status read_factor(const qr_gguf_reader *r, double *factor) {
    *factor = 0;
    const char *key = qr_reads(r, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    QR_RETURN_IF_ERROR(qr_read_double(r, key, factor));
    if (*factor == 0) { *factor = 1; }
    return QRUN_OK;
}

/* The members of the rotary parameters of full-attention layers. */
static qrun_status put_rope_members(const qr_gguf_reader *r) {
    qr_gguf_text type = {"", 0};
    double factor, temperature = 0;
    int64_t original = 0;
    QR_RETURN_IF_ERROR(qr_gguf_get_text(r->file, qr_gguf_arch_key(r->arch, "rope.scaling.type").text, &type, r->err));
    QR_RETURN_IF_ERROR(read_factor(r, &factor));
    QR_RETURN_IF_ERROR(qr_read_int(r, "rope.scaling.original_context_length", MOST, &original));
    QR_RETURN_IF_ERROR(qr_read_double(r, "attention.temperature_scale", &temperature));
    qr_json_put_double(r->out, "rope_theta", r->theta);
    const bool is_yarn = qr_gguf_text_is(type, "yarn"), says_nothing = type.n == 0;
    const bool is_linear = qr_gguf_text_is(type, "linear") || (says_nothing && factor != 1 && !has_dividers(r));
    if (!is_yarn && !is_linear) {
        if (says_nothing) { return put_dividers(r, original, factor); }
        if (qr_gguf_text_is(type, "none") || qr_gguf_text_is(type, "longrope")) { return put_dividers(r, original, 1); }
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED, "%s: rotary scaling of type \"%.*s\" is not supported",
                       qr_gguf_path(r->file), (int)qr_min((int64_t)type.n, 40), type.bytes);
    }
    qr_json_put_text(r->out, "rope_type", is_yarn ? "yarn" : "linear");
    qr_json_put_double(r->out, "factor", factor);
    if (original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    if (temperature > 0) { qr_json_put_double(r->out, "llama_4_scaling_beta", temperature); }
    return is_yarn ? put_yarn(r, factor) : QRUN_OK;
}

/* Up to the parameters of full-attention layers. */
static qrun_status begin_two_ropes(const qr_gguf_reader *r, double local_theta) {
    QR_RETURN_IF_ERROR(qr_read_double(r, "rope.freq_base_swa", &local_theta));
    qr_json_put_begin(r->out, "rope_parameters", '{');
    qr_json_put_begin(r->out, "sliding_attention", '{');
    qr_json_put_text(r->out, "rope_type", "default");
    qr_json_put_double(r->out, "rope_theta", local_theta);
    qr_json_put_end(r->out, '}');
    qr_json_put_begin(r->out, "full_attention", '{');
    return QRUN_OK;
}

/* Gemma 3 and OLMo 3: two kinds of layers, two sets of rotary parameters. */
qrun_status qr_put_two_ropes(const qr_gguf_reader *r, double local_theta) {
    QR_RETURN_IF_ERROR(begin_two_ropes(r, local_theta));
    QR_RETURN_IF_ERROR(put_rope_members(r));
    qr_json_put_end(r->out, '}');
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}

qrun_status qr_put_one_rope(const qr_gguf_reader *r) {
    int64_t rotated = r->head_dim;
    double partial = 0;
    QR_RETURN_IF_ERROR(qr_read_int(r, "rope.dimension_count", 1 << 12, &rotated));
    qr_json_put_double(r->out, "rope_theta", r->theta);
    if (qr_reads_arch(r, "phi3")) {
        int64_t original = 0;
        QR_RETURN_IF_ERROR(qr_read_int(r, "rope.scaling.original_context_length", MOST, &original));
        qr_json_put_double(r->out, "partial_rotary_factor", (double)rotated / (double)r->head_dim);
        if (original > 0) { qr_json_put_int(r->out, "original_max_position_embeddings", original); }
    } else if (r->arch->rotates_in_part) {
        partial = (double)rotated / (double)r->head_dim;
    } else if (rotated != r->head_dim) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %lld of %lld elements of a head rotate, which is not supported", qr_gguf_path(r->file),
                       (long long)rotated, (long long)r->head_dim);
    }
    qr_json_put_begin(r->out, "rope_parameters", '{');
    if (partial > 0) { qr_json_put_double(r->out, "partial_rotary_factor", partial); }
    QR_RETURN_IF_ERROR(put_rope_members(r));
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}

/* ---- Gemma 4 ----------------------------------------------------------------------------------------------------- */

/* How many of a head's pairs rotate in layers of full attention: llama.cpp divides the frequencies of the others by
 * 1e30. */
static qrun_status count_rotated(const qr_gguf_reader *r, const qr_gguf_tensor *dividers, int64_t *n) {
    *n = 0;
    if (dividers->dtype != QR_DTYPE_F32 || dividers->n_dims != 1 || dividers->dims[0] > MAX_FACTORS) {
        return qr_fail(r->err, QRUN_ERROR_INPUT, "%s: tensor rope_freqs.weight is not a small vector of F32",
                       qr_gguf_path(r->file));
    }
    for (int64_t i = 0; i < dividers->dims[0]; i++) {
        float divider;
        qr_elements_to_f32(QR_DTYPE_F32, dividers->data, i, 1, &divider);
        const bool rotates = divider == 1.0F;
        if ((!rotates && !(divider >= 1e30F)) || (rotates && *n < i)) {
            return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                           "%s: tensor rope_freqs.weight should be ones, and then values that stop rotation",
                           qr_gguf_path(r->file));
        }
        *n += rotates;
    }
    return QRUN_OK;
}

qrun_status qr_put_gemma4_ropes(const qr_gguf_reader *r) {
    const qr_gguf_tensor *dividers = qr_gguf_find_tensor(r->file, "rope_freqs.weight");
    const double local_theta = 10000;
    int64_t rotated = r->head_dim, n = 0;
    QR_RETURN_IF_ERROR(qr_read_int(r, "rope.dimension_count_swa", 1 << 12, &rotated));
    if (rotated != r->head_dim) {
        return qr_fail(r->err, QRUN_ERROR_UNSUPPORTED,
                       "%s: %lld of %lld elements of a head rotate in layers with a window, which is not supported",
                       qr_gguf_path(r->file), (long long)rotated, (long long)r->head_dim);
    }
    if (dividers == NULL) { return qr_put_two_ropes(r, local_theta); }
    QR_RETURN_IF_ERROR(count_rotated(r, dividers, &n));
    QR_RETURN_IF_ERROR(begin_two_ropes(r, local_theta));
    qr_json_put_text(r->out, "rope_type", "proportional");
    qr_json_put_double(r->out, "rope_theta", r->theta);
    qr_json_put_double(r->out, "partial_rotary_factor", (double)n / (double)dividers->dims[0]);
    qr_json_put_end(r->out, '}');
    qr_json_put_end(r->out, '}');
    return QRUN_OK;
}
