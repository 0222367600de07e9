/* device/api.h over CUDA's runtime. */
#include "kernels/cuda/device/api.h"

#include <stdio.h>

#include <new>

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/link_stream.h"
#include "kernels/cuda/device/memory.h"
#include "kernels/cuda/device/requirements.h"
#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/alloc.h"
}

qrun_status qr_device_check(const qr_device *device, cudaError_t result, const char *what, qr_error *err) {
    if (result == cudaSuccess) { return QRUN_OK; }
    char message[sizeof device->fault.message];
    snprintf(message, sizeof message, "cuda: %s: %s (%s)", what, cudaGetErrorString(result), cudaGetErrorName(result));
    if (result == cudaErrorMemoryAllocation) { return qr_fail(err, QRUN_ERROR_MEMORY, "%s", message); }
    if (qr_device_is_recording(device)) { return qr_fail(err, QRUN_ERROR_DEVICE, "%s", message); } /* nothing ran */
    return qr_device_fault_set(&device->fault, message, err);
}

qrun_status qr_device_enter(const qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_fault_check(&device->fault, err));
    return qr_device_check(device, cudaSetDevice(device->index), "selecting the GPU", err);
}

/* What a launch that begins early takes, in graphs too. */
enum { EARLY_MAJOR = 9, EARLY_DRIVER = 12030 };

static qrun_status check_driver(qr_device *device, qr_error *err) {
    int runtime = 0;
    int &driver = device->driver;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) { driver = 0; }
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaRuntimeGetVersion(&runtime), "asking for the runtime's version", err));
    return qr_device_check_driver(driver, runtime, err);
}

static int capability_of(int gpu) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
    return major * 10 + minor;
}

static bool can_be_used(int gpu) { return capability_of(gpu) >= QR_DEVICE_LEAST_MAJOR * 10; }

/* Of those that can be used; where there is none, the last one, which says what it lacks. */
static int choose_usable(int n_gpus, int local_rank) {
    int n_usable = 0, chosen = 0;
    for (int i = 0; i < n_gpus; i++) { n_usable += can_be_used(i); }
    int left = qr_device_choose(n_usable, local_rank);
    for (int i = 0; i < n_gpus && left >= 0; i++) { chosen = i, left -= can_be_used(i); }
    return chosen;
}

static qrun_status choose_gpu(qr_device *device, const qr_gpu_choice &choice, qr_error *err) {
    int &n_gpus = device->size.n_gpus;
    const cudaError_t result = cudaGetDeviceCount(&n_gpus);
    if (result == cudaErrorNoDevice || (result == cudaSuccess && n_gpus == 0)) { return qr_device_fail_no_gpu(err); }
    if (result != cudaSuccess) { return qr_device_check(device, result, "looking for a GPU", err); }
    QR_RETURN_IF_ERROR(qr_device_check_ordinal(n_gpus, choice.ordinal, err));
    device->index = choice.ordinal >= 0 ? choice.ordinal : choose_usable(n_gpus, choice.local_rank);
    device->size.ordinal = device->index;
    device->capability = capability_of(device->index);
    const int major = device->capability / 10, minor = device->capability % 10;
    snprintf(device->isa, sizeof device->isa, "sm_%d%d", major, minor);
    device->launches_early = major >= EARLY_MAJOR && device->driver >= EARLY_DRIVER && device->switches.early_launch;
    return qr_device_check_capability(major, minor, err);
}

static qrun_status ask_size(qr_device *device, qr_error *err) {
    qr_device_size &size = device->size;
    const struct {
        cudaDeviceAttr attribute;
        int *value;
    } asked[] = {{cudaDevAttrMultiProcessorCount, &size.multiprocessors},
                 {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &size.shared_bytes},
                 {cudaDevAttrMaxSharedMemoryPerBlockOptin, &size.block_shared_bytes}};
    for (const auto &one : asked) {
        QR_RETURN_IF_ERROR(qr_device_check(device, cudaDeviceGetAttribute(one.value, one.attribute, device->index),
                                           "asking for the GPU's size", err));
    }
    return QRUN_OK;
}

qrun_status qr_device_open(qr_device **device, qr_error *err) { return qr_device_open_for({-1, 0}, device, err); }

qrun_status qr_device_open_for(const qr_gpu_choice &choice, qr_device **device, qr_error *err) {
    *device = NULL;
    void *memory = qr_alloc_zeroed(sizeof(qr_device));
    if (memory == NULL) { return qr_fail_memory(err, "the cuda backend", sizeof(qr_device)); }
    qr_device *made = new (memory) qr_device();
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_switches_read(&made->switches, err));
    QR_TRY(check_driver(made, err));
    QR_TRY(choose_gpu(made, choice, err));
    QR_TRY(ask_size(made, err));
    made->hold.take(made->index);
    qr_device_memory_before_context(made);
    QR_TRY(qr_device_enter(made, err));
    QR_TRY(qr_device_check(made, cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking), "creating a stream",
                           err));
    QR_TRY(qr_device_make_event(made, &made->begin, cudaEventDefault, err));
    QR_TRY(qr_device_make_event(made, &made->end, cudaEventDefault, err));
    QR_TRY(qr_device_transfers_open(made, err));
    *device = made;
    return QRUN_OK;
out:
    qr_device_close(made);
    return status;
}

void qr_device_close(qr_device *device) {
    if (device == NULL) { return; }
    if (device->stream != NULL) {
        cudaSetDevice(device->index);
        cudaStreamSynchronize(device->stream);
        qr_cublaslt_close(device->cublaslt);
        qr_device_marks_destroy(device->marks);
        if (device->begin != NULL) { cudaEventDestroy(device->begin); }
        if (device->end != NULL) { cudaEventDestroy(device->end); }
        if (device->record_stream != NULL) { cudaStreamDestroy(device->record_stream); }
        cudaStreamDestroy(device->stream);
        qr_device_link_close(device);
        qr_device_transfers_close(device);
    }
    device->~qr_device();
    qr_free(device);
}

/* The calls may give the fault again. The GPU is already the current one of the thread that opened it. */
bool qr_device_reset(int ordinal) {
    return qr_gpu_while_closed(ordinal, [&] {
        (void)cudaSetDevice(ordinal);
        (void)cudaDeviceReset();
        (void)cudaGetLastError();
    });
}

const char *qr_device_isa(const qr_device *device) { return device->isa; }

int qr_device_capability(const qr_device *device) { return device->capability; }

int qr_device_multiprocessors(const qr_device *device) { return device->size.multiprocessors; }

const qr_device_size &qr_device_size_of(const qr_device *device) { return device->size; }

const qr_device_switches &qr_device_switches_of(const qr_device *device) { return device->switches; }

qrun_status qr_device_memory_create(qr_device *device, qr_memory_kind kind, size_t n_bytes, void **memory,
                                    qr_error *err) {
    *memory = NULL;
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "making memory", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    const size_t at_least_one = n_bytes > 0 ? n_bytes : 1;
    const cudaError_t result =
        kind == QR_MEMORY_DEVICE ? cudaMalloc(memory, at_least_one) : cudaMallocHost(memory, at_least_one);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* this one does not break the context */
        return qr_fail_memory(err, kind == QR_MEMORY_DEVICE ? "memory of the GPU" : "pinned host memory", n_bytes);
    }
    return qr_device_check(device, result, "taking memory", err);
}

void qr_device_memory_destroy(qr_device *device, qr_memory_kind kind, void *memory) {
    if (memory == NULL || cudaSetDevice(device->index) != cudaSuccess) { return; }
    cudaStreamSynchronize(device->stream);
    cudaStreamSynchronize(device->transfers);
    if (kind == QR_MEMORY_DEVICE) {
        cudaFree(memory);
    } else {
        cudaFreeHost(memory);
    }
}

static qrun_status copy(qr_device *device, void *dst, const void *src, size_t n_bytes, cudaMemcpyKind kind, bool wait,
                        qr_error *err) {
    if (n_bytes == 0) { return QRUN_OK; }
    if (wait) { QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a copy that is waited for", err)); }
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(
        qr_device_check(device, cudaMemcpyAsync(dst, src, n_bytes, kind, qr_device_stream(device)), "copying", err));
    if (wait) { QR_RETURN_IF_ERROR(qr_device_check(device, cudaStreamSynchronize(device->stream), "copying", err)); }
    return QRUN_OK;
}

qrun_status qr_device_copy_in(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err) {
    return copy(device, dst, host, n_bytes, cudaMemcpyHostToDevice, true, err);
}

qrun_status qr_device_copy_in_async(qr_device *device, void *dst, const void *host, size_t n_bytes, qr_error *err) {
    return copy(device, dst, host, n_bytes, cudaMemcpyHostToDevice, false, err);
}

qrun_status qr_device_copy_out(qr_device *device, void *host, const void *src, size_t n_bytes, qr_error *err) {
    return copy(device, host, src, n_bytes, cudaMemcpyDeviceToHost, true, err);
}

qrun_status qr_device_copy_within(qr_device *device, void *dst, const void *src, size_t n_bytes, qr_error *err) {
    return copy(device, dst, src, n_bytes, cudaMemcpyDeviceToDevice, false, err);
}

qrun_status qr_device_zero(qr_device *device, void *memory, size_t n_bytes, qr_error *err) {
    const qrun_status status = qr_device_enter(device, err);
    if (status != QRUN_OK || n_bytes == 0) { return status; }
    return qr_device_check(device, cudaMemsetAsync(memory, 0, n_bytes, qr_device_stream(device)), "zeroing memory",
                           err);
}

qrun_status qr_device_sync(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a wait", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    cudaError_t result = cudaStreamSynchronize(device->stream);
    if (result == cudaSuccess && device->n_transfers > 0) { result = cudaStreamSynchronize(device->transfers); }
    return qr_device_check(device, result, "waiting for the GPU", err);
}

qrun_status qr_device_timer_start(qr_device *device, qr_error *err) {
    return qr_device_record_event(device, device->begin, device->stream, err);
}

qrun_status qr_device_timer_stop(qr_device *device, double *seconds, qr_error *err) {
    float milliseconds = 0.0F;
    QR_RETURN_IF_ERROR(qr_device_record_event(device, device->end, device->stream, err));
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaEventSynchronize(device->end), "waiting for the GPU", err));
    QR_RETURN_IF_ERROR(qr_device_check(device, cudaEventElapsedTime(&milliseconds, device->begin, device->end),
                                       "reading a timer", err));
    *seconds = static_cast<double>(milliseconds) * 1e-3;
    return QRUN_OK;
}

/* --- What device.cuh's launch needs --- */

/* An error that somebody else's call has left in this thread is not the launch's: it is forgotten. One that breaks the
 * context comes again with whatever is called next. */
qrun_status qr_device_launch_prepare(qr_device *device, const void *kernel, size_t shared_bytes, qr_error *err) {
    enum { WITHOUT_ASKING = 48 << 10 };
    const qrun_status status = qr_device_enter(device, err);
    cudaGetLastError();
    QR_RETURN_IF_ERROR(status);
    /* All kernels alike: a multiprocessor that has to split its memory otherwise for the next one is emptied first. */
    QR_RETURN_IF_ERROR(qr_device_check(
        device,
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "dividing the first cache", err));
    if (shared_bytes <= WITHOUT_ASKING) { return QRUN_OK; }
    const int n_bytes = static_cast<int>(shared_bytes);
    return qr_device_check(device, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes),
                           "asking for shared memory", err);
}

qrun_status qr_device_launch_check(const qr_device *device, cudaError_t result, const char *kernel, qr_error *err) {
    if (result != cudaSuccess) { cudaGetLastError(); }
    return qr_device_check(device, result, kernel, err);
}

bool qr_device_launches_early(const qr_device *device) { return device->launches_early; }
