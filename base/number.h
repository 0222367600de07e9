/* Numbers as text, whatever locale the host program has set. */
#ifndef QR_BASE_NUMBER_H
#define QR_BASE_NUMBER_H

enum { QR_NUMBER_BYTES = 32 };

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
