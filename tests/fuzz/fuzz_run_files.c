/* What the program reads again of its own runs. The first byte says which file the rest is: metrics.jsonl, or the
 * answers of an interrupted job, for the third kind after the job's description and a zero byte. What is accepted has
 * whole lines, each counted once, and is accepted again as the same. (run.json and state.json: fuzz_checkpoint.) The
 * history of a chat and a saved conversation are read, written, and read again as the same. */
#include "cli/report/train_log.h"
#include "cli/requests/answer_file.h"
#include "cli/requests/conversation.h"
#include "cli/terminal/history_file.h"
#include "fuzz.h"
#include "program.h"

/* ---- The files --------------------------------------------------------------------------------------------------- */

static int64_t size_of(const char *name) {
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    FUZZ_CHECK(stat(path, &info) == 0);
    return info.st_size;
}

static int64_t count_lines(const uint8_t *data, size_t size) {
    int64_t n = 0;
    for (size_t i = 0; i < size; i++) { n += data[i] == '\n'; }
    return n;
}

enum { LAST_STEP = 12, LAST_EVAL = 10 };

static void check_metrics(const uint8_t *data, size_t size) {
    int64_t n_steps = -1, n_evals = -1, n_bytes = -1;
    fuzz_file("metrics.jsonl", data, size);
    for (int turn = 0; turn < 2; turn++) { /* the second finds what the first has left */
        train_log log = {.n_steps = 0};
        if (train_log_open(&log, fuzz_folder(), LAST_STEP, LAST_EVAL) != EXIT_OK) { /* not ours, and left alone */
            FUZZ_CHECK(turn == 0 && memcmp(data, "{\"step\":", size < 8 ? size : 8) != 0);
            train_log_free(&log);
            n_bytes = size_of("metrics.jsonl");
            FUZZ_CHECK(n_bytes == (int64_t)size);
            fuzz_file_remove("metrics.jsonl");
            return;
        }
        FUZZ_CHECK(log.n_steps + log.n_evals <= count_lines(data, size) && log.n_earlier_steps == log.n_steps);
        for (int64_t i = 0; i < log.n_steps; i++) { FUZZ_CHECK(log.steps[i].m.step <= LAST_STEP); }
        for (int64_t i = 0; i < log.n_evals; i++) { FUZZ_CHECK(log.evals[i].step <= LAST_EVAL); }
        FUZZ_CHECK(turn == 0 || (log.n_steps == n_steps && log.n_evals == n_evals));
        n_steps = log.n_steps, n_evals = log.n_evals;
        train_log_free(&log);
        FUZZ_CHECK(turn == 0 || size_of("metrics.jsonl") == n_bytes);
        n_bytes = size_of("metrics.jsonl");
    }
    FUZZ_CHECK(n_bytes <= (int64_t)size && (n_bytes == 0 || data[n_bytes - 1] == '\n'));
    fuzz_file_remove("metrics.jsonl");
}

static const char own_job[] = "{\"prompts\":\"9f3c\",\"options\":{\"temperature\":0.5,\"n\":2}}";

static void check_answers(const char *job, size_t job_size, const uint8_t *data, size_t size) {
    static char path[256];
    text_buffer own = {0};
    text_puts(&own, own_job);
    fuzz_file("answers.partial.job", job, job_size);
    fuzz_file("answers.partial", data, size);
    snprintf(path, sizeof path, "%s/answers", fuzz_folder());
    int64_t n_done = -1, n_bytes = -1;
    for (int turn = 0; turn < 2; turn++) {
        answer_file file = {.path = NULL};
        bool already_whole = true;
        const int code =
            answer_file_open(&file, &(answer_file_options){.path = path, .resume = true}, &own, &already_whole);
        FUZZ_CHECK(!already_whole && (code == EXIT_OK || turn == 0));
        if (code == EXIT_OK) {
            int64_t n_found = 0;
            for (int64_t i = 0; i < file.n_done_bits; i++) { n_found += answer_file_has(&file, i); }
            FUZZ_CHECK(n_found == file.n_done && file.n_done_failed <= file.n_done);
            FUZZ_CHECK(file.n_done <= count_lines(data, size) && (turn == 0 || file.n_done == n_done));
            n_done = file.n_done;
            FUZZ_CHECK(turn == 0 || size_of("answers.partial") == n_bytes);
            n_bytes = size_of("answers.partial");
            FUZZ_CHECK(n_bytes <= (int64_t)size && (n_bytes == 0 || data[n_bytes - 1] == '\n'));
        }
        answer_file_abandon(&file);
        if (code != EXIT_OK || n_bytes == 0) { break; } /* nothing of it stays */
    }
    text_free(&own);
    fuzz_file_remove("answers.partial.job");
    fuzz_file_remove("answers.partial");
}

/* ---- A chat ------------------------------------------------------------------------------------------------------ */

static text_buffer taken[2]; /* the lines of the first and the second reading, with their zero bytes */
static int reading;

static void take_line(const char *line) { text_append(&taken[reading], line, strlen(line) + 1); }

static void read_history(const char *name) {
    char path[256];
    history_file file = {.failed = false};
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    text_clear(&taken[reading]);
    history_file_open(&file, path, "unused", take_line);
    FUZZ_CHECK(!file.failed);
    history_file_close(&file);
}

static void write_history(const char *name, const text_buffer *lines) {
    char path[256];
    history_file file = {.failed = false};
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    history_file_open(&file, path, "unused", take_line);
    for (size_t at = 0; at < lines->size; at += strlen(lines->data + at) + 1) {
        text_buffer line = {0};
        text_puts(&line, lines->data + at);
        history_file_add(&file, &line);
        text_free(&line);
    }
    FUZZ_CHECK(!file.failed);
    history_file_close(&file);
}

static void check_history(const uint8_t *data, size_t size) {
    fuzz_file("history", data, size);
    reading = 0;
    read_history("history");
    reading = 1;
    write_history("again", &taken[0]);
    if (taken[0].size > 0) { read_history("again"); }
    FUZZ_CHECK(taken[0].size <= size + 1 && taken[0].size == taken[1].size);
    FUZZ_CHECK(taken[0].size == 0 || memcmp(taken[0].data, taken[1].data, taken[0].size) == 0);
    text_free(&taken[0]);
    text_free(&taken[1]);
    fuzz_file_remove("history");
    fuzz_file_remove("again");
}

static void check_conversation(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("saved", data, size);
    conversation first = {.messages = {0}}, second = {.messages = {0}};
    if (conversation_load(&first, path) == EXIT_OK) {
        char *system, *same;
        FUZZ_CHECK(conversation_save(&first, path) == EXIT_OK && conversation_load(&second, path) == EXIT_OK);
        FUZZ_CHECK(first.messages.size == second.messages.size);
        FUZZ_CHECK(first.messages.size == 0 || strcmp(first.messages.data, second.messages.data) == 0);
        FUZZ_CHECK(conversation_count(&first, "system", &system) == conversation_count(&second, "system", &same));
        FUZZ_CHECK((system == NULL) == (same == NULL) && (system == NULL || strcmp(system, same) == 0));
        conversation_add(&second, "user", "x", 1);
        conversation_cut(&second, first.messages.size);
        FUZZ_CHECK(first.messages.size == second.messages.size);
        free(system);
        free(same);
    } else {
        FUZZ_CHECK(first.messages.size == 0);
    }
    conversation_free(&first);
    conversation_free(&second);
    fuzz_file_remove("saved");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) { return 0; }
    const uint8_t kind = *data++;
    size--;
    if (kind == 'm') { check_metrics(data, size); }
    if (kind == 'a') { check_answers(own_job, sizeof own_job - 1, data, size); }
    if (kind == 'h') { check_history(data, size); }
    if (kind == 'c') { check_conversation(data, size); }
    if (kind == 'j') {
        const uint8_t *end = memchr(data, 0, size);
        const size_t job_size = end != NULL ? (size_t)(end - data) : size;
        const size_t used = end != NULL ? job_size + 1 : size;
        check_answers((const char *)data, job_size, data + used, size - used);
    }
    return 0;
}
