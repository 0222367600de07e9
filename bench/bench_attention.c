/* How fast attention is. Decode steps are in bytes of K and V read a second, beside one reading pass over as many bytes
 * by the same threads. Prompts are in operations a second (two a multiply-add; only positions a row sees are counted).
 *
 *     bench_attention [--isa NAME] [--threads N] [--heads N/KV] [--dim N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/backend.h"

enum { MAX_SEQS = 64 };

typedef struct options {
    const char *isa;
    int n_threads, n_heads, n_kv_heads, head_dim;
} options;

typedef struct shape {
    qr_kv_format format;
    int32_t n_seqs, context, n_new; /* every sequence: the last n_new of `context` positions are queries */
} shape;

/* One thread's own time where there is one, so that other processes matter little. */
static double seconds_now(int n_threads) {
    struct timespec now;
    clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *memory(size_t n_bytes) {
    void *block = aligned_alloc(4096, (n_bytes + 4095) & ~(size_t)4095);
    if (block == NULL) {
        fprintf(stderr, "bench_attention: no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return block;
}

/* Small numbers, ordinary in every format. */
static void fill(void *dst, size_t n_bytes, uint32_t pattern) {
    uint32_t *words = dst, state = 1;
    for (size_t i = 0; i < n_bytes / 4; i++) {
        state = state * 1664525U + 1013904223U;
        words[i] = pattern | (state >> 16 & 0x007F007FU);
    }
}

struct read_loop {
    const uint64_t *words;
    size_t words_per_part;
    uint64_t sums[256];
};

static void read_part(void *arg, int64_t index, int worker) {
    struct read_loop *loop = arg;
    const uint64_t *words = loop->words + (size_t)index * loop->words_per_part;
    uint64_t lanes[16] = {0};
    for (size_t i = 0; i + 16 <= loop->words_per_part; i += 16) {
        for (size_t k = 0; k < 16; k++) { lanes[k] ^= words[i + k]; }
    }
    for (int k = 0; k < 16; k++) { loop->sums[worker] ^= lanes[k]; }
}

static double read_seconds(qr_threads *threads, int n_threads, const void *bytes, size_t n_bytes) {
    struct read_loop loop = {.words = bytes, .words_per_part = n_bytes / 8 / 64};
    double best = 1e30;
    for (int pass = 0; pass < 5; pass++) {
        const double begin = seconds_now(n_threads);
        qr_threads_run(threads, 64, read_part, &loop);
        const double taken = seconds_now(n_threads) - begin;
        best = taken < best ? taken : best;
    }
    return best;
}

static double attention_seconds(qr_backend *backend, const qr_attention_args *args, int n_threads) {
    const size_t n_bytes = qr_attention_workspace(backend, args);
    const qr_workspace workspace = {memory(n_bytes), n_bytes};
    double best = 1e30;
    const double start = seconds_now(n_threads);
    for (int pass = 0; pass < 3 || (pass < 100 && seconds_now(n_threads) - start < 0.5); pass++) {
        const double begin = seconds_now(n_threads);
        qr_attention(backend, args, workspace, NULL);
        const double taken = seconds_now(n_threads) - begin;
        best = taken < best ? taken : best;
    }
    free(workspace.memory);
    return best;
}

/* Page p of sequence s is page p · n_seqs + s, as sequences that grow side by side get them. */
static void bench_shape(const options *o, qr_backend *backend, const shape *s) {
    static const char *const format_names[] = {"f32", "bf16", "f16", "int8"};
    const qr_kv_layout layout = {.format = s->format, .n_kv_heads = o->n_kv_heads, .head_dim = o->head_dim};
    const int64_t n_pages = qr_ceil_div(s->context, QR_KV_PAGE_TOKENS), row = (int64_t)o->n_heads * o->head_dim;
    const size_t page_bytes = qr_kv_layer_bytes(&layout), pages_bytes = page_bytes * (size_t)(n_pages * s->n_seqs);
    const int64_t n_tokens = (int64_t)s->n_seqs * s->n_new;
    void *pages;
    qr_error err = {0};
    if (backend->memory_create(backend, QR_MEMORY_DEVICE, pages_bytes, &pages, &err) != QRUN_OK) {
        fprintf(stderr, "bench_attention: %s\n", err.message);
        exit(1);
    }
    float *q = memory((size_t)(n_tokens * row) * sizeof *q);
    uint16_t *dst = memory((size_t)(n_tokens * row) * sizeof *dst);
    int32_t *table = memory((size_t)(n_pages * s->n_seqs) * sizeof *table), q_start[MAX_SEQS + 1] = {0},
            first[MAX_SEQS];
    fill(pages, pages_bytes, s->format == QR_KV_BF16 ? 0x3D003D00U : 0x3D000000U);
    fill(q, (size_t)(n_tokens * row) * sizeof *q, 0x3D000000U);
    for (int32_t seq = 0; seq < s->n_seqs; seq++) {
        q_start[seq + 1] = q_start[seq] + s->n_new;
        first[seq] = s->context - s->n_new;
        for (int64_t p = 0; p < n_pages; p++) { table[seq * n_pages + p] = (int32_t)(p * s->n_seqs + seq); }
    }
    const qr_attention_args args = {.layout = layout,
                                    .q = q,
                                    .dst = dst,
                                    .dst_dtype = QR_DTYPE_BF16,
                                    .n_tokens = n_tokens,
                                    .q_stride = row,
                                    .n_heads = o->n_heads,
                                    .n_seqs = s->n_seqs,
                                    .q_start = q_start,
                                    .first_position = first,
                                    .block_table = table,
                                    .table_stride = n_pages,
                                    .pages = pages,
                                    .page_stride_bytes = page_bytes,
                                    .scale = 0.125F};
    const double seconds = attention_seconds(backend, &args, o->n_threads);
    const double seen = (double)n_tokens * ((double)s->context - 0.5 * ((double)s->n_new - 1.0));
    printf("%-5s %2d x %5d of %6d  %10.1f us  ", format_names[s->format], s->n_seqs, s->n_new, s->context,
           seconds * 1e6);
    if (s->n_new == 1) {
        const double limit = read_seconds(backend->threads, o->n_threads, pages, pages_bytes);
        printf("%6.1f GB/s, %3.0f %% of reading\n", (double)pages_bytes / seconds * 1e-9, 100.0 * limit / seconds);
    } else {
        printf("%7.1f GFLOP/s\n", 4.0 * seen * (double)row / seconds * 1e-9);
    }
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, pages, pages_bytes);
    free(q), free(dst), free(table);
}

static bool parse(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = true;
        if (strcmp(argv[i], "--isa") == 0) {
            o->isa = value;
        } else if (strcmp(argv[i], "--threads") == 0) {
            good = (o->n_threads = atoi(value)) > 0;
        } else if (strcmp(argv[i], "--dim") == 0) {
            good = (o->head_dim = atoi(value)) > 0;
        } else {
            good = strcmp(argv[i], "--heads") == 0 && sscanf(value, "%d/%d", &o->n_heads, &o->n_kv_heads) == 2 &&
                   o->n_kv_heads > 0 && o->n_heads > 0 && o->n_heads % o->n_kv_heads == 0;
        }
        if (!good) { return false; }
    }
    return true;
}

int main(int argc, char **argv) {
    static const shape shapes[] = {
        {QR_KV_BF16, 1, 4096, 1},  {QR_KV_INT8, 1, 4096, 1},   {QR_KV_F32, 1, 4096, 1},  {QR_KV_BF16, 1, 65536, 1},
        {QR_KV_BF16, 16, 4096, 1}, {QR_KV_INT8, 16, 4096, 1},  {QR_KV_BF16, 16, 200, 1}, {QR_KV_BF16, 1, 512, 512},
        {QR_KV_INT8, 1, 512, 512}, {QR_KV_BF16, 1, 4096, 512}, {QR_KV_BF16, 8, 64, 64},
    };
    options o = {.n_threads = 1, .n_heads = 32, .n_kv_heads = 8, .head_dim = 64};
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "bench_attention: options: --isa NAME --threads N --heads N/KV --dim N\n");
        return 2;
    }
    qr_error err = {0};
    qr_threads *threads;
    qr_backend *backend;
    if (qr_threads_create(o.n_threads, &threads, &err) != QRUN_OK ||
        qr_backend_cpu_create(o.isa, threads, &backend, &err) != QRUN_OK) {
        fprintf(stderr, "bench_attention: %s\n", err.message);
        return 1;
    }
    printf("instruction set %s, %d threads, %d/%d heads of %d\n", backend->isa, o.n_threads, o.n_heads, o.n_kv_heads,
           o.head_dim);
    for (size_t i = 0; i < QR_COUNT_OF(shapes); i++) { bench_shape(&o, backend, &shapes[i]); }
    qr_backend_destroy(backend);
    qr_threads_destroy(threads);
    return 0;
}
