/* The transport over sockets: frames of a header and bytes, on a connection between each two ranks. */
#include "kernels/collectives/sockets.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

#define HEARING_SHARE 0.25 /* of the time limit */

typedef enum frame_kind { FRAME_DATA = 0x71726431, FRAME_FAILURE = 0x71726631 } frame_kind;

typedef struct frame {
    uint32_t kind;
    uint32_t exchange; /* its number, the same on all ranks */
    uint64_t n_bytes;
} frame;

/* Of the lost rank, to those that are left. */
typedef struct failure {
    int32_t rank;
    int32_t said; /* that rank has reported it */
    char message[QR_ERROR_MESSAGE_BYTES];
} failure;

/* One connection, and how far the exchange has come on it. */
typedef struct peer {
    int descriptor; /* −1: none, or lost */
    frame out_frame, in_frame;
    qr_parcel out, in;
    size_t out_done, in_done; /* with the frame's bytes */
    double moved_at;          /* when bytes last came or went */
} peer;

typedef struct socket_collectives {
    qr_collectives collectives; /* first */
    peer *peers;                /* [n_ranks] */
    struct pollfd *polled;      /* [n_ranks] */
    uint32_t n_exchanges;
    failure failure; /* once a rank is lost */
    bool misplaced;  /* that one has been heard: it is at another place of the run */
} socket_collectives;

static size_t frame_bytes(const qr_parcel *parcel) { return parcel->n_bytes > 0 ? sizeof(frame) + parcel->n_bytes : 0; }

static bool is_sending(const peer *p) { return p->descriptor >= 0 && p->out_done < frame_bytes(&p->out); }
static bool is_receiving(const peer *p) { return p->descriptor >= 0 && p->in_done < frame_bytes(&p->in); }

/* The first loss is the cause of the others. */
static void note_failure(socket_collectives *s, int32_t rank, const char *message) {
    if (s->failure.message[0] != '\0') { return; }
    s->failure.rank = rank;
    s->failure.said = 0;
    (void)snprintf(s->failure.message, sizeof s->failure.message, "%s", message);
}

static void drop(socket_collectives *s, int32_t rank) {
    char message[128];
    close(s->peers[rank].descriptor);
    s->peers[rank].descriptor = -1;
    (void)snprintf(message, sizeof message, "rank %d ended without a word; was it killed, or out of memory?",
                   (int)rank);
    note_failure(s, rank, message);
}

/* The part of a frame and its bytes that begins at `done`. */
static char *at(frame *header, const qr_parcel *parcel, size_t done, size_t *n) {
    if (done < sizeof *header) {
        *n = sizeof *header - done;
        return (char *)header + done;
    }
    *n = frame_bytes(parcel) - done;
    return (char *)parcel->memory + (done - sizeof *header);
}

/* Whether a call on a socket moved bytes; a connection that has ended is dropped. */
static bool take_moved(socket_collectives *s, int32_t rank, ssize_t moved, size_t *done) {
    if (moved > 0) {
        *done += (size_t)moved;
        s->peers[rank].moved_at = qr_now_seconds();
        return true;
    }
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) { return false; }
    drop(s, rank);
    return false;
}

/* A frame that has come whole is what this exchange expects, or tells that another rank is lost. */
static void check_frame(socket_collectives *s, int32_t rank) {
    peer *p = &s->peers[rank];
    failure told = {0};
    char message[160];
    if (p->in_frame.kind == FRAME_DATA && p->in_frame.exchange == s->n_exchanges &&
        p->in_frame.n_bytes == p->in.n_bytes) {
        return;
    }
    if (p->in_frame.kind == FRAME_FAILURE && p->in_frame.n_bytes == sizeof told &&
        recv(p->descriptor, &told, sizeof told, MSG_WAITALL) == (ssize_t)sizeof told) {
        told.message[sizeof told.message - 1] = '\0';
        if (told.message[0] == '\0') {
            (void)snprintf(told.message, sizeof told.message, "rank %d says that the run has failed", (int)rank);
        }
        if (s->failure.message[0] == '\0') {
            if (told.rank < 0 || told.rank >= s->collectives.n_ranks) { told.rank = rank; }
            s->failure = told;
        }
    } else { /* both notice, or are told, and the first of the two says it */
        const int32_t own = s->collectives.rank, first = rank < own ? rank : own, second = rank < own ? own : rank;
        (void)snprintf(message, sizeof message,
                       "ranks %d and %d are at different places of the run; give all ranks the same options",
                       (int)first, (int)second);
        s->misplaced = s->failure.message[0] == '\0';
        note_failure(s, second, message);
        return;
    }
    close(p->descriptor);
    p->descriptor = -1;
}

static void receive_some(socket_collectives *s, int32_t rank) {
    peer *p = &s->peers[rank];
    while (is_receiving(p)) {
        size_t n;
        char *bytes = at(&p->in_frame, &p->in, p->in_done, &n);
        const bool in_frame = p->in_done < sizeof(frame);
        if (!take_moved(s, rank, recv(p->descriptor, bytes, n, MSG_DONTWAIT), &p->in_done)) { return; }
        if (in_frame && p->in_done == sizeof(frame)) { check_frame(s, rank); }
    }
}

/* A connection that takes nothing any more: what its rank said before it ended may be why. */
static void hear_last(socket_collectives *s, int32_t rank) {
    peer *p = &s->peers[rank];
    receive_some(s, rank);
    if (p->descriptor >= 0 && !is_receiving(p) &&
        recv(p->descriptor, &p->in_frame, sizeof p->in_frame, MSG_DONTWAIT) == (ssize_t)sizeof p->in_frame) {
        check_frame(s, rank);
    }
    if (p->descriptor >= 0) { drop(s, rank); }
}

static void send_some(socket_collectives *s, int32_t rank) {
    peer *p = &s->peers[rank];
    while (is_sending(p)) {
        size_t n;
        const char *bytes = at(&p->out_frame, &p->out, p->out_done, &n);
        const ssize_t moved = send(p->descriptor, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (moved < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            hear_last(s, rank);
            return;
        }
        if (!take_moved(s, rank, moved, &p->out_done)) { return; }
    }
}

/* A rank that neither sends nor takes anything for too long. */
static void find_silent(socket_collectives *s) {
    const double now = qr_now_seconds(), limit = s->collectives.timeout_seconds;
    for (int32_t r = 0; r < s->collectives.n_ranks; r++) {
        const peer *p = &s->peers[r];
        char message[128];
        if (!(is_sending(p) || is_receiving(p)) || now - p->moved_at < limit) { continue; }
        (void)snprintf(message, sizeof message, "rank %d has been silent for %lld s (`collective_timeout`)", (int)r,
                       (long long)limit);
        note_failure(s, r, message);
        return;
    }
}

/* Waits until something can move, at most until the next rank would be silent for too long. Returns false when nothing
 * is left to do: all has moved or, after a failure, no frame to a rank that lives is cut in two. */
static bool wait_for_peers(socket_collectives *s, bool failed) {
    const double now = qr_now_seconds();
    double wait = s->collectives.timeout_seconds;
    bool any = false;
    for (int32_t r = 0; r < s->collectives.n_ranks; r++) {
        peer *p = &s->peers[r];
        const bool sends = is_sending(p) && (!failed || p->out_done > 0), receives = !failed && is_receiving(p);
        s->polled[r] = (struct pollfd){.fd = -1};
        if (!sends && !receives) { continue; }
        s->polled[r].fd = p->descriptor;
        s->polled[r].events = (short)((sends ? POLLOUT : 0) | (receives ? POLLIN : 0));
        const double left = p->moved_at + s->collectives.timeout_seconds - now;
        wait = left < wait ? left : wait;
        any = true;
    }
    if (!any) { return false; }
    (void)poll(s->polled, (nfds_t)s->collectives.n_ranks, wait > 0 ? (int)(wait * 1e3) + 1 : 0);
    return true;
}

static void tell_others(socket_collectives *s) {
    const frame header = {FRAME_FAILURE, s->n_exchanges, sizeof s->failure};
    for (int32_t r = 0; r < s->collectives.n_ranks; r++) {
        peer *p = &s->peers[r];
        if (p->descriptor < 0 || (r == s->failure.rank && !s->misplaced)) { continue; }
        const bool cut = p->out_done > 0 && is_sending(p);
        if (!cut && send(p->descriptor, &header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof header) {
            (void)send(p->descriptor, &s->failure, sizeof s->failure, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

/* A rank that has been silent may itself wait for another, whose silence it notices at the same moment. What it says of
 * that is the cause. */
static void hear_silent(socket_collectives *s) {
    const failure own = s->failure;
    const int32_t rank = own.rank;
    peer *p = &s->peers[rank];
    const double deadline = qr_now_seconds() + HEARING_SHARE * s->collectives.timeout_seconds;
    s->failure.message[0] = '\0';
    while (rank != s->collectives.rank && p->descriptor >= 0 && qr_now_seconds() < deadline) {
        struct pollfd polled = {.fd = p->descriptor, .events = POLLIN};
        if (poll(&polled, 1, (int)((deadline - qr_now_seconds()) * 1e3) + 1) <= 0) { break; }
        if (!is_receiving(p)) {
            hear_last(s, rank);
            break;
        }
        receive_some(s, rank);
    }
    if (s->failure.message[0] == '\0' || s->failure.rank == s->collectives.rank) { s->failure = own; }
}

static void begin(socket_collectives *s, const qr_parcel *sent, const qr_parcel *received) {
    const double now = qr_now_seconds();
    s->n_exchanges++;
    for (int32_t r = 0; r < s->collectives.n_ranks; r++) {
        peer *p = &s->peers[r];
        const bool own = r == s->collectives.rank;
        p->out = own ? (qr_parcel){0} : sent[r];
        p->in = own ? (qr_parcel){0} : received[r];
        p->out_frame = (frame){FRAME_DATA, s->n_exchanges, p->out.n_bytes};
        p->out_done = p->in_done = 0;
        p->moved_at = now;
    }
}

static qrun_status exchange(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    socket_collectives *s = (socket_collectives *)c;
    begin(s, sent, received);
    for (int32_t r = 0; r < c->n_ranks; r++) { send_some(s, r); }
    while (wait_for_peers(s, s->failure.message[0] != '\0')) {
        for (int32_t r = 0; r < c->n_ranks; r++) {
            const short events = s->polled[r].revents;
            if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) { receive_some(s, r); }
            if ((events & (POLLOUT | POLLHUP | POLLERR)) != 0) { send_some(s, r); }
        }
        const bool failed = s->failure.message[0] != '\0';
        find_silent(s);
        if (failed && qr_now_seconds() > s->peers[s->failure.rank].moved_at + 2 * c->timeout_seconds) { break; }
    }
    if (s->failure.message[0] == '\0') { return QRUN_OK; }
    tell_others(s);
    if (!s->misplaced) { hear_silent(s); }
    return qr_collectives_lose(c, s->failure.rank, s->failure.said != 0, s->failure.message, err);
}

/* A connection that has ended, or on which a rank has told a failure, is left for the next exchange to read. */
static bool is_whole(qr_collectives *c) {
    const socket_collectives *s = (const socket_collectives *)c;
    for (int32_t r = 0; r < c->n_ranks; r++) {
        frame next = {0};
        if (r == c->rank) { continue; }
        if (s->peers[r].descriptor < 0) { return false; }
        const ssize_t n = recv(s->peers[r].descriptor, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT);
        const bool nothing = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (!nothing && (n <= 0 || next.kind == FRAME_FAILURE)) { return false; }
    }
    return true;
}

static bool tell(qr_collectives *c, const char *message, bool said) {
    socket_collectives *s = (socket_collectives *)c;
    s->failure.rank = c->rank;
    s->failure.said = said ? 1 : 0;
    (void)snprintf(s->failure.message, sizeof s->failure.message, "%s", message);
    tell_others(s);
    return !said;
}

static void destroy(qr_collectives *c) {
    socket_collectives *s = (socket_collectives *)c;
    for (int32_t r = 0; r < c->n_ranks; r++) {
        if (s->peers[r].descriptor >= 0) { close(s->peers[r].descriptor); }
    }
    qr_free(s->peers);
    qr_free(s->polled);
    qr_free(s);
}

qrun_status qr_sockets_create(const qr_launch *launch, double timeout_seconds, const int *descriptors,
                              qr_collectives **collectives, qr_error *err) {
    const size_t n = (size_t)launch->n_ranks;
    *collectives = NULL;
    socket_collectives *made = qr_alloc_zeroed(sizeof *made);
    peer *peers = qr_alloc_array_zeroed(n, sizeof *peers);
    struct pollfd *polled = qr_alloc_array_zeroed(n, sizeof *polled);
    if (made == NULL || peers == NULL || polled == NULL) {
        for (size_t r = 0; r < n; r++) {
            if (descriptors[r] >= 0) { close(descriptors[r]); }
        }
        qr_free(made);
        qr_free(peers);
        qr_free(polled);
        return qr_fail_memory(err, "the connections of the ranks", n * sizeof *peers);
    }
    for (size_t r = 0; r < n; r++) { peers[r].descriptor = descriptors[r]; }
    made->peers = peers;
    made->polled = polled;
    made->collectives = (qr_collectives){.name = "sockets",
                                         .rank = launch->rank,
                                         .n_ranks = launch->n_ranks,
                                         .local_rank = launch->local_rank,
                                         .n_local_ranks = launch->n_local_ranks,
                                         .timeout_seconds = timeout_seconds,
                                         .exchange = exchange,
                                         .is_whole = is_whole,
                                         .tell = tell,
                                         .destroy = destroy};
    *collectives = &made->collectives;
    return QRUN_OK;
}

qrun_status qr_sockets_open(const qr_launch *launch, double timeout_seconds, qr_collectives **collectives,
                            qr_error *err) {
    int descriptors[QR_MAX_RANKS];
    *collectives = NULL;
    const qrun_status status = qr_sockets_join(launch, timeout_seconds, descriptors, err);
    if (status == QRUN_OK) { return qr_sockets_create(launch, timeout_seconds, descriptors, collectives, err); }
    for (int32_t r = 0; r < launch->n_ranks; r++) {
        if (descriptors[r] >= 0) { close(descriptors[r]); }
    }
    return status;
}
