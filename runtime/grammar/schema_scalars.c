/* Strings and numbers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/sizes.h"
#include "runtime/grammar/schema_compiler.h"

/* ---- Strings ----------------------------------------------------------------------------------------------------- */

/* The formats that are obeyed, as expressions: values without escapes, dates that there are, IPv6 in eight groups. Five
 * labels of a host have at most 253 characters. A URI (RFC 3986) has the name of a host after "//", or none. */
#define MONTHS "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
#define LEAP_YEAR "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
#define DATE "([1-9][0-9]{3}-(" MONTHS ")|" LEAP_YEAR "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define N "[0-9]{1,4}"
#define CLOCK "T(" N "H(" N "M(" N "S)?)?|" N "M(" N "S)?|" N "S)"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,47}[A-Za-z0-9])?"
#define URI_CHARACTER "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F][0-9A-F])"
#define URI_REST "([/?](" URI_CHARACTER "|[/?]){0,300})?(#(" URI_CHARACTER "|[/?]){0,40})?"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
static const struct {
    const char *name, *pattern; /* NULL: every text */
} formats[] = {
    {"password", NULL}, /* how it is shown, and what it is used for */
    {"binary", NULL},
    {"path", NULL},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:(//" LABEL "(\\." LABEL "){0,4}(:[1-9][0-9]{0,3})?" URI_REST
            "|" URI_CHARACTER "{1,100})$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"duration", "^P((" N "Y(" N "M(" N "D)?)?|" N "M(" N "D)?|" N "D)(" CLOCK ")?|" CLOCK "|" N "W)$"},
    {"email", "^[A-Za-z0-9_+-]{1,40}(\\.[A-Za-z0-9_+-]{1,40}){0,3}@" LABEL "(\\." LABEL "){1,4}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,4}$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
};

static bool find_format(const char *name, const char **pattern) {
    for (size_t i = 0; i < QR_COUNT_OF(formats); i++) {
        *pattern = formats[i].pattern;
        if (strcmp(formats[i].name, name) == 0) { return true; }
    }
    *pattern = NULL;
    return false;
}

/* The expression that "pattern" or "format" says; NULL: neither is there. */
static qrun_status read_pattern(qr_schema_compiler *compiler, const qr_schema_place *place, const char **pattern) {
    const qr_json *given = qr_json_get(place->schema, "pattern"), *format = qr_json_get(place->schema, "format");
    *pattern = NULL;
    if ((given != NULL && !cJSON_IsString(given)) || (format != NULL && !cJSON_IsString(format))) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"%s\" must be a text",
                                given != NULL && !cJSON_IsString(given) ? "pattern" : "format");
    }
    if (given != NULL && format != NULL) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"format\" beside \"pattern\" is not supported; give one of them");
    }
    if (given != NULL) { *pattern = given->valuestring; }
    if (format == NULL || find_format(format->valuestring, pattern)) { return QRUN_OK; }
    return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                            "\"format\": \"%.40s\" is not supported; date-time, date, time, duration, email, hostname, "
                            "ipv4, ipv6, uri and uuid are",
                            format->valuestring);
}

qrun_status qr_schema_add_string(qr_schema_compiler *compiler, const qr_schema_place *place) {
    const char *pattern;
    int64_t low, high;
    QR_RETURN_IF_ERROR(qr_schema_count(compiler, place, "minLength", &low));
    QR_RETURN_IF_ERROR(qr_schema_count(compiler, place, "maxLength", &high));
    QR_RETURN_IF_ERROR(read_pattern(compiler, place, &pattern));
    if (high >= 0 && low > high) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"minLength\" is more than \"maxLength\"");
    }
    if (pattern != NULL) { return qr_schema_add_pattern(compiler, pattern, low, high, place); }
    if (low <= 0 && high < 0) {
        qr_add_string(&compiler->pieces, place->from, place->to);
    } else {
        qr_add_counted_string(&compiler->pieces, place->from, qr_max(low, 0), high, place->to);
    }
    return compiler->pieces.builder.status;
}

/* ---- Ranges of numbers ------------------------------------------------------------------------------------------- */

static const int64_t MOST = 999999999999999999; /* of QR_INTEGER_DIGITS digits */

/* With a limit that is excluded, numbers have so few digits that none is rounded to it when it is read. */
enum { LIMITED_FRACTION_DIGITS = 9, MOST_EXCLUDED = 1000000, FRACTION_ZEROS = 4 };

typedef struct number_range {
    bool is_limited;   /* else there is no limit */
    int64_t low, high; /* −MOST and MOST: none on this side */
    bool excludes_low, excludes_high;
} number_range;

/* One limit: a whole number. */
static qrun_status read_limit(qr_schema_compiler *compiler, const qr_schema_place *place, const char *key,
                              int64_t *limit, bool *given) {
    const qr_json *member = qr_json_get(place->schema, key);
    *given = false;
    if (member == NULL) { return QRUN_OK; }
    if (cJSON_IsBool(member)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%s\" as true or false (draft 4) is not supported; give the limit itself", key);
    }
    if (!cJSON_IsNumber(member)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_INPUT, &place->path, "\"%s\" must be a number", key);
    }
    const double value = member->valuedouble;
    if (value != nearbyint(value) || fabs(value) > 1e15) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%s\" must be a whole number of at most 15 digits", key);
    }
    *limit = (int64_t)value;
    *given = true;
    return QRUN_OK;
}

static qrun_status read_range(qr_schema_compiler *compiler, const qr_schema_place *place, number_range *range) {
    int64_t low = 0, high = 0, above = 0, below = 0;
    bool has_low, has_high, has_above, has_below;
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "minimum", &low, &has_low));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "maximum", &high, &has_high));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "exclusiveMinimum", &above, &has_above));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "exclusiveMaximum", &below, &has_below));
    *range = (number_range){.is_limited = has_low || has_high || has_above || has_below, .low = -MOST, .high = MOST};
    range->excludes_low = has_above && (!has_low || above >= low);
    range->excludes_high = has_below && (!has_high || below <= high);
    if (has_low || has_above) { range->low = range->excludes_low ? above : low; }
    if (has_high || has_below) { range->high = range->excludes_high ? below : high; }
    return QRUN_OK;
}

static int count_digits(uint64_t value) {
    int n = 1;
    for (; value >= 10; value /= 10) { n++; }
    return n;
}

/* Numbers of n digits from low to high, both of that length; *power is 10^(n − 1). */
static void add_same_length(qr_json_pieces *pieces, int32_t from, uint64_t low, uint64_t high, int n, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    uint64_t power = 1;
    for (int i = 1; i < n; i++) { power *= 10; }
    if (n == 0) {
        qr_automaton_add_empty(builder, from, to);
        return;
    }
    if (low == 0 && high == power * 10 - 1) {
        qr_add_digits(pieces, from, n, n, to);
        return;
    }
    int first = (int)(low / power), last = (int)(high / power);
    if (first == last) {
        const int32_t next = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, from, (uint8_t)('0' + first), (uint8_t)('0' + first), next);
        add_same_length(pieces, next, low % power, high % power, n - 1, to);
        return;
    }
    if (low % power != 0) {
        const int32_t next = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, from, (uint8_t)('0' + first), (uint8_t)('0' + first), next);
        add_same_length(pieces, next, low % power, power - 1, n - 1, to);
        first++;
    }
    if (high % power != power - 1) {
        const int32_t next = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, from, (uint8_t)('0' + last), (uint8_t)('0' + last), next);
        add_same_length(pieces, next, 0, high % power, n - 1, to);
        last--;
    }
    if (first > last) { return; }
    const int32_t next = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, from, (uint8_t)('0' + first), (uint8_t)('0' + last), next);
    qr_add_digits(pieces, next, n - 1, n - 1, to);
}

/* Numbers from low to high, which are at least 0, without leading zeros. */
static void add_naturals(qr_json_pieces *pieces, int32_t from, uint64_t low, uint64_t high, int32_t to) {
    if (low > high) { return; }
    uint64_t least = 0, most = 9; /* of so many digits */
    for (int n = 1; n <= count_digits(high); n++) {
        const uint64_t begin = low > least ? low : least, end = high < most ? high : most;
        if (begin <= end) { add_same_length(pieces, from, begin, end, n, to); }
        least = most + 1;
        most = most * 10 + 9;
    }
}

static void add_integers(qr_json_pieces *pieces, int32_t from, int64_t low, int64_t high, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    if (low < 0) {
        const int32_t negative = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, from, '-', '-', negative);
        add_naturals(pieces, negative, (uint64_t)(high < 0 ? -high : 1), (uint64_t)-low, to);
    }
    if (high >= 0) { add_naturals(pieces, from, (uint64_t)qr_max(low, 0), (uint64_t)high, to); }
}

/* ---- Multiples --------------------------------------------------------------------------------------------------- */

enum { MAX_LISTED = 4096, MAX_RESIDUES = 128 };

/* "multipleOf": a whole number above 0; 1 where there is none. */
static qrun_status read_multiple(qr_schema_compiler *compiler, const qr_schema_place *place, int64_t *multiple) {
    const qr_json *member = qr_json_get(place->schema, "multipleOf");
    *multiple = 1;
    if (member == NULL) { return QRUN_OK; }
    if (!cJSON_IsNumber(member) || member->valuedouble < 1 || member->valuedouble > 1e15 ||
        member->valuedouble != nearbyint(member->valuedouble)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"multipleOf\" must be a whole number from 1 to 1e15");
    }
    *multiple = (int64_t)member->valuedouble;
    return QRUN_OK;
}

/* Multiples without limits: a state for each remainder and number of digits. */
static void add_all_multiples(qr_json_pieces *pieces, int32_t from, int64_t multiple, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const int32_t begin = qr_automaton_add_state(builder);
    int32_t at[MAX_RESIDUES], next[MAX_RESIDUES];
    qr_automaton_add_bytes(builder, from, '-', '-', begin);
    qr_automaton_add_bytes(builder, from, '0', '0', to);
    qr_automaton_add_empty(builder, from, begin);
    for (int n = 0; n < QR_INTEGER_DIGITS && builder->status == QRUN_OK; n++) {
        for (int64_t r = 0; r < multiple; r++) { next[r] = qr_automaton_add_state(builder); }
        for (int64_t r = 0; r < (n == 0 ? 1 : multiple); r++) {
            for (int digit = n == 0; digit <= 9; digit++) {
                qr_automaton_add_bytes(builder, n == 0 ? begin : at[r], (uint8_t)('0' + digit), (uint8_t)('0' + digit),
                                       next[(r * 10 + digit) % multiple]);
            }
        }
        qr_automaton_add_empty(builder, next[0], to);
        memcpy(at, next, sizeof at);
    }
}

/* The multiples in a range, as whole numbers. */
static qrun_status add_multiples(qr_schema_compiler *compiler, const qr_schema_place *place, int64_t multiple,
                                 number_range range) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int64_t low = range.low + range.excludes_low, high = range.high - range.excludes_high;
    const int64_t first = low / multiple + (low % multiple > 0), last = high / multiple - (high % multiple < 0);
    if (!range.is_limited && multiple <= MAX_RESIDUES) {
        add_all_multiples(&compiler->pieces, place->from, multiple, place->to);
        return builder->status;
    }
    if (last - first >= MAX_LISTED) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"multipleOf\" is supported up to %d, or where limits leave at most %d values",
                                MAX_RESIDUES, MAX_LISTED);
    }
    const int32_t root = qr_automaton_add_state(builder);
    qr_automaton_add_empty(builder, place->from, root);
    for (int64_t i = first; i <= last; i++) {
        char text[QR_NUMBER_BYTES];
        (void)qr_format(text, sizeof text, "%lld", (long long)(i * multiple));
        qr_automaton_merge_text(builder, root, text, place->to);
    }
    return builder->status;
}

qrun_status qr_schema_add_integer(qr_schema_compiler *compiler, const qr_schema_place *place) {
    number_range range;
    int64_t multiple;
    QR_RETURN_IF_ERROR(read_range(compiler, place, &range));
    QR_RETURN_IF_ERROR(read_multiple(compiler, place, &multiple));
    if (multiple > 1) { return add_multiples(compiler, place, multiple, range); }
    if (!range.is_limited) {
        qr_add_integer(&compiler->pieces, place->from, place->to);
    } else {
        add_integers(&compiler->pieces, place->from, range.low + range.excludes_low, range.high - range.excludes_high,
                     place->to);
    }
    return compiler->pieces.builder.status;
}

/* A point and digits that are not all zeros. */
static void add_positive_fraction(qr_json_pieces *pieces, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    int32_t zeros = qr_automaton_add_state(builder);
    const int32_t rest = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, from, '.', '.', zeros);
    for (int i = 0; i < FRACTION_ZEROS; i++) {
        const int32_t next = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, zeros, '1', '9', rest);
        qr_automaton_add_bytes(builder, zeros, '0', '0', next);
        zeros = next;
    }
    qr_automaton_add_bytes(builder, zeros, '1', '9', rest);
    qr_add_digits(pieces, rest, 0, LIMITED_FRACTION_DIGITS - FRACTION_ZEROS - 1, to);
}

/* Numbers of at least 0 from low to high (without them where they are excluded), written without an exponent. */
static void add_decimals(qr_json_pieces *pieces, int32_t from, number_range range, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const uint64_t low = (uint64_t)range.low, high = (uint64_t)range.high;
    const int32_t whole = qr_automaton_add_state(builder), inside = qr_automaton_add_state(builder);
    if (range.low > range.high || (range.low == range.high && (range.excludes_low || range.excludes_high))) { return; }
    if (range.excludes_low && low < high) { /* what has the lowest whole part needs a fraction */
        const int32_t lowest = qr_automaton_add_state(builder);
        add_naturals(pieces, from, low, low, lowest);
        add_positive_fraction(pieces, lowest, to);
    }
    const uint64_t first = low + range.excludes_low;
    if (high > first) { add_naturals(pieces, from, first, high - 1, inside); }
    qr_automaton_add_empty(builder, inside, to);
    qr_add_fraction(pieces, inside, LIMITED_FRACTION_DIGITS, to);
    if (range.excludes_high) { return; }
    add_naturals(pieces, from, high, high, whole);
    qr_automaton_add_empty(builder, whole, to);
    qr_automaton_add_text(builder, whole, ".0", to);
}

qrun_status qr_schema_add_number(qr_schema_compiler *compiler, const qr_schema_place *place) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    number_range range;
    QR_RETURN_IF_ERROR(read_range(compiler, place, &range));
    if (qr_json_get(place->schema, "multipleOf") != NULL) { return qr_schema_add_integer(compiler, place); }
    if (!range.is_limited) {
        qr_add_number(&compiler->pieces, place->from, place->to);
        return builder->status;
    }
    if ((range.excludes_low && llabs(range.low) > MOST_EXCLUDED) ||
        (range.excludes_high && llabs(range.high) > MOST_EXCLUDED)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "an exclusive limit of a \"number\" can be from -%d to %d", MOST_EXCLUDED,
                                MOST_EXCLUDED);
    }
    if (range.high >= 0) {
        number_range upper = range;
        if (range.low < 0) { upper.low = 0, upper.excludes_low = false; }
        add_decimals(&compiler->pieces, place->from, upper, place->to);
    }
    if (range.low < 0) { /* the same, mirrored; not -0, which is 0 */
        number_range lower = {.low = qr_max(-range.high, 0),
                              .high = -range.low,
                              .excludes_low = range.high >= 0 || range.excludes_high,
                              .excludes_high = range.excludes_low};
        const int32_t negative = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, place->from, '-', '-', negative);
        add_decimals(&compiler->pieces, negative, lower, place->to);
    }
    return builder->status;
}
