/* Loading: rows of a plain type that a device quantises or converts itself, by threads side by side, have the bits of
 * quant/ in every format, for sizes that are no multiple of anything; and codes that are sent while loading arrive. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "quant/int8.h"
#include "quant/nf4.h"

/* Values as weights are, and what tests the edges: blocks of zeros, ties between codes, the smallest and largest. */
static float value_at(int64_t i) {
    static const float odd[] = {0.0F, -0.0F, 1e-40F, -3e-39F, 65504.0F, 65520.0F, 3e38F, -1e-8F, 1.0F, -1.0F};
    if (i / 64 % 7 == 3) { return 0.0F; }
    if (i % 97 == 5) { return odd[i / 97 % 10]; }
    if (i % 64 == 0) { return 1.0F; } /* with an absmax of 1 the midpoints themselves are ties */
    if (i / 64 % 5 == 0 && i % 64 <= 15) { return qr_nf4_midpoints[i % 64 - 1]; }
    if (i / 64 % 11 == 10 && i % 64 == 9) { return NAN; }
    if (i / 64 % 23 == 22 && i % 64 == 9) { return INFINITY; }
    return 0.02F * (float)qr_random_normal(OP_SEED, 77, (uint64_t)i);
}

/* n values of a type, at an address that is aligned to nothing, as in a mapped file; and as F32. qr_free(*memory). */
static unsigned char *make_source(qr_dtype dtype, int64_t n, float *values, void **memory) {
    unsigned char *block = qr_alloc((size_t)n * sizeof(float) + 1);
    *memory = block;
    for (int64_t i = 0; i < n; i++) { values[i] = value_at(i); }
    qr_elements_from_f32(dtype, values, n, block + 1);
    qr_elements_to_f32(dtype, block + 1, 0, n, values);
    return block + 1;
}

typedef struct expected {
    unsigned char *codes;
    float *scales; /* [blocks], or [rows] of INT8 */
    size_t n_codes;
    int64_t n_scales;
} expected;

static expected quantize_by_definition(const qr_weight_desc *desc, const float *values) {
    const int64_t n = qr_weight_elements(desc);
    expected e = {.n_codes = qr_weight_code_bytes(desc),
                  .n_scales = desc->format == QR_WEIGHT_INT8 ? desc->rows : qr_weight_blocks(desc)};
    e.codes = qr_alloc_zeroed(e.n_codes);
    e.scales = qr_alloc_array_zeroed((size_t)qr_max(e.n_scales, 1), sizeof(float));
    if (qr_weight_is_nf4(desc->format)) {
        qr_nf4_quantize(values, n, desc->block, e.codes, e.scales);
    } else if (desc->format == QR_WEIGHT_INT8) {
        for (int64_t r = 0; r < desc->rows; r++) {
            e.scales[r] = qr_int8_quantize_row(values + r * desc->cols, desc->cols, (int8_t *)e.codes + r * desc->cols);
        }
    } else {
        const qr_dtype dtype = desc->format == QR_WEIGHT_F32   ? QR_DTYPE_F32
                               : desc->format == QR_WEIGHT_F16 ? QR_DTYPE_F16
                                                               : QR_DTYPE_BF16;
        qr_elements_from_f32(dtype, values, n, e.codes);
    }
    return e;
}

typedef struct put_job {
    qr_backend *backend;
    qr_weight *weight;
    qr_dtype dtype;
    const unsigned char *src;
    float *absmax;
    int64_t rows_at_once;
    qrun_status status[4096];
} put_job;

static void put_task(void *arg, int64_t index, int worker) {
    (void)worker;
    put_job *job = arg;
    const qr_weight_desc *desc = &job->weight->desc;
    const int64_t row = index * job->rows_at_once, n = qr_min(job->rows_at_once, desc->rows - row);
    float *absmax = desc->block > 0 ? job->absmax + row * desc->cols / desc->block : NULL;
    const unsigned char *src = job->src + (size_t)(row * desc->cols) * qr_dtype_bytes(job->dtype);
    const size_t n_bytes = (size_t)(n * desc->cols) * qr_dtype_bytes(job->dtype);
    unsigned char *gone = qr_alloc(n_bytes); /* that src may go is put to the test */
    memcpy(gone, src, n_bytes);
    job->status[index] =
        job->backend->weight_put_source(job->backend, job->weight, row, n, job->dtype, gone, absmax, NULL);
    memset(gone, 0xEE, n_bytes);
    qr_free(gone);
}

/* NaN that came from a conversion need not be the same NaN. */
static bool same_codes(const qr_weight_desc *desc, const unsigned char *a, const unsigned char *b, size_t n_bytes) {
    if (qr_weight_is_nf4(desc->format) || desc->format == QR_WEIGHT_INT8) { return memcmp(a, b, n_bytes) == 0; }
    const qr_dtype dtype = desc->format == QR_WEIGHT_F32   ? QR_DTYPE_F32
                           : desc->format == QR_WEIGHT_F16 ? QR_DTYPE_F16
                                                           : QR_DTYPE_BF16;
    for (int64_t i = 0; i < qr_weight_elements(desc); i++) {
        float of_a, of_b;
        qr_elements_to_f32(dtype, a, i, 1, &of_a);
        qr_elements_to_f32(dtype, b, i, 1, &of_b);
        if (memcmp(&of_a, &of_b, sizeof of_a) != 0 && !(isnan(of_a) && isnan(of_b))) { return false; }
    }
    return true;
}

static void check_loaded(qr_backend *backend, const qr_weight *weight, const expected *e, const float *absmax,
                         const char *label) {
    const qr_weight_desc *desc = &weight->desc;
    unsigned char *codes = qr_alloc_zeroed(e->n_codes);
    float *scales = qr_alloc_array_zeroed((size_t)qr_max(e->n_scales, 1), sizeof(float));
    CHECK_INT(backend->weight_get_rows(backend, weight, 0, desc->rows, codes, NULL), QRUN_OK);
    CHECK_MSG(same_codes(desc, codes, e->codes, e->n_codes), "%s: other codes", label);
    if (desc->format == QR_WEIGHT_NF4) {
        CHECK_INT(backend->weight_get_scales(backend, weight, NULL, scales, NULL, NULL, NULL), QRUN_OK);
    } else if (desc->format == QR_WEIGHT_INT8) {
        CHECK_INT(backend->weight_get_scales(backend, weight, scales, NULL, NULL, NULL, NULL), QRUN_OK);
    }
    CHECK_MSG(
        memcmp(desc->format == QR_WEIGHT_NF4_DQ ? absmax : scales, e->scales, (size_t)e->n_scales * sizeof(float)) == 0,
        "%s: other scales", label);
    qr_free(codes);
    qr_free(scales);
}

static void check_load(qr_backend *backend, qr_threads *threads, qr_weight_desc desc, qr_dtype dtype) {
    const int64_t n = qr_weight_elements(&desc);
    char label[96];
    snprintf(label, sizeof label, "%s of %lld × %lld, blocks of %d, from %s", qr_weight_format_name(desc.format),
             (long long)desc.rows, (long long)desc.cols, desc.block, qr_dtype_name(dtype));
    float *values = qr_alloc_array((size_t)n, sizeof(float));
    void *memory = NULL, *data = NULL;
    static put_job job;
    const size_t n_bytes = backend->weight_bytes(backend, &desc);
    qr_weight weight = {.desc = desc};
    job = (put_job){
        .backend = backend, .weight = &weight, .dtype = dtype, .rows_at_once = desc.block > 64 ? desc.rows : 64};
    job.src = make_source(dtype, n, values, &memory);
    const expected e = quantize_by_definition(&desc, values);
    job.absmax = qr_alloc_array_zeroed((size_t)qr_max(e.n_scales, 1), sizeof(float));
    CHECK(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &data, NULL) == QRUN_OK);
    weight.data = data;
    const int64_t n_tasks = qr_ceil_div(desc.rows, job.rows_at_once);
    qr_threads_run(threads, n_tasks, put_task, &job);
    CHECK_INT(backend->loading_wait(backend, NULL), QRUN_OK);
    for (int64_t i = 0; i < n_tasks; i++) { CHECK_MSG(job.status[i] == QRUN_OK, "%s: refused", label); }
    check_loaded(backend, &weight, &e, job.absmax, label);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, n_bytes);
    qr_free(job.absmax);
    qr_free(e.codes);
    qr_free(e.scales);
    qr_free(memory);
    qr_free(values);
}

static const struct {
    qr_weight_format format;
    int block;
} formats[] = {{QR_WEIGHT_F32, 0},  {QR_WEIGHT_F16, 0},     {QR_WEIGHT_BF16, 0}, {QR_WEIGHT_INT8, 0},
               {QR_WEIGHT_NF4, 64}, {QR_WEIGHT_NF4_DQ, 64}, {QR_WEIGHT_NF4, 32}, {QR_WEIGHT_NF4_DQ, 4096}};

static const int64_t shapes[][2] = {{1, 1}, {1, 7}, {3, 43}, {65, 33}, {64, 172}, {130, 99}, {300, 321}};

void test_loading_quantizes_on_the_device(void) {
    static const qr_dtype types[] = {QR_DTYPE_F32, QR_DTYPE_BF16, QR_DTYPE_F16};
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[1];
        if (backend->weight_put_source == NULL) { continue; }
        CHECK_INT(backend->loading_begin(backend, NULL), QRUN_OK);
        REQUIRE(backend->takes_sources);
        for (size_t f = 0; f < QR_COUNT_OF(formats); f++) {
            for (size_t s = 0; s < QR_COUNT_OF(shapes); s++) {
                const qr_weight_desc desc = {formats[f].format, formats[f].block, shapes[s][0], shapes[s][1]};
                for (size_t t = 0; t < QR_COUNT_OF(types); t++) {
                    if (s + 1 == QR_COUNT_OF(shapes) && t != f % 3) { continue; } /* several slots' worth */
                    check_load(backend, op_everything.threads[1], desc, types[t]);
                }
            }
        }
        for (size_t f = 0; f < QR_COUNT_OF(formats); f++) { /* and where slots are larger than in tests/simt */
            const qr_weight_desc desc = {formats[f].format, formats[f].block, 2240, 2049};
            if (strcmp(backend->isa, "simt") != 0) {
                check_load(backend, op_everything.threads[1], desc, types[f % QR_COUNT_OF(types)]);
            }
        }
        backend->loading_end(backend);
        CHECK(!backend->takes_sources);
    }
}

/* Codes put while loading go the same way. */
void test_loading_sends_codes(void) {
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[1];
        if (backend->loading_begin == NULL) { continue; }
        const qr_weight_desc desc = {.format = QR_WEIGHT_BF16, .rows = 333, .cols = 301};
        op_weight *source = op_weight_create(desc, 5);
        const size_t n_bytes = backend->weight_bytes(backend, &desc), n_codes = qr_weight_code_bytes(&desc);
        unsigned char *codes = qr_alloc(n_codes);
        void *data = NULL;
        qr_weight weight;
        qr_error err = {0};
        CHECK_INT(backend->loading_begin(backend, NULL), QRUN_OK);
        CHECK(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &data, NULL) == QRUN_OK);
        CHECK_MSG(op_weight_put(backend, source, data, &weight, &err), "%s", err.message);
        CHECK_INT(backend->loading_wait(backend, NULL), QRUN_OK);
        backend->loading_end(backend);
        CHECK_INT(backend->weight_get_rows(backend, &weight, 0, desc.rows, codes, NULL), QRUN_OK);
        CHECK(memcmp(codes, source->codes, n_codes) == 0);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, data, n_bytes);
        qr_free(codes);
        op_weight_destroy(source);
    }
}
