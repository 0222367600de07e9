/* The memory of well-known GPUs, to plan for one that this machine does not have. */
#ifndef QR_RUNTIME_ENGINE_NAMED_DEVICES_H
#define QR_RUNTIME_ENGINE_NAMED_DEVICES_H

#include <stdint.h>

#include "base/status.h"

typedef struct qr_named_device {
    const char *name;
    int64_t total_bytes; /* as nvidia-smi shows it */
} qr_named_device;

/* What a driver takes for a process: about this much on those of today. */
#define QR_NAMED_DEVICE_CONTEXT_BYTES (INT64_C(512) << 20)

/* QRUN_ERROR_ARGUMENT, with all names, for one that is not known. */
qrun_status qr_named_device_find(const char *name, const qr_named_device **device, qr_error *err);

#endif
