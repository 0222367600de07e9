#include "kernels/self_check.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"
#include "base/sizes.h"
#include "quant/nf4.h"

enum {
    ROWS = 100, /* of x: more than any backend calls few */
    FEW = 3,
    IN = 256,
    OUT = 64,
    N_BLOCKS = OUT * IN / QR_NF4_BLOCK,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    CONTEXT = 40, /* positions: two pages and a half */
    N_PAGES = (CONTEXT + QR_KV_PAGE_TOKENS - 1) / QR_KV_PAGE_TOKENS,
    ALIGNMENT = 256,
    ARENA_BYTES = 1 << 18,
};

/* One of the two backends, with a block of its memory that is handed out from the front. */
typedef struct side {
    qr_backend *backend;
    unsigned char *memory;
    size_t used;
    qr_workspace workspace;
} side;

static void *take(side *s, size_t n_bytes) {
    void *memory = s->memory + s->used;
    s->used += (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return s->used <= ARENA_BYTES ? memory : NULL;
}

static qrun_status put(side *s, const void *host, size_t n_bytes, const void **device, qr_error *err) {
    void *memory = take(s, n_bytes);
    *device = memory;
    if (memory == NULL) { return qr_fail_memory(err, "checking the device", ARENA_BYTES); }
    return s->backend->copy_in(s->backend, memory, host, n_bytes, err);
}

/* Makes s->workspace at least n_bytes. */
static qrun_status need_workspace(side *s, size_t n_bytes, qr_error *err) {
    if (n_bytes <= s->workspace.n_bytes) { return QRUN_OK; }
    s->backend->memory_destroy(s->backend, QR_MEMORY_DEVICE, s->workspace.memory, s->workspace.n_bytes);
    s->workspace.n_bytes = 0;
    QR_RETURN_IF_ERROR(s->backend->memory_create(s->backend, QR_MEMORY_DEVICE, n_bytes, &s->workspace.memory, err));
    s->workspace.n_bytes = n_bytes;
    return QRUN_OK;
}

static float uniform(uint64_t stream, int64_t i) {
    return (float)(2.0 * qr_random_uniform(1, stream, (uint64_t)i) - 1.0);
}

/* --- linear --- */

typedef struct canonical_weight {
    unsigned char codes[OUT * IN];
    float absmax[N_BLOCKS];
    uint8_t absmax_codes[N_BLOCKS];
    float nested_absmax[N_BLOCKS / QR_NESTED_BLOCK + 1];
    qr_weight_scales scales;
    float values[OUT * IN];
} canonical_weight;

static qrun_status make_weight(qr_backend *ref, const qr_weight_desc *desc, canonical_weight *w, qr_error *err) {
    for (int64_t i = 0; i < OUT * IN; i++) { w->values[i] = uniform(1, i); }
    const qr_quantize_args args = {.format = desc->format,
                                   .block = desc->block,
                                   .src_dtype = QR_DTYPE_F32,
                                   .src = w->values,
                                   .n_rows = OUT,
                                   .cols = IN,
                                   .codes = w->codes,
                                   .absmax = w->absmax};
    const qrun_status status = qr_quantize(ref, &args, QR_NO_WORKSPACE, err);
    w->scales = (qr_weight_scales){.row_absmax = w->absmax, .absmax = w->absmax};
    if (desc->format != QR_WEIGHT_NF4_DQ) { return status; }
    w->scales.nested_offset = qr_nf4_nested_offset(w->absmax, N_BLOCKS);
    qr_nf4_nest(w->absmax, N_BLOCKS, w->scales.nested_offset, w->absmax_codes, w->nested_absmax);
    w->scales.absmax_codes = w->absmax_codes;
    w->scales.nested_absmax = w->nested_absmax;
    return status;
}

/* y [n_rows, OUT] of the first n_rows of x. */
static qrun_status multiply(side *s, const qr_weight_desc *desc, const canonical_weight *w, const uint16_t *x,
                            int64_t n_rows, float *y, qr_error *err) {
    qr_backend *backend = s->backend;
    s->used = 0;
    qr_weight weight = {.desc = *desc, .data = take(s, backend->weight_bytes(backend, desc))};
    const void *device_x;
    float *device_y = take(s, (size_t)(n_rows * OUT) * sizeof *y);
    QR_RETURN_IF_ERROR(
        put(s, x, (size_t)(n_rows * IN) * sizeof *x, &device_x, err)); /* fails when one of the two above did not fit */
    QR_RETURN_IF_ERROR(backend->weight_put_rows(backend, &weight, 0, OUT, w->codes, err));
    QR_RETURN_IF_ERROR(backend->weight_put_scales(backend, &weight, &w->scales, err));
    const qr_linear_args args = {.weight = &weight,
                                 .x = device_x,
                                 .x_dtype = QR_DTYPE_BF16,
                                 .y = device_y,
                                 .n_rows = n_rows,
                                 .x_stride = IN,
                                 .y_stride = OUT};
    QR_RETURN_IF_ERROR(need_workspace(s, qr_linear_workspace(backend, &args), err));
    QR_RETURN_IF_ERROR(qr_linear(backend, &args, s->workspace, err));
    return backend->copy_out(backend, y, device_y, (size_t)(n_rows * OUT) * sizeof *y, err);
}

static qrun_status compare(const char *what, const float *found, const float *expected, int64_t n, double bound,
                           qr_error *err) {
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs((double)found[i] - (double)expected[i]);
        if (error <= bound * (1.0 + fabs((double)expected[i]))) { continue; }
        return qr_fail(err, QRUN_ERROR_DEVICE,
                       "this device computes wrong values: %s gives %g instead of %g; use another device "
                       "(`device=cpu`), and please report it",
                       what, (double)found[i], (double)expected[i]);
    }
    return QRUN_OK;
}

/* F32 sums of 256 products, each at most 1: wrong by far less than this, however they are added. */
static const double LINEAR_BOUND = 1e-3;

static qrun_status check_linear(side *s, side *ref, const qr_weight_desc *desc, const char *what, qr_error *err) {
    struct {
        canonical_weight weight;
        uint16_t x[ROWS * IN];
        float many[ROWS * OUT], few[FEW * OUT], expected[ROWS * OUT];
    } *all = qr_alloc_zeroed(sizeof *all);
    if (all == NULL) { return qr_fail_memory(err, "checking the device", sizeof *all); }
    for (int64_t i = 0; i < ROWS * IN; i++) { all->x[i] = qr_f32_to_bf16(uniform(2, i)); }
    qrun_status status = QRUN_OK;
    QR_TRY(make_weight(ref->backend, desc, &all->weight, err));
    QR_TRY(multiply(ref, desc, &all->weight, all->x, ROWS, all->expected, err));
    QR_TRY(multiply(s, desc, &all->weight, all->x, ROWS, all->many, err));
    QR_TRY(multiply(s, desc, &all->weight, all->x, FEW, all->few, err));
    QR_TRY(compare(what, all->many, all->expected, ROWS * OUT, LINEAR_BOUND, err));
    if (memcmp(all->many, all->few, sizeof all->few) != 0) {
        QR_TRY(qr_fail(err, QRUN_ERROR_DEVICE,
                       "this device computes different bits for a row alone and among others (%s); use another "
                       "device (`device=cpu`), and please report it",
                       what));
    }
out:
    qr_free(all);
    return status;
}

/* --- attention, of the last position of a sequence --- */

typedef struct attention_data {
    float q[HEADS * HEAD_DIM], k[CONTEXT * KV_HEADS * HEAD_DIM], v[CONTEXT * KV_HEADS * HEAD_DIM];
    int32_t page[CONTEXT], position[CONTEXT], table[N_PAGES], q_start[2], first_position[1];
} attention_data;

static void fill_attention(attention_data *d) {
    for (int64_t i = 0; i < HEADS * HEAD_DIM; i++) { d->q[i] = uniform(3, i); }
    for (int64_t i = 0; i < CONTEXT * KV_HEADS * HEAD_DIM; i++) {
        d->k[i] = uniform(4, i);
        d->v[i] = uniform(5, i);
    }
    for (int32_t i = 0; i < N_PAGES; i++) { d->table[i] = N_PAGES - 1 - i; }
    for (int32_t i = 0; i < CONTEXT; i++) {
        d->position[i] = i;
        d->page[i] = d->table[i / QR_KV_PAGE_TOKENS];
    }
    d->q_start[1] = 1;
    d->first_position[0] = CONTEXT - 1;
}

static qrun_status attend(side *s, const attention_data *d, float *result, qr_error *err) {
    qr_backend *backend = s->backend;
    uint16_t dst[HEADS * HEAD_DIM];
    const qr_kv_layout layout = {.format = QR_KV_BF16, .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    const size_t page_bytes = qr_kv_layer_bytes(&layout);
    qr_kv_write_args write = {.layout = layout,
                              .n_tokens = CONTEXT,
                              .k_stride = KV_HEADS * HEAD_DIM,
                              .v_stride = KV_HEADS * HEAD_DIM,
                              .page_stride_bytes = page_bytes};
    qr_attention_args args = {.layout = layout,
                              .dst_dtype = QR_DTYPE_BF16,
                              .n_tokens = 1,
                              .q_stride = HEADS * HEAD_DIM,
                              .n_heads = HEADS,
                              .n_seqs = 1,
                              .table_stride = N_PAGES,
                              .page_stride_bytes = page_bytes,
                              .scale = 0.125F};
    s->used = 0;
    write.pages = take(s, N_PAGES * page_bytes);
    args.pages = write.pages;
    args.dst = take(s, sizeof dst);
    QR_RETURN_IF_ERROR(put(s, d->k, sizeof d->k, (const void **)&write.k, err));
    QR_RETURN_IF_ERROR(put(s, d->v, sizeof d->v, (const void **)&write.v, err));
    QR_RETURN_IF_ERROR(put(s, d->page, sizeof d->page, (const void **)&write.token_page, err));
    QR_RETURN_IF_ERROR(put(s, d->position, sizeof d->position, (const void **)&write.position, err));
    QR_RETURN_IF_ERROR(put(s, d->q, sizeof d->q, (const void **)&args.q, err));
    QR_RETURN_IF_ERROR(put(s, d->table, sizeof d->table, (const void **)&args.block_table, err));
    QR_RETURN_IF_ERROR(put(s, d->q_start, sizeof d->q_start, (const void **)&args.q_start, err));
    QR_RETURN_IF_ERROR(put(s, d->first_position, sizeof d->first_position, (const void **)&args.first_position, err));
    QR_RETURN_IF_ERROR(backend->fill_zero(backend, write.pages, N_PAGES * page_bytes, err));
    QR_RETURN_IF_ERROR(need_workspace(s, qr_kv_write_workspace(backend, &write), err));
    QR_RETURN_IF_ERROR(qr_kv_write(backend, &write, s->workspace, err));
    QR_RETURN_IF_ERROR(need_workspace(s, qr_attention_workspace(backend, &args), err));
    QR_RETURN_IF_ERROR(qr_attention(backend, &args, s->workspace, err));
    QR_RETURN_IF_ERROR(backend->copy_out(backend, dst, args.dst, sizeof dst, err));
    for (int i = 0; i < HEADS * HEAD_DIM; i++) { result[i] = qr_bf16_to_f32(dst[i]); }
    return QRUN_OK;
}

/* Two roundings to BF16 of values below 1. */
static const double ATTENTION_BOUND = 1e-2;

static qrun_status check_attention(side *s, side *ref, qr_error *err) {
    struct {
        attention_data data;
        float found[HEADS * HEAD_DIM], expected[HEADS * HEAD_DIM];
    } *all = qr_alloc_zeroed(sizeof *all);
    if (all == NULL) { return qr_fail_memory(err, "checking the device", sizeof *all); }
    fill_attention(&all->data);
    qrun_status status = QRUN_OK;
    QR_TRY(attend(ref, &all->data, all->expected, err));
    QR_TRY(attend(s, &all->data, all->found, err));
    QR_TRY(compare("attention", all->found, all->expected, HEADS * HEAD_DIM, ATTENTION_BOUND, err));
out:
    qr_free(all);
    return status;
}

static qrun_status open_side(side *s, qr_error *err) {
    void *memory = NULL;
    const qrun_status status = s->backend->memory_create(s->backend, QR_MEMORY_DEVICE, ARENA_BYTES, &memory, err);
    s->memory = memory;
    return status;
}

static void close_side(side *s) {
    if (s->backend == NULL) { return; }
    s->backend->memory_destroy(s->backend, QR_MEMORY_DEVICE, s->workspace.memory, s->workspace.n_bytes);
    s->backend->memory_destroy(s->backend, QR_MEMORY_DEVICE, s->memory, ARENA_BYTES);
}

qrun_status qr_backend_self_check(qr_backend *backend, qr_error *err) {
    static const qr_weight_desc nf4_dq = {.format = QR_WEIGHT_NF4_DQ, .block = QR_NF4_BLOCK, .rows = OUT, .cols = IN};
    static const qr_weight_desc int8 = {.format = QR_WEIGHT_INT8, .rows = OUT, .cols = IN};
    side s = {.backend = backend}, ref = {0};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_backend_ref_create(NULL, &ref.backend, err));
    QR_TRY(open_side(&s, err));
    QR_TRY(open_side(&ref, err));
    QR_TRY(check_linear(&s, &ref, &nf4_dq, "a product with nf4-dq weights", err));
    QR_TRY(check_linear(&s, &ref, &int8, "a product with int8 weights", err));
    QR_TRY(check_attention(&s, &ref, err));
out:
    close_side(&s);
    close_side(&ref);
    qr_backend_destroy(ref.backend);
    return status;
}
