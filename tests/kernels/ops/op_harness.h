/* Runs ops on every backend there is and compares them with the reference backend.
 *
 * A test never touches device memory: buffers are created through the backend, with guard bytes around them, filled
 * and read by copies. After each run the guards, the gaps between strided rows and every input must be as they were.
 *
 * What a case checks on every backend:
 *   - the result against `ref`: rounding(ref − bound) ≤ result ≤ rounding(ref + bound), where the bound is derived in
 *     the op's test from the number of F32 roundings, never tuned; NaN equals NaN; the bound is small enough that an
 *     output of zeros fails;
 *   - the bits of each row: the same alone, among other rows, and with one thread or two;
 *   - a workspace of exactly workspace_bytes; and with one byte less, for some calls of every op, that it is refused
 *     and nothing is touched. */
#ifndef QR_TESTS_OP_HARNESS_H
#define QR_TESTS_OP_HARNESS_H

#include "base/sizes.h"
#include "base/status.h"
#include "kernels/backend.h"

enum { OP_SEED = 20240607, OP_MAX_DEVICES = 8, OP_MAX_BUFFERS = 96 };

/* Half a unit in the last place of 1 in F32: the relative error of one rounding. */
#define OP_U 0x1p-24

/* One backend with one thread and with two. */
typedef struct op_device {
    char label[64];
    qr_backend *backends[2];
    qr_backend *ref; /* what it is compared with; NULL: with the world's */
} op_device;

typedef struct op_world {
    qr_backend *ref;
    op_device devices[OP_MAX_DEVICES];
    int n_devices;
    qr_threads *threads[2];
    /* As op_case.same_everywhere, for every case. Rows alone are left to the tests without it: the sources are the
     * same. */
    bool same_everywhere;
} op_world;

extern op_world op_everything;

/* The threads and the reference backend; then `add_devices` adds what is to be tested, by op_add_device. */
bool op_world_create(bool (*add_devices)(qr_error *err));
void op_add_device(const char *label, qr_backend *one, qr_backend *two);
void op_compare_device_with(qr_backend *ref); /* the last one added; it takes ref over */
void op_remove_device(void);                  /* the last one */
void op_world_destroy(void);

/* A weight as a file holds it, made by quantising values: canonical codes and scales, and what the linear op multiplies
 * with F32 activations. */
typedef struct op_weight {
    qr_weight_desc desc;
    unsigned char *codes;
    qr_weight_scales scales;
    float *values; /* [rows, cols] dequantised to F32 */
} op_weight;

op_weight *op_weight_create(qr_weight_desc desc, uint64_t stream);
void op_weight_destroy(op_weight *weight);
/* Writes it to a new weight on the backend, in several groups of rows and not in order. `data` is given. */
bool op_weight_put(qr_backend *backend, const op_weight *weight, void *data, qr_weight *dst, qr_error *err);

/* --- One run of one op on one backend --- */
typedef struct op_buffer {
    unsigned char *memory;
    size_t n_bytes, total_bytes;
    const void *host; /* inputs: what must still be there */
    int64_t n_rows;   /* outputs: rows of row_bytes, stride_bytes apart */
    size_t row_bytes, stride_bytes;
    bool is_output;
} op_buffer;

typedef struct op_run {
    qr_backend *backend;
    const char *label; /* of the case, for messages */
    op_buffer buffers[OP_MAX_BUFFERS];
    int n_buffers;
    qr_weight weight;
} op_run;

/* A copy of n_bytes of host memory, which must outlive the run. NULL host or no bytes gives NULL. */
void *op_input(op_run *run, const void *host, size_t n_bytes);
/* Rows row_bytes long and stride_bytes apart; `initial` [n_rows, row_bytes] or NULL for bytes 0xFF (NaN). */
void *op_output(op_run *run, const void *initial, int64_t n_rows, size_t row_bytes, size_t stride_bytes);
const qr_weight *op_run_weight(op_run *run, const op_weight *weight);
/* supports, workspace of exactly its size, run, sync; failures are recorded. Notes that the op was called. */
void op_call(op_run *run, qr_op op, const void *args);
/* For calls that do not go through op_call: notes that the op was called with the workspace that it asked for. */
void op_note_call(const qr_backend *backend, qr_op op, size_t workspace_bytes);
/* The rows of an output, packed. */
void op_read(op_run *run, const void *output, void *host);

/* Checks guards, gaps and inputs and frees the buffers. The harness calls it after exec. */
void op_run_end(op_run *run);

/* --- A case: rows of output, each a function of its own input row unless `whole` is set --- */
typedef struct op_case {
    char label[200];
    int64_t n_rows, row; /* elements */
    /* Computes rows [first, first + n_rows) into out [n_rows, row] of dtype. */
    void (*exec)(op_run *run, const void *data, int64_t first, int64_t n_rows, qr_dtype dtype, void *out);
    const void *data;
    const double *bound; /* [n_rows, row], absolute, before rounding to dtype; NULL: bit-equal */
    bool whole; /* sums over rows: exec is called for all of them alone, and rows and row only say how much comes out */
    bool same_everywhere; /* all devices give the same bits */
} op_case;

void op_check_case(const op_case *c, qr_dtype dtype);

/* Elements between rows of `row` elements: 4 where that leaves every row at 16 bytes, for half the rows that it could,
 * and 3 for the others. */
static inline int64_t op_gap(int64_t row) { return row % 8 == 0 ? 4 : 3; }

/* --- Numbers --- */
float op_normal(uint64_t stream, int64_t index);
int64_t op_below(uint64_t stream, int64_t index, int64_t n);    /* uniform in [0, n) */
float *op_normals(int64_t n, uint64_t stream, double scale);    /* qr_free */
double *op_doubles(int64_t n);                                  /* zeros; qr_free */
void *op_to_dtype(const float *src, int64_t n, qr_dtype dtype); /* F32, F16 or BF16 copy; qr_free */
double op_from_dtype(const void *src, qr_dtype dtype, int64_t index);

/* --- Activation functions (op_elementwise.c): values in F64, and what an F32 one may err by --- */
float *op_act_inputs(int64_t n, uint64_t stream); /* with the ends of exp, tanh and erf among them; qr_free */
double op_act_value(qr_act_fn fn, double x);
double op_act_bound(qr_act_fn fn, double x);

/* --- linear (op_linear.c): many rows, with the same bits on every device there is; `alone`: and of fewer rows --- */
void op_linear_same_bits(int64_t n_outputs, bool alone);
void op_linear_few_rows(int64_t n_outputs);
void op_linear_most_rows(int64_t n_outputs);

/* --- The tests: one an op, and those of weights --- */
#define QR_X(name) void test_op_##name(void);
QR_OPS(QR_X)
#undef QR_X
void test_weight_round_trip(void);
void test_weight_rows_are_checked(void);
void test_loading_quantizes_on_the_device(void);
void test_loading_sends_codes(void);
void test_transfers_keep_their_order(void);
void test_groups_have_the_bits_of_their_ops(void);
void test_memory_is_counted_and_zeroed(void);

/* After the tests of all ops: on every backend each op was called, and refused a workspace one byte too small, or is
 * listed as one that needed none. is_absent: ops that the backends lack; NULL: none. */
void op_check_workspaces(bool (*is_absent)(qr_op op));

#endif
