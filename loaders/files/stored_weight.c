#include "loaders/files/stored_weight.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/files/bnb_tensors.h"
#include "loaders/files/json.h"
#include "quant/dynamic8.h"
#include "quant/nf4.h"

enum { MAX_QUANT_STATE_BYTES = 1 << 16 };

static const qr_safetensors_tensor *find_part(const qr_safetensors *file, const char *module, const char *suffix,
                                              char name[QR_STORED_NAME_BYTES]) {
    (void)snprintf(name, QR_STORED_NAME_BYTES, "%s.%s", module, suffix);
    return qr_safetensors_find(file, name);
}

static qrun_status require_vector(const qr_safetensors *file, const char *module, const char *suffix, qr_dtype dtype,
                                  int64_t n, const qr_safetensors_tensor **tensor, qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.%s", module, suffix);
    return qr_safetensors_require(file, name, QR_DTYPE_BIT(dtype), 1, &n, tensor, err);
}

/* ---- NF4 --------------------------------------------------------------------------------------------------------- */

static qrun_status check_map(const qr_safetensors *file, const char *module, const char *suffix, const float *expected,
                             int64_t n, qr_error *err) {
    const qr_safetensors_tensor *map;
    QR_RETURN_IF_ERROR(require_vector(file, module, suffix, QR_DTYPE_F32, n, &map, err));
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, map->data + i * 4, sizeof value);
        const float difference = value - expected[i];
        if (!(difference < 1e-6F && difference > -1e-6F)) {
            return qr_fail(
                err, QRUN_ERROR_UNSUPPORTED,
                "%s.%s: entry %lld is %g where bitsandbytes' own table has %g; only the standard NF4 code book "
                "can be read",
                module, suffix, (long long)i, (double)value, (double)expected[i]);
        }
    }
    return QRUN_OK;
}

static qrun_status check_stored_shape(const qr_json *state, const char *what, int64_t rows, int64_t cols,
                                      qr_error *err) {
    const qr_json *first = qr_json_first(qr_json_get(state, "shape"));
    const qr_json *second = first != NULL ? first->next : NULL;
    const double stored_rows = cJSON_IsNumber(first) ? first->valuedouble : -1;
    const double stored_cols = cJSON_IsNumber(second) ? second->valuedouble : -1;
    if (stored_rows == (double)rows && stored_cols == (double)cols && second->next == NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: says shape [%g, %g] where config.json asks for [%lld, %lld]", what,
                   stored_rows, stored_cols, (long long)rows, (long long)cols);
}

static qrun_status read_quant_state(const qr_safetensors_tensor *tensor, qr_stored_weight *stored, bool *nested,
                                    qr_error *err) {
    qr_json *state = NULL;
    qrun_status status = QRUN_OK;
    if (tensor->dtype != QR_DTYPE_U8 || tensor->n_bytes > MAX_QUANT_STATE_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a quantisation state (U8 bytes of JSON)", tensor->name);
    }
    QR_TRY(qr_json_parse((const char *)tensor->data, tensor->n_bytes, tensor->name, &state, err));
    const char *type = "nf4";
    int64_t block = 0, nested_block = 0;
    double offset = 0.0;
    QR_TRY(qr_json_get_string(state, "quant_type", &type, tensor->name, err));
    if (strcmp(type, "nf4") != 0) {
        QR_TRY(qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is %s; only nf4 can be read: quantise the original model again", tensor->name, type));
    }
    QR_TRY(qr_json_get_int(state, "blocksize", 32, 4096, &block, tensor->name, err));
    QR_TRY(qr_json_get_int(state, "nested_blocksize", 0, 4096, &nested_block, tensor->name, err));
    QR_TRY(qr_json_get_double(state, "nested_offset", -1e30, 1e30, &offset, tensor->name, err));
    QR_TRY(check_stored_shape(state, tensor->name, stored->desc.rows, stored->desc.cols, err));
    *nested = nested_block != 0;
    if (*nested && nested_block != QR_NESTED_BLOCK) {
        QR_TRY(qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: nested_blocksize is %lld; only %d can be read", tensor->name,
                       (long long)nested_block, QR_NESTED_BLOCK));
    }
    stored->desc.format = *nested ? QR_WEIGHT_NF4_DQ : QR_WEIGHT_NF4;
    stored->desc.block = (int)block;
    stored->nested_offset = (float)offset;
out:
    qr_json_free(state);
    return status;
}

static qrun_status find_nf4(const qr_safetensors *file, const char *module, const qr_safetensors_tensor *state,
                            qr_stored_weight *stored, qr_error *err) {
    bool nested = false;
    QR_RETURN_IF_ERROR(read_quant_state(state, stored, &nested, err));
    QR_RETURN_IF_ERROR(qr_weight_desc_check(&stored->desc, module, err));
    if (stored->codes->n_bytes != qr_weight_code_bytes(&stored->desc)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds %zu byte%s of codes where [%lld, %lld] needs %zu",
                       stored->codes->name, stored->codes->n_bytes, qr_plural((int64_t)stored->codes->n_bytes),
                       (long long)stored->desc.rows, (long long)stored->desc.cols, qr_weight_code_bytes(&stored->desc));
    }
    const int64_t n_blocks = qr_weight_blocks(&stored->desc);
    QR_RETURN_IF_ERROR(check_map(file, module, QR_BNB_QUANT_MAP_NAME, qr_nf4_code, 16, err));
    QR_RETURN_IF_ERROR(require_vector(file, module, QR_BNB_ABSMAX_NAME, nested ? QR_DTYPE_U8 : QR_DTYPE_F32, n_blocks,
                                      &stored->absmax, err));
    if (!nested) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(check_map(file, module, QR_BNB_NESTED_QUANT_MAP_NAME, qr_dynamic8_map(true), 256, err));
    return require_vector(file, module, QR_BNB_NESTED_ABSMAX_NAME, QR_DTYPE_F32, qr_ceil_div(n_blocks, QR_NESTED_BLOCK),
                          &stored->nested_absmax, err);
}

/* ---- LLM.int8 ---------------------------------------------------------------------------------------------------- */

static qrun_status find_int8(const qr_safetensors *file, const char *module, qr_stored_weight *stored, qr_error *err) {
    char name[QR_STORED_NAME_BYTES];
    stored->desc.format = QR_WEIGHT_INT8;
    const qr_safetensors_tensor *layout = find_part(file, module, QR_BNB_WEIGHT_FORMAT_NAME, name);
    if (layout != NULL && (layout->n_bytes != 1 || layout->data[0] != 0)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: only row-major LLM.int8 weights (format 0) can be read", name);
    }
    const int64_t dims[2] = {stored->desc.rows, stored->desc.cols};
    QR_RETURN_IF_ERROR(
        qr_safetensors_require(file, stored->codes->name, QR_DTYPE_BIT(QR_DTYPE_I8), 2, dims, &stored->codes, err));
    return require_vector(file, module, QR_BNB_ROW_ABSMAX_NAME, QR_DTYPE_F32, stored->desc.rows, &stored->row_absmax,
                          err);
}

qrun_status qr_stored_weight_find(const qr_safetensors *file, const char *module, int64_t rows, int64_t cols,
                                  bool transposed, qr_stored_weight *stored, qr_error *err) {
    *stored = (qr_stored_weight){.desc = {.rows = rows, .cols = cols}};
    char name[QR_STORED_NAME_BYTES];
    const qr_safetensors_tensor *state = find_part(file, module, QR_BNB_QUANT_STATE_NAME, name);
    if (state == NULL && find_part(file, module, "weight.quant_state.bitsandbytes__fp4", name) != NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is FP4; only NF4 can be read: quantise the original model again", name);
    }
    stored->codes = find_part(file, module, QR_BNB_CODES_NAME, name);
    if (state != NULL && stored->codes != NULL) { return find_nf4(file, module, state, stored, err); }
    if (stored->codes != NULL && stored->codes->dtype == QR_DTYPE_I8) { return find_int8(file, module, stored, err); }
    const int64_t dims[2] = {transposed ? cols : rows, transposed ? rows : cols};
    QR_RETURN_IF_ERROR(qr_safetensors_require(file, name, QR_DTYPES_FLOAT, 2, dims, &stored->codes, err));
    stored->desc.format = stored->codes->dtype == QR_DTYPE_F32   ? QR_WEIGHT_F32
                          : stored->codes->dtype == QR_DTYPE_F16 ? QR_WEIGHT_F16
                                                                 : QR_WEIGHT_BF16;
    return qr_weight_desc_check(&stored->desc, module, err);
}

static size_t part_bytes(const qr_safetensors_tensor *part) {
    return part == NULL ? 0 : (size_t)qr_round_up((int64_t)part->n_bytes, 64);
}

static const void *copy_part(unsigned char **cursor, const qr_safetensors_tensor *part) {
    if (part == NULL) { return NULL; }
    unsigned char *copy = *cursor;
    memcpy(copy, part->data, part->n_bytes);
    *cursor += part_bytes(part);
    return copy;
}

qrun_status qr_stored_scales_read(const qr_stored_weight *stored, qr_stored_scales *scales, qr_error *err) {
    *scales = (qr_stored_scales){0};
    const size_t n_bytes =
        part_bytes(stored->row_absmax) + part_bytes(stored->absmax) + part_bytes(stored->nested_absmax);
    scales->memory = qr_alloc(n_bytes);
    if (scales->memory == NULL) { return qr_fail_memory(err, "the scales of a weight", n_bytes); }
    unsigned char *cursor = scales->memory;
    scales->scales.row_absmax = copy_part(&cursor, stored->row_absmax);
    const void *absmax = copy_part(&cursor, stored->absmax);
    if (stored->desc.format == QR_WEIGHT_NF4_DQ) {
        scales->scales.absmax_codes = absmax;
    } else {
        scales->scales.absmax = absmax;
    }
    scales->scales.nested_absmax = copy_part(&cursor, stored->nested_absmax);
    scales->scales.nested_offset = stored->nested_offset;
    return QRUN_OK;
}

void qr_stored_scales_free(qr_stored_scales *scales) {
    qr_free(scales->memory);
    *scales = (qr_stored_scales){0};
}
