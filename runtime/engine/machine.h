/* The memory that the machine reports. */
#ifndef QR_RUNTIME_ENGINE_MACHINE_H
#define QR_RUNTIME_ENGINE_MACHINE_H

#include <stdint.h>

/* Bytes of the machine, or of the container where that is less, and how many are free now. */
void qr_machine_memory(int64_t *total, int64_t *available);

#endif
