# What both builds of the CUDA backend are made of: nvcc's (kernels/cuda) and the host compiler's (tests/simt). Gives
# QR_CUDA_SOURCES; device/ over CUDA's own runtime, and plugin.cu, are the callers' to add.
set(QR_CUDA_SOURCES)
function(qr_cuda_sources FOLDER)
  qrun_room_sources(${FOLDER} sources ${ARGN})
  set(QR_CUDA_SOURCES ${QR_CUDA_SOURCES} ${sources} PARENT_SCOPE)
endfunction()
qr_cuda_sources(kernels/cuda/backend
  backend.cu
  groups.cu
  peaks.cu
  quantize.cu
  staging.cu
  unsupported.cu
  weight.cu)
qr_cuda_sources(kernels/cuda/linear
  linear.cu
  linear_cublaslt.cu
  linear_mma.cu
  linear_tile.cu
  linear_wgmma.cu
  lora.cu
  lora_cublaslt.cu
  wgmma_check.cu)
qr_cuda_sources(kernels/cuda/attention
  attention.cu
  attention_mma_bf16.cu
  attention_mma_f16.cu
  attention_mma_int8.cu
  attention_packed.cu
  attention_packed_backward.cu
  attention_packed_dkv.cu
  attention_packed_dq.cu
  attention_packed_mma.cu
  attention_packed_operands.cu
  attention_scalar.cu
  kv.cu)
qr_cuda_sources(kernels/cuda/train
  adafactor.cu
  conv_backward.cu
  delta_backward.cu
  elementwise_backward.cu
  linear_backward.cu
  lora_backward.cu
  loss.cu
  norm_backward.cu
  optimizer.cu
  weight_backward.cu)
qr_cuda_sources(kernels/cuda
  column_sums.cu
  delta.cu
  dora.cu
  elementwise.cu
  embedding.cu
  norm.cu
  rope.cu
  sample.cu)
