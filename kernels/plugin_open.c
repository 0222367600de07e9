#define _GNU_SOURCE
#include "kernels/plugin_open.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* The file in the folder of this code; false when there is none. */
static bool in_own_folder(const char *file, char path[PATH_BYTES]) {
    Dl_info own;
    if (dladdr((const void *)(uintptr_t)in_own_folder, &own) == 0 || own.dli_fname == NULL) { return false; }
    const char *slash = strrchr(own.dli_fname, '/');
    const int folder = slash != NULL ? (int)(slash - own.dli_fname) + 1 : 0;
    const int length = snprintf(path, PATH_BYTES, "%.*s%s", folder, own.dli_fname, file);
    return length > 0 && length < PATH_BYTES && access(path, R_OK) == 0;
}

static qrun_status open_library(const qr_plugin_file *plugin, void **library, qr_error *err) {
    char path[PATH_BYTES];
    const char *named = getenv(plugin->variable);
    const bool is_named = named != NULL && named[0] != '\0', is_own = !is_named && in_own_folder(plugin->file, path);
    const char *file = is_named ? named : is_own ? path : plugin->file;
    *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL) { return QRUN_OK; }
    if (!is_named && !is_own) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s was not found: %s (%s names the file)", plugin->name,
                       plugin->file, plugin->absent, plugin->variable);
    }
    const char *reason = dlerror();
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: cannot open %s: %s", plugin->name, file,
                   reason != NULL ? reason : "unknown");
}

qrun_status qr_plugin_open(const qr_plugin_file *plugin, qr_plugin_function *function, qr_error *err) {
    void *library;
    QR_RETURN_IF_ERROR(open_library(plugin, &library, err));
    void *symbol = dlsym(library, plugin->symbol);
    memcpy(function, &symbol, sizeof *function); /* C has no cast from a pointer to data to one to a function */
    if (symbol != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: %s is not qrun's", plugin->name, plugin->file);
}
