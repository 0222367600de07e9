#include "failing_device.h"

#include <stdatomic.h>

static qr_backend *installed;
static qr_backend real; /* its functions */
static atomic_llong n_calls;
static int64_t fail_first, fail_n;
static int fail_op = -1; /* −1: any call */
static int64_t memory_bytes, shrink_from, shrunk_bytes;
static int64_t host_bytes; /* of QR_MEMORY_HOST, held */

static int64_t device_bytes(void) {
    size_t now, peak;
    real.memory_held(installed, &now, &peak);
    return (int64_t)now - host_bytes;
}

static qrun_status meet(int op, qr_error *err) {
    if (fail_op >= 0 && op != fail_op) { return QRUN_OK; }
    const int64_t n = atomic_fetch_add(&n_calls, 1) + 1;
    if (shrink_from > 0 && n == shrink_from) {
        memory_bytes = shrunk_bytes;
        return qr_fail_memory(err, "a call of the device", 1);
    }
    return fail_n > 0 && n >= fail_first && n - fail_first < fail_n ? qr_fail_memory(err, "a call of the device", 1)
                                                                    : QRUN_OK;
}

/* ---- What is called ---------------------------------------------------------------------------------------------- */

enum { NO_OP = QR_OP_COUNT };

static qrun_status memory_create(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err) {
    *memory = NULL;
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    if (memory_bytes > 0 && kind == QR_MEMORY_DEVICE && (int64_t)n_bytes > memory_bytes - device_bytes()) {
        return qr_fail_memory(err, "a block of the device", n_bytes);
    }
    const qrun_status status = real.memory_create(backend, kind, n_bytes, memory, err);
    if (status == QRUN_OK && kind == QR_MEMORY_HOST) { host_bytes += (int64_t)n_bytes; }
    return status;
}

static void memory_destroy(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes) {
    if (memory != NULL && kind == QR_MEMORY_HOST) { host_bytes -= (int64_t)n_bytes; }
    real.memory_destroy(backend, kind, memory, n_bytes);
}

static qrun_status memory_info(const qr_backend *backend, qr_backend_memory *memory, qr_error *err) {
    (void)backend, (void)err;
    *memory = (qr_backend_memory){.total_bytes = memory_bytes,
                                  .free_bytes = memory_bytes - device_bytes(),
                                  .host_held_bytes = host_bytes,
                                  .host_peak_bytes = host_bytes};
    return QRUN_OK;
}

static qrun_status copy_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.copy_in(backend, device, host, n_bytes, err);
}

static qrun_status copy_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.copy_out(backend, host, device, n_bytes, err);
}

static qrun_status copy_within(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.copy_within(backend, dst, src, n_bytes, err);
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.fill_zero(backend, device, n_bytes, err);
}

static qrun_status transfer_in(qr_backend *backend, void *device, const void *host, size_t n_bytes, uint64_t *ticket,
                               qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.transfer_in(backend, device, host, n_bytes, ticket, err);
}

static qrun_status transfer_out(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                qr_error *err) {
    QR_RETURN_IF_ERROR(meet(NO_OP, err));
    return real.transfer_out(backend, host, device, n_bytes, ticket, err);
}

#define QR_X(name)                                                                                         \
    static qrun_status run_##name(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        QR_RETURN_IF_ERROR(meet(QR_OP_##name, err));                                                       \
        return real.ops[QR_OP_##name].run(backend, args, workspace, err);                                  \
    }
QR_OPS(QR_X)
#undef QR_X

/* ---- What a test says -------------------------------------------------------------------------------------------- */

static void begin_counting(int op, int64_t first, int64_t n) {
    fail_op = op, fail_first = first, fail_n = n;
    shrink_from = 0;
    atomic_store(&n_calls, 0);
}

void failing_device_install(qr_backend *backend) {
    installed = backend;
    real = *backend;
    host_bytes = 0;
    failing_device_set_memory(0);
    begin_counting(-1, 0, 0);
    backend->memory_create = memory_create;
    backend->memory_destroy = memory_destroy;
    backend->copy_in = copy_in;
    backend->copy_out = copy_out;
    backend->copy_within = copy_within;
    backend->fill_zero = fill_zero;
    backend->transfer_in = transfer_in;
    backend->transfer_out = transfer_out;
#define QR_X(name) backend->ops[QR_OP_##name].run = run_##name;
    QR_OPS(QR_X)
#undef QR_X
}

void failing_device_remove(void) {
    *installed = real;
    installed = NULL;
}

int64_t failing_device_calls(void) { return atomic_load(&n_calls); }

void failing_device_fail(int64_t first, int64_t n) { begin_counting(-1, first, n); }

void failing_device_fail_op(qr_op op, int64_t first, int64_t n) { begin_counting((int)op, first, n); }

void failing_device_shrink(int64_t from, int64_t n_bytes) {
    begin_counting(-1, 0, 0);
    shrink_from = from, shrunk_bytes = n_bytes;
}

void failing_device_set_memory(int64_t n_bytes) {
    memory_bytes = n_bytes;
    installed->memory_info = n_bytes > 0 ? memory_info : real.memory_info;
}
