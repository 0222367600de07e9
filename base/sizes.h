/* Checked arithmetic for every size that outside input can influence. Each returns false on overflow and leaves
 * *result unspecified. Sizes in bytes are size_t, element counts and offsets int64_t. */
#ifndef QR_BASE_SIZES_H
#define QR_BASE_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__GNUC__) && !defined(__clang__)
#error "needs the overflow builtins of GCC or Clang"
#endif

static inline bool qr_size_add(size_t a, size_t b, size_t *result) { return !__builtin_add_overflow(a, b, result); }
static inline bool qr_size_mul(size_t a, size_t b, size_t *result) { return !__builtin_mul_overflow(a, b, result); }
static inline bool qr_count_add(int64_t a, int64_t b, int64_t *result) { return !__builtin_add_overflow(a, b, result); }
static inline bool qr_count_mul(int64_t a, int64_t b, int64_t *result) { return !__builtin_mul_overflow(a, b, result); }

/* Rounds up to a multiple of `alignment` (a power of two); false on overflow. */
static inline bool qr_size_align(size_t size, size_t alignment, size_t *result) {
    if (!qr_size_add(size, alignment - 1, result)) { return false; }
    *result &= ~(alignment - 1);
    return true;
}

/* For sizes already known to be small. */
static inline int64_t qr_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t qr_round_up(int64_t a, int64_t b) { return qr_ceil_div(a, b) * b; }
static inline int64_t qr_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t qr_max(int64_t a, int64_t b) { return a > b ? a : b; }

#define QR_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
