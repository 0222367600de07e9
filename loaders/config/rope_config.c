#include "loaders/config/rope_config.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"

const char *qr_rope_type_name(qr_rope_type type) {
    static const char *const names[] = {
#define QR_X(suffix, name) name,
        QR_ROPE_TYPES(QR_X)
#undef QR_X
    };
    return (unsigned)type < QR_ROPE_TYPE_COUNT ? names[type] : "?";
}

static qrun_status read_type(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                             qr_error *err) {
    const char *name = context->type != NULL ? context->type : "default";
    QR_RETURN_IF_ERROR(qr_json_get_string(parameters, "type", &name, context->what, err));
    QR_RETURN_IF_ERROR(qr_json_get_string(parameters, "rope_type", &name, context->what, err));
    if (context->su_is_longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) { name = "longrope"; }
    if (strcmp(name, "deepseek_yarn") == 0) { name = "yarn"; }
    if (context->has_sections && strcmp(name, "mrope") == 0) { name = "default"; }
    for (int i = 0; i < QR_ROPE_TYPE_COUNT; i++) {
        if (strcmp(name, qr_rope_type_name((qr_rope_type)i)) != 0) { continue; }
        rope->type = (qr_rope_type)i;
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: rotary scaling of type \"%.60s\" is not supported", context->what,
                   name);
}

static qrun_status require_keys(const qr_json *parameters, const qr_rope_context *context, const qr_rope_config *rope,
                                const char *const *keys, size_t n_keys, qr_error *err) {
    for (size_t i = 0; i < n_keys; i++) {
        if (!qr_json_is_null(qr_json_get(parameters, keys[i]))) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: rotary scaling of type \"%s\" needs \"%s\"", context->what,
                       qr_rope_type_name(rope->type), keys[i]);
    }
    return QRUN_OK;
}

static qrun_status check_required(const qr_json *parameters, const qr_rope_context *context, const qr_rope_config *rope,
                                  qr_error *err) {
    static const char *const factor[] = {"factor"};
    static const char *const llama3[] = {"factor", "low_freq_factor", "high_freq_factor"};
    static const char *const longrope[] = {"short_factor", "long_factor"};
    switch (rope->type) {
        case QR_ROPE_LINEAR:
        case QR_ROPE_DYNAMIC: return require_keys(parameters, context, rope, factor, QR_COUNT_OF(factor), err);
        case QR_ROPE_LLAMA3: return require_keys(parameters, context, rope, llama3, QR_COUNT_OF(llama3), err);
        case QR_ROPE_LONGROPE: return require_keys(parameters, context, rope, longrope, QR_COUNT_OF(longrope), err);
        default: return QRUN_OK;
    }
}

static qrun_status read_rotary_dim(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                                   qr_error *err) {
    double part = context->partial_rotary_factor;
    const bool is_proportional = rope->type == QR_ROPE_PROPORTIONAL;
    if (context->heads_rotate_in_part || is_proportional) {
        QR_RETURN_IF_ERROR(qr_json_get_double(parameters, "partial_rotary_factor", 0, 1, &part, context->what, err));
    }
    if (is_proportional) {
        rope->n_rotated = (int64_t)((double)context->head_dim * part) / 2;
        part = 1;
    }
    rope->rotary_dim = (int64_t)((double)context->head_dim * part);
    if (rope->rotary_dim >= 2 && rope->rotary_dim % 2 == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: %lld of %lld dimensions of a head would be rotated, and they must be a positive even number",
                   context->what, (long long)rope->rotary_dim, (long long)context->head_dim);
}

static qrun_status read_values(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                               qr_error *err) {
    const struct {
        const char *key;
        double low, high;
        double *value;
    } fields[] = {
        {"rope_theta", 1, 1e15, &rope->theta},
        {"factor", 1e-3, 1e6, &rope->factor},
        {"low_freq_factor", 1e-6, 1e6, &rope->low_freq_factor},
        {"high_freq_factor", 1e-6, 1e6, &rope->high_freq_factor},
        {"attention_factor", 0, 1e6, &rope->attention_factor},
        {"beta_fast", 0, 1e6, &rope->beta_fast},
        {"beta_slow", 0, 1e6, &rope->beta_slow},
        {"mscale", 0, 1e6, &rope->mscale},
        {"mscale_all_dim", 0, 1e6, &rope->mscale_all_dim},
    };
    for (size_t i = 0; i < QR_COUNT_OF(fields); i++) {
        QR_RETURN_IF_ERROR(qr_json_get_double(parameters, fields[i].key, fields[i].low, fields[i].high, fields[i].value,
                                              context->what, err));
    }
    if (rope->type == QR_ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"high_freq_factor\" must be greater than \"low_freq_factor\"",
                       context->what);
    }
    return qr_json_get_bool(parameters, "truncate", &rope->truncate, context->what, err);
}

/* The positions that the model was trained for before scaling, and the factor that follows from them. */
static qrun_status read_original_positions(const qr_json *parameters, const qr_rope_context *context,
                                           qr_rope_config *rope, qr_error *err) {
    rope->original_max_position_embeddings = context->max_position_embeddings;
    QR_RETURN_IF_ERROR(qr_json_get_int(parameters, "original_max_position_embeddings", 1, QR_CONFIG_MAX_POSITIONS,
                                       &rope->original_max_position_embeddings, context->what, err));
    if (context->original_max_position_embeddings > 0) {
        rope->original_max_position_embeddings = context->original_max_position_embeddings;
    }
    if (rope->factor == 0 && rope->type == QR_ROPE_PROPORTIONAL) {
        rope->factor = 1;
    } else if (rope->factor == 0) {
        rope->factor = (double)context->max_position_embeddings / (double)rope->original_max_position_embeddings;
    }
    return QRUN_OK;
}

static qrun_status read_factors(const qr_json *parameters, const char *key, const qr_rope_context *context,
                                int64_t n_expected, double **factors, qr_error *err) {
    const qr_json *list = qr_json_get(parameters, key);
    if (!cJSON_IsArray(list)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is not a list", context->what, key); }
    *factors = qr_alloc_array((size_t)n_expected, sizeof **factors);
    if (*factors == NULL) { return qr_fail_memory(err, context->what, (size_t)n_expected * sizeof **factors); }
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 0)) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" holds something other than positive numbers",
                           context->what, key);
        }
        if (n < n_expected) { (*factors)[n] = item->valuedouble; }
    }
    if (n == n_expected) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: \"%s\" has %lld value%s and should have %lld, half of the rotated dimensions", context->what,
                   key, (long long)n, qr_plural(n), (long long)n_expected);
}

/* NTK-aware scaling by a fixed alpha: θ · alpha^(d / (d − 2)). */
static qrun_status apply_fixed_alpha(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                                     qr_error *err) {
    double alpha = 0;
    if (!context->has_fixed_alpha || rope->type != QR_ROPE_DYNAMIC) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_json_get_double(parameters, "alpha", 0, 1e9, &alpha, context->what, err));
    if (alpha == 0) { return QRUN_OK; }
    if (rope->rotary_dim == 2) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"alpha\" needs heads of more than 2 elements", context->what);
    }
    rope->type = QR_ROPE_DEFAULT;
    rope->theta *= pow(alpha, (double)rope->rotary_dim / (double)(rope->rotary_dim - 2));
    return QRUN_OK;
}

qrun_status qr_rope_config_read(const qr_json *parameters, const qr_rope_context *context, qr_rope_config *rope,
                                qr_error *err) {
    *rope = (qr_rope_config){.theta = context->default_theta,
                             .interleaved = context->interleaved,
                             .reversed = context->reversed,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .truncate = true};
    if (!qr_json_is_null(parameters) && !cJSON_IsObject(parameters)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the rotary parameters are not an object", context->what);
    }
    qrun_status status;
    QR_TRY(read_type(parameters, context, rope, err));
    QR_TRY(check_required(parameters, context, rope, err));
    QR_TRY(read_rotary_dim(parameters, context, rope, err));
    QR_TRY(read_values(parameters, context, rope, err));
    QR_TRY(read_original_positions(parameters, context, rope, err));
    QR_TRY(apply_fixed_alpha(parameters, context, rope, err));
    if (rope->type == QR_ROPE_LONGROPE) {
        const int64_t n = rope->rotary_dim / 2;
        QR_TRY(read_factors(parameters, "short_factor", context, n, &rope->short_factors, err));
        QR_TRY(read_factors(parameters, "long_factor", context, n, &rope->long_factors, err));
    }
    /* transformers reads 0 as "not given". */
    if (rope->beta_fast == 0) { rope->beta_fast = 32; }
    if (rope->beta_slow == 0) { rope->beta_slow = 1; }
out:
    if (status != QRUN_OK) { qr_rope_config_free(rope); }
    return status;
}

void qr_rope_config_free(qr_rope_config *rope) {
    qr_free(rope->short_factors);
    qr_free(rope->long_factors);
    rope->short_factors = rope->long_factors = NULL;
}

static bool factors_equal(const double *a, const double *b, int64_t n) {
    if (a == NULL || b == NULL) { return a == b; }
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

bool qr_rope_config_equal(const qr_rope_config *a, const qr_rope_config *b) {
    const double of_a[] = {a->theta,     a->factor,    a->low_freq_factor, a->high_freq_factor, a->attention_factor,
                           a->beta_fast, a->beta_slow, a->mscale,          a->mscale_all_dim};
    const double of_b[] = {b->theta,     b->factor,    b->low_freq_factor, b->high_freq_factor, b->attention_factor,
                           b->beta_fast, b->beta_slow, b->mscale,          b->mscale_all_dim};
    return a->type == b->type && a->rotary_dim == b->rotary_dim && a->interleaved == b->interleaved &&
           a->reversed == b->reversed && a->n_rotated == b->n_rotated &&
           a->original_max_position_embeddings == b->original_max_position_embeddings && a->truncate == b->truncate &&
           memcmp(of_a, of_b, sizeof of_a) == 0 &&
           factors_equal(a->short_factors, b->short_factors, a->rotary_dim / 2) &&
           factors_equal(a->long_factors, b->long_factors, a->rotary_dim / 2);
}
