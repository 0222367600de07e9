#include "kernels/host_memory.h"

#include <string.h>

#include "base/alloc.h"

static void destroy(qr_backend *backend) { qr_free(backend); }

void qr_host_memory_taken(qr_backend *backend, size_t n_bytes) {
    qr_host_backend *host = (qr_host_backend *)backend;
    const size_t now = atomic_fetch_add(&host->held_bytes, n_bytes) + n_bytes;
    size_t peak = atomic_load(&host->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&host->peak_bytes, &peak, now)) {}
}

void qr_host_memory_released(qr_backend *backend, size_t n_bytes) {
    atomic_fetch_sub(&((qr_host_backend *)backend)->held_bytes, n_bytes);
}

static void memory_held(const qr_backend *backend, size_t *now, size_t *peak) {
    const qr_host_backend *host = (const qr_host_backend *)backend;
    *now = atomic_load(&host->held_bytes);
    *peak = atomic_load(&host->peak_bytes);
}

static qrun_status copy(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memmove(dst, src, n_bytes); }
    return QRUN_OK;
}

static qrun_status fill_zero(qr_backend *backend, void *device, size_t n_bytes, qr_error *err) {
    (void)backend, (void)err;
    if (n_bytes > 0) { memset(device, 0, n_bytes); }
    return QRUN_OK;
}

static qrun_status sync(qr_backend *backend, qr_error *err) {
    (void)backend, (void)err;
    return QRUN_OK;
}

/* No copy runs concurrently with anything, so there is nothing to wait for. */
static qrun_status transfer(qr_backend *backend, void *dst, const void *src, size_t n_bytes, uint64_t *ticket,
                            qr_error *err) {
    *ticket = 0;
    return copy(backend, dst, src, n_bytes, err);
}

static qrun_status transfer_wait(qr_backend *backend, uint64_t ticket, qr_error *err) {
    (void)ticket;
    return sync(backend, err);
}

void qr_host_memory_set_functions(qr_backend *backend) {
    backend->destroy = destroy;
    backend->memory_held = memory_held;
    backend->copy_in = copy;
    backend->copy_in_async = copy;
    backend->copy_out = copy;
    backend->copy_within = copy;
    backend->fill_zero = fill_zero;
    backend->sync = sync;
    backend->transfer_in = transfer;
    backend->transfer_out = transfer;
    backend->transfer_wait = transfer_wait;
}
