/* Where full K/V pages go that leave the pool, and come back from: host memory, then files (page_files.h). A page is
 * named by the digest of all that its K/V depend on: model, formats, backend, adapter, rotary parameters, and every
 * token up to its last. So a page that comes back has the bits that computing it would give.
 *
 * Used by the thread that steps the session. After creation nothing is allocated. */
#ifndef QR_RUNTIME_CACHE_PAGE_STORE_H
#define QR_RUNTIME_CACHE_PAGE_STORE_H

#include "runtime/cache/kv_cache.h"
#include "runtime/cache/page_files.h"
#include "runtime/model/model.h"

typedef struct qr_page_store qr_page_store;

typedef struct qr_page_store_options {
    unsigned char *pages; /* the pool, in device memory */
    size_t page_bytes;
    int64_t n_slots; /* pages held in host memory; 0: none */
    qr_kv_format kv_format;
    const char *folder; /* of the files; NULL: none */
    int64_t max_file_bytes;
} qr_page_store_options;

/* The host memory that a store of n_slots takes. */
size_t qr_page_store_bytes(int64_t n_slots, size_t page_bytes);

/* With a folder, reads all weights once to name them. */
qrun_status qr_page_store_create(const qrun_model *model, const qr_page_store_options *options, qr_page_store **store,
                                 qr_error *err);
void qr_page_store_destroy(qr_page_store *store); /* NULL is fine */

/* The calls that the cache makes; lent. NULL for no store. */
const qr_kv_keeper *qr_page_store_keeper(const qr_page_store *store);

/* Writes what host memory holds to the files. */
void qr_page_store_write_all(qr_page_store *store);

bool qr_page_store_has_files(const qr_page_store *store);

/* What went wrong with a file first, one line; "": nothing did, or there is no store. */
void qr_page_store_note(const qr_page_store *store, char *note, size_t n_bytes);

#endif
