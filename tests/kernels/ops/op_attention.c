/* kv_write and attention. */
#include "op_harness.h"

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"

enum { PAGE = QR_KV_PAGE_TOKENS };

static const char *const kv_names[] = {"f32", "bf16", "f16", "int8"};

static qr_kv_layout heads(int format, int32_t n_kv_heads, int32_t head_dim) {
    return (qr_kv_layout){.format = (qr_kv_format)format, .n_kv_heads = n_kv_heads, .head_dim = head_dim};
}

/* Of which the keys are the values. */
static qr_kv_layout latents(int format, int32_t n_kv_heads, int32_t head_dim) {
    qr_kv_layout layout = heads(format, n_kv_heads, head_dim);
    layout.keys_are_values = true;
    return layout;
}

/* --- kv_write: the stored bytes are defined exactly --- */

typedef struct write_case {
    qr_kv_layout layout;
    int64_t n_tokens, n_pages;
    int64_t gap;        /* between rows: 3, so that no two begin alike, or 4 */
    const float *k, *v; /* [n_tokens, n_kv_heads · head_dim + gap] and [… + 2 · gap] */
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
        .k = op_input(&run, c->k + first * (row + c->gap), (size_t)((n - 1) * (row + c->gap) + row) * sizeof(float)),
        .v = op_input(&run, c->v + first * (row + 2 * c->gap),
                      (size_t)((n - 1) * (row + 2 * c->gap) + row) * sizeof(float)),
        .n_tokens = n,
        .k_stride = row + c->gap,
        .v_stride = row + 2 * c->gap,
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

static void check_kv_write(qr_kv_layout layout, int64_t n_tokens, int64_t gap) {
    const int64_t row = (int64_t)layout.n_kv_heads * layout.head_dim, n_pages = n_tokens / PAGE + 3;
    int32_t token_page[128], position[128];
    float *k = op_normals(n_tokens * (row + gap), 1, 1.0), *v = op_normals(n_tokens * (row + 2 * gap), 2, 3.0);
    for (int64_t i = 0; i < n_tokens; i++) {
        position[i] = (int32_t)(i + 5); /* begins inside a page */
        token_page[i] = (int32_t)(n_pages - 1 - position[i] / PAGE);
        if (i % 11 == 4) { token_page[i] = -1; }
    }
    for (int64_t j = 0; j < layout.head_dim; j++) {
        k[j] = 0.0F;                   /* a head of zeros */
        v[j] = j == 0 ? 1e-38F : 0.0F; /* too small for 127 / max|x| */
    }
    const write_case c = {.layout = layout,
                          .n_tokens = n_tokens,
                          .n_pages = n_pages,
                          .gap = gap,
                          .k = k,
                          .v = v,
                          .token_page = token_page,
                          .position = position,
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
            check_kv_write(heads(format, 3, head_dims[i]), 65, 3);
            check_kv_write(heads(format, 1, head_dims[i]), 1, 3);
            check_kv_write(latents(format, 2, head_dims[i]), 21, 4);
            check_kv_write(heads(format, 2, head_dims[i]), 21, 4);
        }
    }
}

/* --- attention --- */

enum { MAX_SEQS = 5 };

/* Sequences of a prompt chunk each, or one token: n_new rows of q after n_past positions already in their pages. */
typedef struct attention_case {
    qr_kv_layout layout;
    int32_t n_heads, n_seqs, window;
    float softcap, scale;
    int64_t q_start[MAX_SEQS + 1];
    int32_t n_past[MAX_SEQS];
    int64_t seq_pages;                      /* room for the longest context */
    int64_t gap;                            /* between rows of q: 3, so that no two begin alike, or 4 */
    const float *q;                         /* [n_tokens, n_heads · head_dim + gap] */
    const float *sinks;                     /* [n_heads] or NULL */
    const float *k[MAX_SEQS], *v[MAX_SEQS]; /* [context, n_kv_heads · head_dim], values as they are stored */
} attention_case;

static int64_t context_of(const attention_case *c, int s) { return c->n_past[s] + c->q_start[s + 1] - c->q_start[s]; }

/* Pages for all sequences at once, and a few nobody asks for: a number that 17 and 5 do not divide. */
static int64_t pool_pages(const attention_case *c) {
    int64_t n = c->n_seqs * c->seq_pages + 3;
    while (n % 17 == 0 || n % 5 == 0) { n++; }
    return n;
}

/* Where position j of sequence s lies: scattered, and elsewhere in every run. */
static int32_t page_of(const attention_case *c, int64_t first_row, int s, int64_t j) {
    return (int32_t)(((s * c->seq_pages + j / PAGE) * 17 + first_row * 5) % pool_pages(c));
}

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
            rows.page[i] = page_of(c, first_row, (int)s, j);
            rows.position[i] = (int32_t)j;
        }
    }
    return rows;
}

/* Pages filled with NaN bytes and then written, so that reading a position after the last shows. */
static unsigned char *fill_pages(op_run *run, const attention_case *c, int64_t first_row, size_t page_stride) {
    const int64_t row = (int64_t)c->layout.n_kv_heads * c->layout.head_dim;
    kv_rows rows = all_rows(c, first_row);
    const size_t pages_bytes = (size_t)pool_pages(c) * page_stride;
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
    int64_t table_stride;
    int32_t *table; /* [n_seqs, table_stride] */
} step;

/* -1 wherever nothing may be read: outside the window and after the last position. */
static void fill_table(const attention_case *c, int64_t first_row, int s, int64_t position, int64_t last,
                       int64_t n_pages, int32_t *table) {
    const int64_t seen = c->window > 0 ? qr_max(0, position - c->window + 1) : 0;
    for (int64_t b = 0; b < n_pages; b++) {
        const bool read = b >= seen / PAGE && b <= last / PAGE;
        table[b] = read ? page_of(c, first_row, s, b * PAGE) : -1;
    }
}

/* The table is as long as it must be, or much longer: that may not change a bit. */
static step cut_step(const attention_case *c, int64_t first, int64_t n) {
    step cut = {.table_stride = c->seq_pages + (first % 2 == 0 ? 0 : 40)};
    cut.table = qr_alloc((size_t)(c->n_seqs * cut.table_stride) * sizeof *cut.table);
    for (int s = 0; s < c->n_seqs; s++) {
        const int64_t begin = qr_max(c->q_start[s], first), end = qr_min(c->q_start[s + 1], first + n);
        if (begin >= end) { continue; }
        const int64_t position = c->n_past[s] + begin - c->q_start[s];
        cut.first_position[cut.n_seqs] = (int32_t)position;
        fill_table(c, first, s, position, position + end - begin - 1, cut.table_stride,
                   cut.table + cut.n_seqs * cut.table_stride);
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
        .q = op_input(run, c->q + first * (row + c->gap),
                      (size_t)((n_tokens - 1) * (row + c->gap) + row) * sizeof(float)),
        .dst = op_output(run, NULL, n_tokens, row_bytes, row_bytes),
        .dst_dtype = dtype,
        .n_tokens = n_tokens,
        .q_stride = row + c->gap,
        .n_heads = c->n_heads,
        .n_seqs = cut.n_seqs,
        .q_start = op_input(run, cut.q_start, (size_t)(cut.n_seqs + 1) * sizeof(int32_t)),
        .first_position = op_input(run, cut.first_position, (size_t)cut.n_seqs * sizeof(int32_t)),
        .block_table = op_input(run, cut.table, (size_t)(cut.n_seqs * cut.table_stride) * sizeof *cut.table),
        .table_stride = cut.table_stride,
        .pages = fill_pages(run, c, first, page_stride),
        .page_stride_bytes = page_stride,
        .scale = c->scale,
        .softcap = c->softcap,
        .window = c->window,
        .sinks = op_input(run, c->sinks, c->sinks != NULL ? (size_t)c->n_heads * sizeof(float) : 0),
    };
    op_call(run, QR_OP_attention, &args);
    op_read(run, args.dst, out);
    op_run_end(run); /* before the inputs on this stack go */
    qr_free(cut.table);
}

/* How much a product of q and k, and a sum of weight times value, may err, relative to the sum of magnitudes; and a
 * number taken as two of 16 bits. */
typedef struct precision {
    double dot;    /* of head_dim products */
    double sums;   /* per position */
    double cut;    /* q and the weights, relative */
    double floor;  /* of q, absolute: what F16 does not hold */
    double capped; /* a score under a soft-cap, relative to the cap */
} precision;

/* F32 in any order: a rounding a product and a sum.
 *
 * With dst and pages of 16 bits, products of matrices may be tensor cores', which are given two parts of each number
 * (ops.h). Each of the n / 8 products over 16 of n elements, of either part, aligns 17 numbers to the largest and cuts
 * off what is below its 2^-23, so errs by 17 · 2^-23 of the sum of magnitudes: together 4.25 n u. */
static precision precision_of(const attention_case *c, qr_dtype dtype) {
    const double d = (double)c->layout.head_dim;
    if (dtype == QR_DTYPE_F32 || c->layout.format == QR_KV_F32) {
        return (precision){.dot = (d + 4.0) * OP_U, .sums = 3.0 * OP_U, .capped = 4.0 * OP_U};
    }
    const bool f16 = c->layout.format == QR_KV_F16;
    return (precision){.dot = (4.25 * d + 4.0) * OP_U,
                       .sums = (3.0 + 4.25) * OP_U,
                       .cut = f16 ? 0x1p-23 : 0x1p-17,
                       .floor = f16 ? 0x1p-25 : 0.0,
                       .capped = 8.0 * OP_U};
}

/* Score j errs by p.dot + p.cut of |scale| Σ|q||k|, and by p.floor |scale| Σ|k|, under a soft-cap also by p.capped of
 * the cap; the exponent of its difference from the largest by u of both. With E the largest such error, a softmax
 * weight errs by 2 E of itself, by a few u for exp, by p.cut, and by at most n · p.sums through n sums and as many
 * changes of the running maximum; numerator and denominator both. */
static void attention_bound_of(const attention_case *c, precision p, int s, int64_t t, int64_t h, double *bound) {
    const int64_t d = c->layout.head_dim, kv_row = c->layout.n_kv_heads * d,
                  position = c->n_past[s] + t - c->q_start[s];
    const int64_t begin = c->window > 0 ? qr_max(0, position - c->window + 1) : 0;
    const int64_t kv_at = h / (c->n_heads / c->layout.n_kv_heads) * d;
    const float *q = c->q + t * (c->n_heads * d + c->gap) + h * d;
    double *scores = op_doubles(position + 1);
    const double sink = c->sinks != NULL ? (double)c->sinks[h] : -INFINITY;
    double largest = sink, magnitude = c->sinks != NULL ? fabs(sink) : 0.0, error = 0.0;
    for (int64_t j = begin; j <= position; j++) {
        double sum = 0.0, sum_abs = 0.0, sum_keys = 0.0;
        for (int64_t i = 0; i < d; i++) {
            const double key = (double)c->k[s][j * kv_row + kv_at + i] * (double)c->scale, product = (double)q[i] * key;
            sum += product;
            sum_abs += fabs(product);
            sum_keys += fabs(key);
        }
        error = fmax(error, (p.dot + p.cut) * sum_abs + p.floor * sum_keys);
        scores[j] = c->softcap > 0.0F ? (double)c->softcap * tanh(sum / (double)c->softcap) : sum;
        largest = fmax(largest, scores[j]);
        magnitude = fmax(magnitude, fabs(scores[j]));
    }
    error += p.capped * (double)c->softcap + 2.0 * OP_U * magnitude;
    const double relative = 4.0 * error + p.cut + p.sums * (double)(position - begin + 1) + 32.0 * OP_U;
    double total = exp(sink - largest);
    for (int64_t j = begin; j <= position; j++) { total += exp(scores[j] - largest); }
    for (int64_t j = begin; j <= position; j++) {
        const double weight = exp(scores[j] - largest) / total;
        for (int64_t i = 0; i < d; i++) {
            bound[i] += relative * weight * fabs((double)c->v[s][j * kv_row + kv_at + i]);
        }
    }
    qr_free(scores);
}

static void attention_bound(const attention_case *c, qr_dtype dtype, double *bound) {
    const int64_t d = c->layout.head_dim;
    const precision p = precision_of(c, dtype);
    memset(bound, 0, (size_t)(c->q_start[c->n_seqs] * c->n_heads * d) * sizeof *bound);
    for (int s = 0; s < c->n_seqs; s++) {
        for (int64_t t = c->q_start[s]; t < c->q_start[s + 1]; t++) {
            for (int64_t h = 0; h < c->n_heads; h++) {
                attention_bound_of(c, p, s, t, h, bound + (t * c->n_heads + h) * d);
            }
        }
    }
}

/* Sequences by their new tokens and those before. */
typedef struct sequences {
    int n;
    int32_t n_new[MAX_SEQS], n_past[MAX_SEQS];
} sequences;

/* A fresh prompt, chunks after a past that ends inside and at a page, and single tokens. */
static const sequences many = {5, {19, 1, 33, 1, 11}, {0, 63, 32, 0, 149}};
static const sequences one = {1, {19}, {0}};

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

typedef struct attention_data {
    attention_case c;
    float *kv[2][MAX_SEQS], *q;
} attention_data;

static attention_data make_data(qr_kv_layout layout, int32_t group, int32_t window, float softcap,
                                const sequences *seqs) {
    attention_data data = {.c = {.layout = layout,
                                 .n_heads = layout.n_kv_heads * group,
                                 .n_seqs = seqs->n,
                                 .window = window,
                                 .softcap = softcap,
                                 .gap = group % 2 == 0 ? 4 : 3,
                                 .scale = (float)(1.0 / sqrt((double)layout.head_dim))}};
    attention_case *c = &data.c;
    const int64_t kv_row = (int64_t)layout.n_kv_heads * layout.head_dim, row = (int64_t)c->n_heads * layout.head_dim;
    for (int s = 0; s < seqs->n; s++) {
        c->n_past[s] = seqs->n_past[s];
        c->q_start[s + 1] = c->q_start[s] + seqs->n_new[s];
        c->seq_pages = qr_max(c->seq_pages, qr_ceil_div(context_of(c, s), PAGE));
        for (int i = 0; i < 2; i++) {
            const int64_t n = context_of(c, s) * kv_row;
            data.kv[i][s] = op_normals(n, (uint64_t)(10 * s + i), 1.0 + i);
            round_as_stored(&layout, data.kv[i][s], n);
        }
        c->k[s] = data.kv[0][s];
        c->v[s] = data.kv[layout.keys_are_values ? 0 : 1][s];
    }
    data.q = op_normals(c->q_start[seqs->n] * (row + c->gap), 99, 2.0);
    c->q = data.q;
    return data;
}

static void free_data(attention_data *data) {
    for (int s = 0; s < data->c.n_seqs; s++) {
        qr_free(data->kv[0][s]);
        qr_free(data->kv[1][s]);
    }
    qr_free(data->q);
}

static void check_attention(qr_kv_layout layout, int32_t group, int32_t window, float softcap, const sequences *seqs,
                            unsigned dtypes) {
    attention_data data = make_data(layout, group, window, softcap, seqs);
    const int64_t n_tokens = data.c.q_start[seqs->n], row = (int64_t)data.c.n_heads * layout.head_dim;
    double *bound = op_doubles(n_tokens * row);
    op_case c = {.n_rows = n_tokens, .row = row, .exec = exec_attention, .data = &data.c, .bound = bound};
    snprintf(c.label, sizeof c.label, "attention kv %s, %d x %d heads of %d, window %d, softcap %g, %d sequences",
             kv_names[layout.format], layout.n_kv_heads, group, layout.head_dim, window, (double)softcap, seqs->n);
    for (qr_dtype dtype = 0; dtype < 32; dtype++) {
        if ((dtypes >> dtype & 1U) == 0) { continue; }
        attention_bound(&data.c, dtype, bound);
        op_check_case(&c, dtype);
    }
    qr_free(bound);
    free_data(&data);
}

enum {
    IN_F32 = 1 << QR_DTYPE_F32,
    IN_BF16 = 1 << QR_DTYPE_BF16,
    IN_F16 = 1 << QR_DTYPE_F16,
    IN_ALL = IN_F32 | IN_BF16 | IN_F16
};

/* Sinks that take nearly nothing, some, and nearly all of a head's weights. */
static void check_sinks(qr_kv_layout layout, int32_t group, int32_t window, float softcap, const sequences *seqs,
                        unsigned dtypes) {
    attention_data data = make_data(layout, group, window, softcap, seqs);
    const int64_t n_tokens = data.c.q_start[seqs->n], row = (int64_t)data.c.n_heads * layout.head_dim;
    double *bound = op_doubles(n_tokens * row);
    float *sinks = op_normals(data.c.n_heads, 98, 4.0);
    data.c.sinks = sinks;
    op_case c = {.n_rows = n_tokens, .row = row, .exec = exec_attention, .data = &data.c, .bound = bound};
    snprintf(c.label, sizeof c.label, "attention with sinks, kv %s, %d x %d heads of %d, window %d, softcap %g",
             kv_names[layout.format], layout.n_kv_heads, group, layout.head_dim, window, (double)softcap);
    for (qr_dtype dtype = 0; dtype < 32; dtype++) {
        if ((dtypes >> dtype & 1U) == 0) { continue; }
        attention_bound(&data.c, dtype, bound);
        op_check_case(&c, dtype);
    }
    qr_free(sinks);
    qr_free(bound);
    free_data(&data);
}

/* Runs rows [first, first + n) of a case. */
static void run_rows(qr_backend *backend, const attention_case *c, int64_t first, int64_t n, void *out) {
    op_run run = {.backend = backend, .label = "attention, values that are not finite"};
    exec_attention(&run, c, first, n, QR_DTYPE_BF16, out);
}

/* A value that is not finite reaches the tokens that see it, and no other: not those before it in the same chunk. The
 * tokens that see it have the same bits alone. */
static void check_not_finite(qr_kv_layout layout, int32_t window) {
    enum { N = 40, AT = 23, PAST = 30 };
    const sequences seqs = {1, {N}, {PAST}};
    attention_data data = make_data(layout, 4, window, 0.0F, &seqs);
    const int64_t row = (int64_t)data.c.n_heads * layout.head_dim;
    const size_t row_bytes = (size_t)row * sizeof(uint16_t);
    unsigned char *before = qr_alloc(N * row_bytes), *after = qr_alloc(N * row_bytes), *alone = qr_alloc(row_bytes);
    unsigned char *both = qr_alloc(2 * row_bytes);
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        float *bad = data.kv[1][0] + (PAST + AT) * layout.n_kv_heads * layout.head_dim + 5;
        const float good = *bad;
        run_rows(device->backends[0], &data.c, 0, N, before);
        *bad = INFINITY;
        run_rows(device->backends[0], &data.c, 0, N, after);
        CHECK_MSG(memcmp(before, after, AT * row_bytes) == 0,
                  "%s: kv %s, heads of %d: a value reaches tokens before it", device->label, kv_names[layout.format],
                  layout.head_dim);
        run_rows(device->backends[0], &data.c, AT - 1, 2, both); /* the last before it and the first after */
        CHECK_MSG(memcmp(both, before + (AT - 1) * row_bytes, row_bytes) == 0 &&
                      memcmp(both + row_bytes, after + AT * row_bytes, row_bytes) == 0,
                  "%s: kv %s, heads of %d, window %d: two tokens have other bits", device->label,
                  kv_names[layout.format], layout.head_dim, window);
        for (int64_t t = AT; t < N; t++) {
            const bool seen = window == 0 || t - AT < window;
            const double value = op_from_dtype(after, QR_DTYPE_BF16, t * row + 5);
            CHECK_MSG(seen != isfinite(value), "%s: kv %s, heads of %d, window %d: token %d is %g", device->label,
                      kv_names[layout.format], layout.head_dim, window, (int)t, value);
            run_rows(device->backends[0], &data.c, t, 1, alone);
            CHECK_MSG(memcmp(after + (size_t)t * row_bytes, alone, row_bytes) == 0,
                      "%s: kv %s, heads of %d, window %d: token %d has other bits alone", device->label,
                      kv_names[layout.format], layout.head_dim, window, (int)t);
        }
        *bad = good;
    }
    qr_free(before);
    qr_free(after);
    qr_free(alone);
    qr_free(both);
    free_data(&data);
}

/* What a plan asks for holds for every step within its limits. */
static void check_workspace_grows(qr_kv_layout layout, int32_t window) {
    qr_attention_args args = {.layout = layout,
                              .dst_dtype = QR_DTYPE_BF16,
                              .n_heads = layout.n_kv_heads * 4,
                              .scale = 1.0F,
                              .window = window,
                              .page_stride_bytes = qr_kv_layer_bytes(&layout),
                              .q_stride = (int64_t)layout.n_kv_heads * 4 * layout.head_dim};
    for (int d = 0; d < op_everything.n_devices; d++) {
        const qr_backend *backend = op_everything.devices[d].backends[1];
        args.n_tokens = 300, args.n_seqs = 40, args.table_stride = 5000;
        const size_t most = qr_attention_workspace(backend, &args);
        for (int64_t i = 0; i < 64; i++) {
            args.n_seqs = (int32_t)(1 + op_below(7, 3 * i, 40));
            args.n_tokens = args.n_seqs + op_below(7, 3 * i + 1, 300 - args.n_seqs + 1);
            args.table_stride = 1 + op_below(7, 3 * i + 2, 5000);
            CHECK(qr_attention_workspace(backend, &args) <= most);
        }
    }
}

/* Contexts of several of the pieces that a backend may cut them into: chunks and single tokens side by side, a chunk
 * that goes over the end of a piece, windows that begin inside one; and one of many pieces. */
static void check_long_contexts(void) {
    static const sequences mixed = {3, {1, 21, 2}, {600, 500, 255}}, longest = {1, {2}, {8255}};
    check_attention(heads(QR_KV_BF16, 1, 16), 4, 0, 0.0F, &mixed, IN_BF16);
    check_attention(heads(QR_KV_INT8, 1, 48), 2, 300, 0.0F, &mixed, IN_BF16);
    check_attention(heads(QR_KV_F16, 1, 80), 1, 270, 30.0F, &mixed, IN_F16);
    check_attention(heads(QR_KV_BF16, 1, 16), 1, 0, 0.0F, &longest, IN_BF16);
}

/* Latents of keys and values: one head, wide, of which the keys are the values. */
static void check_latents(void) {
    for (int format = QR_KV_F32; format <= QR_KV_INT8; format++) {
        const qr_kv_layout wide = latents(format, 1, 288);
        const qr_kv_layout wider = latents(format, 1, 576);
        check_attention(wide, format % 2 == 0 ? 5 : 20, 0, 0.0F, &many, format % 2 == 0 ? IN_F32 | IN_BF16 : IN_F16);
        check_attention(wider, 16, 0, 0.0F, &one, IN_ALL);
    }
}

/* Head sizes x formats, with groupings, windows and soft-caps in turn; then groupings x windows. */
void test_op_attention(void) {
    static const int32_t groups[] = {1, 3, 4, 5, 7};
    static const int32_t windows[] = {0, 1, 16, 20, 33};
    unsigned i = 0;
    for (int format = QR_KV_F32; format <= QR_KV_INT8; format++) {
        for (size_t d = 0; d < QR_COUNT_OF(head_dims); d++) {
            for (int w = 0; w < 2; w++, i++) {
                if (check_thins() && (i / 2 + (unsigned)format) % 2 != 0) { continue; }
                const qr_kv_layout layout = heads(format, i % 3 == 0 ? 2 : 1, head_dims[d]);
                const int32_t window = w == 0 ? 0 : windows[i / 2 % 5];
                check_attention(layout, groups[i % 5], window, i % 4 < 2 ? 0.0F : 20.0F, i % 3 == 1 ? &one : &many,
                                IN_ALL);
            }
        }
    }
    for (size_t g = 0; g < QR_COUNT_OF(groups); g++) {
        for (size_t w = 0; w < QR_COUNT_OF(windows); w++) {
            if (check_thins() && (g + w) % 2 != 0) { continue; }
            check_attention(heads(QR_KV_BF16, 2, 16), groups[g], windows[w], w % 2 == 0 ? 0.0F : 50.0F, &many, IN_ALL);
        }
    }
    check_long_contexts();
    check_latents();
    static const sequences mixed = {3, {1, 21, 2}, {600, 500, 255}};
    check_sinks(heads(QR_KV_F32, 1, 24), 3, 0, 0.0F, &many, IN_ALL);
    check_sinks(heads(QR_KV_BF16, 2, 64), 4, 7, 0.0F, &many, IN_ALL);
    check_sinks(heads(QR_KV_INT8, 1, 16), 5, 20, 20.0F, &one, IN_BF16);
    check_sinks(heads(QR_KV_F16, 1, 17), 2, 270, 0.0F, &mixed, IN_F16);
    check_sinks(heads(QR_KV_BF16, 1, 16), 8, 0, 0.0F, &mixed, IN_BF16);
    for (int format = QR_KV_F32; format <= QR_KV_INT8; format++) {
        for (int32_t window = 0; window <= 7; window += 7) { check_not_finite(heads(format, 1, 32), window); }
    }
    check_not_finite(heads(QR_KV_F16, 1, 96), 0);
    for (int32_t window = 0; window <= 600; window += 300) { check_workspace_grows(heads(QR_KV_BF16, 2, 64), window); }
}
