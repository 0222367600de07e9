#include "runtime/ranks/gradient_sum.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"

enum {
    SHARD_FLOATS = 16,      /* a shard begins at a multiple of it */
    PIECE_FLOATS = 1 << 16, /* sent to a rank at a time */
    N_DIRECTIONS = 2        /* in host memory: pieces to send, and pieces received */
};

struct qr_gradient_sum {
    qr_parameters *parameters;
    qr_collectives *ranks;
    int64_t shard_begin[QR_MAX_RANKS + 1]; /* floats of the arena */
    float *total;                          /* device: the own shard */
    float *arrived;                        /* device: a piece of another rank */
    float *sent, *received;                /* host, [n_ranks][PIECE_FLOATS] */
    void *device, *host;
    size_t device_bytes, host_bytes;
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int64_t shard_begin(const qr_parameters *p, int32_t rank, int32_t n_ranks) {
    const int64_t n_units = qr_ceil_div(p->n_floats, SHARD_FLOATS);
    return qr_min(n_units * rank / n_ranks * SHARD_FLOATS, p->n_floats);
}

static size_t place_device(const qr_parameters *p, const qr_gradient_options *o, void *memory, qr_gradient_sum *sum) {
    qr_layout layout = {memory, 0};
    const bool alone = o->n_ranks == 1;
    if (alone && o->n_accumulate == 1) { return 0; }
    const int64_t n_shard = shard_begin(p, o->rank + 1, o->n_ranks) - shard_begin(p, o->rank, o->n_ranks);
    float *total = qr_layout_take(&layout, n_shard, sizeof *total);
    float *arrived = qr_layout_take(&layout, alone ? 0 : PIECE_FLOATS, sizeof *arrived);
    if (sum != NULL) {
        sum->total = total;
        sum->arrived = arrived;
    }
    return layout.offset;
}

size_t qr_gradient_sum_bytes(const qr_parameters *parameters, const qr_gradient_options *options) {
    return place_device(parameters, options, NULL, NULL);
}

size_t qr_gradient_sum_host_bytes(const qr_gradient_options *options) {
    if (options->n_ranks == 1) { return 0; }
    return N_DIRECTIONS * (size_t)options->n_ranks * PIECE_FLOATS * sizeof(float);
}

static qrun_status make_memory(qr_gradient_sum *sum, const qr_gradient_options *options, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    qr_backend *backend = p->backend;
    const size_t device_bytes = qr_gradient_sum_bytes(p, options);
    const size_t host_bytes = qr_gradient_sum_host_bytes(options);
    if (device_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, device_bytes, &sum->device, err));
        sum->device_bytes = device_bytes;
        (void)place_device(p, options, sum->device, sum);
    }
    if (host_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_HOST, host_bytes, &sum->host, err));
        sum->host_bytes = host_bytes;
        sum->sent = sum->host;
        sum->received = sum->sent + (int64_t)options->n_ranks * PIECE_FLOATS;
    }
    return QRUN_OK;
}

qrun_status qr_gradient_sum_create(qr_parameters *parameters, qr_collectives *ranks, int64_t n_accumulate,
                                   qr_gradient_sum **sum, qr_error *err) {
    const qr_gradient_options options = {n_accumulate, qr_ranks_own(ranks), qr_ranks_count(ranks)};
    *sum = NULL;
    qr_gradient_sum *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the sum of gradients", sizeof *made); }
    made->parameters = parameters;
    made->ranks = ranks;
    for (int32_t r = 0; r <= options.n_ranks; r++) {
        made->shard_begin[r] = shard_begin(parameters, r, options.n_ranks);
    }
    const qrun_status status = make_memory(made, &options, err);
    if (status != QRUN_OK) {
        qr_gradient_sum_destroy(made);
        return status;
    }
    *sum = made;
    return QRUN_OK;
}

void qr_gradient_sum_destroy(qr_gradient_sum *sum) {
    if (sum == NULL) { return; }
    qr_backend *backend = sum->parameters->backend;
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, sum->device, sum->device_bytes);
    backend->memory_destroy(backend, QR_MEMORY_HOST, sum->host, sum->host_bytes);
    qr_free(sum);
}

/* ---- One rank ---------------------------------------------------------------------------------------------------- */

static qrun_status add(qr_gradient_sum *sum, float *x, const float *y, int64_t n, qr_error *err) {
    const qr_add_args args = {.x = x, .y = y, .n = n};
    return n > 0 ? qr_add(sum->parameters->backend, &args, QR_NO_WORKSPACE, err) : QRUN_OK;
}

/* The last is added to in place: x + y and y + x have the same bits. */
static qrun_status add_alone(qr_gradient_sum *sum, int64_t i, int64_t n, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    if (n == 1) { return QRUN_OK; }
    if (i == n - 1) { return add(sum, p->gradients, sum->total, p->n_floats, err); }
    if (i > 0) { return add(sum, sum->total, p->gradients, p->n_floats, err); }
    return p->backend->copy_within(p->backend, sum->total, p->gradients, qr_parameters_bytes(p), err);
}

/* ---- Several ranks, piece by piece of the shards ----------------------------------------------------------------- */

/* Floats of rank r's shard that piece i has; *first: where in the arena they begin. */
static int64_t piece_of(const qr_gradient_sum *sum, int32_t r, int64_t i, int64_t *first) {
    *first = sum->shard_begin[r] + i * PIECE_FLOATS;
    return qr_max(0, qr_min(sum->shard_begin[r + 1] - *first, PIECE_FLOATS));
}

static int64_t count_pieces(const qr_gradient_sum *sum) {
    int64_t most = 0;
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        most = qr_max(most, sum->shard_begin[r + 1] - sum->shard_begin[r]);
    }
    return qr_ceil_div(most, PIECE_FLOATS);
}

/* Adds piece i of the own shard, of the ranks that have computed something, in their order. */
static qrun_status add_piece(qr_gradient_sum *sum, int64_t i, int32_t n_active, bool begins, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const int32_t own = sum->ranks->rank;
    int64_t first;
    const int64_t n = piece_of(sum, own, i, &first);
    const size_t n_bytes = (size_t)n * sizeof(float);
    float *total = sum->total + i * PIECE_FLOATS;
    for (int32_t r = 0; r < n_active && n > 0; r++) {
        const float *part = sum->parameters->gradients + first;
        if (r != own) {
            part = sum->arrived;
            QR_RETURN_IF_ERROR(
                backend->copy_in(backend, sum->arrived, sum->received + (int64_t)r * PIECE_FLOATS, n_bytes, err));
        }
        QR_RETURN_IF_ERROR(begins && r == 0 ? backend->copy_within(backend, total, part, n_bytes, err)
                                            : add(sum, total, part, n, err));
    }
    return QRUN_OK;
}

/* Each rank that has computed something sends every other its piece i. */
static qrun_status exchange_piece(qr_gradient_sum *sum, int64_t i, int32_t n_active, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    const int32_t own = sum->ranks->rank;
    int64_t first, n_own = piece_of(sum, own, i, &first);
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        const int64_t n = piece_of(sum, r, i, &first);
        float *to = sum->sent + (int64_t)r * PIECE_FLOATS;
        if (r == own) { continue; }
        if (r < n_active) {
            received[r] = (qr_parcel){sum->received + (int64_t)r * PIECE_FLOATS, (size_t)n_own * sizeof(float)};
        }
        if (own >= n_active || n == 0) { continue; }
        sent[r] = (qr_parcel){to, (size_t)n * sizeof(float)};
        QR_RETURN_IF_ERROR(backend->copy_out(backend, to, sum->parameters->gradients + first, sent[r].n_bytes, err));
    }
    return qr_all_to_all(sum->ranks, sent, received, err);
}

/* Every rank's shard of the arena to all. */
static qrun_status gather_piece(qr_gradient_sum *sum, float *arena, int64_t i, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    const int32_t own = sum->ranks->rank;
    int64_t first;
    const size_t own_bytes = (size_t)piece_of(sum, own, i, &first) * sizeof(float);
    if (own_bytes > 0) { QR_RETURN_IF_ERROR(backend->copy_out(backend, sum->sent, arena + first, own_bytes, err)); }
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        const size_t n_bytes = (size_t)piece_of(sum, r, i, &first) * sizeof(float);
        sent[r] = (qr_parcel){sum->sent, own_bytes};
        received[r] = (qr_parcel){sum->received + (int64_t)r * PIECE_FLOATS, n_bytes};
    }
    QR_RETURN_IF_ERROR(qr_all_to_all(sum->ranks, sent, received, err));
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        const int64_t n = piece_of(sum, r, i, &first);
        if (r == own || n == 0) { continue; }
        QR_RETURN_IF_ERROR(
            backend->copy_in(backend, arena + first, received[r].memory, (size_t)n * sizeof(float), err));
    }
    return QRUN_OK;
}

static qrun_status finish(qr_gradient_sum *sum, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    const int64_t begin = sum->shard_begin[sum->ranks->rank], n_pieces = count_pieces(sum);
    const int64_t n = sum->shard_begin[sum->ranks->rank + 1] - begin;
    QR_RETURN_IF_ERROR(
        p->backend->copy_within(p->backend, p->gradients + begin, sum->total, (size_t)n * sizeof(float), err));
    for (int64_t i = 0; i < n_pieces; i++) { QR_RETURN_IF_ERROR(gather_piece(sum, p->gradients, i, err)); }
    return QRUN_OK;
}

qrun_status qr_gradient_sum_add(qr_gradient_sum *sum, int64_t first, int64_t n, qr_error *err) {
    if (sum->ranks == NULL) { return add_alone(sum, first, n, err); }
    const int64_t n_pieces = count_pieces(sum);
    const int32_t n_active = (int32_t)qr_min(sum->ranks->n_ranks, n - first);
    for (int64_t i = 0; i < n_pieces; i++) {
        QR_RETURN_IF_ERROR(exchange_piece(sum, i, n_active, err));
        QR_RETURN_IF_ERROR(add_piece(sum, i, n_active, first == 0, err));
    }
    return first + n_active < n ? QRUN_OK : finish(sum, err);
}
