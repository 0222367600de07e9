/* Hopper's products on a device that they break, or on which they wait for what never comes: the device is opened
 * without them where that can be done, nothing waits for ever, and each failure is named. A process remembers what
 * broke a GPU, so most cases are processes of their own. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/linear/linear.cuh"

#include "cuda_simt.h"

extern "C" {
#include "base/threads.h"
#include "check.h"
}

static qr_threads *threads;

static void run_apart(void (*body)()) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (qr_threads_create(1, &threads, NULL) != QRUN_OK) { _exit(1); }
        body();
        qr_threads_destroy(threads);
        fflush(NULL);
        _exit(check_state.n_failures_in_case > 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* NULL as it should be. */
static void set_fault(const char *fault) {
    CHECK((fault != NULL ? setenv("QRUN_SIMT_WGMMA", fault, 1) : unsetenv("QRUN_SIMT_WGMMA")) == 0);
}

static qr_backend *open_gpu() {
    qr_backend *backend = NULL;
    qr_error err = {};
    CHECK_MSG(qr_backend_cuda_simt_create(threads, &backend, &err) == QRUN_OK, "%s", err.message);
    return backend;
}

static void expect_open(const char *isa, const char *part) {
    char text[384];
    qr_backend *backend = open_gpu();
    REQUIRE(backend != NULL);
    CHECK_STR(backend->isa, isa);
    backend->features(backend, text, sizeof text);
    CHECK_MSG(strstr(text, part) != NULL, "no \"%s\" in \"%s\"", part, text);
    qr_backend_destroy(backend);
}

static void expect_not_open(const char *message) {
    qr_backend *backend = NULL;
    qr_error err = {};
    CHECK_INT(qr_backend_cuda_simt_create(threads, &backend, &err), QRUN_ERROR_DEVICE);
    CHECK_STR(err.message, message);
    CHECK(backend == NULL);
}

#define FAILS "NF4, narrow tiles: cuda: linear_wgmma_kernel: an illegal instruction (QRUN_SIMT_WGMMA)"
#define STALLS "NF4, wide tiles: cuda: (linear_wgmma_wide_kernel<type>): it trapped"

static void test_without_what_breaks_the_gpu(void) {
    run_apart([] {
        set_fault("fails");
        expect_open("simt without wgmma", "wgmma off: FAULT: " FAILS ";");
    });
}

static void test_without_what_does_not_end(void) {
    run_apart([] {
        set_fault("stalls");
        expect_open("simt without wgmma", "wgmma off: FAULT: " STALLS ";");
    });
}

/* Also while the GPU is open, which another trap would break. */
static void test_a_process_tries_once(void) {
    run_apart([] {
        set_fault("stalls");
        qr_backend *first = open_gpu();
        set_fault(NULL);
        expect_open("simt without wgmma", "wgmma off: FAULT: " STALLS ";");
        qr_backend_destroy(first);
        expect_open("simt without wgmma", "wgmma off: FAULT: " STALLS ";");
    });
}

static void test_a_gpu_that_is_open_is_not_reset(void) {
    run_apart([] {
        qr_backend *first = open_gpu();
        set_fault("stalls");
        expect_not_open(STALLS "; this process has the GPU open elsewhere, so it cannot be opened again without wgmma; "
                               "with QRUN_CUDA_WGMMA=0 it is not tried");
        qr_backend_destroy(first);
        expect_open("simt without wgmma", "wgmma off: FAULT: " STALLS ";");
    });
}

static void test_a_gpu_that_stays_broken(void) {
    run_apart([] {
        set_fault("breaks");
        expect_not_open(FAILS "; opened again without wgmma: cuda: creating a stream: the GPU is broken; with "
                              "QRUN_CUDA_WGMMA=0 it is not tried");
    });
    run_apart([] {
        set_fault("breaks");
        CHECK(setenv("QRUN_CUDA_WGMMA", "0", 1) == 0);
        expect_open("simt without wgmma", "wgmma off: QRUN_CUDA_WGMMA;");
    });
}

/* --- Once it is open --- */

enum { ROWS = 256, OUTPUTS = 128, MOST_COLS = 6 * CHUNK };

struct operands {
    alignas(256) uint16_t x[ROWS * MOST_COLS], w[OUTPUTS * MOST_COLS];
    alignas(256) float y[ROWS * OUTPUTS];
}; /* then the workspace */

static qrun_status multiply(qr_cuda_backend &cuda, int64_t cols, qr_error *err) {
    qr_weight weight = {};
    qr_linear_args args = {};
    void *memory = NULL;
    weight.desc.format = QR_WEIGHT_BF16, weight.desc.rows = OUTPUTS, weight.desc.cols = cols;
    args.weight = &weight, args.x_dtype = QR_DTYPE_BF16, args.n_rows = ROWS;
    args.x_stride = cols, args.y_stride = OUTPUTS;
    const size_t n_bytes = sizeof(operands) + qr_cuda_linear_wgmma_wide_bytes(cuda, args);
    QR_RETURN_IF_ERROR(qr_device_memory_create(cuda.device, QR_MEMORY_DEVICE, n_bytes, &memory, err));
    operands *all = static_cast<operands *>(memory);
    qrun_status status = QRUN_OK;
    weight.data = all->w, args.x = all->x, args.y = all->y;
    QR_TRY(qr_device_zero(cuda.device, memory, n_bytes, err));
    QR_TRY(qr_cuda_linear_wgmma_wide(cuda, args, all + 1, err));
out:
    qr_device_memory_destroy(cuda.device, QR_MEMORY_DEVICE, memory);
    return status;
}

/* Fewer chunks than stages, and more: the producer waits for the last ones in its loop or after it. */
static void test_an_arrival_lost_later_is_an_error(void) {
    for (const int64_t cols : {int64_t{CHUNK}, int64_t{MOST_COLS}}) {
        qr_error err = {}, later = {};
        qr_backend *backend = NULL;
        REQUIRE(qr_threads_create(1, &threads, NULL) == QRUN_OK);
        if ((backend = open_gpu()) != NULL) {
            CHECK_MSG(multiply(*qr_cuda(backend), cols, &err) == QRUN_OK, "%s", err.message);
            simt::set_lost_arrivals(true);
            CHECK_INT(multiply(*qr_cuda(backend), cols, &err), QRUN_ERROR_DEVICE);
            simt::set_lost_arrivals(false);
            CHECK_STR(err.message, "cuda: (linear_wgmma_wide_kernel<type>): it trapped");
            CHECK_INT(backend->sync(backend, &later), QRUN_ERROR_DEVICE);
            CHECK_STR(later.message, err.message);
        }
        qr_backend_destroy(backend);
        qr_threads_destroy(threads);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_without_what_breaks_the_gpu);
    CHECK_RUN(test_without_what_does_not_end);
    CHECK_RUN(test_a_process_tries_once);
    CHECK_RUN(test_a_gpu_that_is_open_is_not_reset);
    CHECK_RUN(test_a_gpu_that_stays_broken);
    CHECK_RUN(test_an_arrival_lost_later_is_an_error);
    return check_end();
}
