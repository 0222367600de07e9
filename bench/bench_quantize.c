/* How fast one thread quantises, in bytes of source a second, beside one warm reading pass over the same bytes by the
 * same thread: the limit of anything that looks at a file in the page cache.
 *
 *     bench_quantize [--isa NAME] [--mib N]     N MiB of source, larger than the caches (default 256) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/half.h"
#include "base/sizes.h"
#include "kernels/backend.h"

enum { COLS = 2048, ROWS_PER_CALL = 64, PASSES = 7 };

/* This thread's own time, so that other processes matter little. */
static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *memory(size_t n_bytes) {
    void *block = aligned_alloc(64, (n_bytes + 63) & ~(size_t)63);
    if (block == NULL) {
        fprintf(stderr, "bench_quantize: no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return block;
}

/* Ordinary numbers around ±0.02 in every type. */
static void fill(void *src, qr_dtype dtype, int64_t n) {
    uint64_t state = 0x9E3779B97F4A7C15U;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        const float x = ((float)(state >> 40) - 0x1p23F) * 0x1p-28F;
        switch (dtype) {
            case QR_DTYPE_BF16: ((qr_bf16 *)src)[i] = qr_f32_to_bf16(x); break;
            case QR_DTYPE_F16: ((qr_f16 *)src)[i] = qr_f32_to_f16(x); break;
            default: ((float *)src)[i] = x; break;
        }
    }
}

static double read_seconds(const void *src, size_t n_bytes) {
    const uint64_t *words = src;
    static volatile uint64_t sink;
    double best = 1e30;
    for (int pass = 0; pass < PASSES; pass++) {
        uint64_t lanes[16] = {0};
        const double begin = seconds_now();
        for (size_t i = 0; i + 16 <= n_bytes / 8; i += 16) {
            for (size_t k = 0; k < 16; k++) { lanes[k] ^= words[i + k]; }
        }
        for (int k = 0; k < 16; k++) { sink ^= lanes[k]; }
        best = seconds_now() - begin < best ? seconds_now() - begin : best;
    }
    return best;
}

static double quantize_seconds(qr_backend *backend, qr_quantize_args args, int64_t n_rows) {
    const unsigned char *src = args.src;
    double best = 1e30;
    for (int pass = 0; pass < PASSES; pass++) {
        const double begin = seconds_now();
        for (int64_t row = 0; row < n_rows; row += ROWS_PER_CALL) {
            args.n_rows = qr_min(ROWS_PER_CALL, n_rows - row);
            args.src = src + (size_t)(row * args.cols) * qr_dtype_bytes(args.src_dtype);
            qr_quantize(backend, &args, QR_NO_WORKSPACE, NULL);
        }
        best = seconds_now() - begin < best ? seconds_now() - begin : best;
    }
    return best;
}

static void bench_source(qr_backend *backend, qr_dtype dtype, size_t n_bytes) {
    static const qr_weight_format formats[] = {QR_WEIGHT_NF4, QR_WEIGHT_INT8, QR_WEIGHT_F16, QR_WEIGHT_BF16,
                                               QR_WEIGHT_F32};
    const int64_t n_rows = (int64_t)(n_bytes / qr_dtype_bytes(dtype)) / COLS;
    void *src = memory(n_bytes), *codes = memory((size_t)ROWS_PER_CALL * COLS * sizeof(float));
    float *absmax = memory((size_t)ROWS_PER_CALL * COLS / 32 * sizeof *absmax);
    fill(src, dtype, n_rows * COLS);
    const double limit = read_seconds(src, n_bytes);
    printf("%-5s read once                %6.1f GB/s\n", qr_dtype_name(dtype), (double)n_bytes / limit * 1e-9);
    for (size_t f = 0; f < QR_COUNT_OF(formats); f++) {
        const qr_quantize_args args = {.format = formats[f],
                                       .block = formats[f] == QR_WEIGHT_NF4 ? QR_NF4_BLOCK : 0,
                                       .src_dtype = dtype,
                                       .src = src,
                                       .cols = COLS,
                                       .codes = codes,
                                       .absmax = absmax};
        const double seconds = quantize_seconds(backend, args, n_rows);
        printf("%-5s to %-6s               %6.1f GB/s of source  %4.2f x the time of reading\n", qr_dtype_name(dtype),
               qr_weight_format_name(formats[f]), (double)n_bytes / seconds * 1e-9, seconds / limit);
    }
    free(src), free(codes), free(absmax);
}

int main(int argc, char **argv) {
    const char *isa = NULL;
    size_t mib = 256;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0) { isa = argv[i + 1]; }
        if (strcmp(argv[i], "--mib") == 0) { mib = (size_t)strtoull(argv[i + 1], NULL, 10); }
    }
    if (mib == 0 || mib > 1 << 20 || argc % 2 == 0) {
        fprintf(stderr, "bench_quantize: options: --isa NAME --mib N\n");
        return 2;
    }
    qr_error err = {0};
    qr_backend *backend;
    if (qr_backend_cpu_create(isa, NULL, &backend, &err) != QRUN_OK) {
        fprintf(stderr, "bench_quantize: %s\n", err.message);
        return 1;
    }
    printf("instruction set %s, one thread, %zu MiB of source\n", backend->isa, mib);
    bench_source(backend, QR_DTYPE_BF16, mib << 20);
    bench_source(backend, QR_DTYPE_F16, mib << 20);
    bench_source(backend, QR_DTYPE_F32, mib << 20);
    qr_backend_destroy(backend);
    return 0;
}
