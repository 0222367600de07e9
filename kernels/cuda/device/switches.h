/* What can be turned off by the environment, to find out what a wrong result or a hang is due to. Each variable is "1",
 * as if it were not set, or "0":
 *     QRUN_CUDA_GRAPHS        decode steps are replayed from recordings
 *     QRUN_CUDA_EARLY_LAUNCH  kernels begin while the one before them still runs
 *     QRUN_CUDA_RUN_AHEAD     decode steps are issued before the tokens of the one before are read
 *     QRUN_CUDA_WGMMA         Hopper's own matrix products
 *     QRUN_CUDA_CUBLASLT      training's matrix products by cuBLASLt; or the path of the library to open */
#ifndef QR_KERNELS_CUDA_DEVICE_SWITCHES_H
#define QR_KERNELS_CUDA_DEVICE_SWITCHES_H

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/status.h"
}

struct qr_device_switches {
    bool graphs, early_launch, run_ahead, wgmma, cublaslt;
    const char *cublaslt_path; /* NULL: looked for (library_search.h). The environment's */
};

static inline qrun_status qr_device_switch_read(const char *name, bool *value, const char **path, qr_error *err) {
    const char *text = getenv(name);
    *value = text == NULL || strcmp(text, "0") != 0;
    if (text == NULL || text[0] == '\0' || strcmp(text, "0") == 0 || strcmp(text, "1") == 0) { return QRUN_OK; }
    if (path != NULL && strchr(text, '/') != NULL) {
        *path = text;
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "cuda: %s is \"%s\"; it is 0 or 1%s", name, text,
                   path != NULL ? ", or a path with a \"/\"" : "");
}

static inline qrun_status qr_device_switches_read(qr_device_switches *switches, qr_error *err) {
    switches->cublaslt_path = NULL;
    QR_RETURN_IF_ERROR(qr_device_switch_read("QRUN_CUDA_GRAPHS", &switches->graphs, NULL, err));
    QR_RETURN_IF_ERROR(qr_device_switch_read("QRUN_CUDA_EARLY_LAUNCH", &switches->early_launch, NULL, err));
    QR_RETURN_IF_ERROR(qr_device_switch_read("QRUN_CUDA_RUN_AHEAD", &switches->run_ahead, NULL, err));
    QR_RETURN_IF_ERROR(qr_device_switch_read("QRUN_CUDA_WGMMA", &switches->wgmma, NULL, err));
    return qr_device_switch_read("QRUN_CUDA_CUBLASLT", &switches->cublaslt, &switches->cublaslt_path, err);
}

#endif
