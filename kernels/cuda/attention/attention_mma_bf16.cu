/* attention_mma_kernel for pages of BF16; a file a type, because compiling it takes long. */
#include "kernels/cuda/attention/attention_mma.cuh"

qrun_status qr_cuda_attention_mma_bf16(qr_cuda_backend &cuda, const qr_attention_args &args, const attention_plan &plan,
                                       bool large, qr_error *err) {
    return launch_attention<kv_bf16>(cuda, args, plan, large, err);
}
