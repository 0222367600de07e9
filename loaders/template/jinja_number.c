/* Numbers as Python reads them; base/number.h writes them. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
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
    const char point = localeconv()->decimal_point[0];
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
        digits[n++] = c == '.' ? point : c;
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
    *value = strtod(digits, &end);
    return *end == '\0';
}

static int digit_value(char c) {
    if (is_digit(c)) { return c - '0'; }
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

bool qr_jinja_parse_int(const char *text, size_t size, int base, int64_t *value, bool *overflow) {
    trim_space(&text, &size);
    *overflow = false;
    const bool negative = size > 0 && text[0] == '-';
    if (size > 0 && (text[0] == '-' || text[0] == '+')) {
        text++;
        size--;
    }
    bool after_prefix = false;
    if (size > 2 && text[0] == '0') {
        const char letter = (char)(text[1] | 0x20);
        const int prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefix_base != 0 && (base == prefix_base || base == 0)) {
            base = prefix_base;
            text += 2;
            size -= 2;
            after_prefix = true;
        }
    }
    if (base == 0) { base = 10; }
    if (size == 0) { return false; }
    int64_t total = 0;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '_') {
            if ((i == 0 && !after_prefix) || i + 1 == size || text[i + 1] == '_') { return false; }
            continue;
        }
        const int digit = digit_value(text[i]);
        if (digit >= base) { return false; }
        /* Built downwards, because the most negative number has no positive counterpart. */
        if (!qr_count_mul(total, base, &total) || __builtin_sub_overflow(total, (int64_t)digit, &total)) {
            *overflow = true;
        }
        if (*overflow) { total = 0; }
    }
    if (!negative && total == INT64_MIN) { *overflow = true; }
    *value = negative || *overflow ? total : -total;
    return true;
}
