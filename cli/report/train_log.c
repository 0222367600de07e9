#include "cli/report/train_log.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "cli/options/command.h"
#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

/* ---- Records ----------------------------------------------------------------------------------------------------- */

static void keep_step(train_log *log, const train_step_record *record) {
    log->steps = reallocate_for_more(log->steps, log->n_steps, &log->steps_capacity, sizeof *log->steps);
    log->steps[log->n_steps++] = *record;
}

static void keep_eval(train_log *log, const train_eval_record *record) {
    log->evals = reallocate_for_more(log->evals, log->n_evals, &log->evals_capacity, sizeof *log->evals);
    log->evals[log->n_evals++] = *record;
}

double train_step_tokens_per_second(const train_step_record *record) {
    return record->m.seconds > 0 ? (double)record->m.n_tokens / record->m.seconds : 0;
}

train_sums train_log_sums(const train_log *log, int64_t first) {
    train_sums sums = {.n_steps = log->n_steps - first};
    for (int64_t i = first; i < log->n_steps; i++) {
        sums.seconds += log->steps[i].m.seconds;
        sums.n_tokens += log->steps[i].m.n_tokens;
        sums.n_overflowed += log->steps[i].m.overflowed;
        sums.n_skipped += log->steps[i].m.skipped && !log->steps[i].m.overflowed;
    }
    return sums;
}

const train_step_record *train_log_last(const train_log *log) {
    return log->n_steps > 0 ? &log->steps[log->n_steps - 1] : NULL;
}

const train_eval_record *train_log_best_eval(const train_log *log) {
    const train_eval_record *best = NULL;
    for (int64_t i = 0; i < log->n_evals; i++) {
        const bool better = isfinite(log->evals[i].loss) && (best == NULL || log->evals[i].loss < best->loss);
        if (better) { best = &log->evals[i]; }
    }
    return best;
}

/* ---- Reading what an earlier run has written --------------------------------------------------------------------- */

static bool read_number(const cJSON *object, const char *key, double *value) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
    *value = cJSON_IsNumber(member) ? member->valuedouble : NAN;
    return cJSON_IsNumber(member) || cJSON_IsNull(member);
}

static bool read_count(const cJSON *object, const char *key, int64_t *value) {
    double number;
    if (!read_number(object, key, &number) || !(number >= 0 && number < 0x1p53)) { return false; }
    *value = (int64_t)number;
    return (double)*value == number;
}

static bool read_learning_rate(const cJSON *object, double *value) {
    return read_number(object, "learning_rate", value) || read_number(object, "lr", value); /* "lr": version 0.1 */
}

/* The members of rewards, after "rewards/". */
static const struct {
    const char *name;
    size_t offset;
} reward_members[] = {{"chosen", offsetof(qrun_rewards, chosen)},
                      {"rejected", offsetof(qrun_rewards, rejected)},
                      {"margins", offsetof(qrun_rewards, margin)},
                      {"accuracies", offsetof(qrun_rewards, accuracy)}};
enum { N_REWARD_MEMBERS = sizeof reward_members / sizeof reward_members[0] };

/* Rewards of pairs, whose names begin so; zeros where the line has none. */
static void read_rewards(const cJSON *object, const char *prefix, qrun_rewards *rewards) {
    text_buffer name = {0};
    text_format(&name, "%spairs", prefix);
    if (!read_count(object, name.data, &rewards->n_pairs)) { rewards->n_pairs = 0; }
    for (size_t i = 0; i < N_REWARD_MEMBERS && rewards->n_pairs > 0; i++) {
        double value;
        text_clear(&name);
        text_format(&name, "%srewards/%s", prefix, reward_members[i].name);
        if (!read_number(object, name.data, &value)) { value = NAN; }
        memcpy((char *)rewards + reward_members[i].offset, &value, sizeof value);
    }
    text_free(&name);
}

static bool read_step(const cJSON *object, train_step_record *record) {
    record->m.skipped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "skipped"));
    record->m.overflowed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, "overflowed"));
    if (!read_number(object, "loss_scale", &record->m.loss_scale)) { record->m.loss_scale = 0; }
    if (!read_count(object, "skipped_steps", &record->m.n_skipped)) { record->m.n_skipped = 0; }
    read_rewards(object, "", &record->m.rewards);
    return read_count(object, "step", &record->m.step) && read_count(object, "tokens", &record->m.n_tokens) &&
           read_count(object, "target_tokens", &record->m.n_target_tokens) &&
           read_count(object, "peak_bytes", &record->peak_bytes) && read_number(object, "epoch", &record->m.epoch) &&
           read_number(object, "loss", &record->m.loss) && read_learning_rate(object, &record->m.learning_rate) &&
           read_number(object, "grad_norm", &record->m.grad_norm) && read_number(object, "seconds", &record->m.seconds);
}

static bool read_eval(const cJSON *object, train_eval_record *record) {
    read_rewards(object, "eval_", &record->rewards);
    return read_count(object, "step", &record->step) && read_number(object, "epoch", &record->epoch) &&
           read_number(object, "eval_loss", &record->loss) && read_number(object, "seconds", &record->seconds);
}

/* Keeps what the line says where it is of an earlier run's steps that count. */
static bool take_line(train_log *log, const char *line, int64_t last_step, int64_t last_eval) {
    cJSON *object = cJSON_ParseWithOpts(line, NULL, true);
    train_step_record step = {0};
    train_eval_record eval = {0};
    bool taken = false;
    if (cJSON_HasObjectItem(object, "eval_loss")) {
        taken = read_eval(object, &eval) && eval.step <= last_eval;
        if (taken) { keep_eval(log, &eval); }
    } else {
        taken = read_step(object, &step) && step.m.step <= last_step;
        if (taken) { keep_step(log, &step); }
    }
    cJSON_Delete(object);
    return taken;
}

/* A stream of its own on the open file. */
static FILE *stream_of(int descriptor) {
    const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    FILE *stream = copy >= 0 ? fdopen(copy, "rb") : NULL;
    if (stream == NULL && copy >= 0) { close(copy); }
    return stream;
}

/* Reads whole lines as far as they count and cuts the file after them. */
static bool cut_back(train_log *log, int64_t last_step, int64_t last_eval) {
    FILE *stream = stream_of(log->descriptor);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    off_t kept_bytes = 0;
    if (stream == NULL) { return false; }
    while ((length = getline(&line, &capacity, stream)) > 0 && line[length - 1] == '\n' &&
           take_line(log, line, last_step, last_eval)) {
        kept_bytes += length;
    }
    const bool read_well = ferror(stream) == 0; /* nothing is cut because it could not be read */
    const int error_number = errno;
    free(line);
    fclose(stream);
    log->n_earlier_steps = log->n_steps;
    if (!read_well) { errno = error_number; }
    return read_well && ftruncate(log->descriptor, kept_bytes) == 0;
}

/* Somebody else's file of that name: every line of ours begins alike. One cut short at once may have less. */
static bool is_foreign(const train_log *log) {
    static const char ours[] = "{\"step\":";
    char begin[sizeof ours - 1];
    const ssize_t n = pread(log->descriptor, begin, sizeof begin, 0);
    return n > 0 && memcmp(begin, ours, (size_t)n) != 0;
}

int train_log_open(train_log *log, const char *folder, int64_t last_step, int64_t last_eval) {
    text_format(&log->path, "%s/metrics.jsonl", folder);
    log->descriptor = open_own(log->path.data, O_RDWR | O_APPEND | O_CREAT);
    if (log->descriptor < 0) { return complain(EXIT_FILE, "cannot open '%s': %s", log->path.data, own_problem(errno)); }
    log->opened = true;
    if (is_foreign(log)) {
        return complain(EXIT_FILE,
                        "'%s' has lines that are not qrun's, which it would cut away; move it away, or choose "
                        "another --out",
                        log->path.data);
    }
    if (cut_back(log, last_step, last_eval)) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot continue '%s': %s", log->path.data, strerror(errno));
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static int append(train_log *log, text_buffer *line, bool echo) {
    text_puts(line, "\n");
    const bool written = write_whole(log->descriptor, line);
    const int error_number = errno;
    if (echo) {
        progress_clear();
        fwrite(line->data, 1, line->size, stdout);
        fflush(stdout);
    }
    text_free(line);
    if (!written) { return complain(EXIT_FILE, "cannot write '%s': %s", log->path.data, strerror(error_number)); }
    if (echo && ferror(stdout) != 0) { (void)complain_stdout(errno); } /* the run goes on; its exit code says it too */
    return EXIT_OK;
}

/* A run without a timeline has spent no time on anything. */
static void put_phases(const qrun_phases *p, text_buffer *line) {
    const struct {
        const char *name;
        double seconds;
    } phases[] = {{"data", p->data},         {"forward", p->forward},     {"loss", p->loss},
                  {"backward", p->backward}, {"recompute", p->recompute}, {"optimizer", p->optimizer},
                  {"copies", p->copies},     {"waiting", p->waiting},     {"other", p->other}};
    if (!(p->forward > 0)) { return; }
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        text_format(line, "%s\"%s\":%.6f", i > 0 ? "," : ",\"phases\":{", phases[i].name, phases[i].seconds);
    }
    text_puts(line, "}");
}

void train_log_put_rewards(const qrun_rewards *r, const char *prefix, const char *space, text_buffer *out) {
    if (r->n_pairs == 0) { return; }
    for (size_t i = 0; i < N_REWARD_MEMBERS; i++) {
        double value;
        memcpy(&value, (const char *)r + reward_members[i].offset, sizeof value);
        text_format(out, ",%s\"%srewards/%s\":%s%s", space, prefix, reward_members[i].name, space,
                    json_double(value).text);
    }
}

int train_log_step(train_log *log, const train_step_record *record, bool echo) {
    text_buffer line = {0};
    text_format(&line, "{\"step\":%lld,\"epoch\":%s,\"loss\":%s,\"learning_rate\":%s,\"grad_norm\":%s",
                (long long)record->m.step, json_double(record->m.epoch).text, json_double(record->m.loss).text,
                json_double(record->m.learning_rate).text, json_double(record->m.grad_norm).text);
    if (record->m.loss_scale > 0) {
        text_format(&line, ",\"loss_scale\":%s,\"skipped_steps\":%lld", json_double(record->m.loss_scale).text,
                    (long long)record->m.n_skipped);
    }
    text_format(&line, ",\"tokens\":%lld,\"target_tokens\":%lld,\"tokens_per_second\":%.1f,\"seconds\":%.6f",
                (long long)record->m.n_tokens, (long long)record->m.n_target_tokens,
                train_step_tokens_per_second(record), record->m.seconds);
    train_log_put_rewards(&record->m.rewards, "", "", &line);
    if (record->m.rewards.n_pairs > 0) { text_format(&line, ",\"pairs\":%lld", (long long)record->m.rewards.n_pairs); }
    put_phases(&record->m.phases, &line);
    text_format(&line, ",\"peak_bytes\":%lld%s%s}", (long long)record->peak_bytes,
                record->m.skipped ? ",\"skipped\":true" : "", record->m.overflowed ? ",\"overflowed\":true" : "");
    keep_step(log, record);
    return append(log, &line, echo);
}

int train_log_eval(train_log *log, const train_eval_record *record, bool echo) {
    text_buffer line = {0};
    text_format(&line, "{\"step\":%lld,\"epoch\":%s,\"eval_loss\":%s", (long long)record->step,
                json_double(record->epoch).text, json_double(record->loss).text);
    train_log_put_rewards(&record->rewards, "eval_", "", &line);
    if (record->rewards.n_pairs > 0) { text_format(&line, ",\"eval_pairs\":%lld", (long long)record->rewards.n_pairs); }
    text_format(&line, ",\"seconds\":%.6f}", record->seconds);
    keep_eval(log, record);
    return append(log, &line, echo);
}

int train_log_sync(train_log *log) {
    if (fsync(log->descriptor) == 0 || errno == EINVAL) { return EXIT_OK; } /* EINVAL: no file, a pipe or a terminal */
    return complain(EXIT_FILE, "cannot write '%s': %s", log->path.data, strerror(errno));
}

int train_log_close(train_log *log) {
    if (!log->opened) { return EXIT_OK; }
    log->opened = false;
    if (close(log->descriptor) == 0) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot write '%s': %s", log->path.data, strerror(errno));
}

void train_log_free(train_log *log) {
    if (log->opened) { close(log->descriptor); }
    text_free(&log->path);
    free(log->steps);
    free(log->evals);
    *log = (train_log){0};
}
