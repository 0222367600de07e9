/* The product of the backward pass: C = A·B, or C += A·B, with A [m, k] and B [k, n], as a sum of outer products:
 * lanes run along the columns of B and C, and an element of A meets a whole row of B. Input gradients (C = dy·W, B the
 * packed weights), weight gradients (C += dyᵀ·x) and the products of LoRA have this form. None needs a transposed copy
 * of the large operand.
 *
 * C is cut into tasks of up to QR_CPU_GEMM_ROWS by QR_CPU_GEMM_COLS. A task walks k in blocks: it packs the block
 * of A and of B (dequantised) into scratch that stays in L2, and the instruction set's `multiply` adds the products.
 *
 * Why the bits do not depend on how C is cut: an element of C is one chain of accumulations, k ascending (with BF16
 * operands, pairs of k; on tiles, 32 of k at a time), which is carried from block to block in C itself. So weight
 * gradients of several micro-batches, added up one after the other, are those of one batch; on tiles, of micro-batches
 * of a multiple of 32 rows. */
#ifndef QR_KERNELS_CPU_LINEAR_GEMM_BACKWARD_H
#define QR_KERNELS_CPU_LINEAR_GEMM_BACKWARD_H

#include "kernels/cpu/linear/linear.h"

/* Operands are held in units of four bytes: an F32 element, or the BF16 elements of k and k + 1, k even. */
enum {
    QR_CPU_GEMM_ROWS = 264, /* a multiple of the tiles' 12 and 6 */
    QR_CPU_GEMM_COLS = 256,
    QR_CPU_GEMM_UNITS = 128, /* of k in a block: 64 columns of it are 32 KiB, which stay in L1 */
    /* Rows of the packed operands, in units: not a multiple of 512 bytes, which would fall into the same sets of L1. */
    QR_CPU_GEMM_A_STRIDE = QR_CPU_GEMM_UNITS + 16,
    QR_CPU_GEMM_B_STRIDE = QR_CPU_GEMM_COLS + 16,
    QR_CPU_GEMM_C_STRIDE = QR_CPU_GEMM_B_STRIDE,
    QR_CPU_GEMM_A_BY_K_STRIDE = QR_CPU_GEMM_ROWS + 8,
    QR_CPU_GEMM_PARTS_K = 32, /* with operands in parts: of k at a time */
    QR_CPU_GEMM_MAX_PARTS = 3,
};

/* c[r, j] += Σ over u of a[r, u] · b[u, j], u ascending, for n_cols (a multiple of 16) columns. */
typedef struct qr_cpu_gemm_product {
    const float *a; /* [n_rows, a_stride], or, a_by_k, [n_units, QR_CPU_GEMM_A_BY_K_STRIDE] (F32 only) */
    const float *b; /* [n_units, QR_CPU_GEMM_B_STRIDE] */
    float *c;       /* rows c_stride apart */
    int64_t n_rows, n_cols, n_units, c_stride;
    int64_t a_stride; /* QR_CPU_GEMM_A_STRIDE; where takes_in_place also that of the caller's A */
    bool a_by_k;
    qr_cpu_ahead *ahead; /* [2] what the next block is packed from, of A and of B; NULL: nothing */
} qr_cpu_gemm_product;

/* Products of BF16 operands that stand for one of F32: elements are sums of BF16 values, and product i is that of part
 * a[i] of A and part b[i] of B. An operand that is BF16 has part 0 alone. */
typedef struct qr_cpu_gemm_parts {
    int n_products;
    int8_t a[QR_CPU_GEMM_MAX_PARTS], b[QR_CPU_GEMM_MAX_PARTS];
} qr_cpu_gemm_parts;

/* A two parts, within 2^-17 of itself, B as it is. */
extern const qr_cpu_gemm_parts qr_cpu_gemm_pair_by_exact;
/* Both two parts, of which the product of the last two is left out: 2^-16 more. */
extern const qr_cpu_gemm_parts qr_cpu_gemm_pair_by_pair;
/* A is three parts, which are exact, but for what is below 2^-126. */
extern const qr_cpu_gemm_parts qr_cpu_gemm_triple_by_exact;

/* n elements from `first` on by n_k of k, to be packed: for each PARTS_K of k the products one after the other, in
 * units; the last group has no more than it needs. Rows of B are filled with zeros to a multiple of 16. */
typedef struct qr_cpu_gemm_pack {
    const void *src; /* F32 or BF16 */
    qr_dtype dtype;
    bool along_k;   /* src is [n, k]; else [k, n] */
    bool is_b;      /* dst is of B; else of A */
    int64_t stride; /* of src */
    int64_t first, n, k, n_k;
    int n_products;
    const int8_t *part; /* [n_products] */
    float *dst;
} qr_cpu_gemm_pack;

/* What an instruction set supplies; of qr_cpu_matmul.gemm_backward. */
typedef struct qr_cpu_gemm_kernel {
    int64_t unit_k;   /* of k in a unit: 1 (F32) or 2 (BF16 pairs) */
    int64_t row_step; /* rows of a task are a multiple of it */
    /* dst = n elements of src, F32, BF16 or F16, times `factors` where not NULL, as operands, padded with zeros to
     * whole units. With operands of BF16 values src is BF16 and the product is rounded to F32, then to BF16. */
    void (*pack)(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst);
    /* n_rows rows of n (a multiple of 32) BF16 elements as rows of pairs, a last odd one paired with zeros. NULL:
     * F32. */
    void (*interleave)(const uint16_t *src, int64_t src_stride, int64_t n_rows, int64_t n, float *dst);
    /* Operands in parts, with BF16 pairs and rows of B at multiples of 16. NULL: the kernel has none. */
    void (*pack_parts)(const qr_cpu_gemm_pack *pack);
    void (*multiply)(const qr_cpu_gemm_product *product);
    bool takes_in_place; /* an A of BF16 in rows, where its stride suits the caches */
    bool packs_once;     /* a whole A, where there is room (packed_a) */
} qr_cpu_gemm_kernel;

extern const qr_cpu_gemm_kernel qr_cpu_gemm_bf16; /* AVX-512 BF16 */
/* Its operands, which are those of tiles. */
void qr_cpu_gemm_pack_bf16(const void *src, qr_dtype dtype, const float *factors, int64_t n, void *dst);
void qr_cpu_gemm_interleave_bf16(const uint16_t *src, int64_t src_stride, int64_t n_rows, int64_t n, float *dst);
void qr_cpu_gemm_pack_parts_bf16(const qr_cpu_gemm_pack *pack);

typedef struct qr_cpu_gemm_operand {
    const void *data; /* rows `stride` elements apart */
    qr_dtype dtype;
    bool transposed; /* A is [k, m], or B, which is then F32, [n, k] */
    int64_t stride;
    /* Of an operand with a row for each k, and not in parts: where that row is, and what it is multiplied by, which is
     * A's alone. NULL: in their order, and by 1. */
    const int32_t *source_row;
    const float *row_factor;
} qr_cpu_gemm_operand;

typedef struct qr_cpu_gemm_args {
    const qr_cpu_matmul *matmul;
    int64_t m, n, k;
    qr_cpu_gemm_operand a;   /* [m, k] */
    const qr_weight *weight; /* B, [k, n]; INT8: its scales multiply A. NULL: b is B */
    const qr_cpu_row_groups
        *groups;           /* rows of C by their weights, which `weight` stands for; NULL: all with `weight` */
    qr_cpu_gemm_operand b; /* [k, n] */
    float *c;              /* [m, n], rows c_stride apart */
    bool c_transposed;     /* c is [n, m] */
    int64_t c_stride;
    bool accumulate;                /* adds to C; factor is then not read */
    float factor;                   /* of the sums */
    const qr_cpu_gemm_parts *parts; /* of A and B, which is no weight; NULL: operands are as the kernel takes them */
    /* Memory of qr_cpu_gemm_packed_a_bytes for A with rows in order, no parts, and a weight of its own: it is packed
     * once and not for each QR_CPU_GEMM_COLS of C. NULL: with each block. */
    float *packed_a;
    /* Added to the same C: another product with its m and n, by parts, whose k is one block. NULL: nothing. */
    const struct qr_cpu_gemm_args *also;
} qr_cpu_gemm_args;

/* Scratch of any product; a multiple of 64. */
size_t qr_cpu_gemm_backward_workspace(const qr_backend *backend);
/* Of packed_a; 0 where the instruction set has no use for it. */
size_t qr_cpu_gemm_packed_a_bytes(const qr_cpu_matmul *matmul, int64_t m, int64_t k);
/* With operands in parts, of BF16 pairs. */
bool qr_cpu_gemm_fits_one_block(const qr_cpu_gemm_parts *parts, int64_t k);
void qr_cpu_gemm_backward(qr_backend *backend, const qr_cpu_gemm_args *args, void *workspace);

#endif
