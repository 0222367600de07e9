/* Where full K/V pages go that leave the pool, and come back from: host memory, then files (page_files.h). A page is
 * named by the digest of all that its K/V depend on: model, formats, backend, adapter, rotary parameters, and every
 * token up to its last. So a page that comes back has the bits that computing it would give.
 *
 * Where ranks share the model, each has a store of as many slots, with its own part of every page: that of its heads.
 * Rank 0 decides, and its store tells the others' what to do; they follow. A page comes back from files only where all
 * ranks have theirs.
 *
 * Used by the thread that steps the session. After creation nothing is allocated. */
#ifndef QR_RUNTIME_CACHE_PAGE_STORE_H
#define QR_RUNTIME_CACHE_PAGE_STORE_H

#include "kernels/collectives.h"
#include "runtime/cache/kv_cache.h"
#include "runtime/cache/page_files.h"
#include "runtime/model/model.h"

typedef struct qr_page_store qr_page_store;

typedef enum qr_page_action {
    QR_PAGE_KEEP,  /* copies `page` of the pool into the slot */
    QR_PAGE_BRING, /* copies the slot into `page` */
    QR_PAGE_READ,  /* the file, into `page`, if all ranks can read theirs */
    QR_PAGE_WRITE_SLOT,
    QR_PAGE_WRITE_PAGE,
    QR_PAGE_SHARE_NOTES /* what is to be said of its files, to rank 0 */
} qr_page_action;

/* What rank 0's store does, and those of the others have to. */
typedef struct qr_page_task {
    int32_t action; /* a qr_page_action */
    int32_t slot, page, group;
    qr_digest block; /* what a file is called after, as rank 0 has it */
    int32_t tokens[QR_KV_PAGE_TOKENS];
} qr_page_task;

/* The ranks that share the model. */
typedef struct qr_page_ranks {
    qr_collectives *ranks;                                                   /* NULL: there is one, or this is a plan */
    qrun_status (*tell)(void *arg, const qr_page_task *task, qr_error *err); /* all others, on rank 0 */
    void *arg;
} qr_page_ranks;

typedef struct qr_page_store_options {
    unsigned char *pages; /* the pool, in device memory */
    size_t page_bytes;
    int64_t n_pages; /* of the pool */
    int64_t n_slots; /* pages held in host memory; 0: none */
    qr_kv_format kv_format;
    const char *folder;     /* of the files; NULL: none. With several ranks it has a folder for each */
    int64_t max_file_bytes; /* of all ranks together */
    qr_page_ranks shared;
} qr_page_store_options;

/* The host memory that a store of n_slots takes. */
size_t qr_page_store_bytes(int64_t n_slots, size_t page_bytes);

/* With a folder, reads all weights once to name them. All ranks call it. */
qrun_status qr_page_store_create(const qrun_model *model, const qr_page_store_options *options, qr_page_store **store,
                                 qr_error *err);
void qr_page_store_destroy(qr_page_store *store); /* NULL is fine */

/* The calls that the cache makes; lent. NULL for no store. */
const qr_kv_keeper *qr_page_store_keeper(const qr_page_store *store);

/* On the other ranks: does what rank 0's store has told. The caller holds the context's lock. */
qrun_status qr_page_store_follow(qr_page_store *store, const qr_page_task *task, qr_error *err);

/* Writes what host memory holds to the files. */
void qr_page_store_write_all(qr_page_store *store);

bool qr_page_store_has_files(const qr_page_store *store);

/* On rank 0: asks the other ranks what went wrong with their files, for qr_page_store_note. Nothing, alone. */
void qr_page_store_ask_notes(qr_page_store *store);

/* What went wrong with a file first, one line, on this rank or, as far as was asked, on another; "": nothing did, or
 * there is no store. */
void qr_page_store_note(const qr_page_store *store, char *note, size_t n_bytes);

#endif
