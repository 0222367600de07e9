/* Transfers beside the ops: pieces that come to two stages in turn, are worked on, and go back, as the offloaded
 * optimiser does it; and a stage that is written again before what it held has gone. */
#include "op_harness.h"

#include "check.h"

#include "base/sizes.h"

enum { N_PIECES = 9, N_STAGES = 2 };

typedef struct stages {
    qr_backend *backend;
    int64_t n;                     /* floats of a piece */
    float *host;                   /* HOST memory, [N_PIECES, n] */
    float *place[N_STAGES], *ones; /* device, [n] */
} stages;

static void *take(qr_backend *backend, qr_memory_kind kind, int64_t n_floats) {
    void *memory = NULL;
    CHECK_INT(backend->memory_create(backend, kind, (size_t)n_floats * sizeof(float), &memory, NULL), QRUN_OK);
    return memory;
}

static void give(qr_backend *backend, qr_memory_kind kind, void *memory, int64_t n_floats) {
    backend->memory_destroy(backend, kind, memory, (size_t)n_floats * sizeof(float));
}

/* 1 is added to every piece, with the next one under way. */
static void add_to_all(const stages *s) {
    const size_t n_bytes = (size_t)s->n * sizeof(float);
    qr_backend *b = s->backend;
    uint64_t arrival[N_STAGES] = {0}, ticket;
    CHECK_INT(b->transfer_in(b, s->place[0], s->host, n_bytes, &arrival[0], NULL), QRUN_OK);
    for (int k = 0; k < N_PIECES; k++) {
        const int at = k % N_STAGES, next = (k + 1) % N_STAGES;
        if (k + 1 < N_PIECES) {
            const float *piece = s->host + (k + 1) * s->n;
            CHECK_INT(b->transfer_in(b, s->place[next], piece, n_bytes, &arrival[next], NULL), QRUN_OK);
        }
        CHECK_INT(b->transfer_wait(b, arrival[at], NULL), QRUN_OK);
        const qr_add_args args = {s->place[at], s->ones, s->n};
        CHECK_INT(qr_add(b, &args, QR_NO_WORKSPACE, NULL), QRUN_OK);
        CHECK_INT(b->transfer_out(b, s->host + k * s->n, s->place[at], n_bytes, &ticket, NULL), QRUN_OK);
    }
    CHECK_INT(b->sync(b, NULL), QRUN_OK);
}

/* One stage counts up, and every state of it goes to a place of its own. */
static void send_every_state(const stages *s) {
    const size_t n_bytes = (size_t)s->n * sizeof(float);
    qr_backend *b = s->backend;
    uint64_t ticket = 0;
    CHECK_INT(b->fill_zero(b, s->place[0], n_bytes, NULL), QRUN_OK);
    for (int k = 0; k < N_PIECES; k++) {
        CHECK_INT(b->transfer_wait(b, ticket, NULL), QRUN_OK);
        const qr_add_args args = {s->place[0], s->ones, s->n};
        CHECK_INT(qr_add(b, &args, QR_NO_WORKSPACE, NULL), QRUN_OK);
        CHECK_INT(b->transfer_out(b, s->host + k * s->n, s->place[0], n_bytes, &ticket, NULL), QRUN_OK);
    }
    CHECK_INT(b->sync(b, NULL), QRUN_OK);
}

static void check_transfers(qr_backend *backend, int64_t n) {
    stages s = {.backend = backend, .n = n, .host = take(backend, QR_MEMORY_HOST, N_PIECES * n)};
    for (int i = 0; i < N_STAGES; i++) { s.place[i] = take(backend, QR_MEMORY_DEVICE, n); }
    s.ones = take(backend, QR_MEMORY_DEVICE, n);
    for (int64_t i = 0; i < n; i++) { s.host[i] = 1.0F; }
    CHECK_INT(backend->copy_in(backend, s.ones, s.host, (size_t)n * sizeof(float), NULL), QRUN_OK);
    for (int64_t i = 0; i < N_PIECES * n; i++) { s.host[i] = (float)(i % 4099); }
    add_to_all(&s);
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < N_PIECES * n; i++) { n_wrong += s.host[i] != (float)(i % 4099) + 1.0F; }
    CHECK_MSG(n_wrong == 0, "%s: %lld of %lld floats are wrong", backend->name, (long long)n_wrong, (long long)n);
    send_every_state(&s);
    for (int64_t i = 0; i < N_PIECES * n; i++) { n_wrong += s.host[i] != (float)(i / n + 1); }
    CHECK_MSG(n_wrong == 0, "%s: %lld of %lld floats are wrong", backend->name, (long long)n_wrong, (long long)n);
    give(backend, QR_MEMORY_HOST, s.host, N_PIECES * n);
    for (int i = 0; i < N_STAGES; i++) { give(backend, QR_MEMORY_DEVICE, s.place[i], n); }
    give(backend, QR_MEMORY_DEVICE, s.ones, n);
}

void test_transfers_keep_their_order(void) {
    for (int d = 0; d < op_everything.n_devices; d++) {
        qr_backend *backend = op_everything.devices[d].backends[0];
        check_transfers(backend, 1);
        check_transfers(backend, 1001);
        if (strcmp(backend->isa, "simt") != 0) { check_transfers(backend, 500001); } /* long enough to overlap */
    }
}
