#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kernels/collectives/transport.h"

static const double DEFAULT_TIMEOUT_SECONDS = 1800; /* as torch.distributed */
enum { MAX_PORT = 65535 };

/* A number of the environment; `fallback` where it is not set. */
static qrun_status read_number(const char *name, int64_t low, int64_t high, int32_t fallback, int32_t *value,
                               qr_error *err) {
    const char *text = getenv(name);
    char *end;
    *value = fallback;
    if (text == NULL) { return QRUN_OK; }
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < low || number > high) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "%s=%.40s in the environment is not a number from %" PRId64 " to %" PRId64, name, text, low,
                       high);
    }
    *value = (int32_t)number;
    return QRUN_OK;
}

static qrun_status read_torchrun(qr_launch *launch, qr_error *err) {
    const char *agent_store = getenv("TORCHELASTIC_USE_AGENT_STORE"), *run = getenv("TORCHELASTIC_RUN_ID");
    int32_t n = launch->n_ranks;
    launch->address = getenv("MASTER_ADDR");
    QR_RETURN_IF_ERROR(read_number("RANK", 0, n - 1, -1, &launch->rank, err));
    QR_RETURN_IF_ERROR(read_number("MASTER_PORT", 1, MAX_PORT, 0, &launch->port, err));
    QR_RETURN_IF_ERROR(read_number("LOCAL_RANK", 0, n - 1, 0, &launch->local_rank, err));
    QR_RETURN_IF_ERROR(read_number("LOCAL_WORLD_SIZE", 1, n, 1, &launch->n_local_ranks, err));
    if (launch->rank < 0 || launch->address == NULL || launch->port == 0) {
        return qr_fail(
            err, QRUN_ERROR_ARGUMENT,
            "WORLD_SIZE=%d in the environment needs RANK, MASTER_ADDR and MASTER_PORT beside it, as torchrun "
            "sets them",
            (int)n);
    }
    /* torchrun itself listens on the port, so rank 0 takes the next one. */
    if (agent_store != NULL && strcmp(agent_store, "True") == 0 && launch->port < MAX_PORT) { launch->port++; }
    launch->job = run != NULL ? qr_hash_words(QR_HASH_START, run, strlen(run)) : QR_HASH_START;
    return QRUN_OK;
}

/* Of a step of Slurm: a batch script has variables too, but is one process. MPI itself knows the ranks; this one's is
 * for messages before that. */
static void read_mpi(qr_launch *launch) {
    static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const char *n = getenv(counts[i]), *rank = getenv(ranks[i]);
        if (n == NULL || rank == NULL || strtol(n, NULL, 10) <= 1) { continue; }
        launch->launcher = QR_LAUNCHER_MPI;
        launch->rank = (int32_t)strtol(rank, NULL, 10);
        return;
    }
}

qrun_status qr_launch_read(qr_launch *launch, qr_error *err) {
    *launch = (qr_launch){.n_ranks = 1, .n_local_ranks = 1};
    QR_RETURN_IF_ERROR(read_number("WORLD_SIZE", 1, QR_MAX_RANKS, 1, &launch->n_ranks, err));
    if (launch->n_ranks > 1) {
        launch->launcher = QR_LAUNCHER_TORCHRUN;
        return read_torchrun(launch, err);
    }
    read_mpi(launch);
    return QRUN_OK;
}

qrun_status qr_collectives_open(double timeout_seconds, qr_collectives **collectives, qr_error *err) {
    const double timeout = timeout_seconds > 0 ? timeout_seconds : DEFAULT_TIMEOUT_SECONDS;
    qr_launch launch;
    *collectives = NULL;
    QR_RETURN_IF_ERROR(qr_launch_read(&launch, err));
    if (launch.launcher == QR_LAUNCHER_TORCHRUN) { return qr_sockets_open(&launch, timeout, collectives, err); }
    if (launch.launcher != QR_LAUNCHER_MPI) { return QRUN_OK; }
    const qrun_status status = qr_mpi_open(timeout, collectives, err);
    const bool all_alike = status == QRUN_ERROR_UNSUPPORTED && launch.rank > 0;
    return all_alike ? QRUN_ERROR_RANK : status; /* what is missing is missing everywhere, and said once */
}
