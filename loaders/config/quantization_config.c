#include "loaders/config/quantization_config.h"

#include <string.h>

#include "base/alloc.h"
#include "loaders/config/config_dtype.h"
#include "loaders/config/packing_config.h"

/* What every reader here needs. */
typedef struct source {
    const qr_json *json;
    const char *what;
    qr_error *err;
} source;

/* ---- bitsandbytes ------------------------------------------------------------------------------------------------ */

static qrun_status read_skip_modules(const source *s, qr_quantization_config *quantization) {
    const qr_json *list = qr_json_get(s->json, "llm_int8_skip_modules");
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

static qrun_status check_bnb_4bit(const source *s) {
    const char *type = "fp4";
    QR_RETURN_IF_ERROR(qr_json_get_string(s->json, "bnb_4bit_quant_type", &type, s->what, s->err));
    if (strcmp(type, "nf4") == 0) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is quantised as bitsandbytes \"%.20s\", and only \"nf4\" can be "
                   "read; use the original model instead",
                   s->what, type);
}

static qrun_status read_bnb(const source *s, bool in_4bit, bool in_8bit, qr_quantization_config *quantization) {
    if (in_4bit == in_8bit) {
        return qr_fail(s->err, QRUN_ERROR_INPUT,
                       "%s: quantization_config should say either load_in_4bit or load_in_8bit", s->what);
    }
    quantization->stored = in_4bit ? QR_STORED_BNB_NF4 : QR_STORED_BNB_INT8;
    if (in_4bit) { QR_RETURN_IF_ERROR(check_bnb_4bit(s)); }
    QR_RETURN_IF_ERROR(
        qr_json_get_bool(s->json, "bnb_4bit_use_double_quant", &quantization->double_quantised, s->what, s->err));
    QR_RETURN_IF_ERROR(
        qr_config_dtype_read(s->json, "bnb_4bit_compute_dtype", &quantization->compute_dtype, s->what, s->err));
    return read_skip_modules(s, quantization);
}

/* ---- The interface ----------------------------------------------------------------------------------------------- */

qrun_status qr_quantization_config_read(const qr_json *object, const char *what, qr_quantization_config *quantization,
                                        qr_error *err) {
    const source s = {.json = object, .what = what, .err = err};
    *quantization = (qr_quantization_config){.compute_dtype = QR_DTYPE_F32};
    if (qr_json_is_null(object)) { return QRUN_OK; }
    bool in_4bit = false, in_8bit = false;
    const char *method = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_bool(object, "load_in_4bit", &in_4bit, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(object, "load_in_8bit", &in_8bit, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_string(object, "quant_method", &method, what, err));
    if (method == NULL) { method = in_4bit || in_8bit ? "bitsandbytes" : "unknown"; }
    if (strcmp(method, "bitsandbytes") == 0) { return read_bnb(&s, in_4bit, in_8bit, quantization); }
    QR_RETURN_IF_ERROR(qr_packing_config_read(object, method, what, &quantization->packing, err));
    if (quantization->packing.kind != QR_PACKING_NONE) { quantization->stored = QR_STORED_PACKED; }
    return QRUN_OK;
}

void qr_quantization_config_free(qr_quantization_config *quantization) {
    for (size_t i = 0; i < quantization->n_skip_modules; i++) { qr_free(quantization->skip_modules[i]); }
    qr_free(quantization->skip_modules);
    qr_packing_free(&quantization->packing);
    *quantization = (qr_quantization_config){0};
}
