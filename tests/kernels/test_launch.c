/* How the ranks of a run are found in the environment. */
#include "check.h"

#include "kernels/collectives/transport.h"

static void clear(void) {
    static const char *const names[] = {"WORLD_SIZE",
                                        "RANK",
                                        "LOCAL_RANK",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "SLURM_PROCID",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_NTASKS",
                                        "SLURM_RESTART_COUNT",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMIX_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) { (void)unsetenv(names[i]); }
}

static void set(const char *name, const char *value) { (void)setenv(name, value, 1); }

static void test_first_host_of_slurms_lists(void) {
    static const char *const cases[][2] = {
        {"node7", "node7"},   {"node7,node9", "node7"},       {"node[03-06,9]", "node03"},
        {"node[5]", "node5"}, {"node[1,4-7],other", "node1"}, {"rack2-[010-019]-gpu,rack3", "rack2-010-gpu"},
    };
    char host[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_MSG(qr_launch_first_host(cases[i][0], host, sizeof host), "%s has a host", cases[i][0]);
        CHECK_STR(host, cases[i][1]);
    }
    CHECK(!qr_launch_first_host("", host, sizeof host));
    CHECK(!qr_launch_first_host("node[1-3", host, sizeof host));
    CHECK(!qr_launch_first_host("node[12-13]", host, 6));
    CHECK(qr_launch_first_host("node[12-13]", host, 7));
}

/* As srun sets them for the third of four tasks on two nodes. */
static void test_srun(void) {
    qr_launch launch, other;
    qr_error err = {0};
    clear();
    set("SLURM_JOB_ID", "4711"), set("SLURM_STEP_ID", "0"), set("SLURM_NTASKS", "4");
    CHECK_INT(qr_launch_read(&launch, &err), QRUN_OK); /* a batch script */
    CHECK_INT(launch.launcher, QR_LAUNCHER_NONE);
    set("SLURM_STEP_NUM_TASKS", "4"), set("SLURM_PROCID", "2"), set("SLURM_LOCALID", "0");
    set("SLURM_STEP_NODELIST", "gpu[08-09]");
    CHECK_INT(qr_launch_read(&launch, &err), QRUN_OK);
    CHECK_INT(launch.launcher, QR_LAUNCHER_SLURM);
    CHECK_INT(launch.rank, 2);
    CHECK_INT(launch.n_ranks, 4);
    CHECK_INT(launch.local_rank, 0);
    CHECK_STR(launch.address, "gpu08");
    CHECK(launch.port >= 20000 && launch.port < 29000);
    set("SLURM_STEP_ID", "1");
    CHECK_INT(qr_launch_read(&other, &err), QRUN_OK);
    CHECK(other.job != launch.job && other.port != launch.port);
    set("MASTER_ADDR", "10.0.0.1"), set("MASTER_PORT", "1234");
    CHECK_INT(qr_launch_read(&other, &err), QRUN_OK);
    CHECK_STR(other.address, "10.0.0.1");
    CHECK_INT(other.port, 1234);
    set("PMIX_RANK", "2"); /* srun --mpi=pmix */
    CHECK_INT(qr_launch_read(&other, &err), QRUN_OK);
    CHECK_INT(other.launcher, QR_LAUNCHER_MPI);
    CHECK_INT(other.n_ranks, 4);
    clear();
    set("SLURM_STEP_NUM_TASKS", "4"), set("SLURM_PROCID", "4"), set("SLURM_STEP_NODELIST", "gpu08");
    CHECK_INT(qr_launch_read(&launch, &err), QRUN_ERROR_ARGUMENT);
    CHECK_STR(err.message, "SLURM_PROCID=4 in the environment is not a number from 0 to 3");
    err = (qr_error){0};
    set("SLURM_PROCID", "0"), set("SLURM_STEP_NODELIST", "gpu[");
    CHECK_INT(qr_launch_read(&launch, &err), QRUN_ERROR_ARGUMENT);
    CHECK(strstr(err.message, "SLURM_STEP_NODELIST") != NULL);
    clear();
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_first_host_of_slurms_lists);
    CHECK_RUN(test_srun);
    return check_end();
}
