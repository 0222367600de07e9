#include "base/units.h"

#include "base/number.h"

qr_bytes_text qr_format_bytes(int64_t n_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    qr_bytes_text formatted;
    double value = (double)n_bytes;
    int unit = 0;
    while (value >= 1023.5 && unit < 6) { value /= 1024, unit++; }
    const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    (void)qr_format(formatted.text, sizeof formatted.text, "%.*f %s", decimals, value, units[unit]);
    return formatted;
}
