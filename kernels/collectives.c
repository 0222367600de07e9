#include "kernels/collectives.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

static qrun_status fail_lost(const qr_collectives *c, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_RANK, "%s", c->lost_message);
}

qrun_status qr_collectives_lose(qr_collectives *c, int32_t lost_rank, bool said, const char *message, qr_error *err) {
    const int32_t speaker = lost_rank == 0 ? 1 : 0;
    if (c->lost) { return fail_lost(c, err); }
    c->lost = true;
    (void)snprintf(c->lost_message, sizeof c->lost_message, "%s", message);
    return qr_fail(err, c->rank == speaker && !said ? QRUN_ERROR_DEVICE : QRUN_ERROR_RANK, "%s", message);
}

static bool tell(qr_collectives *c, const char *message, bool said) {
    if (c->lost) { return false; }
    (void)qr_all_to_all_end(c, NULL);
    if (c->lost) { return false; }
    (void)snprintf(c->lost_message, sizeof c->lost_message, "rank %d: %.900s", (int)c->rank, message);
    const bool reported = c->tell(c, c->lost_message, said);
    c->lost = true;
    return reported;
}

/* Rank 0 is who reports. */
bool qr_collectives_tell(qr_collectives *c, const char *message) { return tell(c, message, c->rank == 0); }

qrun_status qr_collectives_leave(qr_collectives *c, qrun_status status, const qr_error *err) {
    if (c == NULL || c->lost || err == NULL || status == QRUN_OK || status == QRUN_ERROR_RANK) { return status; }
    return qr_collectives_tell(c, err->message) ? QRUN_ERROR_RANK : status;
}

void qr_collectives_settle(qr_collectives *c) { c->settled = true; }

static void count_sent(qr_collectives *c, const qr_parcel *sent) {
    for (int32_t r = 0; r < c->n_ranks; r++) { c->sent_bytes += r != c->rank ? (int64_t)sent[r].n_bytes : 0; }
}

qrun_status qr_all_to_all(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_all_to_all_end(c, err));
    if (c->lost) { return fail_lost(c, err); }
    c->settled = false;
    QR_RETURN_IF_ERROR(c->exchange(c, sent, received, err));
    count_sent(c, sent);
    return QRUN_OK;
}

/* ---- Beside the caller ------------------------------------------------------------------------------------------- */

typedef enum exchange_state { EXCHANGE_NONE, EXCHANGE_ASKED, EXCHANGE_DONE, EXCHANGE_LEAVES } exchange_state;

/* Runs one exchange at a time. While one is asked for, the transport and what the collectives say of a loss are its. */
struct qr_exchange_thread {
    qr_collectives *collectives;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    exchange_state state;       /* under the lock */
    qr_parcel *sent, *received; /* [n_ranks] */
    qrun_status status;
    qr_error error;
};

static void *run_exchanges(void *arg) {
    struct qr_exchange_thread *t = arg;
    pthread_mutex_lock(&t->lock);
    while (t->state != EXCHANGE_LEAVES) {
        if (t->state != EXCHANGE_ASKED) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        t->status = t->collectives->exchange(t->collectives, t->sent, t->received, &t->error);
        pthread_mutex_lock(&t->lock);
        t->state = EXCHANGE_DONE;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void free_thread(struct qr_exchange_thread *t) {
    if (t == NULL) { return; }
    qr_free(t->sent);
    qr_free(t->received);
    qr_free(t);
}

static qrun_status start_thread(qr_collectives *c, qr_error *err) {
    const size_t n = (size_t)c->n_ranks;
    struct qr_exchange_thread *made = qr_alloc_zeroed(sizeof *made);
    if (made != NULL) {
        made->collectives = c;
        made->sent = qr_alloc_array_zeroed(n, sizeof *made->sent);
        made->received = qr_alloc_array_zeroed(n, sizeof *made->received);
    }
    if (made == NULL || made->sent == NULL || made->received == NULL) {
        free_thread(made);
        return qr_fail_memory(err, "the exchanges of the ranks", 2 * n * sizeof(qr_parcel));
    }
    (void)pthread_mutex_init(&made->lock, NULL);
    (void)pthread_cond_init(&made->changed, NULL);
    const int code = pthread_create(&made->thread, NULL, run_exchanges, made);
    if (code == 0) {
        c->thread = made;
        return QRUN_OK;
    }
    (void)pthread_cond_destroy(&made->changed);
    (void)pthread_mutex_destroy(&made->lock);
    free_thread(made);
    return qr_fail(err, QRUN_ERROR_DEVICE, "the exchanges of the ranks need a thread: %s", strerror(code));
}

static void set_state(struct qr_exchange_thread *t, exchange_state state) {
    pthread_mutex_lock(&t->lock);
    t->state = state;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

qrun_status qr_all_to_all_begin(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_all_to_all_end(c, err));
    if (c->lost) { return fail_lost(c, err); }
    c->settled = false;
    if (c->thread == NULL) { QR_RETURN_IF_ERROR(start_thread(c, err)); }
    memcpy(c->thread->sent, sent, (size_t)c->n_ranks * sizeof *sent);
    memcpy(c->thread->received, received, (size_t)c->n_ranks * sizeof *received);
    c->thread->error = (qr_error){0};
    set_state(c->thread, EXCHANGE_ASKED);
    return QRUN_OK;
}

qrun_status qr_all_to_all_end(qr_collectives *c, qr_error *err) {
    struct qr_exchange_thread *t = c->thread;
    if (t == NULL) { return QRUN_OK; }
    pthread_mutex_lock(&t->lock);
    while (t->state == EXCHANGE_ASKED) { pthread_cond_wait(&t->changed, &t->lock); }
    const bool done = t->state == EXCHANGE_DONE;
    t->state = EXCHANGE_NONE;
    pthread_mutex_unlock(&t->lock);
    if (!done) { return QRUN_OK; }
    if (t->status != QRUN_OK) { return qr_fail(err, t->status, "%s", t->error.message); }
    count_sent(c, t->sent);
    return QRUN_OK;
}

void qr_collectives_destroy(qr_collectives *collectives) {
    if (collectives == NULL) { return; }
    if (!collectives->settled) { (void)tell(collectives, "has left the run, and says why itself", true); }
    struct qr_exchange_thread *t = collectives->thread;
    if (t != NULL) {
        (void)qr_all_to_all_end(collectives, NULL);
        set_state(t, EXCHANGE_LEAVES);
        (void)pthread_join(t->thread, NULL);
        (void)pthread_cond_destroy(&t->changed);
        (void)pthread_mutex_destroy(&t->lock);
        free_thread(t);
    }
    qr_devices_unlink(collectives);
    collectives->destroy(collectives);
}

/* ---- Made of it -------------------------------------------------------------------------------------------------- */

/* Parcels for an exchange in which every rank has the same place: both lists zeroed. */
static void clear(qr_parcel *sent, qr_parcel *received) {
    memset(sent, 0, QR_MAX_RANKS * sizeof *sent);
    memset(received, 0, QR_MAX_RANKS * sizeof *received);
}

qrun_status qr_broadcast(qr_collectives *c, void *memory, size_t n_bytes, int32_t root, qr_error *err) {
    qr_parcel sent[QR_MAX_RANKS], received[QR_MAX_RANKS];
    clear(sent, received);
    for (int32_t r = 0; r < c->n_ranks && c->rank == root; r++) { sent[r] = (qr_parcel){memory, n_bytes}; }
    if (c->rank != root) { received[root] = (qr_parcel){memory, n_bytes}; }
    return qr_all_to_all(c, sent, received, err);
}

qrun_status qr_all_gather(qr_collectives *c, void *memory, size_t part_bytes, qr_error *err) {
    qr_parcel sent[QR_MAX_RANKS], received[QR_MAX_RANKS];
    unsigned char *parts = memory;
    clear(sent, received);
    for (int32_t r = 0; r < c->n_ranks; r++) {
        sent[r] = (qr_parcel){parts + (size_t)c->rank * part_bytes, part_bytes};
        received[r] = (qr_parcel){parts + (size_t)r * part_bytes, part_bytes};
    }
    return qr_all_to_all(c, sent, received, err);
}

qrun_status qr_barrier(qr_collectives *c, qr_error *err) {
    unsigned char here[QR_MAX_RANKS] = {0};
    return qr_all_gather(c, here, 1, err);
}

/* What another rank has sent as its status. */
static qrun_status status_of(int32_t sent) {
    switch (sent) {
#define QR_STATUS_CASE(name, value, message) case value:
        QRUN_STATUS_LIST(QR_STATUS_CASE)
        return (qrun_status)sent;
        default: return QRUN_ERROR_RANK;
    }
#undef QR_STATUS_CASE
}

/* The first rank that fails for a reason of its own, and not because another is gone. */
static int32_t find_cause(const int32_t *statuses, int32_t n_ranks, int32_t first) {
    for (int32_t r = first; r < n_ranks; r++) {
        if (statuses[r] != QRUN_OK && statuses[r] != QRUN_ERROR_RANK) { return r; }
    }
    return first;
}

qrun_status qr_agree(qr_collectives *c, qrun_status own, qr_error *err) {
    int32_t statuses[QR_MAX_RANKS];
    char text[QR_ERROR_MESSAGE_BYTES] = "";
    int32_t failed = 0;
    const qrun_status ended = qr_all_to_all_end(c, own == QRUN_OK ? err : NULL);
    if (own == QRUN_OK) { own = ended; }
    statuses[c->rank] = own;
    if (own != QRUN_OK && err != NULL) { (void)snprintf(text, sizeof text, "%s", err->message); }
    if (c->lost && (own == QRUN_ERROR_RANK || strcmp(text, c->lost_message) == 0)) { return own; } /* of the loss */
    if (err != NULL && own != QRUN_OK) { qr_error_clear(err); }
    QR_RETURN_IF_ERROR(qr_all_gather(c, statuses, sizeof statuses[0], err));
    while (failed < c->n_ranks && statuses[failed] == QRUN_OK) { failed++; }
    if (failed == c->n_ranks) { return QRUN_OK; }
    failed = find_cause(statuses, c->n_ranks, failed);
    QR_RETURN_IF_ERROR(qr_broadcast(c, text, sizeof text, failed, err));
    qr_collectives_settle(c);
    text[sizeof text - 1] = '\0';
    const qrun_status status = c->rank == 0 ? status_of(statuses[failed]) : QRUN_ERROR_RANK;
    if (failed == 0) { return qr_fail(err, status, "%s", text); }
    return qr_fail(err, status, "rank %d: %s", (int)failed, text);
}
