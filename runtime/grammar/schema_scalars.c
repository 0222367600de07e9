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

/* With a limit that is excluded or that is not whole, numbers have so few digits that none is rounded to another when
 * it is read. */
enum { LIMITED_FRACTION_DIGITS = 9, BILLION = 1000000000, MOST_FRACTIONAL = 1000000 };

/* whole + billionths / 10^9, of which billionths is not negative. */
typedef struct decimal {
    int64_t whole;
    int32_t billionths;
} decimal;

typedef struct number_range {
    bool is_limited;   /* else there is no limit */
    decimal low, high; /* −MOST and MOST: none on this side */
    bool excludes_low, excludes_high;
} number_range;

static bool is_below(decimal a, decimal b) {
    return a.whole != b.whole ? a.whole < b.whole : a.billionths < b.billionths;
}

static decimal negated(decimal a) {
    return a.billionths > 0 ? (decimal){-a.whole - 1, BILLION - a.billionths} : (decimal){-a.whole, 0};
}

/* False: the number has more digits than limits can have. */
static bool read_decimal(double value, decimal *limit) {
    if (value == nearbyint(value) && fabs(value) <= 1e15) {
        *limit = (decimal){(int64_t)value, 0};
        return true;
    }
    if (!(fabs(value) <= MOST_FRACTIONAL)) { return false; }
    const double whole = floor(value), billionths = nearbyint((value - whole) * BILLION);
    *limit = (decimal){(int64_t)whole, (int32_t)billionths};
    /* Both are whole numbers that F64 has, so their quotient is the decimal number as it is read. */
    return billionths < BILLION && (whole * BILLION + billionths) / BILLION == value;
}

static qrun_status read_limit(qr_schema_compiler *compiler, const qr_schema_place *place, const char *key,
                              decimal *limit, bool *given) {
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
    if (!read_decimal(member->valuedouble, limit)) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "\"%s\" must be a whole number of at most 15 digits, or from -%d to %d with at most %d "
                                "digits after the point",
                                key, MOST_FRACTIONAL, MOST_FRACTIONAL, LIMITED_FRACTION_DIGITS);
    }
    *given = true;
    return QRUN_OK;
}

static qrun_status read_range(qr_schema_compiler *compiler, const qr_schema_place *place, number_range *range) {
    decimal low = {0}, high = {0}, above = {0}, below = {0};
    bool has_low, has_high, has_above, has_below;
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "minimum", &low, &has_low));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "maximum", &high, &has_high));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "exclusiveMinimum", &above, &has_above));
    QR_RETURN_IF_ERROR(read_limit(compiler, place, "exclusiveMaximum", &below, &has_below));
    *range = (number_range){
        .is_limited = has_low || has_high || has_above || has_below, .low = {-MOST, 0}, .high = {MOST, 0}};
    range->excludes_low = has_above && (!has_low || !is_below(above, low));
    range->excludes_high = has_below && (!has_high || !is_below(high, below));
    if (has_low || has_above) { range->low = range->excludes_low ? above : low; }
    if (has_high || has_below) { range->high = range->excludes_high ? below : high; }
    return QRUN_OK;
}

/* The whole numbers of a range are from the one to the other. */
static int64_t first_integer(const number_range *range) {
    return range->low.whole + (range->low.billionths > 0 || range->excludes_low);
}

static int64_t last_integer(const number_range *range) {
    return range->high.whole - (range->high.billionths == 0 && range->excludes_high);
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
                                 const number_range *range) {
    qr_automaton_builder *builder = &compiler->pieces.builder;
    const int64_t low = first_integer(range), high = last_integer(range);
    const int64_t first = low / multiple + (low % multiple > 0), last = high / multiple - (high % multiple < 0);
    if (!range->is_limited && multiple <= MAX_RESIDUES) {
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
    if (multiple > 1) { return add_multiples(compiler, place, multiple, &range); }
    if (!range.is_limited) {
        qr_add_integer(&compiler->pieces, place->from, place->to);
    } else {
        add_integers(&compiler->pieces, place->from, first_integer(&range), last_integer(&range), place->to);
    }
    return compiler->pieces.builder.status;
}

/* ---- Decimal numbers --------------------------------------------------------------------------------------------- */

/* What a fraction may be where the whole part is that of a limit: digits [LIMITED_FRACTION_DIGITS]. */
typedef struct fraction_limits {
    bool has_low, has_high, excludes_low, excludes_high;
    int8_t low[LIMITED_FRACTION_DIGITS], high[LIMITED_FRACTION_DIGITS];
} fraction_limits;

static void put_digits(int32_t billionths, int8_t *digits) {
    for (int i = LIMITED_FRACTION_DIGITS; i-- > 0; billionths /= 10) { digits[i] = (int8_t)(billionths % 10); }
}

/* Whether digits from number i on are zeros. */
static bool ends_in_zeros(const int8_t *digits, int i) {
    while (i < LIMITED_FRACTION_DIGITS && digits[i] == 0) { i++; }
    return i == LIMITED_FRACTION_DIGITS;
}

/* A place in a fraction: behind i digits, which are those of a limit or not any more. */
typedef struct fraction_place {
    int i;
    bool at_low, at_high;
} fraction_place;

static bool may_end(const fraction_limits *l, fraction_place at) {
    if (at.at_low && (l->excludes_low || !ends_in_zeros(l->low, at.i))) { return false; }
    return !(at.at_high && l->excludes_high && ends_in_zeros(l->high, at.i));
}

/* False: no number of the range goes on with this digit. */
static bool take_digit(const fraction_limits *l, fraction_place at, int digit, fraction_place *next) {
    if (at.i == LIMITED_FRACTION_DIGITS) { return false; }
    if ((at.at_low && digit < l->low[at.i]) || (at.at_high && digit > l->high[at.i])) { return false; }
    *next = (fraction_place){at.i + 1, at.at_low && digit == l->low[at.i], at.at_high && digit == l->high[at.i]};
    return true;
}

/* Which numbers can still be completed, by the digits so far. */
typedef struct fraction_states {
    int32_t at[LIMITED_FRACTION_DIGITS + 1][2][2]; /* −1: none can */
} fraction_states;

static int32_t state_at(const fraction_states *states, fraction_place at) {
    return states->at[at.i][at.at_low][at.at_high];
}

/* The state of a place that has been reached by at least one digit, or by the point. */
static void add_fraction_state(qr_json_pieces *pieces, const fraction_limits *limits, fraction_place at,
                               fraction_states *states, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const bool ends = at.i > 0 && may_end(limits, at);
    int32_t state = ends ? qr_automaton_add_state(builder) : -1;
    for (int digit = 0; digit <= 9; digit++) {
        fraction_place next;
        if (!take_digit(limits, at, digit, &next) || state_at(states, next) < 0) { continue; }
        if (state < 0) { state = qr_automaton_add_state(builder); }
        qr_automaton_add_bytes(builder, state, (uint8_t)('0' + digit), (uint8_t)('0' + digit), state_at(states, next));
    }
    if (ends) { qr_automaton_add_empty(builder, state, to); }
    states->at[at.i][at.at_low][at.at_high] = state;
}

/* Behind a whole part: a fraction within the limits, or none where that is within them. */
static void add_limited_fraction(qr_json_pieces *pieces, int32_t from, const fraction_limits *limits, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const fraction_place begin = {0, limits->has_low, limits->has_high};
    fraction_states states;
    for (int i = LIMITED_FRACTION_DIGITS; i >= 0; i--) {
        for (int k = 0; k < 4; k++) {
            add_fraction_state(pieces, limits, (fraction_place){i, (k & 1) != 0, (k & 2) != 0}, &states, to);
        }
    }
    if (may_end(limits, begin)) { qr_automaton_add_empty(builder, from, to); }
    if (state_at(&states, begin) >= 0) { qr_automaton_add_bytes(builder, from, '.', '.', state_at(&states, begin)); }
}

/* Numbers of the range with this whole part, which is that of one of its limits or of both. */
static void add_whole_part(qr_json_pieces *pieces, int32_t from, uint64_t whole, const number_range *range,
                           int32_t to) {
    fraction_limits limits = {.has_low = (uint64_t)range->low.whole == whole,
                              .has_high = (uint64_t)range->high.whole == whole,
                              .excludes_low = range->excludes_low,
                              .excludes_high = range->excludes_high};
    const int32_t behind = qr_automaton_add_state(&pieces->builder);
    put_digits(range->low.billionths, limits.low);
    put_digits(range->high.billionths, limits.high);
    add_naturals(pieces, from, whole, whole, behind);
    add_limited_fraction(pieces, behind, &limits, to);
}

/* Numbers of at least 0 from low to high (without them where they are excluded), written without an exponent. */
static void add_decimals(qr_json_pieces *pieces, int32_t from, const number_range *range, int32_t to) {
    qr_automaton_builder *builder = &pieces->builder;
    const uint64_t low = (uint64_t)range->low.whole, high = (uint64_t)range->high.whole;
    const bool cuts_low = range->low.billionths > 0 || range->excludes_low;
    const uint64_t first = low + cuts_low; /* from here on up to `high` any fraction is in the range */
    if (is_below(range->high, range->low)) { return; }
    if (low == high) {
        const bool same = range->low.billionths == range->high.billionths;
        if (same && (range->excludes_low || range->excludes_high)) { return; }
        add_whole_part(pieces, from, low, range, to);
        return;
    }
    if (cuts_low) { add_whole_part(pieces, from, low, range, to); }
    const int32_t inside = qr_automaton_add_state(builder);
    if (high > first) { add_naturals(pieces, from, first, high - 1, inside); }
    qr_automaton_add_empty(builder, inside, to);
    qr_add_fraction(pieces, inside, LIMITED_FRACTION_DIGITS, to);
    if (range->high.billionths > 0 || !range->excludes_high) { add_whole_part(pieces, from, high, range, to); }
}

static bool is_far(decimal limit) { return llabs(limit.whole) > MOST_FRACTIONAL; }

qrun_status qr_schema_add_number(qr_schema_compiler *compiler, const qr_schema_place *place) {
    static const decimal zero = {0, 0};
    qr_automaton_builder *builder = &compiler->pieces.builder;
    number_range range;
    QR_RETURN_IF_ERROR(read_range(compiler, place, &range));
    if (qr_json_get(place->schema, "multipleOf") != NULL) { return qr_schema_add_integer(compiler, place); }
    if (!range.is_limited) {
        qr_add_number(&compiler->pieces, place->from, place->to);
        return builder->status;
    }
    if ((range.excludes_low && is_far(range.low)) || (range.excludes_high && is_far(range.high))) {
        return qr_schema_refuse(compiler, QRUN_ERROR_UNSUPPORTED, &place->path,
                                "an exclusive limit of a \"number\" can be from -%d to %d", MOST_FRACTIONAL,
                                MOST_FRACTIONAL);
    }
    if (!is_below(range.high, zero)) {
        number_range upper = range;
        if (is_below(range.low, zero)) { upper.low = zero, upper.excludes_low = false; }
        add_decimals(&compiler->pieces, place->from, &upper, place->to);
    }
    if (is_below(range.low, zero)) { /* the same, mirrored; not -0, which is 0 */
        const bool to_zero = !is_below(range.high, zero);
        const number_range lower = {.low = to_zero ? zero : negated(range.high),
                                    .high = negated(range.low),
                                    .excludes_low = to_zero || range.excludes_high,
                                    .excludes_high = range.excludes_low};
        const int32_t negative = qr_automaton_add_state(builder);
        qr_automaton_add_bytes(builder, place->from, '-', '-', negative);
        add_decimals(&compiler->pieces, negative, &lower, place->to);
    }
    return builder->status;
}
