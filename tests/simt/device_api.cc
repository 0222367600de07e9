/* kernels/cuda/device_api.h over host memory: a device that simt.h executes on. Buffers are blocks of their exact size,
 * so that AddressSanitizer sees every access outside one. */
#include "kernels/cuda/device_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <new>
#include <vector>

#include "simt.h"

/* Where an asynchronous copy came from, and what was there. */
struct copy_source {
    const unsigned char *host;
    std::vector<unsigned char> bytes;
};

struct qr_device {
    double began;
    std::vector<copy_source> reading; /* since the last wait */
};

/* The sources of asynchronous copies had to stay as they were until now. */
static void settle(qr_device *device) {
    for (const copy_source &source : device->reading) {
        if (memcmp(source.host, source.bytes.data(), source.bytes.size()) == 0) { continue; }
        fprintf(stderr, "simt: host memory was changed while a copy could still read it\n");
        abort();
    }
    device->reading.clear();
}

qrun_status qr_device_open(qr_device **device, qr_error *err) {
    *device = new (std::nothrow) qr_device();
    return *device != NULL ? QRUN_OK : qr_fail_memory(err, "the cuda backend", sizeof **device);
}

void qr_device_close(qr_device *device) { delete device; }

const char *qr_device_isa(const qr_device *) { return "simt"; }

int qr_device_multiprocessors(const qr_device *) { return 1; }

qrun_status qr_device_memory_create(qr_device *, qr_memory_kind, size_t n_bytes, void **memory, qr_error *err) {
    enum { ALIGNMENT = 256 };
    const size_t most = static_cast<size_t>(1) << 39; /* AddressSanitizer ends the program at more */
    if (n_bytes > most || posix_memalign(memory, ALIGNMENT, n_bytes > 0 ? n_bytes : 1) != 0) {
        *memory = NULL;
        return qr_fail_memory(err, "memory of the GPU", n_bytes);
    }
    memset(*memory, 0xFF, n_bytes);
    return QRUN_OK;
}

void qr_device_memory_destroy(qr_device *device, qr_memory_kind, void *memory) {
    if (memory == NULL) { return; }
    settle(device);
    free(memory);
}

static qrun_status copy(void *dst, const void *src, size_t n_bytes) {
    if (n_bytes > 0) { memcpy(dst, src, n_bytes); }
    return QRUN_OK;
}

qrun_status qr_device_copy_in(qr_device *, void *dst, const void *host, size_t n_bytes, qr_error *) {
    return copy(dst, host, n_bytes);
}

qrun_status qr_device_copy_in_async(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *) {
    const unsigned char *first = static_cast<const unsigned char *>(host);
    device->reading.push_back({first, std::vector<unsigned char>(first, first + n_bytes)});
    return copy(dst, host, n_bytes);
}

qrun_status qr_device_copy_out(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *) {
    settle(device);
    return copy(host, src, n_bytes);
}

qrun_status qr_device_copy_within(qr_device *, void *dst, const void *src, size_t n_bytes, qr_error *) {
    return copy(dst, src, n_bytes);
}

qrun_status qr_device_zero(qr_device *, void *memory, size_t n_bytes, qr_error *) {
    if (n_bytes > 0) { memset(memory, 0, n_bytes); }
    return QRUN_OK;
}

qrun_status qr_device_sync(qr_device *device, qr_error *) {
    settle(device);
    return QRUN_OK;
}

static double seconds_now() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

qrun_status qr_device_timer_start(qr_device *device, qr_error *) {
    device->began = seconds_now();
    return QRUN_OK;
}

qrun_status qr_device_timer_stop(qr_device *device, double *seconds, qr_error *) {
    *seconds = seconds_now() - device->began;
    return QRUN_OK;
}
