#include "runtime/engine/named_devices.h"

#include <string.h>

#include "base/buffer.h"
#include "base/sizes.h"

#define MIB(n) ((int64_t)(n) << 20)

static const qr_named_device devices[] = {
    {"t4", MIB(15360)},        {"v100-16gb", MIB(16384)}, {"v100-32gb", MIB(32768)}, {"rtx-3060", MIB(12288)},
    {"rtx-3090", MIB(24576)},  {"rtx-4070", MIB(12282)},  {"rtx-4080", MIB(16376)},  {"rtx-4090", MIB(24564)},
    {"rtx-5090", MIB(32607)},  {"a10", MIB(23028)},       {"l4", MIB(23034)},        {"l40s", MIB(46068)},
    {"a100-40gb", MIB(40960)}, {"a100-80gb", MIB(81920)}, {"h100", MIB(81559)},      {"h200", MIB(143771)},
    {"b200", MIB(183359)},
};

qrun_status qr_named_device_find(const char *name, const qr_named_device **device, qr_error *err) {
    qr_buffer list = {0};
    for (size_t i = 0; i < QR_COUNT_OF(devices); i++) {
        if (strcmp(devices[i].name, name) == 0) {
            *device = &devices[i];
            qr_buffer_free(&list);
            return QRUN_OK;
        }
        qr_buffer_append_format(&list, "%s%s", i > 0 ? ", " : "", devices[i].name);
    }
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_ARGUMENT, "`device_memory`: \"%.40s\" is not known; it is one of: %s", name,
                qr_buffer_ok(&list) ? list.data : "");
    qr_buffer_free(&list);
    return status;
}
