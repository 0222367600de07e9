/* Faults in the order of copies and of recordings that tests/simt must show, each beside the same thing done right. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/graph_capture.h"
#include "kernels/cuda/device/transfer.h"

extern "C" {
#include "check.h"
}

enum { THREADS = 64, N_BYTES = THREADS * 4, SEEDS = 40 };

/* A device whose copies are done at moments of their own, with two buffers of it and two of the host's. */
struct world {
    qr_device *device;
    int *a, *b, *host, *back;
};

static int *make(qr_device *device, qr_memory_kind kind) {
    void *memory = NULL;
    CHECK_INT(qr_device_memory_create(device, kind, N_BYTES, &memory, NULL), QRUN_OK);
    return static_cast<int *>(memory);
}

static world open_world(int seed) {
    char text[16];
    world w = {};
    snprintf(text, sizeof text, "%d", seed);
    CHECK(setenv("QRUN_SIMT_SEED", text, 1) == 0);
    CHECK_INT(qr_device_open(&w.device, NULL), QRUN_OK);
    w.a = make(w.device, QR_MEMORY_DEVICE), w.b = make(w.device, QR_MEMORY_DEVICE);
    w.host = make(w.device, QR_MEMORY_HOST), w.back = make(w.device, QR_MEMORY_HOST);
    for (int i = 0; i < THREADS; i++) { w.host[i] = i + 1; }
    return w;
}

static void close_world(const world &w) {
    for (int *memory : {w.a, w.b}) { qr_device_memory_destroy(w.device, QR_MEMORY_DEVICE, memory); }
    for (int *memory : {w.host, w.back}) { qr_device_memory_destroy(w.device, QR_MEMORY_HOST, memory); }
    qr_device_close(w.device);
}

static void double_kernel(const int *src, int *dst) { dst[threadIdx.x] = 2 * src[threadIdx.x]; }
static void scale_kernel(const int *table, int scale, int *dst) { dst[threadIdx.x] = scale * table[threadIdx.x]; }

static void put_double(const world &w, const int *src, int *dst) {
    CHECK_INT(QR_LAUNCH(w.device, NULL, double_kernel, dim3(1), THREADS, 0, src, dst), QRUN_OK);
}

/* In, doubled, out again. Whether the result is right; `waits`: with the waits that this needs. */
static bool doubles(int seed, bool waits) {
    const world w = open_world(seed);
    uint64_t ticket = 0;
    bool is_right = true;
    CHECK_INT(qr_device_transfer_in(w.device, w.a, w.host, N_BYTES, &ticket, NULL), QRUN_OK);
    if (waits) { CHECK_INT(qr_device_transfer_wait(w.device, ticket, NULL), QRUN_OK); }
    put_double(w, w.a, w.b);
    CHECK_INT(qr_device_transfer_out(w.device, w.back, w.b, N_BYTES, &ticket, NULL), QRUN_OK);
    CHECK_INT(qr_device_sync(w.device, NULL), QRUN_OK);
    for (int i = 0; i < THREADS; i++) { is_right = is_right && w.back[i] == 2 * (i + 1); }
    close_world(w);
    return is_right;
}

static void test_an_op_that_does_not_wait_for_a_transfer(void) {
    int n_right = 0, n_wrong = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        CHECK_MSG(doubles(seed, true), "seed %d: right order, wrong result", seed);
        n_right += doubles(seed, false);
        n_wrong += !doubles(seed, false);
    }
    CHECK_MSG(n_wrong > SEEDS / 4, "the missing wait showed %d times", n_wrong);
    CHECK_MSG(n_right > 0, "no transfer was ever early");
}

/* Runs in a process of its own, which ends itself if all is well. */
static bool is_caught(void (*run)(const world &w)) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) { _exit(1); }
        const world w = open_world(3);
        run(w);
        (void)qr_device_sync(w.device, NULL);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void overwrite_what_is_sent(const world &w) {
    uint64_t ticket = 0;
    (void)qr_device_copy_in(w.device, w.a, w.host, N_BYTES, NULL);
    (void)qr_device_transfer_out(w.device, w.back, w.a, N_BYTES, &ticket, NULL);
    put_double(w, w.a, w.a);
}

static void overwrite_after_a_wait(const world &w) {
    uint64_t ticket = 0;
    (void)qr_device_copy_in(w.device, w.a, w.host, N_BYTES, NULL);
    (void)qr_device_transfer_out(w.device, w.back, w.a, N_BYTES, &ticket, NULL);
    (void)qr_device_transfer_wait(w.device, ticket, NULL);
    put_double(w, w.a, w.a);
}

static void change_host_memory(const world &w) {
    uint64_t ticket = 0;
    (void)qr_device_transfer_in(w.device, w.a, w.host, N_BYTES, &ticket, NULL);
    w.host[THREADS - 1] = 0;
}

static void test_a_source_that_changes(void) {
    CHECK(is_caught(overwrite_what_is_sent));
    CHECK(is_caught(change_host_memory));
    CHECK(!is_caught(overwrite_after_a_wait));
}

/* A step whose table comes from pinned memory, as a decode step's do. `scale` is what the host knew when it issued the
 * step; in a step that may be replayed it is in the table too. */
static void issue_step(const world &w, int scale) {
    CHECK_INT(qr_device_copy_in_async(w.device, w.a, w.host, N_BYTES, NULL), QRUN_OK);
    CHECK_INT(QR_LAUNCH(w.device, NULL, scale_kernel, dim3(1), THREADS, 0, w.a, scale, w.b), QRUN_OK);
}

/* Replays a recorded step with tables that change, and returns how often it gives what issuing it would. */
static int n_right_replays(bool scale_from_host) {
    enum { STEPS = 5 };
    const world w = open_world(0);
    qr_recording *recording = NULL;
    int n_right = 0;
    CHECK_INT(qr_device_record_begin(w.device, NULL), QRUN_OK);
    issue_step(w, scale_from_host ? w.host[0] : 1);
    CHECK_INT(qr_device_record_end(w.device, &recording, NULL), QRUN_OK);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < THREADS; i++) { w.host[i] = 10 * step + i + 1; }
        CHECK_INT(qr_device_replay(w.device, recording, NULL), QRUN_OK);
        CHECK_INT(qr_device_copy_out(w.device, w.back, w.b, N_BYTES, NULL), QRUN_OK);
        const int scale = scale_from_host ? w.host[0] : 1;
        n_right += w.back[THREADS - 1] == scale * w.host[THREADS - 1];
    }
    qr_device_recording_destroy(w.device, recording);
    close_world(w);
    return n_right;
}

static void test_a_replay_with_other_tables(void) {
    CHECK_INT(n_right_replays(false), 5);
    CHECK_INT(n_right_replays(true), 1); /* what the host put into the recording stays */
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_an_op_that_does_not_wait_for_a_transfer);
    CHECK_RUN(test_a_source_that_changes);
    CHECK_RUN(test_a_replay_with_other_tables);
    return check_end();
}
