/* The bytes of a data file as one map, whatever they come from: a file as it is, a pipe, or either of them in gzip or
 * Zstandard. What is not a plain file is first written into the cache folder, to a file that has lost its name once it
 * is mapped. So memory does not grow with the data, and all that comes after reads maps alone. */
#ifndef QR_LOADERS_DATA_CONTENTS_H
#define QR_LOADERS_DATA_CONTENTS_H

#include "base/file_map.h"
#include "loaders/data/dataset.h"

/* `path` is options->path ("-": stdin) or, where that is a folder, a file in it. QRUN_ERROR_CANCELLED when
 * options->progress says so, also while a pipe has nothing to read. */
qrun_status qr_contents_open(const qr_dataset_options *options, const char *path, qr_file_map *map, qr_error *err);

/* Tells options->progress, if there is one; QRUN_ERROR_CANCELLED when it wants no more. */
qrun_status qr_contents_progress(const qr_dataset_options *options, int64_t done, int64_t total, qr_error *err);

/* The files of a folder and of the folders in it, in the order of their paths; names that begin with a dot are passed
 * over, and links to folders are not followed. */
typedef struct qr_file_list {
    char **paths;
    size_t n, capacity;
} qr_file_list;

/* The files of a folder; of any other path, that path alone. Free the list also after an error. */
qrun_status qr_file_list_make(const char *path, qr_file_list *list, qr_error *err);
void qr_file_list_free(qr_file_list *list);

#endif
