/* For tests of what writes a folder: a folder of this run's own to write in, and the two ways in which writing fails
 * with nothing left behind. */
#ifndef QR_TESTS_FOLDER_WRITING_H
#define QR_TESTS_FOLDER_WRITING_H

#include "check.h"

#include <dirent.h>
#include <qrun.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"

enum { SCRATCH_PATH_BYTES = 512 };

static char scratch[] = "/tmp/qrun-test-XXXXXX";

static inline bool scratch_begin(void) { return mkdtemp(scratch) != NULL; }
static inline void scratch_end(void) { rmdir(scratch); }

/* A path in it; good for sixteen calls. */
static inline const char *in_scratch(const char *name) {
    static char paths[16][SCRATCH_PATH_BYTES];
    static int next;
    char *path = paths[next++ % 16];
    snprintf(path, SCRATCH_PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

/* Removes a written folder with the files in it; false when it holds more. */
static inline bool scratch_remove(const char *path) {
    return qr_folder_mark(path, NULL) == QRUN_OK && qr_folder_remove_marked(path, NULL) == QRUN_OK &&
           !qr_file_exists(path);
}

/* Entries of a folder, "." and ".." left out; −1 when it cannot be opened. */
static inline int count_entries(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) { return -1; }
    int n = -2;
    while (readdir(folder) != NULL) { n++; }
    closedir(folder);
    return n;
}

/* Writes the folder `out`. */
typedef qrun_status (*folder_writer)(const char *out, qrun_error *error);

/* A limit on the size of files stands in for a full disk: write fails in the middle. */
static inline void check_full_disk(folder_writer write_folder) {
    struct rlimit old, small;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    signal(SIGXFSZ, SIG_IGN);
    small = old;
    static const rlim_t limits[] = {0, 100, 100000};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        small.rlim_cur = limits[i];
        REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
        qrun_error error = QRUN_ERROR_INIT;
        const qrun_status status = write_folder(in_scratch("full"), &error);
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK_INT(status, QRUN_ERROR_IO);
        CHECK_MSG(strstr(error.message, "cannot write") != NULL, "%s", error.message);
        CHECK_INT(count_entries(scratch), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* Each allocation in turn fails, until there are no more. Only tidying up does without one. */
static inline void check_failing_allocations(folder_writer write_folder) {
    qr_alloc_stats before, after;
    int64_t n = 1, n_harmless = 0;
    for (bool fired = true; fired; n++) {
        qrun_error error = QRUN_ERROR_INIT;
        qr_alloc_get_stats(&before);
        qr_alloc_fail_at(n);
        const qrun_status status = write_folder(in_scratch("short"), &error);
        qr_alloc_fail_at(0);
        qr_alloc_get_stats(&after);
        CHECK_INT(after.n_held, before.n_held);
        fired = after.n_allocations - before.n_allocations >= n;
        n_harmless += fired && status == QRUN_OK;
        CHECK_MSG(status == QRUN_OK || status == QRUN_ERROR_MEMORY, "allocation %lld: %s", (long long)n, error.message);
        CHECK_MSG(fired || status == QRUN_OK, "%s", error.message);
        if (status == QRUN_OK) { CHECK(scratch_remove(in_scratch("short"))); }
        CHECK_INT(count_entries(scratch), 0);
        REQUIRE(check_state.n_failures_in_case == 0);
    }
    CHECK_MSG(n > 100 && n_harmless <= 4, "%lld allocations, %lld of them not needed", (long long)n,
              (long long)n_harmless);
}

#endif
