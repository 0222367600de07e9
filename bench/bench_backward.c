/* How fast the products of the backward pass are, beside the measured peak of the instruction set: linear_backward for
 * each weight format (and linear itself, to compare with), weight_backward, lora and lora_backward. Operations are
 * counted as products and sums of the definition: 2 · rows · out · in, for lora 2 · rows · rank · (in + out), and for
 * lora_backward rows · rank · (6 · in + 4 · out). LoRA is as in training: with dy rounded, and in pairs where there are
 * any, which are two or three products for each that is counted.
 *
 *     bench_backward [--shape OUTxIN] [--rows N] [--rank N] [--formats nf4-dq,int8] [--isa NAME] [--threads N]
 *                    [--f32] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sizes.h"
#include "kernels/backend.h"
#include "kernels/cpu/backend/peaks.h"

enum { DY_ROOM = 32 }; /* elements after each row of dy, as a training pass has them */

typedef struct options {
    int64_t out, in, rows, rank;
    const char *formats;
    const char *isa;
    int n_threads;
    qr_dtype dtype;
} options;

typedef struct bench {
    options options;
    qr_backend *backend;
    double peak_flops[2]; /* a second: F32, the type chosen */
} bench;

/* One thread's own time where there is one, so that other processes matter little. */
static double seconds_now(const options *o) {
    struct timespec now;
    clock_gettime(o->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void require(qrun_status status, const qr_error *err) {
    if (status != QRUN_OK) {
        fprintf(stderr, "bench_backward: %s\n", err->message);
        exit(1);
    }
}

/* Numbers that are ordinary in F32, F16 and BF16; as codes of a weight they are as good as any, and its scales are
 * ordinary too. The memory lives as long as the program. */
static void *filled(qr_backend *backend, size_t n_bytes) {
    qr_error err = {0};
    void *memory = NULL;
    require(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &memory, &err), &err);
    uint64_t *words = memory, state = 0x9E3779B97F4A7C15U;
    for (size_t i = 0; i < n_bytes / 8; i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        words[i] = 0x3C003C003C003C00U | (state >> 12 & 0x00FF00FF00FF00FFU);
    }
    return memory;
}

/* Best of many calls. */
static double best_seconds(const bench *b, qr_op op, const void *args) {
    qr_error err = {0};
    qr_workspace workspace = {.n_bytes = b->backend->ops[op].workspace_bytes(b->backend, args)};
    workspace.memory = filled(b->backend, workspace.n_bytes);
    double best = 1e30;
    const double begin = seconds_now(&b->options);
    for (int call = 0; call < 5 || seconds_now(&b->options) - begin < 0.7; call++) {
        const double t = seconds_now(&b->options);
        require(qr_backend_run(b->backend, op, args, workspace, &err), &err);
        const double taken = seconds_now(&b->options) - t;
        if (taken < best) { best = taken; }
    }
    return best;
}

static void print_row(const char *op, const char *format, double seconds, double flops, double peak) {
    printf("%-15s  %-7s  %9.1f us  %7.3f TFLOP/s (%3.0f %% of the peak)\n", op, format, seconds * 1e6,
           flops / seconds * 1e-12, 100.0 * flops / seconds / peak);
}

static void bench_format(const bench *b, qr_weight_format format, const void *x, float *y) {
    const options *o = &b->options;
    const qr_weight_desc desc = {format, qr_weight_is_nf4(format) ? QR_NF4_BLOCK : 0, o->out, o->in};
    const size_t n_bytes = b->backend->weight_bytes(b->backend, &desc);
    const qr_weight weight = {.desc = desc, .data = filled(b->backend, n_bytes), .nested_offset = 0.01F};
    const qr_linear_args forward = {.weight = &weight,
                                    .x = x,
                                    .x_dtype = o->dtype,
                                    .y = y,
                                    .n_rows = o->rows,
                                    .x_stride = o->in,
                                    .y_stride = o->out};
    const qr_linear_backward_args backward = {.weight = &weight,
                                              .dy = x,
                                              .dy_dtype = o->dtype,
                                              .dx = y,
                                              .n_rows = o->rows,
                                              .dy_stride = o->out + DY_ROOM,
                                              .dx_stride = o->in};
    const double flops = 2.0 * (double)o->rows * (double)o->out * (double)o->in;
    const char *name = qr_weight_format_name(format);
    print_row("linear", name, best_seconds(b, QR_OP_linear, &forward), flops, b->peak_flops[1]);
    print_row("linear_backward", name, best_seconds(b, QR_OP_linear_backward, &backward), flops, b->peak_flops[1]);
}

static void bench_gradients(const bench *b, const void *x, float *y) {
    const options *o = &b->options;
    const size_t f = sizeof(float);
    const qr_weight_backward_args weight = {.x = x,
                                            .x_dtype = o->dtype,
                                            .dy = y,
                                            .n_rows = o->rows,
                                            .dw = filled(b->backend, (size_t)(o->out * o->in) * f),
                                            .in = o->in,
                                            .out = o->out,
                                            .x_stride = o->in,
                                            .dy_stride = o->out};
    print_row("weight_backward", qr_dtype_name(o->dtype), best_seconds(b, QR_OP_weight_backward, &weight),
              2.0 * (double)o->rows * (double)o->out * (double)o->in, b->peak_flops[0]);
    const size_t a_bytes = (size_t)(o->rank * o->in) * f, b_bytes = (size_t)(o->rank * o->out) * f;
    const float *factor_a = filled(b->backend, a_bytes), *factor_b = filled(b->backend, b_bytes);
    const qr_lora_factor factor = {.a = factor_a, .b = factor_b, .rank = (int32_t)o->rank, .scale = 1e-6F};
    const size_t row_bytes = (size_t)o->rows * sizeof(int32_t);
    const qr_lora_args forward = {.factors = &factor,
                                  .n_adapters = 1,
                                  .max_rank = (int32_t)o->rank,
                                  .row_adapter = memset(filled(b->backend, row_bytes), 0, row_bytes),
                                  .x = x,
                                  .x_dtype = o->dtype,
                                  .y = y,
                                  .n_rows = o->rows,
                                  .in = o->in,
                                  .out = o->out,
                                  .x_stride = o->in,
                                  .y_stride = o->out,
                                  .in_pairs = true};
    print_row("lora", qr_dtype_name(o->dtype), best_seconds(b, QR_OP_lora, &forward),
              2.0 * (double)o->rows * (double)o->rank * (double)(o->in + o->out), b->peak_flops[0]);
    const qr_lora_backward_args lora = {.a = factor_a,
                                        .b = factor_b,
                                        .da = filled(b->backend, a_bytes),
                                        .db = filled(b->backend, b_bytes),
                                        .x = x,
                                        .x_dtype = o->dtype,
                                        .dy = y,
                                        .dy_rounded = x,
                                        .n_rows = o->rows,
                                        .in = o->in,
                                        .out = o->out,
                                        .dx = filled(b->backend, (size_t)(o->rows * o->in) * f),
                                        .x_stride = o->in,
                                        .dy_stride = o->out,
                                        .dx_stride = o->in,
                                        .dy_rounded_stride = o->out,
                                        .rank = (int32_t)o->rank,
                                        .scale = 1e-6F,
                                        .in_pairs = true};
    print_row("lora_backward", qr_dtype_name(o->dtype), best_seconds(b, QR_OP_lora_backward, &lora),
              (double)o->rows * (double)o->rank * (6.0 * (double)o->in + 4.0 * (double)o->out), b->peak_flops[0]);
}

static int usage(const char *argument) {
    fprintf(stderr,
            "bench_backward: %s? Options: --shape OUTxIN --rows N --rank N --formats nf4-dq,int8 --isa NAME "
            "--threads N --f32\n",
            argument);
    return 2;
}

int main(int argc, char **argv) {
    bench b = {.options = {.out = 2048,
                           .in = 2048,
                           .rows = 512,
                           .rank = 16,
                           .formats = "nf4-dq,nf4,int8,bf16,f16,f32",
                           .dtype = QR_DTYPE_BF16}};
    options *o = &b.options;
    for (int i = 1; i < argc; i++) {
        long long out, in;
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--f32") == 0) {
            o->dtype = QR_DTYPE_F32;
            continue;
        }
        if (strcmp(argv[i], "--shape") == 0 && sscanf(value, "%lldx%lld", &out, &in) == 2 && out > 0 && in > 0) {
            o->out = out, o->in = in;
        } else if (strcmp(argv[i], "--rows") == 0 && atoi(value) > 0) {
            o->rows = atoi(value);
        } else if (strcmp(argv[i], "--rank") == 0 && atoi(value) > 0) {
            o->rank = atoi(value);
        } else if (strcmp(argv[i], "--formats") == 0) {
            o->formats = value;
        } else if (strcmp(argv[i], "--isa") == 0) {
            o->isa = value;
        } else if (strcmp(argv[i], "--threads") == 0 && atoi(value) > 0) {
            o->n_threads = atoi(value);
        } else {
            return usage(argv[i]);
        }
        i++;
    }
    qr_error err = {0};
    qr_threads *threads;
    require(qr_threads_create(o->n_threads, &threads, &err), &err);
    o->n_threads = qr_threads_count(threads);
    require(qr_backend_cpu_create(o->isa, threads, &b.backend, &err), &err);
    require(qr_cpu_measure_matrix_peak(threads, o->isa, QR_DTYPE_F32, 0.5, &b.peak_flops[0], &err), &err);
    require(qr_cpu_measure_matrix_peak(threads, o->isa, o->dtype, 0.5, &b.peak_flops[1], &err), &err);
    printf("%s, %d threads, %lld x %lld, %lld rows; peak %.3f TFLOP/s in %s, %.3f in F32\n", b.backend->isa,
           o->n_threads, (long long)o->out, (long long)o->in, (long long)o->rows, b.peak_flops[1] * 1e-12,
           qr_dtype_name(o->dtype), b.peak_flops[0] * 1e-12);
    const size_t bytes = (size_t)(o->rows * (qr_max(o->in, o->out) + DY_ROOM)) * sizeof(float);
    void *x = filled(b.backend, bytes);
    float *y = filled(b.backend, bytes);
    for (int format = 0; format < QR_WEIGHT_FORMAT_COUNT; format++) {
        if (strstr(o->formats, qr_weight_format_name((qr_weight_format)format)) != NULL) {
            bench_format(&b, (qr_weight_format)format, x, y);
        }
    }
    bench_gradients(&b, x, y);
    return 0;
}
