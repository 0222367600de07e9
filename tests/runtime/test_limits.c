/* The measured limits of the machine. Their size cannot be known; that they are numbers a computer can have can. */
#include <check.h>

#include "kernels/backend.h"
#include "qrun.h"

static void check_plausible(const char *what, double value) {
    CHECK_MSG(value > 1e6 && value < 1e18, "%s is %g", what, value);
}

static void test_of_a_context(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = NULL;
    REQUIRE(qrun_context_create(NULL, &context, &error) == QRUN_OK);
    qrun_limits limits = QRUN_LIMITS_INIT;
    CHECK(qrun_context_measure_limits(context, 0.0, &limits, &error) == QRUN_OK);
    check_plausible("bandwidth", limits.read_bytes_per_second);
    check_plausible("BF16", limits.bf16_flops);
    check_plausible("F32", limits.f32_flops);
    const bool on_processor = limits.f16_flops == limits.f32_flops, on_gpu = limits.f16_flops == limits.bf16_flops;
    CHECK_MSG(on_processor || on_gpu, "F16 is computed at %g, BF16 at %g, F32 at %g", limits.f16_flops,
              limits.bf16_flops, limits.f32_flops);
    CHECK(limits.struct_size == sizeof limits);

    const double unfit[] = {-1.0, NAN, INFINITY, 1e9};
    for (size_t i = 0; i < sizeof unfit / sizeof unfit[0]; i++) {
        qrun_error refused = QRUN_ERROR_INIT;
        CHECK(qrun_context_measure_limits(context, unfit[i], &limits, &refused) == QRUN_ERROR_ARGUMENT);
    }
    limits.struct_size = 1;
    CHECK(qrun_context_measure_limits(context, 0.0, &limits, &error) == QRUN_ERROR_ARGUMENT);
    qrun_context_destroy(context);
}

static void test_of_the_reference_backend(void) {
    qr_error err = {0};
    qr_backend *backend = NULL;
    REQUIRE(qr_backend_ref_create(NULL, &backend, &err) == QRUN_OK);
    qr_backend_limits limits = {0};
    CHECK(backend->measure_limits(backend, 0.0, &limits, &err) == QRUN_OK);
    check_plausible("bandwidth", limits.read_bytes_per_second);
    check_plausible("BF16", limits.bf16_flops);
    check_plausible("F32", limits.f32_flops);
    qr_backend_destroy(backend);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_of_a_context);
    CHECK_RUN(test_of_the_reference_backend);
    return check_end();
}
