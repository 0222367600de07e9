/* Opens libqrun_mpi.so, so that an MPI library is needed only by those who launch with one. */
#include <string.h>

#include "kernels/collectives/mpi_plugin.h"
#include "kernels/collectives/transport.h"
#include "kernels/plugin_open.h"

static const qr_plugin_file LIBRARY = {
    .name = "mpi",
    .file = QR_MPI_PLUGIN_FILE,
    .variable = "QRUN_MPI_LIBRARY",
    .absent =
        "this build of qrun has no MPI, or it is in another folder; without it, set RANK, WORLD_SIZE, MASTER_ADDR "
        "and MASTER_PORT, as torchrun does",
    .symbol = QR_MPI_PLUGIN_SYMBOL,
};

qrun_status qr_mpi_open(double timeout_seconds, qr_collectives **collectives, qr_error *err) {
    qr_plugin_function function;
    *collectives = NULL;
    QR_RETURN_IF_ERROR(qr_plugin_open(&LIBRARY, &function, err));
    const qr_mpi_plugin *plugin = ((qr_mpi_plugin_get_fn)function)();
    if (plugin->collectives_bytes != sizeof(qr_collectives) || strcmp(plugin->build, QR_MPI_PLUGIN_BUILD) != 0) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "mpi: " QR_MPI_PLUGIN_FILE
                       " belongs to another build of qrun; install both from the same build");
    }
    return plugin->create(timeout_seconds, collectives, err);
}
