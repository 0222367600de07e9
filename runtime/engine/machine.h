/* The time and memory of the machine. */
#ifndef QR_RUNTIME_ENGINE_MACHINE_H
#define QR_RUNTIME_ENGINE_MACHINE_H

#include <stdint.h>

double qr_now_seconds(void); /* monotonic */

/* Bytes of the machine, or of the container where it has fewer, and how many are free now. */
void qr_machine_memory(int64_t *total, int64_t *available);

#endif
