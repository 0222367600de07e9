#include "cli/requests/answer_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/options/command.h"
#include "cli/terminal/files.h"
#include "cli/terminal/progress.h"

static int complain_io(const char *what, const char *path) {
    return complain(EXIT_FILE, "cannot %s '%s': %s", what, path, own_problem(errno));
}

/* ---- What a partial file holds ----------------------------------------------------------------------------------- */

enum { INDEX_MAX = 1 << 30 };

static void mark_done(answer_file *file, int64_t index) {
    if (index >= file->n_done_bits) {
        int64_t n_bits = file->n_done_bits < 1024 ? 1024 : file->n_done_bits;
        while (n_bits <= index) { n_bits *= 2; }
        file->done = reallocate(file->done, (size_t)(n_bits / 8));
        memset(file->done + file->n_done_bits / 8, 0, (size_t)((n_bits - file->n_done_bits) / 8));
        file->n_done_bits = n_bits;
    }
    file->done[index / 8] |= (uint8_t)(1U << (index % 8));
    file->n_done++;
}

bool answer_file_has(const answer_file *file, int64_t index) {
    return index < file->n_done_bits && (file->done[index / 8] & (1U << (index % 8))) != 0;
}

/* What one line of a partial file says. */
typedef struct partial_line {
    int64_t index;
    int64_t sample, n; /* of the request's samples */
    bool failed;
} partial_line;

static int64_t whole_member(const cJSON *object, const char *key, int64_t absent) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
    if (member == NULL) { return absent; }
    const bool fits = cJSON_IsNumber(member) && member->valuedouble >= 0 && member->valuedouble < INDEX_MAX;
    return fits && (double)(int64_t)member->valuedouble == member->valuedouble ? (int64_t)member->valuedouble : -1;
}

static bool read_partial_line(const char *line, partial_line *read) {
    cJSON *object = cJSON_ParseWithOpts(line, NULL, true);
    read->index = whole_member(object, "index", -1);
    read->sample = whole_member(object, "sample", 0);
    read->n = whole_member(object, "n", 1);
    read->failed = cJSON_GetObjectItemCaseSensitive(object, "error") != NULL;
    const bool has_text = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(object, "text"));
    const bool valid = cJSON_IsObject(object) && read->index >= 0 && read->sample >= 0 && read->sample < read->n &&
                       has_text != read->failed;
    cJSON_Delete(object);
    return valid;
}

/* Walks the partial file. Requests are written whole and one after another, so only its end can be torn: *whole_bytes
 * is where the last complete request ends. */
static int scan_partial(answer_file *file, off_t *whole_bytes) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    off_t offset = 0;
    int64_t line_number = 0, expected_sample = 0;
    int code = EXIT_OK;
    *whole_bytes = 0;
    errno = 0;
    while ((length = getline(&line, &capacity, file->stream)) > 0 && line[length - 1] == '\n') {
        partial_line read;
        offset += length;
        line_number++;
        if (memchr(line, '\0', (size_t)length) != NULL || !read_partial_line(line, &read) ||
            read.sample != expected_sample || answer_file_has(file, read.index)) {
            code = complain(EXIT_FILE, "line %lld of '%s' is not an answer of this job; remove '%s' to start again",
                            (long long)line_number, file->partial_path.data, file->partial_path.data);
            break;
        }
        expected_sample = read.failed || read.sample + 1 == read.n ? 0 : read.sample + 1;
        if (expected_sample != 0) { continue; }
        mark_done(file, read.index);
        file->n_done_failed += read.failed;
        *whole_bytes = offset;
    }
    if (code == EXIT_OK && ferror(file->stream) != 0) { code = complain_io("read", file->partial_path.data); }
    free(line);
    return code;
}

/* ---- Which job it is --------------------------------------------------------------------------------------------- */

/* "'temperature' was \"0.5\" and is \"0.8\" now": the first member in which two objects differ. */
static bool describe_difference(const cJSON *before, const cJSON *now, text_buffer *out) {
    const cJSON *const sides[] = {before, now};
    for (int side = 0; side < 2; side++) {
        for (const cJSON *member = sides[side] != NULL ? sides[side]->child : NULL; member != NULL;
             member = member->next) {
            const cJSON *a = cJSON_GetObjectItemCaseSensitive(before, member->string);
            const cJSON *b = cJSON_GetObjectItemCaseSensitive(now, member->string);
            if (cJSON_Compare(a, b, true)) { continue; }
            char *was = a != NULL ? cJSON_PrintUnformatted(a) : NULL;
            char *is = b != NULL ? cJSON_PrintUnformatted(b) : NULL;
            text_format(out, "--%s was %s and is %s now", member->string, was != NULL ? was : "not given",
                        is != NULL ? is : "not given");
            cJSON_free(was);
            cJSON_free(is);
            return true;
        }
    }
    return false;
}

static bool is_same(const cJSON *before, const cJSON *now, const char *name) {
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(before, name), *b = cJSON_GetObjectItemCaseSensitive(now, name);
    return (a == NULL && b == NULL) || cJSON_Compare(a, b, true);
}

static int check_same_job(const answer_file *file, const text_buffer *job) {
    text_buffer before = {0}, difference = {0};
    struct stat job_file;
    if (lstat(file->job_path.data, &job_file) != 0) {
        return complain(EXIT_FILE, "'%s' cannot be continued without '%s' beside it; remove it to start again",
                        file->partial_path.data, file->job_path.data);
    }
    int code = file_read_own(&before, file->job_path.data);
    if (code != EXIT_OK) { return code; }
    cJSON *was = cJSON_ParseWithOpts(before.data, NULL, true), *is = cJSON_Parse(job->data);
    if (!cJSON_IsObject(was)) {
        code = complain(EXIT_FILE, "'%s' is damaged; remove '%s' to start again", file->job_path.data,
                        file->partial_path.data);
    } else if (!is_same(was, is, "prompts")) {
        code = complain(EXIT_USAGE, "the prompts are not those that '%s' answers; remove it to start again",
                        file->partial_path.data);
    } else if (describe_difference(cJSON_GetObjectItemCaseSensitive(was, "options"),
                                   cJSON_GetObjectItemCaseSensitive(is, "options"), &difference)) {
        code = complain(EXIT_USAGE, "'%s' was begun with other options: %s; give the same, or remove it to start again",
                        file->partial_path.data, difference.data);
    } else if (!is_same(was, is, "files")) {
        code =
            complain(EXIT_USAGE,
                     "the schema or the tools are not those that '%s' was begun with; give the same, or remove it to "
                     "start again",
                     file->partial_path.data);
    }
    cJSON_Delete(was);
    cJSON_Delete(is);
    text_free(&before);
    text_free(&difference);
    return code;
}

static int write_job(const answer_file *file, const text_buffer *job) {
    const int descriptor = create_own(file->job_path.data);
    if (descriptor < 0) { return complain_io("create", errno == EEXIST ? file->job_path.data : file->path); }
    const bool written = write_whole(descriptor, job);
    const int error_number = errno;
    if (close(descriptor) == 0 && written) { return EXIT_OK; }
    if (!written) { errno = error_number; }
    const int code = complain_io("write", file->job_path.data);
    unlink(file->job_path.data);
    return code;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static int open_direct(answer_file *file) {
    file->stream = fopen(file->path, "ab");
    return file->stream != NULL ? EXIT_OK : complain_io("open", file->path);
}

static int complain_being_written(const answer_file *file) {
    return complain(EXIT_FILE, "another qrun is writing '%s'", file->partial_path.data);
}

/* Of a job that was interrupted, or one that runs. */
static int complain_left_over(const answer_file *file) {
    const int descriptor = open_own(file->partial_path.data, O_RDONLY);
    if (descriptor < 0) { return complain_io("open", file->partial_path.data); }
    const bool held = descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(descriptor);
    if (held) { return complain_being_written(file); }
    return complain(EXIT_USAGE, "'%s' is left from an interrupted job: add --resume to continue it, or remove it",
                    file->partial_path.data);
}

static int open_stream(answer_file *file, int flags) {
    const int descriptor = open_own(file->partial_path.data, flags);
    if (descriptor < 0 && errno == EEXIST) { return complain_left_over(file); }
    if (descriptor < 0) { return complain_io("create", errno == ELOOP ? file->partial_path.data : file->path); }
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(descriptor);
        return complain_being_written(file);
    }
    file->stream = fdopen(descriptor, "r+b");
    if (file->stream == NULL) {
        close(descriptor);
        return complain_io("open", file->partial_path.data);
    }
    file->aside = true;
    return EXIT_OK;
}

static int resume_partial(answer_file *file, const text_buffer *job) {
    int code = open_stream(file, O_RDWR);
    off_t whole_bytes;
    if (code == EXIT_OK) { code = check_same_job(file, job); }
    if (code == EXIT_OK) { code = scan_partial(file, &whole_bytes); }
    if (code != EXIT_OK) { return code; }
    if (fseeko(file->stream, whole_bytes, SEEK_SET) != 0 || ftruncate(fileno(file->stream), whole_bytes) != 0) {
        return complain_io("continue", file->partial_path.data);
    }
    return EXIT_OK;
}

/* With the partial file, which is held first, so that no other program writes the job file. `flags` create it, or open
 * an empty one, which a program left that was killed between these two steps. */
static int begin_job(answer_file *file, const text_buffer *job, int flags) {
    RETURN_IF_FAILED(open_stream(file, flags));
    const int code = write_job(file, job);
    if (code != EXIT_OK) {
        unlink(file->partial_path.data);
        file->aside = false;
    }
    return code;
}

/* ---- Trying errors again ----------------------------------------------------------------------------------------- */

/* Copies the lines of `from` that are not errors to `to`. */
static int copy_answers(FILE *from, FILE *to, const char *path) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool written = true;
    errno = 0;
    while (written && (length = getline(&line, &capacity, from)) > 0) {
        partial_line read;
        const bool failed = read_partial_line(line, &read) && read.failed;
        written = failed || fwrite(line, 1, (size_t)length, to) == (size_t)length;
    }
    written = written && ferror(from) == 0 && fflush(to) == 0 && fsync(fileno(to)) == 0;
    const int error_number = errno;
    free(line);
    errno = error_number;
    return written ? EXIT_OK : complain_io("take the answers from", path);
}

/* Makes the partial file anew of the answers in `path`, itself or the whole file. */
static int drop_errors(answer_file *file, const char *path) {
    text_buffer kept = {0};
    text_format(&kept, "%s.kept", file->partial_path.data);
    const int from = open_own(path, O_RDONLY), to = create_own(kept.data);
    FILE *in = from >= 0 ? fdopen(from, "rb") : NULL, *out = to >= 0 ? fdopen(to, "wb") : NULL;
    int code = in != NULL && out != NULL ? EXIT_OK : complain_io("open", in == NULL ? path : kept.data);
    if (code == EXIT_OK && flock(from, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        code = complain_being_written(file);
    }
    if (code == EXIT_OK) { code = copy_answers(in, out, path); }
    if (code == EXIT_OK && rename(kept.data, file->partial_path.data) != 0) {
        code = complain_io("create", file->partial_path.data);
    }
    if (code != EXIT_OK) { unlink(kept.data); }
    if (in != NULL) { fclose(in); }
    if (out != NULL) { fclose(out); }
    text_free(&kept);
    return code;
}

static int begin_retry(answer_file *file, const text_buffer *job, bool has_partial) {
    RETURN_IF_FAILED(check_same_job(file, job));
    return drop_errors(file, has_partial ? file->partial_path.data : file->path);
}

/* ---- A new job, or the rest of one ------------------------------------------------------------------------------- */

static int complain_exists(const answer_file *file) {
    return complain(EXIT_USAGE, "'%s' is there already: --force replaces it, or choose another --output", file->path);
}

static int resume(answer_file *file, const answer_file_options *options, const text_buffer *job, bool target_exists,
                  bool *already_whole) {
    struct stat info;
    const bool has_partial = lstat(file->partial_path.data, &info) == 0;
    const bool is_empty = has_partial && S_ISREG(info.st_mode) && info.st_size == 0;
    const bool has_job = lstat(file->job_path.data, &info) == 0;
    if (!has_partial && target_exists && !(options->retry_errors && has_job)) {
        *already_whole = true;
        file->stream = NULL;
        return EXIT_OK;
    }
    const bool goes_on = options->retry_errors && has_job; /* the whole file is of this job */
    if (has_partial && target_exists && !options->force && !goes_on) { return complain_exists(file); }
    file->replaces = options->force || target_exists; /* the whole file's answers are in the partial one then */
    if (is_empty && !has_job) { return begin_job(file, job, O_RDWR); }
    if (options->retry_errors && (has_partial || target_exists)) {
        RETURN_IF_FAILED(begin_retry(file, job, has_partial));
        return resume_partial(file, job);
    }
    return has_partial ? resume_partial(file, job) : begin_job(file, job, O_RDWR | O_CREAT | O_EXCL);
}

int answer_file_open(answer_file *file, const answer_file_options *options, const text_buffer *job,
                     bool *already_whole) {
    const char *path = options->path;
    *already_whole = false;
    file->path = path;
    file->stream = stdout;
    file->replaces = options->force;
    if (path == NULL || strcmp(path, "-") == 0) {
        file->path = NULL;
        return EXIT_OK;
    }
    struct stat target, partial;
    const bool target_exists = stat(path, &target) == 0;
    if (target_exists && S_ISDIR(target.st_mode)) { return complain(EXIT_FILE, "--output '%s' is a folder", path); }
    if (target_exists && !S_ISREG(target.st_mode)) { return open_direct(file); }
    output_target(path, &file->target);
    file->path = file->target.data;
    text_format(&file->partial_path, "%s.partial", file->path);
    text_format(&file->job_path, "%s.partial.job", file->path);
    if (options->resume) { return resume(file, options, job, target_exists, already_whole); }
    if (lstat(file->partial_path.data, &partial) == 0) { return complain_left_over(file); }
    if (target_exists && !options->force) { return complain_exists(file); }
    return begin_job(file, job, O_RDWR | O_CREAT | O_EXCL);
}

/* ---- Writing and ending ------------------------------------------------------------------------------------------ */

int answer_file_write(answer_file *file, const text_buffer *lines) {
    if (file->stream == stdout) { progress_clear(); }
    if (fwrite(lines->data, 1, lines->size, file->stream) == lines->size && fflush(file->stream) == 0) {
        return EXIT_OK;
    }
    if (file->path == NULL) { return complain_stdout(errno); }
    if (!file->aside) { return complain_io("write answers to", file->path); }
    return complain(EXIT_FILE,
                    "cannot write answers to '%s': %s; to continue after those in '%s', repeat the command with "
                    "--resume",
                    file->path, strerror(errno), file->partial_path.data);
}

/* So that the rename itself outlives a crash; a folder that cannot be synced is no reason to fail. */
static void sync_folder_of(const char *path) {
    text_buffer folder = {0};
    folder_of(path, &folder);
    const int descriptor = open(folder.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0) {
        (void)fsync(descriptor);
        close(descriptor);
    }
    text_free(&folder);
}

static void release(answer_file *file) {
    if (file->stream != NULL && file->stream != stdout) { fclose(file->stream); }
    free(file->done);
    text_free(&file->target);
    text_free(&file->partial_path);
    text_free(&file->job_path);
    *file = (answer_file){0};
}

int answer_file_finish(answer_file *file, bool has_errors) {
    int code = EXIT_OK;
    struct stat target;
    if (file->aside) {
        if (!file->replaces && stat(file->path, &target) == 0) {
            code = complain(EXIT_FILE, "'%s' was made by another program meanwhile; the answers are in '%s'",
                            file->path, file->partial_path.data);
        } else if (fsync(fileno(file->stream)) != 0) {
            code = complain_io("write", file->partial_path.data);
        } else if (rename(file->partial_path.data, file->path) != 0) {
            code = complain_io("rename the finished file to", file->path);
        } else {
            if (!has_errors && file->n_done_failed == 0) { unlink(file->job_path.data); }
            sync_folder_of(file->path);
        }
    }
    release(file);
    return code;
}

void answer_file_abandon(answer_file *file) {
    struct stat partial;
    if (file->aside && fstat(fileno(file->stream), &partial) == 0 && partial.st_size == 0) {
        unlink(file->partial_path.data);
        unlink(file->job_path.data);
    }
    release(file);
}
