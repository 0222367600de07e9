/* Integers, which Python does not bound: one that fits 64 bits is a QR_JINJA_INT, a larger one a QR_JINJA_BIG of up to
 * QR_JINJA_MAX_BITS. Algorithms of The Art of Computer Programming, volume 2, 4.3.1. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

enum { LIMB_BITS = 32, MAX_LIMBS = QR_JINJA_MAX_BITS / LIMB_BITS, WIDE_LIMBS = 2 * MAX_LIMBS + 8 };

struct qr_jinja_big {
    bool negative;
    size_t n;         /* ≤ MAX_LIMBS */
    uint32_t limbs[]; /* the least significant first; the last is not 0 */
};

/* An integer being computed, with room for a product. limbs[n − 1] is not 0; n = 0 is the number 0. */
typedef struct wide {
    bool negative;
    size_t n;
    uint32_t limbs[WIDE_LIMBS];
} wide;

static void set_magnitude(wide *w, uint64_t magnitude) {
    w->n = 0;
    for (; magnitude != 0; magnitude >>= LIMB_BITS) { w->limbs[w->n++] = (uint32_t)magnitude; }
}

static void load(wide *w, qr_jinja_value value) {
    if (value.type == QR_JINJA_BIG) {
        w->negative = value.big->negative;
        w->n = value.big->n;
        memcpy(w->limbs, value.big->limbs, w->n * sizeof *w->limbs);
        return;
    }
    int64_t integer = 0;
    (void)qr_jinja_as_index(value, &integer);
    w->negative = integer < 0;
    set_magnitude(w, integer < 0 ? 0U - (uint64_t)integer : (uint64_t)integer);
}

static qr_jinja_value too_long(qr_jinja_run *run) {
    return qr_jinja_error(run, "an integer of more than %d bits is not supported", (int)QR_JINJA_MAX_BITS);
}

static uint64_t low_word(const wide *w) {
    return (w->n > 0 ? w->limbs[0] : 0) | (uint64_t)(w->n > 1 ? w->limbs[1] : 0) << LIMB_BITS;
}

static qr_jinja_value store(qr_jinja_run *run, const wide *w) {
    const uint64_t low = low_word(w), least = (uint64_t)1 << 63;
    if (w->n <= 2 && (low < least || (low == least && w->negative))) {
        return qr_jinja_int(w->negative ? (int64_t)(0U - low) : (int64_t)low);
    }
    if (w->n > MAX_LIMBS) { return too_long(run); }
    qr_jinja_big *big = qr_jinja_take(run, sizeof *big + w->n * sizeof *w->limbs);
    if (big == NULL) { return qr_jinja_undefined(); }
    big->negative = w->negative;
    big->n = w->n;
    memcpy(big->limbs, w->limbs, w->n * sizeof *w->limbs);
    return (qr_jinja_value){.type = QR_JINJA_BIG, .big = big};
}

static void trim(wide *w) {
    while (w->n > 0 && w->limbs[w->n - 1] == 0) { w->n--; }
}

static size_t count_bits(const wide *w) {
    return w->n == 0 ? 0 : w->n * LIMB_BITS - (size_t)__builtin_clz(w->limbs[w->n - 1]);
}

/* --- magnitudes --- */

static int compare_magnitudes(const wide *a, const wide *b) {
    if (a->n != b->n) { return a->n < b->n ? -1 : 1; }
    for (size_t i = a->n; i-- > 0;) {
        if (a->limbs[i] != b->limbs[i]) { return a->limbs[i] < b->limbs[i] ? -1 : 1; }
    }
    return 0;
}

static void add_magnitudes(const wide *a, const wide *b, wide *sum) {
    const size_t n = a->n > b->n ? a->n : b->n;
    uint64_t carry = 0;
    for (size_t i = 0; i < n; i++) {
        carry += (uint64_t)(i < a->n ? a->limbs[i] : 0) + (i < b->n ? b->limbs[i] : 0);
        sum->limbs[i] = (uint32_t)carry;
        carry >>= LIMB_BITS;
    }
    sum->limbs[n] = (uint32_t)carry;
    sum->n = n + 1;
    trim(sum);
}

/* a ≥ b */
static void subtract_magnitudes(const wide *a, const wide *b, wide *difference) {
    int64_t borrow = 0;
    for (size_t i = 0; i < a->n; i++) {
        borrow += (int64_t)a->limbs[i] - (int64_t)(i < b->n ? b->limbs[i] : 0);
        difference->limbs[i] = (uint32_t)borrow;
        borrow >>= LIMB_BITS;
    }
    difference->n = a->n;
    trim(difference);
}

/* sum may not be a or b here and below. */
static void add(const wide *a, const wide *b, bool b_negative, wide *sum) {
    if (a->negative == b_negative) {
        add_magnitudes(a, b, sum);
        sum->negative = a->negative;
    } else if (compare_magnitudes(a, b) >= 0) {
        subtract_magnitudes(a, b, sum);
        sum->negative = a->negative;
    } else {
        subtract_magnitudes(b, a, sum);
        sum->negative = b_negative;
    }
}

/* a and b of at most MAX_LIMBS */
static void multiply(const wide *a, const wide *b, wide *product) {
    memset(product->limbs, 0, (a->n + b->n) * sizeof *product->limbs);
    for (size_t i = 0; i < a->n; i++) {
        uint64_t carry = 0;
        for (size_t j = 0; j < b->n; j++) {
            carry += (uint64_t)a->limbs[i] * b->limbs[j] + product->limbs[i + j];
            product->limbs[i + j] = (uint32_t)carry;
            carry >>= LIMB_BITS;
        }
        product->limbs[i + b->n] = (uint32_t)carry;
    }
    product->n = a->n + b->n;
    product->negative = a->negative != b->negative;
    trim(product);
}

static void shift_left(const wide *w, size_t n_bits, wide *shifted) {
    const size_t n_limbs = n_bits / LIMB_BITS, rest = n_bits % LIMB_BITS;
    memset(shifted->limbs, 0, n_limbs * sizeof *shifted->limbs);
    uint64_t carry = 0;
    for (size_t i = 0; i < w->n; i++) {
        carry |= (uint64_t)w->limbs[i] << rest;
        shifted->limbs[n_limbs + i] = (uint32_t)carry;
        carry >>= LIMB_BITS;
    }
    shifted->limbs[n_limbs + w->n] = (uint32_t)carry;
    shifted->n = n_limbs + w->n + 1;
    shifted->negative = w->negative;
    trim(shifted);
}

/* w = w / divisor; returns the rest. */
static uint32_t divide_small(wide *w, uint32_t divisor) {
    uint64_t rest = 0;
    for (size_t i = w->n; i-- > 0;) {
        rest = rest << LIMB_BITS | w->limbs[i];
        w->limbs[i] = (uint32_t)(rest / divisor);
        rest %= divisor;
    }
    trim(w);
    return (uint32_t)rest;
}

/* u[at, at + v->n] -= v × digit; true when that was too much. */
static bool subtract_multiple(wide *u, size_t at, const wide *v, uint64_t digit) {
    uint64_t carry = 0;
    int64_t borrow = 0;
    for (size_t i = 0; i <= v->n; i++) {
        carry += i < v->n ? digit * v->limbs[i] : 0;
        borrow += (int64_t)u->limbs[at + i] - (int64_t)(uint32_t)carry;
        u->limbs[at + i] = (uint32_t)borrow;
        borrow >>= LIMB_BITS;
        carry >>= LIMB_BITS;
    }
    return borrow < 0;
}

static void add_back(wide *u, size_t at, const wide *v) {
    uint64_t carry = 0;
    for (size_t i = 0; i <= v->n; i++) {
        carry += (uint64_t)u->limbs[at + i] + (i < v->n ? v->limbs[i] : 0);
        u->limbs[at + i] = (uint32_t)carry;
        carry >>= LIMB_BITS;
    }
}

/* |a| = quotient × |b| + rest; b is not 0. Algorithm D. */
static void divide_magnitudes(const wide *a, const wide *b, wide *quotient, wide *rest) {
    quotient->negative = rest->negative = false;
    if (compare_magnitudes(a, b) < 0) {
        *rest = *a;
        rest->negative = false;
        quotient->n = 0;
        return;
    }
    if (b->n == 1) {
        *quotient = *a;
        quotient->negative = false;
        set_magnitude(rest, divide_small(quotient, b->limbs[0]));
        return;
    }
    wide v;
    const size_t shift = (size_t)__builtin_clz(b->limbs[b->n - 1]);
    shift_left(b, shift, &v);
    shift_left(a, shift, rest);
    while (rest->n < a->n + 1) { rest->limbs[rest->n++] = 0; }
    const uint64_t top = v.limbs[v.n - 1], next = v.limbs[v.n - 2];
    quotient->n = a->n - b->n + 1;
    for (size_t j = quotient->n; j-- > 0;) {
        const uint64_t head = (uint64_t)rest->limbs[j + v.n] << LIMB_BITS | rest->limbs[j + v.n - 1];
        uint64_t digit = head / top, left = head % top;
        while (digit >> LIMB_BITS != 0 || digit * next > (left << LIMB_BITS | rest->limbs[j + v.n - 2])) {
            digit--;
            left += top;
            if (left >> LIMB_BITS != 0) { break; }
        }
        if (subtract_multiple(rest, j, &v, digit)) {
            digit--;
            add_back(rest, j, &v);
        }
        quotient->limbs[j] = (uint32_t)digit;
    }
    trim(quotient);
    trim(rest);
    uint32_t carry = 0; /* the rest, shifted back */
    for (size_t i = rest->n; i-- > 0 && shift > 0;) {
        const uint32_t limb = rest->limbs[i];
        rest->limbs[i] = limb >> shift | carry;
        carry = limb << (LIMB_BITS - shift);
    }
    trim(rest);
}

/* --- operators --- */

/* Towards minus infinity, as Python rounds. */
static void divide(const wide *a, const wide *b, wide *quotient, wide *rest) {
    divide_magnitudes(a, b, quotient, rest);
    quotient->negative = a->negative != b->negative;
    rest->negative = a->negative;
    if (rest->n == 0 || a->negative == b->negative) { return; }
    static const wide one = {.n = 1, .limbs = {1}};
    wide adjusted;
    add_magnitudes(quotient, &one, &adjusted);
    adjusted.negative = true;
    *quotient = adjusted;
    subtract_magnitudes(b, rest, &adjusted);
    adjusted.negative = b->negative;
    *rest = adjusted;
}

static bool power(qr_jinja_run *run, wide base, const wide *exponent, wide *result) {
    *result = (wide){.n = 1, .limbs = {1}};
    const bool is_odd = exponent->n > 0 && (exponent->limbs[0] & 1U) != 0;
    if (exponent->n == 0) { return true; }
    if (base.n == 0 || (base.n == 1 && base.limbs[0] == 1)) {
        result->n = base.n;
        result->negative = base.negative && is_odd;
        return true;
    }
    if (exponent->n > 1 || exponent->limbs[0] > QR_JINJA_MAX_BITS) { return false; }
    wide product;
    for (uint32_t left = exponent->limbs[0]; qr_jinja_walk(run, base.n * base.n);) {
        if ((left & 1U) != 0) {
            multiply(result, &base, &product);
            *result = product;
        }
        left >>= 1;
        if (left == 0 || result->n > MAX_LIMBS) { break; }
        multiply(&base, &base, &product);
        base = product;
        if (base.n > MAX_LIMBS) { return false; }
    }
    return result->n <= MAX_LIMBS;
}

qr_jinja_value qr_jinja_integer_arithmetic(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b) {
    wide x, y, result, rest;
    load(&x, a);
    load(&y, b);
    if (!qr_jinja_walk(run, 64 + x.n * y.n)) { return qr_jinja_undefined(); }
    switch (op) {
        case '+': add(&x, &y, y.negative, &result); break;
        case '-': add(&x, &y, !y.negative, &result); break;
        case '*': multiply(&x, &y, &result); break;
        case QR_JINJA_OP('*', '*'):
            if (!power(run, x, &y, &result)) { return too_long(run); }
            break;
        case '%': divide(&x, &y, &rest, &result); break;
        default: divide(&x, &y, &result, &rest); break;
    }
    return store(run, &result);
}

/* a / b, correctly rounded: 66 or 67 bits of the quotient, of which the last says whether anything follows. */
static double ratio(const wide *a, const wide *b) {
    if (a->n == 0) { return a->negative != b->negative ? -0.0 : 0.0; }
    const int64_t shift = 66 - ((int64_t)count_bits(a) - (int64_t)count_bits(b));
    wide shifted, quotient = {.n = 0}, rest;
    shift_left(shift > 0 ? a : b, (size_t)(shift > 0 ? shift : -shift), &shifted);
    divide_magnitudes(shift > 0 ? &shifted : a, shift > 0 ? b : &shifted, &quotient, &rest);
    const uint32_t low = quotient.limbs[0];
    const uint64_t high = (uint64_t)quotient.limbs[2] << 61 | (uint64_t)quotient.limbs[1] << 29 | low >> 3;
    const bool inexact = (low & 7U) != 0 || rest.n > 0;
    const double magnitude = ldexp((double)(high | inexact), (int)(3 - shift));
    return a->negative != b->negative ? -magnitude : magnitude;
}

qr_jinja_value qr_jinja_integer_ratio(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b) {
    const int64_t exact = (int64_t)1 << DBL_MANT_DIG;
    int64_t i, j;
    if (qr_jinja_as_index(a, &i) && qr_jinja_as_index(b, &j) && i >= -exact && i <= exact && j >= -exact &&
        j <= exact) {
        return qr_jinja_float((double)i / (double)j);
    }
    wide x, y;
    load(&x, a);
    load(&y, b);
    if (!qr_jinja_walk(run, 64 + (x.n + 3) * (y.n + 3))) { return qr_jinja_undefined(); }
    const double result = ratio(&x, &y);
    if (isinf(result)) { return qr_jinja_error(run, "integer division result too large for a float"); }
    if (x.n > 0 && fabs(result) < 1e-300) { /* where doubles lose digits, rounding twice could show */
        return qr_jinja_error(run, "a division of integers gives a number that is too small");
    }
    return qr_jinja_float(result);
}

double qr_jinja_big_double(const qr_jinja_big *big) {
    static const wide one = {.n = 1, .limbs = {1}};
    wide w;
    load(&w, (qr_jinja_value){.type = QR_JINJA_BIG, .big = big});
    return ratio(&w, &one);
}

static void load_double(wide *w, double whole) {
    int exponent;
    const double fraction = frexp(fabs(whole), &exponent);
    wide mantissa;
    set_magnitude(&mantissa, (uint64_t)ldexp(fraction, 53));
    mantissa.negative = whole < 0;
    if (exponent >= 53) {
        shift_left(&mantissa, (size_t)(exponent - 53), w);
    } else {
        set_magnitude(w, exponent > 0 ? low_word(&mantissa) >> (53 - exponent) : 0);
        w->negative = mantissa.negative;
    }
}

qr_jinja_value qr_jinja_integer_from_double(qr_jinja_run *run, double number) {
    wide w;
    load_double(&w, number);
    return store(run, &w);
}

int qr_jinja_integer_compare(qr_jinja_value a, qr_jinja_value b) {
    wide x, y;
    load(&x, a);
    if (b.type == QR_JINJA_FLOAT) {
        if (isnan(b.number)) { return 2; }
        if (isinf(b.number)) { return b.number > 0 ? -1 : 1; }
        load_double(&y, b.number);
    } else {
        load(&y, b);
    }
    int order = x.negative != y.negative ? (x.n == 0 && y.n == 0 ? 0
                                            : x.negative         ? -1
                                                                 : 1)
                                         : compare_magnitudes(&x, &y);
    if (x.negative == y.negative && x.negative) { order = -order; }
    if (order != 0 || b.type != QR_JINJA_FLOAT) { return order; }
    const double rest = b.number - trunc(b.number);
    return rest > 0 ? -1 : rest < 0;
}

bool qr_jinja_is_negative(qr_jinja_value integer) {
    int64_t value = 0;
    return integer.type == QR_JINJA_BIG ? integer.big->negative : qr_jinja_as_index(integer, &value) && value < 0;
}

/* --- digits --- */

void qr_jinja_append_digits(qr_jinja_builder *builder, qr_jinja_value integer, uint32_t base) {
    char digits[QR_JINJA_MAX_BITS + LIMB_BITS];
    size_t at = sizeof digits;
    wide w;
    load(&w, integer);
    if (!qr_jinja_walk(builder->run, 16 + w.n * w.n)) { return; }
    uint32_t chunk = base, n_digits = 1; /* as many digits as a limb holds are divided off at once */
    while ((uint64_t)chunk * base <= UINT32_MAX) {
        chunk *= base;
        n_digits++;
    }
    do {
        uint32_t rest = divide_small(&w, chunk);
        for (uint32_t i = 0; i < n_digits && (w.n > 0 || rest > 0 || at == sizeof digits); i++) {
            digits[--at] = "0123456789abcdef"[rest % base];
            rest /= base;
        }
    } while (w.n > 0);
    if (base == 10 && sizeof digits - at > QR_JINJA_MAX_DIGITS) {
        (void)qr_jinja_error(builder->run, "an integer of more than %d digits is not written out",
                             (int)QR_JINJA_MAX_DIGITS);
        return;
    }
    qr_jinja_append(builder, digits + at, sizeof digits - at);
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') { return c - '0'; }
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

/* Skips 0x, 0o or 0b where the base allows it; *base is then never 0. */
static size_t skip_prefix(const char *text, size_t size, int *base) {
    const char letter = size > 2 && text[0] == '0' ? (char)(text[1] | 0x20) : '\0';
    const int prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    const bool skips = prefix_base != 0 && (*base == prefix_base || *base == 0);
    if (*base == 0) { *base = skips ? prefix_base : 10; }
    return skips ? 2 : 0;
}

/* w = w × base + digit; false where that is too long. */
static bool push_digit(wide *w, uint32_t base, uint32_t digit) {
    uint64_t carry = digit;
    for (size_t i = 0; i < w->n; i++) {
        carry += (uint64_t)w->limbs[i] * base;
        w->limbs[i] = (uint32_t)carry;
        carry >>= LIMB_BITS;
    }
    if (carry != 0) { w->limbs[w->n++] = (uint32_t)carry; }
    return w->n <= MAX_LIMBS;
}

qr_jinja_value qr_jinja_parse_integer(qr_jinja_run *run, const char *text, size_t size, int base) {
    static const qr_jinja_value none = {.type = QR_JINJA_MISSING};
    const size_t n_space = qr_utf8_span(text, size, qr_jinja_is_space);
    text += n_space;
    size = qr_utf8_trim(text, size - n_space, qr_jinja_is_space);
    wide w = {.negative = size > 0 && text[0] == '-'};
    const size_t n_sign = size > 0 && (text[0] == '-' || text[0] == '+');
    const size_t start = n_sign + skip_prefix(text + n_sign, size - n_sign, &base);
    if (start == size) { return none; }
    for (size_t i = start; i < size; i++) {
        if (text[i] == '_') {
            if ((i == n_sign) || i + 1 == size || text[i + 1] == '_') { return none; }
            continue;
        }
        const int digit = digit_value(text[i]);
        if (digit >= base) { return none; }
        if (!qr_jinja_walk(run, 1 + w.n) || !push_digit(&w, (uint32_t)base, (uint32_t)digit)) { return too_long(run); }
    }
    return store(run, &w);
}
