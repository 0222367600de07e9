#include "cli/profile/profile.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/options/command.h"
#include "cli/profile/chrome_trace.h"
#include "cli/profile/memory_snapshot.h"
#include "cli/terminal/files.h"

static int make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0) { return EXIT_OK; }
    const int error_number = errno;
    if (error_number == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot make the folder '%s' of --profile: %s", path,
                    error_number == EEXIST ? "there is a file of that name" : strerror(error_number));
}

static double unix_seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int append_events(const profile *p, text_buffer *records) {
    const bool written = write_whole(p->events, records);
    const int error_number = errno;
    text_free(records);
    if (written) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot write '%s': %s", p->events_path.data, strerror(error_number));
}

/* A file of its own for every call of the program: TensorBoard reads all of a folder. */
static int open_events(profile *p, const char *folder) {
    const double now = unix_seconds();
    text_buffer records = {0};
    text_format(&p->events_path, "%s/events.out.tfevents.%lld.qrun.%ld", folder, (long long)now, (long)getpid());
    p->events = create_own(p->events_path.data);
    if (p->events < 0) {
        const int code = complain(EXIT_FILE, "cannot create '%s': %s", p->events_path.data, own_problem(errno));
        text_free(&p->events_path);
        return code;
    }
    p->folder = folder;
    event_file_begin(&records, now);
    return append_events(p, &records);
}

int profile_scalars(const profile *p, int64_t step, const event_scalar *scalars, int n_scalars) {
    text_buffer records = {0};
    if (p->folder == NULL) { return EXIT_OK; }
    event_file_scalars(&records, unix_seconds(), step, scalars, n_scalars);
    return append_events(p, &records);
}

int profile_begin(profile *p, const char *folder, const engine *e) {
    qrun_error error = QRUN_ERROR_INIT;
    if (folder == NULL) { return EXIT_OK; }
    RETURN_IF_FAILED(make_folder(folder));
    RETURN_IF_FAILED(open_events(p, folder));
    p->context = e->context;
    return complain_unless_ok(qrun_context_timeline_begin(e->context, 0, &error), &error);
}

bool profile_is_due(const profile *p, int64_t step, int64_t first, int64_t last) {
    const int64_t wanted = last - first + 1 < PROFILE_STEP ? last : first + PROFILE_STEP - 1;
    return p->folder != NULL && step == wanted;
}

int profile_write(const profile *p, const char *name, text_buffer *content) {
    text_buffer path = {0};
    text_format(&path, "%s/%s", p->folder, name);
    const int code = replace_own_file(path.data, content);
    text_free(&path);
    text_free(content);
    return code;
}

static int write_files(const profile *p) {
    text_buffer content = {0};
    chrome_trace_write(&p->timeline, &p->memory, &content);
    RETURN_IF_FAILED(profile_write(p, "trace.json", &content));
    memory_snapshot_write(&p->timeline, &content);
    return profile_write(p, "memory.pickle", &content);
}

int profile_take(profile *p, int64_t step) {
    qrun_error error = QRUN_ERROR_INIT;
    if (p->folder == NULL) { return EXIT_OK; }
    if (p->taken) { live_memory_free(&p->memory); }
    p->taken = false;
    p->timeline = (qrun_timeline)QRUN_TIMELINE_INIT;
    RETURN_IF_FAILED(complain_unless_ok(qrun_context_timeline_get(p->context, &p->timeline, &error), &error));
    live_memory_make(&p->timeline, &p->memory);
    p->taken = true;
    p->step = step;
    return write_files(p);
}

void profile_end(profile *p) {
    if (p->taken) { live_memory_free(&p->memory); }
    if (p->context != NULL) { qrun_context_timeline_end(p->context); }
    if (p->folder != NULL) { close(p->events); }
    text_free(&p->events_path);
    *p = (profile){0};
}
