/* Every op of the CUDA backend against the reference, its kernels executed on the CPU (tests/simt). What was not
 * executed is listed by name; a kernel that no test launched is a failure. */
#include "op_cuda.h"

#include <dirent.h>

#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "cuda_simt.h"

/* Two backends, as with one thread and two: here what differs is the order in which threads run. */
static bool add_devices(qr_error *err) { return op_cuda_add_devices(qr_backend_cuda_simt_create, err); }

/* Kernels that need a GPU carry this word before __global__. */
static const char gpu_only[] = "QR_GPU_ONLY";

/* Each "__global__ void name(" of a source. Templates and qualifiers stand before or between. */
static void check_kernels_of(const char *file, const char *text) {
    for (const char *at = text; (at = strstr(at, "__global__")) != NULL;) {
        const bool needs_gpu =
            at - text > (ptrdiff_t)sizeof gpu_only && strncmp(at - sizeof gpu_only, gpu_only, sizeof gpu_only - 1) == 0;
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

/* What a comment "QR_GPU_ONLY: names" of a source says. */
static void list_gpu_only(const char *file, const char *text) {
    static const char mark[] = "QR_GPU_ONLY: ";
    for (const char *at = text; (at = strstr(at, mark)) != NULL; at++) {
        const char *names = at + sizeof mark - 1;
        printf("not executed here, needs a GPU: %.*s (%s)\n", (int)strcspn(names, "\n"), names, file);
    }
}

/* Checks the sources of a folder and of the folders in it; returns how many there are. */
static int check_folder(const char *folder) {
    DIR *entries = opendir(folder);
    int n_sources = 0;
    if (entries == NULL) { return 0; }
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        const char *ending = strrchr(entry->d_name, '.');
        if (ending == NULL) { n_sources += check_folder(path); }
        if (ending == NULL || (strcmp(ending, ".cu") != 0 && strcmp(ending, ".cuh") != 0)) { continue; }
        char *text = NULL;
        size_t size;
        CHECK_INT(qr_file_read(path, 1 << 20, &text, &size, NULL), QRUN_OK);
        if (text == NULL) { continue; }
        check_kernels_of(entry->d_name, text);
        list_gpu_only(entry->d_name, text);
        qr_free(text);
        n_sources++;
    }
    closedir(entries);
    return n_sources;
}

static void test_every_kernel_was_launched(void) { CHECK(check_folder(QRUN_SOURCE_DIR "/kernels/cuda") > 50); }

static void expect_features(const char *name, const char *value, const char *part) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    char text[384];
    CHECK(setenv(name, value, 1) == 0);
    CHECK_MSG(qr_backend_cuda_simt_create(op_everything.threads[0], &backend, &err) == QRUN_OK, "%s", err.message);
    if (backend != NULL) {
        backend->features(backend, text, sizeof text);
        CHECK_MSG(strstr(text, part) != NULL, "%s=%s: no \"%s\" in \"%s\"", name, value, part, text);
    }
    qr_backend_destroy(backend);
    CHECK(unsetenv(name) == 0);
}

/* What the environment turns off is said, and with it why. */
static void test_switches(void) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    expect_features("QRUN_CUDA_GRAPHS", "1", "graphs on; early launch on; steps ahead on; wgmma on;");
    expect_features("QRUN_CUDA_CUBLASLT", "1", "cuBLASLt /simt/cublasLt");
    expect_features("QRUN_CUDA_RUN_AHEAD", "0", "steps ahead off: QRUN_CUDA_RUN_AHEAD;");
    expect_features("QRUN_CUDA_GRAPHS", "0", "graphs off: QRUN_CUDA_GRAPHS;");
    expect_features("QRUN_CUDA_EARLY_LAUNCH", "0", "early launch off: QRUN_CUDA_EARLY_LAUNCH;");
    expect_features("QRUN_CUDA_WGMMA", "0", "wgmma off: QRUN_CUDA_WGMMA;");
    expect_features("QRUN_CUDA_CUBLASLT", "0", "cuBLASLt (off: QRUN_CUDA_CUBLASLT)");
    expect_features("QRUN_SIMT_CUBLASLT", "0", "cuBLASLt (not found)");
    expect_features("QRUN_SIMT_CAPABILITY", "8.6", "wgmma none;");
    expect_features("QRUN_FORCE_ISA", "sm_80", "wgmma off: QRUN_FORCE_ISA;");
    CHECK(setenv("QRUN_CUDA_GRAPHS", "off", 1) == 0);
    CHECK_INT(qr_backend_cuda_simt_create(op_everything.threads[0], &backend, &err), QRUN_ERROR_ARGUMENT);
    CHECK_STR(err.message, "cuda: QRUN_CUDA_GRAPHS is \"off\"; it is 0 or 1");
    CHECK(unsetenv("QRUN_CUDA_GRAPHS") == 0);
}

static void expect_isa(const char *name, const char *value, const char *isa) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    if (name != NULL) { CHECK(setenv(name, value, 1) == 0); }
    CHECK_MSG(qr_backend_cuda_simt_create(op_everything.threads[0], &backend, &err) == QRUN_OK, "%s", err.message);
    if (backend != NULL) { CHECK_STR(backend->isa, isa); }
    qr_backend_destroy(backend);
    if (name != NULL) { CHECK(unsetenv(name) == 0); }
}

/* Products of a warpgroup are used where they give the bits of those of a warp. Rounding is told from a fault, and
 * neither keeps the device from being opened. Those that break it: tests/simt/test_wgmma_faults.cc. */
static void test_wgmma_is_checked(void) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    expect_isa("QRUN_SIMT_WGMMA", "differs", "simt without wgmma");
    expect_features("QRUN_SIMT_WGMMA", "differs", "wgmma off: it rounds otherwise, by ");
    expect_features("QRUN_SIMT_WGMMA", "wrong", "wgmma off: FAULT: NF4, rows from 64, outputs from 0: differs by ");
    expect_isa("QRUN_SIMT_WGMMA", "wide", "simt");
    expect_features("QRUN_SIMT_WGMMA", "wide",
                    "wgmma on, its wide tiles off: FAULT: NF4, rows from 64, outputs from 0: ");
    expect_isa("QRUN_CUDA_WGMMA", "0", "simt without wgmma");
    expect_isa("QRUN_FORCE_ISA", "sm_80", "simt as sm_80");
    expect_isa("QRUN_FORCE_ISA", "sm_90", "simt");
    expect_isa("QRUN_FORCE_ISA", "c", "simt"); /* a CPU's: not read */
    expect_isa("QRUN_SIMT_CAPABILITY", "8.6", "simt");
    expect_isa("QRUN_SIMT_CAPABILITY", "10.0", "simt");
    CHECK(setenv("QRUN_FORCE_ISA", "sm_75", 1) == 0);
    CHECK_INT(qr_backend_cuda_simt_create(op_everything.threads[0], &backend, &err), QRUN_ERROR_ARGUMENT);
    CHECK(strstr(err.message, "this GPU has: sm_90, sm_80") != NULL);
    CHECK(unsetenv("QRUN_FORCE_ISA") == 0);
    expect_isa(NULL, NULL, "simt"); /* with the sums of the tests' own backends again */
}

/* Many rows with products of a warpgroup and without. */
static void test_linear_with_and_without_wgmma(void) {
    CHECK_STR(op_everything.devices[0].backends[0]->isa, "simt");
    op_cuda_linear_without_wgmma(qr_backend_cuda_simt_create, 136, false);
}

static size_t training_workspace(int64_t rows) {
    const qr_weight weight = {.desc = {.format = QR_WEIGHT_INT8, .rows = rows, .cols = 8}};
    const qr_linear_args args = {
        .weight = &weight, .x_dtype = QR_DTYPE_BF16, .n_rows = 128, .x_stride = 8, .y_stride = rows, .any_order = true};
    return qr_linear_workspace(op_everything.devices[0].backends[0], &args);
}

/* 16 KiB are 1,024 rows of 8 columns (device_cublaslt.cc). A matrix of 1,152 rows has a panel of 512 and one of 640,
 * and not one of 1,024 and a small one: products of few outputs leave a GPU idle. INT8 has panels too. */
static void test_panels_are_equal(void) {
    CHECK(training_workspace(8) > 0);
    CHECK(training_workspace(512) < training_workspace(640));
    CHECK(training_workspace(1152) == training_workspace(640));
    CHECK(training_workspace(2048) == training_workspace(1024));
}

/* Consumer GPUs: more multiprocessors than the other devices here, of 100 KiB of shared memory each. So other tiles are
 * chosen and fewer blocks stay, with the same bits. simt refuses a launch with more than their 99 KiB. */
static void test_linear_on_consumer_gpus(void) {
    const int n_devices = op_everything.n_devices;
    qr_error err = {0};
    CHECK(setenv("QRUN_SIMT_CAPABILITY", "8.9", 1) == 0);
    expect_features("QRUN_SIMT_MULTIPROCESSORS", "128", "128 multiprocessors, 99 KiB of shared memory a block");
    CHECK(setenv("QRUN_SIMT_MULTIPROCESSORS", "128", 1) == 0);
    CHECK_MSG(op_cuda_add_devices(qr_backend_cuda_simt_create, &err), "%s", err.message);
    CHECK(unsetenv("QRUN_SIMT_MULTIPROCESSORS") == 0);
    CHECK(unsetenv("QRUN_SIMT_CAPABILITY") == 0);
    op_linear_same_bits(136, false);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
    expect_features("QRUN_SIMT_CAPABILITY", "8.6", "99 KiB of shared memory");
    expect_features("QRUN_SIMT_CAPABILITY", "12.0", "99 KiB of shared memory");
    expect_features("QRUN_SIMT_CAPABILITY", "8.0", "163 KiB of shared memory");
    expect_features("QRUN_SIMT_CAPABILITY", "9.0", "227 KiB of shared memory");
    expect_isa(NULL, NULL, "simt");
}

/* For 9 to 64 rows GPUs of 1, 3 and 132 multiprocessors choose tiles of 128, 64 and 32 outputs, and one with less
 * shared memory has another kernel: with the same bits. */
static void test_linear_in_every_staged_tile(void) {
    static const struct {
        const char *capability, *multiprocessors;
    } gpus[] = {{"9.0", "3"}, {"9.0", "132"}, {"8.9", "128"}};
    const int n_devices = op_everything.n_devices;
    for (unsigned i = 0; i < QR_COUNT_OF(gpus); i++) {
        qr_error err = {0};
        CHECK(setenv("QRUN_SIMT_CAPABILITY", gpus[i].capability, 1) == 0);
        CHECK(setenv("QRUN_SIMT_MULTIPROCESSORS", gpus[i].multiprocessors, 1) == 0);
        CHECK_MSG(op_cuda_add_devices(qr_backend_cuda_simt_create, &err), "%s", err.message);
        CHECK(unsetenv("QRUN_SIMT_MULTIPROCESSORS") == 0);
        CHECK(unsetenv("QRUN_SIMT_CAPABILITY") == 0);
    }
    op_linear_few_rows(100);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
}

/* Clusters that take several pairs of tiles in turn, and a last one that is half outside the matrix: 5 multiprocessors
 * have two clusters. The workspace grows with the rows. */
static void test_linear_in_wide_tiles(void) {
    const int n_devices = op_everything.n_devices;
    qr_error err = {0};
    CHECK(setenv("QRUN_SIMT_MULTIPROCESSORS", "5", 1) == 0);
    CHECK_MSG(op_cuda_add_devices(qr_backend_cuda_simt_create, &err), "%s", err.message);
    CHECK(unsetenv("QRUN_SIMT_MULTIPROCESSORS") == 0);
    op_linear_most_rows(264);
    const qr_weight weight = {.desc = {.format = QR_WEIGHT_NF4, .block = QR_NF4_BLOCK, .rows = 264, .cols = 64}};
    const qr_backend *backend = op_everything.devices[n_devices].backends[0];
    size_t before = 0;
    for (int64_t n = 64; n < 20000; n += 61) {
        const qr_linear_args args = {
            .weight = &weight, .x_dtype = QR_DTYPE_BF16, .n_rows = n, .x_stride = 64, .y_stride = 264};
        const size_t n_bytes = qr_linear_workspace(backend, &args);
        CHECK(n_bytes >= before && (n_bytes > 0) == (n >= 256));
        before = n_bytes;
    }
    CHECK(before < (8192 + 512) * 64 * 2 + 1024);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
}

static void test_small_workspaces_are_refused(void) { op_cuda_check_workspaces(); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    qr_cuda_simt_seed(OP_SEED);
    if (!op_world_create(add_devices)) { return 1; }
    op_cuda_run_tests(0.0);
    CHECK_RUN(test_switches);
    CHECK_RUN(test_wgmma_is_checked);
    CHECK_RUN(test_linear_with_and_without_wgmma);
    CHECK_RUN(test_panels_are_equal);
    CHECK_RUN(test_linear_on_consumer_gpus);
    CHECK_RUN(test_linear_in_every_staged_tile);
    CHECK_RUN(test_linear_in_wide_tiles);
    if (argc == 1) {
        CHECK_RUN(test_small_workspaces_are_refused);
        CHECK_RUN(test_every_kernel_was_launched);
    }
    op_world_destroy();
    return check_end();
}
