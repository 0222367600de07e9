/* The measured peaks of the machine. Their size cannot be known; that they are numbers a computer can have can. */
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
    qrun_peaks peaks = QRUN_PEAKS_INIT;
    CHECK(qrun_context_measure_peaks(context, 0.0, &peaks, &error) == QRUN_OK);
    check_plausible("bandwidth", peaks.read_bytes_per_second);
    check_plausible("BF16", peaks.bf16_flops);
    check_plausible("F32", peaks.f32_flops);
    const bool on_processor = peaks.f16_flops == peaks.f32_flops, on_gpu = peaks.f16_flops == peaks.bf16_flops;
    CHECK_MSG(on_processor || on_gpu, "F16 is computed at %g, BF16 at %g, F32 at %g", peaks.f16_flops, peaks.bf16_flops,
              peaks.f32_flops);
    CHECK(peaks.struct_size == sizeof peaks);

    const double unfit[] = {-1.0, NAN, INFINITY, 1e9};
    for (size_t i = 0; i < sizeof unfit / sizeof unfit[0]; i++) {
        qrun_error refused = QRUN_ERROR_INIT;
        CHECK(qrun_context_measure_peaks(context, unfit[i], &peaks, &refused) == QRUN_ERROR_ARGUMENT);
    }
    peaks.struct_size = 1;
    CHECK(qrun_context_measure_peaks(context, 0.0, &peaks, &error) == QRUN_ERROR_ARGUMENT);
    qrun_context_destroy(context);
}

static void test_of_the_reference_backend(void) {
    qr_error err = {0};
    qr_backend *backend = NULL;
    REQUIRE(qr_backend_ref_create(NULL, &backend, &err) == QRUN_OK);
    qr_backend_peaks peaks = {0};
    CHECK(backend->measure_peaks(backend, 0.0, &peaks, &err) == QRUN_OK);
    check_plausible("bandwidth", peaks.read_bytes_per_second);
    check_plausible("BF16", peaks.bf16_flops);
    check_plausible("F32", peaks.f32_flops);
    qr_backend_destroy(backend);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_of_a_context);
    CHECK_RUN(test_of_the_reference_backend);
    return check_end();
}
