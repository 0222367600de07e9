/* What the variants of attention over pages share: who calls whom. */
#ifndef QR_KERNELS_CUDA_ATTENTION_CUH
#define QR_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/cuda.h"

/* F32 all through, for any pages and heads (attention_scalar.cu). */
qrun_status qr_cuda_attention_scalar(qr_cuda_backend &cuda, const qr_attention_args &args, qr_error *err);

struct kv_bf16;
struct kv_f16;
struct kv_int8;

/* On the tensor cores, for pages of kv_bf16, kv_f16 or kv_int8 (attention_mma.cuh): one launch. `large`: tiles of as
 * many rows as there is a kernel for, for chunks; else of 16. */
template <typename kv>
qrun_status qr_cuda_attention_mma(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_tiling &tiling,
                                  bool large, qr_error *err);

#endif
