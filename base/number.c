#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The host program may have set a locale whose decimal point is a comma. */
static void set_point(char *text) {
    char *comma = strchr(text, ',');
    if (comma != NULL) { *comma = '.'; }
}

/* The shortest digits that read back as value, in the form d.dddde±xx. */
static void shortest_exponential(double value, char out[QR_NUMBER_BYTES]) {
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(out, 32, "%.*e", precision, value);
        if (strtod(out, NULL) == value) { break; }
    }
    set_point(out);
}

void qr_number_format(double value, char out[QR_NUMBER_BYTES]) {
    if (!isfinite(value)) {
        snprintf(out, 32, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    char shortest[32];
    shortest_exponential(value, shortest);
    const char *e = strchr(shortest, 'e');
    const int exponent = atoi(e + 1);
    const int n_digits = (int)(e - shortest) - (shortest[0] == '-') - (strchr(shortest, '.') != NULL);
    if (exponent < -4 || exponent >= 16) {
        memcpy(out, shortest, sizeof shortest);
        return;
    }
    const int n_decimals = n_digits - 1 - exponent;
    snprintf(out, 32, "%.*f", n_decimals > 0 ? n_decimals : 1, value);
    set_point(out);
}

void qr_number_format_digits(double value, int n_digits, char out[QR_NUMBER_BYTES]) {
    (void)snprintf(out, QR_NUMBER_BYTES, "%.*g", n_digits, value);
    set_point(out);
}
