/* `kill -9` at moments that nobody chose: a run is killed again and again and started again, until it has come to its
 * end; then another, until there were fifty kills. Adapters have the bytes of the run that was left alone, and
 * metrics.jsonl has every step once. */
#include "crash_run.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/buffer.h"
#include "base/random.h"

enum { N_KILLS = CHECK_SANITIZED ? 10 : 50, KILLS_A_RUN = 12, MAX_RUNS = 60 };

static temporary_folder folder;

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static pid_t start_run(const char *out) {
    char model[128], data[256], errors[128];
    snprintf(model, sizeof model, "%s/model", folder.path);
    snprintf(data, sizeof data, "%s/data.jsonl", folder.path);
    snprintf(errors, sizeof errors, "%s/errors", folder.path);
    const char *const arguments[] = {
        QRUN_PROGRAM,      "finetune", "--model",      model, "--data",       data, "--out",   out,
        "--seq-len",       "64",       "--batch-size", "4",   "--grad-accum", "2",  "--rank",  "4",
        "--learning-rate", "5e-3",     "--max-steps",  "120", "--save-every", "3",  "--keep",  "2",
        "--eval-split",    "0.2",      "--eval-every", "10",  "--threads",    "1",  "--quiet", NULL};
    return crash_start(arguments, NULL, errors);
}

/* Ends the process by SIGKILL after so long, or finds it ended: the exit code, or −9. */
static int end_after(pid_t process, double seconds) {
    const double until = now_seconds() + seconds;
    for (int status; now_seconds() < until;) {
        if (waitpid(process, &status, WNOHANG) == process) {
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
        const struct timespec pause = {0, 500000};
        nanosleep(&pause, NULL);
    }
    kill(process, SIGKILL);
    return crash_wait(process);
}

static void expect_success(int code, const char *what) {
    size_t n;
    char *message = crash_read(folder.path, "errors", &n);
    CHECK_MSG(code == 0, "%s: exit code %d: %s", what, code, message != NULL ? message : "");
    qr_free(message);
}

/* A run to its end, killed on the way at the moments that `drawn` numbers; the number of kills. */
static int run_through(const char *whole, const char *out, double whole_seconds, int *drawn) {
    int n_kills = 0, code = -SIGKILL;
    while (code == -SIGKILL && n_kills < 20 * KILLS_A_RUN) {
        const double seconds = 2 * whole_seconds / KILLS_A_RUN * qr_random_uniform(17, 0, (uint64_t)(*drawn)++);
        code = end_after(start_run(out), seconds);
        n_kills += code == -SIGKILL;
        crash_check_folder(out, -1);
    }
    if (code == -SIGKILL) { code = crash_wait(start_run(out)); }
    expect_success(code, "the run after the kills");
    crash_check_equal(whole, out);
    return n_kills;
}

static void test_killed_at_random_moments(void) {
    char whole[128], out[128];
    int n_kills = 0, n_runs = 0, drawn = 0;
    snprintf(whole, sizeof whole, "%s/whole", folder.path);
    snprintf(out, sizeof out, "%s/out", folder.path);
    const double start = now_seconds();
    expect_success(crash_wait(start_run(whole)), "the run that is left alone");
    const double whole_seconds = now_seconds() - start;
    for (; n_kills < N_KILLS && n_runs < MAX_RUNS && check_state.n_failures_in_case == 0; n_runs++) {
        n_kills += run_through(whole, out, whole_seconds, &drawn);
        temporary_remove_tree(out);
    }
    printf("  %d kills over %d runs of %.2f s each\n", n_kills, n_runs, whole_seconds);
    CHECK(n_kills >= N_KILLS);
}

static void write_data(void) {
    qr_buffer text = {0};
    for (int i = 0; i < 80; i++) {
        qr_buffer_append_format(&text, "{\"prompt\": \"Question %d is \", ", i);
        qr_buffer_append_format(&text, "\"completion\": \"answer %d of %d, at length\"}\n", i * 7 % 80, i * 5 % 80);
    }
    CHECK(qr_buffer_ok(&text));
    temporary_write(&folder, "data.jsonl", text.data, text.size);
    qr_buffer_free(&text);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = crash_folder();
    crash_make_model(&folder);
    write_data();
    CHECK_RUN(test_killed_at_random_moments);
    temporary_remove(&folder);
    return check_end();
}
