/* Runs a fuzz target without libFuzzer: over every file of the folders named on the command line, cut short at every
 * length, and with bytes changed at places and to values that a fixed generator picks. A target says that something
 * is wrong by aborting. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_CUTS = 400, N_CHANGES = 600 };

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

/* The target gets a block of exactly the right size, so that a sanitizer sees a read past its end. */
static void run(const char *bytes, size_t n_bytes) {
    uint8_t *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    if (copy == NULL) { abort(); }
    memcpy(copy, bytes, n_bytes);
    LLVMFuzzerTestOneInput(copy, n_bytes);
    free(copy);
}

static void run_damaged(char *bytes, size_t n_bytes) {
    const size_t step = n_bytes / MAX_CUTS + 1;
    for (size_t n = 0; n < n_bytes; n += step) { run(bytes, n); }
    uint32_t state = (uint32_t)n_bytes;
    for (int i = 0; i < N_CHANGES && n_bytes > 0; i++) {
        const size_t at = next_random(&state) % n_bytes;
        const char kept = bytes[at];
        static const char likely[] = "\"{}[],:0129-e\\\n\x00\xFF\x7F.";
        const uint32_t pick = next_random(&state);
        bytes[at] = (char)(i % 2 == 0 ? likely[pick % sizeof likely] : kept ^ (1 << pick % 8));
        run(bytes, n_bytes);
        bytes[at] = kept;
    }
}

static int run_folder(const char *folder) {
    DIR *listing = opendir(folder);
    int n_seeds = 0;
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.') { continue; }
        char *path = qr_path_join(folder, entry->d_name), *bytes;
        size_t n_bytes;
        if (path == NULL || qr_file_read(path, (size_t)1 << 24, &bytes, &n_bytes, NULL) != QRUN_OK) { abort(); }
        run(bytes, n_bytes);
        run_damaged(bytes, n_bytes);
        qr_free(bytes);
        qr_free(path);
        n_seeds++;
    }
    if (listing != NULL) { closedir(listing); }
    return n_seeds;
}

int main(int argc, char **argv) {
    int n_seeds = 0;
    for (int i = 1; i < argc; i++) { n_seeds += run_folder(argv[i]); }
    printf("%d seeds\n", n_seeds);
    return n_seeds > 0 ? 0 : 1;
}
