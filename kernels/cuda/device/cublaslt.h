/* Products of matrices by cuBLASLt, which is opened at run time: for ops whose order of sums may depend on their sizes
 * (any_order of linear and others). The algorithm follows from the sizes, strides and alignments alone, splits no sum
 * by itself, and gets a workspace of a fixed size. So the same product has the same bits every time on the same GPU and
 * library. */
#ifndef QR_KERNELS_CUDA_DEVICE_CUBLASLT_H
#define QR_KERNELS_CUDA_DEVICE_CUBLASLT_H

#include "kernels/cuda/device/api.h"

enum { QR_CUBLASLT_WORKSPACE_BYTES = 4 << 20, QR_CUBLASLT_ALIGNMENT = 256 };

/* Elements of BF16 or F16, rows `stride` elements apart. */
struct qr_cublaslt_operand {
    const void *data;
    int64_t stride;
    bool transposed; /* the matrix is the transpose of what is stored */
};

/* c [m, n] = a [m, k] · b [k, n] (+ bias along n) (+ c when accumulate), sums in F32. Or n_parts results, m · c_stride
 * elements apart, of as many equal parts of the k terms, each a multiple of 8 terms: one batch of products. */
struct qr_cublaslt_product {
    qr_dtype dtype; /* of a and b */
    int64_t m, n, k;
    qr_cublaslt_operand a, b;
    float *c; /* rows c_stride apart */
    int64_t c_stride;
    const float *bias; /* [n] or NULL */
    bool accumulate;
    int64_t n_parts; /* 0 is as 1 */
};

static inline int64_t qr_cublaslt_parts(const qr_cublaslt_product &p) { return p.n_parts > 1 ? p.n_parts : 1; }

/* The terms of a part. */
static inline int64_t qr_cublaslt_terms(const qr_cublaslt_product &p) { return p.k / qr_cublaslt_parts(p); }

struct qr_cublaslt; /* the library as a device holds it */

/* Whether the library can be opened, which the first call finds out. Without it the caller uses our own kernels. */
bool qr_cublaslt_is_there(qr_device *device);

/* The file that was opened, or in brackets why none is. From any thread. */
const char *qr_cublaslt_file(const qr_device *device);

/* Bytes of a matrix to dequantise at a time: what stays in the GPU's last cache until a product reads it. */
int64_t qr_cublaslt_panel_bytes(const qr_device *device);

/* The fewest rows of activations for which a product here pays: with fewer it is bound by reading the other matrix,
 * which our own kernels read once. */
int64_t qr_cublaslt_min_rows(const qr_device *device);

/* The first multiple of QR_CUBLASLT_ALIGNMENT in a workspace, which is QR_CUBLASLT_ALIGNMENT bytes larger than needed.
 */
static inline unsigned char *qr_cublaslt_aligned(void *workspace) {
    const uintptr_t past = reinterpret_cast<uintptr_t>(workspace) % QR_CUBLASLT_ALIGNMENT;
    return static_cast<unsigned char *>(workspace) + (past == 0 ? 0 : QR_CUBLASLT_ALIGNMENT - past);
}

/* Whether the library takes a product of these sizes, strides and alignments: no data is read. */
bool qr_cublaslt_takes(qr_device *device, const qr_cublaslt_product *product);

/* QR_CUBLASLT_REFUSED, without a message: the library does not take this product, and nothing was computed. */
static const qrun_status QR_CUBLASLT_REFUSED = QRUN_ERROR_UNSUPPORTED;
qrun_status qr_cublaslt_multiply(qr_device *device, const qr_cublaslt_product *product, void *workspace, qr_error *err);

void qr_cublaslt_close(qr_cublaslt *products); /* NULL is fine */

#endif
