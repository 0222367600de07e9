#include "cli/profile/profile.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/options/command.h"
#include "cli/profile/chrome_trace.h"
#include "cli/terminal/files.h"

static int make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0) { return EXIT_OK; }
    const int error_number = errno;
    if (error_number == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot make the folder '%s' of --profile: %s", path,
                    error_number == EEXIST ? "there is a file of that name" : strerror(error_number));
}

int profile_begin(profile *p, const char *folder, const engine *e) {
    qrun_error error = QRUN_ERROR_INIT;
    if (folder == NULL) { return EXIT_OK; }
    RETURN_IF_FAILED(make_folder(folder));
    RETURN_IF_FAILED(complain_unless_ok(qrun_context_timeline_begin(e->context, 0, &error), &error));
    p->folder = folder;
    p->context = e->context;
    return EXIT_OK;
}

bool profile_is_due(const profile *p, int64_t step, int64_t first, int64_t last) {
    const int64_t wanted = last - first + 1 < PROFILE_STEP ? last : first + PROFILE_STEP - 1;
    return p->folder != NULL && step == wanted;
}

static int write_file(const profile *p, const char *name, text_buffer *content) {
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
    return write_file(p, "trace.json", &content);
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
    *p = (profile){0};
}
