/* Every rank but 0 opens a socket to be reached at, and tells rank 0. Rank 0 tells all ranks where all are; then each
 * connects to those before it. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/collectives/sockets.h"

enum { HELLO_SECONDS = 10, RETRY_NANOSECONDS = 20000000, BUILD_BYTES = 32 };

/* The first bytes of a connection, in both directions. */
typedef struct hello {
    char mark[8];
    char build[BUILD_BYTES];
    uint64_t job;
    int32_t rank, n_ranks;
    uint32_t port; /* of the sender's own socket, network order */
    uint32_t unused;
} hello;

static const char MARK[8] = "qrunrank";

/* Where a rank listens. */
typedef struct place {
    struct sockaddr_storage address;
    socklen_t n_bytes;
} place;

typedef struct joining {
    const qr_launch *launch;
    double deadline;
    int *descriptors;
    int listener; /* −1: none */
    place places[QR_MAX_RANKS];
} joining;

static hello own_hello(const qr_launch *launch, int listener) {
    hello h = {.job = launch->job, .rank = launch->rank, .n_ranks = launch->n_ranks};
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } own;
    socklen_t n = sizeof own;
    memset(&own, 0, sizeof own);
    memcpy(h.mark, MARK, sizeof h.mark);
    (void)snprintf(h.build, sizeof h.build, "%d.%d.%d", QRUN_VERSION_MAJOR, QRUN_VERSION_MINOR, QRUN_VERSION_PATCH);
    if (listener >= 0 && getsockname(listener, &own.any, &n) == 0) {
        h.port = own.any.sa_family == AF_INET6 ? own.v6.sin6_port : own.v4.sin_port;
    }
    return h;
}

/* All of the bytes, or false. */
static bool send_all(int descriptor, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        const ssize_t moved = send(descriptor, (const char *)bytes + done, n - done, MSG_NOSIGNAL);
        if (moved <= 0 && errno != EINTR) { return false; }
        done += moved > 0 ? (size_t)moved : 0;
    }
    return true;
}

/* Until `deadline`, however few bytes come at a time. */
static bool receive_all(int descriptor, void *bytes, size_t n, double deadline) {
    for (size_t done = 0; done < n;) {
        const double left = deadline - qr_now_seconds();
        struct pollfd waiting = {.fd = descriptor, .events = POLLIN};
        if (left <= 0 || (poll(&waiting, 1, (int)(left * 1e3) + 1) < 0 && errno != EINTR)) { return false; }
        const ssize_t moved = recv(descriptor, (char *)bytes + done, n - done, MSG_DONTWAIT);
        if (moved == 0 || (moved < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) { return false; }
        done += moved > 0 ? (size_t)moved : 0;
    }
    return true;
}

static void set_limits(int descriptor, double seconds) {
    const struct timeval limit = {.tv_sec = (time_t)seconds};
    const int on = 1;
    (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    (void)setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Whether a hello is one of ours. Of another version or size of the job: an error. */
static qrun_status check_hello(const hello *own, const hello *h, const int *descriptors, bool *ours, qr_error *err) {
    *ours = memcmp(h->mark, MARK, sizeof h->mark) == 0 && h->job == own->job;
    if (!*ours) { return QRUN_OK; }
    if (memcmp(h->build, own->build, sizeof h->build) != 0) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "rank %d is qrun %.31s and rank %d is %s; use one version on all",
                       (int)h->rank, h->build, (int)own->rank, own->build);
    }
    if (h->n_ranks != own->n_ranks || h->rank < 0 || h->rank >= own->n_ranks || h->rank == own->rank) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a process says that it is rank %d of %d; this is rank %d of %d",
                       (int)h->rank, (int)h->n_ranks, (int)own->rank, (int)own->n_ranks);
    }
    if (descriptors[h->rank] >= 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "two processes say that they are rank %d", (int)h->rank);
    }
    return QRUN_OK;
}

qrun_status qr_sockets_greet(const qr_launch *launch, const int *descriptors, int listener, int connection,
                             int32_t *rank, uint16_t *port, qr_error *err) {
    const hello own = own_hello(launch, listener);
    hello theirs;
    bool ours = false;
    *rank = -1;
    *port = 0;
    if (!receive_all(connection, &theirs, sizeof theirs, qr_now_seconds() + HELLO_SECONDS)) { return QRUN_OK; }
    const qrun_status status = check_hello(&own, &theirs, descriptors, &ours, err);
    if (ours) { (void)send_all(connection, &own, sizeof own); } /* also where we disagree, so that both say so */
    if (!ours || status != QRUN_OK) { return status; }
    *rank = theirs.rank;
    *port = (uint16_t)theirs.port;
    return QRUN_OK;
}

static qrun_status listen_at(joining *j, const struct sockaddr *address, socklen_t n_bytes, qr_error *err) {
    const int on = 1;
    j->listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (j->listener >= 0) { (void)setsockopt(j->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); }
    if (j->listener >= 0 && bind(j->listener, address, n_bytes) == 0 && listen(j->listener, QR_MAX_RANKS) == 0) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_IO, "rank %d cannot listen on %s port %d (MASTER_ADDR, MASTER_PORT): %s",
                   (int)j->launch->rank, j->launch->address, (int)j->launch->port, strerror(errno));
}

/* Accepts ranks until n of them have come. */
static qrun_status accept_ranks(joining *j, int32_t n, qr_error *err) {
    while (n > 0) {
        const double left = j->deadline - qr_now_seconds();
        struct pollfd waiting = {.fd = j->listener, .events = POLLIN};
        struct sockaddr_storage address = {0};
        socklen_t n_bytes = sizeof address;
        int32_t rank;
        uint16_t port;
        if (left <= 0 || poll(&waiting, 1, (int)(left * 1e3) + 1) == 0) {
            int32_t missing = j->launch->rank + 1;
            while (missing < j->launch->n_ranks - 1 && j->descriptors[missing] >= 0) { missing++; }
            return qr_fail(err, QRUN_ERROR_DEVICE,
                           "rank %d did not join in time (`collective_timeout`); is it running?", (int)missing);
        }
        const int made = accept4(j->listener, (struct sockaddr *)&address, &n_bytes, SOCK_CLOEXEC);
        if (made < 0) { continue; } /* a signal came, or who had connected has gone: the listener does not wait */
        set_limits(made, HELLO_SECONDS);
        const qrun_status status = qr_sockets_greet(j->launch, j->descriptors, j->listener, made, &rank, &port, err);
        if (rank < 0) {
            close(made);
            if (status != QRUN_OK) { return status; }
            continue;
        }
        if (address.ss_family == AF_INET6) {
            ((struct sockaddr_in6 *)(void *)&address)->sin6_port = port;
        } else {
            ((struct sockaddr_in *)(void *)&address)->sin_port = port;
        }
        j->places[rank] = (place){address, n_bytes};
        j->descriptors[rank] = made;
        n--;
    }
    return QRUN_OK;
}

static qrun_status fail_unreached(const joining *j, int32_t rank, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_DEVICE,
                   "rank %d cannot reach rank %d at %s port %d (MASTER_ADDR, MASTER_PORT); is it running?",
                   (int)j->launch->rank, (int)rank, j->launch->address, (int)j->launch->port);
}

/* Connects to a rank, which may not listen yet. */
static qrun_status connect_to(joining *j, int32_t rank, const struct sockaddr *address, socklen_t n_bytes,
                              qr_error *err) {
    const struct timespec pause = {.tv_nsec = RETRY_NANOSECONDS};
    for (;;) {
        const int made = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (made >= 0) { set_limits(made, HELLO_SECONDS); }
        if (made >= 0 && connect(made, address, n_bytes) == 0) {
            j->descriptors[rank] = made;
            return QRUN_OK;
        }
        if (made >= 0) { close(made); }
        if (qr_now_seconds() > j->deadline) { return fail_unreached(j, rank, err); }
        (void)nanosleep(&pause, NULL);
    }
}

static qrun_status exchange_hellos(joining *j, int32_t rank, qr_error *err) {
    const int descriptor = j->descriptors[rank];
    const hello own = own_hello(j->launch, j->listener);
    hello theirs;
    bool ours = false;
    set_limits(descriptor, j->deadline - qr_now_seconds() + 1);
    if (send_all(descriptor, &own, sizeof own) && receive_all(descriptor, &theirs, sizeof theirs, j->deadline + 1)) {
        j->descriptors[rank] = -1; /* not a second one of that rank */
        const qrun_status status = check_hello(&own, &theirs, j->descriptors, &ours, err);
        j->descriptors[rank] = descriptor;
        if (status != QRUN_OK) { return status; }
    }
    return ours && theirs.rank == rank ? QRUN_OK : fail_unreached(j, rank, err);
}

static qrun_status resolve(const qr_launch *launch, place *found, qr_error *err) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC};
    struct addrinfo *list = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%d", (int)launch->port);
    const int code = getaddrinfo(launch->address, port, &hints, &list);
    if (code != 0) {
        return qr_fail(err, QRUN_ERROR_NOT_FOUND, "MASTER_ADDR=%s in the environment: %s", launch->address,
                       gai_strerror(code));
    }
    memcpy(&found->address, list->ai_addr, list->ai_addrlen);
    found->n_bytes = list->ai_addrlen;
    freeaddrinfo(list);
    return QRUN_OK;
}

static qrun_status join_as_first(joining *j, const place *own, qr_error *err) {
    const int32_t n = j->launch->n_ranks;
    QR_RETURN_IF_ERROR(listen_at(j, (const struct sockaddr *)&own->address, own->n_bytes, err));
    QR_RETURN_IF_ERROR(accept_ranks(j, n - 1, err));
    for (int32_t r = 1; r < n; r++) {
        if (!send_all(j->descriptors[r], j->places, (size_t)n * sizeof j->places[0])) {
            return qr_fail(err, QRUN_ERROR_DEVICE, "rank %d ended while the ranks joined", (int)r);
        }
    }
    return QRUN_OK;
}

/* Its own socket is on the interface that it reaches rank 0 by. */
static qrun_status join_as_other(joining *j, const place *first, qr_error *err) {
    const int32_t rank = j->launch->rank, n = j->launch->n_ranks;
    struct sockaddr_storage own = {0};
    socklen_t n_bytes = sizeof own;
    QR_RETURN_IF_ERROR(connect_to(j, 0, (const struct sockaddr *)&first->address, first->n_bytes, err));
    if (getsockname(j->descriptors[0], (struct sockaddr *)&own, &n_bytes) != 0) { return fail_unreached(j, 0, err); }
    if (own.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)&own)->sin6_port = 0;
    } else {
        ((struct sockaddr_in *)(void *)&own)->sin_port = 0;
    }
    QR_RETURN_IF_ERROR(listen_at(j, (const struct sockaddr *)&own, n_bytes, err));
    QR_RETURN_IF_ERROR(exchange_hellos(j, 0, err));
    if (!receive_all(j->descriptors[0], j->places, (size_t)n * sizeof j->places[0], j->deadline + 1)) {
        return qr_fail(err, QRUN_ERROR_DEVICE, "rank 0 ended while the ranks joined");
    }
    for (int32_t r = 1; r < rank; r++) {
        if (j->places[r].n_bytes > sizeof j->places[r].address) { return fail_unreached(j, r, err); }
        QR_RETURN_IF_ERROR(connect_to(j, r, (const struct sockaddr *)&j->places[r].address, j->places[r].n_bytes, err));
        QR_RETURN_IF_ERROR(exchange_hellos(j, r, err));
    }
    return accept_ranks(j, n - 1 - rank, err);
}

qrun_status qr_sockets_join(const qr_launch *launch, double timeout_seconds, int *descriptors, qr_error *err) {
    joining j = {
        .launch = launch, .deadline = qr_now_seconds() + timeout_seconds, .descriptors = descriptors, .listener = -1};
    place first = {0};
    for (int32_t r = 0; r < launch->n_ranks; r++) { descriptors[r] = -1; }
    qrun_status status = resolve(launch, &first, err);
    if (status == QRUN_OK) {
        status = launch->rank == 0 ? join_as_first(&j, &first, err) : join_as_other(&j, &first, err);
    }
    if (j.listener >= 0) { close(j.listener); }
    /* Exchanges poll. What is read without that is the rest of a frame that tells a failure: its sender may have died.
     */
    for (int32_t r = 0; r < launch->n_ranks; r++) {
        if (descriptors[r] >= 0) { set_limits(descriptors[r], HELLO_SECONDS); }
    }
    return status;
}
