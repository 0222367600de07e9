/* The check that a GPU has to pass before it is used: every backend here passes it that rounds weights as GPUs do, as
 * all do with portable numerics, and one that errs does not. */
#include <math.h>
#include <string.h>

#include "check.h"

#include "kernels/self_check.h"

static qr_threads *threads;

static void test_every_instruction_set_passes(void) {
    for (const char *const *isa = qr_backend_cpu_isas(); *isa != NULL; isa++) {
        qr_backend *backend;
        qr_error err = QRUN_ERROR_INIT;
        REQUIRE(qr_backend_cpu_create_portable(*isa, threads, &backend, &err) == QRUN_OK);
        CHECK_MSG(qr_backend_self_check(backend, &err) == QRUN_OK, "%s: %s", *isa, err.message);
        size_t held, peak;
        backend->memory_held(backend, &held, &peak);
        CHECK_INT(held, 0);
        qr_backend_destroy(backend);
    }
}

/* --- A backend that errs: the processor's, with one op replaced --- */

static qr_op_impl right;

/* One number of the product is off by a little. */
static qrun_status linear_off(qr_backend *backend, const void *untyped, void *workspace, qr_error *err) {
    const qr_linear_args *args = untyped;
    const qrun_status status = right.run(backend, args, workspace, err);
    args->y[args->y_stride + 5] += 0.01F;
    return status;
}

/* Another order of sums where there are many rows. */
static qrun_status linear_by_batch(qr_backend *backend, const void *untyped, void *workspace, qr_error *err) {
    const qr_linear_args *args = untyped;
    const qrun_status status = right.run(backend, args, workspace, err);
    if (args->n_rows > 8) { args->y[3] = nextafterf(args->y[3], 100.0F); }
    return status;
}

/* Forgets the last position. */
static qrun_status attention_short(qr_backend *backend, const void *untyped, void *workspace, qr_error *err) {
    qr_attention_args args = *(const qr_attention_args *)untyped;
    const int32_t before_last = *args.first_position - 1;
    args.first_position = &before_last;
    return right.run(backend, &args, workspace, err);
}

static qrun_status fails(qr_backend *backend, const void *args, void *workspace, qr_error *err) {
    (void)backend, (void)args, (void)workspace;
    return qr_fail(err, QRUN_ERROR_DEVICE, "the device is gone");
}

static void check_refused(qr_op op, qrun_status (*run)(qr_backend *, const void *, void *, qr_error *),
                          const char *said) {
    qr_backend *backend;
    qr_error err = QRUN_ERROR_INIT;
    REQUIRE(qr_backend_cpu_create_portable(NULL, threads, &backend, &err) == QRUN_OK);
    right = backend->ops[op];
    backend->ops[op].run = run;
    CHECK_INT(qr_backend_self_check(backend, &err), QRUN_ERROR_DEVICE);
    CHECK_MSG(strstr(err.message, said) != NULL, "no \"%s\" in: %s", said, err.message);
    size_t held, peak;
    backend->memory_held(backend, &held, &peak);
    CHECK_INT(held, 0);
    qr_backend_destroy(backend);
}

static void test_wrong_numbers_are_named(void) {
    check_refused(QR_OP_linear, linear_off, "nf4-dq weights");
    check_refused(QR_OP_linear, linear_by_batch, "alone and among others");
    check_refused(QR_OP_attention, attention_short, "attention gives");
    check_refused(QR_OP_kv_write, fails, "the device is gone");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_threads_create(2, &threads, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_every_instruction_set_passes);
    CHECK_RUN(test_wrong_numbers_are_named);
    qr_threads_destroy(threads);
    return check_end();
}
