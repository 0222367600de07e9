#include "loaders/files/stored_weight.h"

#include <float.h>
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
            QR_RETURN_IF_ERROR(qr_safetensors_check(file, err));
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
    int64_t stored_rows = -1, stored_cols = -1;
    if (!qr_json_as_int(first, 0, INT64_MAX, &stored_rows) || !qr_json_as_int(second, 0, INT64_MAX, &stored_cols) ||
        second->next != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: has no \"shape\" of two integers", what);
    }
    if (stored_rows == rows && stored_cols == cols) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: says shape [%lld, %lld] where config.json asks for [%lld, %lld]", what,
                   (long long)stored_rows, (long long)stored_cols, (long long)rows, (long long)cols);
}

static qrun_status read_quant_state(const qr_safetensors *file, const qr_safetensors_tensor *tensor,
                                    qr_stored_weight *stored, bool *nested, qr_error *err) {
    qr_json *state = NULL;
    char *text = NULL;
    qrun_status status = QRUN_OK;
    if (tensor->dtype != QR_DTYPE_U8 || tensor->n_bytes > MAX_QUANT_STATE_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a quantisation state (U8 bytes of JSON)", tensor->name);
    }
    text = qr_strndup((const char *)tensor->data, tensor->n_bytes); /* the parser relies on a text that stays */
    if (text == NULL) { QR_TRY(qr_fail_memory(err, tensor->name, tensor->n_bytes)); }
    QR_TRY(qr_safetensors_check(file, err));
    QR_TRY(qr_json_parse(text, tensor->n_bytes, tensor->name, &state, err));
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
    qr_free(text);
    qr_json_free(state);
    return status;
}

static qrun_status find_nf4(const qr_safetensors *file, const char *module, const qr_safetensors_tensor *state,
                            qr_stored_weight *stored, qr_error *err) {
    bool nested = false;
    QR_RETURN_IF_ERROR(read_quant_state(file, state, stored, &nested, err));
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

/* A scale that is not finite would make every value of its row so. */
static qrun_status check_row_absmax(const qr_safetensors *file, const qr_safetensors_tensor *tensor, int64_t n,
                                    qr_error *err) {
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, tensor->data + i * (int64_t)sizeof value, sizeof value);
        if (value >= 0 && value <= FLT_MAX) { continue; }
        QR_RETURN_IF_ERROR(qr_safetensors_check(file, err));
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: the scale of row %lld is %g, which no absolute maximum is; is the download damaged?",
                       tensor->name, (long long)i, (double)value);
    }
    return QRUN_OK;
}

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
    QR_RETURN_IF_ERROR(require_vector(file, module, QR_BNB_ROW_ABSMAX_NAME, QR_DTYPE_F32, stored->desc.rows,
                                      &stored->row_absmax, err));
    return check_row_absmax(file, stored->row_absmax, stored->desc.rows, err);
}

/* ---- Plain and packed -------------------------------------------------------------------------------------------- */

static qrun_status find_packed(const qr_safetensors *file, const char *module, bool transposed,
                               const qr_packing *packing, qr_stored_weight *stored, qr_error *err) {
    if (transposed) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: is stored as %s, which this family cannot be",
                       stored->codes->name, qr_packing_name(packing));
    }
    stored->desc.format = QR_WEIGHT_BF16;
    return qr_packed_module_find(file, packing, module, stored->codes, stored->desc.rows, stored->desc.cols,
                                 &stored->packed, err);
}

/* A matrix that is packed in a way that config.json does not tell. */
static qrun_status refuse_unexplained(const qr_safetensors *file, const char *module, qr_error *err) {
    static const char *const suffixes[] = {"qweight", "weight_packed", "scales", "weight_scale"};
    char name[QR_STORED_NAME_BYTES];
    for (size_t i = 0; i < QR_COUNT_OF(suffixes); i++) {
        if (find_part(file, module, suffixes[i], name) == NULL) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: belongs to a packed matrix, but not to one of the kind that \"quantization_config\" in "
                       "config.json says",
                       name);
    }
    return QRUN_OK;
}

static qrun_status find_parts(const qr_safetensors *file, const char *module, bool transposed,
                              const qr_packing *packing, qr_stored_weight *stored, qr_error *err) {
    const int64_t rows = stored->desc.rows, cols = stored->desc.cols;
    char name[QR_STORED_NAME_BYTES];
    if (packing != NULL && (stored->codes = qr_packed_module_codes(file, packing, module)) != NULL) {
        return find_packed(file, module, transposed, packing, stored, err);
    }
    const qr_safetensors_tensor *state = find_part(file, module, QR_BNB_QUANT_STATE_NAME, name);
    if (state == NULL && find_part(file, module, "weight.quant_state.bitsandbytes__fp4", name) != NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: is FP4; only NF4 can be read: quantise the original model again", name);
    }
    stored->codes = find_part(file, module, QR_BNB_CODES_NAME, name);
    if (state != NULL && stored->codes != NULL) { return find_nf4(file, module, state, stored, err); }
    if (stored->codes != NULL && stored->codes->dtype == QR_DTYPE_I8) { return find_int8(file, module, stored, err); }
    if (stored->codes == NULL) { QR_RETURN_IF_ERROR(refuse_unexplained(file, module, err)); }
    const int64_t dims[2] = {transposed ? cols : rows, transposed ? rows : cols};
    QR_RETURN_IF_ERROR(
        qr_safetensors_require(file, name, QR_DTYPES_FLOAT | QR_DTYPES_BLOCKS, 2, dims, &stored->codes, err));
    if (stored->codes->dtype == QR_DTYPE_MXFP4 && packing != NULL && packing->kind == QR_PACKING_MXFP4) {
        stored->desc.format = QR_WEIGHT_MXFP4;
        stored->packed = (qr_packed_weight){.kind = QR_PACKING_MXFP4,
                                            .is_ggml = true,
                                            .rows = rows,
                                            .cols = cols,
                                            .row_step = 1,
                                            .codes = stored->codes->data,
                                            .scale_tensor = stored->codes,
                                            .n_groups = cols / QR_MXFP4_BLOCK};
        return QRUN_OK;
    }
    if (stored->codes->keys.data != NULL) {
        stored->packed = (qr_packed_weight){.kind = QR_PACKING_LATENT,
                                            .rows = rows,
                                            .cols = cols,
                                            .row_step = 1,
                                            .codes = stored->codes->data,
                                            .code_dtype = stored->codes->dtype,
                                            .keys = &stored->codes->keys};
    }
    stored->desc.format =
        qr_dtype_is_blocks(stored->codes->dtype) ? QR_WEIGHT_F16 : qr_weight_plain_format(stored->codes->dtype);
    return qr_weight_desc_check(&stored->desc, module, err);
}

qrun_status qr_stored_weight_find(const qr_safetensors *file, const char *module, int64_t rows, int64_t cols,
                                  bool transposed, const qr_packing *packing, qr_stored_weight *stored, qr_error *err) {
    *stored = (qr_stored_weight){.desc = {.rows = rows, .cols = cols}};
    QR_RETURN_IF_ERROR(find_parts(file, module, transposed, packing, stored, err));
    stored->data = stored->codes->data;
    stored->n_bytes = stored->codes->n_bytes;
    stored->is_last = true;
    return QRUN_OK;
}

/* ---- Stacks of experts ------------------------------------------------------------------------------------------- */

static const char MXFP4_SCALES[] = "_scales";

bool qr_stored_has_stack(const qr_safetensors *file, const char *name) {
    char blocks[QR_STORED_NAME_BYTES];
    (void)snprintf(blocks, sizeof blocks, "%s" QR_MXFP4_CODES_SUFFIX, name);
    return qr_safetensors_find(file, name) != NULL || qr_safetensors_find(file, blocks) != NULL;
}

static qrun_status find_mxfp4_codes(const qr_safetensors *file, const qr_stack *stack, const char *name,
                                    qr_stored_weight *stored, qr_error *err) {
    const int64_t cols = stored->desc.cols;
    if (cols % QR_MXFP4_BLOCK != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is MXFP4, whose rows are blocks of %d, and %lld columns are not",
                       name, QR_MXFP4_BLOCK, (long long)cols);
    }
    const int64_t dims[4] = {stack->n_experts, stack->n_parts * stored->desc.rows, cols / QR_MXFP4_BLOCK,
                             QR_MXFP4_BLOCK / 2};
    return qr_safetensors_require(file, name, QR_DTYPE_BIT(QR_DTYPE_U8), 4, dims, &stored->codes, err);
}

static qrun_status find_packed_slice(const qr_safetensors *file, const qr_stack *stack, int64_t expert, int64_t part,
                                     const qr_packing *packing, qr_stored_weight *stored, qr_error *err) {
    const int64_t rows = stored->desc.rows, cols = stored->desc.cols;
    const bool is_mxfp4 = packing->kind == QR_PACKING_MXFP4;
    char scales[QR_STORED_NAME_BYTES];
    (void)snprintf(scales, sizeof scales, "%s%s", stack->name, is_mxfp4 ? MXFP4_SCALES : "_scale_inv");
    QR_RETURN_IF_ERROR(qr_packed_weight_find(file, packing, stored->codes, scales, stack->n_parts * rows, cols, expert,
                                             &stored->packed, err));
    stored->desc.format = is_mxfp4 ? QR_WEIGHT_MXFP4 : QR_WEIGHT_BF16;
    stored->packed.first_row = stack->in_turn ? part : part * rows;
    stored->packed.row_step = stack->in_turn ? stack->n_parts : 1;
    return QRUN_OK;
}

/* Where both fit, it is not: as transformers reads it. */
static bool is_wide(const qr_stack *stack, const qr_safetensors_tensor *codes, int64_t rows) {
    return stack->in_turn || (stack->may_be_wide && codes != NULL && codes->n_dims == 3 && codes->dims[1] != rows);
}

/* stored->wide_rows, where the stack is. */
static qrun_status find_stack(const qr_safetensors *file, const qr_stack *stack, const qr_packing *packing,
                              qr_stored_weight *stored, bool *is_packed, qr_error *err) {
    const int64_t rows = stack->n_parts * stored->desc.rows, cols = stored->desc.cols;
    char blocks[QR_STORED_NAME_BYTES];
    (void)snprintf(blocks, sizeof blocks, "%s" QR_MXFP4_CODES_SUFFIX, stack->name);
    stored->codes = qr_safetensors_find(file, stack->name);
    *is_packed = packing->kind == QR_PACKING_MXFP4 && stored->codes == NULL;
    if (*is_packed) { return find_mxfp4_codes(file, stack, blocks, stored, err); }
    *is_packed = stored->codes != NULL && qr_packing_has_codes(packing, stored->codes);
    if (!*is_packed && is_wide(stack, stored->codes, rows)) { stored->wide_rows = rows; }
    const bool wide = stored->wide_rows > 0;
    const int64_t dims[3] = {stack->n_experts, wide ? cols : rows, wide ? rows : cols};
    const qr_dtype_set dtypes = *is_packed ? QR_DTYPE_BIT(stored->codes->dtype) : QR_DTYPES_FLOAT;
    return qr_safetensors_require(file, stack->name, dtypes, 3, dims, &stored->codes, err);
}

qrun_status qr_stored_slice_find(const qr_safetensors *file, const qr_stack *stack, int64_t expert, int64_t part,
                                 int64_t rows, int64_t cols, const qr_packing *packing, qr_stored_weight *stored,
                                 qr_error *err) {
    bool is_packed = false;
    *stored = (qr_stored_weight){.desc = {.rows = rows, .cols = cols}};
    QR_RETURN_IF_ERROR(find_stack(file, stack, packing, stored, &is_packed, err));
    const size_t expert_bytes = stored->codes->n_bytes / (size_t)stack->n_experts;
    stored->n_bytes = expert_bytes / (size_t)stack->n_parts;
    stored->data = stored->codes->data + (size_t)expert * expert_bytes;
    stored->is_last = expert == stack->n_experts - 1 && part == stack->n_parts - 1;
    if (is_packed) { return find_packed_slice(file, stack, expert, part, packing, stored, err); }
    stored->desc.format = qr_weight_plain_format(stored->codes->dtype);
    if (stored->wide_rows > 0) {
        stored->first_row = stack->in_turn ? part : part * rows;
        stored->row_step = stack->in_turn ? stack->n_parts : 1;
    } else {
        stored->data += (size_t)part * stored->n_bytes;
    }
    return QRUN_OK;
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

size_t qr_stored_scales_bytes(const qr_stored_weight *stored) {
    return part_bytes(stored->row_absmax) + part_bytes(stored->absmax) + part_bytes(stored->nested_absmax);
}

qr_weight_scales qr_stored_scales_copy(const qr_stored_weight *stored, void *memory) {
    unsigned char *cursor = memory;
    qr_weight_scales scales = {.nested_offset = stored->nested_offset};
    scales.row_absmax = copy_part(&cursor, stored->row_absmax);
    const void *absmax = copy_part(&cursor, stored->absmax);
    if (stored->desc.format == QR_WEIGHT_NF4_DQ) {
        scales.absmax_codes = absmax;
    } else {
        scales.absmax = absmax;
    }
    scales.nested_absmax = copy_part(&cursor, stored->nested_absmax);
    return scales;
}

qrun_status qr_stored_scales_read(const qr_stored_weight *stored, qr_stored_scales *scales, qr_error *err) {
    const size_t n_bytes = qr_stored_scales_bytes(stored);
    *scales = (qr_stored_scales){.memory = qr_alloc(n_bytes)};
    if (scales->memory == NULL) { return qr_fail_memory(err, "the scales of a weight", n_bytes); }
    scales->scales = qr_stored_scales_copy(stored, scales->memory);
    return QRUN_OK;
}

void qr_stored_scales_free(qr_stored_scales *scales) {
    qr_free(scales->memory);
    *scales = (qr_stored_scales){0};
}
