/* Heads of q and k, made ready for attention, and k and v written to their pages, in one launch (attention/kv.cu). */
#ifndef QR_KERNELS_CUDA_HEADS_CUH
#define QR_KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/vec4.cuh"

/* The ops that it stands for; a norm may be NULL, and has at most VEC4_BLOCK_DIM elements: a head. In the store of the
 * products (linear.cuh) rope may be NULL too. */
struct heads_ops {
    struct {
        const qr_rms_norm_args *norm;
        const qr_rope_args *rope;
    } q, k;
    const qr_kv_write_args *write;
};

/* One after the other they have to compute the same: k's is what is written, and none writes what another one reads
 * but for that. */
qrun_status qr_cuda_heads(qr_cuda_backend &cuda, const heads_ops &ops, qr_error *err);

#endif
