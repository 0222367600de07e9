#include "base/number.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Without a locale -------------------------------------------------------------------------------------------- */

static locale_t c_locale;

static void make_c_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

locale_t qr_c_locale(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_c_locale);
    return c_locale;
}

/* The locale of this thread alone is changed, and back: other threads of the host program keep theirs. */
int qr_vformat(char *out, size_t n_bytes, const char *fmt, va_list args) {
    const locale_t before = uselocale(qr_c_locale());
    const int length = vsnprintf(out, n_bytes, fmt, args);
    (void)uselocale(before);
    return length;
}

int qr_format(char *out, size_t n_bytes, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    const int length = qr_vformat(out, n_bytes, fmt, args);
    va_end(args);
    return length;
}

double qr_number_parse(const char *text, char **end) {
    const locale_t before = uselocale(qr_c_locale());
    const double value = strtod(text, end);
    (void)uselocale(before);
    return value;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* The shortest digits that read back as value, in the form d.dddde±xx. */
static void shortest_exponential(double value, char out[QR_NUMBER_BYTES]) {
    for (int precision = 0; precision <= 16; precision++) {
        (void)qr_format(out, QR_NUMBER_BYTES, "%.*e", precision, value);
        if (qr_number_parse(out, NULL) == value) { break; }
    }
}

void qr_number_format(double value, char out[QR_NUMBER_BYTES]) {
    if (!isfinite(value)) {
        (void)qr_format(out, QR_NUMBER_BYTES, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    char shortest[QR_NUMBER_BYTES];
    shortest_exponential(value, shortest);
    const char *e = strchr(shortest, 'e');
    const int exponent = atoi(e + 1);
    const int n_digits = (int)(e - shortest) - (shortest[0] == '-') - (strchr(shortest, '.') != NULL);
    if (exponent < -4 || exponent >= 16) {
        memcpy(out, shortest, sizeof shortest);
        return;
    }
    const int n_decimals = n_digits - 1 - exponent;
    (void)qr_format(out, QR_NUMBER_BYTES, "%.*f", n_decimals > 0 ? n_decimals : 1, value);
}

void qr_number_format_digits(double value, int n_digits, char out[QR_NUMBER_BYTES]) {
    (void)qr_format(out, QR_NUMBER_BYTES, "%.*g", n_digits, value);
}
