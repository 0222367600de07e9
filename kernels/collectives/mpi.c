/* libqrun_mpi.so: the transport over MPI, and the launcher that goes with it. A rank that ends without a word is the
 * launcher's to report: mpirun ends the others and names it. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/sizes.h"
#include "kernels/collectives/mpi_plugin.h"

enum { TAG = 1, LAST_WORDS_TAG = 2, SPINS = 2000, PAUSE_NANOSECONDS = 50000, CALMER_NANOSECONDS = 500000000 };

#define MOST_TELLING_SECONDS 2.0

typedef struct mpi_collectives {
    qr_collectives collectives;              /* first */
    MPI_Comm world;                          /* of our own, so that a host program's messages are apart */
    MPI_Request *requests;                   /* [2 · n_ranks]: receives by rank, then sends */
    MPI_Request told;                        /* of last_words */
    char last_words[QR_ERROR_MESSAGE_BYTES]; /* of a rank that leaves before the run has ended */
    bool began;                              /* MPI was begun here, and ends with us */
} mpi_collectives;

static qrun_status fail_mpi(const char *what, int code, qr_error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    (void)MPI_Error_string(code, text, &length);
    return qr_fail(err, QRUN_ERROR_DEVICE, "mpi: %s failed: %s", what, text);
}

#define MPI_TRY(what, call)                                            \
    do {                                                               \
        const int code = (call);                                       \
        if (code != MPI_SUCCESS) { return fail_mpi(what, code, err); } \
    } while (0)

static qrun_status begin(mpi_collectives *m, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    const int32_t n = m->collectives.n_ranks;
    for (int32_t r = 0; r < n; r++) {
        m->requests[r] = m->requests[n + r] = MPI_REQUEST_NULL;
        if (r == m->collectives.rank) { continue; }
        if (sent[r].n_bytes > INT_MAX || received[r].n_bytes > INT_MAX) {
            return qr_fail(err, QRUN_ERROR_INTERNAL, "mpi: a parcel of more than 2 GiB");
        }
        if (received[r].n_bytes > 0) {
            MPI_TRY("MPI_Irecv", MPI_Irecv(received[r].memory, (int)received[r].n_bytes, MPI_BYTE, r, TAG, m->world,
                                           &m->requests[r]));
        }
        if (sent[r].n_bytes > 0) {
            MPI_TRY("MPI_Isend",
                    MPI_Isend(sent[r].memory, (int)sent[r].n_bytes, MPI_BYTE, r, TAG, m->world, &m->requests[n + r]));
        }
    }
    return QRUN_OK;
}

/* What is still under way stays as it is: the process is about to end, and with it the others, for the launcher ends
 * them. Ranks that have nothing to say wait until that one has said it. */
static qrun_status lose(mpi_collectives *m, int32_t rank, bool said, const char *message, qr_error *err) {
    const struct timespec calm = {.tv_sec = 1, .tv_nsec = CALMER_NANOSECONDS};
    const qrun_status status = qr_collectives_lose(&m->collectives, rank, said, message, err);
    if (status == QRUN_ERROR_RANK) { (void)nanosleep(&calm, NULL); }
    return status;
}

/* The first rank that has not answered, after the time limit. */
static qrun_status lose_silent(mpi_collectives *m, qr_error *err) {
    const int32_t n = m->collectives.n_ranks;
    char message[128];
    int32_t silent = 0;
    while (silent < n - 1 && m->requests[silent] == MPI_REQUEST_NULL && m->requests[n + silent] == MPI_REQUEST_NULL) {
        silent++;
    }
    (void)snprintf(message, sizeof message, "rank %d has been silent for %lld s (`collective_timeout`)", (int)silent,
                   (long long)m->collectives.timeout_seconds);
    return lose(m, silent, false, message, err);
}

/* The first rank that has left. It has said why. */
static qrun_status lose_left(mpi_collectives *m, const MPI_Status *status, qr_error *err) {
    m->last_words[sizeof m->last_words - 1] = '\0';
    return lose(m, status->MPI_SOURCE, true, m->last_words, err);
}

static qrun_status exchange(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err) {
    mpi_collectives *m = (mpi_collectives *)c;
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    const double deadline = qr_now_seconds() + c->timeout_seconds;
    MPI_Status status;
    QR_RETURN_IF_ERROR(begin(m, sent, received, err));
    for (int64_t tries = 0;; tries++) {
        int index, done = 0;
        MPI_TRY("MPI_Testall", MPI_Testall(2 * c->n_ranks, m->requests, &done, MPI_STATUSES_IGNORE));
        if (done) { return QRUN_OK; }
        if (tries < SPINS) { continue; }
        /* Testall leaves requests as they are until all are done; this finds those that are. */
        MPI_TRY("MPI_Testany", MPI_Testany(2 * c->n_ranks, m->requests, &index, &done, MPI_STATUS_IGNORE));
        MPI_TRY("MPI_Test", MPI_Test(&m->told, &done, &status));
        if (done) { return lose_left(m, &status, err); }
        if (qr_now_seconds() > deadline) { return lose_silent(m, err); }
        (void)nanosleep(&pause, NULL);
    }
}

/* The launcher ends the others once this process has, wherever they are: so this rank says it itself, before. Those
 * that wait in an exchange hear of it sooner, and a launcher that ends nobody has nothing to do. */
static bool tell(qr_collectives *c, const char *message, bool said) {
    mpi_collectives *m = (mpi_collectives *)c;
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    const double deadline = qr_now_seconds() + MOST_TELLING_SECONDS;
    int done = 0;
    (void)message, (void)said;
    for (int32_t r = 0; r < c->n_ranks; r++) {
        m->requests[r] = MPI_REQUEST_NULL;
        if (r == c->rank) { continue; }
        (void)MPI_Isend(c->lost_message, (int)sizeof c->lost_message, MPI_BYTE, r, LAST_WORDS_TAG, m->world,
                        &m->requests[r]);
    }
    while (MPI_Testall(c->n_ranks, m->requests, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS && !done &&
           qr_now_seconds() < deadline) {
        (void)nanosleep(&pause, NULL);
    }
    return false;
}

static void destroy(qr_collectives *c) {
    mpi_collectives *m = (mpi_collectives *)c;
    if (!c->lost) {
        (void)MPI_Cancel(&m->told);
        (void)MPI_Wait(&m->told, MPI_STATUS_IGNORE);
        (void)MPI_Comm_free(&m->world);
        if (m->began) { (void)MPI_Finalize(); }
    }
    qr_free(m->requests);
    qr_free(m);
}

static qrun_status enter(mpi_collectives *m, qr_error *err) {
    int begun = 0, ended = 0, provided = 0;
    MPI_Comm machine;
    qr_collectives *c = &m->collectives;
    MPI_TRY("MPI_Finalized", MPI_Finalized(&ended));
    if (ended) { return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "mpi: a process can join the ranks only once"); }
    MPI_TRY("MPI_Initialized", MPI_Initialized(&begun));
    if (!begun) { MPI_TRY("MPI_Init_thread", MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided)); }
    m->began = !begun;
    MPI_TRY("MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &m->world));
    MPI_TRY("MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN));
    MPI_TRY("MPI_Comm_rank", MPI_Comm_rank(m->world, &c->rank));
    MPI_TRY("MPI_Comm_size", MPI_Comm_size(m->world, &c->n_ranks));
    MPI_TRY("MPI_Comm_split_type",
            MPI_Comm_split_type(m->world, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &machine));
    MPI_TRY("MPI_Comm_rank", MPI_Comm_rank(machine, &c->local_rank));
    MPI_TRY("MPI_Comm_size", MPI_Comm_size(machine, &c->n_local_ranks));
    MPI_TRY("MPI_Comm_free", MPI_Comm_free(&machine));
    if (c->n_ranks <= QR_MAX_RANKS) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT, "mpi: %d ranks are more than %d", (int)c->n_ranks, QR_MAX_RANKS);
}

static qrun_status listen(mpi_collectives *m, qr_error *err) {
    MPI_TRY("MPI_Irecv", MPI_Irecv(m->last_words, (int)sizeof m->last_words, MPI_BYTE, MPI_ANY_SOURCE, LAST_WORDS_TAG,
                                   m->world, &m->told));
    return QRUN_OK;
}

static qrun_status create(double timeout_seconds, qr_collectives **collectives, qr_error *err) {
    *collectives = NULL;
    mpi_collectives *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the ranks", sizeof *made); }
    made->collectives = (qr_collectives){
        .name = "mpi", .timeout_seconds = timeout_seconds, .exchange = exchange, .tell = tell, .destroy = destroy};
    qrun_status status = enter(made, err);
    if (status == QRUN_OK) {
        made->requests = qr_alloc_array_zeroed(2 * (size_t)made->collectives.n_ranks, sizeof *made->requests);
        if (made->requests == NULL) { status = qr_fail_memory(err, "the ranks", sizeof *made->requests); }
    }
    if (status == QRUN_OK) { status = listen(made, err); }
    if (status != QRUN_OK) {
        qr_free(made->requests);
        qr_free(made);
        return status;
    }
    *collectives = &made->collectives;
    return QRUN_OK;
}

__attribute__((visibility("default"))) const qr_mpi_plugin *qr_mpi_plugin_get(void);
const qr_mpi_plugin *qr_mpi_plugin_get(void) {
    static const qr_mpi_plugin plugin = {sizeof(qr_collectives), QR_MPI_PLUGIN_BUILD, create};
    return &plugin;
}
