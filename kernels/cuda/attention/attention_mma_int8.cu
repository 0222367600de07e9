/* attention_mma_kernel for pages of INT8; a file a type, because compiling it takes long. */
#include "kernels/cuda/attention/attention_mma.cuh"

template qrun_status qr_cuda_attention_mma<kv_int8>(qr_cuda_backend &, const qr_attention_args &,
                                                    const attention_tiling &, bool, qr_error *);
