/* K/V pages in files of a folder, one each, named by the digest of all that the page depends on. Several programs may
 * use one folder. A page is written under a partial name and then renamed, so that it is whole or not there. Nothing is
 * flushed to the disk, since a file that a crash left incomplete is told by its checksum.
 *
 * Files are checked completely before they are used. One that is damaged, cut short or not ours is not used; `note`
 * says so once. Only files of our names whose content begins as ours does are ever removed. Not thread-safe. */
#ifndef QR_RUNTIME_CACHE_PAGE_FILES_H
#define QR_RUNTIME_CACHE_PAGE_FILES_H

#include <stdbool.h>

#include "runtime/cache/kv_cache.h"

typedef struct qr_page_files qr_page_files;

enum { QR_PAGE_NOTE_BYTES = 192 };

/* Opens the folder, or makes it. Files beyond max_bytes are removed, those that were not used for longest first. */
qrun_status qr_page_files_open(const char *folder, int64_t max_bytes, size_t page_bytes, qr_page_files **files,
                               qr_error *err);
void qr_page_files_close(qr_page_files *files); /* NULL is fine */

/* Whether there is a file of that name; it may turn out not to be usable. */
bool qr_page_files_have(const qr_page_files *files, const qr_kv_page_name *name);
/* Reads a page into `memory` [page_bytes]. False where there is none that can be used: memory is unspecified then. */
bool qr_page_files_read(qr_page_files *files, const qr_kv_page_name *name, void *memory);
/* Removes a file that is there and will not be used; `why` is noted: "another rank has no such file". */
void qr_page_files_drop(qr_page_files *files, const qr_kv_page_name *name, const char *why);
/* Writes a page, unless it is there. After an error nothing more is written. */
void qr_page_files_write(qr_page_files *files, const qr_kv_page_name *name, const void *memory);

/* The first thing that went wrong, one line; "": nothing did. */
const char *qr_page_files_note(const qr_page_files *files);

#endif
