/* Faults with bulk copies and the barriers that they complete, which tests/simt must show, each in a kernel that is
 * right without it. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/linear/bulk_copy.cuh"

extern "C" {
#include "check.h"
}

enum { THREADS = 64, N = 32, ROUNDS = 5, STAGES = 2, BYTES = N * 4 };

enum fault {
    NONE,
    HAS_A_LIMIT, /* none */
    NEVER_FREES_WITH_A_LIMIT,
    READS_WITHOUT_WAITING,
    FREES_BEFORE_READING,
    COPIES_WITHOUT_WAITING,
    COPIES_TOO_LITTLE,
    COPIES_TOO_MUCH,
    NEVER_FREES,
    FREES_TWICE,
    FORGETS_A_BARRIER,
    LEAVES_A_COPY,
};

struct memory {
    float values[STAGES][N];
    phase_barrier full[STAGES], free[STAGES];
};

static void produce(memory &shared, const float *src, fault with) {
    for (unsigned n = 0; n < ROUNDS; n++) {
        const unsigned stage = n % STAGES;
        if (n >= STAGES && with != COPIES_WITHOUT_WAITING) {
            if (with == HAS_A_LIMIT || with == NEVER_FREES_WITH_A_LIMIT) {
                phase_barrier_wait_or_trap(shared.free[stage], (n / STAGES + 1) % 2);
            } else {
                phase_barrier_wait(shared.free[stage], (n / STAGES + 1) % 2);
            }
        }
        phase_barrier_expect(shared.full[stage], with == COPIES_TOO_MUCH ? BYTES / 2 : +BYTES);
        copy_bulk(shared.values[stage], src + n * N, with == COPIES_TOO_LITTLE ? BYTES / 2 : +BYTES,
                  shared.full[stage]);
    }
}

static void consume(memory &shared, float *dst, fault with) {
    for (unsigned n = 0; n + (with == LEAVES_A_COPY ? 1 : 0) < ROUNDS; n++) {
        const unsigned stage = n % STAGES;
        if (with != READS_WITHOUT_WAITING) { phase_barrier_wait(shared.full[stage], n / STAGES % 2); }
        if (with == FREES_BEFORE_READING) { phase_barrier_arrive_in(shared.free[stage], 0); }
        dst[n * N + lane_index()] = shared.values[stage][lane_index()];
        if (with != FREES_BEFORE_READING && with != NEVER_FREES && with != NEVER_FREES_WITH_A_LIMIT) {
            phase_barrier_arrive_in(shared.free[stage], 0);
        }
        if (with == FREES_TWICE) { phase_barrier_arrive_in(shared.free[stage], 0); }
    }
}

static void rounds_kernel(const float *src, float *dst, fault with) {
    memory &shared = *shared_memory<memory>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            phase_barrier_create(shared.full[i], 1);
            if (with != FORGETS_A_BARRIER) { phase_barrier_create(shared.free[i], N); }
        }
        phase_barriers_show();
    }
    __syncthreads();
    if (threadIdx.x == 0) { produce(shared, src, with); }
    if (threadIdx.x >= N) { consume(shared, dst, with); }
}

enum cluster_fault { NO_FAULT, DOES_NOT_MEET_FIRST, LEAVES_TOO_EARLY, FREES_ONE_BLOCK, FREES_BEFORE_READING_BOTH };

/* Two blocks, each of which copies half of a row to both, and the rows' consumers free both. */
static void pair_kernel(const float *src, float *dst, cluster_fault with) {
    memory &shared = *shared_memory<memory>();
    const unsigned half = blockIdx.x % 2;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            phase_barrier_create(shared.full[i], 1);
            phase_barrier_create(shared.free[i], with == FREES_ONE_BLOCK ? N : 2 * N);
        }
        phase_barriers_show();
    }
    if (with == DOES_NOT_MEET_FIRST) {
        __syncthreads();
    } else {
        cluster_sync();
    }
    if (threadIdx.x == 0) {
        for (unsigned n = 0; n < ROUNDS; n++) {
            const unsigned stage = n % STAGES;
            if (n >= STAGES) { phase_barrier_wait(shared.free[stage], (n / STAGES + 1) % 2); }
            phase_barrier_expect(shared.full[stage], BYTES);
            copy_bulk_to_both(shared.values[stage] + half * N / 2, src + n * N + half * N / 2, BYTES / 2,
                              shared.full[stage]);
        }
    }
    if (threadIdx.x < N) { return; }
    for (unsigned n = 0; n < ROUNDS; n++) {
        const unsigned stage = n % STAGES;
        phase_barrier_wait(shared.full[stage], n / STAGES % 2);
        const auto free_both = [&] {
            for (unsigned block = 0; block < 2; block++) {
                if (with != FREES_ONE_BLOCK || block == half) { phase_barrier_arrive_in(shared.free[stage], block); }
            }
        };
        if (with == FREES_BEFORE_READING_BOTH) { free_both(); }
        if (half == n % 2) { dst[n * N + lane_index()] = shared.values[stage][lane_index()]; }
        if (with != FREES_BEFORE_READING_BOTH) { free_both(); }
    }
    if (with != LEAVES_TOO_EARLY) { cluster_sync(); }
}

static qr_device *device;
static float *src, *dst;

static void run(fault with) {
    CHECK_INT(QR_LAUNCH(device, NULL, rounds_kernel, dim3(1), THREADS, sizeof(memory), src, dst, with), QRUN_OK);
}

static void run(cluster_fault with) {
    CHECK_INT(QR_LAUNCH_CLUSTERS(device, NULL, pair_kernel, 2, dim3(4), THREADS, sizeof(memory), src, dst, with),
              QRUN_OK);
}

static void test_what_waits_is_right(void) {
    for (unsigned seed = 0; seed < 20; seed++) {
        simt::set_seed(seed);
        memset(dst, 0, ROUNDS * BYTES);
        run(NONE);
        for (int i = 0; i < ROUNDS * N; i++) { CHECK(dst[i] == static_cast<float>(i)); }
        memset(dst, 0, ROUNDS * BYTES);
        run(HAS_A_LIMIT);
        for (int i = 0; i < ROUNDS * N; i++) { CHECK(dst[i] == static_cast<float>(i)); }
        memset(dst, 0, ROUNDS * BYTES);
        run(NO_FAULT);
        for (int i = 0; i < ROUNDS * N; i++) { CHECK(dst[i] == static_cast<float>(i)); }
    }
}

/* Whether the kernel, run with each of some seeds by a process of its own, ends it or gives what is wrong. */
template <typename T> static bool shows(T with) {
    for (unsigned seed = 0; seed < 20; seed++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            if (freopen("/dev/null", "w", stderr) == NULL) { _exit(1); }
            simt::set_seed(seed);
            run(with);
            bool is_right = true;
            for (int i = 0; i < ROUNDS * N; i++) { is_right = is_right && dst[i] == static_cast<float>(i); }
            _exit(is_right ? 0 : 1);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) || WEXITSTATUS(status) == 1) { return true; }
    }
    return false;
}

static void test_faults_show(void) {
    CHECK(!shows(NONE));
    CHECK(shows(READS_WITHOUT_WAITING));
    CHECK(shows(FREES_BEFORE_READING));
    CHECK(shows(COPIES_WITHOUT_WAITING));
    CHECK(shows(COPIES_TOO_LITTLE));
    CHECK(shows(COPIES_TOO_MUCH));
    CHECK(shows(NEVER_FREES));
    CHECK(shows(FREES_TWICE));
    CHECK(shows(FORGETS_A_BARRIER));
    CHECK(shows(LEAVES_A_COPY));
    CHECK(!shows(NO_FAULT));
    CHECK(shows(DOES_NOT_MEET_FIRST));
    CHECK(shows(LEAVES_TOO_EARLY));
    CHECK(shows(FREES_ONE_BLOCK));
    CHECK(shows(FREES_BEFORE_READING_BOTH));
}

/* An arrival that is missing, where a wait has a limit, is an error of the device, which every later call gives too. */
static void test_a_wait_with_a_limit_ends(void) {
    for (unsigned seed = 0; seed < 20; seed++) {
        qr_device *broken = NULL;
        qr_error first = {}, later = {};
        simt::set_seed(seed);
        REQUIRE(qr_device_open(&broken, NULL) == QRUN_OK);
        CHECK_INT(QR_LAUNCH(broken, &first, rounds_kernel, dim3(1), THREADS, sizeof(memory), src, dst,
                            NEVER_FREES_WITH_A_LIMIT),
                  QRUN_ERROR_DEVICE);
        CHECK_STR(first.message, "cuda: rounds_kernel: it trapped");
        CHECK_INT(qr_device_sync(broken, &later), QRUN_ERROR_DEVICE);
        CHECK_STR(later.message, first.message);
        qr_device_close(broken);
        memset(dst, 0, ROUNDS * BYTES);
        run(NO_FAULT); /* what was left behind disturbs no other kernel */
        for (int i = 0; i < ROUNDS * N; i++) { CHECK(dst[i] == static_cast<float>(i)); }
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_device_open(&device, NULL) != QRUN_OK) { return 1; }
    for (float **buffer : {&src, &dst}) {
        void *made = NULL;
        CHECK_INT(qr_device_memory_create(device, QR_MEMORY_DEVICE, ROUNDS * BYTES, &made, NULL), QRUN_OK);
        *buffer = static_cast<float *>(made);
    }
    for (int i = 0; i < ROUNDS * N; i++) { src[i] = static_cast<float>(i); }
    CHECK_RUN(test_what_waits_is_right);
    CHECK_RUN(test_faults_show);
    CHECK_RUN(test_a_wait_with_a_limit_ends);
    for (float *buffer : {src, dst}) { qr_device_memory_destroy(device, QR_MEMORY_DEVICE, buffer); }
    qr_device_close(device);
    return check_end();
}
