/* Every op of the CUDA backend in libqrun_cuda.so, on the GPU of this machine, against the reference. Skipped, with the
 * reason, on a machine without one. */
#include "op_cuda.h"

#include "check.h"

enum { EXIT_SKIPPED = 77 };

static bool add_devices(qr_error *err) { return op_cuda_add_devices(qr_backend_cuda_create, err); }

/* Many rows on Hopper: the GPU's own kernels and those of every GPU. As many outputs as fill it. */
static void test_linear_with_and_without_wgmma(void) {
    op_cuda_linear_without_wgmma(qr_backend_cuda_create, 8 * 1024 + 264, true);
}

static void test_small_workspaces_are_refused(void) { op_cuda_check_workspaces(); }

int main(int argc, char **argv) {
    check_begin(argc, argv);
    printf("seed %d\n", OP_SEED);
    if (!op_world_create(add_devices)) { return EXIT_SKIPPED; }
    op_cuda_run_tests(0.1);
    CHECK_RUN(test_linear_with_and_without_wgmma);
    if (argc == 1) { CHECK_RUN(test_small_workspaces_are_refused); }
    op_world_destroy();
    return check_end();
}
