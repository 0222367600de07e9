/* kernels/cuda/device/marks.h by the host's clock. */
#include "kernels/cuda/device/marks.h"

#include "device_state.h"

extern "C" {
#include "base/clock.h"
}

struct qr_device_marks {
    std::vector<double> seconds;
};

qrun_status qr_device_marks_begin(qr_device *device, int32_t n_marks, bool hold, qr_error *err) {
    (void)hold;
    if (device->marks == nullptr) { device->marks = new qr_device_marks(); }
    device->marks->seconds.assign(static_cast<size_t>(n_marks), -1.0);
    return qr_device_use(device, err);
}

qrun_status qr_device_mark(qr_device *device, int32_t mark, qr_error *err) {
    device->marks->seconds.at(static_cast<size_t>(mark)) = qr_now_seconds();
    return qr_device_use(device, err);
}

qrun_status qr_device_mark_seconds(qr_device *device, int32_t from, int32_t to, double *seconds, qr_error *err) {
    const std::vector<double> &marks = device->marks->seconds;
    *seconds = marks.at(static_cast<size_t>(to)) - marks.at(static_cast<size_t>(from));
    return qr_device_use(device, err);
}

void qr_device_marks_destroy(qr_device_marks *marks) { delete marks; }
