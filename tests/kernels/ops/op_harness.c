#include "op_harness.h"

#include <assert.h>

#include "check.h"

#include "base/alloc.h"
#include "base/half.h"
#include "base/random.h"

enum { GUARD_BYTES = 64, GUARD = 0xA5, UNSET = 0xFF };

op_world op_everything;

/* --- Numbers --- */

float op_normal(uint64_t stream, int64_t index) { return (float)qr_random_normal(OP_SEED, stream, (uint64_t)index); }

int64_t op_below(uint64_t stream, int64_t index, int64_t n) {
    return (int64_t)(qr_random_uniform(OP_SEED, stream, (uint64_t)index) * (double)n);
}

float *op_normals(int64_t n, uint64_t stream, double scale) {
    float *values = qr_alloc_array((size_t)n, sizeof *values);
    for (int64_t i = 0; i < n; i++) { values[i] = (float)((double)op_normal(stream, i) * scale); }
    return values;
}

double *op_doubles(int64_t n) { return qr_alloc_array_zeroed((size_t)n, sizeof(double)); }

void *op_to_dtype(const float *src, int64_t n, qr_dtype dtype) {
    void *dst = qr_alloc_array((size_t)n, qr_dtype_bytes(dtype));
    for (int64_t i = 0; i < n; i++) {
        switch (dtype) {
            case QR_DTYPE_BF16: ((qr_bf16 *)dst)[i] = qr_f32_to_bf16(src[i]); break;
            case QR_DTYPE_F16: ((qr_f16 *)dst)[i] = qr_f32_to_f16(src[i]); break;
            default: ((float *)dst)[i] = src[i]; break;
        }
    }
    return dst;
}

double op_from_dtype(const void *src, qr_dtype dtype, int64_t index) {
    switch (dtype) {
        case QR_DTYPE_BF16: return (double)qr_bf16_to_f32(((const qr_bf16 *)src)[index]);
        case QR_DTYPE_F16: return (double)qr_f16_to_f32(((const qr_f16 *)src)[index]);
        default: return (double)((const float *)src)[index];
    }
}

static double round_to_dtype(double value, qr_dtype dtype) {
    const float rounded = (float)value;
    switch (dtype) {
        case QR_DTYPE_BF16: return (double)qr_bf16_to_f32(qr_f32_to_bf16(rounded));
        case QR_DTYPE_F16: return (double)qr_f16_to_f32(qr_f32_to_f16(rounded));
        default: return (double)rounded;
    }
}

/* --- Backends --- */

void op_add_device(const char *label, qr_backend *one, qr_backend *two) {
    op_device *device = &op_everything.devices[op_everything.n_devices++];
    snprintf(device->label, sizeof device->label, "%s", label);
    device->backends[0] = one;
    device->backends[1] = two;
    device->ref = NULL;
    printf("backend %s\n", label);
}

void op_compare_device_with(qr_backend *ref) { op_everything.devices[op_everything.n_devices - 1].ref = ref; }

bool op_world_create(bool (*add_devices)(qr_error *err)) {
    op_world *world = &op_everything;
    qr_error err = {0};
    const bool made = qr_threads_create(1, &world->threads[0], &err) == QRUN_OK &&
                      qr_threads_create(2, &world->threads[1], &err) == QRUN_OK &&
                      qr_backend_ref_create(world->threads[0], &world->ref, &err) == QRUN_OK && add_devices(&err);
    if (!made) { printf("cannot make the backends: %s\n", err.message); }
    return made;
}

void op_remove_device(void) {
    const op_device *device = &op_everything.devices[--op_everything.n_devices];
    qr_backend_destroy(device->backends[0]);
    qr_backend_destroy(device->backends[1]);
    qr_backend_destroy(device->ref);
}

void op_world_destroy(void) {
    op_world *world = &op_everything;
    while (world->n_devices > 0) { op_remove_device(); }
    qr_backend_destroy(world->ref);
    qr_threads_destroy(world->threads[0]);
    qr_threads_destroy(world->threads[1]);
}

/* --- Buffers --- */

static op_buffer *new_buffer(op_run *run, size_t n_bytes) {
    assert(run->n_buffers < OP_MAX_BUFFERS);
    op_buffer *buffer = &run->buffers[run->n_buffers++];
    *buffer = (op_buffer){.n_bytes = n_bytes, .total_bytes = n_bytes + 2 * (size_t)GUARD_BYTES};
    qr_error err = {0};
    void *memory = NULL;
    const qrun_status status =
        run->backend->memory_create(run->backend, QR_MEMORY_DEVICE, buffer->total_bytes, &memory, &err);
    assert(status == QRUN_OK);
    buffer->memory = memory;
    return buffer;
}

/* Sets the whole buffer: guards, and `image` (NULL: unset) between them. */
static void *fill_buffer(op_run *run, op_buffer *buffer, const void *image) {
    unsigned char *bytes = qr_alloc(buffer->total_bytes);
    memset(bytes, GUARD, buffer->total_bytes);
    memset(bytes + GUARD_BYTES, UNSET, buffer->n_bytes);
    if (image != NULL) { memcpy(bytes + GUARD_BYTES, image, buffer->n_bytes); }
    CHECK_INT(run->backend->copy_in(run->backend, buffer->memory, bytes, buffer->total_bytes, NULL), QRUN_OK);
    qr_free(bytes);
    return buffer->memory + GUARD_BYTES;
}

void *op_input(op_run *run, const void *host, size_t n_bytes) {
    if (host == NULL || n_bytes == 0) { return NULL; }
    op_buffer *buffer = new_buffer(run, n_bytes);
    buffer->host = host;
    return fill_buffer(run, buffer, host);
}

void *op_output(op_run *run, const void *initial, int64_t n_rows, size_t row_bytes, size_t stride_bytes) {
    /* The last row ends the buffer: nothing may be touched after it, not even up to a stride. */
    const size_t n_bytes = (size_t)(n_rows - 1) * stride_bytes + row_bytes;
    op_buffer *buffer = new_buffer(run, n_bytes);
    buffer->n_rows = n_rows;
    buffer->row_bytes = row_bytes;
    buffer->stride_bytes = stride_bytes;
    buffer->is_output = true;
    if (initial == NULL) { return fill_buffer(run, buffer, NULL); }
    unsigned char *image = qr_alloc(n_bytes);
    memset(image, UNSET, n_bytes);
    for (int64_t i = 0; i < n_rows; i++) {
        memcpy(image + (size_t)i * stride_bytes, (const unsigned char *)initial + (size_t)i * row_bytes, row_bytes);
    }
    void *at = fill_buffer(run, buffer, image);
    qr_free(image);
    return at;
}

static const op_buffer *buffer_of(const op_run *run, const void *at) {
    for (int i = 0; i < run->n_buffers; i++) {
        if (run->buffers[i].memory + GUARD_BYTES == (const unsigned char *)at) { return &run->buffers[i]; }
    }
    return NULL;
}

void op_read(op_run *run, const void *output, void *host) {
    const op_buffer *buffer = buffer_of(run, output);
    unsigned char *bytes = qr_alloc(buffer->n_bytes);
    CHECK_INT(run->backend->copy_out(run->backend, bytes, output, buffer->n_bytes, NULL), QRUN_OK);
    for (int64_t i = 0; i < buffer->n_rows; i++) {
        memcpy((unsigned char *)host + (size_t)i * buffer->row_bytes, bytes + (size_t)i * buffer->stride_bytes,
               buffer->row_bytes);
    }
    qr_free(bytes);
}

static bool all_bytes(const unsigned char *bytes, size_t n_bytes, unsigned char value) {
    for (size_t i = 0; i < n_bytes; i++) {
        if (bytes[i] != value) { return false; }
    }
    return true;
}

static bool gaps_untouched(const op_buffer *buffer, const unsigned char *bytes) {
    if (buffer->stride_bytes == buffer->row_bytes) { return true; }
    for (int64_t i = 0; i + 1 < buffer->n_rows; i++) {
        const unsigned char *gap = bytes + (size_t)i * buffer->stride_bytes + buffer->row_bytes;
        if (!all_bytes(gap, buffer->stride_bytes - buffer->row_bytes, UNSET)) { return false; }
    }
    return true;
}

static void check_buffer(const op_run *run, const op_buffer *buffer, int index) {
    unsigned char *bytes = qr_alloc(buffer->total_bytes);
    CHECK_INT(run->backend->copy_out(run->backend, bytes, buffer->memory, buffer->total_bytes, NULL), QRUN_OK);
    const unsigned char *content = bytes + GUARD_BYTES;
    const char *isa = run->backend->isa;
    CHECK_MSG(all_bytes(bytes, GUARD_BYTES, GUARD), "%s: %s: wrote before buffer %d", isa, run->label, index);
    CHECK_MSG(all_bytes(content + buffer->n_bytes, GUARD_BYTES, GUARD), "%s: %s: wrote after buffer %d of %zu bytes",
              isa, run->label, index, buffer->n_bytes);
    CHECK_MSG(buffer->host == NULL || memcmp(content, buffer->host, buffer->n_bytes) == 0, "%s: %s: changed input %d",
              isa, run->label, index);
    CHECK_MSG(!buffer->is_output || gaps_untouched(buffer, content), "%s: %s: wrote between the rows of buffer %d", isa,
              run->label, index);
    qr_free(bytes);
}

void op_run_end(op_run *run) {
    for (int i = 0; i < run->n_buffers; i++) {
        check_buffer(run, &run->buffers[i], i);
        run->backend->memory_destroy(run->backend, QR_MEMORY_DEVICE, run->buffers[i].memory,
                                     run->buffers[i].total_bytes);
    }
    run->n_buffers = 0;
}

/* --- Workspaces --- */

enum { SMALL_CALLS = 4, MAX_NOTED = 2 * OP_MAX_DEVICES + 3 };

/* How an op was called on a backend. */
static struct noted {
    const qr_backend *backend;
    int n_calls[QR_OP_COUNT], n_refused[QR_OP_COUNT]; /* at most SMALL_CALLS of those are made */
} noted[MAX_NOTED];

static struct noted *note_of(const qr_backend *backend) {
    int i = 0;
    while (i < MAX_NOTED - 1 && noted[i].backend != NULL && noted[i].backend != backend) { i++; }
    noted[i].backend = backend;
    return &noted[i];
}

void op_note_call(const qr_backend *backend, qr_op op, size_t workspace_bytes) {
    struct noted *note = note_of(backend);
    note->n_calls[op]++;
    CHECK_MSG(workspace_bytes == 0 || note->n_refused[op] > 0, "%s: %s was not called with a workspace too small",
              backend->isa, qr_op_name(op));
}

/* The bytes of all buffers, one after the other; qr_free. */
static unsigned char *copy_of_all(const op_run *run, size_t *n_bytes) {
    size_t used = 0;
    *n_bytes = 0;
    for (int i = 0; i < run->n_buffers; i++) { *n_bytes += run->buffers[i].total_bytes; }
    unsigned char *bytes = qr_alloc(*n_bytes);
    for (int i = 0; i < run->n_buffers; i++) {
        const op_buffer *buffer = &run->buffers[i];
        CHECK_INT(run->backend->copy_out(run->backend, bytes + used, buffer->memory, buffer->total_bytes, NULL),
                  QRUN_OK);
        used += buffer->total_bytes;
    }
    return bytes;
}

/* One byte too few is refused, with the op's name and both sizes, and no buffer changes: inputs, outputs, workspace. */
static void call_with_too_little(op_run *run, qr_op op, const void *args, qr_workspace workspace) {
    int *n_refused = &note_of(run->backend)->n_refused[op];
    if (workspace.n_bytes == 0 || *n_refused == SMALL_CALLS) { return; }
    qr_error err = {0};
    size_t n_bytes;
    char sizes[120];
    const qr_workspace small = {workspace.memory, workspace.n_bytes - 1};
    unsigned char *before = copy_of_all(run, &n_bytes);
    CHECK_MSG(qr_backend_run(run->backend, op, args, small, &err) == QRUN_ERROR_INTERNAL,
              "%s: %s: took a workspace of a byte too few", run->backend->isa, run->label);
    snprintf(sizes, sizeof sizes, "needs %zu bytes of workspace and was given %zu", workspace.n_bytes, small.n_bytes);
    CHECK_MSG(strncmp(err.message, qr_op_name(op), strlen(qr_op_name(op))) == 0 && strstr(err.message, sizes) != NULL,
              "message is \"%s\"", err.message);
    CHECK_INT(run->backend->sync(run->backend, NULL), QRUN_OK);
    unsigned char *after = copy_of_all(run, &n_bytes);
    CHECK_MSG(memcmp(before, after, n_bytes) == 0, "%s: %s: touched something", run->backend->isa, run->label);
    qr_free(before);
    qr_free(after);
    ++*n_refused;
}

static void check_workspaces_of(const char *label, const qr_backend *backend, bool (*is_absent)(qr_op op)) {
    const struct noted *note = note_of(backend);
    int n_refused = 0, n_without = 0;
    for (int op = 0; op < QR_OP_COUNT; op++) {
        if (is_absent != NULL && is_absent((qr_op)op)) { continue; }
        CHECK_MSG(note->n_calls[op] > 0, "%s: no case calls %s", label, qr_op_name((qr_op)op));
        n_refused += note->n_refused[op] > 0;
        n_without += note->n_refused[op] == 0;
    }
    printf("  %s: %d ops refuse a workspace one byte too small; %d need none:", label, n_refused, n_without);
    for (int op = 0; op < QR_OP_COUNT; op++) {
        if (note->n_calls[op] > 0 && note->n_refused[op] == 0) { printf(" %s", qr_op_name((qr_op)op)); }
    }
    printf("\n");
}

void op_check_workspaces(bool (*is_absent)(qr_op op)) {
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        check_workspaces_of(device->label, device->backends[1], is_absent);
    }
}

void op_call(op_run *run, qr_op op, const void *args) {
    const qr_op_impl *impl = &run->backend->ops[op];
    qr_error err = {0};
    const bool supported = impl->supports(run->backend, args, &err);
    CHECK_MSG(supported, "%s: %s: refused: %s", run->backend->isa, run->label, err.message);
    if (!supported) { return; }
    const size_t n_bytes = impl->workspace_bytes(run->backend, args);
    const qr_workspace workspace = {fill_buffer(run, new_buffer(run, n_bytes), NULL), n_bytes};
    call_with_too_little(run, op, args, workspace);
    op_note_call(run->backend, op, n_bytes);
    qrun_status status = qr_backend_run(run->backend, op, args, workspace, &err);
    if (status == QRUN_OK) { status = run->backend->sync(run->backend, &err); }
    CHECK_MSG(status == QRUN_OK, "%s: %s: failed: %s", run->backend->isa, run->label, err.message);
}

/* --- Cases --- */

static void execute(const op_case *c, qr_backend *backend, int64_t first, int64_t n_rows, qr_dtype dtype, void *out) {
    op_run run = {.backend = backend, .label = c->label};
    memset(out, UNSET, (size_t)(n_rows * c->row) * qr_dtype_bytes(dtype));
    c->exec(&run, c->data, first, n_rows, dtype, out);
    op_run_end(&run);
}

/* Says where the first element outside its bound is, and how many there are. */
static void compare_with_ref(const op_case *c, const char *label, const float *ref, const void *out, qr_dtype dtype) {
    int64_t n_wrong = 0, first_wrong = 0;
    for (int64_t i = 0; i < c->n_rows * c->row; i++) {
        const double value = op_from_dtype(out, dtype, i), expected = (double)ref[i];
        const double bound = c->bound != NULL ? c->bound[i] : 0.0;
        const bool right = isnan(expected) ? isnan(value)
                                           : value >= round_to_dtype(expected - bound, dtype) &&
                                                 value <= round_to_dtype(expected + bound, dtype);
        if (!right && n_wrong++ == 0) { first_wrong = i; }
    }
    CHECK_MSG(
        n_wrong == 0, "%s: %s, %s: %lld of %lld elements are wrong; row %lld element %lld is %.9g, ref %.9g +- %.3g",
        label, c->label, qr_dtype_name(dtype), (long long)n_wrong, (long long)(c->n_rows * c->row),
        (long long)(first_wrong / c->row), (long long)(first_wrong % c->row), op_from_dtype(out, dtype, first_wrong),
        (double)ref[first_wrong], c->bound != NULL ? c->bound[first_wrong] : 0.0);
}

/* A test that an output of zeros passes is no test. */
static void check_zeros_would_fail(const op_case *c, const float *ref) {
    for (int64_t i = 0; i < c->n_rows * c->row; i++) {
        if (fabs((double)ref[i]) > (c->bound != NULL ? 2.0 * c->bound[i] : 0.0)) { return; }
    }
    CHECK_MSG(false, "%s: an output of zeros would pass", c->label);
}

/* Rows alone and in groups that begin anywhere: the same bits as among all. The last row always, and a third of the
 * groups, under a sanitizer at most one: all of them in turn, over thousands of cases. */
static void check_rows_alone(const op_case *c, const op_device *device, const void *all, qr_dtype dtype, void *part) {
    static const int64_t counts[] = {1, 1, 2, 3, 5, 8, 17, 64};
    static size_t turn;
    const size_t row_bytes = (size_t)c->row * qr_dtype_bytes(dtype);
    size_t n_counts = QR_COUNT_OF(counts);
    while (n_counts > 0 && counts[n_counts - 1] > c->n_rows) { n_counts--; }
    const size_t every = CHECK_SANITIZED ? QR_COUNT_OF(counts) : 3;
    turn++;
    for (size_t i = 0; i < n_counts; i++) {
        if (i > 0 && (i + turn) % every != 0) { continue; }
        const int64_t first = i == 0 ? c->n_rows - 1 : (c->n_rows - counts[i]) * (int64_t)i / 9;
        execute(c, device->backends[i % 2], first, counts[i], dtype, part);
        const bool same =
            memcmp(part, (const unsigned char *)all + (size_t)first * row_bytes, (size_t)counts[i] * row_bytes) == 0;
        CHECK_MSG(same, "%s: %s, %s: rows %lld to %lld differ from the same rows among %lld", device->label, c->label,
                  qr_dtype_name(dtype), (long long)first, (long long)(first + counts[i] - 1), (long long)c->n_rows);
    }
}

/* The backend of a device that computes the whole case first: under a sanitizer the one with two threads, alone. What
 * it looks for is in every call, and the bits of one thread and two are compared without it. */
enum { WHOLE = CHECK_SANITIZED ? 1 : 0 };

void op_check_case(const op_case *c, qr_dtype dtype) {
    const size_t n_bytes = (size_t)(c->n_rows * c->row) * qr_dtype_bytes(dtype);
    float *ref = qr_alloc((size_t)(c->n_rows * c->row) * sizeof *ref);
    float *own_ref = qr_alloc((size_t)(c->n_rows * c->row) * sizeof *own_ref); /* of a device */
    unsigned char *one = qr_alloc(n_bytes), *two = qr_alloc(n_bytes), *first = qr_alloc(n_bytes);
    execute(c, op_everything.ref, 0, c->n_rows, QR_DTYPE_F32, ref);
    check_zeros_would_fail(c, ref);
    for (int d = 0; d < op_everything.n_devices; d++) {
        const op_device *device = &op_everything.devices[d];
        execute(c, device->backends[WHOLE], 0, c->n_rows, dtype, one);
        if (device->ref != NULL) {
            execute(c, device->ref, 0, c->n_rows, QR_DTYPE_F32, own_ref);
            compare_with_ref(c, device->label, own_ref, one, dtype);
        } else {
            compare_with_ref(c, device->label, ref, one, dtype);
        }
        if (d == 0) { memcpy(first, one, n_bytes); }
        const bool same = c->same_everywhere || op_everything.same_everywhere;
        CHECK_MSG(!same || memcmp(one, first, n_bytes) == 0, "%s and %s: %s, %s: different bits",
                  op_everything.devices[0].label, device->label, c->label, qr_dtype_name(dtype));
        if (!CHECK_SANITIZED) {
            execute(c, device->backends[1], 0, c->n_rows, dtype, two);
            CHECK_MSG(memcmp(one, two, n_bytes) == 0, "%s: %s, %s: one thread and two give different bits",
                      device->label, c->label, qr_dtype_name(dtype));
        }
        if (!c->whole && !op_everything.same_everywhere) { check_rows_alone(c, device, one, dtype, two); }
    }
    qr_free(ref);
    qr_free(own_ref);
    qr_free(one);
    qr_free(two);
    qr_free(first);
}
