/* Exchanges between devices (device_links.h), and what the ranks agree on before and after by the transport: NCCL
 * itself neither notices that ranks are at different places of a run, nor says which rank is gone. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kernels/device_links.h"

enum { SPINS = 200, PAUSE_NANOSECONDS = 100000, LOOK_AFTER = 100 };

bool qr_collectives_are_linked(const qr_collectives *c, qr_backend *backend) {
    qr_link_end own;
    if (c != NULL) { return c->devices != NULL; }
    const qr_device_links *links = qr_device_links_of(backend);
    return links != NULL && links->find(backend, &own, NULL) == QRUN_OK;
}

/* Until the devices have joined (ticket 0) or exchanged; for half the limit, so that the ranks have the other half to
 * find out which of them is gone. */
static qrun_status wait_for(qr_collectives *c, qr_backend *backend, uint64_t ticket, qr_error *err) {
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    const double deadline = qr_now_seconds() + c->timeout_seconds / 2;
    for (int64_t tries = 1;; tries++) {
        bool done;
        QR_RETURN_IF_ERROR(c->links->poll(backend, ticket, &done, err));
        if (done) { return QRUN_OK; }
        if (tries < SPINS) { continue; }
        if (qr_now_seconds() > deadline) {
            return qr_fail(err, QRUN_ERROR_RANK, "%s: nothing has come from the other ranks' devices for %.3g s",
                           c->links->name, c->timeout_seconds / 2);
        }
        if (tries % LOOK_AFTER == 0 && c->is_whole != NULL && !c->is_whole(c)) {
            return qr_fail(err, QRUN_ERROR_RANK, "%s: a rank has ended", c->links->name);
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* All know how each fares. It is no part of what a step sends. After a failure, no device waits for another any more.
 */
static qrun_status agree(qr_collectives *c, qr_backend *backend, qrun_status own, qr_error *err) {
    const double limit = c->timeout_seconds;
    const int64_t sent_bytes = c->sent_bytes;
    if (own != QRUN_OK) {
        c->links->leave(backend);
        c->timeout_seconds = limit / 2;
    }
    const qrun_status status = qr_agree(c, own, err);
    c->timeout_seconds = limit;
    c->sent_bytes = sent_bytes;
    if (status != QRUN_OK) { qr_devices_unlink(c); }
    return status;
}

/* ---- Linking ----------------------------------------------------------------------------------------------------- */

/* What a rank can be linked by. */
typedef struct offer {
    qr_link_end end;
    int32_t is_there;
} offer;

/* Whether all ranks can be linked; else the note says why not. Of several versions: an error. */
static qrun_status compare_offers(qr_collectives *c, const offer *offers, bool *alike, qr_error *err) {
    *alike = false;
    for (int32_t r = 0; r < c->n_ranks; r++) {
        if (!offers[r].is_there) {
            if (r == c->rank) { return QRUN_OK; } /* the note has its own reason */
            (void)snprintf(c->devices_note, sizeof c->devices_note, "host memory: rank %d has no links", (int)r);
            return QRUN_OK;
        }
        if (offers[r].end.version != offers[0].end.version) {
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                           "rank %d has NCCL %d and rank 0 %d; use one version on all, or QRUN_CUDA_NCCL=0", (int)r,
                           (int)offers[r].end.version, (int)offers[0].end.version);
        }
    }
    for (int32_t r = 1; r < c->n_ranks; r++) {
        for (int32_t before = 0; before < r; before++) {
            if (offers[r].end.device != offers[before].end.device) { continue; }
            (void)snprintf(c->devices_note, sizeof c->devices_note, "host memory: ranks %d and %d have one GPU",
                           (int)before, (int)r);
            return QRUN_OK;
        }
    }
    *alike = true;
    return QRUN_OK;
}

/* The first rank makes what all need to know. */
static qrun_status join(qr_collectives *c, qr_backend *backend, qr_error *err) {
    unsigned char id[QR_LINK_ID_BYTES] = {0};
    qrun_status status = c->rank == 0 ? c->links->make_id(backend, id, err) : QRUN_OK;
    QR_RETURN_IF_ERROR(agree(c, backend, status, err));
    QR_RETURN_IF_ERROR(qr_broadcast(c, id, sizeof id, 0, err));
    status = c->links->join(backend, id, c->rank, c->n_ranks, err);
    QR_RETURN_IF_ERROR(agree(c, backend, status, err));
    return agree(c, backend, wait_for(c, backend, 0, err), err);
}

qrun_status qr_collectives_link_devices(qr_collectives *c, qr_backend *backend, qr_error *err) {
    offer offers[QR_MAX_RANKS];
    qr_error reason = {0};
    bool alike = false;
    memset(&offers[c->rank], 0, sizeof offers[0]);
    c->links = qr_device_links_of(backend);
    if (c->links != NULL) {
        const qrun_status found = c->links->find(backend, &offers[c->rank].end, &reason);
        if (found != QRUN_OK && found != QRUN_ERROR_UNSUPPORTED) { (void)qr_fail(err, found, "%s", reason.message); }
        QR_RETURN_IF_ERROR(qr_agree(c, found == QRUN_ERROR_UNSUPPORTED ? QRUN_OK : found, err));
        offers[c->rank].is_there = found == QRUN_OK;
        if (found != QRUN_OK) {
            (void)snprintf(c->devices_note, sizeof c->devices_note, "host memory: %.280s", reason.message);
        }
    } else {
        QR_RETURN_IF_ERROR(qr_agree(c, QRUN_OK, err));
    }
    QR_RETURN_IF_ERROR(qr_all_gather(c, offers, sizeof offers[0], err));
    QR_RETURN_IF_ERROR(qr_agree(c, compare_offers(c, offers, &alike, err), err));
    if (!alike) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(join(c, backend, err));
    c->links->describe(backend, c->devices_note, sizeof c->devices_note);
    c->devices = backend;
    return QRUN_OK;
}

void qr_devices_unlink(qr_collectives *c) {
    if (c->devices == NULL) { return; }
    c->links->leave(c->devices);
    c->device_ticket = 0;
    c->devices = NULL;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

qrun_status qr_devices_all_to_all_begin(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received,
                                        qr_error *err) {
    QR_RETURN_IF_ERROR(qr_devices_all_to_all_end(c, err));
    qr_backend *backend = c->devices;
    if (backend == NULL) {
        return qr_fail(err, c->lost ? QRUN_ERROR_RANK : QRUN_ERROR_INTERNAL, "%s",
                       c->lost ? c->lost_message : "the devices of the ranks are not linked");
    }
    const qrun_status begun = c->links->exchange(backend, sent, received, &c->device_ticket, err);
    QR_RETURN_IF_ERROR(agree(c, backend, begun, err));
    c->device_sent_bytes = 0;
    for (int32_t r = 0; r < c->n_ranks; r++) { c->device_sent_bytes += r != c->rank ? (int64_t)sent[r].n_bytes : 0; }
    return QRUN_OK;
}

qrun_status qr_devices_all_to_all_end(qr_collectives *c, qr_error *err) {
    if (c->device_ticket == 0 || c->devices == NULL) { return QRUN_OK; }
    const qrun_status status = wait_for(c, c->devices, c->device_ticket, err);
    c->device_ticket = 0;
    if (status != QRUN_OK && status != QRUN_ERROR_RANK && c->rank > 0 && err != NULL) {
        const bool reported = qr_collectives_tell(c, err->message); /* the others may be further on */
        qr_devices_unlink(c);
        return reported ? QRUN_ERROR_RANK : status;
    }
    if (status != QRUN_OK) { return agree(c, c->devices, status, err); }
    c->sent_bytes += c->device_sent_bytes;
    return QRUN_OK;
}
