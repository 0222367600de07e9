/* For fuzz targets: a check that aborts, and input as a file for readers that take a path. */
#ifndef QR_TESTS_FUZZ_H
#define QR_TESTS_FUZZ_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FUZZ_CHECK(condition)                                                             \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            abort();                                                                      \
        }                                                                                 \
    } while (0)

static char fuzz_folder_path[64];

static inline void fuzz_folder_remove(void) {
    DIR *listing = opendir(fuzz_folder_path);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing != NULL) { closedir(listing); }
    (void)rmdir(fuzz_folder_path);
}

/* The folder for files of this process, in memory where there is such a place: a disk is a hundred times slower. It is
 * made once and removed at the end. */
static inline const char *fuzz_folder(void) {
    if (fuzz_folder_path[0] == '\0') {
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "%s/qrun_fuzz_%ld", base, (long)getpid());
        FUZZ_CHECK(mkdir(fuzz_folder_path, 0700) == 0 || errno == EEXIST);
        FUZZ_CHECK(atexit(fuzz_folder_remove) == 0);
    }
    return fuzz_folder_path;
}

/* Writes a file of the folder and gives its path, valid until the next call. */
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    FUZZ_CHECK(file >= 0);
    FUZZ_CHECK(write(file, data, size) == (ssize_t)size);
    FUZZ_CHECK(close(file) == 0);
    return path;
}

/* Removes a file written by fuzz_file, where the next input must not find it. */
static inline void fuzz_file_remove(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    remove(path);
}

#endif
