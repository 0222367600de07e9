/* device/graph_capture.h over CUDA graphs. The capture has a stream of its own, which the recording thread issues into
 * (qr_device_stream), so that threads that load weights meanwhile are neither captured nor in its way. A capture that
 * fails says nothing about the device: its error is reported, and not kept as the device's fault. */
#include "kernels/cuda/device/graph_capture.h"

#include "kernels/cuda/device/device.cuh"
#include "kernels/cuda/device/state.cuh"

extern "C" {
#include "base/alloc.h"
}

struct qr_recording {
    cudaGraphExec_t graph;
};

static qrun_status check(cudaError_t result, const char *what, qr_error *err) {
    if (result == cudaSuccess) { return QRUN_OK; }
    cudaGetLastError();
    return qr_fail(err, QRUN_ERROR_DEVICE, "cuda: %s: %s (%s)", what, cudaGetErrorString(result),
                   cudaGetErrorName(result));
}

bool qr_device_is_recording(const qr_device *device) { return device->recorder.load() == std::this_thread::get_id(); }

cudaStream_t qr_device_stream(const qr_device *device) {
    return qr_device_is_recording(device) ? device->record_stream : device->stream;
}

qrun_status qr_device_record_begin(qr_device *device, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a recording", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    if (device->record_stream == NULL) {
        QR_RETURN_IF_ERROR(
            check(cudaStreamCreateWithFlags(&device->record_stream, cudaStreamNonBlocking), "creating a stream", err));
    }
    QR_RETURN_IF_ERROR(check(cudaStreamBeginCapture(device->record_stream, cudaStreamCaptureModeThreadLocal),
                             "beginning to record", err));
    device->recorder.store(std::this_thread::get_id());
    return QRUN_OK;
}

qrun_status qr_device_record_end(qr_device *device, qr_recording **recording, qr_error *err) {
    cudaGraph_t graph = NULL;
    qr_recording *made = NULL;
    device->recorder.store(std::thread::id());
    qrun_status status = check(cudaStreamEndCapture(device->record_stream, &graph), "ending to record", err);
    if (status != QRUN_OK || recording == NULL) { goto out; }
    made = static_cast<qr_recording *>(qr_alloc_zeroed(sizeof *made));
    if (made == NULL) { QR_TRY(qr_fail_memory(err, "a recorded step", sizeof *made)); }
    QR_TRY(check(cudaGraphInstantiate(&made->graph, graph, 0), "making a graph", err));
    QR_TRY(check(cudaGraphUpload(made->graph, device->stream), "uploading a graph", err));
    *recording = made;
    made = NULL;
out:
    if (graph != NULL) { cudaGraphDestroy(graph); }
    qr_device_recording_destroy(device, made);
    return status;
}

qrun_status qr_device_replay(qr_device *device, qr_recording *recording, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_device_refuse_recording(device, "a replay", err));
    QR_RETURN_IF_ERROR(qr_device_enter(device, err));
    QR_RETURN_IF_ERROR(check(cudaGraphLaunch(recording->graph, device->stream), "replaying", err));
    return QRUN_OK;
}

void qr_device_recording_destroy(qr_device *device, qr_recording *recording) {
    if (recording == NULL) { return; }
    if (recording->graph != NULL && cudaSetDevice(device->index) == cudaSuccess) {
        cudaStreamSynchronize(device->stream); /* it may be under way */
        cudaGraphExecDestroy(recording->graph);
    }
    qr_free(recording);
}
