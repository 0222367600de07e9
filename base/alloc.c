/* Each block carries its size in a 16-byte header, so that frees can be counted. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"

enum { HEADER_BYTES = 16 };

static atomic_llong bytes_held;
static atomic_llong bytes_peak;
static atomic_llong n_held;
static atomic_llong n_allocations;
static atomic_llong fail_countdown;

static bool should_fail(void) {
    atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0) { return false; }
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

static void count_bytes(long long change) {
    const long long held = atomic_fetch_add_explicit(&bytes_held, change, memory_order_relaxed) + change;
    long long peak = atomic_load_explicit(&bytes_peak, memory_order_relaxed);
    while (held > peak && !atomic_compare_exchange_weak_explicit(&bytes_peak, &peak, held, memory_order_relaxed,
                                                                 memory_order_relaxed)) {}
}

static void *remember(unsigned char *block, size_t size) {
    memcpy(block, &size, sizeof size);
    count_bytes((long long)size);
    atomic_fetch_add_explicit(&n_held, 1, memory_order_relaxed);
    return block + HEADER_BYTES;
}

void *qr_alloc(size_t size) {
    size_t total;
    if (should_fail() || !qr_size_add(size, HEADER_BYTES, &total)) { return NULL; }
    unsigned char *block = malloc(total);
    return block == NULL ? NULL : remember(block, size);
}

void *qr_alloc_zeroed(size_t size) {
    size_t total;
    if (should_fail() || !qr_size_add(size, HEADER_BYTES, &total)) { return NULL; }
    unsigned char *block = calloc(1, total);
    return block == NULL ? NULL : remember(block, size);
}

void *qr_alloc_array(size_t count, size_t size) {
    size_t total;
    return qr_size_mul(count, size, &total) ? qr_alloc(total) : NULL;
}

void *qr_alloc_array_zeroed(size_t count, size_t size) {
    size_t total;
    return qr_size_mul(count, size, &total) ? qr_alloc_zeroed(total) : NULL;
}

void *qr_realloc(void *block, size_t size) {
    if (block == NULL) { return qr_alloc(size); }
    size_t total;
    if (should_fail() || !qr_size_add(size, HEADER_BYTES, &total)) { return NULL; }
    unsigned char *header = (unsigned char *)block - HEADER_BYTES;
    size_t old_size;
    memcpy(&old_size, header, sizeof old_size);
    unsigned char *moved = realloc(header, total);
    if (moved == NULL) { return NULL; }
    memcpy(moved, &size, sizeof size);
    count_bytes((long long)size - (long long)old_size);
    return moved + HEADER_BYTES;
}

void qr_free(void *block) {
    if (block == NULL) { return; }
    unsigned char *header = (unsigned char *)block - HEADER_BYTES;
    size_t size;
    memcpy(&size, header, sizeof size);
    count_bytes(-(long long)size);
    atomic_fetch_sub_explicit(&n_held, 1, memory_order_relaxed);
    free(header);
}

char *qr_strndup(const char *text, size_t length) {
    size_t size;
    char *copy = qr_size_add(length, 1, &size) ? qr_alloc(size) : NULL;
    if (copy == NULL) { return NULL; }
    if (length > 0) { memcpy(copy, text, length); }
    copy[length] = '\0';
    return copy;
}

char *qr_strdup(const char *text) { return qr_strndup(text, strlen(text)); }

bool qr_array_reserve(void *array, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity) { return true; }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < needed) {
        if (!qr_size_mul(wanted, 2, &wanted)) { return false; }
    }
    size_t bytes;
    if (!qr_size_mul(wanted, size, &bytes)) { return false; }
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = qr_realloc(old, bytes);
    if (grown == NULL) { return false; }
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

qrun_status qr_array_grow(void *array, size_t *capacity, size_t needed, size_t size, const char *what, qr_error *err) {
    return qr_array_reserve(array, capacity, needed, size) ? QRUN_OK : qr_fail_memory(err, what, needed * size);
}

void qr_alloc_get_stats(qr_alloc_stats *stats) {
    stats->bytes_held = atomic_load(&bytes_held);
    stats->bytes_peak = atomic_load(&bytes_peak);
    stats->n_held = atomic_load(&n_held);
    stats->n_allocations = atomic_load(&n_allocations);
}

void qr_alloc_reset_peak(void) { atomic_store(&bytes_peak, atomic_load(&bytes_held)); }

void qr_alloc_fail_at(int64_t n) { atomic_store(&fail_countdown, n); }
