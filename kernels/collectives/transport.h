/* How the ranks were launched, and the transports that join them. */
#ifndef QR_KERNELS_COLLECTIVES_TRANSPORT_H
#define QR_KERNELS_COLLECTIVES_TRANSPORT_H

#include "kernels/collectives.h"

typedef enum qr_launcher {
    QR_LAUNCHER_NONE, /* one process alone */
    QR_LAUNCHER_TORCHRUN,
    QR_LAUNCHER_SLURM, /* srun alone: sockets */
    QR_LAUNCHER_MPI    /* mpirun, mpiexec or srun: the MPI library knows the ranks */
} qr_launcher;

/* What the environment says. */
typedef struct qr_launch {
    qr_launcher launcher;
    int32_t rank; /* also of MPI */
    int32_t n_ranks, local_rank, n_local_ranks;
    const char *address; /* of rank 0; lent by the environment, or first_host */
    int32_t port;
    uint64_t job; /* so that ranks of two runs, or of two starts of one, do not mix */
    char first_host[256];
} qr_launch;

/* The first host of a list of Slurm's: "node[03-06,9]-gpu,other" gives "node03-gpu". false: there is none, or no room.
 */
bool qr_launch_first_host(const char *list, char *host, size_t n_bytes);

/* QRUN_ERROR_ARGUMENT where the variables contradict each other. */
qrun_status qr_launch_read(qr_launch *launch, qr_error *err);

/* A connection between each two ranks, made through rank 0's address. */
qrun_status qr_sockets_open(const qr_launch *launch, double timeout_seconds, qr_collectives **collectives,
                            qr_error *err);
/* Of libqrun_mpi.so, opened here. QRUN_ERROR_UNSUPPORTED, with the reason, where it is missing. */
qrun_status qr_mpi_open(double timeout_seconds, qr_collectives **collectives, qr_error *err);

#endif
