#include "crash_run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

#include "loaders/adapter/adapter.h"
#include "loaders/data/cache.h"
#include "loaders/files/checkpoint.h"

extern char **environ;

/* ---- The model --------------------------------------------------------------------------------------------------- */

temporary_folder crash_folder(void) {
    temporary_folder folder = {"/dev/shm/qrun_test_XXXXXX"};
    return access("/dev/shm", W_OK) == 0 && mkdtemp(folder.path) != NULL ? folder : temporary_create();
}

static void copy_fixture(const temporary_folder *folder, const char *from, const char *to) {
    char path[1024];
    char *bytes = NULL;
    size_t n_bytes = 0;
    qr_error err = {0};
    snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", from);
    CHECK_MSG(qr_file_read(path, SIZE_MAX, &bytes, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    temporary_write(folder, to, bytes, n_bytes);
    qr_free(bytes);
}

void crash_make_model(const temporary_folder *folder) {
    CHECK(mkdir(temporary_path(folder, "model"), 0777) == 0);
    copy_fixture(folder, "models/llama/config.json", "model/config.json");
    copy_fixture(folder, "models/llama/model.safetensors", "model/model.safetensors");
    copy_fixture(folder, "tokenizers/llama2/tokenizer.json", "model/tokenizer.json");
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

enum { MAX_VARIABLES = 512 };

pid_t crash_start(const char *const *arguments, const char *const *variables, const char *stderr_path) {
    const char *all[MAX_VARIABLES];
    size_t n = 0;
    for (; variables != NULL && variables[n] != NULL; n++) { all[n] = variables[n]; }
    for (size_t i = 0; environ[i] != NULL && n < MAX_VARIABLES - 1; i++) { all[n++] = environ[i]; }
    all[n] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, stderr_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    pid_t process = -1;
    const int code = posix_spawn(&process, arguments[0], &actions, NULL, (char *const *)(uintptr_t)arguments,
                                 (char *const *)(uintptr_t)all);
    posix_spawn_file_actions_destroy(&actions);
    CHECK_MSG(code == 0, "cannot start %s", arguments[0]);
    return code == 0 ? process : -1;
}

int crash_wait(pid_t process) {
    int status = 0;
    if (process < 0 || waitpid(process, &status, 0) != process) { return -1000; }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

crash_result crash_run(const char *const *arguments, const char *const *variables, const char *stderr_path) {
    crash_result result = {.exit_code = crash_wait(crash_start(arguments, variables, stderr_path))};
    FILE *file = fopen(stderr_path, "rb");
    const size_t n = file != NULL ? fread(result.message, 1, sizeof result.message - 1, file) : 0;
    result.message[n] = '\0';
    if (file != NULL) { fclose(file); }
    return result;
}

char *crash_read(const char *folder, const char *name, size_t *n_bytes) {
    char path[1024];
    char *bytes = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return qr_file_read(path, SIZE_MAX, &bytes, n_bytes, NULL) == QRUN_OK ? bytes : NULL;
}

/* ---- What always holds ------------------------------------------------------------------------------------------- */

static void check_checkpoint(const char *path, int64_t step) {
    qr_checkpoint checkpoint;
    qr_adapter *adapter = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_checkpoint_open(path, &checkpoint, &err) == QRUN_OK && checkpoint.step == step, "%s: %s", path,
              err.message);
    CHECK_MSG(qr_adapter_open(path, &adapter, &err) == QRUN_OK, "%s: %s", path, err.message);
    qr_adapter_close(adapter);
    qr_checkpoint_close(&checkpoint);
}

static void check_json(const char *folder, const char *name) {
    char path[1024];
    qr_json *root = NULL;
    qr_error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK_MSG(qr_json_read(path, 1 << 26, &root, &err) == QRUN_OK, "%s", err.message);
    qr_json_free(root);
}

/* Every line that has an end is an object. */
static void check_metrics(const char *folder) {
    size_t n_bytes = 0;
    char *text = crash_read(folder, "metrics.jsonl", &n_bytes);
    for (char *line = text, *end; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        qr_json *root = NULL;
        CHECK_MSG(qr_json_parse(line, (size_t)(end - line), "metrics.jsonl", &root, NULL) == QRUN_OK, "%s: %.*s",
                  folder, (int)(end - line), line);
        qr_json_free(root);
    }
    qr_free(text);
}

static void check_report(const char *folder) {
    static const char end[] = "</html>\n";
    size_t n_bytes = 0;
    char *text = crash_read(folder, "report.html", &n_bytes);
    CHECK(text != NULL && n_bytes > sizeof end && strcmp(text + n_bytes - (sizeof end - 1), end) == 0);
    qr_free(text);
}

static void check_tokens(const char *out) {
    char folder[1024], path[2048];
    snprintf(folder, sizeof folder, "%s/tokens", out);
    DIR *listing = opendir(folder);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        char *end;
        const uint64_t key = strtoull(entry->d_name, &end, 16);
        if (strcmp(end, ".qrdata") != 0) { continue; }
        qr_cache cache;
        qr_error err = {0};
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        CHECK_MSG(qr_cache_open(&cache, path, key, &err) == QRUN_OK, "%s", err.message);
        qr_cache_close(&cache);
    }
    if (listing != NULL) { closedir(listing); }
}

static void check_adapter(const char *out) {
    qr_adapter *adapter = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_adapter_open(out, &adapter, &err) == QRUN_OK, "%s", err.message);
    qr_adapter_close(adapter);
}

void crash_check_folder(const char *out, int64_t least_step) {
    DIR *listing = opendir(out);
    int64_t newest = -1;
    bool config = false, tensors = false;
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        const char *name = entry->d_name;
        long long step;
        int n_read = 0;
        char path[1024];
        if (sscanf(name, "checkpoint-%lld%n", &step, &n_read) == 1 && name[n_read] == '\0') {
            snprintf(path, sizeof path, "%s/%s", out, name);
            check_checkpoint(path, step);
            newest = step > newest ? step : newest;
        }
        config = config || strcmp(name, "adapter_config.json") == 0;
        tensors = tensors || strcmp(name, "adapter_model.safetensors") == 0;
        if (strcmp(name, "trainer_state.json") == 0) { check_json(out, name); }
        if (strcmp(name, "report.html") == 0) { check_report(out); }
    }
    if (listing != NULL) { closedir(listing); }
    check_metrics(out);
    check_tokens(out);
    CHECK_MSG(newest >= least_step, "the last checkpoint is of step %lld, and one of step %lld was complete",
              (long long)newest, (long long)least_step);
    CHECK_MSG(!config || tensors, "an adapter's configuration stands without its tensors");
    if (config && tensors) { check_adapter(out); }
}

/* ---- Where it ends ----------------------------------------------------------------------------------------------- */

static void expect_same_bytes(const char *whole, const char *out, const char *name) {
    size_t n_expected = 0, n = 0;
    char *expected = crash_read(whole, name, &n_expected), *bytes = crash_read(out, name, &n);
    CHECK_MSG(expected != NULL && bytes != NULL && n == n_expected && memcmp(expected, bytes, n) == 0,
              "%s/%s is not that of the uninterrupted run", out, name);
    qr_free(expected);
    qr_free(bytes);
}

/* The lines without what a clock has measured. */
static char *metrics_without_times(const char *folder) {
    size_t n_bytes = 0;
    char *text = crash_read(folder, "metrics.jsonl", &n_bytes), *write = text;
    for (char *line = text, *end; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char *times = strstr(line, ",\"tokens_per_second\""); /* of a step; an evaluation has its seconds */
        if (times == NULL || times > end) { times = strstr(line, ",\"seconds\""); }
        char *until = times != NULL && times < end ? times : end;
        memmove(write, line, (size_t)(until - line));
        write += until - line;
        *write++ = '\n';
    }
    if (write != NULL) { *write = '\0'; }
    return text;
}

static int n_entries(const char *path) {
    DIR *listing = opendir(path);
    int n = 0;
    while (listing != NULL && readdir(listing) != NULL) { n++; }
    if (listing != NULL) { closedir(listing); }
    return n;
}

static void expect_same_names(const char *whole, const char *out) {
    DIR *listing = opendir(whole);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        char a[1024], b[1024];
        snprintf(a, sizeof a, "%s/%s", whole, entry->d_name);
        snprintf(b, sizeof b, "%s/%s", out, entry->d_name);
        CHECK_MSG(qr_file_exists(b), "%s is missing", b);
        const bool listed = strcmp(entry->d_name, "..") != 0 && qr_file_is_folder(a);
        CHECK_MSG(!listed || n_entries(a) == n_entries(b), "%s has %d entries and %s %d", b, n_entries(b), a,
                  n_entries(a));
        if (strncmp(entry->d_name, "checkpoint-", 11) == 0) {
            expect_same_bytes(a, b, "state.safetensors");
            expect_same_bytes(a, b, "state.json");
            expect_same_bytes(a, b, "run.json");
        }
    }
    if (listing != NULL) { closedir(listing); }
}

void crash_check_equal(const char *whole, const char *out) {
    crash_check_result(whole, out);
    expect_same_names(whole, out);
}

void crash_check_result(const char *whole, const char *out) {
    expect_same_bytes(whole, out, "adapter_model.safetensors");
    expect_same_bytes(whole, out, "adapter_config.json");
    char *expected = metrics_without_times(whole), *metrics = metrics_without_times(out);
    CHECK_MSG(expected != NULL && metrics != NULL && strcmp(expected, metrics) == 0,
              "the metrics of %s are not those of the uninterrupted run:\n%s", out, metrics != NULL ? metrics : "none");
    qr_free(expected);
    qr_free(metrics);
}
