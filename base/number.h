/* Text from formats and numbers from text, whatever locale the host program has set: its decimal point may be a comma.
 * Every other part of the library formats and parses through here, qr_fail and qr_buffer_append_format included
 * (scripts/check holds it). */
#ifndef QR_BASE_NUMBER_H
#define QR_BASE_NUMBER_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

#include "base/status.h"

enum { QR_NUMBER_BYTES = 32 };

/* snprintf, vsnprintf and strtod in the C locale. */
int qr_format(char *out, size_t n_bytes, const char *fmt, ...) QR_PRINTF(3, 4);
int qr_vformat(char *out, size_t n_bytes, const char *fmt, va_list args) QR_PRINTF(3, 0);
double qr_number_parse(const char *text, char **end);

/* The C locale, for strftime_l and the like; it lives as long as the process. */
locale_t qr_c_locale(void);

/* The shortest text that reads back as the same value, written as Python's repr writes it: "0.1", "1e-05", "nan",
 * "inf". */
void qr_number_format(double value, char out[QR_NUMBER_BYTES]);

/* As printf's %.*g writes it: 9 digits read back as the same float, 17 as the same double. */
void qr_number_format_digits(double value, int n_digits, char out[QR_NUMBER_BYTES]);

/* The value of a hexadecimal digit; -1 for another character. */
static inline int qr_hex_digit(char c) {
    const char lower = (char)(c | 0x20);
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

#endif
