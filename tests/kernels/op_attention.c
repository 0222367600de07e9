/* kv_write and attention. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"

enum { GAP = 3, PAGE = QR_KV_PAGE_TOKENS };

static const char *const kv_names[] = {"f32", "bf16", "f16", "int8"};

/* --- kv_write: the stored bytes are defined exactly --- */

typedef struct write_case {
    qr_kv_layout layout;
    int64_t n_tokens, n_pages;
    const float *k, *v; /* [n_tokens, n_kv_heads · head_dim + GAP] and [… + 2 · GAP] */
    const int32_t *token_page, *position;
    size_t page_stride;
} write_case;

/* Writes tokens [first, first + n) to `pages`, which already hold `initial`. */
static void write_pages(qr_backend *backend, const write_case *c, int64_t first, int64_t n,
                        const unsigned char *initial, unsigned char *pages) {
    op_run run = {.backend = backend, .label = "kv_write"};
    const int64_t row = (int64_t)c->layout.n_kv_heads * c->layout.head_dim;
    const size_t pages_bytes = (size_t)c->n_pages * c->page_stride;
    const qr_kv_write_args args = {
        .layout = c->layout,
        .k = op_input(&run, c->k + first * (row + GAP), (size_t)((n - 1) * (row + GAP) + row) * sizeof(float)),
        .v = op_input(&run, c->v + first * (row + 2 * GAP), (size_t)((n - 1) * (row + 2 * GAP) + row) * sizeof(float)),
        .n_tokens = n,
        .k_stride = row + GAP,
        .v_stride = row + 2 * GAP,
        .token_page = op_input(&run, c->token_page + first, (size_t)n * sizeof(int32_t)),
        .position = op_input(&run, c->position + first, (size_t)n * sizeof(int32_t)),
        .pages = op_output(&run, initial, 1, pages_bytes, pages_bytes),
        .page_stride_bytes = c->page_stride,
    };
    op_call(&run, QR_OP_kv_write, &args);
    op_read(&run, args.pages, pages);
    op_run_end(&run);
}

static void check_writes(const write_case *c, const char *label) {
    const size_t n_bytes = (size_t)c->n_pages * c->page_stride;
    unsigned char *initial = qr_alloc(n_bytes), *ref = qr_alloc(n_bytes);
    unsigned char *whole = qr_alloc(n_bytes), *half = qr_alloc(n_bytes), *parts = qr_alloc(n_bytes);
    memset(initial, 0x5A, n_bytes);
    write_pages(op_everything.ref, c, 0, c->n_tokens, initial, ref);
    CHECK(memcmp(initial, ref, n_bytes) != 0);
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        for (int t = 0; t < 2; t++) {
            write_pages(device->backends[t], c, 0, c->n_tokens, initial, whole);
            CHECK_MSG(memcmp(whole, ref, n_bytes) == 0, "%s: %s: not the bytes of ref", device->label, label);
        }
        const int64_t cut = c->n_tokens / 3 + 1;
        if (cut >= c->n_tokens) { continue; }
        write_pages(device->backends[0], c, cut, c->n_tokens - cut, initial, half);
        write_pages(device->backends[1], c, 0, cut, half, parts);
        CHECK_MSG(memcmp(parts, ref, n_bytes) == 0, "%s: %s: in two parts it gives other bytes", device->label, label);
    }
    qr_free(initial);
    qr_free(ref);
    qr_free(whole);
    qr_free(half);
    qr_free(parts);
}

static void check_kv_write(qr_kv_layout layout, int64_t n_tokens) {
    const int64_t row = (int64_t)layout.n_kv_heads * layout.head_dim, n_pages = n_tokens / PAGE + 3;
    int32_t token_page[128], position[128];
    float *k = op_normals(n_tokens * (row + GAP), 1, 1.0), *v = op_normals(n_tokens * (row + 2 * GAP), 2, 3.0);
    for (int64_t i = 0; i < n_tokens; i++) {
        position[i] = (int32_t)(i + 5); /* begins inside a page */
        token_page[i] = (int32_t)(n_pages - 1 - position[i] / PAGE);
        if (i % 11 == 4) { token_page[i] = -1; }
    }
    for (int64_t j = 0; j < layout.head_dim; j++) {
        k[j] = 0.0F;               /* a head of zeros */
        v[j] = j == 0 ? 1e-38F : 0.0F; /* too small for 127 / max|x| */
    }
    const write_case c = {.layout = layout, .n_tokens = n_tokens, .n_pages = n_pages, .k = k, .v = v,
                          .token_page = token_page, .position = position,
                          .page_stride = qr_kv_layer_bytes(&layout) + 128};
    char label[120];
    snprintf(label, sizeof label, "kv_write %s, %d heads of %d, %lld tokens", kv_names[layout.format],
             layout.n_kv_heads, layout.head_dim, (long long)n_tokens);
    check_writes(&c, label);
    qr_free(k);
    qr_free(v);
}

static const int32_t head_dims[] = {8, 16, 64, 80, 128, 256, 17};

void test_op_kv_write(void) {
    for (int format = QR_KV_F32; format <= QR_KV_INT8; format++) {
        for (size_t i = 0; i < QR_COUNT_OF(head_dims); i++) {
            check_kv_write((qr_kv_layout){(qr_kv_format)format, 3, head_dims[i]}, 65);
            check_kv_write((qr_kv_layout){(qr_kv_format)format, 1, head_dims[i]}, 1);
        }
    }
}

/* --- attention --- */

enum { MAX_SEQS = 5, MAX_PAGES = 24, MAX_CONTEXT = 160 };

/* Sequences of a prompt chunk each, or one token: n_new rows of q behind n_past positions already in their pages. */
typedef struct attention_case {
    qr_kv_layout layout;
    int32_t n_heads, n_seqs, window;
    float softcap, scale;
    int64_t q_start[MAX_SEQS + 1];
    int32_t n_past[MAX_SEQS];
    const float *q;            /* [n_tokens, n_heads · head_dim + GAP] */
    const float *k[MAX_SEQS], *v[MAX_SEQS]; /* [context, n_kv_heads · head_dim], values as they are stored */
} attention_case;

static int64_t context_of(const attention_case *c, int s) { return c->n_past[s] + c->q_start[s + 1] - c->q_start[s]; }

/* Where position j of sequence s lies: scattered, and elsewhere in every run. */
static int32_t page_of(int64_t first_row, int s, int64_t j) {
    const int64_t slot = s * (MAX_CONTEXT / PAGE) + j / PAGE;
    return (int32_t)((slot * 17 + first_row * 5) % 53);
}

enum { N_POOL_PAGES = 53 };

typedef struct kv_rows {
    float *k, *v;
    int32_t *page, *position;
    int64_t n;
} kv_rows;

/* Every position of every sequence, as kv_write takes them. */
static kv_rows all_rows(const attention_case *c, int64_t first_row) {
    const int64_t row = (int64_t)c->layout.n_kv_heads * c->layout.head_dim;
    kv_rows rows = {0};
    for (int s = 0; s < c->n_seqs; s++) { rows.n += context_of(c, s); }
    rows.k = qr_alloc((size_t)(rows.n * row) * sizeof(float));
    rows.v = qr_alloc((size_t)(rows.n * row) * sizeof(float));
    rows.page = qr_alloc((size_t)rows.n * sizeof(int32_t));
    rows.position = qr_alloc((size_t)rows.n * sizeof(int32_t));
    for (int64_t s = 0, i = 0; s < c->n_seqs; s++) {
        const int64_t n = context_of(c, (int)s);
        memcpy(rows.k + i * row, c->k[s], (size_t)(n * row) * sizeof(float));
        memcpy(rows.v + i * row, c->v[s], (size_t)(n * row) * sizeof(float));
        for (int64_t j = 0; j < n; j++, i++) {
            rows.page[i] = page_of(first_row, (int)s, j);
            rows.position[i] = (int32_t)j;
        }
    }
    return rows;
}

/* Pages filled with NaN bytes and then written, so that reading a position behind the last shows. */
static unsigned char *fill_pages(op_run *run, const attention_case *c, int64_t first_row, size_t page_stride) {
    const int64_t row = (int64_t)c->layout.n_kv_heads * c->layout.head_dim;
    kv_rows rows = all_rows(c, first_row);
    const size_t pages_bytes = N_POOL_PAGES * page_stride;
    unsigned char *pages = op_output(run, NULL, 1, pages_bytes, pages_bytes);
    /* Its inputs live in a run of their own: their host copies go before the run ends. */
    op_run writer = {.backend = run->backend, .label = run->label};
    const qr_kv_write_args args = {
        .layout = c->layout,
        .k = op_input(&writer, rows.k, (size_t)(rows.n * row) * sizeof(float)),
        .v = op_input(&writer, rows.v, (size_t)(rows.n * row) * sizeof(float)),
        .n_tokens = rows.n,
        .k_stride = row,
        .v_stride = row,
        .token_page = op_input(&writer, rows.page, (size_t)rows.n * sizeof(int32_t)),
        .position = op_input(&writer, rows.position, (size_t)rows.n * sizeof(int32_t)),
        .pages = pages,
        .page_stride_bytes = page_stride,
    };
    op_call(&writer, QR_OP_kv_write, &args);
    op_run_end(&writer);
    qr_free(rows.k);
    qr_free(rows.v);
    qr_free(rows.page);
    qr_free(rows.position);
    return pages;
}

/* The sequences of rows [first, first + n): whole ones, or the part of a prompt that lies inside. */
typedef struct step {
    int32_t n_seqs;
    int32_t q_start[MAX_SEQS + 1], first_position[MAX_SEQS];
    int32_t table[MAX_SEQS][MAX_PAGES];
} step;

static step cut_step(const attention_case *c, int64_t first, int64_t n) {
    step cut = {0};
    for (int s = 0; s < c->n_seqs; s++) {
        const int64_t begin = qr_max(c->q_start[s], first), end = qr_min(c->q_start[s + 1], first + n);
        if (begin >= end) { continue; }
        const int64_t position = c->n_past[s] + begin - c->q_start[s];
        const int64_t last = position + end - begin - 1;
        const int64_t seen = c->window > 0 ? qr_max(0, position - c->window + 1) : 0;
        cut.first_position[cut.n_seqs] = (int32_t)position;
        for (int64_t b = 0; b < MAX_PAGES; b++) {
            /* -1 wherever nothing may be read: outside the window and behind the last position. */
            const bool read = b >= seen / PAGE && b <= last / PAGE;
            cut.table[cut.n_seqs][b] = read ? page_of(first, s, b * PAGE) : -1;
        }
        cut.q_start[++cut.n_seqs] = (int32_t)(end - first);
    }
    return cut;
}

static void exec_attention(op_run *run, const void *data, int64_t first, int64_t n_tokens, qr_dtype dtype, void *out) {
    const attention_case *c = data;
    const int64_t row = (int64_t)c->n_heads * c->layout.head_dim;
    const size_t page_stride = qr_kv_layer_bytes(&c->layout) + 64, row_bytes = (size_t)row * qr_dtype_bytes(dtype);
    const step cut = cut_step(c, first, n_tokens);
    const qr_attention_args args = {
        .layout = c->layout,
        .q = op_input(run, c->q + first * (row + GAP), (size_t)((n_tokens - 1) * (row + GAP) + row) * sizeof(float)),
        .dst = op_output(run, NULL, n_tokens, row_bytes, row_bytes),
        .dst_dtype = dtype,
        .n_tokens = n_tokens,
        .q_stride = row + GAP,
        .n_heads = c->n_heads,
        .n_seqs = cut.n_seqs,
        .q_start = op_input(run, cut.q_start, (size_t)(cut.n_seqs + 1) * sizeof(int32_t)),
        .first_position = op_input(run, cut.first_position, (size_t)cut.n_seqs * sizeof(int32_t)),
        .block_table = op_input(run, cut.table, (size_t)cut.n_seqs * sizeof cut.table[0]),
        .table_stride = MAX_PAGES,
        .pages = fill_pages(run, c, first, page_stride),
        .page_stride_bytes = page_stride,
        .scale = c->scale,
        .softcap = c->softcap,
        .window = c->window,
    };
    op_call(run, QR_OP_attention, &args);
    op_read(run, args.dst, out);
    op_run_end(run); /* before the inputs on this stack go */
}

/* Score j errs by (d + 4) u |scale| Σ|q||k|, under a soft-cap also by 4 u · cap; the exponent of its difference from
 * the largest by u of both. With E the largest such error, a softmax weight errs by 2 E of itself, by a few u for exp,
 * and by at most 3 n u through n sums and as many changes of the running maximum; numerator and denominator both. */
static void attention_bound_of(const attention_case *c, int s, int64_t t, int64_t h, double *bound) {
    const int64_t d = c->layout.head_dim, kv_row = c->layout.n_kv_heads * d,
                  position = c->n_past[s] + t - c->q_start[s];
    const int64_t begin = c->window > 0 ? qr_max(0, position - c->window + 1) : 0;
    const int64_t kv_at = h / (c->n_heads / c->layout.n_kv_heads) * d;
    const float *q = c->q + t * (c->n_heads * d + GAP) + h * d;
    double scores[MAX_CONTEXT], largest = -INFINITY, magnitude = 0.0, error = 0.0, total = 0.0;
    for (int64_t j = begin; j <= position; j++) {
        double sum = 0.0, sum_abs = 0.0;
        for (int64_t i = 0; i < d; i++) {
            const double product = (double)q[i] * (double)c->k[s][j * kv_row + kv_at + i] * (double)c->scale;
            sum += product;
            sum_abs += fabs(product);
        }
        error = fmax(error, (double)(d + 4) * OP_U * sum_abs);
        scores[j] = c->softcap > 0.0F ? (double)c->softcap * tanh(sum / (double)c->softcap) : sum;
        largest = fmax(largest, scores[j]);
        magnitude = fmax(magnitude, fabs(scores[j]));
    }
    error += 4.0 * OP_U * (double)c->softcap + 2.0 * OP_U * magnitude;
    const double relative = 4.0 * error + (3.0 * (double)(position - begin + 1) + 32.0) * OP_U;
    for (int64_t j = begin; j <= position; j++) { total += exp(scores[j] - largest); }
    for (int64_t j = begin; j <= position; j++) {
        const double weight = exp(scores[j] - largest) / total;
        for (int64_t i = 0; i < d; i++) {
            bound[i] += relative * weight * fabs((double)c->v[s][j * kv_row + kv_at + i]);
        }
    }
}

static void attention_bound(const attention_case *c, double *bound) {
    const int64_t d = c->layout.head_dim;
    for (int s = 0; s < c->n_seqs; s++) {
        for (int64_t t = c->q_start[s]; t < c->q_start[s + 1]; t++) {
            for (int64_t h = 0; h < c->n_heads; h++) {
                attention_bound_of(c, s, t, h, bound + (t * c->n_heads + h) * d);
            }
        }
    }
}

/* A fresh prompt, chunks behind a past that ends inside and at a page, and single tokens. */
static const int32_t seq_new[MAX_SEQS] = {19, 1, 33, 1, 11};
static const int32_t seq_past[MAX_SEQS] = {0, 63, 32, 0, 149};

/* Values that storing leaves as they are (INT8: but for a rounding), so that the bound is about what is read. */
static void round_as_stored(const qr_kv_layout *layout, float *values, int64_t n) {
    for (int64_t head = 0; head < n; head += layout->head_dim) {
        float *x = values + head, largest = 0.0F;
        for (int64_t i = 0; i < layout->head_dim; i++) { largest = fmaxf(largest, fabsf(x[i])); }
        for (int64_t i = 0; i < layout->head_dim; i++) {
            switch (layout->format) {
            case QR_KV_F32: break;
            case QR_KV_BF16: x[i] = qr_bf16_to_f32(qr_f32_to_bf16(x[i])); break;
            case QR_KV_F16: x[i] = qr_f16_to_f32(qr_f32_to_f16(x[i])); break;
            case QR_KV_INT8: x[i] = rintf(x[i] * (127.0F / largest)) * (largest / 127.0F); break;
            }
        }
    }
}

static void check_attention(qr_kv_layout layout, int32_t group, int32_t window, float softcap, int32_t n_seqs) {
    attention_case data = {.layout = layout, .n_heads = layout.n_kv_heads * group, .n_seqs = n_seqs, .window = window,
                           .softcap = softcap, .scale = (float)(1.0 / sqrt((double)layout.head_dim))};
    const int64_t kv_row = (int64_t)layout.n_kv_heads * layout.head_dim, row = (int64_t)data.n_heads * layout.head_dim;
    float *kv[2][MAX_SEQS] = {{NULL}};
    for (int s = 0; s < n_seqs; s++) {
        data.n_past[s] = seq_past[s];
        data.q_start[s + 1] = data.q_start[s] + seq_new[s];
        for (int i = 0; i < 2; i++) {
            const int64_t n = context_of(&data, s) * kv_row;
            kv[i][s] = op_normals(n, (uint64_t)(10 * s + i), 1.0 + i);
            round_as_stored(&layout, kv[i][s], n);
        }
        data.k[s] = kv[0][s];
        data.v[s] = kv[1][s];
    }
    const int64_t n_tokens = data.q_start[n_seqs];
    float *q = op_normals(n_tokens * (row + GAP), 99, 2.0);
    double *bound = op_doubles(n_tokens * row);
    data.q = q;
    op_case c = {.n_rows = n_tokens, .row = row, .exec = exec_attention, .data = &data, .bound = bound};
    snprintf(c.label, sizeof c.label, "attention kv %s, %d x %d heads of %d, window %d, softcap %g, %d sequences",
             kv_names[layout.format], layout.n_kv_heads, group, layout.head_dim, window, (double)softcap, n_seqs);
    attention_bound(&data, bound);
    op_check_case(&c, QR_DTYPE_F32);
    op_check_case(&c, QR_DTYPE_BF16);
    op_check_case(&c, QR_DTYPE_F16);
    for (int s = 0; s < n_seqs; s++) {
        qr_free(kv[0][s]);
        qr_free(kv[1][s]);
    }
    qr_free(q);
    qr_free(bound);
}

/* Head sizes x formats, with groupings, windows and soft-caps in turn; then groupings x windows. */
void test_op_attention(void) {
    static const int32_t groups[] = {1, 3, 4, 5, 7};
    static const int32_t windows[] = {0, 1, 16, 20, 33};
    unsigned i = 0;
    for (int format = QR_KV_F32; format <= QR_KV_INT8; format++) {
        for (size_t d = 0; d < QR_COUNT_OF(head_dims); d++) {
            for (int w = 0; w < 2; w++, i++) {
                const qr_kv_layout layout = {(qr_kv_format)format, i % 3 == 0 ? 2 : 1, head_dims[d]};
                const int32_t window = w == 0 ? 0 : windows[i / 2 % 5];
                check_attention(layout, groups[i % 5], window, i % 4 < 2 ? 0.0F : 20.0F, i % 3 == 1 ? 1 : MAX_SEQS);
            }
        }
    }
    for (size_t g = 0; g < QR_COUNT_OF(groups); g++) {
        for (size_t w = 0; w < QR_COUNT_OF(windows); w++) {
            check_attention((qr_kv_layout){QR_KV_BF16, 2, 16}, groups[g], windows[w], w % 2 == 0 ? 0.0F : 50.0F,
                            MAX_SEQS);
        }
    }
}
