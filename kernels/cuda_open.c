/* Opens libqrun_cuda.so: the file that QRUN_CUDA_LIBRARY names, else the one in the folder of this library or program,
 * else the one that the dynamic linker finds. It stays open: closing CUDA's runtime under a running driver thread is
 * not safe, and a process needs it once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda_plugin.h"
#include "kernels/self_check.h"

enum { PATH_BYTES = 4096 };

/* The file in the folder of this code; false when there is none. */
static bool in_own_folder(char path[PATH_BYTES]) {
    Dl_info own;
    if (dladdr((const void *)(uintptr_t)in_own_folder, &own) == 0 || own.dli_fname == NULL) { return false; }
    const char *slash = strrchr(own.dli_fname, '/');
    const int folder = slash != NULL ? (int)(slash - own.dli_fname) + 1 : 0;
    const int length = snprintf(path, PATH_BYTES, "%.*s%s", folder, own.dli_fname, QR_CUDA_PLUGIN_FILE);
    return length > 0 && length < PATH_BYTES && access(path, R_OK) == 0;
}

static qrun_status open_library(void **library, qr_error *err) {
    char path[PATH_BYTES];
    const char *named = getenv("QRUN_CUDA_LIBRARY");
    const bool is_named = named != NULL && named[0] != '\0', is_own = !is_named && in_own_folder(path);
    const char *file = is_named ? named : is_own ? path : QR_CUDA_PLUGIN_FILE;
    *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL) { return QRUN_OK; }
    if (!is_named && !is_own) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "cuda: " QR_CUDA_PLUGIN_FILE " was not found: this build of qrun has no CUDA backend, or it "
                       "is in another folder (QRUN_CUDA_LIBRARY names the file)");
    }
    const char *reason = dlerror();
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "cuda: cannot open %s: %s", file, reason != NULL ? reason : "unknown");
}

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

qrun_status qr_backend_cuda_create(qr_threads *threads, qr_backend **backend, qr_error *err) {
    *backend = NULL;
    void *library;
    qrun_status status = open_library(&library, err);
    if (status != QRUN_OK) { return status; }
    qr_cuda_plugin_get_fn get;
    void *symbol = dlsym(library, QR_CUDA_PLUGIN_SYMBOL);
    memcpy(&get, &symbol, sizeof get); /* C has no cast from a pointer to data to one to a function */
    if (symbol == NULL) { return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "cuda: " QR_CUDA_PLUGIN_FILE " is not qrun's"); }
    const qr_cuda_plugin *plugin = get();
    status = check_plugin(plugin, err);
    if (status == QRUN_OK) { status = plugin->create(threads, backend, err); }
    if (status != QRUN_OK) { return status; }
    status = qr_backend_self_check(*backend, err);
    if (status == QRUN_ERROR_MEMORY) { return QRUN_OK; } /* later allocations report what is missing */
    if (status != QRUN_OK) {
        qr_backend_destroy(*backend);
        *backend = NULL;
    }
    return status;
}
