/* How fast the training ops but the matrix products are, beside the machine's peaks: attention forward and backward in
 * operations a second (two a multiply-add, positions a token sees only: 4 · head_dim a pair forward, 10 · head_dim
 * backward), the others in bytes that must be read and written at least.
 *
 *     bench_train_ops [--only NAME] [--tokens N] [--seqs N] [--heads N/KV] [--head-dim N] [--dim N] [--vocab N]
 *                     [--parameters N] [--isa NAME] [--threads N] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/sizes.h"
#include "kernels/backend.h"

typedef struct options {
    const char *only, *isa;
    int64_t n_tokens, dim, vocab, n_parameters;
    int n_seqs, n_heads, n_kv_heads, head_dim, n_threads;
} options;

typedef struct bench {
    options options;
    qr_backend *backend;
    qr_backend_peaks peaks;
} bench;

static void require(qrun_status status, const qr_error *err) {
    if (status != QRUN_OK) {
        fprintf(stderr, "bench_train_ops: %s\n", err->message);
        exit(1);
    }
}

/* One thread's own time where there is one, so that other processes matter little. */
static double seconds_now(const options *o) {
    struct timespec now;
    clock_gettime(o->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Zeros. The memory lives as long as the program. */
static void *memory(const bench *b, int64_t n_bytes) {
    qr_error err = {0};
    void *block = NULL;
    require(b->backend->memory_create(b->backend, QR_MEMORY_DEVICE, (size_t)n_bytes, &block, &err), &err);
    return block;
}

/* Uniform in [-1, 1), whatever the machine. */
static float *numbers(const bench *b, int64_t n) {
    float *values = memory(b, n * (int64_t)sizeof *values);
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)(int32_t)state * 0x1p-31F;
    }
    return values;
}

static int32_t *below(const bench *b, int64_t n, int64_t limit) {
    int32_t *values = memory(b, n * (int64_t)sizeof *values);
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (int32_t)((uint64_t)state * (uint64_t)limit >> 32);
    }
    return values;
}

static bool wanted(const bench *b, const char *name) {
    return b->options.only == NULL || strstr(name, b->options.only) != NULL;
}

/* Best of many calls. */
static double best_seconds(const bench *b, qr_op op, const void *args) {
    qr_error err = {0};
    const qr_op_impl *impl = &b->backend->ops[op];
    if (!impl->supports(b->backend, args, &err)) { require(err.status, &err); }
    const size_t n_bytes = impl->workspace_bytes(b->backend, args);
    const qr_workspace workspace = {memory(b, (int64_t)n_bytes), n_bytes};
    double best = 1e30;
    const double begin = seconds_now(&b->options);
    for (int call = 0; call < 3 || seconds_now(&b->options) - begin < 0.5; call++) {
        const double t = seconds_now(&b->options);
        require(qr_backend_run(b->backend, op, args, workspace, &err), &err);
        const double taken = seconds_now(&b->options) - t;
        if (taken < best) { best = taken; }
    }
    b->backend->memory_destroy(b->backend, QR_MEMORY_DEVICE, workspace.memory, n_bytes);
    return best;
}

static void print_flops(const bench *b, const char *name, double seconds, double flops) {
    printf("%-26s %10.1f us  %8.2f GFLOP/s (%3.0f %% of the F32 peak)\n", name, seconds * 1e6, flops / seconds * 1e-9,
           100.0 * flops / seconds / b->peaks.f32_flops);
}

/* bytes: read and written at least. */
static void bench_bytes(const bench *b, const char *name, qr_op op, const void *args, int64_t bytes) {
    if (!wanted(b, name)) { return; }
    const double seconds = best_seconds(b, op, args), rate = (double)bytes / seconds;
    printf("%-26s %10.1f us  %8.2f GB/s (%3.0f %% of reading)\n", name, seconds * 1e6, rate * 1e-9,
           100.0 * rate / b->peaks.read_bytes_per_second);
}

static void bench_attention(const bench *b) {
    const options *o = &b->options;
    const int64_t row = (int64_t)o->n_heads * o->head_dim, stride = row + 2 * (int64_t)o->n_kv_heads * o->head_dim;
    const int64_t length = o->n_tokens / o->n_seqs, n_tokens = length * o->n_seqs;
    if (!wanted(b, "attention_packed_backward")) { return; }
    float *qkv = numbers(b, n_tokens * stride), *gradients = memory(b, n_tokens * stride * 4);
    int32_t *seq_start = memory(b, (o->n_seqs + 1) * 4);
    for (int32_t s = 0; s <= o->n_seqs; s++) { seq_start[s] = (int32_t)(s * length); }
    const qr_attention_packed_args forward = {
        .q = qkv,
        .k = qkv + row,
        .v = qkv + row + (int64_t)o->n_kv_heads * o->head_dim,
        .dst = memory(b, n_tokens * row * 4),
        .dst_dtype = QR_DTYPE_BF16,
        .lse = memory(b, n_tokens * o->n_heads * 4),
        .seq_start = seq_start,
        .n_tokens = n_tokens,
        .qkv_stride = stride,
        .n_heads = o->n_heads,
        .n_kv_heads = o->n_kv_heads,
        .head_dim = o->head_dim,
        .n_seqs = o->n_seqs,
        .max_seq_tokens = (int32_t)length,
        .scale = 0.125F,
        .round_kv = true,
        .bf16_products = true,
    };
    const qr_attention_packed_backward_args backward = {
        .forward = forward,
        .dout = numbers(b, n_tokens * row),
        .dq = gradients,
        .dk = gradients + row,
        .dv = gradients + row + (int64_t)o->n_kv_heads * o->head_dim,
        .dqkv_stride = stride,
    };
    const double pairs = (double)n_tokens * (double)(length + 1) / 2.0 * (double)o->n_heads, dim = (double)o->head_dim;
    print_flops(b, "attention_packed", best_seconds(b, QR_OP_attention_packed, &forward), 4.0 * dim * pairs);
    print_flops(b, "attention_packed_backward", best_seconds(b, QR_OP_attention_packed_backward, &backward),
                10.0 * dim * pairs);
}

static void bench_rows(const bench *b) {
    const int64_t n = b->options.n_tokens, dim = b->options.dim, matrix = n * dim * 4;
    float *x = numbers(b, n * dim), *y = numbers(b, n * dim), *z = memory(b, matrix), *w = memory(b, matrix);
    float *weight = numbers(b, dim), *dweight = memory(b, dim * 4), *dbias = memory(b, dim * 4);
    int64_t *row_key = memory(b, n * 8);
    for (int64_t i = 0; i < n; i++) { row_key[i] = i; }
    qr_rms_norm_backward_args rms = {.x = x,
                                     .weight = weight,
                                     .dy = y,
                                     .dx = z,
                                     .n_rows = n,
                                     .n_groups = 1,
                                     .dim = dim,
                                     .x_stride = dim,
                                     .dy_stride = dim,
                                     .dx_stride = dim,
                                     .eps = 1e-5F};
    bench_bytes(b, "rms_norm_backward", QR_OP_rms_norm_backward, &rms, 3 * matrix);
    rms.dweight = dweight;
    bench_bytes(b, "rms_norm_backward, dweight", QR_OP_rms_norm_backward, &rms, 3 * matrix);
    const qr_layer_norm_backward_args layer = {.x = x,
                                               .weight = weight,
                                               .dy = y,
                                               .dx = z,
                                               .dweight = dweight,
                                               .dbias = dbias,
                                               .n_rows = n,
                                               .dim = dim,
                                               .eps = 1e-5F};
    bench_bytes(b, "layer_norm_backward", QR_OP_layer_norm_backward, &layer, 3 * matrix);
    static const char *const act_names[] = {"gate_backward, silu", "gate_backward, gelu_tanh",
                                            "gate_backward, gelu_erf"};
    for (int fn = QR_ACT_SILU; fn <= QR_ACT_GELU_ERF; fn++) {
        const qr_gate_backward_args gate = {.fn = (qr_act_fn)fn,
                                            .g = x,
                                            .u = y,
                                            .dy = x,
                                            .dg = z,
                                            .du = w,
                                            .n_rows = n,
                                            .dim = dim,
                                            .g_stride = dim,
                                            .u_stride = dim,
                                            .dg_stride = dim,
                                            .du_stride = dim};
        bench_bytes(b, act_names[fn], QR_OP_gate_backward, &gate, 5 * matrix);
    }
    const qr_dropout_args dropout = {.x = x,
                                     .x_dtype = QR_DTYPE_BF16,
                                     .dst = z,
                                     .row_key = row_key,
                                     .key = 1,
                                     .p = 0.1F,
                                     .n_rows = n,
                                     .dim = dim,
                                     .x_stride = dim,
                                     .dst_stride = dim};
    bench_bytes(b, "dropout, bf16", QR_OP_dropout, &dropout, matrix);
    const qr_round_act_args round_act = {
        .src = x, .dst = z, .dst_dtype = QR_DTYPE_BF16, .n_rows = n, .dim = dim, .src_stride = dim, .dst_stride = dim};
    bench_bytes(b, "round_act, bf16", QR_OP_round_act, &round_act, matrix * 3 / 2);
}

static void bench_loss(const bench *b) {
    const options *o = &b->options;
    const int64_t n = qr_max(1, (64 << 20) / (o->vocab * 4)), matrix = n * o->vocab * 4;
    if (!wanted(b, "cross_entropy, softcap")) { return; }
    qr_cross_entropy_args args = {.logits = numbers(b, n * o->vocab),
                                  .target = below(b, n, o->vocab),
                                  .loss = memory(b, n * 4),
                                  .n_rows = n,
                                  .vocab = o->vocab,
                                  .dloss = 1.0F};
    bench_bytes(b, "cross_entropy", QR_OP_cross_entropy, &args, 2 * matrix);
    args.softcap = 30.0F;
    bench_bytes(b, "cross_entropy, softcap", QR_OP_cross_entropy, &args, 2 * matrix);
}

static void bench_embedding(const bench *b) {
    const options *o = &b->options;
    if (!wanted(b, "embedding_backward")) { return; }
    const int64_t row = o->dim * 4, vocab = 32768;
    const qr_embedding_backward_args args = {.ids = below(b, o->n_tokens, vocab),
                                             .dy = numbers(b, o->n_tokens * o->dim),
                                             .dtable = memory(b, vocab * row),
                                             .n_tokens = o->n_tokens,
                                             .dim = o->dim,
                                             .vocab = vocab,
                                             .scale = 1.0F};
    bench_bytes(b, "embedding_backward", QR_OP_embedding_backward, &args, 3 * o->n_tokens * row);
}

static void bench_optimizers(const bench *b) {
    const int64_t n = b->options.n_parameters, n_blocks = qr_ceil_div(n, 256), cols = b->options.dim, rows = n / cols;
    float *p = numbers(b, n), *g = numbers(b, n), *m = memory(b, n * 4), *v = memory(b, n * 4);
    const int64_t chunk_bytes = qr_ceil_div(n, QR_SQUARES_CHUNK) * 8;
    const qr_sum_squares_args squares = {
        .x = g, .n = n, .dst = memory(b, chunk_bytes), .n_nonfinite = memory(b, chunk_bytes)};
    bench_bytes(b, "sum_squares", QR_OP_sum_squares, &squares, 4 * n);
    const qr_adamw_args adamw = {.p = p,
                                 .g = g,
                                 .m = m,
                                 .v = v,
                                 .n = n,
                                 .step = 10,
                                 .grad_scale = 1.0F,
                                 .lr = 1e-4F,
                                 .beta1 = 0.9F,
                                 .beta2 = 0.999F,
                                 .eps = 1e-8F,
                                 .weight_decay = 0.01F};
    bench_bytes(b, "adamw", QR_OP_adamw, &adamw, 28 * n);
    const qr_adamw8bit_args adamw8bit = {.p = p,
                                         .g = g,
                                         .m = memory(b, n),
                                         .v = memory(b, n),
                                         .m_absmax = memory(b, n_blocks * 4),
                                         .v_absmax = memory(b, n_blocks * 4),
                                         .n = n,
                                         .step = 10,
                                         .grad_scale = 1.0F,
                                         .lr = 1e-4F,
                                         .beta1 = 0.9F,
                                         .beta2 = 0.999F,
                                         .eps = 1e-8F,
                                         .weight_decay = 0.01F};
    bench_bytes(b, "adamw8bit", QR_OP_adamw8bit, &adamw8bit, 16 * n);
    const qr_sgd_args sgd = {
        .p = p, .g = g, .m = m, .n = n, .step = 2, .grad_scale = 1.0F, .lr = 1e-4F, .momentum = 0.9F};
    bench_bytes(b, "sgd", QR_OP_sgd, &sgd, 20 * n);
    const qr_adafactor_args adafactor = {.p = p,
                                         .g = g,
                                         .row_moment = memory(b, rows * 4),
                                         .col_moment = memory(b, cols * 4),
                                         .update = m,
                                         .rows = rows,
                                         .cols = cols,
                                         .step = 10,
                                         .grad_scale = 1.0F,
                                         .lr = 1e-4F,
                                         .eps1 = 1e-30F,
                                         .clip_threshold = 1.0F,
                                         .decay_rate = -0.8F};
    bench_bytes(b, "adafactor", QR_OP_adafactor, &adafactor, 12 * n);
}

static int usage(const char *argument) {
    fprintf(stderr,
            "bench_train_ops: %s? Options: --only NAME --tokens N --seqs N --heads N/KV --head-dim N --dim N "
            "--vocab N --parameters N --isa NAME --threads N\n",
            argument);
    return 2;
}

/* Takes one option with its value; false when there is no such option. */
static bool take_option(options *o, const char *name, const char *value) {
    const long long number = atoll(value);
    if (strcmp(name, "--only") == 0) { return (o->only = value) != NULL; }
    if (strcmp(name, "--isa") == 0) { return (o->isa = value) != NULL; }
    if (strcmp(name, "--heads") == 0) { return sscanf(value, "%d/%d", &o->n_heads, &o->n_kv_heads) == 2; }
    if (number <= 0) { return false; }
    if (strcmp(name, "--tokens") == 0) { return (o->n_tokens = number) > 0; }
    if (strcmp(name, "--seqs") == 0) { return (o->n_seqs = (int)number) > 0; }
    if (strcmp(name, "--head-dim") == 0) { return (o->head_dim = (int)number) > 0; }
    if (strcmp(name, "--dim") == 0) { return (o->dim = number) > 0; }
    if (strcmp(name, "--vocab") == 0) { return (o->vocab = number) > 0; }
    if (strcmp(name, "--parameters") == 0) { return (o->n_parameters = number) > 0; }
    if (strcmp(name, "--threads") == 0) { return (o->n_threads = (int)number) > 0; }
    return false;
}

int main(int argc, char **argv) {
    bench b = {.options = {.n_tokens = 1024,
                           .n_seqs = 1,
                           .n_heads = 32,
                           .n_kv_heads = 8,
                           .head_dim = 64,
                           .dim = 2048,
                           .vocab = 128256,
                           .n_parameters = 16 << 20}};
    options *o = &b.options;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc || !take_option(o, argv[i], argv[i + 1])) { return usage(argv[i]); }
    }
    qr_error err = {0};
    qr_threads *threads;
    require(qr_threads_create(o->n_threads, &threads, &err), &err);
    o->n_threads = qr_threads_count(threads);
    require(qr_backend_cpu_create(o->isa, threads, &b.backend, &err), &err);
    require(b.backend->measure_peaks(b.backend, 1.0, &b.peaks, &err), &err);
    printf("%s, %d threads; F32 peak %.1f GFLOP/s, reading %.2f GB/s; %lld tokens in %d sequences, dim %lld\n",
           b.backend->isa, o->n_threads, b.peaks.f32_flops * 1e-9, b.peaks.read_bytes_per_second * 1e-9,
           (long long)o->n_tokens, o->n_seqs, (long long)o->dim);
    bench_attention(&b);
    bench_rows(&b);
    bench_loss(&b);
    bench_embedding(&b);
    bench_optimizers(&b);
    return 0;
}
