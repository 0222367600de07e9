/* A backend whose memory runs out when a test says so: its calls (ops, copies, blocks of memory) are counted, and some
 * of them fail with QRUN_ERROR_MEMORY. It may also say that it has a memory of its own, of a size that changes while a
 * run is under way, as when another process takes part of a GPU. */
#ifndef QR_TESTS_FAILING_DEVICE_H
#define QR_TESTS_FAILING_DEVICE_H

#include "kernels/backend.h"

/* One at a time. Until it is removed, the backend's functions are the test's. */
void failing_device_install(qr_backend *backend);
void failing_device_remove(void);

int64_t failing_device_calls(void); /* since it was installed, or told what fails */
/* Calls from `first` on (1: the next) fail, n of them; n 0: none does. Counting begins anew. */
void failing_device_fail(int64_t first, int64_t n);
/* The same for the calls of one op. */
void failing_device_fail_op(qr_op op, int64_t first, int64_t n);
/* From call `from` on (1: the next) the device has n_bytes of memory, and that call fails. Counting begins anew. */
void failing_device_shrink(int64_t from, int64_t n_bytes);
/* What the device has from now on; 0: no memory of its own. */
void failing_device_set_memory(int64_t n_bytes);

#endif
