/* Regular expressions in Oniguruma's syntax, in which tokenizer.json is written, as PCRE2 reads them.
 *
 * What the two read alike is copied; the classes of characters are spelled out as Oniguruma 6.9.10 defines them; what
 * cannot be made equal is refused by name.
 *
 * A meter is a callout, by which the search counts what a match costs (pattern.c). One stands wherever a match can come
 * by again: after everything that is repeated, and at the start of a group that is repeated or has alternatives, and
 * after it. Also before a later alternative that has meters, and after a lookaround. Between two meters a match walks
 * ahead from the first, and at most the expression itself besides. The number of a meter is that of the alternative of
 * the whole expression, since the next alternative begins where the first did. A long expression begins with a meter; a
 * short one does not, because PCRE2 then knows better where no match can begin. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

typedef struct translation {
    const qr_regex_context *context;
    const char *regex, *at, *end;
    qr_buffer *out;
    int depth;
    bool caseless;
    uint64_t n_counted; /* characters in repeats that are counted out */
    unsigned branch;    /* of the whole expression */
    size_t n_meters;
    const char *what;
    qr_error *err;
} translation;

static qrun_status refuse(const translation *t, const char *reason) {
    return qr_fail(t->err, QRUN_ERROR_UNSUPPORTED, "%s: the regular expression \"%.200s\" cannot be used: it %s",
                   t->what, t->regex, reason);
}

static void insert(qr_buffer *out, size_t at, const char *text) {
    const size_t n = strlen(text);
    qr_buffer_append(out, text, n);
    if (!qr_buffer_ok(out)) { return; }
    memmove(out->data + at + n, out->data + at, out->size - n - at);
    memcpy(out->data + at, text, n);
}

static void insert_meter(translation *t, size_t at) {
    char meter[16];
    snprintf(meter, sizeof meter, "(?C%u)", t->branch);
    insert(t->out, at, meter);
    t->n_meters++;
}

static void append_meter(translation *t) { insert_meter(t, t->out->size); }

/* --- sets of characters ------------------------------------------------------------------------------------------- */

/* Members as they stand inside [ ], and those of the complement, NULL where only [^ ] can say it. */
typedef struct char_set {
    const char *members, *others;
} char_set;

/* Alphabetic, Mark, Decimal_Number and Connector_Punctuation, by categories that every version has. */
#define WORD                                                                    \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}" \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
/* Outside brackets Oniguruma asks another table below U+0100, in which these numerals are word characters. */
#define LONE_WORD WORD "\\xB2\\xB3\\xB9\\xBC-\\xBE"
#define NO_SPACE                                                                              \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}" \
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
#define NO_HEX "\\x{0}-/:-@G-`g-\\x{10FFFF}"

static const char_set spaces = {"\\p{Z}\\t-\\r\\x{85}", NO_SPACE};
static const char_set digits = {"\\p{Nd}", "\\P{Nd}"};
static const char_set hex_digits = {"0-9A-Fa-f", NO_HEX};
static const char_set words = {WORD, NULL};
static const char_set lone_words = {LONE_WORD, NULL};

/* What both [[:name:]] and \p{name} may say. */
static const struct {
    const char *name;
    char_set set;
} posix_sets[] = {
    {"alnum", {"\\p{Alphabetic}\\p{Nd}", NULL}},
    {"alpha", {"\\p{Alphabetic}", "\\P{Alphabetic}"}},
    {"ascii", {"\\x{0}-\\x{7F}", "\\x{80}-\\x{10FFFF}"}},
    {"blank", {"\\t\\p{Zs}", NULL}},
    {"cntrl", {"\\p{Cc}", "\\P{Cc}"}},
    {"digit", {"\\p{Nd}", "\\P{Nd}"}},
    {"graph", {"\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}", "\\p{Z}\\p{Cc}\\p{Cn}\\p{Cs}"}},
    {"lower", {"\\p{Lowercase}", "\\P{Lowercase}"}},
    {"print", {"\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}", "\\p{Zl}\\p{Zp}\\p{Cc}\\p{Cn}\\p{Cs}"}},
    {"punct", {"\\p{P}\\p{S}", "\\p{L}\\p{M}\\p{N}\\p{Z}\\p{C}"}},
    {"space", {"\\p{Z}\\t-\\r\\x{85}", NO_SPACE}},
    {"upper", {"\\p{Uppercase}", "\\P{Uppercase}"}},
    {"xdigit", {"0-9A-Fa-f", NO_HEX}},
    {"word", {WORD, NULL}}};

static const struct {
    const char *name, *category;
} long_names[] = {{"any", "Any"},
                  {"casedletter", "L&"},
                  {"lc", "L&"},
                  {"closepunctuation", "Pe"},
                  {"combiningmark", "M"},
                  {"connectorpunctuation", "Pc"},
                  {"control", "Cc"},
                  {"currencysymbol", "Sc"},
                  {"dashpunctuation", "Pd"},
                  {"decimalnumber", "Nd"},
                  {"enclosingmark", "Me"},
                  {"finalpunctuation", "Pf"},
                  {"format", "Cf"},
                  {"initialpunctuation", "Pi"},
                  {"letter", "L"},
                  {"letternumber", "Nl"},
                  {"lineseparator", "Zl"},
                  {"lowercaseletter", "Ll"},
                  {"mark", "M"},
                  {"mathsymbol", "Sm"},
                  {"modifierletter", "Lm"},
                  {"modifiersymbol", "Sk"},
                  {"nonspacingmark", "Mn"},
                  {"number", "N"},
                  {"openpunctuation", "Ps"},
                  {"other", "C"},
                  {"otherletter", "Lo"},
                  {"othernumber", "No"},
                  {"otherpunctuation", "Po"},
                  {"othersymbol", "So"},
                  {"paragraphseparator", "Zp"},
                  {"privateuse", "Co"},
                  {"punct", "P"}, /* not the bracket's, which has symbols too */
                  {"punctuation", "P"},
                  {"separator", "Z"},
                  {"spaceseparator", "Zs"},
                  {"spacingmark", "Mc"},
                  {"surrogate", "Cs"},
                  {"symbol", "S"},
                  {"titlecaseletter", "Lt"},
                  {"unassigned", "Cn"},
                  {"uppercaseletter", "Lu"}};

enum { MAX_NAME_BYTES = 64 };

/* A property's name without case, spaces, hyphens and underscores. */
static void fold_name(const char *name, size_t n, char folded[MAX_NAME_BYTES]) {
    size_t n_folded = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = name[i];
        if (c != ' ' && c != '-' && c != '_') {
            folded[n_folded++] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
        }
    }
    folded[n_folded] = '\0';
}

/* Since PCRE2 10.40, \p{Han} is also what the script borrows, and \p{sc:Han} the script itself. */
static bool is_script(const translation *t, const char *name) {
    char regex[MAX_NAME_BYTES + 8];
    int code = 0;
    PCRE2_SIZE offset = 0;
    const int n = snprintf(regex, sizeof regex, "\\p{sc:%s}", name);
    pcre2_code *made = pcre2_compile((PCRE2_SPTR)regex, (PCRE2_SIZE)n, PCRE2_UTF, &code, &offset, t->context->compile);
    pcre2_code_free(made);
    return made != NULL;
}

/* The set that \p{name} or [:name:] is; `text` is room for it. */
typedef struct property_text {
    char members[MAX_NAME_BYTES + 8], others[MAX_NAME_BYTES + 8];
} property_text;

static qrun_status find_property(const translation *t, const char *name, size_t n, property_text *text, char_set *set) {
    char folded[MAX_NAME_BYTES];
    if (n == 0 || n >= MAX_NAME_BYTES) { return refuse(t, "has a property without a name"); }
    fold_name(name, n, folded);
    const char *category = NULL;
    char pair[3] = {(char)(folded[0] - 'a' + 'A'), folded[1], '\0'};
    if (folded[0] >= 'a' && folded[0] <= 'z' && strlen(folded) <= 2 && strcmp(folded, "lc") != 0) { category = pair; }
    for (size_t i = 0; i < QR_COUNT_OF(long_names); i++) {
        if (strcmp(folded, long_names[i].name) == 0) { category = long_names[i].category; }
    }
    if (t->caseless &&
        (strcmp(folded, "lower") == 0 || strcmp(folded, "upper") == 0 ||
         (category != NULL && category[0] == 'L' && strchr("ult", category[1]) != NULL && category[1]))) {
        return refuse(t, "asks for upper or lower case where case does not matter");
    }
    for (size_t i = 0; category == NULL && i < QR_COUNT_OF(posix_sets); i++) {
        if (strcmp(folded, posix_sets[i].name) == 0) {
            *set = posix_sets[i].set;
            return QRUN_OK;
        }
    }
    if (strcmp(folded, "assigned") == 0) {
        *set = (char_set){"\\P{Cn}", "\\p{Cn}"};
        return QRUN_OK;
    }
    if (category == NULL && strspn(folded, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(folded)) {
        return refuse(t, "has a property of a name that is not one");
    }
    const char *prefix = category == NULL && is_script(t, folded) ? "sc:" : "";
    snprintf(text->members, sizeof text->members, "\\p{%s%s}", prefix, category != NULL ? category : folded);
    snprintf(text->others, sizeof text->others, "\\P{%s%s}", prefix, category != NULL ? category : folded);
    *set = (char_set){text->members, text->others};
    return QRUN_OK;
}

/* Reads "{name}" or "{^name}" at t->at. */
static qrun_status read_property(translation *t, property_text *text, char_set *set, bool *complement) {
    *set = (char_set){NULL, NULL};
    const char *end = t->at[0] == '{' ? strchr(t->at, '}') : NULL;
    if (end == NULL) { return refuse(t, "has \\p without a name in braces"); }
    const char *name = t->at + 1;
    if (*name == '^') {
        *complement = !*complement;
        name++;
    }
    QR_RETURN_IF_ERROR(find_property(t, name, (size_t)(end - name), text, set));
    if (set->members == posix_sets[QR_COUNT_OF(posix_sets) - 1].set.members) { *set = lone_words; }
    t->at = end + 1;
    return QRUN_OK;
}

/* Reads the escape at t->at, after its backslash, where it is a set of characters. */
static qrun_status read_set(translation *t, bool in_class, property_text *text, char_set *set, bool *complement,
                            bool *found) {
    const char letter = *t->at;
    *complement = letter == 'S' || letter == 'D' || letter == 'H' || letter == 'W' || letter == 'P';
    *found = true;
    t->at++;
    switch (letter) {
        case 's':
        case 'S': *set = spaces; return QRUN_OK;
        case 'd':
        case 'D': *set = digits; return QRUN_OK;
        case 'h':
        case 'H': *set = hex_digits; return QRUN_OK;
        case 'w':
        case 'W': *set = in_class ? words : lone_words; return QRUN_OK;
        case 'p':
        case 'P':
            QR_RETURN_IF_ERROR(read_property(t, text, set, complement));
            if (in_class && set->members == lone_words.members) { *set = words; }
            return QRUN_OK;
        default: break;
    }
    t->at--;
    *found = false;
    return QRUN_OK;
}

/* --- single characters -------------------------------------------------------------------------------------------- */

static qrun_status read_number(translation *t, unsigned base, size_t max_digits, uint32_t *c) {
    *c = 0;
    size_t n = 0;
    for (; n < max_digits; n++, t->at++) {
        const int digit = qr_hex_digit(*t->at);
        if (digit < 0 || (unsigned)digit >= base) { break; }
        *c = *c * base + (unsigned)digit;
    }
    return n > 0 && *c <= 0x10FFFFU ? QRUN_OK : refuse(t, "has a number that is no character");
}

/* The character of the escape at t->at, after its backslash. */
static qrun_status read_escaped(translation *t, bool in_class, uint32_t *c) {
    static const char letters[] = "tvnrfae", codes[] = "\t\v\n\r\f\a\x1B";
    const char letter = *t->at;
    const char *known = letter != '\0' ? strchr(letters, letter) : NULL;
    if (letter == '\0') { return refuse(t, "ends in a backslash"); }
    if (known != NULL || (letter == 'b' && in_class)) {
        *c = known != NULL ? (unsigned char)codes[known - letters] : '\b';
        t->at++;
        return QRUN_OK;
    }
    if (letter == 'u') {
        t->at++;
        return strspn(t->at, "0123456789abcdefABCDEF") >= 4 ? read_number(t, 16, 4, c) : refuse(t, "cuts \\u short");
    }
    if (letter == 'x') {
        const bool braces = t->at[1] == '{';
        t->at += braces ? 2 : 1;
        QR_RETURN_IF_ERROR(read_number(t, 16, braces ? 8 : 2, c));
        if (braces && *t->at != '}') { return refuse(t, "has more than one character in \\x{}"); }
        if (!braces && *c > 0x7FU) { return refuse(t, "spells bytes above 0x7F"); }
        t->at += braces ? 1 : 0;
        return QRUN_OK;
    }
    if (letter == '0' || (in_class && letter >= '1' && letter <= '7')) {
        QR_RETURN_IF_ERROR(read_number(t, 8, 3, c));
        return *c <= 0x7FU ? QRUN_OK : refuse(t, "spells bytes above 0x7F");
    }
    if (letter == 'o' || letter == 'c' || letter == 'C' || letter == 'M') {
        return refuse(t, "has \\o, \\c, \\C or \\M");
    }
    t->at += qr_utf8_decode(t->at, (size_t)(t->end - t->at), c);
    return QRUN_OK;
}

static void append_char(qr_buffer *out, uint32_t c) {
    const bool alnum = c < 0x80U && ((c >= '0' && c <= '9') || ((c | 0x20U) >= 'a' && (c | 0x20U) <= 'z'));
    qr_buffer_append_format(out, alnum ? "%c" : "\\x{%X}", c);
}

/* Without case, Oniguruma finds "ss" in U+00DF and "fi" in U+FB01, which PCRE2 does not. */
static bool folds_to_several(const char *at) {
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    for (size_t i = 0; i < QR_COUNT_OF(pairs); i++) {
        if ((at[0] | 0x20) == pairs[i][0] && (at[1] | 0x20) == pairs[i][1]) { return true; }
    }
    return strncmp(at, "\xC3\x9F", 2) == 0 || strncmp(at, "\xE1\xBA\x9E", 3) == 0 || strncmp(at, "\xEF\xAC", 2) == 0;
}

/* --- classes in brackets ------------------------------------------------------------------------------------------ */

/* A class under way: what stands inside its brackets, and the complements that only brackets of their own can say. */
typedef struct class_text {
    qr_buffer members, complements;
} class_text;

static void add_set(class_text *class, const char_set *set, bool complement) {
    const char *members = complement ? set->others : set->members;
    if (members != NULL) {
        qr_buffer_append_text(&class->members, members);
    } else {
        qr_buffer_append_format(&class->complements, "|[^%s]", set->members);
    }
}

/* "[:name:]" or "[:^name:]" at t->at. */
static qrun_status read_posix(translation *t, class_text *class) {
    const char *end = t->at[1] == ':' ? strstr(t->at + 2, ":]") : NULL;
    if (end == NULL) { return refuse(t, "nests character classes"); }
    const bool complement = t->at[2] == '^';
    const char *name = t->at + (complement ? 3 : 2);
    for (size_t i = 0; i < QR_COUNT_OF(posix_sets); i++) {
        const size_t n = strlen(posix_sets[i].name);
        if ((size_t)(end - name) == n && memcmp(name, posix_sets[i].name, n) == 0) {
            if (t->caseless && (strcmp(posix_sets[i].name, "lower") == 0 || strcmp(posix_sets[i].name, "upper") == 0)) {
                return refuse(t, "asks for upper or lower case where case does not matter");
            }
            add_set(class, &posix_sets[i].set, complement);
            t->at = end + 2;
            return QRUN_OK;
        }
    }
    return refuse(t, "nests character classes, or has a [: :] of a name that is not one");
}

/* A set (*is_set) or one character of the class at t->at. */
static qrun_status read_member(translation *t, class_text *class, uint32_t *c, bool *is_set) {
    *is_set = *t->at == '[';
    if (*is_set) { return read_posix(t, class); }
    if (*t->at != '\\') {
        if (t->at[0] == '&' && t->at[1] == '&') { return refuse(t, "intersects character classes"); }
        t->at += qr_utf8_decode(t->at, (size_t)(t->end - t->at), c);
        return QRUN_OK;
    }
    property_text text;
    char_set set;
    bool complement;
    t->at++;
    QR_RETURN_IF_ERROR(read_set(t, true, &text, &set, &complement, is_set));
    if (!*is_set) { return read_escaped(t, true, c); }
    add_set(class, &set, complement);
    return QRUN_OK;
}

static qrun_status read_members(translation *t, class_text *class) {
    for (bool first = true; *t->at != ']' || first; first = false) {
        uint32_t low = 0, high = 0;
        bool is_set = false;
        if (*t->at == '\0') { return refuse(t, "has a character class without an end"); }
        QR_RETURN_IF_ERROR(read_member(t, class, &low, &is_set));
        if (is_set) {
            if (t->at[0] == '-' && t->at[1] != ']') { return refuse(t, "has a range that begins with a set"); }
            continue;
        }
        append_char(&class->members, low);
        if (t->at[0] != '-' || t->at[1] == ']' || t->at[1] == '\0') { continue; }
        t->at++;
        QR_RETURN_IF_ERROR(read_member(t, class, &high, &is_set));
        if (is_set || high < low) { return refuse(t, "has a range without an end"); }
        qr_buffer_append_char(&class->members, '-');
        append_char(&class->members, high);
    }
    t->at++;
    return QRUN_OK;
}

/* The class at t->at, after its "[". */
static qrun_status translate_class(translation *t) {
    class_text class = {{0}, {0}};
    const bool negated = *t->at == '^';
    t->at += negated ? 1 : 0;
    const qrun_status status = read_members(t, &class);
    if (!qr_buffer_ok(&class.members) || !qr_buffer_ok(&class.complements)) { t->out->failed = true; }
    if (status == QRUN_OK && !t->out->failed) {
        const char *members = class.members.data, *complements = class.complements.data;
        if (complements == NULL) {
            qr_buffer_append_format(t->out, "[%s%s]", negated ? "^" : "", members);
        } else {
            qr_buffer_append_text(t->out, negated ? "(?:(?!" : "(?>");
            if (members != NULL) { qr_buffer_append_format(t->out, "[%s]", members); }
            qr_buffer_append_text(t->out, complements + (members == NULL ? 1 : 0));
            qr_buffer_append_text(t->out, negated ? ")\\p{Any})" : ")");
        }
    }
    qr_buffer_free(&class.members);
    qr_buffer_free(&class.complements);
    return status;
}

/* --- atoms, repeats, alternatives --------------------------------------------------------------------------------- */

static qrun_status translate_alternatives(translation *t, size_t *n_branches);

typedef enum atom_kind {
    ATOM_NONE,  /* a comment: nothing that could be repeated */
    ATOM_PLACE, /* an anchor or lookaround: may not be repeated */
    ATOM_CHARACTER,
    ATOM_GROUP
} atom_kind;

/* Where the last atom was written. */
typedef struct atom {
    atom_kind kind;
    size_t begin, body; /* in t->out: its first byte; of a group, the first inside until a meter stands there */
    size_t n_branches;
} atom;

static void begin_with_meter(translation *t, atom *group) {
    if (group->body > 0) { insert_meter(t, group->body); }
    group->body = 0;
}

/* A group's body and the ")" of the translation. */
static qrun_status translate_body(translation *t, atom *group) {
    enum { MAX_DEPTH = 100 };
    if (++t->depth > MAX_DEPTH) { return refuse(t, "nests more than 100 groups"); }
    group->body = t->out->size;
    QR_RETURN_IF_ERROR(translate_alternatives(t, &group->n_branches));
    t->depth--;
    if (group->n_branches > 1) { begin_with_meter(t, group); }
    qr_buffer_append_char(t->out, ')');
    return QRUN_OK;
}

static qrun_status end_group(translation *t) {
    if (*t->at != ')') { return refuse(t, "has a group without an end"); }
    t->at++;
    return QRUN_OK;
}

/* "(?im-im:" or "(?im)", after the "(?": Oniguruma's m is PCRE2's s. An option without a body holds up to the end
 * of the group around it, alternatives included. */
static qrun_status translate_options(translation *t, atom *group) {
    const bool caseless = t->caseless;
    bool on = true;
    qr_buffer_append_text(t->out, "(?");
    for (; *t->at == 'i' || *t->at == 'm' || *t->at == '-'; t->at++) {
        if (*t->at == '-') { on = false; }
        if (*t->at == 'i') { t->caseless = on; }
        qr_buffer_append_char(t->out, *t->at == 'm' ? 's' : *t->at);
    }
    if (*t->at != ':' && *t->at != ')') { return refuse(t, "has a group of an unknown kind"); }
    qr_buffer_append_char(t->out, ':');
    const bool isolated = *t->at++ == ')';
    QR_RETURN_IF_ERROR(translate_body(t, group));
    t->caseless = caseless;
    if (isolated) {
        group->kind = ATOM_NONE;
        return QRUN_OK;
    }
    return end_group(t);
}

/* The group at t->at, after its "(". */
static qrun_status translate_group(translation *t, atom *group) {
    static const struct {
        const char *opening;
        atom_kind kind;
    } kinds[] = {{"?:", ATOM_GROUP}, {"?>", ATOM_GROUP},  {"?=", ATOM_PLACE},
                 {"?!", ATOM_PLACE}, {"?<=", ATOM_PLACE}, {"?<!", ATOM_PLACE}};
    group->kind = ATOM_GROUP;
    if (*t->at == '*') { return refuse(t, "has a callout"); }
    if (*t->at != '?') {
        qr_buffer_append_char(t->out, '(');
        QR_RETURN_IF_ERROR(translate_body(t, group));
        return end_group(t);
    }
    for (size_t i = 0; i < QR_COUNT_OF(kinds); i++) {
        const size_t n = strlen(kinds[i].opening);
        if (strncmp(t->at, kinds[i].opening, n) == 0) {
            group->kind = kinds[i].kind;
            t->at += n;
            qr_buffer_append_format(t->out, "(%s", kinds[i].opening);
            QR_RETURN_IF_ERROR(translate_body(t, group));
            return end_group(t);
        }
    }
    if (t->at[1] == '#') {
        const char *end = strchr(t->at, ')');
        if (end == NULL) { return refuse(t, "has a comment without an end"); }
        t->at = end + 1;
        group->kind = ATOM_NONE;
        return QRUN_OK;
    }
    t->at++;
    return translate_options(t, group);
}

/* The escape at t->at, after its backslash, outside a class. */
static qrun_status translate_escape(translation *t, atom *made) {
    static const struct {
        char letter;
        const char *text;
    } places[] = {{'A', "\\A"},
                  {'Z', "\\Z"},
                  {'z', "\\z"},
                  {'G', "\\G"},
                  {'K', "\\K"},
                  {'b', "(?:(?<=[" LONE_WORD "])(?![" LONE_WORD "])|(?<![" LONE_WORD "])(?=[" LONE_WORD "]))"},
                  {'B', "(?:(?<=[" LONE_WORD "])(?=[" LONE_WORD "])|(?<![" LONE_WORD "])(?![" LONE_WORD "]))"}};
    static const struct {
        char letter;
        const char *text;
    } sets[] = {{'N', "[^\\n]"}, {'O', "\\p{Any}"}, {'R', "(?:\\R)"}};
    const char letter = *t->at;
    for (size_t i = 0; i < QR_COUNT_OF(places); i++) {
        if (places[i].letter == letter) {
            made->kind = ATOM_PLACE;
            qr_buffer_append_text(t->out, places[i].text);
            t->at++;
            return QRUN_OK;
        }
    }
    for (size_t i = 0; i < QR_COUNT_OF(sets); i++) {
        if (sets[i].letter == letter) {
            qr_buffer_append_text(t->out, sets[i].text);
            t->at++;
            return QRUN_OK;
        }
    }
    if ((letter >= '1' && letter <= '9') || letter == 'k' || letter == 'g') {
        return refuse(t, "refers back to what a group matched, or calls a group");
    }
    if (letter == 'X' || letter == 'y' || letter == 'Y') { return refuse(t, "asks for text segments"); }
    property_text text;
    char_set set;
    bool complement, found;
    QR_RETURN_IF_ERROR(read_set(t, false, &text, &set, &complement, &found));
    if (found) {
        qr_buffer_append_format(t->out, "[%s%s]", complement ? "^" : "", set.members);
        return QRUN_OK;
    }
    uint32_t c;
    QR_RETURN_IF_ERROR(read_escaped(t, false, &c));
    append_char(t->out, c);
    return QRUN_OK;
}

static qrun_status translate_atom(translation *t, atom *made) {
    *made = (atom){.kind = ATOM_CHARACTER, .begin = t->out->size};
    const char c = *t->at;
    switch (c) {
        case '\\': t->at++; return translate_escape(t, made);
        case '[': t->at++; return translate_class(t);
        case '(': t->at++; return translate_group(t, made);
        case '^':
        case '$': made->kind = ATOM_PLACE; /* fall through */
        case '.':
            qr_buffer_append_char(t->out, c);
            t->at++;
            return QRUN_OK;
        case '*':
        case '+':
        case '?': return refuse(t, "repeats nothing");
        default: break;
    }
    if (t->caseless && folds_to_several(t->at)) { return refuse(t, "has letters without case that stand for others"); }
    uint32_t code_point;
    t->at += qr_utf8_decode(t->at, (size_t)(t->end - t->at), &code_point);
    append_char(t->out, code_point);
    return QRUN_OK;
}

/* "{n}", "{n,}", "{,m}" or "{n,m}" at text; returns its length, 0 where it is something else. Without an upper end
 * *high is −1. */
static size_t read_interval(const char *text, int *low, int *high) {
    enum { MAX_REPEATS = 100000 }; /* PCRE2 takes 65535 and says so */
    size_t i = 1, n_digits = 0;
    int numbers[2] = {0, 0};
    bool comma = false;
    for (; text[i] != '\0' && text[i] != '}'; i++) {
        if (text[i] == ',' && !comma) {
            comma = true;
            *low = (int)n_digits;
            n_digits = 0;
        } else if (text[i] >= '0' && text[i] <= '9') {
            int *number = &numbers[comma ? 1 : 0];
            *number = *number < MAX_REPEATS ? *number * 10 + (text[i] - '0') : MAX_REPEATS;
            n_digits++;
        } else {
            return 0;
        }
    }
    if (text[i] != '}' || (n_digits == 0 && (!comma || *low == 0))) { return 0; }
    *high = !comma ? numbers[0] : n_digits > 0 ? numbers[1] : -1;
    *low = numbers[0];
    return i + 1;
}

/* Writes the repeat at t->at of the atom before it. */
static qrun_status translate_repeat(translation *t, atom *repeated) {
    int low = 0, high = -1;
    const size_t n_interval = *t->at == '{' ? read_interval(t->at, &low, &high) : 0;
    if (repeated->kind == ATOM_PLACE || repeated->kind == ATOM_NONE) { return refuse(t, "repeats a place"); }
    begin_with_meter(t, repeated);
    if (n_interval == 0) {
        qr_buffer_append_char(t->out, *t->at++);
        if (*t->at == '?' || *t->at == '+') { qr_buffer_append_char(t->out, *t->at++); }
        return QRUN_OK;
    }
    if (high >= 0 && high < low) { return refuse(t, "repeats from a number down to a smaller one"); }
    t->at += n_interval;
    t->n_counted += (uint64_t)qr_max(low, high);
    qr_buffer_append_format(t->out, "{%d", low);
    if (high < 0) {
        qr_buffer_append_char(t->out, ',');
    } else if (high != low) {
        qr_buffer_append_format(t->out, ",%d", high);
    }
    qr_buffer_append_char(t->out, '}');
    if (*t->at == '?' && high != low) { /* {n}? is a repeat of a repeat */
        qr_buffer_append_char(t->out, *t->at++);
    }
    return QRUN_OK;
}

static bool is_repeat(const char *at) {
    int low, high;
    return *at == '*' || *at == '+' || *at == '?' || (*at == '{' && read_interval(at, &low, &high) > 0);
}

static qrun_status translate_term(translation *t) {
    enum { MAX_NESTED_REPEATS = 4, MAX_TRANSLATED_BYTES = 256 << 10 };
    atom made;
    if (t->out->size > MAX_TRANSLATED_BYTES) { return refuse(t, "is too long"); }
    QR_RETURN_IF_ERROR(translate_atom(t, &made));
    if (!is_repeat(t->at)) {
        if (made.n_branches > 1 || (made.kind == ATOM_PLACE && made.n_branches > 0)) { append_meter(t); }
        return QRUN_OK;
    }
    for (int n = 0; is_repeat(t->at); n++) {
        if (n > MAX_NESTED_REPEATS) { return refuse(t, "repeats repeats"); }
        if (n > 0) {
            insert(t->out, made.begin, "(?:");
            qr_buffer_append_char(t->out, ')');
        }
        QR_RETURN_IF_ERROR(translate_repeat(t, &made));
        append_meter(t);
    }
    return QRUN_OK;
}

static qrun_status translate_alternatives(translation *t, size_t *n_branches) {
    enum { MAX_BRANCHES = 256 }; /* numbers of callouts */
    size_t begin = t->out->size, n_meters = t->n_meters;
    for (*n_branches = 1;;) {
        const bool ends = *t->at == '\0' || *t->at == ')';
        if (!ends && *t->at != '|') {
            QR_RETURN_IF_ERROR(translate_term(t));
            continue;
        }
        if (*n_branches > 1 && t->depth > 0 && t->n_meters > n_meters) { insert_meter(t, begin); }
        if (ends) { return QRUN_OK; }
        qr_buffer_append_char(t->out, '|');
        t->at++;
        ++*n_branches;
        begin = t->out->size;
        n_meters = t->n_meters;
        if (t->depth == 0 && ++t->branch == MAX_BRANCHES) { return refuse(t, "has more than 256 alternatives"); }
    }
}

qrun_status qr_oniguruma_translate(const qr_regex_context *context, const char *regex, qr_buffer *out,
                                   int64_t *meter_steps, const char *what, qr_error *err) {
    enum { BYTES_PER_STEP = 64, MOST_WITHOUT_METER = 512 };
    const size_t n_bytes = strlen(regex);
    translation t = {
        .context = context, .regex = regex, .at = regex, .end = regex + n_bytes, .out = out, .what = what, .err = err};
    size_t n_branches;
    if (qr_utf8_valid_prefix(regex, n_bytes) != n_bytes) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: a regular expression is not UTF-8", what);
    }
    QR_RETURN_IF_ERROR(translate_alternatives(&t, &n_branches));
    if (*t.at != '\0') { return refuse(&t, "closes a group that is not open"); }
    if (n_bytes + t.n_counted > MOST_WITHOUT_METER) { insert_meter(&t, 0); }
    *meter_steps = 1 + (int64_t)((n_bytes + t.n_counted) / BYTES_PER_STEP);
    return qr_buffer_ok(out) ? QRUN_OK : qr_fail_memory(err, "a regular expression", n_bytes);
}
