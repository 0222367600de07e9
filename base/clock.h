/* The one clock of the library. */
#ifndef QR_BASE_CLOCK_H
#define QR_BASE_CLOCK_H

/* Seconds since a fixed moment; never decreases. */
double qr_now_seconds(void);

#endif
