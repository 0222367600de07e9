#include "loaders/config/quantization_config.h"

#include <string.h>

#include "base/alloc.h"
#include "loaders/config/config_dtype.h"

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

/* ---- Packed ------------------------------------------------------------------------------------------------------ */

/* Absent is 128 by 128, null a scale for each matrix. */
static qrun_status read_fp8(const source *s, qr_packing *packing) {
    const qr_json *block = qr_json_get(s->json, "weight_block_size");
    const qr_json *first = qr_json_first(block), *second = first != NULL ? first->next : NULL;
    *packing = (qr_packing){.kind = QR_PACKING_FP8, .block_rows = 128, .block_cols = 128};
    if (block == NULL) { return QRUN_OK; }
    if (qr_json_is_null(block)) {
        packing->block_rows = packing->block_cols = 0;
        return QRUN_OK;
    }
    if (cJSON_IsArray(block) && qr_json_as_int(first, 1, 1 << 20, &packing->block_rows) &&
        qr_json_as_int(second, 1, 1 << 20, &packing->block_cols) && second->next == NULL) {
        return QRUN_OK;
    }
    return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"weight_block_size\" should be two numbers of rows and columns",
                   s->what);
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
    quantization->stored = QR_STORED_PACKED;
    if (strcmp(method, "fp8") == 0) { return read_fp8(&s, &quantization->packing); }
    if (strcmp(method, "mxfp4") == 0) {
        quantization->packing = (qr_packing){.kind = QR_PACKING_MXFP4, .block_rows = 1, .block_cols = QR_MXFP4_BLOCK};
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: the model is stored in the %.40s format, which is not supported; use the original 16-bit "
                   "model instead, qrun quantises it while loading",
                   what, method);
}

void qr_quantization_config_free(qr_quantization_config *quantization) {
    for (size_t i = 0; i < quantization->n_skip_modules; i++) { qr_free(quantization->skip_modules[i]); }
    qr_free(quantization->skip_modules);
    *quantization = (qr_quantization_config){0};
}
