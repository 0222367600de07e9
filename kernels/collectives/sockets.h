/* The connections of the socket transport: how they are made (join.c), and what runs over them (sockets.c). */
#ifndef QR_KERNELS_COLLECTIVES_SOCKETS_H
#define QR_KERNELS_COLLECTIVES_SOCKETS_H

#include "kernels/collectives/transport.h"

/* A transport over connections, −1 for the own one. It closes them, also where it cannot be made. */
qrun_status qr_sockets_create(const qr_launch *launch, double timeout_seconds, const int *descriptors,
                              qr_collectives **collectives, qr_error *err);

/* Connects every rank with every other: descriptors [n_ranks], −1 for the own one, the caller's to close also after an
 * error. Strangers who connect are turned away. */
qrun_status qr_sockets_join(const qr_launch *launch, double timeout_seconds, int *descriptors, qr_error *err);

/* Reads the first bytes that someone sent who has connected, and answers. *rank: who it is, and *port, in network
 * order: where it listens; −1: a stranger. An error where it is of this job and does not fit it. */
qrun_status qr_sockets_greet(const qr_launch *launch, const int *descriptors, int listener, int connection,
                             int32_t *rank, uint16_t *port, qr_error *err);

#endif
