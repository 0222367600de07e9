/* Ranks of a test as processes of their own, which find each other by torchrun's variables. */
#ifndef QR_TESTS_RANK_PROCESSES_H
#define QR_TESTS_RANK_PROCESSES_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "qrun.h"

enum { RANK_PROCESSES_MAX = 8 };

/* What one rank does, in its process: `result` is zeros before. */
typedef qrun_status (*rank_fn)(const void *arg, int32_t rank, void *result, qrun_error *error);

static void rank_set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    (void)setenv(name, text, 1);
}

static pid_t rank_start(rank_fn run, const void *arg, int32_t n_ranks, int32_t rank, int port, size_t n_bytes, int to) {
    fflush(stdout);
    const pid_t child = fork();
    if (child != 0) { return child; }
    qrun_error error = QRUN_ERROR_INIT;
    void *result = calloc(1, n_bytes);
    rank_set_number("RANK", rank), rank_set_number("WORLD_SIZE", n_ranks), rank_set_number("LOCAL_RANK", rank);
    rank_set_number("MASTER_PORT", port);
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (run(arg, rank, result, &error) != QRUN_OK) { printf("  rank %d: %s\n", (int)rank, error.message); }
    fflush(stdout);
    _exit(write(to, result, n_bytes) == (ssize_t)n_bytes ? 0 : 1);
}

/* results [n_ranks][n_bytes]; zeros of a rank that has died. */
static void rank_processes_run(rank_fn run, const void *arg, int32_t n_ranks, void *results, size_t n_bytes) {
    static int n_runs;
    const int port = 10000 + (int)(getpid() % 190) * 100 + n_runs++; /* as in tests/cli/ranks.sh */
    int ends[RANK_PROCESSES_MAX][2];
    pid_t children[RANK_PROCESSES_MAX];
    for (int32_t r = 0; r < n_ranks; r++) {
        REQUIRE(pipe(ends[r]) == 0);
        children[r] = rank_start(run, arg, n_ranks, r, port, n_bytes, ends[r][1]);
        close(ends[r][1]);
    }
    for (int32_t r = 0; r < n_ranks; r++) {
        char *result = (char *)results + (size_t)r * n_bytes;
        if (read(ends[r][0], result, n_bytes) != (ssize_t)n_bytes) { memset(result, 0, n_bytes); }
        close(ends[r][0]);
        (void)waitpid(children[r], NULL, 0);
    }
}

#endif
