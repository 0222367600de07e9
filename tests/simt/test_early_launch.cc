/* Faults in kernels that are launched early, which tests/simt must show: what they read or write before their wait. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/device/device.cuh"

extern "C" {
#include "check.h"
}

enum { THREADS = 64 };

static qr_device *device;
static float *y, *z, *other;

static void fill_kernel(float *dst, float value) { dst[threadIdx.x] = value; }

static void fill_early_kernel(float *dst, float value) {
    await_previous();
    dst[threadIdx.x] = value;
}

static void right_kernel(const float *src, float *dst) {
    await_previous();
    dst[threadIdx.x] = src[threadIdx.x];
}

static void reads_too_early_kernel(const float *src, float *dst) {
    const float value = src[threadIdx.x];
    await_previous();
    dst[threadIdx.x] = value;
}

static void copies_too_early_kernel(const float *src, float *dst) {
    float *shared = shared_memory<float>();
    if (threadIdx.x % 4 == 0) { copy_async_16(shared + threadIdx.x, src + threadIdx.x, 16); }
    copy_async_commit();
    await_previous();
    copy_async_wait<0>();
    __syncthreads();
    dst[threadIdx.x] = shared[threadIdx.x];
}

static void writes_too_early_kernel(const float *src, float *dst) {
    dst[threadIdx.x] = 123.0F;
    await_previous();
    dst[threadIdx.x] += src[threadIdx.x];
}

/* Part of the block waits for itself first, as linear does before its table is read. */
static void meets_first_kernel(const float *src, float *dst) {
    float *shared = shared_memory<float>();
    shared[threadIdx.x] = static_cast<float>(threadIdx.x);
    __syncthreads();
    const float mine = shared[THREADS - 1 - threadIdx.x];
    await_previous();
    dst[threadIdx.x] = src[threadIdx.x] + mine;
}

static void fill(float *dst, float value) {
    CHECK_INT(QR_LAUNCH(device, NULL, fill_kernel, dim3(1), THREADS, 0, dst, value), QRUN_OK);
}

typedef void (*two_buffers)(const float *, float *);

static float first_of_z(two_buffers kernel) {
    float value = -1.0F;
    CHECK_INT(QR_LAUNCH_EARLY(device, NULL, kernel, dim3(1), THREADS, THREADS * sizeof(float), y, z), QRUN_OK);
    CHECK_INT(qr_device_copy_out(device, &value, z, sizeof value, NULL), QRUN_OK);
    return value;
}

static void test_what_waits_is_right(void) {
    fill(y, 2.0F);
    CHECK(first_of_z(right_kernel) == 2.0F);
    fill(y, 5.0F);
    CHECK(first_of_z(meets_first_kernel) == 5.0F + THREADS - 1);
}

static void test_reading_before_the_wait_shows(void) {
    fill(y, 2.0F);
    fill(y, 4.0F);
    CHECK(isnan(first_of_z(reads_too_early_kernel)));
    fill(y, 2.0F);
    CHECK(isnan(first_of_z(copies_too_early_kernel)));
}

/* The kernel ahead of the one ahead may still run too. */
static void test_a_chain_of_early_launches(void) {
    fill(y, 7.0F);
    CHECK_INT(QR_LAUNCH_EARLY(device, NULL, fill_early_kernel, dim3(1), THREADS, 0, other, 8.0F), QRUN_OK);
    CHECK(isnan(first_of_z(reads_too_early_kernel)));
}

/* What a kernel of before the last ordinary launch, or of before a copy, wrote is there. */
static void test_what_is_in_order(void) {
    const float nine = 9.0F;
    fill(y, 6.0F);
    fill(other, 1.0F);
    CHECK(first_of_z(reads_too_early_kernel) == 6.0F);
    fill(y, 3.0F);
    CHECK_INT(qr_device_copy_in(device, other, &nine, sizeof nine, NULL), QRUN_OK);
    CHECK(first_of_z(reads_too_early_kernel) == 3.0F);
}

static void test_writing_before_the_wait_ends_the_program(void) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) { _exit(1); }
        fill(y, 2.0F);
        (void)first_of_z(writes_too_early_kernel);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_device_open(&device, NULL) != QRUN_OK) { return 1; }
    for (float **buffer : {&y, &z, &other}) {
        void *memory = NULL;
        CHECK_INT(qr_device_memory_create(device, QR_MEMORY_DEVICE, THREADS * sizeof(float), &memory, NULL), QRUN_OK);
        *buffer = static_cast<float *>(memory);
    }
    CHECK_RUN(test_what_waits_is_right);
    CHECK_RUN(test_reading_before_the_wait_shows);
    CHECK_RUN(test_a_chain_of_early_launches);
    CHECK_RUN(test_what_is_in_order);
    CHECK_RUN(test_writing_before_the_wait_ends_the_program);
    for (float *buffer : {y, z, other}) { qr_device_memory_destroy(device, QR_MEMORY_DEVICE, buffer); }
    qr_device_close(device);
    return check_end();
}
