/* kernels/cuda/device/graph_capture.h: launches and copies are kept as closures over their arguments, and run when they
 * are replayed, so that whatever looked at host values while it was recorded shows. */
#include "kernels/cuda/device/graph_capture.h"

#include "device_state.h"

struct qr_recording {
    std::vector<kept_call> calls;
};

bool qr_device_is_recording(const qr_device *device) { return device->recorder.load() == std::this_thread::get_id(); }

void qr_device_keep(qr_device *device, kept_call call) { device->kept.push_back(std::move(call)); }

qrun_status qr_device_record_begin(qr_device *device, qr_error *err) {
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_refuse_recording(device, "a recording", err));
    QR_TRY(qr_device_use(device, err));
    device->kept.clear();
    device->recorder.store(std::this_thread::get_id());
out:
    return status;
}

qrun_status qr_device_record_end(qr_device *device, qr_recording **recording, qr_error *) {
    device->recorder.store(std::thread::id());
    if (recording == NULL) { return QRUN_OK; }
    *recording = new qr_recording{std::move(device->kept)};
    return QRUN_OK;
}

qrun_status qr_device_replay(qr_device *device, qr_recording *recording, qr_error *err) {
    qrun_status status = QRUN_OK;
    QR_TRY(qr_device_refuse_recording(device, "a replay", err));
    QR_TRY(qr_device_use(device, err));
    for (const kept_call &call : recording->calls) { QR_TRY(call(err)); }
out:
    return status;
}

void qr_device_recording_destroy(qr_device *, qr_recording *recording) { delete recording; }
