/* Questions about the end of a name. */
#ifndef QR_LOADERS_FILES_SUFFIX_H
#define QR_LOADERS_FILES_SUFFIX_H

#include <stdbool.h>
#include <string.h>

/* True when `text` is something followed by `ending`. */
static inline bool qr_ends_with(const char *text, const char *ending) {
    const size_t n = strlen(text), n_ending = strlen(ending);
    return n > n_ending && strcmp(text + n - n_ending, ending) == 0;
}

/* True when `part` is the whole dotted path or its last parts: "mlp.up_proj" of "model.layers.0.mlp.up_proj". */
static inline bool qr_is_last_part(const char *path, const char *part) {
    const size_t n = strlen(path), n_part = strlen(part);
    return strcmp(path, part) == 0 || (qr_ends_with(path, part) && path[n - n_part - 1] == '.');
}

#endif
