/* The file of a tokenised data set: written once from front to back, mapped afterwards.
 *
 * Named <folder>/<key as 16 hexadecimal digits>.qrdata, in the byte order of the machine:
 *
 *   8 bytes             "QRDATA03"
 *   8 bytes             the key: a hash of everything that the tokens depend on
 *   per example         int32 ids[n_tokens], then uint8 is_target[n_tokens], zeros up to a multiple of 4 bytes
 *   zeros               up to a multiple of 8 bytes
 *   per example         qr_cache_entry
 *   qr_cache_footer     at the end of the file; its checksum is over every byte before the checksum itself
 *
 * A reader checks all of it; a file that is not exactly so is as good as none, and is written again. */
#ifndef QR_LOADERS_DATA_CACHE_H
#define QR_LOADERS_DATA_CACHE_H

#include "base/file.h"
#include "base/file_map.h"
#include "loaders/data/dataset.h"

typedef struct qr_cache_entry {
    uint64_t offset; /* of ids, from the front of the file */
    int64_t line;
    int32_t n_tokens, n_targets;
    int32_t n_chosen; /* of a pair, as in qr_example; else 0 */
    int32_t unused;   /* 0 */
} qr_cache_entry;

typedef struct qr_cache_footer {
    uint64_t index_offset; /* of the first entry */
    qr_dataset_info info;
    uint64_t checksum;
} qr_cache_footer;

/* ---- writing ----------------------------------------------------------------------------------------------------- */

typedef struct qr_cache_writer {
    qr_file_writer file;
    uint64_t hash; /* of every byte so far */
    qr_cache_entry *entries;
    size_t n_entries, capacity;
} qr_cache_writer;

qrun_status qr_cache_writer_open(qr_cache_writer *writer, const char *path, uint64_t key, qr_error *err);
qrun_status qr_cache_writer_add(qr_cache_writer *writer, const qr_example *example, qr_error *err);
/* Gives the file its final name. Ends the writer, as abort does, also when it fails. */
qrun_status qr_cache_writer_commit(qr_cache_writer *writer, const qr_dataset_info *info, qr_error *err);
void qr_cache_writer_abort(qr_cache_writer *writer); /* fine for a zeroed one */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef struct qr_cache {
    char *path;
    qr_file_map map;
    const qr_cache_entry *entries; /* [info.n_examples], in the map */
    qr_dataset_info info;
} qr_cache;

/* QRUN_ERROR_NOT_FOUND where there is no such file, QRUN_ERROR_INPUT where it is not a whole cache of this key. */
qrun_status qr_cache_open(qr_cache *cache, const char *path, uint64_t key, qr_error *err);
void qr_cache_close(qr_cache *cache);
/* QRUN_ERROR_IO when the file was cut short since then, so that what was got from it may be zeros. */
qrun_status qr_cache_check(const qr_cache *cache, qr_error *err);
qr_example qr_cache_get(const qr_cache *cache, int64_t i);

#endif
