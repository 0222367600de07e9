/* The connections of the socket transport: how they are made (join.c), and what runs over them (sockets.c). */
#ifndef QR_KERNELS_COLLECTIVES_SOCKETS_H
#define QR_KERNELS_COLLECTIVES_SOCKETS_H

#include "kernels/collectives/transport.h"

/* Connects every rank with every other: descriptors [n_ranks], −1 for the own one, the caller's to close also after an
 * error. Strangers who connect are turned away. */
qrun_status qr_sockets_join(const qr_launch *launch, double timeout_seconds, int *descriptors, qr_error *err);

#endif
