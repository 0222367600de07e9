/* linear, lora and their gradients by cuBLASLt, where the caller leaves the order of sums open (linear_cublaslt.cu), or
 * for lora permits bf16x2 splits too (lora_cublaslt.cu). */
#ifndef QR_KERNELS_CUDA_OPS_CUBLASLT_CUH
#define QR_KERNELS_CUDA_OPS_CUBLASLT_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/cublaslt.h"

/* 0: not for these sizes, not permitted, or no library. */
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_args &args);
size_t qr_cuda_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

/* Whether cuBLASLt computes the op with these arguments, addresses and strides included. */
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_args &args);
bool qr_cuda_cublaslt_takes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);

/* QR_CUBLASLT_REFUSED (device/cublaslt.h): the library does not take a product of it, and nothing outside the workspace
 * was touched. */
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                             qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_cublaslt(qr_cuda_backend &cuda, const qr_lora_backward_args &args, void *workspace, qr_error *err);

/* An adapter as further terms of its matrix's sums, for the op that has both: rows of 16 bits beside those of x, dy, W
 * and Wᵀ, qr_lora_room of the rank long. `scratch`: aligned, of so many bytes; `library`: cuBLASLt's workspace.
 *
 * Forward, y = [x | t] [W | scale · B]ᵀ: t = A x, `stride` elements apart, and rows of B from first_out on. */
size_t qr_cuda_lora_terms_bytes(const qr_cuda_backend &cuda, const qr_lora_args &args);
qrun_status qr_cuda_lora_put_t(qr_cuda_backend &cuda, const qr_lora_args &args, uint16_t *rows, int64_t stride,
                               unsigned char *scratch, void *library, qr_error *err);
qrun_status qr_cuda_lora_put_b(qr_cuda_backend &cuda, const qr_lora_args &args, int64_t first_out, int64_t n_out,
                               uint16_t *rows, int64_t stride, qr_error *err);

/* Backward, dx = [dy | dh] [W; A]: dh, with which the factors' gradients are made in scratch, too; columns of A,
 * as rows of n_in; and at the end, when nothing can be refused, the gradients added to where they belong. */
size_t qr_cuda_lora_backward_terms_bytes(const qr_cuda_backend &cuda, const qr_lora_backward_args &args);
qrun_status qr_cuda_lora_put_dh(qr_cuda_backend &cuda, const qr_lora_backward_args &args, uint16_t *rows,
                                int64_t stride, unsigned char *scratch, void *library, qr_error *err);
qrun_status qr_cuda_lora_put_a(qr_cuda_backend &cuda, const qr_lora_backward_args &args, int64_t first_in, int64_t n_in,
                               uint16_t *rows, qr_error *err);
qrun_status qr_cuda_lora_add_gradients(qr_cuda_backend &cuda, const qr_lora_backward_args &args, unsigned char *scratch,
                                       qr_error *err);

/* linear and linear_backward together with their adapter, as one product; the same three functions. */
size_t qr_cuda_lora_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_args &args);
size_t qr_cuda_lora_cublaslt_workspace(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
bool qr_cuda_lora_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_args &args);
bool qr_cuda_lora_cublaslt_takes(const qr_cuda_backend &cuda, const qr_linear_backward_args &args);
qrun_status qr_cuda_lora_cublaslt(qr_cuda_backend &cuda, const qr_linear_args &args, void *workspace, qr_error *err);
qrun_status qr_cuda_lora_cublaslt(qr_cuda_backend &cuda, const qr_linear_backward_args &args, void *workspace,
                                  qr_error *err);

/* Of an op with an adapter (`lora_op` computes it alone): whichever way it is computed. */
template <typename A>
static size_t qr_cuda_adapted_workspace(const qr_cuda_backend &cuda, const A &args, const qr_op_impl &lora_op) {
    size_t n_bytes = qr_cuda_cublaslt_workspace(cuda, args);
    if (args.lora == NULL) { return n_bytes; }
    for (const size_t other :
         {qr_cuda_lora_cublaslt_workspace(cuda, args), lora_op.workspace_bytes(&cuda.base, args.lora)}) {
        n_bytes = other > n_bytes ? other : n_bytes;
    }
    return n_bytes;
}

/* The op with its adapter: as one product, or one after the other. run(cuda, args, workspace, err) is the op alone. */
template <typename A, typename F>
static qrun_status qr_cuda_adapted(qr_cuda_backend &cuda, const A &args, const qr_op_impl &lora_op, const F &run,
                                   void *workspace, qr_error *err) {
    if (args.lora != NULL && qr_cuda_lora_cublaslt_takes(cuda, args)) {
        const qrun_status status = qr_cuda_lora_cublaslt(cuda, args, workspace, err);
        if (status != QR_CUBLASLT_REFUSED) { return status; }
    }
    const qrun_status status = run(cuda, args, workspace, err);
    if (status != QRUN_OK || args.lora == NULL) { return status; }
    return lora_op.run(&cuda.base, args.lora, workspace, err);
}

/* Whether the library has computed, or failed at, the op: else our own kernels do. */
template <typename A>
static bool qr_cuda_by_cublaslt(qr_cuda_backend &cuda, const A &args, void *workspace, qrun_status *status,
                                qr_error *err) {
    if (!qr_cuda_cublaslt_takes(cuda, args)) { return false; }
    *status = qr_cuda_cublaslt(cuda, args, workspace, err);
    return *status != QR_CUBLASLT_REFUSED;
}

#endif
