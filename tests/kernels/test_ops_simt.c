/* Every op of the CUDA backend against the reference, its kernels executed by the processor (tests/simt). What was not
 * executed is listed by name; a kernel that no test launched is a failure. */
#include "op_harness.h"

#include <dirent.h>

#include "check.h"

#include "base/alloc.h"
#include "base/file.h"
#include "cuda_simt.h"
#include "kernels/cuda/backend/unsupported.h"

/* Two backends, as with one thread and two: here what differs is the order in which threads run. */
static bool add_devices(qr_error *err) {
    qr_backend *one, *two;
    if (qr_backend_cuda_simt_create(op_everything.threads[0], &one, err) != QRUN_OK) { return false; }
    if (qr_backend_cuda_simt_create(op_everything.threads[1], &two, err) != QRUN_OK) { return false; }
    op_add_device(one->isa, one, two);
    return true;
}

static bool is_unsupported(qr_op op) {
    switch (op) {
#define QR_X(name) \
    case QR_OP_##name: return true;
        QR_CUDA_UNSUPPORTED_OPS(QR_X)
#undef QR_X
        default: return false;
    }
}

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

static bool ends_in(const char *name, const char *ending) {
    const size_t length = strlen(name), n = strlen(ending);
    return length > n && strcmp(name + length - n, ending) == 0;
}

/* The sources below a folder; returns how many there are. */
static int check_kernels_below(const char *folder) {
    DIR *entries = opendir(folder);
    if (entries == NULL) { return 0; }
    int n_sources = 0;
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (ends_in(entry->d_name, ".cu") || ends_in(entry->d_name, ".cuh")) {
            char *text = NULL;
            size_t size;
            n_sources++;
            CHECK(qr_file_read(path, 1 << 20, &text, &size, NULL) == QRUN_OK);
            if (text != NULL) {
                check_kernels_of(entry->d_name, text);
                list_gpu_only(entry->d_name, text);
            }
            qr_free(text);
        } else if (strchr(entry->d_name, '.') == NULL) {
            n_sources += check_kernels_below(path);
        }
    }
    closedir(entries);
    return n_sources;
}

static void test_every_kernel_was_launched(void) { CHECK(check_kernels_below(QRUN_SOURCE_DIR "/kernels/cuda") > 50); }

static void expect_isa(const char *name, const char *value, const char *isa) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    if (name != NULL) { CHECK(setenv(name, value, 1) == 0); }
    CHECK_MSG(qr_backend_cuda_simt_create(op_everything.threads[0], &backend, &err) == QRUN_OK, "%s", err.message);
    if (backend != NULL) { CHECK_STR(backend->isa, isa); }
    qr_backend_destroy(backend);
    if (name != NULL) { CHECK(unsetenv(name) == 0); }
}

/* Products of a warpgroup are used where they give the bits of those of a warp, and the description says so. */
static void test_wgmma_is_checked(void) {
    qr_backend *backend = NULL;
    qr_error err = {0};
    expect_isa("QRUN_SIMT_WGMMA", "differs", "simt without wgmma, whose bits differ");
    expect_isa("QRUN_FORCE_ISA", "sm_80", "simt as sm_80");
    expect_isa("QRUN_FORCE_ISA", "sm_90", "simt");
    expect_isa("QRUN_FORCE_ISA", "c", "simt"); /* the processor's */
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
    CHECK(setenv("QRUN_FORCE_ISA", "sm_80", 1) == 0);
    const int n_devices = op_everything.n_devices;
    qr_error err = {0};
    CHECK_MSG(add_devices(&err), "%s", err.message);
    CHECK(unsetenv("QRUN_FORCE_ISA") == 0);
    op_linear_same_bits(136, false);
    while (op_everything.n_devices > n_devices) { op_remove_device(); }
}

static void test_limits_are_measured(void) {
    qr_backend *backend = op_everything.devices[0].backends[0];
    qr_backend_limits limits = {0};
    CHECK_INT(backend->measure_limits(backend, 0.0, &limits, NULL), QRUN_OK);
    CHECK(limits.read_bytes_per_second > 0.0 && limits.bf16_flops > 0.0 && limits.f32_flops > 0.0);
}

static void run_op(qr_op op, const char *op_name, const char *test_name, void (*test)(void)) {
    if (is_unsupported(op)) {
        printf("not executed: %s is not in the CUDA backend yet\n", op_name);
        return;
    }
    check_case(test_name, test);
}

static void test_small_workspaces_are_refused(void) { op_check_workspaces(is_absent); }

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
    CHECK_RUN(test_wgmma_is_checked);
    CHECK_RUN(test_linear_with_and_without_wgmma);
    if (argc == 1) {
        CHECK_RUN(test_small_workspaces_are_refused);
        CHECK_RUN(test_every_kernel_was_launched);
    }
    op_world_destroy();
    return check_end();
}
