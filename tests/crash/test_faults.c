/* `qrun finetune` is killed before every call that changes a file, and in the middle of every write; and every such
 * call fails, because the disk is full or broken, or an allocation after it does. After each, what has its final name
 * is whole, the last checkpoint is there, a failure is told in one line, and the same command again ends with the bytes
 * of the run that nothing happened to. */
#include "crash_run.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { MAX_CALLS = 2000, MAX_ARGUMENTS = 40, N_WORKERS = 2 };

typedef struct call {
    char name[16], path[512];
} call;

typedef struct scenario {
    const char *name;
    const char *over[4]; /* options of a run that has finished in the folder before; none: the folder is new */
    const char *with[4]; /* options of the run that is disturbed */
    bool is_short;       /* of the four kinds, kills and broken disks only */
} scenario;

static temporary_folder folder;

static const scenario scenarios[] = {
    {.name = "new", .with = {"--alpha", "4"}},
    {.name = "restart", .over = {"--alpha", "32"}, .with = {"--restart", "--alpha", "4"}, .is_short = true},
};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ---- One run ----------------------------------------------------------------------------------------------------- */

typedef struct place {
    char out[128], trace[128], errors[128];
} place;

static place make_place(const char *name) {
    place p;
    snprintf(p.out, sizeof p.out, "%s/%s", folder.path, name);
    snprintf(p.trace, sizeof p.trace, "%s/%s.trace", folder.path, name);
    snprintf(p.errors, sizeof p.errors, "%s/%s.errors", folder.path, name);
    return p;
}

static crash_result finetune(const place *p, const char *const *options, const char *const *variables) {
    char model[128], data[128];
    snprintf(model, sizeof model, "%s/model", folder.path);
    snprintf(data, sizeof data, "%s/data.jsonl", folder.path);
    const char *const common[] = {
        QRUN_PROGRAM,      "finetune", "--model",      model, "--data",           data,     "--out",       p->out,
        "--seq-len",       "24",       "--rank",       "2",   "--target-modules", "q_proj", "--optimizer", "adamw8bit",
        "--learning-rate", "1e-2",     "--max-steps",  "5",   "--save-every",     "2",      "--keep",      "1",
        "--eval-split",    "0.2",      "--eval-every", "3",   "--threads",        "1",      "--quiet"};
    const char *arguments[MAX_ARGUMENTS] = {NULL};
    size_t n = 0;
    for (; n < sizeof common / sizeof *common; n++) { arguments[n] = common[n]; }
    for (int i = 0; i < 4 && options[i] != NULL; i++) { arguments[n++] = options[i]; }
    return crash_run(arguments, variables, p->errors);
}

/* With the n-th call (0: none) going wrong; the trace begins anew. */
static crash_result finetune_with_fault(const place *p, const scenario *s, int n, const char *kind) {
    char at[48], skip[48], what[48], trace[192], preload[1100];
    snprintf(at, sizeof at, "QRUN_FAULT_AT=%d", n);
    snprintf(skip, sizeof skip, "QRUN_FAULT_SKIP=%d", n * 7 % 23);
    snprintf(what, sizeof what, "QRUN_FAULT=%s", kind);
    snprintf(trace, sizeof trace, "QRUN_FAULT_TRACE=%s", p->trace);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", FAULT_LIBRARY);
    remove(p->trace);
    const char *const variables[] = {
        at, skip, what, trace, preload, "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0:exitcode=99", NULL};
    return finetune(p, s->with, variables);
}

static void begin(const place *p, const scenario *s) {
    temporary_remove_tree(p->out);
    if (s->over[0] != NULL) { CHECK_INT(finetune(p, s->over, NULL).exit_code, 0); }
}

/* ---- What was called --------------------------------------------------------------------------------------------- */

static int read_trace(const place *p, call *calls) {
    FILE *file = fopen(p->trace, "r");
    char line[5000];
    int n = 0, number;
    while (file != NULL && n < MAX_CALLS && fgets(line, sizeof line, file) != NULL) {
        call *c = &calls[n];
        if (sscanf(line, "%d %15s %511s", &number, c->name, c->path) == 3 && number == n + 1) { n++; }
    }
    if (file != NULL) { fclose(file); }
    return n;
}

/* The last checkpoint that had its name before the n-th call; −1: none. */
static int64_t checkpoint_before(const place *p, const call *calls, int n) {
    char prefix[160];
    int64_t last = -1;
    snprintf(prefix, sizeof prefix, "%s/checkpoint-", p->out);
    for (int i = 0; i < n - 1; i++) {
        char *end;
        if (strcmp(calls[i].name, "rename") != 0 || strncmp(calls[i].path, prefix, strlen(prefix)) != 0) { continue; }
        const long long step = strtoll(calls[i].path + strlen(prefix), &end, 10);
        if (*end == '\0' && step > last) { last = step; }
    }
    return last;
}

static bool is_called(const call *calls, int n, const char *name, const char *path_end) {
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(calls[i].path), n_end = strlen(path_end);
        if (strcmp(calls[i].name, name) == 0 && length >= n_end &&
            strcmp(calls[i].path + length - n_end, path_end) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- One fault --------------------------------------------------------------------------------------------------- */

static const char *const kinds[] = {"kill", "torn", "enospc", "eio", "nomem"};
enum { KILL, TORN, ENOSPC_, EIO_, NOMEM, N_KINDS };

static bool applies(const scenario *s, int kind, const call *c) {
    if (s->is_short && kind != KILL && kind != EIO_) { return false; }
    if (kind == NOMEM) { return !CHECK_SANITIZED; } /* a sanitizer's allocator is not replaced */
    if (kind == TORN) { return strcmp(c->name, "write") == 0; }
    if (kind == ENOSPC_) { return strstr("create write mkdir rename fsync", c->name) != NULL; }
    return true;
}

static void expect_told(const crash_result *result, int kind) {
    const char *end = strchr(result->message, '\n');
    CHECK_INT(result->exit_code, 3);
    CHECK_MSG(end != NULL && end[1] == '\0' && strncmp(result->message, "qrun: ", 6) == 0, "not one line: %s",
              result->message);
    CHECK_MSG(strstr(result->message, kind == EIO_ ? "Input/output error" : "No space left") != NULL, "%s",
              result->message);
}

static int n_planned;

/* The run goes on, maybe with a new plan, or says in a line that it does not. */
static void expect_planned(const crash_result *result) {
    const char *end = strchr(result->message, '\n');
    const bool is_line = end != NULL && end[1] == '\0' && strncmp(result->message, "qrun: ", 6) == 0;
    const bool is_planned = strstr(result->message, "planned anew") != NULL;
    n_planned += is_planned;
    CHECK_MSG(is_line || (result->exit_code == 0 && result->message[0] == '\0'), "not one line: %s", result->message);
    CHECK_MSG(result->exit_code == 0 ? is_planned || result->message[0] == '\0' : result->exit_code == 6 || is_line,
              "exit code %d: %s", result->exit_code, result->message);
}

/* An adapter in the folder is one run's or the other's: never the tensors of one under the configuration of another. */
static void expect_no_mixture(const place *p, const char *const *finished, int n_finished) {
    size_t n, m, n_own, m_own;
    char *config = crash_read(p->out, "adapter_config.json", &n_own);
    char *tensors = crash_read(p->out, "adapter_model.safetensors", &m_own);
    bool known = config == NULL;
    for (int i = 0; i < n_finished && !known; i++) {
        char *a = crash_read(finished[i], "adapter_config.json", &n);
        char *b = crash_read(finished[i], "adapter_model.safetensors", &m);
        known = tensors != NULL && n == n_own && m == m_own && memcmp(a, config, n) == 0 && memcmp(b, tensors, m) == 0;
        qr_free(a);
        qr_free(b);
    }
    CHECK_MSG(known, "the adapter is a mixture of two");
    qr_free(config);
    qr_free(tensors);
}

static void disturb(const place *p, const scenario *s, const char *const finished[2], int n, int kind) {
    static call calls[MAX_CALLS];
    begin(p, s);
    const crash_result result = finetune_with_fault(p, s, n, kinds[kind]);
    const int n_calls = read_trace(p, calls);
    CHECK_MSG(n_calls >= n, "only %d calls", n_calls);
    if (kind == KILL || kind == TORN) {
        CHECK_INT(result.exit_code, -SIGKILL);
    } else if (kind == NOMEM) {
        expect_planned(&result);
    } else {
        expect_told(&result, kind);
    }
    crash_check_folder(p->out, checkpoint_before(p, calls, n));
    expect_no_mixture(p, finished, s->over[0] != NULL ? 2 : 1);
    const crash_result again = finetune(p, s->with, NULL);
    CHECK_MSG(again.exit_code == 0 && again.message[0] == '\0', "the next run: %d: %s", again.exit_code, again.message);
    if (kind == NOMEM) { /* a checkpoint more may be there, saved where an evaluation was due */
        crash_check_result(finished[0], p->out);
    } else {
        crash_check_equal(finished[0], p->out);
    }
    if (check_state.n_failures_in_case > 0) {
        printf("  after %s at call %d of scenario %s: %s %s\n", kinds[kind], n, s->name, calls[n - 1].name,
               calls[n - 1].path);
    }
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static int n_faults(int worker, const scenario *s, const char *const finished[2], const call *calls, int n_calls) {
    char name[32];
    snprintf(name, sizeof name, "worker%d", worker);
    const place p = make_place(name);
    const int stride = CHECK_SANITIZED ? 7 : check_thins() ? 3 : 1; /* of the calls that a fault may hit */
    int n = 0, n_done = 0;
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int i = 1; i <= n_calls && check_state.n_failures_in_case == 0; i++) {
            if (!applies(s, kind, &calls[i - 1]) || n++ % (N_WORKERS * stride) != worker) { continue; }
            disturb(&p, s, finished, i, kind);
            n_done++;
        }
    }
    return n_done;
}

static void run_scenario(const scenario *s) {
    static call calls[MAX_CALLS];
    const place whole = make_place("whole"), before = make_place("before");
    const char *const finished[2] = {whole.out, before.out};
    begin(&before, &(scenario){.over = {"--alpha", "32"}});
    begin(&whole, s);
    const crash_result result = finetune_with_fault(&whole, s, 0, "none");
    REQUIRE(result.exit_code == 0);
    const int n_calls = read_trace(&whole, calls);
    CHECK(n_calls > 50 && n_calls < MAX_CALLS);
    CHECK(is_called(calls, n_calls, "rename", "/checkpoint-2") && is_called(calls, n_calls, "fsync", "metrics.jsonl"));
    CHECK(is_called(calls, n_calls, "write", "metrics.jsonl"));
    CHECK(is_called(calls, n_calls, "ftruncate", "metrics.jsonl"));
    CHECK(is_called(calls, n_calls, "rename", "/adapter_config.json"));
    CHECK(s->over[0] != NULL || is_called(calls, n_calls, "rename", ".qrdata"));
    crash_check_folder(whole.out, 5);
    pid_t workers[N_WORKERS];
    const double start = (double)time(NULL);
    for (int w = 0; w < N_WORKERS; w++) {
        fflush(stdout);
        workers[w] = fork();
        if (workers[w] == 0) {
            const int n_done = n_faults(w, s, finished, calls, n_calls);
            printf("  %s: worker %d: %d of the faults at %d calls\n", s->name, w, n_done, n_calls);
            fflush(stdout);
            const bool planned = CHECK_SANITIZED || s->is_short || n_planned > 0;
            _exit(n_done > 0 && planned && check_state.n_failures_in_case == 0 ? 0 : 1);
        }
    }
    for (int w = 0; w < N_WORKERS; w++) { CHECK_INT(crash_wait(workers[w]), 0); }
    printf("  %s: %.0f s\n", s->name, (double)time(NULL) - start);
}

static void test_every_call_of_a_new_run(void) { run_scenario(&scenarios[0]); }
static void test_every_call_of_a_run_over_another(void) { run_scenario(&scenarios[1]); }

static void write_data(void) {
    char text[2048] = "";
    for (int i = 0; i < 12; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "{\"prompt\": \"Question %d is \", \"completion\": \"answer %d of %d\"}\n",
                 i, i * 7 % 12, i * 5 % 12);
    }
    temporary_text(&folder, "data.jsonl", text);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    check_state.case_name = "main";
    folder = crash_folder();
    crash_make_model(&folder);
    write_data();
    CHECK_RUN(test_every_call_of_a_new_run);
    CHECK_RUN(test_every_call_of_a_run_over_another);
    temporary_remove(&folder);
    return check_end();
}
