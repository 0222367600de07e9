# What both builds of the CUDA backend are made of: nvcc's (kernels/cuda) and the host compiler's (tests/simt). One
# source a line.
set(QR_CUDA_SOURCES
  absent.cu
  adafactor.cu
  attention.cu
  attention_packed.cu
  attention_packed_backward.cu
  attention_packed_dkv.cu
  attention_packed_dq.cu
  attention_packed_mma.cu
  attention_packed_planes.cu
  backend.cu
  dora.cu
  elementwise.cu
  elementwise_backward.cu
  embedding.cu
  kv.cu
  limits.cu
  linear.cu
  linear_backward.cu
  linear_mma.cu
  linear_tile.cu
  lora.cu
  loss.cu
  norm.cu
  norm_backward.cu
  optimizer.cu
  product.cu
  quantize.cu
  rope.cu
  sample.cu
  staging.cu
  weight.cu
  weight_backward.cu
)
list(TRANSFORM QR_CUDA_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
