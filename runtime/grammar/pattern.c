/* Regular expressions of "pattern", of the subset of ECMA-262 that needs no memory: characters, classes, groups,
 * alternatives, repetitions, and ^ and $ at the ends. An expression is read into a tree, and the tree becomes states; a
 * repetition that counts is so many copies.
 *
 * \d, \w, \s and their opposites differ between implementations beyond ASCII. Here they stand for what all agree on. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "runtime/grammar/schema_compiler.h"

enum { MAX_NODES = 4096, MAX_RANGES = 8192, MAX_GROUPS_DEPTH = 32, MAX_REPEATS = 10000, LAST_CHARACTER = 0x10FFFF };

typedef enum node_kind { NODE_CLASS, NODE_SEQUENCE, NODE_ALTERNATIVES, NODE_REPEAT } node_kind;

/* Children are a list: first, and then next of each. */
typedef struct pattern_node {
    node_kind kind;
    int32_t first, next;           /* −1: none */
    int32_t low, high;             /* REPEAT; high −1: no end */
    int32_t first_range, n_ranges; /* CLASS */
    bool begins, ends;             /* of the outermost alternatives: with ^, with $ */
} pattern_node;

typedef struct character_range {
    uint32_t first, last;
} character_range;

typedef struct pattern_reader {
    qr_schema_compiler *compiler;
    const qr_schema_place *place;
    const char *at;
    int depth;
    pattern_node *nodes;
    size_t n_nodes, nodes_capacity;
    character_range *ranges;
    size_t n_ranges, ranges_capacity;
    qrun_status status; /* the first failure; nothing is read after it */
} pattern_reader;

/* ---- The tree ---------------------------------------------------------------------------------------------------- */

static void refuse(pattern_reader *r, const char *what) {
    if (r->status != QRUN_OK) { return; }
    r->status = qr_schema_refuse(r->compiler, QRUN_ERROR_UNSUPPORTED, &r->place->path, "\"pattern\": %s", what);
}

static int32_t new_node(pattern_reader *r, node_kind kind) {
    if (r->status == QRUN_OK && r->n_nodes == MAX_NODES) { refuse(r, "the expression is too long"); }
    if (r->status == QRUN_OK) {
        r->status = qr_array_grow(&r->nodes, &r->nodes_capacity, r->n_nodes + 1, sizeof *r->nodes, "a pattern",
                                  r->compiler->err);
    }
    if (r->status != QRUN_OK) { return -1; }
    r->nodes[r->n_nodes] = (pattern_node){.kind = kind, .first = -1, .next = -1, .first_range = (int32_t)r->n_ranges};
    return (int32_t)r->n_nodes++;
}

static void add_range(pattern_reader *r, uint32_t first, uint32_t last) {
    if (r->status == QRUN_OK && r->n_ranges == MAX_RANGES) { refuse(r, "its classes have too many ranges"); }
    if (r->status == QRUN_OK) {
        r->status = qr_array_grow(&r->ranges, &r->ranges_capacity, r->n_ranges + 1, sizeof *r->ranges, "a pattern",
                                  r->compiler->err);
    }
    if (r->status == QRUN_OK) { r->ranges[r->n_ranges++] = (character_range){first, last}; }
}

/* ---- Classes ----------------------------------------------------------------------------------------------------- */

/* What \d, \w, \s and their opposites have in every implementation, and what they may have in some. */
typedef struct named_class {
    char name;
    character_range surely[5], perhaps[8]; /* the first empty one ends the list */
} named_class;

static const named_class named_classes[] = {
    {'d', {{'0', '9'}}, {{'0', '9'}, {0x80, LAST_CHARACTER}}},
    {'D', {{1, '0' - 1}, {'9' + 1, 0x7F}}, {{1, '0' - 1}, {'9' + 1, LAST_CHARACTER}}},
    {'w',
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, LAST_CHARACTER}}},
    {'W',
     {{1, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'}, {'z' + 1, 0x7F}},
     {{1, '0' - 1}, {'9' + 1, 'A' - 1}, {'Z' + 1, '_' - 1}, {'`', '`'}, {'z' + 1, LAST_CHARACTER}}},
    {'s',
     {{'\t', '\r'}, {' ', ' '}},
     {{'\t', '\r'}, {0x1C, ' '}, {0x80, 0xA0}, {0x1680, 0x180E}, {0x2000, 0x206F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}}},
    {'S', {{0x21, 0x7F}, {0xA1, 0x167F}, {0x3001, 0xD7FF}}, {{1, 8}, {0xE, 0x1F}, {0x21, LAST_CHARACTER}}},
};

static const named_class *class_named(char name) {
    for (size_t i = 0; i < QR_COUNT_OF(named_classes); i++) {
        if (named_classes[i].name == name) { return &named_classes[i]; }
    }
    return NULL;
}

static void add_named(pattern_reader *r, const named_class *class, bool perhaps) {
    const character_range *ranges = perhaps ? class->perhaps : class->surely;
    const size_t most = perhaps ? QR_COUNT_OF(class->perhaps) : QR_COUNT_OF(class->surely);
    for (size_t i = 0; i < most && ranges[i].last > 0; i++) { add_range(r, ranges[i].first, ranges[i].last); }
}

static int compare_ranges(const void *a, const void *b) {
    const character_range *first = a, *second = b;
    return (first->first > second->first) - (first->first < second->first);
}

/* In order, and without overlaps, the ranges from `first` on; with `negated` all characters but these. */
static void settle_ranges(pattern_reader *r, size_t first, bool negated) {
    if (r->status != QRUN_OK) { return; }
    if (r->n_ranges > first) { qsort(r->ranges + first, r->n_ranges - first, sizeof *r->ranges, compare_ranges); }
    size_t n = first;
    for (size_t i = first; i < r->n_ranges; i++) {
        const character_range next = r->ranges[i];
        if (n > first && next.first <= r->ranges[n - 1].last + 1) {
            if (next.last > r->ranges[n - 1].last) { r->ranges[n - 1].last = next.last; }
        } else {
            r->ranges[n++] = next;
        }
    }
    r->n_ranges = n;
    if (!negated) { return; }
    uint32_t begin = 1;
    add_range(r, LAST_CHARACTER + 1, LAST_CHARACTER + 1); /* so that there is one after the last gap */
    n = first;
    for (size_t i = first; i < r->n_ranges; i++) {
        const character_range next = r->ranges[i];
        if (next.first > begin) { r->ranges[n++] = (character_range){begin, next.first - 1}; }
        begin = next.last + 1;
    }
    r->n_ranges = r->status == QRUN_OK ? n : first;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static uint32_t read_hex(pattern_reader *r, int n_digits) {
    uint32_t value = 0;
    for (int i = 0; i < n_digits; i++) {
        const int digit = qr_hex_digit(*r->at);
        if (digit < 0) {
            refuse(r, "\\x and \\u need hexadecimal digits");
            return 0;
        }
        value = value << 4 | (uint32_t)digit;
        r->at++;
    }
    return value;
}

/* After \u: a character, or both halves of one as surrogates. */
static uint32_t read_unicode_escape(pattern_reader *r) {
    const uint32_t first = read_hex(r, 4);
    if (r->status != QRUN_OK || first < 0xD800 || first > 0xDFFF) { return first; }
    if (first < 0xDC00 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        const uint32_t second = read_hex(r, 4);
        if (second >= 0xDC00 && second <= 0xDFFF) { return 0x10000 + ((first - 0xD800) << 10 | (second - 0xDC00)); }
    }
    char what[96];
    (void)qr_format(what, sizeof what, "\\u%04x is half of a surrogate pair, and no character; write both halves",
                    (unsigned)first);
    refuse(r, what);
    return 0;
}

/* After a backslash: one character. */
static uint32_t read_escape(pattern_reader *r, bool in_class) {
    static const char letters[] = "tnrfv", meanings[] = "\t\n\r\f\v";
    const char c = *r->at;
    const char *letter = c != '\0' ? strchr(letters, c) : NULL;
    if (c == '\0') {
        refuse(r, "it ends with a backslash");
        return 0;
    }
    r->at++;
    if (letter != NULL) { return (uint32_t)meanings[letter - letters]; }
    if (c == 'b' && in_class) { return '\b'; }
    if (c == 'x') { return read_hex(r, 2); }
    if (c == 'u') { return read_unicode_escape(r); }
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (is_word || (unsigned char)c >= 0x80) {
        refuse(r,
               "of escapes with a letter or digit it can have \\d \\D \\w \\W \\s \\S \\t \\n \\r \\f \\v \\x and \\u");
        return 0;
    }
    return (uint32_t)c;
}

/* One character as it stands; 0 at the end. */
static uint32_t read_character(pattern_reader *r) {
    uint32_t c = 0;
    size_t n_left = 0;
    while (n_left < 4 && r->at[n_left] != '\0') { n_left++; }
    const size_t n_bytes = qr_utf8_decode(r->at, n_left, &c);
    r->at += n_bytes;
    return n_bytes > 0 ? c : 0;
}

/* One end of a range, or \d and the like, whose characters are added: then true. */
static bool read_class_part(pattern_reader *r, bool negated, uint32_t *character) {
    if (*r->at != '\\') {
        *character = read_character(r);
        return false;
    }
    r->at++;
    const named_class *class = class_named(*r->at);
    if (class == NULL) {
        *character = read_escape(r, true);
        return false;
    }
    r->at++;
    add_named(r, class, negated);
    return true;
}

/* After the bracket. */
static int32_t read_class(pattern_reader *r) {
    const int32_t node = new_node(r, NODE_CLASS);
    const size_t first_range = r->n_ranges;
    const bool negated = *r->at == '^';
    r->at += negated;
    while (r->status == QRUN_OK && *r->at != ']') {
        uint32_t first, last;
        if (*r->at == '\0') { refuse(r, "a class has no end"); }
        if (r->status != QRUN_OK || read_class_part(r, negated, &first)) { continue; }
        last = first;
        if (r->at[0] == '-' && r->at[1] != ']' && r->at[1] != '\0') {
            r->at++;
            if (read_class_part(r, negated, &last)) { refuse(r, "a range of a class ends with a class"); }
        }
        if (first > last) { refuse(r, "a range of a class ends before it begins"); }
        add_range(r, first, last);
    }
    r->at += *r->at == ']';
    settle_ranges(r, first_range, negated);
    if (r->status == QRUN_OK) { r->nodes[node].n_ranges = (int32_t)(r->n_ranges - first_range); }
    return node;
}

static int32_t read_named(pattern_reader *r, const named_class *class) {
    const int32_t node = new_node(r, NODE_CLASS);
    const size_t first_range = r->n_ranges;
    add_named(r, class, false);
    if (r->status == QRUN_OK) { r->nodes[node].n_ranges = (int32_t)(r->n_ranges - first_range); }
    return node;
}

/* A class of one character, or of all but line ends. */
static int32_t read_single(pattern_reader *r) {
    const int32_t node = new_node(r, NODE_CLASS);
    const size_t first_range = r->n_ranges;
    if (*r->at == '.') {
        r->at++;
        add_range(r, '\n', '\n');
        add_range(r, '\r', '\r');
        add_range(r, 0x2028, 0x2029);
        settle_ranges(r, first_range, true);
    } else {
        const bool escapes = *r->at == '\\';
        r->at += escapes;
        const uint32_t c = escapes ? read_escape(r, false) : read_character(r);
        add_range(r, c, c);
    }
    if (r->status == QRUN_OK) { r->nodes[node].n_ranges = (int32_t)(r->n_ranges - first_range); }
    return node;
}

static int32_t read_alternatives(pattern_reader *r);

/* After the parenthesis. */
static int32_t read_group(pattern_reader *r) {
    if (r->at[0] == '?') {
        if (r->at[1] != ':') { refuse(r, "of groups with ? it can have (?: alone"); }
        r->at += r->at[1] == ':' ? 2 : 1;
    }
    if (++r->depth > MAX_GROUPS_DEPTH) { refuse(r, "its groups are nested too deeply"); }
    const int32_t node = r->status == QRUN_OK ? read_alternatives(r) : -1;
    r->depth--;
    if (*r->at != ')') { refuse(r, "a group has no end"); }
    r->at += *r->at == ')';
    return node;
}

static bool read_count(pattern_reader *r, const char **at, int32_t *count) {
    int32_t n = 0;
    const char *c = *at;
    for (; *c >= '0' && *c <= '9'; c++) {
        n = n * 10 + (*c - '0');
        if (n > MAX_REPEATS) {
            refuse(r, "a repetition can count to 10000");
            return false;
        }
    }
    const bool found = c > *at;
    *at = c;
    *count = n;
    return found;
}

/* {n}, {n,} or {n,m}; a brace that begins none of them stands for itself. {,m} does so in ECMA-262, and is {0,m} in
 * Python and others. */
static bool read_braces(pattern_reader *r, int32_t *low, int32_t *high) {
    const char *at = r->at + 1;
    if (!read_count(r, &at, low)) {
        if (*at == ',' && at[1 + strspn(at + 1, "0123456789")] == '}') {
            refuse(r, "{,m} means different things to different readers; write {0,m}");
        }
        return false;
    }
    *high = *low;
    if (*at == ',') {
        at++;
        if (!read_count(r, &at, high)) { *high = -1; }
    }
    if (*at != '}' || r->status != QRUN_OK) { return false; }
    if (*high >= 0 && *low > *high) { refuse(r, "a repetition ends before it begins"); }
    r->at = at + 1;
    return true;
}

static int32_t read_atom(pattern_reader *r) {
    int32_t low, high;
    const named_class *class = r->at[0] == '\\' ? class_named(r->at[1]) : NULL;
    if (class != NULL) {
        r->at += 2;
        return read_named(r, class);
    }
    switch (*r->at) {
        case '(': r->at++; return read_group(r);
        case '[': r->at++; return read_class(r);
        case '*':
        case '+':
        case '?': refuse(r, "a repetition has nothing to repeat"); return -1;
        case '{':
            if (read_braces(r, &low, &high)) { refuse(r, "a repetition has nothing to repeat"); }
            return read_single(r);
        case '^':
        case '$': refuse(r, "^ and $ can stand at the ends of the whole and of its outermost alternatives"); return -1;
        default: return read_single(r);
    }
}

static bool read_repeat(pattern_reader *r, int32_t *low, int32_t *high) {
    const char c = *r->at;
    if (c == '{') { return read_braces(r, low, high); }
    if (c != '*' && c != '+' && c != '?') { return false; }
    *low = c == '+';
    *high = c == '?' ? 1 : -1;
    r->at++;
    return true;
}

static int32_t read_piece(pattern_reader *r) {
    int32_t node = read_atom(r), low, high;
    if (r->status != QRUN_OK || !read_repeat(r, &low, &high)) { return node; }
    r->at += *r->at == '?'; /* how much it takes at first does not change what matches */
    const int32_t repeat = new_node(r, NODE_REPEAT);
    if (r->status != QRUN_OK) { return -1; }
    r->nodes[repeat].low = low;
    r->nodes[repeat].high = high;
    r->nodes[repeat].first = node;
    if (read_repeat(r, &low, &high)) { refuse(r, "a repetition of a repetition needs a group"); }
    return repeat;
}

/* Up to "|", ")" or the end. Anchors are taken where it is an outermost alternative. */
static int32_t read_sequence(pattern_reader *r) {
    const int32_t sequence = new_node(r, NODE_SEQUENCE);
    int32_t last = -1;
    bool begins = false, ends = false;
    if (r->depth == 0 && *r->at == '^') { begins = true, r->at++; }
    while (r->status == QRUN_OK && !ends && *r->at != '\0' && *r->at != '|' && *r->at != ')') {
        if (r->depth == 0 && r->at[0] == '$' && (r->at[1] == '\0' || r->at[1] == '|')) {
            ends = true, r->at++;
            break;
        }
        const int32_t piece = read_piece(r);
        if (r->status != QRUN_OK) { break; }
        if (last < 0) { r->nodes[sequence].first = piece; }
        if (last >= 0) { r->nodes[last].next = piece; }
        last = piece;
    }
    if (r->depth == 0 && *r->at == ')') { refuse(r, "a parenthesis closes nothing"); }
    if (r->status == QRUN_OK) { r->nodes[sequence].begins = begins, r->nodes[sequence].ends = ends; }
    return sequence;
}

static int32_t read_alternatives(pattern_reader *r) {
    const int32_t node = new_node(r, NODE_ALTERNATIVES);
    int32_t last = -1;
    for (bool more = true; more && r->status == QRUN_OK;) {
        const int32_t sequence = read_sequence(r);
        if (r->status != QRUN_OK) { break; }
        if (last < 0) { r->nodes[node].first = sequence; }
        if (last >= 0) { r->nodes[last].next = sequence; }
        last = sequence;
        more = *r->at == '|';
        r->at += more;
    }
    return node;
}

/* ---- Lengths ----------------------------------------------------------------------------------------------------- */

/* In characters; high -1: no end, or beyond what "maxLength" can be. */
typedef struct text_lengths {
    int64_t low, high;
} text_lengths;

static int64_t length_times(int64_t length, int64_t n) {
    if (length == 0 || n == 0) { return 0; }
    return length < 0 || n < 0 || length * n > INT32_MAX ? -1 : length * n;
}

static int64_t length_plus(int64_t a, int64_t b) { return a < 0 || b < 0 || a + b > INT32_MAX ? -1 : a + b; }

/* A shortest text that is too long to count is longer than any limit. */
static int64_t settle_low(int64_t low) { return low < 0 ? INT32_MAX : low; }

/* Its depth is that of groups. */
static text_lengths lengths_of(const pattern_reader *r, int32_t index) {
    const pattern_node *node = &r->nodes[index];
    text_lengths all = {0, 0};
    if (node->kind == NODE_CLASS) { return (text_lengths){1, 1}; }
    for (int32_t i = node->first; i >= 0; i = r->nodes[i].next) {
        const text_lengths part = lengths_of(r, i);
        if (node->kind == NODE_SEQUENCE) {
            all = (text_lengths){settle_low(length_plus(all.low, part.low)), length_plus(all.high, part.high)};
        } else if (node->kind == NODE_REPEAT) {
            all = (text_lengths){settle_low(length_times(part.low, node->low)), length_times(part.high, node->high)};
        } else if (i == node->first) {
            all = part;
        } else {
            all.low = qr_min(all.low, part.low);
            all.high = all.high < 0 || part.high < 0 ? -1 : qr_max(all.high, part.high);
        }
    }
    return all;
}

/* Every text that an outermost alternative matches has these lengths already, or it is refused. */
static void check_lengths(pattern_reader *r, int32_t root, int64_t low, int64_t high) {
    for (int32_t i = r->nodes[root].first; i >= 0 && r->status == QRUN_OK; i = r->nodes[i].next) {
        const text_lengths lengths = lengths_of(r, i);
        const bool ends = r->nodes[i].begins && r->nodes[i].ends && lengths.high >= 0;
        const bool is_short = low > lengths.low, is_long = high >= 0 && !(ends && lengths.high <= high);
        if (!is_short && !is_long) { continue; }
        r->status = qr_schema_refuse(r->compiler, QRUN_ERROR_UNSUPPORTED, &r->place->path,
                                     "\"%s\" beside \"pattern\" or \"format\" is supported where these allow no %s "
                                     "texts; say it in the pattern",
                                     is_long ? "maxLength" : "minLength", is_long ? "longer" : "shorter");
    }
}

/* ---- States ------------------------------------------------------------------------------------------------------ */

/* Characters below 128, as JSON writes them. */
static void add_ascii(qr_json_pieces *pieces, int32_t from, uint32_t first, uint32_t last, int32_t to) {
    static const char escaped[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    qr_automaton_builder *builder = &pieces->builder;
    for (uint32_t c = first; c <= last; c++) {
        const char *special = c > 0 ? strchr(escaped, (int)c) : NULL;
        char text[8];
        uint32_t end = c;
        if (c == 0) { continue; }
        if (special != NULL) {
            (void)qr_format(text, sizeof text, "\\%c", letters[special - escaped]);
            qr_automaton_add_text(builder, from, text, to);
        } else if (c < 0x20) {
            (void)qr_format(text, sizeof text, "\\u%04x", (unsigned)c);
            qr_automaton_add_text(builder, from, text, to);
        } else {
            while (end < last && strchr("\"\\", (int)(end + 1)) == NULL) { end++; }
            qr_automaton_add_bytes(builder, from, (uint8_t)c, (uint8_t)end, to);
        }
        c = end;
    }
}

static void add_class(const pattern_reader *r, const pattern_node *node, int32_t from, int32_t to) {
    qr_json_pieces *pieces = &r->compiler->pieces;
    for (int32_t i = 0; i < node->n_ranges; i++) {
        const character_range range = r->ranges[node->first_range + i];
        if (range.first < 0x80) { add_ascii(pieces, from, range.first, range.last < 0x7F ? range.last : 0x7F, to); }
        if (range.last >= 0x80) {
            qr_add_utf8_range(pieces, from, range.first > 0x80 ? range.first : 0x80, range.last, to);
        }
    }
}

static void add_node(const pattern_reader *r, int32_t index, int32_t from, int32_t to);

static void add_repeat(const pattern_reader *r, const pattern_node *node, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &r->compiler->pieces.builder;
    const int32_t n_copies = node->high < 0 ? node->low : node->high;
    for (int32_t i = 0; i < n_copies && builder->status == QRUN_OK; i++) {
        const int32_t next = qr_automaton_add_state(builder);
        if (i >= node->low) { qr_automaton_add_empty(builder, from, to); }
        add_node(r, node->first, from, next);
        from = next;
    }
    if (node->high < 0) {
        const int32_t loop = qr_automaton_add_state(builder);
        qr_automaton_add_empty(builder, from, loop);
        add_node(r, node->first, loop, loop);
        from = loop;
    }
    qr_automaton_add_empty(builder, from, to);
}

/* Its depth is that of groups. */
static void add_node(const pattern_reader *r, int32_t index, int32_t from, int32_t to) {
    qr_automaton_builder *builder = &r->compiler->pieces.builder;
    const pattern_node *node = &r->nodes[index];
    switch (node->kind) {
        case NODE_CLASS: add_class(r, node, from, to); break;
        case NODE_REPEAT: add_repeat(r, node, from, to); break;
        case NODE_ALTERNATIVES:
            for (int32_t i = node->first; i >= 0 && builder->status == QRUN_OK; i = r->nodes[i].next) {
                add_node(r, i, from, to);
            }
            break;
        case NODE_SEQUENCE:
            for (int32_t i = node->first; i >= 0 && builder->status == QRUN_OK; i = r->nodes[i].next) {
                const int32_t next = qr_automaton_add_state(builder);
                add_node(r, i, from, next);
                from = next;
            }
            qr_automaton_add_empty(builder, from, to);
            break;
    }
}

/* An outermost alternative, from the first quote to the last: without ^ and $ anything may stand before and after. */
static void add_outermost(const pattern_reader *r, int32_t index, int32_t from, int32_t to) {
    qr_json_pieces *pieces = &r->compiler->pieces;
    qr_automaton_builder *builder = &pieces->builder;
    const int32_t inside = qr_automaton_add_state(builder), last = qr_automaton_add_state(builder);
    qr_automaton_add_bytes(builder, from, '"', '"', inside);
    if (!r->nodes[index].begins) {
        qr_automaton_set_plain_room(builder, inside, UINT16_MAX);
        qr_add_character(pieces, inside, true, inside);
        qr_add_plain_bytes(pieces, inside, inside);
    }
    add_node(r, index, inside, last);
    if (r->nodes[index].ends) {
        qr_automaton_add_bytes(builder, last, '"', '"', to);
    } else {
        qr_add_string_rest(pieces, last, to);
    }
}

qrun_status qr_schema_add_pattern(qr_schema_compiler *compiler, const char *pattern, int64_t low, int64_t high,
                                  const qr_schema_place *place) {
    pattern_reader reader = {.compiler = compiler, .place = place, .at = pattern};
    const int32_t root = read_alternatives(&reader);
    if (reader.status == QRUN_OK) { check_lengths(&reader, root, low, high); }
    for (int32_t i = reader.status == QRUN_OK ? reader.nodes[root].first : -1; i >= 0; i = reader.nodes[i].next) {
        add_outermost(&reader, i, place->from, place->to);
    }
    qr_free(reader.nodes);
    qr_free(reader.ranges);
    return reader.status != QRUN_OK ? reader.status : compiler->pieces.builder.status;
}
