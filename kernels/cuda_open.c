/* Opens libqrun_cuda.so. It stays open: closing CUDA's runtime under a running driver thread is not safe, and a process
 * needs it once. */
#include <string.h>

#include "kernels/cuda_plugin.h"
#include "kernels/plugin_open.h"
#include "kernels/self_check.h"

static const qr_plugin_file LIBRARY = {
    .name = "cuda",
    .file = QR_CUDA_PLUGIN_FILE,
    .variable = "QRUN_CUDA_LIBRARY",
    .absent = "this build of qrun has no CUDA backend, or it is in another folder",
    .symbol = QR_CUDA_PLUGIN_SYMBOL,
};

static qrun_status check_plugin(const qr_cuda_plugin *plugin, qr_error *err) {
    if (plugin->backend_version == QR_BACKEND_VERSION && plugin->n_ops == QR_OP_COUNT &&
        plugin->backend_bytes == sizeof(qr_backend) && strcmp(plugin->build, QR_CUDA_PLUGIN_BUILD) == 0) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "cuda: " QR_CUDA_PLUGIN_FILE " belongs to another build of qrun (interface %u, this one has %u); "
                   "install both from the same build",
                   (unsigned)plugin->backend_version, (unsigned)QR_BACKEND_VERSION);
}

static qrun_status open_plugin(const qr_cuda_plugin **plugin, qr_error *err) {
    qr_plugin_function function;
    QR_RETURN_IF_ERROR(qr_plugin_open(&LIBRARY, &function, err));
    *plugin = ((qr_cuda_plugin_get_fn)function)();
    return check_plugin(*plugin, err);
}

const qr_device_links *qr_device_links_of(const qr_backend *backend) {
    const qr_cuda_plugin *plugin;
    const bool is_cuda = strcmp(backend->name, "cuda") == 0;
    return is_cuda && open_plugin(&plugin, NULL) == QRUN_OK ? plugin->links : NULL;
}

qrun_status qr_backend_cuda_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    const qr_gpu_choice first = {.ordinal = -1};
    return qr_backend_cuda_create_for(&first, threads, backend, err);
}

qrun_status qr_backend_cuda_create_for(const qr_gpu_choice *choice, qr_threads *threads, qr_backend **backend,
                                       qr_error *err) {
    const qr_cuda_plugin *plugin;
    qr_backend *host = NULL;
    *backend = NULL;
    qrun_status status = open_plugin(&plugin, err);
    if (status == QRUN_OK) { status = qr_backend_cpu_create(NULL, threads, &host, err); }
    if (status == QRUN_OK) { status = plugin->create(choice, threads, host, backend, err); }
    if (status != QRUN_OK) { return status; }
    status = qr_backend_self_check(*backend, err);
    if (status == QRUN_ERROR_MEMORY) { return QRUN_OK; } /* later allocations report what is missing */
    if (status != QRUN_OK) {
        qr_backend_destroy(*backend);
        *backend = NULL;
    }
    return status;
}
