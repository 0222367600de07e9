/* Weights: made here as files hold them, written to a backend and read back. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "quant/int8.h"
#include "quant/nf4.h"
#include "quant/small_floats.h"

static float *make_values(const qr_weight_desc *desc, uint64_t stream) {
    return op_normals(qr_weight_elements(desc), stream, 1.0 / 16.0);
}

static void make_nf4(op_weight *weight, const float *values) {
    const qr_weight_desc *desc = &weight->desc;
    const int64_t n = qr_weight_elements(desc), n_blocks = qr_weight_blocks(desc);
    float *absmax = qr_alloc_array((size_t)n_blocks, sizeof *absmax);
    qr_nf4_quantize(values, n, desc->block, weight->codes, absmax);
    if (desc->format == QR_WEIGHT_NF4_DQ) {
        uint8_t *codes = qr_alloc((size_t)n_blocks);
        float *nested = qr_alloc_array((size_t)qr_ceil_div(n_blocks, QR_NESTED_BLOCK), sizeof *nested);
        const float offset = qr_nf4_nested_offset(absmax, n_blocks);
        qr_nf4_nest(absmax, n_blocks, offset, codes, nested);
        qr_nf4_unnest(codes, nested, offset, 0, n_blocks, absmax);
        weight->scales.absmax_codes = codes;
        weight->scales.nested_absmax = nested;
        weight->scales.nested_offset = offset;
    }
    qr_nf4_dequantize(weight->codes, absmax, desc->block, 0, n, weight->values);
    if (desc->format == QR_WEIGHT_NF4) {
        weight->scales.absmax = absmax;
    } else {
        qr_free(absmax);
    }
}

static void make_int8(op_weight *weight, const float *values) {
    const int64_t cols = weight->desc.cols;
    float *row_absmax = qr_alloc_array((size_t)weight->desc.rows, sizeof *row_absmax);
    for (int64_t r = 0; r < weight->desc.rows; r++) {
        int8_t *codes = (int8_t *)weight->codes + r * cols;
        row_absmax[r] = qr_int8_quantize_row(values + r * cols, cols, codes);
        qr_int8_dequantize_row(codes, row_absmax[r], cols, weight->values + r * cols);
    }
    weight->scales.row_absmax = row_absmax;
}

/* Codes and scales at random: the values that were to be quantised are not looked at. */
static void make_mxfp4(op_weight *weight, uint64_t stream) {
    const int64_t n = qr_weight_elements(&weight->desc), n_blocks = qr_weight_blocks(&weight->desc);
    const int64_t n_bytes = (int64_t)qr_weight_code_bytes(&weight->desc);
    uint8_t *scales = qr_alloc((size_t)n_blocks);
    for (int64_t i = 0; i < n_bytes; i++) { weight->codes[i] = (unsigned char)op_below(stream, i, 256); }
    for (int64_t i = 0; i < n_blocks; i++) { scales[i] = (uint8_t)(119 + op_below(stream + 1, i, 6)); }
    qr_mxfp4_dequantize(weight->codes, scales, 0, n, weight->values);
    weight->scales.absmax_codes = scales;
}

static void make_float(op_weight *weight, const float *values, qr_dtype dtype) {
    const int64_t n = qr_weight_elements(&weight->desc);
    qr_free(weight->codes);
    weight->codes = op_to_dtype(values, n, dtype);
    for (int64_t i = 0; i < n; i++) { weight->values[i] = (float)op_from_dtype(weight->codes, dtype, i); }
}

op_weight *op_weight_create(qr_weight_desc desc, uint64_t stream) {
    op_weight *weight = qr_alloc_zeroed(sizeof *weight);
    float *values = make_values(&desc, stream);
    weight->desc = desc;
    weight->codes = qr_alloc(qr_weight_code_bytes(&desc));
    weight->values = qr_alloc_array((size_t)qr_weight_elements(&desc), sizeof(float));
    switch (desc.format) {
        case QR_WEIGHT_NF4:
        case QR_WEIGHT_NF4_DQ: make_nf4(weight, values); break;
        case QR_WEIGHT_MXFP4: make_mxfp4(weight, stream); break;
        case QR_WEIGHT_INT8: make_int8(weight, values); break;
        case QR_WEIGHT_F16: make_float(weight, values, QR_DTYPE_F16); break;
        case QR_WEIGHT_BF16: make_float(weight, values, QR_DTYPE_BF16); break;
        default: make_float(weight, values, QR_DTYPE_F32); break;
    }
    qr_free(values);
    return weight;
}

static void free_lent(const void *lent) { qr_free((void *)(uintptr_t)lent); }

void op_weight_destroy(op_weight *weight) {
    free_lent(weight->scales.row_absmax);
    free_lent(weight->scales.absmax);
    free_lent(weight->scales.absmax_codes);
    free_lent(weight->scales.nested_absmax);
    qr_free(weight->codes);
    qr_free(weight->values);
    qr_free(weight);
}

/* Groups of 64 rows, then 128, then 64 …, the last ones first. */
bool op_weight_put(qr_backend *backend, const op_weight *weight, void *data, qr_weight *dst, qr_error *err) {
    *dst = (qr_weight){.desc = weight->desc, .data = data};
    for (int64_t end = weight->desc.rows, i = 0; end > 0; i++) {
        const int64_t group = i % 2 == 0 ? 64 : 128;
        const int64_t row = qr_max(0, (end - 1) / 64 * 64 + 64 - group);
        const unsigned char *codes = weight->codes + qr_weight_row_offset(&weight->desc, row);
        if (backend->weight_put_rows(backend, dst, row, end - row, codes, err) != QRUN_OK) { return false; }
        end = row;
    }
    return backend->weight_put_scales(backend, dst, &weight->scales, err) == QRUN_OK;
}

const qr_weight *op_run_weight(op_run *run, const op_weight *weight) {
    qr_error err = {0};
    const size_t n_bytes = run->backend->weight_bytes(run->backend, &weight->desc);
    CHECK(n_bytes % 64 == 0);
    void *data = op_output(run, NULL, 1, n_bytes, n_bytes);
    CHECK_MSG(op_weight_put(run->backend, weight, data, &run->weight, &err), "%s: %s: %s", run->backend->isa,
              run->label, err.message);
    return &run->weight;
}

static void check_same(const char *label, const char *what, const void *a, const void *b, size_t n_bytes) {
    CHECK_MSG(memcmp(a, b, n_bytes) == 0, "%s: %s came back different", label, what);
}

static void check_scales_back(qr_backend *backend, const op_weight *weight, const qr_weight *stored,
                              const char *label) {
    const size_t n_blocks = (size_t)qr_weight_blocks(&weight->desc), rows = (size_t)weight->desc.rows;
    const size_t n_nested = (n_blocks + QR_NESTED_BLOCK - 1) / QR_NESTED_BLOCK;
    float *row_absmax = qr_alloc_array_zeroed(rows, sizeof(float));
    float *absmax = qr_alloc_array_zeroed(n_blocks, sizeof(float));
    float *nested = qr_alloc_array_zeroed(n_nested, sizeof(float));
    uint8_t *codes = qr_alloc_zeroed(n_blocks);
    const qr_weight_scales *scales = &weight->scales;
    CHECK_INT(backend->weight_get_scales(backend, stored, scales->row_absmax != NULL ? row_absmax : NULL,
                                         scales->absmax != NULL ? absmax : NULL,
                                         scales->absmax_codes != NULL ? codes : NULL,
                                         scales->nested_absmax != NULL ? nested : NULL, NULL),
              QRUN_OK);
    if (scales->row_absmax != NULL) { check_same(label, "row_absmax", row_absmax, scales->row_absmax, rows * 4); }
    if (scales->absmax != NULL) { check_same(label, "absmax", absmax, scales->absmax, n_blocks * 4); }
    if (scales->absmax_codes != NULL) { check_same(label, "absmax_codes", codes, scales->absmax_codes, n_blocks); }
    if (scales->nested_absmax != NULL) {
        check_same(label, "nested_absmax", nested, scales->nested_absmax, n_nested * 4);
    }
    CHECK(stored->nested_offset == scales->nested_offset);
    qr_free(row_absmax);
    qr_free(absmax);
    qr_free(nested);
    qr_free(codes);
}

static void check_round_trip(qr_backend *backend, const op_weight *weight, const char *label) {
    qr_error err = {0};
    const size_t n_bytes = backend->weight_bytes(backend, &weight->desc);
    const size_t code_bytes = qr_weight_code_bytes(&weight->desc);
    void *data = NULL;
    qr_weight stored;
    CHECK_INT(n_bytes % 64, 0);
    REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &data, &err) == QRUN_OK);
    CHECK_MSG(op_weight_put(backend, weight, data, &stored, &err), "%s: %s", label, err.message);
    unsigned char *codes = qr_alloc(code_bytes + 64);
    memset(codes, 0xA5, code_bytes + 64);
    for (int64_t row = 0; row < weight->desc.rows; row += 64) {
        const int64_t n_rows = qr_min(64, weight->desc.rows - row);
        CHECK_INT(backend->weight_get_rows(backend, &stored, row, n_rows,
                                           codes + qr_weight_row_offset(&weight->desc, row), &err),
                  QRUN_OK);
    }
    check_same(label, "the codes", codes, weight->codes, code_bytes);
    CHECK_MSG(codes[code_bytes] == 0xA5, "%s: wrote after the codes", label);
    check_scales_back(backend, weight, &stored, label);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, n_bytes);
    qr_free(codes);
}

void test_weight_round_trip(void) {
    static const int64_t rows[] = {1, 3, 17, 63, 64, 65, 100, 300};
    static const int64_t cols[] = {1, 7, 31, 64, 80, 172, 320};
    static const int blocks[] = {64, 32, 128, 4096};
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        const size_t n_blocks = qr_weight_is_nf4((qr_weight_format)format) ? QR_COUNT_OF(blocks) : 1;
        for (size_t i = 0; i < QR_COUNT_OF(rows) * QR_COUNT_OF(cols) * n_blocks; i++) {
            const qr_weight_desc desc = {
                .format = (qr_weight_format)format,
                .block = n_blocks > 1 ? blocks[i % n_blocks] : 0,
                .rows = rows[i / n_blocks % QR_COUNT_OF(rows)],
                .cols = cols[i / n_blocks / QR_COUNT_OF(rows)],
            };
            op_weight *weight = op_weight_create(desc, i);
            for (int d = 0; d < op_everything.n_devices; d++) {
                char label[160];
                snprintf(label, sizeof label, "%s: %s block %d [%lld, %lld]", op_everything.devices[d].label,
                         qr_weight_format_name(desc.format), desc.block, (long long)desc.rows, (long long)desc.cols);
                check_round_trip(op_everything.devices[d].backends[1], weight, label);
            }
            op_weight_destroy(weight);
        }
    }
}

void test_weight_rows_are_checked(void) {
    op_weight *source = op_weight_create((qr_weight_desc){.format = QR_WEIGHT_INT8, .rows = 100, .cols = 5}, 1);
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[0];
        const size_t n_bytes = backend->weight_bytes(backend, &source->desc);
        void *data = NULL;
        REQUIRE(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &data, NULL) == QRUN_OK);
        qr_weight weight = {.desc = source->desc, .data = data};
        static const int64_t wrong[][2] = {{1, 64}, {0, 65}, {64, 37}, {0, 0}, {128, 1}, {-64, 64}, {0, 128}};
        for (size_t i = 0; i < QR_COUNT_OF(wrong); i++) {
            qr_error err = {0};
            CHECK_INT(backend->weight_put_rows(backend, &weight, wrong[i][0], wrong[i][1], source->codes, &err),
                      QRUN_ERROR_ARGUMENT);
            CHECK_MSG(strstr(err.message, "100 rows") != NULL, "message is \"%s\"", err.message);
        }
        qr_error err = {0};
        CHECK_INT(backend->weight_put_scales(backend, &weight, &(qr_weight_scales){0}, &err), QRUN_ERROR_ARGUMENT);
        CHECK_MSG(strstr(err.message, "row_absmax") != NULL, "message is \"%s\"", err.message);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, n_bytes);
    }
    op_weight_destroy(source);
}

void test_memory_is_counted_and_zeroed(void) {
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[0];
        size_t before, peak, now;
        void *a = NULL, *b = NULL;
        unsigned char bytes[1000];
        backend->memory_held(backend, &before, &peak);
        CHECK_INT(backend->memory_create(backend, QR_MEMORY_DEVICE, 1000, &a, NULL), QRUN_OK);
        CHECK_INT(backend->memory_create(backend, QR_MEMORY_HOST, 77, &b, NULL), QRUN_OK);
        backend->memory_held(backend, &now, &peak);
        qr_backend_memory own = {0}; /* where host memory is counted apart */
        if (backend->memory_info != NULL) {
            CHECK_INT(backend->memory_info(backend, &own, NULL), QRUN_OK);
            CHECK(own.host_held_bytes == 77 && own.host_peak_bytes == 77 && own.free_bytes <= own.total_bytes);
        }
        CHECK(now >= before + 1000 + (backend->memory_info == NULL ? 77 : 0) && peak >= now);
        CHECK((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
        memset(bytes, 1, sizeof bytes);
        CHECK_INT(backend->copy_out(backend, bytes, a, sizeof bytes, NULL), QRUN_OK);
        for (size_t i = 0; i < sizeof bytes; i++) { CHECK(bytes[i] == 0); }
        memset(bytes, 7, sizeof bytes);
        CHECK_INT(backend->copy_in(backend, a, bytes, sizeof bytes, NULL), QRUN_OK);
        CHECK_INT(backend->fill_zero(backend, a, 500, NULL), QRUN_OK);
        CHECK_INT(backend->copy_within(backend, (unsigned char *)a + 300, (unsigned char *)a + 500, 100, NULL),
                  QRUN_OK);
        CHECK_INT(backend->copy_out(backend, bytes, a, sizeof bytes, NULL), QRUN_OK);
        CHECK(bytes[299] == 0 && bytes[300] == 7 && bytes[399] == 7 && bytes[400] == 0 && bytes[999] == 7);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, a, 1000);
        backend->memory_destroy(backend, QR_MEMORY_HOST, b, 77);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, NULL, 0);
        backend->memory_held(backend, &now, &peak);
        CHECK_INT(now, before);
        qr_error err = {0};
        void *huge = &now;
        CHECK_INT(backend->memory_create(backend, QR_MEMORY_DEVICE, SIZE_MAX - 8, &huge, &err), QRUN_ERROR_MEMORY);
        CHECK(huge == NULL);
    }
}
