/* The CUDA backend's own header: the backend object, the layout of weights in its memory, and where each op is
 * implemented: one `const qr_op_impl qr_cuda_op_<name>` in the .cu file of its family. */
#ifndef QR_KERNELS_CUDA_CUDA_H
#define QR_KERNELS_CUDA_CUDA_H

#include <stdint.h>
#include <string.h>

#include <atomic>

#include "kernels/cuda/device/api.h"

extern "C" {
#include "base/alloc.h"
#include "base/sizes.h"
#include "kernels/op_check.h"
}

/* Constant tables that kernels read, from quant/. */
struct qr_cuda_tables {
    float nf4[16], float4[16]; /* of the codes of NF4 and MXFP4 */
    float nf4_midpoints[15];
    float dynamic_map[2][256];    /* unsigned, signed */
    float dynamic_bounds[2][256]; /* 255 of each */
};

/* Bytes that memory_create has allocated and not yet released. */
struct qr_cuda_held {
    std::atomic<size_t> now, peak;
};

struct qr_cuda_staging; /* staging.h */

struct qr_cuda_backend {
    qr_backend base; /* first: a qr_backend * of this backend is a qr_cuda_backend * */
    qr_device *device;
    qr_backend *host;             /* the CPU backend, for ops on host memory (quantize); made by libqrun.so */
    const qr_cuda_tables *tables; /* device memory */
    qr_cuda_staging *staging;     /* while a model is loaded, where there was room; else NULL */
    qr_cuda_held held[2];         /* by qr_memory_kind */
    bool has_wgmma;               /* Hopper's products, which give the bits of the others here (wgmma_check.h) */
    bool has_wgmma_wide;          /* and those of linear_wgmma_wide.cu */
    char isa[64];                 /* the device's, and what of it is not used */
    char wgmma_note[192];         /* "on", or why not */
};

static inline qr_cuda_backend *qr_cuda(qr_backend *backend) { return reinterpret_cast<qr_cuda_backend *>(backend); }
static inline const qr_cuda_backend *qr_cuda(const qr_backend *backend) {
    return reinterpret_cast<const qr_cuda_backend *>(backend);
}

extern "C" {
#define QR_X(name) extern const qr_op_impl qr_cuda_op_##name;
QR_OPS(QR_X)
#undef QR_X
}

/* Defines qr_cuda_op_<name> by three functions,
 *     bool supports(const qr_<name>_args &, qr_error *), what is required beyond op_check,
 *     size_t workspace(const qr_<name>_args &) and
 *     qrun_status run(qr_cuda_backend &, const qr_<name>_args &, void *workspace, qr_error *). */
#define QR_CUDA_OP_IF(name, supports, workspace, run)                                                         \
    const qr_op_impl qr_cuda_op_##name = {                                                                    \
        [](const qr_backend *, const void *args, qr_error *err) {                                             \
            return qr_check_##name(args, err) && supports(*static_cast<const qr_##name##_args *>(args), err); \
        },                                                                                                    \
        [](const qr_backend *, const void *args) -> size_t {                                                  \
            return workspace(*static_cast<const qr_##name##_args *>(args));                                   \
        },                                                                                                    \
        [](qr_backend *backend, const void *args, void *scratch, qr_error *err) -> qrun_status {              \
            return run(*qr_cuda(backend), *static_cast<const qr_##name##_args *>(args), scratch, err);        \
        }};

/* The same where op_check says all. */
#define QR_CUDA_OP(name, workspace, run) QR_CUDA_OP_IF(name, always_supported<qr_##name##_args>, workspace, run)

/* The same with a workspace that depends on the backend too: size_t workspace(const qr_cuda_backend &, const args &).
 */
#define QR_CUDA_OP_SIZED(name, workspace, run)                                                          \
    const qr_op_impl qr_cuda_op_##name = {                                                              \
        [](const qr_backend *, const void *args, qr_error *err) { return qr_check_##name(args, err); }, \
        [](const qr_backend *backend, const void *args) -> size_t {                                     \
            return workspace(*qr_cuda(backend), *static_cast<const qr_##name##_args *>(args));          \
        },                                                                                              \
        [](qr_backend *backend, const void *args, void *scratch, qr_error *err) -> qrun_status {        \
            return run(*qr_cuda(backend), *static_cast<const qr_##name##_args *>(args), scratch, err);  \
        }};

template <typename T> static inline bool always_supported(const T &, qr_error *) { return true; }
template <typename T> static inline size_t no_workspace(const T &) { return 0; }

/* --- Weights in this backend's memory: the canonical codes in their order, then the scales, each part at a multiple of
 * 64 bytes: SCB F32 [rows] of INT8; absmax F32 [n_blocks] of NF4; scales U8 [n_blocks] of MXFP4; absmax codes U8
 * [n_blocks], then nested absmax F32 [ceil(n_blocks / 256)] of NF4_DQ. The codes of 64 columns of 8 rows are then 8
 * runs of 32 bytes: whole sectors. */
struct qr_cuda_layout {
    size_t scales_offset, nested_offset, total_bytes;
};

qr_cuda_layout qr_cuda_layout_of(const qr_weight_desc *desc);

size_t qr_cuda_weight_bytes(const qr_backend *backend, const qr_weight_desc *desc);
qrun_status qr_cuda_weight_put_rows(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                    const void *codes, qr_error *err);
qrun_status qr_cuda_weight_put_scales(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                      qr_error *err);
qrun_status qr_cuda_weight_get_rows(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                    void *codes, qr_error *err);
qrun_status qr_cuda_weight_get_scales(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                      uint8_t *absmax_codes, float *nested_absmax, qr_error *err);

/* As qr_backend.measure_peaks (backend/peaks.cu). */
qrun_status qr_cuda_measure_peaks(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err);

#endif
