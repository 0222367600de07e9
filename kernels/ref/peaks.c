/* The peaks of plain C in one thread: what the reference backend could reach at most. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/sizes.h"
#include "kernels/ref/ref.h"

enum { READ_BYTES = 64 << 20, N_SUMS = 16, PRODUCTS = 1 << 16, MIN_PASSES = 3 };

/* One pass over `arg`; the result is kept, so that no pass is optimised away. */
typedef double (*pass_fn)(const void *arg);

static double best_pass_seconds(pass_fn pass, const void *arg, double seconds) {
    const double start = qr_now_seconds();
    double best = 1e30;
    volatile double kept = 0.0;
    for (int i = 0; i < MIN_PASSES || qr_now_seconds() - start < seconds; i++) {
        const double begin = qr_now_seconds();
        kept = kept + pass(arg);
        const double taken = qr_now_seconds() - begin;
        if (taken < best) { best = taken; }
    }
    return best;
}

static double read_pass(const void *arg) {
    const uint64_t *words = arg;
    uint64_t sums[N_SUMS] = {0};
    for (size_t i = 0; i < READ_BYTES / sizeof *words; i += N_SUMS) {
        for (size_t j = 0; j < N_SUMS; j++) { sums[j] ^= words[i + j]; }
    }
    uint64_t sum = 0;
    for (size_t j = 0; j < N_SUMS; j++) { sum ^= sums[j]; }
    return (double)(sum & 1);
}

static double sum_of(const float *sums) {
    float sum = 0.0F;
    for (int j = 0; j < N_SUMS; j++) { sum += sums[j]; }
    return (double)sum;
}

static double f32_pass(const void *arg) {
    const float *factor = arg;
    float sums[N_SUMS] = {0};
    for (int i = 0; i < PRODUCTS; i++) {
        for (int j = 0; j < N_SUMS; j++) { sums[j] = sums[j] * factor[j] + factor[0]; }
    }
    return sum_of(sums);
}

static double bf16_pass(const void *arg) {
    const qr_bf16 *factor = arg;
    float sums[N_SUMS] = {0};
    for (int i = 0; i < PRODUCTS; i++) {
        for (int j = 0; j < N_SUMS; j++) {
            sums[j] += qr_bf16_to_f32(factor[j]) * qr_bf16_to_f32(factor[(i + j) % N_SUMS]);
        }
    }
    return sum_of(sums);
}

qrun_status qr_ref_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err) {
    (void)backend;
    unsigned char *buffer = qr_alloc(READ_BYTES);
    if (buffer == NULL) { return qr_fail_memory(err, "the buffer that read bandwidth is measured with", READ_BYTES); }
    for (size_t i = 0; i < READ_BYTES; i++) { buffer[i] = (unsigned char)i; }
    peaks->read_bytes_per_second = READ_BYTES / best_pass_seconds(read_pass, buffer, seconds / 2);
    qr_free(buffer);
    float f32[N_SUMS];
    qr_bf16 bf16[N_SUMS];
    for (int j = 0; j < N_SUMS; j++) {
        f32[j] = 0.5F + 0.01F * (float)j;
        bf16[j] = qr_f32_to_bf16(f32[j]);
    }
    peaks->bf16_flops = 2.0 * PRODUCTS * N_SUMS / best_pass_seconds(bf16_pass, bf16, seconds / 4);
    peaks->f32_flops = 2.0 * PRODUCTS * N_SUMS / best_pass_seconds(f32_pass, f32, seconds / 4);
    peaks->f16_flops = peaks->bf16_flops;
    return QRUN_OK;
}
