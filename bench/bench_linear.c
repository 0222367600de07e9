/* How fast linear is, beside what the machine can do. For each weight format and number of rows of x it prints weights
 * a second, bytes of weights read a second (against the read bandwidth) and operations a second (against the peak of
 * the instruction set). Both peaks are measured again beside every format, and the best so far counts: on a shared
 * machine they move. Weights are cycled through a set larger than the caches.
 *
 *     bench_linear [--shape OUTxIN] [--rows 1,16,512] [--formats nf4-dq,int8] [--isa NAME] [--threads 1,2] [--f32]
 *                  [--portable]
 *
 * --portable: with the kernels of `numerics=portable`; their peak is that of the fastest ones. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "base/sizes.h"
#include "kernels/backend.h"
#include "kernels/cpu/backend/peaks.h"

enum { MAX_LIST = 16, WORKING_SET_BYTES = 192 << 20, MAX_COPIES = 256 };

typedef struct options {
    int64_t out, in;
    int64_t rows[MAX_LIST], threads[MAX_LIST];
    int n_rows, n_thread_counts;
    const char *formats;
    const char *isa;
    qr_dtype dtype;
    bool portable;
} options;

typedef struct bench {
    const options *options;
    qr_threads *threads;
    qr_backend *backend;
    double read_bytes, peak_flops; /* a second */
} bench;

/* One thread's own time where there is one, so that other processes matter little. */
static double seconds_now(const bench *b) {
    struct timespec now;
    clock_gettime(qr_threads_count(b->threads) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *checked(qrun_status status, const qr_error *err, void *result) {
    if (status != QRUN_OK) {
        fprintf(stderr, "bench_linear: %s\n", err->message);
        exit(1);
    }
    return result;
}

static void *memory(qr_backend *backend, size_t n_bytes) {
    qr_error err = {0};
    void *memory = NULL;
    const qrun_status status = backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &memory, &err);
    return checked(status, &err, memory);
}

/* Words that are ordinary numbers in F32, F16 and BF16, scales among them: denormal ones would cost time. As codes they
 * are as good as any. */
static void fill_weight(qr_weight *weight, size_t n_bytes) {
    uint64_t *words = weight->data;
    uint64_t state = 0x9E3779B97F4A7C15U;
    for (size_t i = 0; i < n_bytes / 8; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        words[i] = weight->desc.format == QR_WEIGHT_MXFP4 ? 0x7878787878787878U | (state >> 12 & 0x0707070707070707U)
                                                          : 0x3C003C003C003C00U | (state >> 12 & 0x00FF00FF00FF00FFU);
    }
}

typedef struct measured {
    int64_t n_rows;
    double seconds;
} measured;

/* Best of many calls, each on the next copy of the weights. */
static double best_seconds(const bench *b, qr_weight *weights, int n_copies, const qr_linear_args *shape,
                           qr_workspace workspace) {
    double best = 1e30, begin = seconds_now(b);
    for (int call = 0; call < 8 || seconds_now(b) - begin < 1.0; call++) {
        qr_linear_args args = *shape;
        const int per_call = shape->n_rows > 32 ? 1 : (int)qr_max(1, n_copies / 4);
        const double t = seconds_now(b);
        for (int j = 0; j < per_call; j++) {
            args.weight = &weights[(call * per_call + j) % n_copies];
            qr_linear(b->backend, &args, workspace, NULL);
        }
        const double taken = (seconds_now(b) - t) / per_call;
        if (taken < best) { best = taken; }
    }
    return best;
}

static void print_row(const bench *b, const char *format, int64_t n_rows, double seconds, size_t weight_bytes) {
    const options *o = b->options;
    const double n_weights = (double)o->out * (double)o->in;
    const double bytes = (double)weight_bytes / seconds, flops = 2.0 * n_weights * (double)n_rows / seconds;
    printf("%d threads  %-7s M %4lld  %9.1f us  %7.2f G weights/s  %6.1f GB/s (%3.0f %%)  %7.3f TFLOP/s (%3.0f %%)\n",
           qr_threads_count(b->threads), format, (long long)n_rows, seconds * 1e6, n_weights / seconds * 1e-9,
           bytes * 1e-9, 100.0 * bytes / b->read_bytes, flops * 1e-12, 100.0 * flops / b->peak_flops);
}

static void measure_peaks(bench *b) {
    double read_bytes, peak_flops;
    qr_error err = {0};
    checked(qr_cpu_measure_read_bandwidth(b->threads, 0.3, &read_bytes, &err), &err, NULL);
    checked(qr_cpu_measure_matrix_peak(b->threads, b->backend->isa, b->options->dtype, 0.2, &peak_flops, &err), &err,
            NULL);
    if (read_bytes > b->read_bytes) { b->read_bytes = read_bytes; }
    if (peak_flops > b->peak_flops) { b->peak_flops = peak_flops; }
}

static void bench_format(bench *b, qr_weight_format format) {
    measure_peaks(b);
    const options *o = b->options;
    qr_backend *backend = b->backend;
    const qr_weight_desc desc = {format, qr_weight_is_nf4(format) ? QR_NF4_BLOCK : 0, o->out, o->in};
    const size_t n_bytes = backend->weight_bytes(backend, &desc);
    const int n_copies = (int)qr_min(MAX_COPIES, qr_max(1, (int64_t)(WORKING_SET_BYTES / n_bytes)));
    qr_weight weights[MAX_COPIES];
    for (int i = 0; i < n_copies; i++) {
        weights[i] = (qr_weight){.desc = desc, .data = memory(backend, n_bytes), .nested_offset = 0.01F};
        fill_weight(&weights[i], n_bytes);
    }
    for (int i = 0; i < o->n_rows; i++) {
        const int64_t m = o->rows[i];
        const size_t x_bytes = (size_t)(m * o->in) * qr_dtype_bytes(o->dtype),
                     y_bytes = (size_t)(m * o->out) * sizeof(float);
        qr_weight x_like = {.desc = {.format = QR_WEIGHT_BF16, .rows = m, .cols = o->in},
                            .data = memory(backend, x_bytes)};
        fill_weight(&x_like, x_bytes);
        const qr_linear_args args = {.weight = weights,
                                     .x = x_like.data,
                                     .x_dtype = o->dtype,
                                     .y = memory(backend, y_bytes),
                                     .n_rows = m,
                                     .x_stride = o->in,
                                     .y_stride = o->out};
        qr_workspace workspace = {.n_bytes = qr_linear_workspace(backend, &args)};
        workspace.memory = memory(backend, workspace.n_bytes);
        print_row(b, qr_weight_format_name(format), m, best_seconds(b, weights, n_copies, &args, workspace), n_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, workspace.memory, workspace.n_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, args.y, y_bytes);
        backend->memory_destroy(backend, QR_MEMORY_DEVICE, x_like.data, x_bytes);
    }
    for (int i = 0; i < n_copies; i++) { backend->memory_destroy(backend, QR_MEMORY_DEVICE, weights[i].data, n_bytes); }
}

static int usage(const char *argument) {
    fprintf(stderr,
            "bench_linear: %s? Options: --shape OUTxIN --rows 1,16,512 --formats nf4-dq,int8 --isa NAME --threads 1,2 "
            "--f32 --portable\n",
            argument);
    return 2;
}

/* Returns how many numbers above 0 were read; 0 where there is anything else. */
static int parse_list(const char *text, int64_t list[MAX_LIST]) {
    int n = 0;
    for (char *end; n < MAX_LIST && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        list[n++] = strtoll(text, &end, 10);
        if (end == text || list[n - 1] <= 0) { return 0; }
    }
    return n;
}

static void bench_threads(const options *o, int n_threads) {
    qr_error err = {0};
    bench b = {.options = o};
    checked(qr_threads_create(n_threads, &b.threads, &err), &err, NULL);
    checked((o->portable ? qr_backend_cpu_create_portable : qr_backend_cpu_create)(o->isa, b.threads, &b.backend, &err),
            &err, NULL);
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        const char *name = qr_weight_format_name((qr_weight_format)format), *found = strstr(o->formats, name);
        for (; found != NULL; found = strstr(found + 1, name)) {
            const char after = found[strlen(name)], before = found == o->formats ? ',' : found[-1];
            if (before == ',' && (after == ',' || after == '\0')) { bench_format(&b, (qr_weight_format)format); }
        }
    }
    printf("%s, %d threads: read bandwidth %.1f GB/s, matrix peak %.3f TFLOP/s (%s); weights [%lld, %lld]\n",
           b.backend->isa, n_threads, b.read_bytes * 1e-9, b.peak_flops * 1e-12, qr_dtype_name(o->dtype),
           (long long)o->out, (long long)o->in);
    qr_backend_destroy(b.backend);
    qr_threads_destroy(b.threads);
}

int main(int argc, char **argv) {
    options o = {.out = 2048,
                 .in = 2048,
                 .rows = {1, 4, 16, 64, 512},
                 .n_rows = 5,
                 .threads = {1, 2},
                 .n_thread_counts = 2,
                 .formats = "nf4-dq,nf4,mxfp4,int8,bf16,f16,f32",
                 .dtype = QR_DTYPE_BF16};
    for (int i = 1; i < argc; i++) {
        long long out, in;
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--f32") == 0) {
            o.dtype = QR_DTYPE_F32;
            continue;
        }
        if (strcmp(argv[i], "--portable") == 0) {
            o.portable = true;
            continue;
        }
        if (strcmp(argv[i], "--shape") == 0 && sscanf(value, "%lldx%lld", &out, &in) == 2 && out > 0 && in > 0) {
            o.out = out, o.in = in;
        } else if (strcmp(argv[i], "--rows") == 0) {
            o.n_rows = parse_list(value, o.rows);
        } else if (strcmp(argv[i], "--formats") == 0) {
            o.formats = value;
        } else if (strcmp(argv[i], "--isa") == 0) {
            o.isa = value;
        } else if (strcmp(argv[i], "--threads") == 0) {
            o.n_thread_counts = parse_list(value, o.threads);
        } else {
            return usage(argv[i]);
        }
        i++;
    }
    for (int t = 0; t < o.n_thread_counts; t++) { bench_threads(&o, (int)o.threads[t]); }
    return 0;
}
