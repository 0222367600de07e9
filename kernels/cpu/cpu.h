/* The CPU backend's own header: the backend object, the instruction sets it chooses from, the layout of weights in its
 * memory, and where each op is implemented. Device memory is ordinary memory here: ops read and write it directly.
 *
 * An op is one `const qr_op_impl qr_cpu_op_<name>` in a file of its family. An op with vector kernels selects among
 * them by `qr_cpu(backend)->kernels`; a file that needs an instruction set gets its flags in kernels/CMakeLists.txt and
 * holds nothing that is called before the level was checked. QRUN_SCALAR leaves those files out. */
#ifndef QR_KERNELS_CPU_CPU_H
#define QR_KERNELS_CPU_CPU_H

#include "kernels/host_memory.h"
#include "kernels/op_check.h"

/* Each level has everything of those before it, of the same architecture.
 *   AVX2:        AVX2, FMA, F16C
 *   AVX512:      AVX-512 F, BW, DQ, VL
 *   AVX512_BF16: AVX-512 BF16 (vdpbf16ps)
 *   AVX512_VBMI: AVX-512 VBMI, which the kernels of tiles use beside them
 *   AMX_BF16:    AMX tiles with BF16, allowed by the operating system
 *   NEON:        64-bit Arm
 *   NEON_BF16:   FEAT_BF16 (BFDOT) */
typedef enum qr_cpu_level {
    QR_CPU_C,
    QR_CPU_AVX2,
    QR_CPU_AVX512,
    QR_CPU_AVX512_BF16,
    QR_CPU_AVX512_VBMI,
    QR_CPU_AMX_BF16,
    QR_CPU_NEON,
    QR_CPU_NEON_BF16,
} qr_cpu_level;

struct qr_cpu_matmul;       /* kernels/cpu/linear/linear.h */
struct qr_cpu_vector_ops;   /* kernels/cpu/vector_ops.h */
struct qr_cpu_lora_pairs;   /* kernels/cpu/linear/lora.h */
struct qr_cpu_packed_tiles; /* kernels/cpu/attention/attention_packed.h */

typedef struct qr_cpu_kernels {
    const struct qr_cpu_vector_ops *vector_ops;
    const struct qr_cpu_matmul *matmul_bf16;    /* linear with x in BF16 */
    const struct qr_cpu_matmul *matmul_int16;   /* the same with weights that int16_sum.h takes; NULL: matmul_bf16 */
    const struct qr_cpu_matmul *matmul_f16;     /* in F16: on F32 elements, as these sets have no products of F16 */
    const struct qr_cpu_matmul *matmul_f32;     /* in F32 */
    const struct qr_cpu_matmul *backward_bf16;  /* linear_backward with dy in BF16 */
    const struct qr_cpu_lora_pairs *lora_pairs; /* LoRA by pairs of BF16 without tiles; NULL: in F32 */
    /* On matrix tiles, NULL where there are none: F32 products by BF16 ones (gemm_backward.h), packed attention, and
     * attention over pages (attention_tiling.h). */
    const struct qr_cpu_matmul *backward_parts;
    const struct qr_cpu_packed_tiles *packed_tiles;
    void (*attention_on_tiles)(const qr_backend *backend, const qr_attention_args *args, float *lse, void *workspace);
} qr_cpu_kernels;

typedef struct qr_cpu_isa {
    const char *name;        /* as QRUN_FORCE_ISA takes it */
    qr_cpu_level level;      /* what it needs */
    qr_cpu_kernels fastest;  /* in the fastest order of sums of this instruction set */
    qr_cpu_kernels portable; /* with the bits of all others' portable kernels, which are those of AMX */
    bool test_only;          /* never chosen nor listed */
} qr_cpu_isa;

typedef struct qr_cpu_backend {
    qr_host_backend host; /* first: a qr_backend * of this backend is a qr_cpu_backend * */
    const qr_cpu_isa *isa;
    const qr_cpu_kernels *kernels; /* of isa */
} qr_cpu_backend;

static inline const qr_cpu_backend *qr_cpu(const qr_backend *backend) { return (const qr_cpu_backend *)backend; }

/* The instruction set named (NULL: QRUN_FORCE_ISA, but one of a GPU, "sm_…", or else the best of this machine); an
 * unknown or unavailable name is refused with the list of those that would do. */
qrun_status qr_cpu_isa_choose(const char *name, const qr_cpu_isa **isa, qr_error *err);

/* Zeroed memory at a 64-byte boundary, in huge pages where it is large enough; NULL when there is none. Not counted. */
void *qr_cpu_map(size_t n_bytes);
void qr_cpu_unmap(void *memory, size_t n_bytes);

/* The ops; those of qr_cpu_op_linear and qr_cpu_op_lora are in linear.c and lora.c. */
#define QR_X(name) extern const qr_op_impl qr_cpu_op_##name;
QR_OPS(QR_X)
#undef QR_X

/* Defines qr_cpu_op_<name>, which checks its arguments when it runs, of
 *   size_t workspace_function(const qr_backend *backend, const void *args)
 *   void run_function(qr_backend *backend, const qr_<name>_args *args, void *workspace) */
#define QR_CPU_CHECKED_OP(name, workspace_function, run_function)                                              \
    static qrun_status name##_checked(qr_backend *backend, const void *args, void *workspace, qr_error *err) { \
        if (!qr_check_##name(args, err)) { return QRUN_ERROR_ARGUMENT; }                                       \
        run_function(backend, args, workspace);                                                                \
        return QRUN_OK;                                                                                        \
    }                                                                                                          \
    const qr_op_impl qr_cpu_op_##name = {                                                                      \
        .supports = qr_op_supports_##name, .workspace_bytes = workspace_function, .run = name##_checked};

/* --- Weights in this backend's memory ---
 *
 * ROWS (F32, F16, BF16, INT8): rows in order, row_bytes apart; the elements of a row are contiguous and followed by
 * zeros up to a multiple of 64 bytes. INT8: SCB, F32 [rows], at scales_offset.
 *
 * NF4_GROUPS (NF4 with cols % 64 == 0 and block % 64 == 0, MXFP4 with cols % 64 == 0): rows in groups of 16, the last
 * one filled up; group_bytes = 16 · cols / 2 a group. Inside a group, for each 128 columns k0: 16 times 64 bytes, one
 * run a row. Where cols % 128 == 64, then 16 times 32 bytes. So a whole group is read front to back. How the codes lie
 * in a run, the instruction set says (codes_in_blocks of vector_ops.h):
 *     words    32 little-endian words of 16 bits, of which word w holds column k0 + 32j + w in bits [4j, 4j + 4): one
 *              load of 64 bytes and three shifts give 128 codes, 32 in order at a time. Of 32 bytes, byte w holds
 *              columns k0 + w (low nibble) and k0 + 32 + w.
 *     blocks   for each 64 columns b0 32 bytes, which hold columns b0 + c (low nibble) and b0 + 32 + c, for c = 0 … 7,
 *              16 … 23, 8 … 15, 24 … 31: a vector of 32 bytes has one block's codes, and interleaving two such vectors
 *              of bytes in each half of a register gives words in order.
 *
 * NF4_FLAT (any other NF4 or MXFP4): canonical codes.
 *
 * NF4: absmax, F32 [n_blocks], at scales_offset. NF4_DQ: absmax codes, U8 [n_blocks], at scales_offset, nested absmax,
 * F32 [ceil(n_blocks / 256)], at nested_offset. MXFP4: scales, U8 [n_blocks], at scales_offset. */
enum { QR_CPU_NF4_GROUP_ROWS = 16 };

typedef enum qr_cpu_layout_kind { QR_CPU_ROWS, QR_CPU_NF4_GROUPS, QR_CPU_NF4_FLAT } qr_cpu_layout_kind;

typedef struct qr_cpu_layout {
    qr_cpu_layout_kind kind;
    size_t row_bytes;   /* ROWS */
    size_t group_bytes; /* NF4_GROUPS */
    size_t scales_offset, nested_offset, total_bytes;
} qr_cpu_layout;

void qr_cpu_layout_of(const qr_weight_desc *desc, qr_cpu_layout *layout);

/* First element of a row of a ROWS layout. */
static inline const void *qr_cpu_row(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row) {
    return (const unsigned char *)weight->data + (size_t)row * layout->row_bytes;
}

/* SCB of an INT8 matrix, or the absmax of an NF4 one. */
static inline const float *qr_cpu_scales(const qr_weight *weight, const qr_cpu_layout *layout) {
    return (const float *)((const unsigned char *)weight->data + layout->scales_offset);
}

/* NF4_GROUPS: the codes of columns [k, k + 128) of a row: 64 bytes, or 32 when only 64 columns are left; k % 128 == 0.
 */
static inline uint8_t *qr_cpu_nf4_run(const qr_weight *weight, const qr_cpu_layout *layout, int64_t row, int64_t k) {
    const int64_t run_bytes = k + 128 <= weight->desc.cols ? 64 : 32;
    const int64_t in_group = k / 2 * QR_CPU_NF4_GROUP_ROWS + row % QR_CPU_NF4_GROUP_ROWS * run_bytes;
    return (uint8_t *)weight->data + (size_t)(row / QR_CPU_NF4_GROUP_ROWS) * layout->group_bytes + (size_t)in_group;
}

/* In backend/weight.c. */
extern const qr_host_weights qr_cpu_weights_words, qr_cpu_weights_blocks;

#endif
