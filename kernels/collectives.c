#include "kernels/collectives.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void qr_collectives_destroy(qr_collectives *collectives) {
    if (collectives != NULL) { collectives->destroy(collectives); }
}

static qrun_status fail_lost(const qr_collectives *c, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_RANK, "%s", c->lost_message);
}

qrun_status qr_collectives_lose(qr_collectives *c, int32_t lost_rank, const char *message, qr_error *err) {
    const int32_t speaker = lost_rank == 0 ? 1 : 0;
    if (c->lost) { return fail_lost(c, err); }
    c->lost = true;
    (void)snprintf(c->lost_message, sizeof c->lost_message, "%s", message);
    return qr_fail(err, c->rank == speaker ? QRUN_ERROR_DEVICE : QRUN_ERROR_RANK, "%s", message);
}

qrun_status qr_all_to_all(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    if (c->lost) { return fail_lost(c, err); }
    QR_RETURN_IF_ERROR(c->exchange(c, sent, received, err));
    for (int32_t r = 0; r < c->n_ranks; r++) { c->sent_bytes += r != c->rank ? (int64_t)sent[r].n_bytes : 0; }
    return QRUN_OK;
}

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

qrun_status qr_agree(qr_collectives *c, qrun_status own, qr_error *err) {
    int32_t statuses[QR_MAX_RANKS];
    char text[QR_ERROR_MESSAGE_BYTES] = "";
    int32_t failed = 0;
    statuses[c->rank] = own;
    if (own != QRUN_OK && err != NULL) { (void)snprintf(text, sizeof text, "%s", err->message); }
    if (own == QRUN_ERROR_RANK && c->lost) { return own; }
    if (err != NULL && own != QRUN_OK) { qr_error_clear(err); }
    QR_RETURN_IF_ERROR(qr_all_gather(c, statuses, sizeof statuses[0], err));
    while (failed < c->n_ranks && statuses[failed] == QRUN_OK) { failed++; }
    if (failed == c->n_ranks) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_broadcast(c, text, sizeof text, failed, err));
    text[sizeof text - 1] = '\0';
    const qrun_status status = c->rank == 0 ? status_of(statuses[failed]) : QRUN_ERROR_RANK;
    if (failed == 0) { return qr_fail(err, status, "%s", text); }
    return qr_fail(err, status, "rank %d: %s", (int)failed, text);
}
