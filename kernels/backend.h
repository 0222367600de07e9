/* A backend: memory, copies, weights in its own layout, and every op. The runtime holds one of these and never asks
 * which one it is; it never dereferences device memory.
 *
 * Work on a backend is ordered: an op sees the results of the ops and copies issued before it. `run` may return before
 * the work is done; `sync` waits. One thread at a time issues work (weight_put_rows and the quantize op excepted). */
#ifndef QR_KERNELS_BACKEND_H
#define QR_KERNELS_BACKEND_H

#include "base/threads.h"
#include "kernels/ops.h"

typedef struct qr_backend qr_backend;
typedef struct qr_recording qr_recording;
typedef struct qr_profile qr_profile;   /* profile.h */
typedef struct qr_recorder qr_recorder; /* timeline/timeline.h */

enum { QR_BACKEND_VERSION = 2 };

typedef enum qr_memory_kind { QR_MEMORY_DEVICE, QR_MEMORY_HOST } qr_memory_kind; /* HOST: pinned where that matters */

/* The memory that QR_MEMORY_DEVICE comes from, where it is not the machine's. */
typedef struct qr_backend_memory {
    int64_t total_bytes, free_bytes; /* free: now, for whatever is made next */
    int64_t context_bytes; /* what the driver took for this process when the backend was made; −1: not known */
    int64_t host_held_bytes, host_peak_bytes; /* QR_MEMORY_HOST: now, and at most */
} qr_backend_memory;

/* What a backend can do at most on this machine, to compare its speed with. */
typedef struct qr_backend_peaks {
    double read_bytes_per_second; /* streaming reads of device memory */
    double bf16_flops;            /* BF16 products with F32 sums, from registers; a multiply-add is two */
    double f32_flops;
    double f16_flops; /* 0: as BF16 */
} qr_backend_peaks;

/* Device memory that an op may use while it runs, 64-byte aligned. What is in it before does not matter, and nothing in
 * it is kept for the next op. */
typedef struct qr_workspace {
    void *memory;
    size_t n_bytes;
} qr_workspace;

#define QR_NO_WORKSPACE ((qr_workspace){0}) /* for ops that need none */

/* One op of one backend. */
typedef struct qr_op_impl {
    /* Whether `run` would accept these arguments: pure; fills err with the precondition that fails. */
    bool (*supports)(const qr_backend *backend, const void *args, qr_error *err);
    /* Scratch bytes that `run` needs for these sizes; grows with n_rows / n_tokens, so the plan asks at the maximum.
     * Only sizes, types and descriptions are read, not the data pointers. */
    size_t (*workspace_bytes)(const qr_backend *backend, const void *args);
    /* Runs the op. Allocates nothing. workspace is 64-byte aligned device memory of at least workspace_bytes: callers
     * go through qr_backend_run, which checks that. */
    qrun_status (*run)(qr_backend *backend, const void *args, void *workspace, qr_error *err);
} qr_op_impl;

/* An op with its arguments, a `const qr_<op>_args *`. */
typedef struct qr_op_call {
    qr_op op;
    const void *args;
} qr_op_call;

struct qr_backend {
    uint32_t version;    /* QR_BACKEND_VERSION */
    const char *name;    /* "cpu", "ref", "cuda" */
    const char *isa;     /* "avx512-bf16", "avx2", "c", "sm_90" … */
    qr_threads *threads; /* lent; for host-side loops */

    void (*destroy)(qr_backend *backend);
    /* One line for people: what of the device is used, and what not and why. NULL: there is nothing to say. */
    void (*features)(const qr_backend *backend, char *text, size_t n_bytes);
    /* Zeroed memory, 64-byte aligned (at least), counted by memory_held. */
    qrun_status (*memory_create)(qr_backend *backend, qr_memory_kind kind, size_t n_bytes, void **memory,
                                 qr_error *err);
    void (*memory_destroy)(qr_backend *backend, qr_memory_kind kind, void *memory, size_t n_bytes);
    /* Bytes of device memory now held and the high-water mark of memory_create, for checking the plan. HOST memory is
     * counted here where memory_info is NULL, and there where it is not. */
    void (*memory_held)(const qr_backend *backend, size_t *now, size_t *peak);
    /* NULL: device and host memory are both the machine's, and the backend takes none of it for itself. */
    qrun_status (*memory_info)(const qr_backend *backend, qr_backend_memory *memory, qr_error *err);
    qrun_status (*copy_in)(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err);
    /* From memory made with QR_MEMORY_HOST: may return before the bytes are read, so they stay as they are until the
     * next sync or copy_out. */
    qrun_status (*copy_in_async)(qr_backend *backend, void *device, const void *host, size_t n_bytes, qr_error *err);
    qrun_status (*copy_out)(qr_backend *backend, void *host, const void *device, size_t n_bytes,
                            qr_error *err); /* waits */
    /* copy_out in two parts, into HOST memory: begin may return before the bytes are there, in the order of the work;
     * end waits for them, and with them for all that was issued before begin. Not for what was issued since: that is
     * what they are for. *ticket names the copy, and the last eight can be waited for one by one. NULL, both: the
     * backend works while it is called, and nothing would be gained. */
    qrun_status (*copy_out_begin)(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                  qr_error *err);
    qrun_status (*copy_out_end)(qr_backend *backend, uint64_t ticket, qr_error *err);
    qrun_status (*copy_within)(qr_backend *backend, void *dst, const void *src, size_t n_bytes, qr_error *err);
    qrun_status (*fill_zero)(qr_backend *backend, void *device, size_t n_bytes, qr_error *err);
    qrun_status (*sync)(qr_backend *backend, qr_error *err); /* for transfers too */
    /* Copies between HOST and device memory that run in parallel with the ops, one after the other. One begins when
     * every op and copy issued before it is done. Ops issued after it may run meanwhile, until transfer_wait makes
     * those issued from then on wait. *ticket names it for that, and with it all transfers before. The CPU may read the
     * result after sync. */
    qrun_status (*transfer_in)(qr_backend *backend, void *device, const void *host, size_t n_bytes, uint64_t *ticket,
                               qr_error *err);
    qrun_status (*transfer_out)(qr_backend *backend, void *host, const void *device, size_t n_bytes, uint64_t *ticket,
                                qr_error *err);
    qrun_status (*transfer_wait)(qr_backend *backend, uint64_t ticket, qr_error *err);

    /* Recording: all NULL where a backend cannot. What the calling thread issues between begin and end (ops,
     * copy_within, fill_zero, copy_in_async) is kept and not run; what waits or makes memory, and transfers, fail.
     * Other threads may use the backend as usual. record_end without a `recording` forgets all. A recording keeps the
     * arguments and addresses it was given. Each replay runs it in the order of what is issued before and after it, and
     * reads what is in the memory then. That includes host memory, which stays as copy_in_async says. */
    qrun_status (*record_begin)(qr_backend *backend, qr_error *err);
    qrun_status (*record_end)(qr_backend *backend, qr_recording **recording, qr_error *err);
    qrun_status (*replay)(qr_backend *backend, qr_recording *recording, qr_error *err);
    void (*recording_destroy)(qr_backend *backend, qr_recording *recording); /* NULL is fine */

    /* Bytes of a matrix in this backend's layout (codes and scales), a multiple of 64; 0: it computes with none in this
     * format, and puts none. */
    size_t (*weight_bytes)(const qr_backend *backend, const qr_weight_desc *desc);
    /* Writes canonical codes (host) of rows [row, row + n_rows), row a multiple of QR_WEIGHT_ROW_GROUP and n_rows too
     * unless the matrix ends there. Threads may write disjoint rows at once. */
    qrun_status (*weight_put_rows)(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                   const void *codes, qr_error *err);
    qrun_status (*weight_put_scales)(qr_backend *backend, qr_weight *weight, const qr_weight_scales *scales,
                                     qr_error *err);
    /* The inverse, into host memory; unpack(pack(w)) == w. Of the scales, each pointer that is not NULL is filled. */
    qrun_status (*weight_get_rows)(qr_backend *backend, const qr_weight *weight, int64_t row, int64_t n_rows,
                                   void *codes, qr_error *err);
    qrun_status (*weight_get_scales)(qr_backend *backend, const qr_weight *weight, float *row_absmax, float *absmax,
                                     uint8_t *absmax_codes, float *nested_absmax, qr_error *err);

    /* Loading a model, one at a time: until loading_end, weight_put_rows too may return before the bytes have arrived;
     * loading_wait waits for them. NULL, like weight_put_source: the backend has nothing to prepare. */
    qrun_status (*loading_begin)(qr_backend *backend, qr_error *err);
    qrun_status (*loading_wait)(qr_backend *backend, qr_error *err);
    void (*loading_end)(qr_backend *backend);
    bool takes_sources; /* set while weight_put_source may be called; loading_begin may have found no room for it */
    /* Quantises or converts rows as weight_put_rows takes them, of a plain type (host, any alignment), into the weight:
     * what the quantize op, weight_put_rows and weight_put_scales would write. Of NF4_DQ not the scales: absmax, F32 of
     * these rows' blocks, is the caller's to nest once loading_wait has brought it; else absmax is not looked at. src
     * may go when the call returns. Threads may write disjoint rows at once. */
    qrun_status (*weight_put_source)(qr_backend *backend, qr_weight *weight, int64_t row, int64_t n_rows,
                                     qr_dtype dtype, const void *src, float *absmax, qr_error *err);

    /* Measures the peaks now, with everything the backend has; takes about `seconds`, or as long as the least number
     * of passes needs. */
    qrun_status (*measure_peaks)(qr_backend *backend, double seconds, qr_backend_peaks *peaks, qr_error *err);

    /* Positions in the work, numbered from 0 below n_marks, and device time between two that have been marked since
     * marks_begin; mark_seconds waits. hold: the device is kept busy first, so that what follows is issued meanwhile
     * and no time between two marks is the host's. NULL, all three: an op is done when `run` returns, and the host's
     * clock tells.
     */
    qrun_status (*marks_begin)(qr_backend *backend, int32_t n_marks, bool hold, qr_error *err);
    qrun_status (*mark)(qr_backend *backend, int32_t mark, qr_error *err);
    qrun_status (*mark_seconds)(qr_backend *backend, int32_t from, int32_t to, double *seconds, qr_error *err);
    qr_profile *profile;   /* while ops are timed; else NULL */
    qr_recorder *timeline; /* while there is one; else NULL */

    /* Runs the first *n_taken of several ops as one, with all that they would write, in the same bits; 0: it runs none,
     * and the first one is to be run alone. Needs no workspace. NULL: never. Callers go through op_list.h. */
    qrun_status (*run_group)(qr_backend *backend, const qr_op_call *calls, int32_t n_calls, int32_t *n_taken,
                             qr_error *err);

    qr_op_impl ops[QR_OP_COUNT];
};

/* The backends. `isa` NULL takes the best the CPU has (or QRUN_FORCE_ISA, where set to a CPU's and not to a
 * GPU's, "sm_…"); a name it does not have is refused with the list. The reference backend is single-threaded scalar C.
 */
qrun_status qr_backend_ref_create(qr_threads *threads, qr_backend **backend, qr_error *err);
qrun_status qr_backend_cpu_create(const char *isa, qr_threads *threads, qr_backend **backend, qr_error *err);
/* The same with results whose bits do not depend on the instruction set: those of a CPU with AMX. Of the reference
 * backend, linear with x in BF16 has them (tile_sum.h). */
qrun_status qr_backend_ref_create_portable(qr_threads *threads, qr_backend **backend, qr_error *err);
/* The reference of the CPU backend of AVX2: linear and expert_linear with x in BF16 by integers (int16_sum.h). */
qrun_status qr_backend_ref_create_int16(qr_threads *threads, qr_backend **backend, qr_error *err);
qrun_status qr_backend_cpu_create_portable(const char *isa, qr_threads *threads, qr_backend **backend, qr_error *err);
/* Of libqrun_cuda.so, opened here. QRUN_ERROR_UNSUPPORTED, with the reason, where it or what it needs is missing;
 * QRUN_ERROR_DEVICE where it computes wrong results on this machine (self_check.h). */
qrun_status qr_backend_cuda_create(qr_threads *threads, qr_backend **backend, qr_error *err);
/* The instruction sets that qr_backend_cpu_create takes on this machine, best first, then NULL. */
const char *const *qr_backend_cpu_isas(void);
void qr_backend_destroy(qr_backend *backend); /* NULL is fine */

const char *qr_op_name(qr_op op); /* "linear" */

/* Runs an op, in every build only if the workspace is large enough for it: else QRUN_ERROR_INTERNAL with the op's name
 * and both sizes, and nothing is touched. args: a `const qr_<op>_args *`. */
qrun_status qr_backend_run(qr_backend *backend, qr_op op, const void *args, qr_workspace workspace, qr_error *err);

/* Typed calls, one per op: bool qr_supports_<op>, size_t qr_<op>_workspace, qrun_status qr_<op> (qr_backend_run). */
#define QR_X(name)                                                                                                  \
    static inline bool qr_supports_##name(const qr_backend *backend, const qr_##name##_args *args, qr_error *err) { \
        return backend->ops[QR_OP_##name].supports(backend, args, err);                                             \
    }                                                                                                               \
    static inline size_t qr_##name##_workspace(const qr_backend *backend, const qr_##name##_args *args) {           \
        return backend->ops[QR_OP_##name].workspace_bytes(backend, args);                                           \
    }                                                                                                               \
    static inline qrun_status qr_##name(qr_backend *backend, const qr_##name##_args *args, qr_workspace workspace,  \
                                        qr_error *err) {                                                            \
        return qr_backend_run(backend, QR_OP_##name, args, workspace, err);                                         \
    }
QR_OPS(QR_X)
#undef QR_X

#endif
