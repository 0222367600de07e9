#include "kernels/cpu/backend/peaks.h"

#include "base/clock.h"
#include "base/sizes.h"
#include "kernels/cpu/linear/linear.h"

/* Shortest of the runs of a loop that fit into `seconds`, of at least MIN_ROUNDS: another process can only make a run
 * longer. */
static double shortest_run(qr_threads *threads, int64_t n, qr_loop_fn fn, void *arg, double seconds) {
    enum { MIN_ROUNDS = 3 };
    const double start = qr_now_seconds();
    double best = 1e30;
    for (int round = 0; round < MIN_ROUNDS || qr_now_seconds() - start < seconds; round++) {
        const double begin = qr_now_seconds();
        qr_threads_run(threads, n, fn, arg);
        const double taken = qr_now_seconds() - begin;
        if (taken < best) { best = taken; }
    }
    return best;
}

enum { READ_BYTES = 512 << 20, PIECE_BYTES = 2 << 20 };

typedef struct read_loop {
    const unsigned char *buffer;
    atomic_ullong sum; /* so that nothing is optimised away */
} read_loop;

static void read_piece(void *arg, int64_t index, int worker) {
    (void)worker;
    enum { N_SUMS = 32, PREFETCH_BYTES = 4096 }; /* 256 bytes a round */
    read_loop *loop = arg;
    const unsigned char *piece = loop->buffer + index * PIECE_BYTES;
    uint64_t sums[N_SUMS] = {0};
    for (int64_t i = 0; i < PIECE_BYTES; i += N_SUMS * 8) {
        const uint64_t *words = (const uint64_t *)(const void *)(piece + i);
        for (int line = 0; line < 4; line++) { __builtin_prefetch(piece + i + PREFETCH_BYTES + 64 * line); }
        for (int j = 0; j < N_SUMS; j++) { sums[j] ^= words[j]; }
    }
    uint64_t sum = 0;
    for (int j = 0; j < N_SUMS; j++) { sum ^= sums[j]; }
    atomic_fetch_xor(&loop->sum, sum);
}

static void fill_piece(void *arg, int64_t index, int worker) {
    (void)worker;
    uint64_t *words = (uint64_t *)arg + index * (PIECE_BYTES / 8);
    for (int64_t i = 0; i < PIECE_BYTES / 8; i++) { words[i] = (uint64_t)(i ^ index); }
}

qrun_status qr_cpu_measure_read_bandwidth(qr_threads *threads, double seconds, double *bytes_per_second,
                                          qr_error *err) {
    void *buffer = qr_cpu_map(READ_BYTES);
    if (buffer == NULL) { return qr_fail_memory(err, "the buffer that read bandwidth is measured with", READ_BYTES); }
    const int64_t n_pieces = READ_BYTES / PIECE_BYTES;
    qr_threads_run(threads, n_pieces, fill_piece, buffer);
    read_loop loop = {.buffer = buffer};
    *bytes_per_second = READ_BYTES / shortest_run(threads, n_pieces, read_piece, &loop, seconds);
    qr_cpu_unmap(buffer, READ_BYTES);
    return QRUN_OK;
}

static void exercise(void *arg, int64_t index, int worker) {
    (void)index, (void)worker;
    const qr_cpu_matmul *matmul = arg;
    matmul->exercise(QR_CPU_EXERCISE_ROUNDS);
}

qrun_status qr_cpu_measure_matrix_peak(qr_threads *threads, const char *isa, qr_dtype dtype, double seconds,
                                       double *flops, qr_error *err) {
    const qr_cpu_isa *chosen;
    QR_RETURN_IF_ERROR(qr_cpu_isa_choose(isa, &chosen, err));
    const qr_cpu_matmul *matmul = dtype == QR_DTYPE_BF16 ? chosen->fastest.matmul_bf16 : chosen->fastest.matmul_f32;
    if (matmul->exercise == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s has no speed to measure", chosen->name);
    }
    const int n_threads = qr_threads_count(threads);
    /* Twice as many tasks as threads, so that a worker that wakes late costs little. */
    const double taken = shortest_run(threads, 2 * n_threads, exercise, (void *)(uintptr_t)matmul, seconds);
    *flops = 2.0 * n_threads * matmul->exercise_flops * QR_CPU_EXERCISE_ROUNDS / taken;
    return QRUN_OK;
}

qrun_status qr_cpu_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err) {
    qr_threads *threads = backend->threads;
    QR_RETURN_IF_ERROR(qr_cpu_measure_read_bandwidth(threads, seconds / 2, &peaks->read_bytes_per_second, err));
    QR_RETURN_IF_ERROR(
        qr_cpu_measure_matrix_peak(threads, backend->isa, QR_DTYPE_BF16, seconds / 4, &peaks->bf16_flops, err));
    QR_RETURN_IF_ERROR(
        qr_cpu_measure_matrix_peak(threads, backend->isa, QR_DTYPE_F32, seconds / 4, &peaks->f32_flops, err));
    peaks->f16_flops = peaks->f32_flops; /* by the same kernels */
    return QRUN_OK;
}
