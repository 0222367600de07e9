/* For fuzz targets: a check that aborts, and input as a file for readers that take a path. */
#ifndef QR_TESTS_FUZZ_H
#define QR_TESTS_FUZZ_H

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

/* The folder for files of this process, in memory where there is such a place: a disk is a hundred times slower. */
static inline const char *fuzz_folder(void) {
    static char folder[64];
    if (folder[0] == '\0') {
        const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        snprintf(folder, sizeof folder, "%s/qrun_fuzz_%ld", base, (long)getpid());
    }
    return folder;
}

/* Writes a file of the folder, making that when needed, and gives its path, valid until the next call. */
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char path[256];
    (void)mkdir(fuzz_folder(), 0700);
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    FILE *file = fopen(path, "wb");
    FUZZ_CHECK(file != NULL);
    FUZZ_CHECK(size == 0 || fwrite(data, 1, size, file) == size);
    FUZZ_CHECK(fclose(file) == 0);
    return path;
}

/* Removes a file written by fuzz_file, and the folder when nothing else is in it. */
static inline void fuzz_file_remove(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    remove(path);
    (void)rmdir(fuzz_folder());
}

#endif
