/* The one way the library takes memory from the C heap. It counts what is held and remembers the high-water mark. It
 * can fail the n-th allocation from now, by which the tests prove that every failure is handled. Large buffers
 * (weights, K/V pages, workspace) do not come from here but from the backend, by the plan. */
#ifndef QR_BASE_ALLOC_H
#define QR_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* As malloc, calloc, realloc and free; thread-safe. A size of 0 gives a unique pointer. qr_alloc_array checks
 * count × size. qr_realloc(NULL, n) allocates; on failure the old block stays valid. */
void *qr_alloc(size_t size);
void *qr_alloc_zeroed(size_t size);
void *qr_alloc_array(size_t count, size_t size); /* uninitialised */
void *qr_alloc_array_zeroed(size_t count, size_t size);
void *qr_realloc(void *block, size_t size);
void qr_free(void *block); /* NULL is fine */
char *qr_strdup(const char *text);
char *qr_strndup(const char *text, size_t length); /* copies exactly `length` bytes and terminates */

/* Grows *array (capacity *capacity elements of `size` bytes) to hold at least `needed`, doubling. Returns false and
 * changes nothing when memory is short. */
bool qr_array_reserve(void *array, size_t *capacity, size_t needed, size_t size);
/* The same; when memory is short the error names what is in the array. */
qrun_status qr_array_grow(void *array, size_t *capacity, size_t needed, size_t size, const char *what, qr_error *err);

typedef struct qr_alloc_stats {
    int64_t bytes_held;    /* now, without the bookkeeping of malloc itself */
    int64_t bytes_peak;    /* since qr_alloc_reset_peak */
    int64_t n_held;        /* blocks now */
    int64_t n_allocations; /* successful and failed calls since the start; grows only */
} qr_alloc_stats;

void qr_alloc_get_stats(qr_alloc_stats *stats);
void qr_alloc_reset_peak(void);

/* Tests only: the n-th allocation from now (1 = the next), and no other, returns NULL; 0 turns it off. */
void qr_alloc_fail_at(int64_t n);

#endif
