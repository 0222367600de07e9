/* A temporary folder for files that a test makes, and the sweep that fails every allocation in turn. */
#ifndef QR_TESTS_TEMPORARY_H
#define QR_TESTS_TEMPORARY_H

#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"

typedef struct temporary_folder {
    char path[64];
} temporary_folder;

static inline temporary_folder temporary_create(void) {
    temporary_folder folder = {"/tmp/qrun_test_XXXXXX"};
    CHECK(mkdtemp(folder.path) != NULL);
    return folder;
}

static inline void temporary_remove_tree(const char *path) {
    DIR *listing = opendir(path);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        char *child = qr_path_join(path, entry->d_name);
        struct stat info;
        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode)) {
            temporary_remove_tree(child);
        } else {
            remove(child);
        }
        qr_free(child);
    }
    if (listing != NULL) { closedir(listing); }
    remove(path);
}

static inline void temporary_remove(const temporary_folder *folder) { temporary_remove_tree(folder->path); }

/* Path of a file in the folder; valid until the fourth call from now. */
static inline const char *temporary_path(const temporary_folder *folder, const char *name) {
    static char paths[4][4096];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder->path, name);
    return paths[turn];
}

static inline const char *temporary_write(const temporary_folder *folder, const char *name, const void *bytes,
                                          size_t n_bytes) {
    const char *path = temporary_path(folder, name);
    qr_error err = {0};
    CHECK_MSG(qr_file_write(path, bytes, n_bytes, &err) == QRUN_OK, "%s", err.message);
    return path;
}

static inline const char *temporary_text(const temporary_folder *folder, const char *name, const char *text) {
    return temporary_write(folder, name, text, strlen(text));
}

/* Writes a safetensors file from its header text and data. */
static inline const char *temporary_safetensors(const temporary_folder *folder, const char *name, const char *header,
                                                const void *data, size_t n_bytes) {
    const size_t length = strlen(header);
    unsigned char *bytes = calloc(1, 8 + length + n_bytes);
    for (int i = 0; i < 8; i++) { bytes[i] = (unsigned char)((uint64_t)length >> (8 * i)); }
    memcpy(bytes + 8, header, length);
    if (n_bytes > 0 && data != NULL) { memcpy(bytes + 8 + length, data, n_bytes); }
    const char *path = temporary_write(folder, name, bytes, 8 + length + n_bytes);
    free(bytes);
    return path;
}

/* Runs `attempt` with the first allocation failing, then the second, and so on until it succeeds. It must report
 * exactly QRUN_ERROR_MEMORY whenever an allocation failed, and hold nothing after any outcome. `writes_files`: success
 * is right too, because syncing a folder after a rename is tried and not insisted on. */
static inline void check_failing_allocations(qrun_status (*attempt)(void *context, qr_error *err), void *context,
                                             bool writes_files) {
    qr_alloc_stats before, after;
    for (int64_t n = 1; n < 100000; n++) {
        qr_error err = {0};
        qr_alloc_get_stats(&before);
        qr_alloc_fail_at(n);
        const qrun_status status = attempt(context, &err);
        qr_alloc_fail_at(0);
        qr_alloc_get_stats(&after);
        CHECK_MSG(after.n_held == before.n_held, "allocation %lld failing: %lld blocks are still held", (long long)n,
                  (long long)(after.n_held - before.n_held));
        if (after.n_allocations - before.n_allocations < n) {
            CHECK_MSG(status == QRUN_OK, "%s", err.message);
            CHECK(n > 1);
            return;
        }
        if (writes_files && status == QRUN_OK) { continue; }
        CHECK_MSG(status == QRUN_ERROR_MEMORY && err.message[0] != '\0', "allocation %lld failing gives status %d: %s",
                  (long long)n, (int)status, err.message);
        if (check_state.n_failures_in_case > 10) { return; }
    }
    CHECK(!"the sweep came to an end");
}

#endif
