/* Formatting: str.format, the % operator and strftime. */
#include <inttypes.h>
#include <math.h>
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
    char fill[5];                   /* one character */
    char align;                     /* '<', '>', '^', '=' or 0 */
    char sign;                      /* '+', ' ' or 0 */
    bool alternate, grouped, zeros; /* zeros: before the digits, where no alignment was given */
    int64_t width, precision;       /* precision −1: none */
    char type;                      /* 0: none */
} spec;

/* Aligns text; `n_prefix` bytes (a sign, 0x) stay before the padding of '='. */
static void append_aligned(qr_jinja_builder *out, const spec *s, const char *text, size_t size, size_t n_prefix,
                           char natural) {
    const char align = s->align != '\0' ? s->align : natural;
    const int64_t missing = s->width - (int64_t)qr_jinja_char_count(out->run, text, size);
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
    if (s->precision >= 0) { size = qr_jinja_char_offset(out->run, text->data, size, (size_t)s->precision); }
    append_aligned(out, s, text->data, size, 0, '<');
}

/* A number with its sign and prefix (0x), and commas between the thousands of its whole part where asked for. */
static void append_number(qr_jinja_builder *out, const spec *s, bool negative, const char *prefix, const char *digits,
                          size_t size) {
    qr_jinja_builder text = {.run = out->run};
    const char sign = negative ? '-' : s->sign == '-' ? '\0' : s->sign;
    qr_jinja_append(&text, &sign, sign != '\0');
    qr_jinja_append_text(&text, prefix);
    const size_t n_prefix = text.size;
    size_t n_whole = 0;
    while (s->grouped && n_whole < size && digits[n_whole] >= '0' && digits[n_whole] <= '9') { n_whole++; }
    for (size_t i = 0; i < n_whole; i++) {
        if (i > 0 && (n_whole - i) % 3 == 0) { qr_jinja_append_text(&text, ","); }
        qr_jinja_append(&text, digits + i, 1);
    }
    qr_jinja_append(&text, digits + n_whole, size - n_whole);
    if (!qr_jinja_failed(out->run)) { append_aligned(out, s, text.data, text.size, n_prefix, '>'); }
}

static void append_integer(qr_jinja_builder *out, const spec *s, qr_jinja_value value) {
    const uint32_t base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    const char prefix[] = {s->alternate && base != 10 ? '0' : '\0', s->type, '\0'};
    qr_jinja_builder digits = {.run = out->run};
    if (s->grouped && base != 10) {
        (void)qr_jinja_error(out->run, "Cannot specify ',' with '%c'.", s->type);
    } else if (s->precision >= 0) {
        (void)qr_jinja_error(out->run, "a precision in the format of an integer is not supported");
    }
    qr_jinja_append_digits(&digits, value, base);
    if (qr_jinja_failed(out->run)) { return; }
    for (size_t i = 0; i < digits.size && s->type == 'X'; i++) {
        if (digits.data[i] >= 'a') { digits.data[i] = (char)(digits.data[i] - 'a' + 'A'); }
    }
    append_number(out, s, qr_jinja_is_negative(value), prefix, digits.data, digits.size);
}

static void append_double(qr_jinja_builder *out, const spec *s, double value) {
    char text[NUMBER_BYTES];
    const bool negative = value < 0 || (value == 0 && 1 / value < 0);
    const double magnitude = negative ? -value : value;
    if (s->alternate || (s->type == '\0' && s->precision >= 0)) {
        (void)qr_jinja_error(out->run, "this format of a float is not supported: give a letter such as f, and no '#'");
        return;
    }
    if (s->type == '\0') {
        qr_number_format(magnitude, text);
    } else {
        char format[8] = "%.*f";
        format[3] = s->type == '%' ? 'f' : s->type;
        const double shown = s->type == '%' ? magnitude * 100 : magnitude;
        (void)qr_format(text, sizeof text - 1, format, s->precision < 0 ? 6 : (int)s->precision, shown);
        if (s->type == '%') { strcat(text, "%"); }
    }
    append_number(out, s, negative, "", text, strlen(text));
}

/* An integer as the character of that code; with `takes_text`, a text of one character too. */
static void append_character(qr_jinja_builder *out, const spec *s, qr_jinja_value value, bool takes_text) {
    char bytes[4];
    int64_t code = -1;
    if (takes_text && value.type == QR_JINJA_STRING) {
        const qr_jinja_string *text = value.string;
        if (text->size > 0 && qr_utf8_sequence_length(text->data, text->size) == text->size) {
            append_aligned(out, s, text->data, text->size, 0, '>');
            return;
        }
    }
    const size_t size =
        qr_jinja_as_index(value, &code) && code >= 0 && code <= 0x10FFFF ? qr_utf8_encode((uint32_t)code, bytes) : 0;
    if (size == 0) {
        (void)qr_jinja_error(out->run, "%%c needs the code of a character%s", takes_text ? " or one character" : "");
        return;
    }
    append_aligned(out, s, bytes, size, 0, '>');
}

static void append_formatted(qr_jinja_builder *out, spec *s, qr_jinja_value value) {
    const bool whole = qr_jinja_is_integer(value);
    if (value.type == QR_JINJA_STRING && (s->type == '\0' || s->type == 's')) {
        if (s->zeros) { s->align = '<'; }
        if (s->align == '=' || s->sign != '\0' || s->grouped || s->alternate) {
            (void)qr_jinja_error(out->run, "a format that only numbers have was given a text");
            return;
        }
        append_text_value(out, s, value.string);
    } else if (whole && s->type == 'c') {
        append_character(out, s, value, false);
    } else if (whole && (s->type == '\0' || strchr("dxXob", s->type) != NULL)) {
        append_integer(out, s, value);
    } else if (qr_jinja_is_number(value) && (s->type == '\0' || strchr("eEfFgG%", s->type) != NULL)) {
        append_double(out, s, qr_jinja_as_double(value));
    } else {
        (void)qr_jinja_error(out->run, "the format '%c' is not one for a value of type %s",
                             s->type == '\0' ? ' ' : s->type, qr_jinja_type_name(value));
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
    } else if (s->grouped && s->fill[0] == '0') {
        (void)qr_jinja_error(run, "a format with both ',' and leading zeros is not supported");
    }
    return !qr_jinja_failed(run);
}

static bool read_spec(qr_jinja_run *run, const char *at, const char *end, spec *s) {
    *s = (spec){.fill = " ", .precision = -1};
    bool has_fill = false;
    const size_t fill_size = at < end ? qr_utf8_sequence_length(at, (size_t)(end - at)) : 0;
    if (fill_size > 0 && at + fill_size < end && is_align(at[fill_size])) {
        memcpy(s->fill, at, fill_size);
        s->fill[fill_size] = '\0';
        has_fill = true;
        at += fill_size;
    }
    if (at < end && is_align(*at)) { s->align = *at++; }
    if (at < end && (*at == '+' || *at == '-' || *at == ' ')) {
        s->sign = *at;
        at++;
    }
    s->alternate = skip(&at, end, '#');
    if (skip(&at, end, '0')) {
        s->zeros = s->align == '\0';
        if (s->zeros) { s->align = '='; }
        if (!has_fill) { s->fill[0] = '0'; }
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
    const bool automatic = stop == at;
    const qr_jinja_value name =
        automatic ? qr_jinja_int((int64_t)state->n_automatic++) : qr_jinja_path_key(run, at, (size_t)(stop - at));
    int64_t index;
    qr_jinja_value value;
    if (qr_jinja_as_index(name, &index)) {
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
        value = bracket ? qr_jinja_get_item(run, value, qr_jinja_path_key(run, start, size))
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
    if (colon == NULL || colon + 1 == end) {
        qr_jinja_append_value(out, value);
    } else if (!qr_jinja_failed(run) && read_spec(run, colon + 1, end, &s)) {
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
    if (type == 's' || type == 'r') {
        if (s->align == '=') { s->align = '>'; }
        s->fill[0] = ' ';
        append_text_value(out, s, to_text(run, type, value).string);
    } else if (type == 'c') {
        if (s->align == '=') { s->align = '>'; }
        s->fill[0] = ' ';
        append_character(out, s, value, true);
    } else if (!qr_jinja_is_number(value)) {
        (void)qr_jinja_error(run, "%%%c format: a number is required, not %s", type, qr_jinja_type_name(value));
    } else if (strchr("diuxXo", type) != NULL) {
        if (value.type == QR_JINJA_FLOAT && (!isfinite(value.number) || strchr("xXo", type) != NULL)) {
            (void)qr_jinja_error(run, "%%%c format: an integer is required, not float", type);
            return;
        }
        if (value.type == QR_JINJA_FLOAT) { value = qr_jinja_integer_from_double(run, value.number); }
        s->type = type == 'i' || type == 'u' ? 'd' : type;
        append_integer(out, s, value);
    } else {
        s->type = type;
        if (value.type == QR_JINJA_BIG && isinf(qr_jinja_as_double(value))) {
            (void)qr_jinja_error(run, "int too large to convert to float");
        }
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
        if (type == '\0' || strchr("diuxXoscrfFeEgG", type) == NULL) {
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
        qr_jinja_append(&out, text, strftime_l(text, sizeof text, directive, &local, qr_c_locale()));
    }
    return qr_jinja_built(&out);
}
