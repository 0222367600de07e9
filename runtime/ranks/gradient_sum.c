#include "runtime/ranks/gradient_sum.h"

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/engine/layout.h"

enum {
    MOST_PIECE_FLOATS = 1 << 16, /* sent to a rank at a time */
    MOST_SENT_FLOATS = 1 << 22,  /* sent to all ranks at a time */
    N_DIRECTIONS = 2             /* in host memory: pieces to send, and pieces received */
};

/* Where the unfinished sums of some floats are (sum_order.h): sum 0, and the others `distance` floats apart, of which
 * sum 1 is at others + first. */
typedef struct unfinished_sums {
    float *sum0, *others;
    int64_t first, distance;
} unfinished_sums;

struct qr_gradient_sum {
    qr_parameters *parameters;
    qr_collectives *ranks;
    const qr_shards *shards;
    bool stays, between_devices;
    int64_t piece_floats;
    int64_t n_parts;
    bool leaves;      /* to host memory, where `total` is then */
    bool ends_in_own; /* the sum of all is sum 0 of `own`, once the step is added up */
    float *own;       /* device, [unfinished sums][n_floats]: of the gradients that this rank adds up itself, before
                       * it sends what they are */
    float *total;     /* device: the own shard of sum 0; NULL where there are sums of the rank's own: it is in the first
                       * of them, which are done with what is sent. Or in host memory, [unfinished sums][n_floats] */
    float *others;    /* device, [unfinished sums − 1][other_floats]: of the own shard, or of a piece */
    int64_t other_floats;
    bool other_pieces;
    float *arrived; /* device: a piece of another rank, or between devices [n_ranks][piece_floats]; then a cut chunk. Or
                     * a piece of the sum, where that is in host memory */
    int64_t arrived_floats;
    uint64_t coming, left[2];  /* the last transfer to the stage, and from each place */
    int64_t fetched;           /* layer whose sum is in the stage, or on its way */
    float *sent, *received;    /* host, [n_ranks][piece_floats]; between devices NULL */
    qr_chunk_squares *squares; /* host, [chunks of the arena] */
    void *device, *host;
    size_t device_bytes, host_bytes;
    qr_deal deal;       /* of the step */
    int64_t round;      /* that runs */
    int64_t next;       /* layer whose gradients are summed next; −1: those of no layer; −2: all are */
    bool has_batch;     /* this rank, in the round */
    qr_sum_place place; /* of its gradient, among the own sums or those in host memory */
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* What a chunk lacks has room in the pieces of all ranks. */
static int64_t piece_floats(int32_t n_ranks) { return qr_min(MOST_PIECE_FLOATS, MOST_SENT_FLOATS / n_ranks); }

static qr_deal deal_of(const qr_gradient_options *o) {
    return qr_deal_make(o->n_accumulate, o->n_parts, o->shards->rank, o->shards->n_ranks);
}

/* Where layers share a place for their gradients and every rank gets the sum of all, that has no other memory. */
static bool ends_in_own(const qr_gradient_options *o) {
    return o->place_floats > 0 && o->host_floats == 0 && !o->stays;
}

/* What ranks send is added up piece by piece; several rounds leave sums of the whole shard. */
static bool has_other_pieces(const qr_deal *deal) { return qr_deal_count_sending_rounds(deal) == 1; }

static void place_shard(const qr_gradient_options *o, const qr_deal *deal, qr_layout *layout, qr_gradient_sum *sum) {
    const qr_shards *shards = o->shards;
    const int64_t n_own = qr_shards_floats(shards, shards->rank), n_pieces = piece_floats(shards->n_ranks);
    const int64_t n_other = has_other_pieces(deal) ? n_pieces : n_own;
    const int64_t n_arrived = (o->between_devices ? shards->n_ranks : 1) * n_pieces;
    const bool in_own = qr_deal_own_unfinished(deal) > 0;
    float *total = qr_layout_take(layout, in_own ? 0 : n_own, sizeof *total);
    float *others = qr_layout_take(layout, (qr_deal_sent_unfinished(deal) - 1) * n_other, sizeof *others);
    float *arrived =
        qr_layout_take(layout, o->stays ? qr_max(n_arrived, QR_SQUARES_CHUNK) : n_arrived, sizeof *arrived);
    if (sum != NULL) {
        sum->total = in_own ? NULL : total;
        sum->others = others;
        sum->other_floats = n_other;
        sum->other_pieces = has_other_pieces(deal);
        sum->arrived = arrived;
    }
}

static size_t place_device(const qr_gradient_options *o, void *memory, qr_gradient_sum *sum) {
    qr_layout layout = {.base = memory};
    const qr_deal deal = deal_of(o);
    if (o->host_floats > 0) {
        if (o->n_accumulate == 1) { return 0; }
        float *stage = qr_layout_take(&layout, o->place_floats, sizeof *stage);
        if (sum != NULL) { sum->arrived = stage; }
        return layout.offset;
    }
    const int64_t n_floats = o->shards->parameters->n_floats;
    const int64_t n_own = qr_max(qr_deal_own_unfinished(&deal), ends_in_own(o) ? 1 : 0);
    float *own = qr_layout_take(&layout, n_own * n_floats, sizeof *own);
    if (sum != NULL) { sum->own = own; }
    if (o->shards->n_ranks > 1) { place_shard(o, &deal, &layout, sum); }
    return layout.offset;
}

static size_t place_host(const qr_gradient_options *o, void *memory, qr_gradient_sum *sum) {
    qr_layout layout = {.base = memory};
    const int32_t n_ranks = o->shards->n_ranks;
    if (o->host_floats > 0) {
        const qr_deal deal = deal_of(o);
        const int64_t n_sums = qr_max(qr_deal_own_unfinished(&deal), 1);
        float *total = qr_layout_take(&layout, n_sums * o->host_floats, sizeof *total);
        if (sum != NULL) { sum->total = total; }
        return layout.offset;
    }
    if (n_ranks == 1) { return 0; }
    const int64_t n = o->between_devices ? 0 : n_ranks * piece_floats(n_ranks);
    int64_t n_chunks = 0;
    for (int32_t r = 0; r < n_ranks && o->stays; r++) { n_chunks += qr_shards_count_chunks(o->shards, r); }
    float *pieces = qr_layout_take(&layout, N_DIRECTIONS * n, sizeof *pieces);
    qr_chunk_squares *squares = qr_layout_take(&layout, n_chunks, sizeof *squares);
    if (sum != NULL) {
        sum->sent = n > 0 ? pieces : NULL;
        sum->received = n > 0 ? pieces + n : NULL;
        sum->squares = squares;
    }
    return layout.offset;
}

size_t qr_gradient_sum_bytes(const qr_gradient_options *options) { return place_device(options, NULL, NULL); }

size_t qr_gradient_sum_host_bytes(const qr_gradient_options *options) { return place_host(options, NULL, NULL); }

static qrun_status make_memory(qr_gradient_sum *sum, const qr_gradient_options *options, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const size_t device_bytes = qr_gradient_sum_bytes(options);
    const size_t host_bytes = qr_gradient_sum_host_bytes(options);
    if (device_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_DEVICE, device_bytes, &sum->device, err));
        sum->device_bytes = device_bytes;
        (void)place_device(options, sum->device, sum);
    }
    if (host_bytes > 0) {
        QR_RETURN_IF_ERROR(backend->memory_create(backend, QR_MEMORY_HOST, host_bytes, &sum->host, err));
        sum->host_bytes = host_bytes;
        (void)place_host(options, sum->host, sum);
    }
    return QRUN_OK;
}

qrun_status qr_gradient_sum_create(qr_parameters *parameters, qr_collectives *ranks, const qr_gradient_options *options,
                                   qr_gradient_sum **sum, qr_error *err) {
    *sum = NULL;
    qr_gradient_sum *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the sum of gradients", sizeof *made); }
    made->parameters = parameters;
    made->ranks = ranks;
    made->shards = options->shards;
    made->stays = options->stays;
    made->between_devices = options->between_devices;
    made->n_parts = options->n_parts;
    made->leaves = options->host_floats > 0;
    made->ends_in_own = ends_in_own(options);
    made->arrived_floats = options->place_floats;
    made->piece_floats = piece_floats(options->shards->n_ranks);
    const qrun_status status = make_memory(made, options, err);
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

/* ---- The order --------------------------------------------------------------------------------------------------- */

static float *sum_at(const unfinished_sums *sums, int32_t i) {
    return i == 0 ? sums->sum0 : sums->others + (sums->first + (i - 1) * sums->distance);
}

static qrun_status add(qr_gradient_sum *sum, float *x, const float *y, int64_t n, qr_error *err) {
    const qr_add_args args = {.x = x, .y = y, .n = n};
    return n > 0 ? qr_add(sum->parameters->backend, &args, QR_NO_WORKSPACE, err) : QRUN_OK;
}

/* The sums take a gradient in, which stays as it is. x + y and y + x have the same bits. */
static qrun_status put(qr_gradient_sum *sum, const unfinished_sums *sums, qr_sum_place place, const float *gradient,
                       int64_t n, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    int32_t s = place.first + place.n - 1;
    if (place.n == 0) {
        return backend->copy_within(backend, sum_at(sums, place.first), gradient, (size_t)n * sizeof *gradient, err);
    }
    QR_RETURN_IF_ERROR(add(sum, sum_at(sums, s), gradient, n, err));
    for (; s > place.first; s--) { QR_RETURN_IF_ERROR(add(sum, sum_at(sums, s - 1), sum_at(sums, s), n, err)); }
    return QRUN_OK;
}

/* The gradient takes the sums in. */
static qrun_status take(qr_gradient_sum *sum, const unfinished_sums *sums, qr_sum_place place, float *gradient,
                        int64_t n, qr_error *err) {
    for (int32_t s = place.first + place.n; s-- > place.first;) {
        QR_RETURN_IF_ERROR(add(sum, gradient, sum_at(sums, s), n, err));
    }
    return QRUN_OK;
}

/* ---- Of one rank's own ------------------------------------------------------------------------------------------- */

/* Floats of the arena that follow each other in that of gradients too, from `gradients` on. */
typedef struct float_run {
    int64_t begin, end;
    float *gradients;
} float_run;

/* One that lies in a section, from there on. */
static float_run section_run(const qr_gradient_sum *sum, int64_t section, float *gradients) {
    const qr_parameters *p = sum->parameters;
    return (float_run){p->sections[section].begin, qr_parameters_section_end(p, section), gradients};
}

static float_run whole_run(const qr_gradient_sum *sum) {
    return (float_run){0, sum->parameters->n_floats, sum->parameters->gradients};
}

/* What completes a rank's sum is where gradients are, to be sent. Alone, the rank has nobody to send it to. */
static qrun_status add_own(qr_gradient_sum *sum, const float_run *run, qr_error *err) {
    const int64_t n_floats = sum->parameters->n_floats, n = run->end - run->begin;
    const bool alone_in_own = sum->ends_in_own && sum->ranks == NULL;
    const bool completes = qr_deal_sends(&sum->deal, sum->round) && !alone_in_own;
    if (!sum->has_batch || (completes && sum->place.n == 0)) { return QRUN_OK; }
    const unfinished_sums sums = {sum->own + run->begin, sum->own + run->begin, n_floats, n_floats};
    return completes ? take(sum, &sums, sum->place, run->gradients, n, err)
                     : put(sum, &sums, sum->place, run->gradients, n, err);
}

/* ---- In host memory ---------------------------------------------------------------------------------------------- */

static bool has_earlier(const qr_gradient_sum *sum) { return sum->place.n > 0; }

/* The last of the sums that are added. */
static int32_t last_earlier(const qr_gradient_sum *sum) { return sum->place.first + sum->place.n - 1; }

static float *host_sum(const qr_gradient_sum *sum, int32_t i) { return sum->total + i * sum->parameters->n_floats; }

/* Where the sum of a layer's run is in the stage: as its gradients are in their place. */
static float *staged(const qr_gradient_sum *sum, int64_t layer, const qr_parameter_run *run) {
    const qr_parameters *p = sum->parameters;
    return sum->arrived + (run->gradient - p->shared_begin - layer % p->n_places * p->place_floats);
}

/* A layer of sum i begins to come to the stage, once what is issued so far is done with that. */
static qrun_status fetch_earlier(qr_gradient_sum *sum, int64_t layer, int32_t i, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    const float *earlier = host_sum(sum, i);
    qr_parameter_run run;
    sum->fetched = layer;
    for (int64_t k = 0; qr_parameters_next_run(p, layer, &k, &run);) {
        QR_RETURN_IF_ERROR(p->backend->transfer_in(p->backend, staged(sum, layer, &run), earlier + run.begin,
                                                   (size_t)(run.end - run.begin) * sizeof(float), &sum->coming, err));
    }
    return QRUN_OK;
}

static qrun_status add_staged(qr_gradient_sum *sum, int64_t layer, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    qr_parameter_run run;
    QR_RETURN_IF_ERROR(p->backend->transfer_wait(p->backend, sum->coming, err));
    for (int64_t i = 0; qr_parameters_next_run(p, layer, &i, &run);) {
        QR_RETURN_IF_ERROR(add(sum, p->gradients + run.gradient, staged(sum, layer, &run), run.end - run.begin, err));
    }
    return QRUN_OK;
}

/* The last of the sums is on its way already, but for the first layer of a pass. */
static qrun_status add_layer(qr_gradient_sum *sum, int64_t layer, qr_error *err) {
    for (int32_t i = last_earlier(sum); i >= sum->place.first; i--) {
        const bool comes = sum->fetched == layer && i == last_earlier(sum);
        if (!comes) { QR_RETURN_IF_ERROR(fetch_earlier(sum, layer, i, err)); }
        QR_RETURN_IF_ERROR(add_staged(sum, layer, err));
    }
    return QRUN_OK;
}

/* Floats of the arena [begin, begin + n), as many as the stage holds at most. */
static qrun_status add_floats(qr_gradient_sum *sum, float *gradients, int64_t begin, int64_t n, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    for (int32_t i = last_earlier(sum); i >= sum->place.first; i--) {
        QR_RETURN_IF_ERROR(backend->transfer_in(backend, sum->arrived, host_sum(sum, i) + begin,
                                                (size_t)n * sizeof(float), &sum->coming, err));
        QR_RETURN_IF_ERROR(backend->transfer_wait(backend, sum->coming, err));
        QR_RETURN_IF_ERROR(add(sum, gradients, sum->arrived, n, err));
    }
    return QRUN_OK;
}

/* What belongs to no layer. */
static qrun_status add_rest(qr_gradient_sum *sum, qr_error *err) {
    qr_parameter_run run;
    for (int64_t i = 0; qr_parameters_next_run(sum->parameters, -1, &i, &run);) {
        float *gradients = sum->parameters->gradients + run.gradient;
        for (int64_t at = run.begin; at < run.end; at += sum->arrived_floats) {
            const int64_t n = qr_min(run.end - at, sum->arrived_floats);
            QR_RETURN_IF_ERROR(add_floats(sum, gradients + (at - run.begin), at, n, err));
        }
    }
    return QRUN_OK;
}

static qrun_status send_away(qr_gradient_sum *sum, int64_t layer, uint64_t *ticket, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    float *total = host_sum(sum, sum->place.first);
    qr_parameter_run run;
    for (int64_t i = 0; qr_parameters_next_run(p, layer, &i, &run);) {
        QR_RETURN_IF_ERROR(p->backend->transfer_out(p->backend, total + run.begin, p->gradients + run.gradient,
                                                    (size_t)(run.end - run.begin) * sizeof(float), ticket, err));
    }
    return QRUN_OK;
}

/* A layer's gradients (−1: those of none) become part of the sums in host memory. Those of the layer before have had
 * its time to leave, and their place is made ready for the next one, whose sum so far sets out. */
static qrun_status leave(qr_gradient_sum *sum, int64_t layer, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    qr_backend *backend = p->backend;
    uint64_t rest, *ticket = layer >= 0 ? &sum->left[layer % p->n_places] : &rest;
    if (has_earlier(sum)) { QR_RETURN_IF_ERROR(layer >= 0 ? add_layer(sum, layer, err) : add_rest(sum, err)); }
    QR_RETURN_IF_ERROR(send_away(sum, layer, ticket, err));
    if (layer < 1) { return QRUN_OK; }
    if (layer + 1 < p->model->shape.n_layers) {
        QR_RETURN_IF_ERROR(backend->transfer_wait(backend, sum->left[(layer + 1) % p->n_places], err));
        float *place = p->gradients + p->shared_begin + (layer - 1) % p->n_places * p->place_floats;
        QR_RETURN_IF_ERROR(backend->fill_zero(backend, place, (size_t)p->place_floats * sizeof *place, err));
    }
    return has_earlier(sum) ? fetch_earlier(sum, layer - 1, last_earlier(sum), err) : QRUN_OK;
}

/* ---- Several ranks, piece by piece of the shards ----------------------------------------------------------------- */

/* Runs are each of one section. */

/* Floats of rank r's shard that piece i of a run has; *first: where in the arena they begin. */
static int64_t piece_of(const qr_gradient_sum *sum, const float_run *run, int32_t r, int64_t i, int64_t *first) {
    const int64_t n = qr_shards_common(sum->shards, r, run->begin, run->end, first);
    *first += i * sum->piece_floats;
    return qr_max(0, qr_min(n - i * sum->piece_floats, sum->piece_floats));
}

static int64_t count_pieces(const qr_gradient_sum *sum, const float_run *run) {
    int64_t most = 0, first;
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        most = qr_max(most, qr_shards_common(sum->shards, r, run->begin, run->end, &first));
    }
    return qr_ceil_div(most, sum->piece_floats);
}

/* Where the sum of a float of the own shard is. */
static float *own_sum_at(const qr_gradient_sum *sum, int64_t position) {
    if (sum->total == NULL) { return sum->own + position; }
    return sum->total + qr_shards_place(sum->shards, sum->shards->rank, position);
}

static int32_t count_senders(const qr_gradient_sum *sum) { return qr_deal_count_senders(&sum->deal, sum->round); }

/* The unfinished sums of floats of the own shard, from one on. */
static unfinished_sums sums_of_piece(const qr_gradient_sum *sum, int64_t position) {
    const int64_t place = sum->other_pieces ? 0 : qr_shards_place(sum->shards, sum->shards->rank, position);
    return (unfinished_sums){own_sum_at(sum, position), sum->others, place, sum->other_floats};
}

/* Adds piece i of the own shard, of the ranks that have computed something, in their order. */
static qrun_status add_piece(qr_gradient_sum *sum, const float_run *run, int64_t i, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const int32_t own = sum->ranks->rank, n_senders = count_senders(sum);
    int64_t first;
    const int64_t n = piece_of(sum, run, own, i, &first);
    const size_t n_bytes = (size_t)n * sizeof(float);
    if (n == 0) { return QRUN_OK; }
    const unfinished_sums sums = sums_of_piece(sum, first);
    for (int32_t r = 0; r < n_senders; r++) {
        const float *part = run->gradients + (first - run->begin);
        if (r != own && sum->between_devices) {
            part = sum->arrived + r * sum->piece_floats;
        } else if (r != own) {
            part = sum->arrived;
            QR_RETURN_IF_ERROR(
                backend->copy_in(backend, sum->arrived, sum->received + r * sum->piece_floats, n_bytes, err));
        }
        QR_RETURN_IF_ERROR(put(sum, &sums, qr_deal_sent_place(&sum->deal, sum->round, r), part, n, err));
    }
    return QRUN_OK;
}

/* Of host memory, or of device memory. The time that it takes is one of waiting. */
static qrun_status exchange(qr_gradient_sum *sum, bool between_devices, const qr_parcel *sent,
                            const qr_parcel *received, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const double asked = qr_timeline_now(backend);
    qrun_status status;
    if (between_devices) {
        status = qr_devices_all_to_all_begin(sum->ranks, sent, received, err);
        if (status == QRUN_OK) { status = qr_devices_all_to_all_end(sum->ranks, err); }
    } else {
        status = qr_all_to_all(sum->ranks, sent, received, err);
    }
    qr_timeline_put_host(backend, "ranks", QR_PHASE_waiting, asked);
    return status;
}

/* What is sent of device memory: as it lies there, or a copy of it in host memory at `room`. */
static qrun_status parcel_of(const qr_gradient_sum *sum, const float *device, int64_t n, float *room, qr_parcel *parcel,
                             qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const size_t n_bytes = (size_t)n * sizeof *device;
    *parcel = (qr_parcel){sum->between_devices ? (void *)(uintptr_t)device : room, n_bytes};
    return sum->between_devices || n == 0 ? QRUN_OK : backend->copy_out(backend, room, device, n_bytes, err);
}

/* Each rank that has computed something sends every other its piece i. */
static qrun_status exchange_piece(qr_gradient_sum *sum, const float_run *run, int64_t i, qr_error *err) {
    float *from_others = sum->between_devices ? sum->arrived : sum->received;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    const int32_t own = sum->ranks->rank, n_senders = count_senders(sum);
    int64_t first, n_own = piece_of(sum, run, own, i, &first);
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        const int64_t n = piece_of(sum, run, r, i, &first);
        float *to = sum->between_devices ? NULL : sum->sent + r * sum->piece_floats;
        if (r == own) { continue; }
        if (r < n_senders) {
            received[r] = (qr_parcel){from_others + r * sum->piece_floats, (size_t)n_own * sizeof(float)};
        }
        if (own >= n_senders || n == 0) { continue; }
        QR_RETURN_IF_ERROR(parcel_of(sum, run->gradients + (first - run->begin), n, to, &sent[r], err));
    }
    return exchange(sum, sum->between_devices, sent, received, err);
}

static qrun_status sum_run(qr_gradient_sum *sum, const float_run *run, qr_error *err) {
    const int64_t n_pieces = count_pieces(sum, run);
    for (int64_t i = 0; i < n_pieces; i++) {
        QR_RETURN_IF_ERROR(exchange_piece(sum, run, i, err));
        QR_RETURN_IF_ERROR(add_piece(sum, run, i, err));
    }
    return QRUN_OK;
}

/* The gradients of a layer (−1: of none), run by run: what they complete is sent. */
static qrun_status sum_layer(qr_gradient_sum *sum, int64_t layer, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    qr_parameter_run found;
    for (int64_t i = 0; qr_parameters_next_run(p, layer, &i, &found);) {
        const float_run run = {found.begin, found.end, p->gradients + found.gradient};
        QR_RETURN_IF_ERROR(add_own(sum, &run, err));
        if (sum->ranks != NULL && qr_deal_sends(&sum->deal, sum->round)) {
            QR_RETURN_IF_ERROR(sum_run(sum, &run, err));
        }
    }
    return QRUN_OK;
}

static qrun_status gather_piece(qr_gradient_sum *sum, float *arena, const float_run *run, int64_t i, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    const int32_t own = sum->ranks->rank;
    int64_t first;
    qr_parcel own_parcel;
    const int64_t n_own = piece_of(sum, run, own, i, &first);
    QR_RETURN_IF_ERROR(parcel_of(sum, arena + first, n_own, sum->sent, &own_parcel, err));
    for (int32_t r = 0; r < sum->ranks->n_ranks; r++) {
        if (r == own) { continue; }
        const size_t n_bytes = (size_t)piece_of(sum, run, r, i, &first) * sizeof(float);
        sent[r] = own_parcel;
        received[r] =
            (qr_parcel){sum->between_devices ? arena + first : sum->received + r * sum->piece_floats, n_bytes};
    }
    QR_RETURN_IF_ERROR(exchange(sum, sum->between_devices, sent, received, err));
    for (int32_t r = 0; r < sum->ranks->n_ranks && !sum->between_devices; r++) {
        const int64_t n = piece_of(sum, run, r, i, &first);
        if (r == own || n == 0) { continue; }
        QR_RETURN_IF_ERROR(
            backend->copy_in(backend, arena + first, received[r].memory, (size_t)n * sizeof(float), err));
    }
    return QRUN_OK;
}

qrun_status qr_gradient_sum_gather(qr_gradient_sum *sum, float *arena, qr_error *err) {
    for (int64_t s = 0; s < sum->parameters->n_sections; s++) {
        const float_run run = section_run(sum, s, NULL);
        const int64_t n_pieces = count_pieces(sum, &run);
        for (int64_t i = 0; i < n_pieces; i++) { QR_RETURN_IF_ERROR(gather_piece(sum, arena, &run, i, err)); }
    }
    return QRUN_OK;
}

/* ---- Squares ----------------------------------------------------------------------------------------------------- */

/* What of a section's chunks other ranks have, to those that have the chunks; `lacking`: where that comes to. In a
 * section a rank has a part of one such chunk at most. */
static qrun_status exchange_tails(qr_gradient_sum *sum, int64_t section, float *lacking, qr_error *err) {
    const qr_shards *shards = sum->shards;
    const int32_t own = shards->rank;
    const qr_shard_chunks own_chunks = qr_shards_chunks(shards, section, own);
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    for (int32_t r = 0; r < shards->n_ranks; r++) {
        const qr_shard_chunks chunks = qr_shards_chunks(shards, section, r);
        int64_t first, n;
        if (r < own && chunks.tail < chunks.end) {
            n = qr_shards_common(shards, own, chunks.tail, chunks.end, &first);
            if (n > 0) { QR_RETURN_IF_ERROR(parcel_of(sum, own_sum_at(sum, first), n, sum->sent, &sent[r], err)); }
        }
        if (r > own && own_chunks.tail < own_chunks.end) {
            n = qr_shards_common(shards, r, own_chunks.tail, own_chunks.end, &first);
            if (n > 0) { received[r] = (qr_parcel){lacking + (first - own_chunks.tail), (size_t)n * sizeof *lacking}; }
        }
    }
    return exchange(sum, sum->between_devices, sent, received, err);
}

/* Whether a chunk of the section ends in another part than it begins in. */
static bool has_cut_chunk(const qr_shards *shards, int64_t section) {
    for (int32_t r = 0; r < shards->n_ranks; r++) {
        const qr_shard_chunks chunks = qr_shards_chunks(shards, section, r);
        if (chunks.tail < chunks.end) { return true; }
    }
    return false;
}

qrun_status qr_gradient_sum_cut_chunk(qr_gradient_sum *sum, int64_t section, const float **chunk, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const qr_shard_chunks own = qr_shards_chunks(sum->shards, section, sum->shards->rank);
    const int64_t begin = own.begin + (own.n - 1) * QR_SQUARES_CHUNK, n = own.tail - begin;
    const bool is_cut = own.tail < own.end;
    float *lacking = is_cut ? sum->arrived + n : sum->arrived;
    if (!has_cut_chunk(sum->shards, section)) { return QRUN_OK; }
    if (is_cut) {
        *chunk = sum->arrived;
        QR_RETURN_IF_ERROR(
            backend->copy_within(backend, sum->arrived, own_sum_at(sum, begin), (size_t)n * sizeof(float), err));
    }
    QR_RETURN_IF_ERROR(exchange_tails(sum, section, sum->between_devices ? lacking : sum->received, err));
    if (!is_cut || sum->between_devices) { return QRUN_OK; }
    return backend->copy_in(backend, lacking, sum->received, (size_t)(own.end - own.tail) * sizeof(float), err);
}

/* The squares of all ranks, one rank after the other. */
static int64_t first_square(const qr_shards *shards, int32_t rank) {
    int64_t first = 0;
    for (int32_t r = 0; r < rank; r++) { first += qr_shards_count_chunks(shards, r); }
    return first;
}

qr_chunk_squares *qr_gradient_sum_squares(qr_gradient_sum *sum) {
    return sum->squares + first_square(sum->shards, sum->shards->rank);
}

qrun_status qr_gradient_sum_share_squares(qr_gradient_sum *sum, qr_chunk_squares *total, qr_error *err) {
    const qr_shards *shards = sum->shards;
    const qr_chunk_squares *next[QR_MAX_RANKS];
    qr_parcel parts[QR_MAX_RANKS] = {{0}}, sent[QR_MAX_RANKS] = {{0}};
    qr_chunk_squares *at = sum->squares;
    for (int32_t r = 0; r < shards->n_ranks; r++) {
        const int64_t n = qr_shards_count_chunks(shards, r);
        parts[r] = (qr_parcel){at, (size_t)n * sizeof *at};
        next[r] = at;
        at += n;
    }
    for (int32_t r = 0; r < shards->n_ranks; r++) { sent[r] = parts[shards->rank]; }
    QR_RETURN_IF_ERROR(exchange(sum, false, sent, parts, err));
    *total = (qr_chunk_squares){0};
    for (int64_t s = 0; s < sum->parameters->n_sections; s++) {
        for (int32_t r = 0; r < shards->n_ranks; r++) {
            for (int64_t n = qr_shards_chunks(shards, s, r).n; n > 0; n--, next[r]++) {
                total->sum += next[r]->sum;
                total->n_nonfinite += next[r]->n_nonfinite;
            }
        }
    }
    return QRUN_OK;
}

/* ---- A step ----------------------------------------------------------------------------------------------------- */

static qrun_status finish(qr_gradient_sum *sum, qr_error *err) {
    const qr_parameters *p = sum->parameters;
    float *arena = sum->ends_in_own ? sum->own : p->gradients;
    if (sum->stays) { return QRUN_OK; }
    for (int64_t s = 0; s < p->n_sections; s++) {
        const qr_shard_part part = qr_shards_part(sum->shards, s, sum->shards->rank);
        const size_t n_bytes = (size_t)(part.end - part.begin) * sizeof(float);
        if (n_bytes == 0 || own_sum_at(sum, part.begin) == arena + part.begin) { continue; }
        QR_RETURN_IF_ERROR(
            p->backend->copy_within(p->backend, arena + part.begin, own_sum_at(sum, part.begin), n_bytes, err));
    }
    return qr_gradient_sum_gather(sum, arena, err);
}

bool qr_gradient_sum_stays(const qr_gradient_sum *sum) { return sum->stays || sum->leaves || sum->ends_in_own; }

bool qr_gradient_sum_has_all(const qr_gradient_sum *sum) {
    return sum->leaves || sum->ends_in_own || sum->total == NULL;
}

const float *qr_gradient_sum_own(const qr_gradient_sum *sum) {
    return sum->ends_in_own || sum->total == NULL ? sum->own : sum->total;
}

qr_deal qr_gradient_sum_deal(const qr_gradient_sum *sum, int64_t n_batches) {
    return qr_deal_make(n_batches, sum->n_parts, sum->shards->rank, sum->shards->n_ranks);
}

void qr_gradient_sum_begin(qr_gradient_sum *sum, const qr_deal *deal) { sum->deal = *deal; }

void qr_gradient_sum_begin_round(qr_gradient_sum *sum, int64_t round, int64_t batch) {
    sum->round = round;
    sum->has_batch = batch >= 0;
    sum->place = batch >= 0 ? qr_deal_own_place(&sum->deal, batch) : (qr_sum_place){0, 0};
    sum->next = sum->parameters->model->shape.n_layers - 1;
    sum->fetched = -1;
}

/* Where layers share a place, it is zeroed for the next one. */
qrun_status qr_gradient_sum_layer(void *user, int64_t layer, qr_error *err) {
    qr_gradient_sum *sum = user;
    const qr_parameters *p = sum->parameters;
    if (!p->shares_gradients) { return QRUN_OK; }
    if (layer != sum->next) { return qr_fail(err, QRUN_ERROR_INTERNAL, "layers are not summed in their order"); }
    sum->next--;
    if (!sum->has_batch && !qr_deal_sends(&sum->deal, sum->round)) { return QRUN_OK; }
    if (sum->leaves) { return leave(sum, layer, err); }
    const qrun_status status = sum_layer(sum, layer, err);
    if (status != QRUN_OK) {
        return qr_deal_sends(&sum->deal, sum->round) ? qr_collectives_leave(sum->ranks, status, err) : status;
    }
    const size_t n_bytes = (size_t)(p->n_gradient_floats - p->shared_begin) * sizeof(float);
    return n_bytes > 0 ? p->backend->fill_zero(p->backend, p->gradients + p->shared_begin, n_bytes, err) : QRUN_OK;
}

qrun_status qr_gradient_sum_rest(qr_gradient_sum *sum, qr_error *err) {
    if (!sum->parameters->shares_gradients) { return QRUN_OK; }
    while (sum->next > -2) { QR_RETURN_IF_ERROR(qr_gradient_sum_layer(sum, sum->next, err)); }
    return QRUN_OK;
}

qrun_status qr_gradient_sum_end_batch(qr_gradient_sum *sum, qr_error *err) {
    qr_backend *backend = sum->parameters->backend;
    const float_run run = whole_run(sum);
    if (sum->leaves) { return backend->sync(backend, err); }
    return sum->parameters->shares_gradients ? QRUN_OK : add_own(sum, &run, err);
}

qrun_status qr_gradient_sum_end_round(qr_gradient_sum *sum, qr_error *err) {
    const bool is_last = sum->round + 1 == qr_deal_count_rounds(&sum->deal);
    if (sum->ranks == NULL) { return QRUN_OK; }
    for (int64_t s = 0; s < sum->parameters->n_sections && !sum->parameters->shares_gradients; s++) {
        const float_run run = section_run(sum, s, sum->parameters->gradients + sum->parameters->sections[s].begin);
        QR_RETURN_IF_ERROR(sum_run(sum, &run, err));
    }
    return is_last ? finish(sum, err) : QRUN_OK;
}
