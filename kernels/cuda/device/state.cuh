/* The device as the sources of device/ see it, which alone call CUDA's runtime. */
#ifndef QR_KERNELS_CUDA_DEVICE_STATE_CUH
#define QR_KERNELS_CUDA_DEVICE_STATE_CUH

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <string.h>

#include "kernels/cuda/device/api.h"
#include "kernels/cuda/device/cublaslt.h"
#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/gpus.h"
#include "kernels/cuda/device/graph_capture.h"
#include "kernels/cuda/device/marks.h"

/* Transfers whose ends can be waited for one by one; an older one is waited for with a later one. */
enum { QR_DEVICE_TICKETS = 16 };
enum { QR_DEVICE_COPIES_OUT = 8 }; /* the same of copies out of the stream */

struct qr_device {
    int index;
    qr_gpu_hold hold;
    int capability; /* 10 · major + minor */
    qr_device_size size;
    int driver;          /* CUDA's version of it: 12030 is 12.3 */
    bool launches_early; /* QR_LAUNCH_EARLY */
    qr_device_switches switches;
    char isa[16];
    cudaStream_t stream;
    cudaStream_t record_stream; /* of captures; NULL until the first */
    qr_device_recorder recorder;
    cudaEvent_t begin, end;
    cudaStream_t transfers;
    cudaEvent_t issued; /* of the stream, before a transfer */
    cudaEvent_t arrived[QR_DEVICE_TICKETS];
    uint64_t n_transfers;
    cudaEvent_t copied_out[QR_DEVICE_COPIES_OUT]; /* of the stream, after a copy that was begun */
    uint64_t n_copies_out;
    struct qr_cuda_nccl *link_state;
    cudaStream_t links;                   /* device/link_stream.h; NULL until the first use */
    cudaEvent_t links_issued, links_done; /* of the stream, before what is in `links`; and after that */
    int64_t total_before, free_before;    /* memory before there was a context; −1: not known */
    int64_t context_bytes;                /* −1: not known */
    mutable qr_device_fault fault;
    qr_cublaslt *cublaslt; /* device/cublaslt.h; NULL: none, or not looked for yet */
    std::atomic<bool> looked_for_cublaslt;
    qr_device_marks *marks;
};

/* A failed call names what was asked for; all but a lack of memory is the device's first fault, which later calls give
 * again. */
qrun_status qr_device_check(const qr_device *device, cudaError_t result, const char *what, qr_error *err);

/* The second stream (device/transfer.cu). */
qrun_status qr_device_transfers_open(qr_device *device, qr_error *err);
void qr_device_transfers_close(qr_device *device);

/* Makes the device the thread's current one: threads that load weights have none. Fails with the first fault. */
qrun_status qr_device_enter(const qr_device *device, qr_error *err);

static inline qrun_status qr_device_make_event(const qr_device *device, cudaEvent_t *event, unsigned flags,
                                               qr_error *err) {
    return qr_device_check(device, cudaEventCreateWithFlags(event, flags), "creating an event", err);
}

static inline qrun_status qr_device_record_event(const qr_device *device, cudaEvent_t event, cudaStream_t stream,
                                                 qr_error *err) {
    return qr_device_check(device, cudaEventRecord(event, stream), "recording an event", err);
}

/* Looks up a function of a library that is opened at run time. */
template <typename F> static inline bool qr_find_symbol(void *library, const char *name, F *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

#endif
