/* What libqrun_mpi.so and the library that opens it agree on. Both are built from one tree. */
#ifndef QR_KERNELS_COLLECTIVES_MPI_PLUGIN_H
#define QR_KERNELS_COLLECTIVES_MPI_PLUGIN_H

#include "kernels/collectives.h"

/* The one symbol that libqrun_mpi.so exports: const qr_mpi_plugin *qr_mpi_plugin_get(void). */
#define QR_MPI_PLUGIN_SYMBOL "qr_mpi_plugin_get"
#define QR_MPI_PLUGIN_FILE "libqrun_mpi.so"

typedef struct qr_mpi_plugin {
    uint64_t collectives_bytes; /* sizeof(qr_collectives) */
    const char *build;          /* QR_MPI_PLUGIN_BUILD */
    qrun_status (*create)(double timeout_seconds, qr_collectives **collectives, qr_error *err);
} qr_mpi_plugin;

typedef const qr_mpi_plugin *(*qr_mpi_plugin_get_fn)(void);

#define QR_MPI_TEXT(x) #x
#define QR_MPI_VERSION(major, minor, patch) QR_MPI_TEXT(major) "." QR_MPI_TEXT(minor) "." QR_MPI_TEXT(patch)
#define QR_MPI_PLUGIN_BUILD QR_MPI_VERSION(QRUN_VERSION_MAJOR, QRUN_VERSION_MINOR, QRUN_VERSION_PATCH)

#endif
