/* Collectives: what the processes of one run, its ranks, send each other. A transport brings one primitive, `exchange`;
 * the others are made of it here, so that all transports behave alike.
 *
 * Every rank makes the same calls in the same order. Memory is the host's, but for exchanges between devices. Nothing
 * is added up in here: whoever reduces receives the parts and adds them in an order of its own choosing, so that sums
 * do not depend on a transport.
 *
 * A rank that is gone or silent for longer than the time limit ends the call on every other rank with an error that
 * names it. Afterwards `lost` is set, and every further call fails with the same message. A rank that leaves while the
 * others count on it tells them, so that they leave too, and one of all says why. */
#ifndef QR_KERNELS_COLLECTIVES_H
#define QR_KERNELS_COLLECTIVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qr_collectives qr_collectives;
struct qr_exchange_thread;
struct qr_backend;

/* What goes to a rank or comes from one; no bytes: nothing does. */
typedef struct qr_parcel {
    void *memory; /* only read where it is sent */
    size_t n_bytes;
} qr_parcel;

struct qr_collectives {
    const char *name; /* of the transport: "sockets", "mpi" */
    int32_t rank, n_ranks;
    int32_t local_rank, n_local_ranks; /* among those of this machine */
    double timeout_seconds;            /* for which a rank may be silent while another waits for it */
    int64_t sent_bytes;                /* to other ranks, so far */
    bool lost;                         /* a rank is gone: there is no agreement any more */
    bool settled;                      /* no rank counts on another: all know that the run has ended, or failed */
    char lost_message[QR_ERROR_MESSAGE_BYTES];
    struct qr_exchange_thread *thread;   /* of qr_all_to_all_begin; NULL until its first call */
    const struct qr_device_links *links; /* of this rank's kind of device; NULL: there are none */
    struct qr_backend *devices;          /* lent, whose device is linked to those of all ranks; NULL: it is not */
    uint64_t device_ticket;              /* of the exchange between devices that is under way; 0: none */
    int64_t device_sent_bytes;           /* by it */
    char devices_note[320]; /* by what devices are linked, or why they are not; "": nothing could link them */

    /* Sends sent[r] to each rank r and receives received[r] from it, both [n_ranks]; a rank's own are not looked at.
     * The receiver knows the sizes: others are QRUN_ERROR_INTERNAL. Returns once all have arrived. */
    qrun_status (*exchange)(qr_collectives *collectives, const qr_parcel *sent, const qr_parcel *received,
                            qr_error *err);
    /* While nothing is under way: whether no rank is known to be gone. NULL: that is the launcher's to know. */
    bool (*is_whole)(qr_collectives *collectives);
    /* Sends the other ranks why this one leaves, for qr_collectives_tell. said: this rank's program reports it. Returns
     * whether another rank will; false where each rank has to report its own. */
    bool (*tell)(qr_collectives *collectives, const char *message, bool said);
    void (*destroy)(qr_collectives *collectives);
};

/* Joins the ranks that the environment names: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of torchrun by sockets;
 * those of mpirun and srun by libqrun_mpi.so. *collectives is NULL where there is but one. timeout_seconds 0: 1800. */
qrun_status qr_collectives_open(double timeout_seconds, qr_collectives **collectives, qr_error *err);
/* NULL is fine. Unless all is settled, or a rank lost, the others leave too, and say nothing: this one has. */
void qr_collectives_destroy(qr_collectives *collectives);

/* This rank has failed alone and leaves: the others do too. Returns whether one of them reports it; else this rank has
 * to. Afterwards the collectives are lost. */
bool qr_collectives_tell(qr_collectives *c, const char *message);
/* The same for what has failed within something that ranks do together, from where a rank cannot go on: the others wait
 * for it there. Returns the status, or QRUN_ERROR_RANK where another rank reports it. Nothing is done where nothing has
 * failed, others have, or this rank is alone (NULL). */
qrun_status qr_collectives_leave(qr_collectives *c, qrun_status status, const qr_error *err);
/* All know that the run has ended: nothing more is done together. */
void qr_collectives_settle(qr_collectives *c);

enum { QR_MAX_RANKS = 1024 };

/* Memory of one rank into that of all others. */
qrun_status qr_broadcast(qr_collectives *c, void *memory, size_t n_bytes, int32_t root, qr_error *err);
/* memory [n_ranks][part_bytes]: each rank fills its own part, and has all afterwards. */
qrun_status qr_all_gather(qr_collectives *c, void *memory, size_t part_bytes, qr_error *err);
/* Each rank has something for each other: the bytes of a reduce-scatter, before anything is added. */
qrun_status qr_all_to_all(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err);
/* The same beside what the caller does meanwhile, on a thread of its own: until qr_all_to_all_end, memory that is sent
 * stays as it is, and what is received is not looked at. One at a time: any further call ends it first. */
qrun_status qr_all_to_all_begin(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received, qr_error *err);
qrun_status qr_all_to_all_end(qr_collectives *c, qr_error *err); /* nothing where none has begun */
/* Returns when all ranks have called it. */
qrun_status qr_barrier(qr_collectives *c, qr_error *err);

/* ---- Between devices --------------------------------------------------------------------------------------------- */

/* All ranks call it, with backends that stay while the collectives do. Where the devices of all can be linked, and are
 * different ones, they are (collectives->devices); otherwise devices_note says why not, and it is no error. */
qrun_status qr_collectives_link_devices(qr_collectives *c, struct qr_backend *backend, qr_error *err);
/* Whether what ranks on such a backend send each other goes from device to device. c NULL: in a plan. */
bool qr_collectives_are_linked(const qr_collectives *c, struct qr_backend *backend);
/* As qr_all_to_all_begin, of device memory, ordered with the backend's ops: it begins when those issued before are
 * done. All ranks know when it returns that all have begun. Ops issued after qr_devices_all_to_all_end see what has
 * come. */
qrun_status qr_devices_all_to_all_begin(qr_collectives *c, const qr_parcel *sent, const qr_parcel *received,
                                        qr_error *err);
qrun_status qr_devices_all_to_all_end(qr_collectives *c, qr_error *err); /* nothing where none has begun */

/* All ranks learn how each of them fares. Where a rank failed, all fail: rank 0 with that rank's status and message,
 * the others with QRUN_ERROR_RANK. *err may hold this rank's own error, which goes to the others. */
qrun_status qr_agree(qr_collectives *c, qrun_status own, qr_error *err);

void qr_devices_unlink(qr_collectives *c); /* fine where they are not linked */

/* ---- For transports ---------------------------------------------------------------------------------------------- */

/* Keeps and reports that a rank is lost: QRUN_ERROR_RANK, or QRUN_ERROR_DEVICE on the rank that has to say it. That is
 * rank 0, or rank 1 where 0 itself is lost; nobody, where the lost rank has said it. */
qrun_status qr_collectives_lose(qr_collectives *c, int32_t lost_rank, bool said, const char *message, qr_error *err);

#endif
