/* Formatting: str.format, the % operator and strftime. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

enum { MAX_WIDTH = 10000, MAX_PRECISION = 300, NUMBER_BYTES = 1024 };

/* [[fill]align][sign][#][0][width][,][.precision][type], and the same for %. */
typedef struct spec {
    char fill[5]; /* one character */
    char align;   /* '<', '>', '^', '=' or 0 */
    char sign;    /* '+', ' ' or 0 */
    bool alternate, grouped;
    int64_t width, precision; /* precision −1: none */
    char type;                /* 0: none */
} spec;

/* Aligns text; `n_prefix` bytes (a sign, 0x) stay before the padding of '='. */
static void append_aligned(qr_jinja_builder *out, const spec *s, const char *text, size_t size, size_t n_prefix,
                           char natural) {
    const char align = s->align != '\0' ? s->align : natural;
    const int64_t missing = s->width - (int64_t)qr_jinja_char_count(text, size);
    const int64_t before = missing <= 0 ? 0 : align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    if (align == '=') {
        qr_jinja_append(out, text, n_prefix);
        text += n_prefix;
        size -= n_prefix;
    }
    qr_jinja_append_times(out, s->fill, strlen(s->fill), before);
    qr_jinja_append(out, text, size);
    qr_jinja_append_times(out, s->fill, strlen(s->fill), missing - before);
}

static void append_text_value(qr_jinja_builder *out, const spec *s, const qr_jinja_string *text) {
    size_t size = text->size;
    if (s->precision >= 0) { size = qr_jinja_char_offset(text->data, size, (size_t)s->precision); }
    append_aligned(out, s, text->data, size, 0, '<');
}

/* Thousands of the digits before the point. */
static void group_digits(char text[NUMBER_BYTES], size_t n_prefix) {
    const size_t n_digits = strspn(text + n_prefix, "0123456789");
    for (size_t n = n_digits; n > 3 && strlen(text) + 2 < NUMBER_BYTES; n -= 3) {
        char *at = text + n_prefix + n - 3;
        memmove(at + 1, at, strlen(at) + 1);
        *at = ',';
    }
}

static size_t put_sign(char *text, const spec *s, bool negative) {
    const char sign = negative ? '-' : s->sign;
    text[0] = sign;
    return sign != '\0';
}

static void append_integer(qr_jinja_builder *out, const spec *s, int64_t value) {
    char text[NUMBER_BYTES];
    size_t n = put_sign(text, s, value < 0);
    const uint64_t magnitude = value < 0 ? 0U - (uint64_t)value : (uint64_t)value;
    if (s->alternate && strchr("xXobB", s->type) != NULL && s->type != '\0') {
        text[n++] = '0';
        text[n++] = s->type;
    }
    if (s->type == 'b') {
        int bit = 63;
        while (bit > 0 && (magnitude >> bit & 1U) == 0) { bit--; }
        size_t end = n;
        for (; bit >= 0; bit--) { text[end++] = (char)('0' + (magnitude >> bit & 1U)); }
        text[end] = '\0';
    } else {
        const char *format = s->type == 'x'   ? "%" PRIx64
                             : s->type == 'X' ? "%" PRIX64
                             : s->type == 'o' ? "%" PRIo64
                                              : "%" PRIu64;
        snprintf(text + n, sizeof text - n, format, magnitude);
    }
    if (s->grouped) { group_digits(text, n); }
    append_aligned(out, s, text, strlen(text), n, '>');
}

static void append_double(qr_jinja_builder *out, const spec *s, double value) {
    char text[NUMBER_BYTES];
    const bool negative = value < 0 || (value == 0 && 1 / value < 0);
    const size_t n = put_sign(text, s, negative);
    const double magnitude = negative ? -value : value;
    if (s->type == '\0' && s->precision < 0) {
        qr_number_format(magnitude, text + n);
    } else {
        char format[8] = "%.*f";
        format[3] = s->type == '%' ? 'f' : s->type == '\0' ? 'g' : s->type;
        const double shown = s->type == '%' ? magnitude * 100 : magnitude;
        snprintf(text + n, sizeof text - n - 2, format, s->precision < 0 ? 6 : (int)s->precision, shown);
        char *comma = strchr(text, ',');
        if (comma != NULL) { *comma = '.'; }
        if (s->type == '%') { strcat(text, "%"); }
    }
    if (s->grouped) { group_digits(text, n); }
    append_aligned(out, s, text, strlen(text), n, '>');
}

static void append_formatted(qr_jinja_builder *out, const spec *s, qr_jinja_value value) {
    qr_jinja_run *run = out->run;
    int64_t integer;
    const bool whole = qr_jinja_as_index(value, &integer);
    const bool wants_integer = s->type != '\0' && strchr("dxXobc", s->type) != NULL;
    const bool wants_double = s->type != '\0' && strchr("eEfFgG%", s->type) != NULL;
    if (value.type == QR_JINJA_UNDEFINED) {
        append_text_value(out, s, qr_jinja_str(run, value));
    } else if (wants_integer && whole && s->type != 'c') {
        append_integer(out, s, integer);
    } else if (wants_double && qr_jinja_is_number(value)) {
        append_double(out, s, qr_jinja_as_double(value));
    } else if (value.type == QR_JINJA_FLOAT && s->type == '\0') {
        append_double(out, s, value.number);
    } else if (value.type == QR_JINJA_INT && s->type == '\0') {
        append_integer(out, s, integer);
    } else if (s->type == '\0' || (s->type == 's' && value.type == QR_JINJA_STRING)) {
        append_text_value(out, s, qr_jinja_str(run, value));
    } else {
        (void)qr_jinja_error(run, "unknown format code '%c' for a value of type %s", s->type,
                             qr_jinja_type_name(value));
    }
}

static int64_t read_number(const char **at, const char *end) {
    int64_t number = 0;
    while (*at < end && **at >= '0' && **at <= '9') { number = qr_min(number * 10 + (*(*at)++ - '0'), MAX_WIDTH + 1); }
    return number;
}

static bool skip(const char **at, const char *end, char c) {
    const bool found = *at < end && **at == c;
    *at += found;
    return found;
}

static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

static bool check_spec(qr_jinja_run *run, const spec *s) {
    if (s->width > MAX_WIDTH || s->precision > MAX_PRECISION) {
        (void)qr_jinja_error(run, "a format asks for more than %d characters or %d decimals", (int)MAX_WIDTH,
                             (int)MAX_PRECISION);
    }
    return !qr_jinja_failed(run);
}

static bool read_spec(qr_jinja_run *run, const char *at, const char *end, spec *s) {
    *s = (spec){.fill = " ", .precision = -1};
    const size_t fill_size = at < end ? qr_utf8_sequence_length(at, (size_t)(end - at)) : 0;
    if (fill_size > 0 && at + fill_size < end && is_align(at[fill_size])) {
        memcpy(s->fill, at, fill_size);
        s->fill[fill_size] = '\0';
        at += fill_size;
    }
    if (at < end && is_align(*at)) { s->align = *at++; }
    if (at < end && (*at == '+' || *at == '-' || *at == ' ')) {
        s->sign = *at == '-' ? '\0' : *at;
        at++;
    }
    s->alternate = skip(&at, end, '#');
    if (skip(&at, end, '0') && s->align == '\0') {
        s->align = '=';
        s->fill[0] = '0';
    }
    s->width = read_number(&at, end);
    s->grouped = skip(&at, end, ',');
    if (skip(&at, end, '.')) { s->precision = read_number(&at, end); }
    if (at < end) { s->type = *at++; }
    if (at != end) { (void)qr_jinja_error(run, "invalid format specifier"); }
    return check_spec(run, s);
}

/* --- str.format --- */

typedef struct field_state {
    const qr_jinja_args *args;
    size_t n_automatic;
} field_state;

/* name.attribute[key] */
static qr_jinja_value find_field(qr_jinja_run *run, field_state *state, const char *at, const char *end) {
    const char *stop = at;
    while (stop < end && *stop != '.' && *stop != '[') { stop++; }
    const qr_jinja_value name = qr_jinja_lend(run, at, (size_t)(stop - at));
    int64_t index = 0;
    bool overflow = false;
    const bool automatic = stop == at;
    const bool numeric = !automatic && qr_jinja_parse_int(at, (size_t)(stop - at), 10, &index, &overflow) && !overflow;
    if (automatic) { index = (int64_t)state->n_automatic++; }
    qr_jinja_value value;
    if (automatic || numeric) {
        if (index < 0 || index >= (int64_t)state->args->n_items) {
            return qr_jinja_error(run, "Replacement index %" PRId64 " out of range for positional args tuple", index);
        }
        value = state->args->items[index];
    } else {
        const qr_jinja_value *found =
            state->args->named != NULL ? qr_jinja_dict_find(run, state->args->named, name) : NULL;
        if (found == NULL) { return qr_jinja_error(run, "format: no argument '%.*s'", (int)(stop - at), at); }
        value = *found;
    }
    while (stop < end && !qr_jinja_failed(run)) {
        const bool bracket = *stop++ == '[';
        const char *start = stop;
        while (stop < end && (bracket ? *stop != ']' : *stop != '.' && *stop != '[')) { stop++; }
        const size_t size = (size_t)(stop - start);
        const bool is_index = bracket && qr_jinja_parse_int(start, size, 10, &index, &overflow) && !overflow;
        value = bracket
                    ? qr_jinja_get_item(run, value, is_index ? qr_jinja_int(index) : qr_jinja_lend(run, start, size))
                    : qr_jinja_get_attribute(run, value, qr_jinja_lend(run, start, size));
        if (bracket && stop < end) { stop++; }
    }
    return value;
}

/* The conversions 's' and 'r'. */
static qr_jinja_value to_text(qr_jinja_run *run, char conversion, qr_jinja_value value) {
    if (conversion != 'r') { return qr_jinja_to_text(run, value); }
    qr_jinja_builder shown = {.run = run};
    qr_jinja_append_repr(&shown, value);
    return qr_jinja_built(&shown);
}

/* What is between { and }. */
static void append_field(qr_jinja_builder *out, field_state *state, const char *at, const char *end) {
    qr_jinja_run *run = out->run;
    const char *colon = memchr(at, ':', (size_t)(end - at));
    const char *name_end = colon != NULL ? colon : end;
    const char *bang = memchr(at, '!', (size_t)(name_end - at));
    const char conversion = bang != NULL && bang + 2 == name_end ? bang[1] : '\0';
    if (bang != NULL && conversion != 's' && conversion != 'r') {
        (void)qr_jinja_error(run, "format: unknown conversion after '!'");
        return;
    }
    qr_jinja_value value = find_field(run, state, at, bang != NULL ? bang : name_end);
    if (qr_jinja_failed(run)) { return; }
    if (conversion != '\0') { value = to_text(run, conversion, value); }
    spec s;
    if (!qr_jinja_failed(run) && read_spec(run, colon != NULL ? colon + 1 : end, end, &s)) {
        append_formatted(out, &s, value);
    }
}

qr_jinja_value qr_jinja_format_braces(qr_jinja_run *run, const qr_jinja_string *format, const qr_jinja_args *args) {
    qr_jinja_builder out = {.run = run};
    field_state state = {.args = args};
    const char *at = format->data, *end = at + format->size;
    while (at < end && !qr_jinja_failed(run)) {
        const char c = *at;
        if ((c == '{' || c == '}') && at + 1 < end && at[1] == c) {
            qr_jinja_append(&out, at, 1);
            at += 2;
        } else if (c == '{') {
            const char *close = memchr(at, '}', (size_t)(end - at));
            if (close == NULL) { return qr_jinja_error(run, "expected '}' before end of string"); }
            append_field(&out, &state, at + 1, close);
            at = close + 1;
        } else if (c == '}') {
            return qr_jinja_error(run, "Single '}' encountered in format string");
        } else {
            qr_jinja_append(&out, at++, 1);
        }
    }
    return qr_jinja_built(&out);
}

/* --- % --- */

static const char *read_flags(const char *at, const char *end, spec *s) {
    bool left = false, zero = false;
    for (; at < end && *at != '\0' && strchr("-+ #0", *at) != NULL; at++) {
        left = left || *at == '-';
        zero = zero || *at == '0';
        s->alternate = s->alternate || *at == '#';
        if (*at == '+' || (*at == ' ' && s->sign == '\0')) { s->sign = *at; }
    }
    s->align = left ? '<' : zero ? '=' : '>';
    if (zero && !left) { s->fill[0] = '0'; }
    s->width = read_number(&at, end);
    if (skip(&at, end, '.')) { s->precision = read_number(&at, end); }
    return at;
}

static void append_conversion(qr_jinja_builder *out, spec *s, char type, qr_jinja_value value) {
    qr_jinja_run *run = out->run;
    const bool integral = strchr("diuxXo", type) != NULL;
    if (type == 's' || type == 'r') {
        if (s->align == '=') { s->align = '>'; }
        s->fill[0] = ' ';
        append_text_value(out, s, to_text(run, type, value).string);
    } else if (!qr_jinja_is_number(value)) {
        (void)qr_jinja_error(run, "%%%c format: a number is required, not %s", type, qr_jinja_type_name(value));
    } else if (integral) {
        int64_t integer;
        if (!qr_jinja_as_index(value, &integer)) {
            const double number = qr_jinja_as_double(value);
            if (!(number > -9.2e18 && number < 9.2e18)) {
                (void)qr_jinja_error(run, "%%%c format: the number does not fit 64 bits", type);
                return;
            }
            integer = (int64_t)number;
        }
        s->type = type == 'i' || type == 'u' ? 'd' : type;
        s->precision = -1;
        append_integer(out, s, integer);
    } else {
        s->type = type;
        append_double(out, s, qr_jinja_as_double(value));
    }
}

qr_jinja_value qr_jinja_format_percent(qr_jinja_run *run, const qr_jinja_string *format, qr_jinja_value args) {
    qr_jinja_builder out = {.run = run};
    size_t n_used = 0;
    const char *at = format->data, *end = at + format->size;
    while (at < end && !qr_jinja_failed(run)) {
        if (*at != '%') {
            qr_jinja_append(&out, at++, 1);
            continue;
        }
        at++;
        spec s = {.fill = " ", .precision = -1};
        qr_jinja_value value = args;
        const bool named = at < end && *at == '(';
        if (named) {
            const char *close = memchr(at, ')', (size_t)(end - at));
            if (close == NULL || args.type != QR_JINJA_DICT) {
                return qr_jinja_error(run, "%%(name) in a format requires a mapping");
            }
            const qr_jinja_value *found =
                qr_jinja_dict_find(run, args.dict, qr_jinja_lend(run, at + 1, (size_t)(close - at - 1)));
            if (found == NULL) { return qr_jinja_error(run, "format: no key '%.*s'", (int)(close - at - 1), at + 1); }
            value = *found;
            at = close + 1;
        }
        at = read_flags(at, end, &s);
        if (!check_spec(run, &s)) { break; }
        const char type = at < end ? *at++ : '\0';
        if (type == '%') {
            qr_jinja_append_text(&out, "%");
            continue;
        }
        if (type == '\0' || strchr("diuxXosrfFeEgG", type) == NULL) {
            return qr_jinja_error(run, "unsupported format character");
        }
        if (!named && args.type == QR_JINJA_TUPLE) {
            if (n_used >= args.list->n_items) { return qr_jinja_error(run, "not enough arguments for format string"); }
            value = args.list->items[n_used];
        } else if (!named && n_used > 0) {
            return qr_jinja_error(run, "not enough arguments for format string");
        }
        n_used += !named;
        append_conversion(&out, &s, type, value);
    }
    const size_t n_given = args.type == QR_JINJA_TUPLE                                ? args.list->n_items
                           : args.type == QR_JINJA_DICT || args.type == QR_JINJA_LIST ? 0
                                                                                      : 1;
    if (n_used < n_given) { return qr_jinja_error(run, "not all arguments converted during string formatting"); }
    return qr_jinja_built(&out);
}

/* --- strftime --- */

qr_jinja_value qr_jinja_format_time(qr_jinja_run *run, const qr_jinja_string *format, int64_t now) {
    const time_t seconds = (time_t)now;
    struct tm local;
    if (localtime_r(&seconds, &local) == NULL) {
        return qr_jinja_error(run, "the time %" PRId64 " is out of range", now);
    }
    qr_jinja_builder out = {.run = run};
    const char *at = format->data, *end = at + format->size;
    while (at < end && !qr_jinja_failed(run)) {
        if (*at != '%') {
            qr_jinja_append(&out, at++, 1);
            continue;
        }
        /* One directive at a time: % [flag] letter. The time has neither a zone nor microseconds. */
        char directive[4] = "%", text[256];
        const bool flagged = at + 2 < end && strchr("-_0^#", at[1]) != NULL && at[1] != '\0';
        const size_t n = flagged ? 3 : 2;
        if ((size_t)(end - at) < n || ((unsigned char)at[n - 1] & 0x80U) != 0) {
            qr_jinja_append(&out, at++, 1);
            continue;
        }
        memcpy(directive, at, n);
        at += n;
        const char letter = directive[n - 1];
        if (letter == 'f') { qr_jinja_append_text(&out, "000000"); }
        if (letter == 'f' || letter == 'z' || letter == 'Z') { continue; }
        qr_jinja_append(&out, text, strftime(text, sizeof text, directive, &local));
    }
    return qr_jinja_built(&out);
}
