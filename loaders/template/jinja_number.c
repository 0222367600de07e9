/* Floats as Python reads them; base/number.h writes them. */
#include <math.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "loaders/template/jinja_value.h"

static void trim_space(const char **text, size_t *size) {
    const size_t n = qr_utf8_span(*text, *size, qr_jinja_is_space);
    *text += n;
    *size = qr_utf8_trim(*text, *size - n, qr_jinja_is_space);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool qr_jinja_parse_double(const char *text, size_t size, double *value) {
    trim_space(&text, &size);
    char digits[512];
    if (size == 0 || size >= sizeof digits) { return false; }
    size_t n = 0;
    bool any_digit = false;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (c == '_') {
            if (i == 0 || !is_digit(text[i - 1]) || i + 1 == size || !is_digit(text[i + 1])) { return false; }
            continue;
        }
        if (strchr("+-.eE", c) == NULL && !is_digit(c)) {
            any_digit = false;
            n = 0;
            break;
        }
        any_digit = any_digit || is_digit(c);
        digits[n++] = c;
    }
    if (!any_digit) { /* the words */
        const bool negative = text[0] == '-';
        const size_t skip = negative || text[0] == '+';
        char word[16] = "";
        if (size - skip >= sizeof word) { return false; }
        for (size_t i = skip; i < size; i++) { word[i - skip] = (char)(text[i] | 0x20); }
        if (strcmp(word, "nan") == 0) {
            *value = NAN;
        } else if (strcmp(word, "inf") == 0 || strcmp(word, "infinity") == 0) {
            *value = negative ? -INFINITY : INFINITY;
        } else {
            return false;
        }
        return true;
    }
    digits[n] = '\0';
    char *end;
    *value = qr_number_parse(digits, &end);
    return *end == '\0';
}
