/* Every op of the CUDA backend against the reference, its kernels executed by the processor (tests/simt). What was not
 * executed is listed by name; a kernel that no test launched is a failure. */
#include "op_harness.h"

#include <dirent.h>

#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "cuda_simt.h"
#include "kernels/cuda/absent.h"

/* Two backends, as with one thread and two: here what differs is the order in which threads run. */
static bool add_devices(qr_error *err) {
    qr_backend *one, *two;
    if (qr_backend_cuda_simt_create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (qr_backend_cuda_simt_create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
    op_add_device("cuda-simt", one, two);
    return true;
}

static bool is_absent(qr_op op) {
    switch (op) {
#define QR_X(name) case QR_OP_##name: return true;
        QR_CUDA_ABSENT_OPS(QR_X)
#undef QR_X
    default: return false;
    }
}

/* Kernels that need a GPU carry this word before __global__. */
static const char gpu_only[] = "QR_GPU_ONLY";

/* Each "__global__ void name(" of a source. Templates and qualifiers stand before or between. */
static void check_kernels_of(const char *file, const char *text) {
    for (const char *at = text; (at = strstr(at, "__global__")) != NULL;) {
        const bool needs_gpu = at - text > (ptrdiff_t)sizeof gpu_only &&
                               strncmp(at - sizeof gpu_only, gpu_only, sizeof gpu_only - 1) == 0;
        const char *open = strchr(at, '(');
        if (open == NULL) { return; }
        if (strncmp(open - strlen("__launch_bounds__"), "__launch_bounds__", strlen("__launch_bounds__")) == 0) {
            open = strchr(open + 1, '(');
        }
        const char *name = open;
        while (name > at && name[-1] != ' ') { name--; }
        const int length = (int)(open - name);
        if (needs_gpu) {
            printf("not executed here, needs a GPU: %.*s (%s)\n", length, name, file);
        } else {
            CHECK_MSG(qr_cuda_simt_was_launched(name, (size_t)length), "no test launched %.*s of kernels/cuda/%s",
                      length, name, file);
        }
        at = open;
    }
}

static void test_every_kernel_was_launched(void) {
    static const char folder[] = QRUN_SOURCE_DIR "/kernels/cuda";
    DIR *entries = opendir(folder);
    REQUIRE(entries != NULL);
    int n_sources = 0;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        const char *ending = strrchr(entry->d_name, '.');
        if (ending == NULL || (strcmp(ending, ".cu") != 0 && strcmp(ending, ".cuh") != 0)) { continue; }
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        char *text = NULL;
        size_t size;
        REQUIRE(qr_file_read(path, 1 << 20, &text, &size, NULL) == QRUN_OK);
        check_kernels_of(entry->d_name, text);
        qr_free(text);
        n_sources++;
    }
    closedir(entries);
    CHECK(n_sources > 10);
}

static void test_limits_are_measured(void) {
    qr_backend *backend = op_everything.devices[0].backends[0];
    qr_backend_limits limits = {0};
    CHECK_INT(backend->measure_limits(backend, 0.0, &limits, NULL), QRUN_OK);
    CHECK(limits.read_bytes_per_second > 0.0 && limits.bf16_flops > 0.0 && limits.f32_flops > 0.0);
}

static void run_op(qr_op op, const char *op_name, const char *test_name, void (*test)(void)) {
    if (is_absent(op)) {
        printf("not executed: %s is not in the CUDA backend yet\n", op_name);
        return;
    }
    check_case(test_name, test);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    qr_cuda_simt_seed(OP_SEED);
    if (!op_world_create(add_devices)) { return 1; }
    CHECK_RUN(test_memory_is_counted_and_zeroed);
    CHECK_RUN(test_weight_round_trip);
    CHECK_RUN(test_weight_rows_are_checked);
    CHECK_RUN(test_loading_quantizes_on_the_device);
    CHECK_RUN(test_loading_sends_codes);
    CHECK_RUN(test_transfers_keep_their_order);
    CHECK_RUN(test_limits_are_measured);
#define QR_X(name) run_op(QR_OP_##name, #name, "test_op_" #name, test_op_##name);
    QR_OPS(QR_X)
#undef QR_X
    if (argc == 1) { CHECK_RUN(test_every_kernel_was_launched); }
    op_world_destroy();
    return check_end();
}
