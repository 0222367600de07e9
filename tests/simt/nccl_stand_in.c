/* A stand-in for libnccl.so.2 that tests load in its place: the functions that kernels/cuda/backend/links.cu calls, as
 * the library documents them, for processes of one machine and memory of the host. Ranks are connected by sockets, and
 * what a group of calls sends and receives is moved by a thread of the communicator, so that nothing is done when a
 * call returns. Until then what is received is poison.
 *
 * QRUN_NCCL_FAILS   "ncclSend:3": that function gives that result, on the rank QRUN_NCCL_FAILS_ON (default: all), in
 *                   its QRUN_NCCL_FAILS_AT-th call (default: the first). "async:6": ncclCommGetAsyncError does so of
 *                   the communicator once it has joined.
 * QRUN_NCCL_LOST    "error": a communicator whose other rank is gone has an error (6); else it waits for ever
 * QRUN_NCCL_VERSION its version */
#define _GNU_SOURCE
#include "nccl_stand_in.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { MAX_RANKS = 64, MAX_PARCELS = 2 * MAX_RANKS, ID_BYTES = 128, POLL_MS = 5, RETRY_NANOSECONDS = 2000000 };

typedef struct {
    char internal[ID_BYTES];
} unique_id;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} config;

typedef struct parcel {
    unsigned char *memory;
    size_t n_bytes, n_done; /* n_done: with the eight bytes of its size before it */
    uint64_t header;
    int peer;
    bool sends;
} parcel;

typedef struct comm {
    int rank, n_ranks, listener;
    char id[ID_BYTES];
    int peers[MAX_RANKS];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ends, has_group; /* under the lock */
    int state;            /* of the communicator: under the lock */
    parcel parcels[MAX_PARCELS];
    int n_parcels;
    simt_stream *stream;
} comm;

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

static int own_rank = -1; /* of this process, once it joins */

static long number_of(const char *variable, long otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

/* What the function is to return, or SUCCESS. */
static int fault_of(const char *function) {
    static long n_calls;
    const char *text = getenv("QRUN_NCCL_FAILS"), *rank = getenv("RANK");
    const size_t n = strlen(function);
    const int here = own_rank >= 0 ? own_rank : rank != NULL ? atoi(rank) : 0;
    if (text == NULL || strncmp(text, function, n) != 0 || text[n] != ':') { return SUCCESS; }
    if (number_of("QRUN_NCCL_FAILS_ON", here) != here) { return SUCCESS; }
    return ++n_calls == number_of("QRUN_NCCL_FAILS_AT", 1) ? atoi(text + n + 1) : SUCCESS;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

static socklen_t name_socket(const char *id, int rank, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX; /* abstract: the name begins with a zero */
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%.60s-%d", id, rank);
    return (socklen_t)(sizeof address->sun_family + 1 + (size_t)n);
}

static bool must_end(comm *c) {
    pthread_mutex_lock(&c->lock);
    const bool ends = c->ends;
    pthread_mutex_unlock(&c->lock);
    return ends;
}

static bool connect_to(comm *c, int rank) {
    const struct timespec pause = {.tv_nsec = RETRY_NANOSECONDS};
    struct sockaddr_un address;
    const socklen_t n = name_socket(c->id, rank, &address);
    while (!must_end(c)) {
        const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (made >= 0 && connect(made, (struct sockaddr *)&address, n) == 0) {
            c->peers[rank] = made;
            return send(made, &c->rank, sizeof c->rank, MSG_NOSIGNAL) == (ssize_t)sizeof c->rank;
        }
        if (made >= 0) { close(made); }
        (void)nanosleep(&pause, NULL);
    }
    return false;
}

static bool accept_one(comm *c) {
    struct pollfd waiting = {.fd = c->listener, .events = POLLIN};
    while (!must_end(c)) {
        int rank;
        if (poll(&waiting, 1, POLL_MS) <= 0) { continue; }
        const int made = accept(c->listener, NULL, NULL);
        if (made < 0) { return false; }
        if (recv(made, &rank, sizeof rank, MSG_WAITALL) != (ssize_t)sizeof rank || rank < 0 || rank >= c->n_ranks) {
            close(made);
            return false;
        }
        c->peers[rank] = made;
        return true;
    }
    return false;
}

static int join_all(comm *c) {
    for (int r = 0; r < c->rank; r++) {
        if (!connect_to(c, r)) { return SYSTEM_ERROR; }
    }
    for (int r = c->rank + 1; r < c->n_ranks; r++) {
        if (!accept_one(c)) { return SYSTEM_ERROR; }
    }
    return SUCCESS;
}

/* ---- A group of sends and receives ------------------------------------------------------------------------------- */

static bool is_done(const parcel *p) { return p->n_done == sizeof p->header + p->n_bytes; }

/* Moves what can be moved. Returns a result. */
static int move(comm *c, parcel *p) {
    while (!is_done(p)) {
        const bool in_header = p->n_done < sizeof p->header;
        unsigned char *at =
            in_header ? (unsigned char *)&p->header + p->n_done : p->memory + (p->n_done - sizeof p->header);
        const size_t n = in_header ? sizeof p->header - p->n_done : p->n_bytes - (p->n_done - sizeof p->header);
        const ssize_t moved = p->sends ? send(c->peers[p->peer], at, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                                       : recv(c->peers[p->peer], at, n, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) { return SUCCESS; }
        if (moved <= 0) {
            const char *lost = getenv("QRUN_NCCL_LOST");
            return lost != NULL && strcmp(lost, "error") == 0 ? REMOTE_ERROR : SUCCESS; /* not done, for ever */
        }
        p->n_done += (size_t)moved;
        if (in_header && p->n_done == sizeof p->header && p->header != p->n_bytes) { return INVALID_USAGE; }
    }
    return SUCCESS;
}

/* A rank's parcel to itself. */
static void move_own(comm *c) {
    for (int i = 0; i < c->n_parcels; i++) {
        for (int k = 0; k < c->n_parcels; k++) {
            parcel *from = &c->parcels[i], *to = &c->parcels[k];
            if (!from->sends || to->sends || from->peer != c->rank || to->peer != c->rank) { continue; }
            memcpy(to->memory, from->memory, from->n_bytes);
            from->n_done = to->n_done = sizeof from->header + from->n_bytes;
        }
    }
}

static int run_group(comm *c) {
    const struct timespec pause = {.tv_nsec = RETRY_NANOSECONDS / 20};
    move_own(c);
    for (bool left = true; left && !must_end(c);) {
        left = false;
        for (int i = 0; i < c->n_parcels; i++) {
            if (is_done(&c->parcels[i])) { continue; }
            const int result = move(c, &c->parcels[i]);
            if (result != SUCCESS) { return result; }
            left = left || !is_done(&c->parcels[i]);
        }
        if (left) { (void)nanosleep(&pause, NULL); }
    }
    return SUCCESS;
}

static void set_state(comm *c, int state) {
    pthread_mutex_lock(&c->lock);
    c->state = state;
    pthread_mutex_unlock(&c->lock);
}

static void *run(void *arg) {
    comm *c = arg;
    set_state(c, join_all(c));
    pthread_mutex_lock(&c->lock);
    while (!c->ends) {
        if (!c->has_group) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        const int result = run_group(c);
        pthread_mutex_lock(&c->lock);
        c->has_group = false;
        if (result != SUCCESS) {
            c->state = result; /* and the stream never comes to its end */
        } else if (!c->ends) {
            __atomic_add_fetch(&c->stream->n_done, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- The functions ----------------------------------------------------------------------------------------------- */

EXPORT int ncclGetVersion(int *version);
int ncclGetVersion(int *version) {
    *version = (int)number_of("QRUN_NCCL_VERSION", 22105);
    return fault_of("ncclGetVersion");
}

EXPORT int ncclGetUniqueId(unique_id *id);
int ncclGetUniqueId(unique_id *id) {
    static int n_made;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "qrun-nccl-%ld-%d", (long)getpid(), n_made++);
    return fault_of("ncclGetUniqueId");
}

EXPORT int ncclCommAbort(comm *c);
int ncclCommAbort(comm *c) {
    const int result = fault_of("ncclCommAbort");
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    for (int r = 0; r < c->n_ranks; r++) {
        if (c->peers[r] >= 0) { close(c->peers[r]); }
    }
    if (c->listener >= 0) { close(c->listener); }
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
    return result;
}

EXPORT int ncclCommInitRankConfig(comm **made, int n_ranks, unique_id id, int rank, const config *how);
int ncclCommInitRankConfig(comm **made, int n_ranks, unique_id id, int rank, const config *how) {
    struct sockaddr_un address;
    *made = NULL;
    own_rank = rank;
    const int fault = fault_of("ncclCommInitRankConfig");
    if (fault != SUCCESS) { return fault; }
    if (how->magic != 0xcafebeef || how->size != sizeof *how || how->blocking != 0 || n_ranks > MAX_RANKS || rank < 0 ||
        rank >= n_ranks) {
        return INVALID_ARGUMENT;
    }
    comm *c = calloc(1, sizeof *c);
    if (c == NULL) { return SYSTEM_ERROR; }
    c->rank = rank;
    c->n_ranks = n_ranks;
    memcpy(c->id, id.internal, sizeof c->id);
    for (int r = 0; r < MAX_RANKS; r++) { c->peers[r] = -1; }
    c->state = IN_PROGRESS;
    const socklen_t n = name_socket(c->id, rank, &address);
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    if (c->listener < 0 || bind(c->listener, (struct sockaddr *)&address, n) != 0 ||
        listen(c->listener, MAX_RANKS) != 0 || pthread_create(&c->thread, NULL, run, c) != 0) {
        if (c->listener >= 0) { close(c->listener); }
        free(c);
        return SYSTEM_ERROR;
    }
    *made = c;
    return IN_PROGRESS;
}

EXPORT int ncclCommGetAsyncError(comm *c, int *state);
int ncclCommGetAsyncError(comm *c, int *state) {
    pthread_mutex_lock(&c->lock);
    *state = c->state;
    pthread_mutex_unlock(&c->lock);
    const int fault = *state == SUCCESS ? fault_of("async") : SUCCESS;
    if (fault != SUCCESS) { *state = fault; }
    return fault_of("ncclCommGetAsyncError");
}

/* Calls of one thread between the two ends of a group; then they are the communicator's. */
static _Thread_local struct {
    int depth, n_parcels;
    comm *comm;
    simt_stream *stream;
    parcel parcels[MAX_PARCELS];
} group;

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void) {
    const int fault = fault_of("ncclGroupStart");
    if (fault != SUCCESS) { return fault; }
    group.depth++;
    return SUCCESS;
}

EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void) {
    const int fault = fault_of("ncclGroupEnd");
    comm *c = group.comm;
    if (group.depth != 1) { return INVALID_USAGE; }
    group.depth = 0;
    group.comm = NULL;
    if (fault != SUCCESS || c == NULL) {
        group.n_parcels = 0;
        return fault;
    }
    for (int i = 0; i < group.n_parcels; i++) {
        if (!group.parcels[i].sends) { memset(group.parcels[i].memory, 0xFF, group.parcels[i].n_bytes); }
    }
    pthread_mutex_lock(&c->lock);
    const bool busy = c->has_group || c->state != SUCCESS;
    if (!busy) {
        memcpy(c->parcels, group.parcels, sizeof c->parcels);
        c->n_parcels = group.n_parcels;
        c->stream = group.stream;
        c->has_group = true;
        __atomic_add_fetch(&c->stream->n_begun, 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    group.n_parcels = 0;
    return busy ? INVALID_USAGE : IN_PROGRESS;
}

static int add_parcel(void *memory, size_t n, int type, int peer, comm *c, simt_stream *stream, bool sends) {
    if (group.depth != 1 || type != 1 || peer < 0 || peer >= c->n_ranks || group.n_parcels == MAX_PARCELS ||
        (group.comm != NULL && group.comm != c)) {
        return INVALID_USAGE;
    }
    group.comm = c;
    group.stream = stream;
    group.parcels[group.n_parcels++] =
        (parcel){.memory = memory, .n_bytes = n, .header = sends ? n : 0, .peer = peer, .sends = sends};
    return SUCCESS;
}

EXPORT int ncclSend(const void *memory, size_t n, int type, int peer, comm *c, simt_stream *stream);
int ncclSend(const void *memory, size_t n, int type, int peer, comm *c, simt_stream *stream) {
    const int fault = fault_of("ncclSend");
    return fault != SUCCESS ? fault : add_parcel((void *)(uintptr_t)memory, n, type, peer, c, stream, true);
}

EXPORT int ncclRecv(void *memory, size_t n, int type, int peer, comm *c, simt_stream *stream);
int ncclRecv(void *memory, size_t n, int type, int peer, comm *c, simt_stream *stream) {
    const int fault = fault_of("ncclRecv");
    return fault != SUCCESS ? fault : add_parcel(memory, n, type, peer, c, stream, false);
}

EXPORT const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "in progress"};
    return result >= 0 && result <= IN_PROGRESS ? texts[result] : "unknown result code";
}

EXPORT const char *ncclGetLastError(comm *c);
const char *ncclGetLastError(comm *c) {
    (void)c;
    return "";
}
