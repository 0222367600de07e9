/* The memory that plans and budgets are about: the device's own, or the machine's where the device has none. */
#ifndef QR_RUNTIME_ENGINE_DEVICE_MEMORY_H
#define QR_RUNTIME_ENGINE_DEVICE_MEMORY_H

#include "runtime/engine/context.h"

typedef struct qr_device_memory {
    int64_t total_bytes, free_bytes; /* free: now, or once the weights are loaded (qr_device_memory_reserve) */
    int64_t context_bytes;           /* already taken by the device's driver for this process; 0 on the CPU, −1: not
                                        known */
    bool is_separate;                /* from the machine's: host memory is no part of it, and what is not free cannot be
                                        had */
    int64_t host_free_bytes;         /* is_separate: of the machine */
} qr_device_memory;

/* Of the device, or of the one that the context plans for, as if nothing but a context were on it. */
qrun_status qr_device_memory_now(const qrun_context *context, qr_device_memory *memory, qr_error *err);

/* Leaves room for weights that a plan counts and nobody has loaded yet. Where they have none, less than nothing is
 * free: what is already allocated and what is free are together what there was before. */
static inline void qr_device_memory_reserve(qr_device_memory *memory, size_t n_bytes) {
    memory->free_bytes -= (int64_t)n_bytes;
}

/* How much of what is free is taken where no budget is given. Of a device's own memory it is nine tenths. Of a
 * machine's, whose other programs live there too, it is half for a session. */
int64_t qr_device_memory_for_training(const qr_device_memory *memory);
int64_t qr_device_memory_for_session(const qr_device_memory *memory);
/* How much weights may take before some of them go to host memory by themselves, with a budget or 0 for none. */
int64_t qr_device_memory_for_weights(const qr_device_memory *memory, int64_t budget);

static inline int64_t qr_device_memory_context(const qr_device_memory *memory) {
    return memory->context_bytes > 0 ? memory->context_bytes : 0;
}

/* Device memory held at most, the context included: what a plan's total is to be compared with. */
int64_t qr_device_memory_peak(const qr_backend *backend);
/* Host memory held at most, where it is apart; else 0. */
int64_t qr_device_memory_host_peak(const qr_backend *backend);

#endif
