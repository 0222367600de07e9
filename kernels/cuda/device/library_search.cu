#include "kernels/cuda/device/library_search.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

struct search {
    const char *file;
    bool (*try_path)(const char *path, void *arg);
    void *arg;
};

enum { PATH_BYTES = 4096 };

/* Every file that the pattern names, in the order of the alphabet. */
bool try_pattern(const search &s, const char *pattern) {
    glob_t found = {};
    bool taken = false;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !taken; i++) { taken = s.try_path(found.gl_pathv[i], s.arg); }
    }
    globfree(&found);
    return taken;
}

/* Below a folder of the environment's, whose name may hold what glob takes for a pattern: it is tried as it is then,
 * and finds nothing. */
bool try_below(const search &s, const char *folder, const char *below) {
    char pattern[PATH_BYTES];
    if (folder == NULL || folder[0] != '/') { return false; }
    const int length = snprintf(pattern, sizeof pattern, "%s/%s/%s", folder, below, s.file);
    return length > 0 && length < PATH_BYTES && try_pattern(s, pattern);
}

bool try_toolkit(const search &s, const char *folder) {
    return try_below(s, folder, "lib64") || try_below(s, folder, "lib");
}

bool try_python(const search &s, const char *folder) {
    return try_below(s, folder, "lib") || try_below(s, folder, "lib/python3*/site-packages/nvidia/*/lib") ||
           try_below(s, folder, "lib/python3*/dist-packages/nvidia/*/lib");
}

/* Each folder of $PATH that has a python3 and is called bin. */
bool try_pythons_on_path(const search &s) {
    const char *at = getenv("PATH");
    while (at != NULL && at[0] != '\0') {
        static const char bin[] = "/bin", python[] = "/python3";
        const size_t length = strcspn(at, ":"), tail = sizeof bin - 1;
        char folder[PATH_BYTES];
        if (length > tail && length + sizeof python < sizeof folder && strncmp(at + length - tail, bin, tail) == 0) {
            memcpy(folder, at, length);
            memcpy(folder + length, python, sizeof python);
            const bool has_python = access(folder, X_OK) == 0;
            folder[length - tail] = '\0';
            if (has_python && try_python(s, folder)) { return true; }
        }
        at += length + (at[length] == ':' ? 1 : 0);
    }
    return false;
}

} // namespace

bool qr_library_search(const char *file, bool (*try_path)(const char *path, void *arg), void *arg) {
    const search s = {file, try_path, arg};
    return try_path(file, arg) || try_toolkit(s, getenv("CUDA_HOME")) || try_toolkit(s, getenv("CUDA_PATH")) ||
           try_toolkit(s, "/usr/local/cuda") || try_python(s, getenv("VIRTUAL_ENV")) ||
           try_python(s, getenv("CONDA_PREFIX")) || try_pythons_on_path(s) || try_python(s, "/usr/local") ||
           try_python(s, "/usr");
}
