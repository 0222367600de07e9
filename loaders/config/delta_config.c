#include "loaders/config/delta_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"

static const char LINEAR[] = "linear_attention", FULL[] = "full_attention";

static qrun_status read_listed(const qr_json *list, const char *what, int64_t n_layers, bool *layers, qr_error *err) {
    int64_t n = 0;
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        const bool is_linear = strcmp(type, LINEAR) == 0;
        if (!is_linear && strcmp(type, FULL) != 0) {
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                           "%s: layers of type \"%.60s\" are not supported in this family; its layers are \"%s\" or "
                           "\"%s\"",
                           what, type, LINEAR, FULL);
        }
        if (n < n_layers) { layers[n] = is_linear; }
    }
    if (cJSON_IsArray(list) && n == n_layers) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"layer_types\" should be a list of %lld layer%s", what,
                   (long long)n_layers, qr_plural(n_layers));
}

static qrun_status read_layers(const qr_json *json, const char *what, int64_t n_layers, qr_delta_config *delta,
                               qr_error *err) {
    int64_t interval = 4;
    const qr_json *list = qr_json_get(json, "layer_types");
    delta->layers = qr_alloc_array_zeroed((size_t)n_layers, sizeof *delta->layers);
    if (delta->layers == NULL) { return qr_fail_memory(err, what, (size_t)n_layers); }
    if (!qr_json_is_null(list)) {
        QR_RETURN_IF_ERROR(read_listed(list, what, n_layers, delta->layers, err));
    } else {
        QR_RETURN_IF_ERROR(qr_json_get_int(json, "full_attention_interval", 1, 1 << 12, &interval, what, err));
        for (int64_t l = 0; l < n_layers; l++) { delta->layers[l] = (l + 1) % interval != 0; }
    }
    for (int64_t l = 0; l < n_layers; l++) {
        if (!delta->layers[l]) { return QRUN_OK; }
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: no layer is \"%s\", and a model needs at least one", what, FULL);
}

qrun_status qr_delta_config_read(const qr_json *json, const char *what, int64_t n_layers, qr_delta_config *delta,
                                 qr_error *err) {
    *delta =
        (qr_delta_config){.n_key_heads = 16, .n_value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
    const struct {
        const char *key;
        int64_t high, *value;
    } sizes[] = {{"linear_num_key_heads", 1 << 12, &delta->n_key_heads},
                 {"linear_num_value_heads", 1 << 12, &delta->n_value_heads},
                 {"linear_key_head_dim", 1 << 10, &delta->key_dim},
                 {"linear_value_head_dim", 1 << 10, &delta->value_dim},
                 {"linear_conv_kernel_dim", 8, &delta->conv_kernel}};
    for (size_t i = 0; i < QR_COUNT_OF(sizes); i++) {
        QR_RETURN_IF_ERROR(qr_json_get_int(json, sizes[i].key, 1, sizes[i].high, sizes[i].value, what, err));
    }
    if (delta->n_value_heads % delta->n_key_heads != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: linear_num_value_heads %lld is not divisible by linear_num_key_heads %lld", what,
                       (long long)delta->n_value_heads, (long long)delta->n_key_heads);
    }
    if (delta->n_value_heads > INT32_MAX / (delta->key_dim * delta->value_dim)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %lld linear_num_value_heads of %lld by %lld are too many", what,
                       (long long)delta->n_value_heads, (long long)delta->key_dim, (long long)delta->value_dim);
    }
    return read_layers(json, what, n_layers, delta, err);
}

void qr_delta_config_free(qr_delta_config *delta) {
    qr_free(delta->layers);
    *delta = (qr_delta_config){0};
}
