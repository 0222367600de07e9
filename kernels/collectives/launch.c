#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "kernels/collectives/transport.h"

static const double DEFAULT_TIMEOUT_SECONDS = 1800;                        /* as torch.distributed */
enum { MAX_PORT = 65535, FIRST_SLURM_PORT = 20000, N_SLURM_PORTS = 9000 }; /* below those of connections */

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

/* An absent text changes nothing. */
static uint64_t hash_text(uint64_t hash, const char *text) {
    return text != NULL ? qr_hash_words(hash, text, strlen(text)) : hash;
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
    launch->job = hash_text(QR_HASH_START, run); /* its count of restarts is each machine's own */
    return QRUN_OK;
}

/* MPI itself knows the ranks; this one's is for messages before that, and how many for whether MPI knows of the same.
 */
static void read_mpi(qr_launch *launch) {
    static const char *const counts[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const char *n = getenv(counts[i]), *rank = getenv(ranks[i]);
        if (n == NULL || rank == NULL || strtol(n, NULL, 10) <= 1) { continue; }
        launch->launcher = QR_LAUNCHER_MPI;
        launch->n_ranks = (int32_t)strtol(n, NULL, 10);
        launch->rank = (int32_t)strtol(rank, NULL, 10);
        return;
    }
}

/* ---- Slurm ------------------------------------------------------------------------------------------------------- */

bool qr_launch_first_host(const char *list, char *host, size_t n_bytes) {
    const size_t n_name = strcspn(list, "[,");
    const size_t n_number = list[n_name] == '[' ? strcspn(list + n_name + 1, "-,]") : 0;
    const char *end = list[n_name] == '[' ? strchr(list + n_name, ']') : NULL;
    const size_t n_end = end != NULL ? strcspn(end + 1, "[,") : 0;
    if ((list[n_name] == '[' && end == NULL) || n_name + n_number + n_end == 0) { return false; }
    if (n_name + n_number + n_end >= n_bytes) { return false; }
    memcpy(host, list, n_name);
    memcpy(host + n_name, list + n_name + 1, n_number);
    if (end != NULL) { memcpy(host + n_name + n_number, end + 1, n_end); }
    host[n_name + n_number + n_end] = '\0';
    return true;
}

/* A step of srun, where no MPI is asked for: Slurm's own variables are enough. A batch script has variables too, but is
 * one process: those of a step are read. The port follows from the job and the step, so that two of a machine do not
 * meet. */
static qrun_status read_slurm(qr_launch *launch, qr_error *err) {
    const char *hosts = getenv("SLURM_STEP_NODELIST"), *address = getenv("MASTER_ADDR");
    const int32_t n = launch->n_ranks;
    launch->launcher = QR_LAUNCHER_SLURM;
    launch->job = hash_text(hash_text(QR_HASH_START, getenv("SLURM_JOB_ID")), getenv("SLURM_STEP_ID"));
    launch->job = hash_text(launch->job, getenv("SLURM_RESTART_COUNT"));
    const int32_t own_port = FIRST_SLURM_PORT + (int32_t)(qr_hash_mix(launch->job) % N_SLURM_PORTS);
    QR_RETURN_IF_ERROR(read_number("SLURM_PROCID", 0, n - 1, -1, &launch->rank, err));
    QR_RETURN_IF_ERROR(read_number("SLURM_LOCALID", 0, n - 1, 0, &launch->local_rank, err));
    QR_RETURN_IF_ERROR(read_number("MASTER_PORT", 1, MAX_PORT, own_port, &launch->port, err));
    launch->address = address != NULL ? address : launch->first_host;
    const bool has_host = address != NULL ||
                          (hosts != NULL && qr_launch_first_host(hosts, launch->first_host, sizeof launch->first_host));
    if (launch->rank >= 0 && has_host) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "SLURM_STEP_NUM_TASKS=%d in the environment needs SLURM_PROCID and SLURM_STEP_NODELIST beside it, as "
        "srun sets them",
        (int)n);
}

/* Whether the step was started for MPI, by PMIx or PMI-2. */
static bool has_pmi(void) {
    return getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL;
}

qrun_status qr_launch_read(qr_launch *launch, qr_error *err) {
    *launch = (qr_launch){.n_ranks = 1, .n_local_ranks = 1};
    QR_RETURN_IF_ERROR(read_number("WORLD_SIZE", 1, QR_MAX_RANKS, 1, &launch->n_ranks, err));
    if (launch->n_ranks > 1) {
        launch->launcher = QR_LAUNCHER_TORCHRUN;
        return read_torchrun(launch, err);
    }
    if (!has_pmi()) {
        QR_RETURN_IF_ERROR(read_number("SLURM_STEP_NUM_TASKS", 1, QR_MAX_RANKS, 1, &launch->n_ranks, err));
        if (launch->n_ranks > 1) { return read_slurm(launch, err); }
    }
    read_mpi(launch);
    return QRUN_OK;
}

/* A library of MPI that the launcher does not know makes each process a run of its own. */
static qrun_status check_mpi(const qr_launch *launch, qr_collectives **collectives, qr_error *err) {
    const int32_t n_ranks = (*collectives)->n_ranks;
    if (n_ranks == launch->n_ranks) { return QRUN_OK; }
    qr_collectives_destroy(*collectives);
    *collectives = NULL;
    if (launch->rank > 0) { return QRUN_ERROR_RANK; }
    return qr_fail(
        err, QRUN_ERROR_UNSUPPORTED,
        "mpi: the launcher started %d processes, and MPI knows of %d; launch with the mpirun of this MPI, or "
        "let srun start them without any MPI",
        (int)launch->n_ranks, (int)n_ranks);
}

qrun_status qr_collectives_open(double timeout_seconds, qr_collectives **collectives, qr_error *err) {
    const double timeout = timeout_seconds > 0 ? timeout_seconds : DEFAULT_TIMEOUT_SECONDS;
    qr_launch launch;
    *collectives = NULL;
    QR_RETURN_IF_ERROR(qr_launch_read(&launch, err));
    if (launch.launcher == QR_LAUNCHER_TORCHRUN || launch.launcher == QR_LAUNCHER_SLURM) {
        return qr_sockets_open(&launch, timeout, collectives, err);
    }
    if (launch.launcher != QR_LAUNCHER_MPI) { return QRUN_OK; }
    const qrun_status status = qr_mpi_open(timeout, collectives, err);
    if (status == QRUN_OK) { return check_mpi(&launch, collectives, err); }
    const bool all_alike = status == QRUN_ERROR_UNSUPPORTED && launch.rank > 0;
    return all_alike ? QRUN_ERROR_RANK : status; /* what is missing is missing everywhere, and said once */
}
