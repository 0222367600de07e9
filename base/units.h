/* Numbers as people read them, for messages. */
#ifndef QR_BASE_UNITS_H
#define QR_BASE_UNITS_H

#include <stdint.h>

/* "0 B", "719 B", "1.53 MiB", "42.0 GiB": three significant digits in binary units. */
typedef struct qr_bytes_text {
    char text[16];
} qr_bytes_text;
qr_bytes_text qr_format_bytes(int64_t n_bytes);

/* The ending of a regular English noun after the number n: "" after 1, else "s". */
static inline const char *qr_plural(int64_t n) { return n == 1 ? "" : "s"; }

#endif
