/* What libqrun_cuda.so and the library that opens it agree on. Both are built from one tree. The comparison here
 * refuses a library that is left over from another build. */
#ifndef QR_KERNELS_CUDA_PLUGIN_H
#define QR_KERNELS_CUDA_PLUGIN_H

#include "kernels/device_links.h"

/* The one symbol that libqrun_cuda.so exports: const qr_cuda_plugin *qr_cuda_plugin_get(void). */
#define QR_CUDA_PLUGIN_SYMBOL "qr_cuda_plugin_get"
#define QR_CUDA_PLUGIN_FILE "libqrun_cuda.so"

typedef struct qr_cuda_plugin {
    uint32_t backend_version; /* QR_BACKEND_VERSION; first, and read alone where it differs */
    uint32_t n_ops;           /* QR_OP_COUNT */
    uint64_t backend_bytes;   /* sizeof(qr_backend) */
    const char *build;        /* QR_CUDA_PLUGIN_BUILD */
    /* host: a backend of this machine's processor, for ops on host memory. It is taken over, also by a call that fails.
     */
    qrun_status (*create)(const qr_gpu_choice *choice, qr_threads *threads, qr_backend *host, qr_backend **backend,
                          qr_error *err);
    const qr_device_links *links;
} qr_cuda_plugin;

typedef const qr_cuda_plugin *(*qr_cuda_plugin_get_fn)(void);

#define QR_PLUGIN_TEXT(x) #x
#define QR_PLUGIN_VERSION(major, minor, patch) QR_PLUGIN_TEXT(major) "." QR_PLUGIN_TEXT(minor) "." QR_PLUGIN_TEXT(patch)
#define QR_CUDA_PLUGIN_BUILD QR_PLUGIN_VERSION(QRUN_VERSION_MAJOR, QRUN_VERSION_MINOR, QRUN_VERSION_PATCH)

#endif
