/* Numbers as text, whatever locale the host program has set. */
#ifndef QR_BASE_NUMBER_H
#define QR_BASE_NUMBER_H

enum { QR_NUMBER_BYTES = 32 };

/* The shortest text that reads back as the same value, written as Python's repr writes it: "0.1", "1e-05", "nan",
 * "inf". */
void qr_number_format(double value, char out[QR_NUMBER_BYTES]);

#endif
