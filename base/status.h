/* Status codes inside the library: every function that can fail returns a qrun_status and leaves a one-line
 * message (what, where, what would help) in the qr_error passed to it. The first message wins: a caller that sees
 * a failure passes the status on and leaves the deeper, more exact message alone. */
#ifndef QR_BASE_STATUS_H
#define QR_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

#include "qrun.h"

enum { QR_ERROR_MESSAGE_BYTES = sizeof(((qrun_error *)0)->message) };

/* The public struct under its inside name. Owned by the caller; zero-initialised means "no error". Not shared between
 * threads. The message is one line of UTF-8 without a trailing newline. */
typedef qrun_error qr_error;

#if defined(__GNUC__)
#define QR_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#else
#define QR_PRINTF(fmt_index, args_index)
#endif

/* Records `status` and the formatted message unless `err` already holds one, and returns `status`. `err` may be NULL.
 * Control characters in the result (C0, C1, DEL) and bytes that are no UTF-8 are replaced by '?', so that a hostile
 * file name or tensor name cannot write to a terminal. An over-long message is cut at a character boundary. */
qrun_status qr_fail(qr_error *err, qrun_status status, const char *fmt, ...) QR_PRINTF(3, 4);
qrun_status qr_vfail(qr_error *err, qrun_status status, const char *fmt, va_list args);

/* The out-of-memory answer, worded once. `what` names the thing that did not fit. */
qrun_status qr_fail_memory(qr_error *err, const char *what, unsigned long long bytes);

void qr_error_clear(qr_error *err);

/* Puts "context: " before the message already in `err` (for example a file name). No-op when there is none. */
void qr_error_prefix(qr_error *err, const char *context);

/* For functions with a single exit: `QR_TRY(expr)` jumps to `out` with `status` set when expr fails. */
#define QR_TRY(expr)                         \
    do {                                     \
        status = (expr);                     \
        if (status != QRUN_OK) { goto out; } \
    } while (0)

/* For functions that hold nothing to release: returns the status of expr when it fails. */
#define QR_RETURN_IF_ERROR(expr)                                      \
    do {                                                              \
        const qrun_status qr_failed_status = (expr);                  \
        if (qr_failed_status != QRUN_OK) { return qr_failed_status; } \
    } while (0)

#endif
