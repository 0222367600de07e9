/* Ops in a list, of which a backend runs several as one: everything that they write has the bits of the ops one by one,
 * and what is run as one is what was expected. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "kernels/op_list.h"

enum { MOST_TAKEN = 32, MOST_OUTPUTS = 12, MOST_WEIGHTS = 6, N_PAGES = 3 };

/* What run_group took, call by call. */
static struct taken { int n, lengths[MOST_TAKEN]; } taken;
static qrun_status (*real_run_group)(qr_backend *backend, const qr_op_call *calls, int32_t n_calls, int32_t *n_taken,
                                     qr_error *err);

static qrun_status noting_run_group(qr_backend *backend, const qr_op_call *calls, int32_t n_calls, int32_t *n_taken,
                                    qr_error *err) {
    const qrun_status status = real_run_group(backend, calls, n_calls, n_taken, err);
    if (taken.n < MOST_TAKEN) { taken.lengths[taken.n++] = *n_taken; }
    return status;
}

/* A layer of a decode step, without attention. */
typedef struct shape {
    qr_weight_format format;
    int block;
    qr_dtype dtype;
    qr_kv_format kv;
    int64_t n_rows, hidden, mlp, n_heads, n_kv_heads, head_dim, half;
    bool norms_heads, rotates_q, rotates_k, interleaved;
    qr_act_fn fn;
} shape;

/* One run of it. */
typedef struct scene {
    const shape *s;
    op_run run;
    qr_op_list *list; /* NULL: every op alone */
    const void *outputs[MOST_OUTPUTS];
    size_t n_bytes[MOST_OUTPUTS];
    int n_outputs;
    op_weight *made[MOST_WEIGHTS];
    qr_weight weights[MOST_WEIGHTS];
    float *floats[32]; /* inputs on the host, to be released */
    int n_floats, n_weights;
} scene;

static const float *floats(scene *c, int64_t n, double scale) {
    float *values = op_normals(n, (uint64_t)(700 + c->n_floats), scale);
    c->floats[c->n_floats++] = values;
    return values;
}

/* Random numbers that no op writes. */
static void *input(scene *c, int64_t n, double scale) {
    return op_input(&c->run, floats(c, n, scale), (size_t)n * sizeof(float));
}

/* A buffer that is compared, of n elements, with something in it or NaN. */
static void *output(scene *c, int64_t n, size_t element_bytes, bool filled) {
    const size_t n_bytes = (size_t)n * element_bytes;
    void *memory = op_output(&c->run, filled ? floats(c, n, 1.0) : NULL, 1, n_bytes, n_bytes);
    c->outputs[c->n_outputs] = memory;
    c->n_bytes[c->n_outputs++] = n_bytes;
    return memory;
}

static const qr_weight *weight(scene *c, int64_t rows, int64_t cols) {
    const bool has_blocks = c->s->format == QR_WEIGHT_NF4 || c->s->format == QR_WEIGHT_NF4_DQ;
    qr_weight_desc desc = {.format = c->s->format, .block = has_blocks ? c->s->block : 0, .rows = rows, .cols = cols};
    const size_t n_bytes = c->run.backend->weight_bytes(c->run.backend, &desc);
    const int i = c->n_weights++;
    c->made[i] = op_weight_create(desc, (uint64_t)(900 + i));
    void *data = op_output(&c->run, NULL, 1, n_bytes, n_bytes);
    CHECK(op_weight_put(c->run.backend, c->made[i], data, &c->weights[i], NULL));
    return &c->weights[i];
}

static void run(scene *c, qr_op op, const void *args) {
    qr_error err = {0};
    const qrun_status status = qr_op_list_run(c->list, c->run.backend, op, args, QR_NO_WORKSPACE, &err);
    CHECK_MSG(status == QRUN_OK, "%s: %s", c->run.label, err.message);
}

static void norm(scene *c, const float *src, void *dst, qr_dtype dtype, int64_t n_groups, int64_t dim, int64_t stride) {
    const qr_rms_norm_args args = {.src = src,
                                   .weight = input(c, dim, 1.0),
                                   .dst = dst,
                                   .dst_dtype = dtype,
                                   .n_rows = c->s->n_rows,
                                   .n_groups = n_groups,
                                   .dim = dim,
                                   .src_stride = stride,
                                   .dst_stride = stride,
                                   .eps = 1e-5F,
                                   .weight_offset = c->s->norms_heads ? 1.0F : 0.0F};
    run(c, QR_OP_rms_norm, &args);
}

static void linear(scene *c, int64_t rows, int64_t cols, const void *x, float *y, int64_t y_stride, bool accumulate) {
    const qr_linear_args args = {.weight = weight(c, rows, cols),
                                 .bias = accumulate ? NULL : input(c, rows, 1.0),
                                 .x = x,
                                 .x_dtype = c->s->dtype,
                                 .y = y,
                                 .n_rows = c->s->n_rows,
                                 .x_stride = cols,
                                 .y_stride = y_stride,
                                 .accumulate = accumulate};
    run(c, QR_OP_linear, &args);
}

static void rotate(scene *c, float *x, int64_t n_heads, int64_t stride) {
    const shape *s = c->s;
    const qr_rope_args args = {.x = x,
                               .cos_table = input(c, s->n_rows * s->half, 1.0),
                               .sin_table = input(c, s->n_rows * s->half, 1.0),
                               .n_tokens = s->n_rows,
                               .n_heads = n_heads,
                               .head_dim = s->head_dim,
                               .half = s->half,
                               .x_stride = stride,
                               .interleaved = s->interleaved};
    run(c, QR_OP_rope, &args);
}

/* Tokens at places of their own; every seventh has no page. */
static void write_kv(scene *c, const float *k, const float *v, int64_t stride) {
    static int32_t page[N_PAGES * QR_KV_PAGE_TOKENS], position[N_PAGES * QR_KV_PAGE_TOKENS];
    const shape *s = c->s;
    const qr_kv_layout layout = {
        .format = s->kv, .n_kv_heads = (int32_t)s->n_kv_heads, .head_dim = (int32_t)s->head_dim};
    for (int32_t i = 0; i < s->n_rows; i++) {
        page[i] = i % 7 == 6 ? -1 : i % N_PAGES;
        position[i] = i / N_PAGES + 5 * QR_KV_PAGE_TOKENS;
    }
    const size_t index_bytes = (size_t)s->n_rows * sizeof(int32_t);
    const qr_kv_write_args args = {.layout = layout,
                                   .k = k,
                                   .v = v,
                                   .n_tokens = s->n_rows,
                                   .k_stride = stride,
                                   .v_stride = stride,
                                   .token_page = op_input(&c->run, page, index_bytes),
                                   .position = op_input(&c->run, position, index_bytes),
                                   .pages = output(c, N_PAGES * (int64_t)qr_kv_layer_bytes(&layout), 1, false),
                                   .page_stride_bytes = qr_kv_layer_bytes(&layout)};
    run(c, QR_OP_kv_write, &args);
}

static void run_attention_part(scene *c, float *x, void *normed) {
    const shape *s = c->s;
    const int64_t n_q = s->n_heads * s->head_dim, n_kv = s->n_kv_heads * s->head_dim, columns = n_q + 2 * n_kv;
    float *qkv = output(c, s->n_rows * columns, sizeof(float), false), *k = qkv + n_q, *v = k + n_kv;
    norm(c, x, normed, s->dtype, 1, s->hidden, s->hidden);
    linear(c, n_q, s->hidden, normed, qkv, columns, false);
    linear(c, n_kv, s->hidden, normed, k, columns, false);
    linear(c, n_kv, s->hidden, normed, v, columns, false);
    if (s->norms_heads) { norm(c, qkv, qkv, QR_DTYPE_F32, s->n_heads, s->head_dim, columns); }
    if (s->rotates_q) { rotate(c, qkv, s->n_heads, columns); }
    if (s->norms_heads) { norm(c, k, k, QR_DTYPE_F32, s->n_kv_heads, s->head_dim, columns); }
    if (s->rotates_k) { rotate(c, k, s->n_kv_heads, columns); }
    write_kv(c, k, v, columns);
}

static void run_mlp_part(scene *c, float *x, void *normed) {
    const shape *s = c->s;
    float *both = output(c, s->n_rows * 2 * s->mlp, sizeof(float), false);
    void *gated = output(c, s->n_rows * s->mlp, qr_dtype_bytes(s->dtype), false);
    const qr_gate_args gate = {.fn = s->fn,
                               .g = both,
                               .u = both + s->mlp,
                               .dst = gated,
                               .dst_dtype = s->dtype,
                               .n_rows = s->n_rows,
                               .dim = s->mlp,
                               .g_stride = 2 * s->mlp,
                               .u_stride = 2 * s->mlp};
    norm(c, x, normed, s->dtype, 1, s->hidden, s->hidden);
    linear(c, s->mlp, s->hidden, normed, both, 2 * s->mlp, false);
    linear(c, s->mlp, s->hidden, normed, both + s->mlp, 2 * s->mlp, false);
    run(c, QR_OP_gate, &gate);
    linear(c, s->hidden, s->mlp, gated, x, s->hidden, true);
}

static void run_layer(scene *c) {
    const shape *s = c->s;
    float *x = output(c, s->n_rows * s->hidden, sizeof(float), true);
    void *normed = output(c, s->n_rows * s->hidden, qr_dtype_bytes(s->dtype), false);
    run_attention_part(c, x, normed);
    run_mlp_part(c, x, normed);
}

/* Outputs in one place, and over what the norm reads: these take turns. */
static void run_dependent(scene *c) {
    const shape *s = c->s;
    float *x = output(c, s->n_rows * s->hidden, sizeof(float), true);
    float *y = output(c, s->n_rows * s->hidden, sizeof(float), true);
    void *normed = output(c, s->n_rows * s->hidden, qr_dtype_bytes(s->dtype), false);
    norm(c, x, normed, s->dtype, 1, s->hidden, s->hidden);
    linear(c, s->hidden, s->hidden, normed, y, s->hidden, true);
    linear(c, s->hidden, s->hidden, normed, y, s->hidden, true);
    norm(c, x, normed, s->dtype, 1, s->hidden, s->hidden);
    linear(c, s->hidden, s->hidden, normed, x, s->hidden, true);
}

/* Runs it and gives the bytes of all outputs, one after the other. */
static unsigned char *bytes_of(qr_backend *backend, const shape *s, const char *label, void (*of)(scene *),
                               qr_op_list *list, size_t *n_bytes) {
    scene *c = qr_alloc_zeroed(sizeof *c);
    c->s = s;
    c->run = (op_run){.backend = backend, .label = label};
    c->list = list;
    of(c);
    if (list != NULL) { CHECK_INT(qr_op_list_end(list, backend, QR_NO_WORKSPACE, NULL), QRUN_OK); }
    *n_bytes = 0;
    for (int i = 0; i < c->n_outputs; i++) { *n_bytes += c->n_bytes[i]; }
    unsigned char *bytes = qr_alloc(*n_bytes), *at = bytes;
    for (int i = 0; i < c->n_outputs; at += c->n_bytes[i++]) {
        CHECK_INT(backend->copy_out(backend, at, c->outputs[i], c->n_bytes[i], NULL), QRUN_OK);
    }
    op_run_end(&c->run);
    for (int i = 0; i < c->n_floats; i++) { qr_free(c->floats[i]); }
    for (int i = 0; i < c->n_weights; i++) { op_weight_destroy(c->made[i]); }
    qr_free(c);
    return bytes;
}

static void check_group(const shape *s, void (*of)(scene *), const char *expected) {
    char label[160], lengths[160] = "";
    qr_backend *backend = op_everything.devices[0].backends[0];
    qr_op_list list = {0};
    size_t n_alone, n_grouped;
    snprintf(label, sizeof label, "%s block %d %s, %lld rows of %lld", qr_weight_format_name(s->format), s->block,
             qr_dtype_name(s->dtype), (long long)s->n_rows, (long long)s->hidden);
    unsigned char *alone = bytes_of(backend, s, label, of, NULL, &n_alone);
    taken.n = 0;
    real_run_group = backend->run_group;
    backend->run_group = noting_run_group;
    unsigned char *grouped = bytes_of(backend, s, label, of, &list, &n_grouped);
    backend->run_group = real_run_group;
    for (int i = 0; i < taken.n; i++) {
        const size_t n = strlen(lengths);
        snprintf(lengths + n, sizeof lengths - n, "%s%d", i > 0 ? " " : "", taken.lengths[i]);
    }
    CHECK_MSG(strcmp(lengths, expected) == 0, "%s: took %s instead of %s ops", label, lengths, expected);
    CHECK_INT((int64_t)n_grouped, (int64_t)n_alone);
    CHECK_MSG(n_grouped == n_alone && memcmp(alone, grouped, n_alone) == 0, "%s: other bits than one by one", label);
    qr_free(alone);
    qr_free(grouped);
}

void test_groups_have_the_bits_of_their_ops(void) {
    static const char few[] = "7 4 0", apart[] = "4 3 4 0", normed[] = "4 5 4 0", more[] = "0 6 0 3 0",
                      more_apart[] = "0 3 3 0 3 0", many[] = "0 0 0 0 3 0 0 0 0 0";
    shape s = {.format = QR_WEIGHT_NF4_DQ,
               .block = 64,
               .dtype = QR_DTYPE_BF16,
               .kv = QR_KV_BF16,
               .n_rows = 1,
               .hidden = 1088,
               .mlp = 136,
               .n_heads = 3,
               .n_kv_heads = 1,
               .head_dim = 64,
               .half = 32,
               .rotates_q = true,
               .rotates_k = true,
               .fn = QR_ACT_SILU};
    if (op_everything.devices[0].backends[0]->run_group == NULL) {
        check_skip("the backend runs every op alone");
        return;
    }
    check_group(&s, run_layer, few); /* a row that a block norms */
    s.interleaved = true;
    check_group(&s, run_layer, apart);
    s.kv = QR_KV_INT8, s.interleaved = false;
    check_group(&s, run_layer, apart); /* a scale of a whole head */
    s.n_rows = 2, s.norms_heads = true, s.format = QR_WEIGHT_NF4;
    check_group(&s, run_layer, normed);
    s.hidden = 192, s.head_dim = 40, s.half = 6, s.fn = QR_ACT_GELU_TANH, s.dtype = QR_DTYPE_F16, s.kv = QR_KV_F16;
    check_group(&s, run_layer, normed); /* one that a warp norms; heads that are rotated in part */
    s.interleaved = true;
    check_group(&s, run_layer, normed);
    s.interleaved = false;
    s.n_rows = 3, s.norms_heads = false, s.format = QR_WEIGHT_INT8, s.fn = QR_ACT_GELU_ERF;
    check_group(&s, run_layer, more_apart); /* products of two heads */
    s.n_rows = 1, s.fn = QR_ACT_NONE;
    check_group(&s, run_layer, apart);
    s.head_dim = 48, s.half = 6, s.fn = QR_ACT_GELU_ERF;
    check_group(&s, run_layer, apart); /* pairs and others in one product */
    s.half = 16, s.n_rows = 2;
    check_group(&s, run_layer, few); /* in part, in whole products */
    s.half = 24, s.n_rows = 8, s.kv = QR_KV_F32;
    check_group(&s, run_layer, more); /* a token without a page */
    s.n_heads = 256, s.n_kv_heads = 30, s.head_dim = 16, s.half = 8, s.hidden = 64;
    check_group(&s, run_layer, more); /* two products a tile, the last one of nothing */
    s.n_heads = 3, s.n_kv_heads = 2, s.head_dim = 80, s.half = 40, s.hidden = 192, s.rotates_k = false;
    check_group(&s, run_layer, "0 5 0 3 0");
    s.rotates_q = false, s.n_rows = 1;
    check_group(&s, run_layer, "5 4 0"); /* nothing is rotated */
    s.rotates_q = true, s.rotates_k = true;
    s.n_rows = 33, s.format = QR_WEIGHT_NF4_DQ, s.mlp = 200;
    check_group(&s, run_layer, more_apart);
    s.n_rows = 2, s.format = QR_WEIGHT_F16;
    check_group(&s, run_layer, few);
    s.n_rows = 9, s.format = QR_WEIGHT_NF4, s.block = 32; /* element by element */
    check_group(&s, run_layer, many);
    s.n_rows = 1, s.block = 64, s.dtype = QR_DTYPE_F32;
    check_group(&s, run_layer, many);
    s.dtype = QR_DTYPE_BF16;
    check_group(&s, run_dependent, "2 0 0 0");
}
