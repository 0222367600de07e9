/* The device that simt.h executes on, as the device_*.cc files see it. Its properties are taken from the environment
 * when it is opened, so that a test can have a GPU of any size and with any fault. */
// clang-format off
/* QRUN_SIMT_MEMORY      bytes of device memory; 4 GiB
 * QRUN_SIMT_CONTEXT     bytes of it that the context takes, or "unknown"; 0
 * QRUN_SIMT_LOST_AFTER  calls after which the device is lost
 * QRUN_SIMT_DRIVER      the driver's version in CUDA's form (12040), 0 for none
 * QRUN_SIMT_CAPABILITY  compute capability ("7.5"); "9.0"
 * QRUN_SIMT_MULTIPROCESSORS  of the GPU; 1
 * QRUN_SIMT_WGMMA       "differs": its sums are rounded differently from mma.sync's; "wrong": they are wrong; "wide":
 *                       in wide tiles alone; "fails": the device is lost with the first of them, until it is opened
 *                       again; "breaks": the same, and it cannot be opened again; "stalls": bulk copies are not
 *                       announced, so wide tiles wait until they trap
 * QRUN_SIMT_SEED        of the moments at which transfers are done; 0
 * QRUN_SIMT_CUBLASLT    "0": there is no cuBLASLt; "refuses": it refuses about half of all products
 * QRUN_SIMT_GPUS        GPUs of the machine, dealt to its ranks; else each process has one that no other has */
// clang-format on
#ifndef QR_TESTS_SIMT_DEVICE_STATE_H
#define QR_TESTS_SIMT_DEVICE_STATE_H

#include <functional>
#include <map>
#include <vector>

#include "kernels/cuda/device/api.h"
#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/gpus.h"
#include "kernels/cuda/device/graph_capture.h"
#include "kernels/cuda/device/marks.h"
#include "nccl_stand_in.h"

/* A copy that nobody has waited for. */
struct pending_copy {
    unsigned char *host;
    std::vector<unsigned char> bytes; /* of a copy in what was there when it was issued; of one out what is to arrive */
    uint64_t number;
    bool is_out;
};

/* A call of a recording. */
typedef std::function<qrun_status(qr_error *err)> kept_call;

/* A copy of the second stream that is still to be done. While it is under way, what is at dst is poison, and src stays
 * as it was. */
struct pending_transfer {
    unsigned char *dst;
    const unsigned char *src;
    size_t n_bytes;
    uint64_t number;
    bool is_under_way;
    size_t n_done;
    std::vector<unsigned char> bytes; /* of src when it began */
};

struct qr_device {
    qr_gpu_hold hold;
    int index; /* of QRUN_SIMT_GPUS; −1: a GPU that no other process has */
    qr_device_size size;
    int capability;
    qr_device_switches switches;
    bool fails_with_wgmma, breaks_with_wgmma;
    int64_t memory_bytes, context_bytes; /* context_bytes −1: not known */
    std::atomic<int64_t> calls_left;     /* until it is lost */
    qr_device_recorder recorder;
    std::vector<kept_call> kept; /* of the recording under way */
    qr_device_fault fault;
    qr_device_marks *marks;
    double began;
    simt_stream links; /* device/link_stream.h */
    struct qr_cuda_nccl *link_state;
    std::mutex lock; /* guards the rest */
    std::map<void *, size_t> device_memory;
    int64_t held_bytes;
    uint64_t n_copies; /* issued that nobody waited for at once */
    std::vector<pending_copy> pending;
    uint64_t n_transfers, transfer_seed;
    std::vector<pending_transfer> transfers; /* in order */
};

/* Every call passes here, launches too. */
qrun_status qr_device_use(qr_device *device, qr_error *err);

/* Adds to the recording that the calling thread makes. */
void qr_device_keep(qr_device *device, kept_call call);

/* What a wait for the copies up to `number` does: those out arrive; the sources of those in had to stay as they were
 * until now. */
void qr_device_settle(qr_device *device, uint64_t number = UINT64_MAX);

/* Any time after a transfer has been issued it may begin, go on, or end: a seed decides, at every call. */
void qr_device_go_on_transferring(qr_device *device);

/* Does the transfers up to `number`. */
void qr_device_do_transfers(qr_device *device, uint64_t number = UINT64_MAX);

#endif
