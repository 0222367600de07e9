/* Prefixes that left the pool, and came back from host memory or from files, have the bits of computed ones. Files that
 * are damaged, cut short, of something else or not ours are not used, and only ours are removed. */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/generate/session.h"
#include "session_run.h"
#include "temporary.h"

enum { N_REQUESTS = 6, PROMPT = 70, HEADER_BYTES = 128 };

static qrun_context *context;

/* ---- Requests that have something to share ----------------------------------------------------------------------- */

static int32_t ids[N_REQUESTS][PROMPT];

static void make_prompts(void) {
    for (int r = 0; r < N_REQUESTS; r++) {
        for (int i = 0; i < PROMPT; i++) { ids[r][i] = 3 + (i * 31 + (i < 40 ? r / 2 : r) * 97) % 900; }
    }
}

static qrun_request_params request_of(int r, const qrun_adapter *adapter, run_record *record) {
    qrun_request_params p = QRUN_REQUEST_PARAMS_INIT;
    p.token_ids = ids[r], p.n_token_ids = PROMPT - 3 * r, p.max_tokens = 24, p.ignore_eos = true;
    p.logprobs = r % 2 == 0 ? 5 : 0, p.temperature = r % 3 == 0 ? 0 : 0.9F;
    p.adapter = adapter, p.on_event = run_on_event, p.user = record;
    return p;
}

/* All of them, one after the other, in a session of their own; then what it holds is kept, with a folder. */
static qrun_session_stats run_rounds(qrun_model *model, const qrun_session_params *params, const qrun_adapter *adapter,
                                     int n_rounds, run_record *records) {
    qrun_session_stats stats = QRUN_SESSION_STATS_INIT;
    qrun_session *session = run_session(model, params);
    qrun_error error = QRUN_ERROR_INIT;
    for (int i = 0; session != NULL && i < n_rounds * N_REQUESTS; i++) {
        run_record *record = &records[i % N_REQUESTS];
        memset(record, 0, sizeof *record);
        const qrun_request_params request = request_of(i % N_REQUESTS, adapter, record);
        CHECK_MSG(qrun_session_submit(session, &request, NULL, &error) == QRUN_OK, "%s", error.message);
        CHECK_MSG(qrun_session_run(session, &error) == QRUN_OK, "%s", error.message);
    }
    if (session == NULL) { return stats; }
    CHECK_INT(qrun_session_keep_prefixes(session, NULL), params->cache_dir != NULL ? QRUN_OK : QRUN_ERROR_ARGUMENT);
    CHECK(qrun_session_get_stats(session, &stats, NULL) == QRUN_OK);
    CHECK_INT(stats.pages_used, 0);
    qrun_session_destroy(session);
    return stats;
}

static void compare(const run_record *records, const run_record *reference, const char *what) {
    for (int r = 0; r < N_REQUESTS; r++) {
        char name[256];
        snprintf(name, sizeof name, "%s, request %d", what, r);
        CHECK_MSG(records[r].n_last == 1 && !records[r].malformed && records[r].n_errors == 0, "%s: its events", name);
        if (!run_samples_are_equal(&records[r].samples[0], &reference[r].samples[0], name)) { return; }
    }
}

typedef struct model_case {
    const char *folder;
    qrun_quant quant;
    qrun_dtype dtype;
    qrun_kv kv;
    const char *adapter;
} model_case;

static qrun_model *open_case(const model_case *c, qrun_adapter **adapter) {
    qrun_model *model = run_open_fixture(context, c->folder, c->quant, c->dtype);
    *adapter = NULL;
    if (model != NULL && c->adapter != NULL) {
        char path[512];
        snprintf(path, sizeof path, QRUN_SOURCE_DIR "/tests/fixtures/%s", c->adapter);
        CHECK(qrun_adapter_open(model, path, NULL, adapter, NULL) == QRUN_OK);
    }
    return model;
}

static qrun_session_params params_of(const model_case *c, int64_t kv_tokens) {
    qrun_session_params params = QRUN_SESSION_PARAMS_INIT;
    params.kv = c->kv, params.kv_tokens = kv_tokens, params.max_sequences = 2, params.max_step_tokens = 64;
    return params;
}

/* ---- Cold, warm, from files, after a restart --------------------------------------------------------------------- */

static const model_case cases[] = {
    {"models/llama", QRUN_QUANT_F32, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL},
    {"models/llama", QRUN_QUANT_NF4_DQ, QRUN_DTYPE_BF16, QRUN_KV_INT8, "adapters/llama-lora"},
    {"models/llama", QRUN_QUANT_F16, QRUN_DTYPE_F16, QRUN_KV_AUTO, NULL},
    {"models/gemma2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
    {"models/gemma3", QRUN_QUANT_NF4, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL},
    {"models/mistral", QRUN_QUANT_INT8, QRUN_DTYPE_F32, QRUN_KV_AUTO, NULL},
    {"models/gpt2", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
    {"models/llama-dynamic", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
};

static void run_case(const model_case *c) {
    static run_record reference[N_REQUESTS], records[N_REQUESTS];
    const temporary_folder folder = temporary_create();
    qrun_adapter *adapter;
    qrun_model *model = open_case(c, &adapter);
    REQUIRE(model != NULL);
    qrun_session_params params = params_of(c, 4000);
    params.no_prefix_sharing = true, params.speculate = "off";
    const qrun_session_stats computed = run_rounds(model, &params, adapter, 1, reference);

    /* A pool with room for one sequence: what leaves it goes to host memory and comes back in the second round. */
    params = params_of(c, 130);
    params.prefix_cache_bytes = 64 << 20;
    const qrun_session_stats warm = run_rounds(model, &params, adapter, 2, records);
    compare(records, reference, "from host memory");
    CHECK_MSG(warm.restored_prompt_tokens > 0 && warm.prompt_tokens < 2 * computed.prompt_tokens,
              "%s: %lld tokens came back", c->folder, (long long)warm.restored_prompt_tokens);

    /* The same with little host memory, so that files take over; then by a session that begins anew. */
    params.prefix_cache_bytes = 1 << 16, params.cache_dir = folder.path;
    const qrun_session_stats filed = run_rounds(model, &params, adapter, 2, records);
    compare(records, reference, "from files");
    CHECK(filed.restored_prompt_tokens > 0);
    CHECK_STR(filed.cache_note, "");
    params = params_of(c, 4000);
    params.cache_dir = folder.path;
    const qrun_session_stats restarted = run_rounds(model, &params, adapter, 1, records);
    compare(records, reference, "after a restart");
    CHECK_MSG(restarted.restored_prompt_tokens > 0 && restarted.prompt_tokens < computed.prompt_tokens / 2,
              "%s: %lld of %lld prompt tokens were computed", c->folder, (long long)restarted.prompt_tokens,
              (long long)computed.prompt_tokens);
    CHECK_STR(restarted.cache_note, "");
    qrun_model_destroy(model);
    temporary_remove(&folder);
}

static void test_bits_from_everywhere(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases && check_state.n_failures_in_case == 0; i++) {
        run_case(&cases[i]);
    }
}

/* ---- What a file is for ------------------------------------------------------------------------------------------ */

static int64_t restored_by(const model_case *c, const char *folder, const char *what) {
    static run_record reference[N_REQUESTS], records[N_REQUESTS];
    qrun_adapter *adapter;
    qrun_model *model = open_case(c, &adapter);
    if (model == NULL) { return -1; }
    qrun_session_params params = params_of(c, 4000);
    params.no_prefix_sharing = true;
    (void)run_rounds(model, &params, adapter, 1, reference);
    params = params_of(c, 4000);
    params.cache_dir = folder;
    const qrun_session_stats stats = run_rounds(model, &params, adapter, 1, records);
    compare(records, reference, what);
    CHECK_STR(stats.cache_note, "");
    qrun_model_destroy(model);
    return stats.restored_prompt_tokens;
}

/* One folder serves all: none takes a page of another. */
static void test_other_models_formats_and_adapters(void) {
    static const model_case others[] = {
        {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
        {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_INT8, NULL},
        {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_F16, NULL}, /* pages of the same size */
        {"models/llama", QRUN_QUANT_INT8, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL},
        {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, "adapters/llama-lora"},
        {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, "adapters/llama-rslora"},
        {"models/llama-dynamic", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL}, /* another config.json */
    };
    const temporary_folder folder = temporary_create();
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            const int64_t n = restored_by(&others[i], folder.path, "one folder for all");
            CHECK_MSG(round == 0 ? n == 0 : n > 0, "case %zu, round %d: %lld tokens came back", i, round, (long long)n);
        }
    }
    temporary_remove(&folder);
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

static const model_case small = {"models/llama", QRUN_QUANT_BF16, QRUN_DTYPE_BF16, QRUN_KV_AUTO, NULL};

/* The files of a folder that have our suffix; *first: the path of the first in order of names. */
static int count_files(const char *folder, char *first, size_t n_first) {
    int n = 0;
    char least[300] = "";
    DIR *walk = opendir(folder);
    for (const struct dirent *entry; walk != NULL && (entry = readdir(walk)) != NULL;) {
        const size_t length = strlen(entry->d_name);
        if (length < 8 || strcmp(entry->d_name + length - 8, ".qrun-kv") != 0) { continue; }
        n++;
        if (least[0] == '\0' || strcmp(entry->d_name, least) < 0) {
            snprintf(least, sizeof least, "%s", entry->d_name);
        }
    }
    if (walk != NULL) { closedir(walk); }
    if (first != NULL) { snprintf(first, n_first, "%s/%s", folder, least); }
    return n;
}

static int64_t size_of(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

static void put_byte(const char *path, int64_t at, unsigned char change) {
    unsigned char byte = 0;
    const int file = open(path, O_RDWR);
    CHECK(file >= 0 && pread(file, &byte, 1, at) == 1);
    byte ^= change;
    CHECK(pwrite(file, &byte, 1, at) == 1);
    close(file);
}

typedef struct damage_run {
    qrun_model *model;
    run_record reference[N_REQUESTS], records[N_REQUESTS];
    temporary_folder folder;
    char path[700]; /* of the file that is damaged */
} damage_run;

static damage_run damaged;

/* Runs over the damaged folder. Afterwards every page is there again, unless something else has its name. */
static void run_damaged(const char *what, bool is_ours) {
    qrun_session_params params = params_of(&small, 4000);
    const int n_before = count_files(damaged.folder.path, NULL, 0);
    params.cache_dir = damaged.folder.path;
    const qrun_session_stats stats = run_rounds(damaged.model, &params, NULL, 1, damaged.records);
    compare(damaged.records, damaged.reference, what);
    CHECK_MSG(strstr(stats.cache_note, "not used") != NULL, "%s: \"%s\"", what, stats.cache_note);
    CHECK_MSG(stats.restored_prompt_tokens > 0, "%s: nothing came back", what);
    CHECK_INT(count_files(damaged.folder.path, NULL, 0), n_before);
    if (!is_ours) { return; }
    const qrun_session_stats whole = run_rounds(damaged.model, &params, NULL, 1, damaged.records);
    compare(damaged.records, damaged.reference, what);
    CHECK_MSG(whole.cache_note[0] == '\0', "%s: it is still damaged: %s", what, whole.cache_note);
}

static void test_damaged_files(void) {
    qrun_adapter *adapter;
    damaged.folder = temporary_create();
    damaged.model = open_case(&small, &adapter);
    REQUIRE(damaged.model != NULL);
    qrun_session_params params = params_of(&small, 4000);
    params.no_prefix_sharing = true;
    (void)run_rounds(damaged.model, &params, NULL, 1, damaged.reference);
    params = params_of(&small, 4000);
    params.cache_dir = damaged.folder.path;
    (void)run_rounds(damaged.model, &params, NULL, 1, damaged.records);
    CHECK(count_files(damaged.folder.path, damaged.path, sizeof damaged.path) > 5);
    /* A page that a prompt needs: of the first block, which only some of the digests' order can tell. */
    const int64_t n_bytes = size_of(damaged.path);
    REQUIRE(n_bytes > HEADER_BYTES);
    char whole[sizeof damaged.path];
    snprintf(whole, sizeof whole, "%s", damaged.path);
    DIR *walk = opendir(damaged.folder.path);
    int n_tried = 0;
    for (const struct dirent *entry; (entry = readdir(walk)) != NULL && n_tried == 0;) {
        if (strlen(entry->d_name) < 60) { continue; }
        char trial[700];
        snprintf(trial, sizeof trial, "%s/%s", damaged.folder.path, entry->d_name);
        put_byte(trial, HEADER_BYTES, 1);
        const qrun_session_stats stats = run_rounds(damaged.model, &params, NULL, 1, damaged.records);
        compare(damaged.records, damaged.reference, "a changed byte");
        if (stats.cache_note[0] == '\0') {
            put_byte(trial, HEADER_BYTES, 1); /* of the answers, which no prompt reads */
            continue;
        }
        snprintf(damaged.path, sizeof damaged.path, "%s", trial);
        n_tried++;
    }
    closedir(walk);
    REQUIRE(n_tried == 1);
    const int64_t regions[] = {8, 39, 40, 44, 48, 56, 119, 120, 127, HEADER_BYTES, n_bytes / 2, n_bytes - 1};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
        char what[64];
        snprintf(what, sizeof what, "byte %lld", (long long)regions[i]);
        put_byte(damaged.path, regions[i], 0x10);
        run_damaged(what, true);
    }
    const int64_t lengths[] = {0, 5, 8, 100, HEADER_BYTES, HEADER_BYTES + 1, n_bytes - 1, n_bytes + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char what[64];
        snprintf(what, sizeof what, "%lld bytes", (long long)lengths[i]);
        CHECK(truncate(damaged.path, lengths[i]) == 0);
        run_damaged(what, true);
    }
    /* What is not ours stays as it is. */
    put_byte(damaged.path, 0, 0x20);
    run_damaged("another beginning", false);
    CHECK_INT(size_of(damaged.path), n_bytes);
    CHECK(unlink(damaged.path) == 0 && symlink("/dev/zero", damaged.path) == 0);
    run_damaged("a link", false);
    CHECK(unlink(damaged.path) == 0 && mkfifo(damaged.path, 0600) == 0);
    run_damaged("a pipe", false);
    CHECK(unlink(damaged.path) == 0 && mkdir(damaged.path, 0700) == 0);
    run_damaged("a folder", false);
    CHECK(rmdir(damaged.path) == 0);
    qrun_model_destroy(damaged.model);
    temporary_remove(&damaged.folder);
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

static int64_t bytes_in(const char *folder) {
    int64_t total = 0;
    DIR *walk = opendir(folder);
    for (const struct dirent *entry; walk != NULL && (entry = readdir(walk)) != NULL;) {
        char path[700];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (strstr(entry->d_name, ".qrun-kv") != NULL) { total += size_of(path); }
    }
    if (walk != NULL) { closedir(walk); }
    return total;
}

/* Files of ours make room for others; nothing else does. */
static void test_the_folder_has_a_size(void) {
    static run_record reference[N_REQUESTS], records[N_REQUESTS];
    const temporary_folder folder = temporary_create();
    char first[700], dead[800];
    qrun_adapter *adapter;
    qrun_model *model = open_case(&small, &adapter);
    REQUIRE(model != NULL);
    qrun_session_params params = params_of(&small, 4000);
    params.cache_dir = folder.path;
    (void)run_rounds(model, &params, NULL, 1, reference);
    const int n_all = count_files(folder.path, first, sizeof first);
    const int64_t one = size_of(first);
    temporary_text(&folder, "notes.txt", "not for qrun");
    temporary_text(&folder, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef-0.qrun-kv", "nor this");
    snprintf(dead, sizeof dead, "%s" QR_PARTIAL_SUFFIX "%d", first, 0x3ffffff0);
    const int partial = open(dead, O_CREAT | O_WRONLY, 0600);
    CHECK(partial >= 0 && close(partial) == 0);
    params.cache_dir_bytes = 8 + 3 * one;
    (void)run_rounds(model, &params, NULL, 1, records);
    compare(records, reference, "in a small folder");
    CHECK_MSG(bytes_in(folder.path) <= params.cache_dir_bytes && n_all > 4, "%lld bytes of %lld",
              (long long)bytes_in(folder.path), (long long)params.cache_dir_bytes);
    CHECK_INT(size_of(dead), -1); /* its program does not run any more */
    char path[700];
    snprintf(path, sizeof path, "%s/notes.txt", folder.path);
    CHECK_INT(size_of(path), 12);
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef-0.qrun-kv",
             folder.path);
    CHECK_INT(size_of(path), 8);
    qrun_model_destroy(model);
    temporary_remove(&folder);
}

/* A program that was killed while it wrote a page may have had this one's number, as the first one of a container. */
static void test_what_a_killed_program_wrote_makes_room(void) {
    static run_record records[N_REQUESTS];
    const temporary_folder folder = temporary_create();
    char first[700], left[800];
    qrun_adapter *adapter;
    qrun_model *model = open_case(&small, &adapter);
    REQUIRE(model != NULL);
    qrun_session_params params = params_of(&small, 4000);
    params.cache_dir = folder.path;
    (void)run_rounds(model, &params, NULL, 1, records);
    const int n_all = count_files(folder.path, first, sizeof first);
    const int64_t one = size_of(first);
    snprintf(left, sizeof left, "%s" QR_PARTIAL_SUFFIX "%ld", first, (long)getpid());
    const int partial = open(left, O_CREAT | O_WRONLY, 0600);
    CHECK(partial >= 0 && close(partial) == 0 && unlink(first) == 0);
    (void)run_rounds(model, &params, NULL, 1, records);
    CHECK_INT(size_of(first), one);
    CHECK_INT(size_of(left), -1);
    CHECK_INT(count_files(folder.path, first, sizeof first), n_all);
    qrun_model_destroy(model);
    temporary_remove(&folder);
}

static void test_a_full_disk(void) {
    static run_record reference[N_REQUESTS], records[N_REQUESTS];
    const temporary_folder folder = temporary_create();
    qrun_adapter *adapter;
    qrun_model *model = open_case(&small, &adapter);
    REQUIRE(model != NULL);
    qrun_session_params params = params_of(&small, 4000);
    (void)run_rounds(model, &params, NULL, 1, reference);
    struct rlimit before, least = {.rlim_cur = 1000};
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    least.rlim_max = before.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
    params.cache_dir = folder.path;
    const qrun_session_stats stats = run_rounds(model, &params, NULL, 1, records);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    compare(records, reference, "on a full disk");
    CHECK_MSG(strstr(stats.cache_note, "cannot write") != NULL, "\"%s\"", stats.cache_note);
    CHECK_INT(bytes_in(folder.path), 0);
    qrun_model_destroy(model);
    temporary_remove(&folder);
}

/* ---- Two at once ------------------------------------------------------------------------------------------------- */

typedef struct worker {
    const char *folder;
    int64_t max_bytes;
    const run_record *reference;
    run_record records[N_REQUESTS];
    qrun_model *model;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    for (int i = 0; i < 8; i++) {
        qrun_session_params params = params_of(&small, i % 2 == 0 ? 130 : 4000);
        params.cache_dir = w->folder, params.cache_dir_bytes = w->max_bytes;
        (void)run_rounds(w->model, &params, NULL, 1, w->records);
        compare(w->records, w->reference, "two sessions in one folder");
    }
    return NULL;
}

static void test_two_sessions_in_one_folder(void) {
    static run_record reference[N_REQUESTS];
    static worker workers[2];
    const temporary_folder folder = temporary_create();
    qrun_context *contexts[2] = {NULL, NULL};
    pthread_t threads[2];
    qrun_context_params one = QRUN_CONTEXT_PARAMS_INIT;
    one.n_threads = 1;
    for (int i = 0; i < 2; i++) {
        CHECK(qrun_context_create(&one, &contexts[i], NULL) == QRUN_OK);
        workers[i] = (worker){.folder = folder.path, .max_bytes = 1 << 18, .reference = reference};
        workers[i].model = run_open_fixture(contexts[i], small.folder, small.quant, small.dtype);
        REQUIRE(workers[i].model != NULL);
    }
    const qrun_session_params params = params_of(&small, 4000);
    (void)run_rounds(workers[0].model, &params, NULL, 1, reference);
    for (int i = 0; i < 2; i++) { CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0); }
    for (int i = 0; i < 2; i++) { pthread_join(threads[i], NULL); }
    for (int i = 0; i < 2; i++) {
        qrun_model_destroy(workers[i].model);
        qrun_context_destroy(contexts[i]);
    }
    temporary_remove(&folder);
}

/* ---- Processes that share a folder, while someone spoils its files ----------------------------------------------- */

enum { N_USERS = 2, N_USER_ROUNDS = 6 };

/* In a process of its own. Its exit code: 0, where every answer was right and no note had a second line. */
static int use_folder(const char *folder) {
    static run_record reference[N_REQUESTS], records[N_REQUESTS];
    qrun_context_params one = QRUN_CONTEXT_PARAMS_INIT;
    qrun_adapter *adapter;
    one.n_threads = 1;
    CHECK(qrun_context_create(&one, &context, NULL) == QRUN_OK);
    qrun_model *model = open_case(&small, &adapter);
    if (model == NULL) { return 1; }
    qrun_session_params params = params_of(&small, 4000);
    params.no_prefix_sharing = true;
    (void)run_rounds(model, &params, NULL, 1, reference);
    for (int i = 0; i < N_USER_ROUNDS; i++) {
        params = params_of(&small, i % 2 == 0 ? 130 : 4000);
        params.cache_dir = folder, params.cache_dir_bytes = i % 3 == 0 ? 1 << 18 : 0;
        const qrun_session_stats stats = run_rounds(model, &params, NULL, 1, records);
        compare(records, reference, "in a folder that is spoilt");
        CHECK_MSG(strchr(stats.cache_note, '\n') == NULL, "\"%s\"", stats.cache_note);
    }
    qrun_model_destroy(model);
    qrun_context_destroy(context);
    context = NULL;
    return check_state.n_failures_in_case > 0;
}

static pid_t start_user(const char *folder) {
    fflush(stdout);
    const pid_t process = fork();
    if (process == 0) { _exit(use_folder(folder)); }
    CHECK(process > 0);
    return process;
}

static uint64_t random_below(uint64_t *state, uint64_t below) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % below;
}

/* A file of the folder, whole or being written, whose name lasts until the next but one; NULL: there is none. */
static const char *random_file(const char *folder, uint64_t *state) {
    static char paths[2][700];
    static int turn;
    char *path = paths[turn ^= 1];
    uint64_t n = 0;
    DIR *walk = opendir(folder);
    for (const struct dirent *entry; walk != NULL && (entry = readdir(walk)) != NULL;) {
        if (strstr(entry->d_name, ".qrun-kv") == NULL || random_below(state, ++n) != 0) { continue; }
        (void)snprintf(path, sizeof paths[0], "%s/%s", folder, entry->d_name);
    }
    if (walk != NULL) { closedir(walk); }
    return n > 0 ? path : NULL;
}

static void write_bytes(const char *path, int64_t at, uint64_t *state, int n_bytes) {
    unsigned char bytes[64];
    for (int i = 0; i < n_bytes; i++) { bytes[i] = (unsigned char)random_below(state, 256); }
    const int file = open(path, O_WRONLY | O_NONBLOCK | O_NOFOLLOW);
    if (file < 0) { return; }
    (void)!pwrite(file, bytes, (size_t)n_bytes, at);
    close(file);
}

/* Whatever comes to one file, or two. Users may remove them at any moment, so nothing here need succeed. */
static void spoil(const char *folder, uint64_t *state) {
    const char *path = random_file(folder, state), *other = random_file(folder, state);
    if (path == NULL || other == NULL) { return; }
    char foreign[700];
    (void)snprintf(foreign, sizeof foreign, "%s/foreign", folder);
    const int64_t n_bytes = size_of(path), at = (int64_t)random_below(state, n_bytes > 0 ? (uint64_t)n_bytes : 1);
    switch (random_below(state, 9)) {
        case 0: write_bytes(path, at, state, 1); break;
        case 1: write_bytes(path, at, state, 64); break;
        case 2: write_bytes(path, 0, state, 8); break; /* no longer ours */
        case 3: (void)!truncate(path, at); break;
        case 4: write_bytes(path, n_bytes, state, 5); break;
        case 5: (void)unlink(path); break;
        case 6: (void)rename(path, other); break; /* a whole page under another's name */
        case 7:                                   /* replaced as a whole, by what is not ours */
            close(open(foreign, O_CREAT | O_WRONLY, 0600));
            write_bytes(foreign, 0, state, 64);
            (void)rename(foreign, path);
            break;
        default: /* a link to another one */
            (void)unlink(foreign);
            (void)!symlink(other, foreign);
            (void)rename(foreign, path);
    }
}

/* What is not ours stays in the way of pages: it goes, as if its owner had seen the note. */
static void remove_foreign(const char *folder) {
    DIR *walk = opendir(folder);
    for (const struct dirent *entry; walk != NULL && (entry = readdir(walk)) != NULL;) {
        char path[700], magic[8] = "";
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        const int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        const bool is_ours = file >= 0 && read(file, magic, sizeof magic) == sizeof magic &&
                             memcmp(magic, "QRUN-KV1", sizeof magic) == 0;
        if (file >= 0) { close(file); }
        if (!is_ours && entry->d_name[0] != '.') { (void)unlink(path); }
    }
    if (walk != NULL) { closedir(walk); }
}

/* Before this process has threads. */
static void test_processes_in_a_spoilt_folder(void) {
    const temporary_folder folder = temporary_create();
    uint64_t state = 20261123;
    pid_t users[N_USERS];
    int n_over = 0, n_spoilt = 0, status;
    for (int i = 0; i < N_USERS; i++) { users[i] = start_user(folder.path); }
    while (n_over < N_USERS) {
        const struct timespec moment = {.tv_nsec = 2000000};
        for (int i = 0; i < N_USERS; i++) {
            if (users[i] <= 0 || waitpid(users[i], &status, WNOHANG) != users[i]) { continue; }
            CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "user %d ended with status %d", i, status);
            users[i] = 0;
            n_over++;
        }
        spoil(folder.path, &state);
        n_spoilt++;
        nanosleep(&moment, NULL);
    }
    CHECK(n_spoilt > N_USERS * N_USER_ROUNDS);
    remove_foreign(folder.path);
    users[0] = start_user(folder.path); /* what is damaged now is replaced, as it is found */
    CHECK(waitpid(users[0], &status, 0) == users[0] && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(qrun_context_create(NULL, &context, NULL) == QRUN_OK);
    CHECK(restored_by(&small, folder.path, "after the last damage") > 0);
    qrun_context_destroy(context);
    context = NULL;
    temporary_remove(&folder);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void) {
    static const struct {
        const char *what;
        qrun_session_params params;
    } wrong[] = {
        {"`prefix_cache_bytes`", {.struct_size = sizeof(qrun_session_params), .prefix_cache_bytes = -2}},
        {"`cache_dir_bytes`", {.struct_size = sizeof(qrun_session_params), .cache_dir_bytes = 5}},
        {"`no_prefix_sharing`",
         {.struct_size = sizeof(qrun_session_params), .prefix_cache_bytes = 1 << 20, .no_prefix_sharing = true}},
        {"/dev/null", {.struct_size = sizeof(qrun_session_params), .cache_dir = "/dev/null"}},
    };
    qrun_adapter *adapter;
    qrun_model *model = open_case(&small, &adapter);
    REQUIRE(model != NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qrun_session *session = NULL;
        qrun_error error = QRUN_ERROR_INIT;
        CHECK(qrun_session_create(model, &wrong[i].params, &session, &error) != QRUN_OK && session == NULL);
        CHECK_MSG(strstr(error.message, wrong[i].what) != NULL, "%s: %s", wrong[i].what, error.message);
    }
    qrun_model_destroy(model);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    make_prompts();
    CHECK_RUN(test_processes_in_a_spoilt_folder);
    if (qrun_context_create(NULL, &context, NULL) != QRUN_OK) { return 1; }
    CHECK_RUN(test_bits_from_everywhere);
    CHECK_RUN(test_other_models_formats_and_adapters);
    CHECK_RUN(test_damaged_files);
    CHECK_RUN(test_the_folder_has_a_size);
    CHECK_RUN(test_what_a_killed_program_wrote_makes_room);
    CHECK_RUN(test_a_full_disk);
    CHECK_RUN(test_two_sessions_in_one_folder);
    CHECK_RUN(test_refusals);
    qrun_context_destroy(context);
    return check_end();
}
