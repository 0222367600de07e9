/* The symbol that libqrun_cuda.so exports. */
#include "kernels/cuda/backend/links.h"
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/cuda_plugin.h"

__attribute__((visibility("default"))) const qr_cuda_plugin *qr_cuda_plugin_get(void);
}

static const qr_cuda_plugin plugin = {QR_BACKEND_VERSION,         QR_OP_COUNT,
                                      sizeof(qr_backend),         QR_CUDA_PLUGIN_BUILD,
                                      qr_cuda_backend_create_for, &qr_cuda_links};

const qr_cuda_plugin *qr_cuda_plugin_get(void) { return &plugin; }
