/* One pass: checks the grammar and builds the tree. The nodes are cJSON's, so that readers have its well-known shape
 * and predicates, but they are made here. cJSON's own parser is not used: it accepts texts that are not JSON, and cuts
 * numbers at 63 bytes. It takes memory through hooks that belong to the whole process, so setting them would break a
 * host program that uses cJSON too.
 *
 * A tree lives in an arena of a few blocks; its root node follows the arena's head, so that qr_json_free finds it. Text
 * is copied out of the input once, unescaped. */
#include "loaders/files/json.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"

enum { FIRST_BLOCK_BYTES = 2048, LARGEST_BLOCK_BYTES = 1 << 20, NODE_ALIGNMENT = _Alignof(cJSON) };

typedef struct arena_block {
    _Alignas(cJSON) struct arena_block *previous;
} arena_block;

typedef struct tree {
    arena_block *blocks; /* newest first; the tree itself is not in one of them */
    cJSON root;
} tree;

/* A key of an object still open. Sorting by hash first keeps a hostile file from making this slow. */
typedef struct key_entry {
    uint64_t hash;
    const char *name;
    size_t offset;
} key_entry;

typedef struct parser {
    const char *text;
    size_t n_bytes;
    size_t at;
    const char *what;
    qr_error *err;
    int depth;
    tree *tree;
    char *block_next; /* free part of the newest block */
    size_t block_left, block_bytes;
    key_entry *keys; /* a stack: the keys of every object that is open */
    size_t n_keys, keys_capacity;
    bool is_line;   /* what: of qr_json_parse_line */
    bool is_python; /* of qr_json_parse_python */
    char *number;   /* NUL-terminated copy for qr_number_parse */
    size_t number_capacity;
} parser;

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static qrun_status fail_at(const parser *p, size_t offset, const char *fmt, ...) QR_PRINTF(3, 4);

static qrun_status fail_at(const parser *p, size_t offset, const char *fmt, ...) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (p->text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)p->text[i] & 0xC0U) != 0x80U) {
            column++;
        }
    }
    char detail[512];
    va_list args;
    va_start(args, fmt);
    (void)qr_vformat(detail, sizeof detail, fmt, args);
    va_end(args);
    if (!p->is_line) { return qr_fail(p->err, QRUN_ERROR_INPUT, "%s:%zu:%zu: %s", p->what, line, column, detail); }
    if (memchr(p->text, '\n', p->n_bytes) == NULL) {
        return qr_fail(p->err, QRUN_ERROR_INPUT, "%s, column %zu: %s", p->what, column, detail);
    }
    return qr_fail(p->err, QRUN_ERROR_INPUT, "%s, line %zu, column %zu: %s", p->what, line, column, detail);
}

static qrun_status fail_memory(const parser *p) { return qr_fail_memory(p->err, p->what, p->n_bytes); }

/* Describes the byte where something else was expected. */
static qrun_status fail_unexpected(const parser *p, const char *expected) {
    if (p->at >= p->n_bytes) { return fail_at(p, p->at, "the text ends where %s should be", expected); }
    const unsigned char c = (unsigned char)p->text[p->at];
    if (c > 0x20U && c < 0x7FU) { return fail_at(p, p->at, "'%c' where %s should be", c, expected); }
    return fail_at(p, p->at, "byte 0x%02x where %s should be", c, expected);
}

/* ---- the tree's memory ------------------------------------------------------------------------------------------- */

static bool add_block(parser *p, size_t n_bytes) {
    if (p->block_bytes < LARGEST_BLOCK_BYTES) { p->block_bytes *= 2; }
    size_t total;
    const size_t wanted = n_bytes > p->block_bytes ? n_bytes : p->block_bytes;
    arena_block *block = qr_size_add(wanted, sizeof(arena_block), &total) ? qr_alloc(total) : NULL;
    if (block == NULL) { return false; }
    block->previous = p->tree->blocks;
    p->tree->blocks = block;
    p->block_next = (char *)(block + 1);
    p->block_left = wanted;
    return true;
}

static void *take(parser *p, size_t n_bytes) {
    if (n_bytes > p->block_left && !add_block(p, n_bytes)) { return NULL; }
    void *memory = p->block_next;
    p->block_next += n_bytes;
    p->block_left -= n_bytes;
    return memory;
}

static cJSON *take_node(parser *p) {
    const size_t misaligned = (uintptr_t)p->block_next % NODE_ALIGNMENT;
    if (misaligned != 0) {
        const size_t padding = NODE_ALIGNMENT - misaligned;
        if (padding <= p->block_left) {
            p->block_next += padding;
            p->block_left -= padding;
        } else {
            p->block_left = 0;
        }
    }
    cJSON *node = take(p, sizeof *node);
    if (node != NULL) { *node = (cJSON){0}; }
    return node;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static bool read_hex4(const parser *p, size_t at, uint32_t *value) {
    if (p->n_bytes - at < 4) { return false; }
    *value = 0;
    for (size_t i = at; i < at + 4; i++) {
        const int digit = qr_hex_digit(p->text[i]);
        if (digit < 0) { return false; }
        *value = *value << 4 | (uint32_t)digit;
    }
    return true;
}

/* \uXXXX, or a pair of them, with p->at on the 'u'. */
static qrun_status read_unicode_escape(parser *p, uint32_t *code_point) {
    const size_t start = p->at - 1;
    if (!read_hex4(p, p->at + 1, code_point)) { return fail_at(p, start, "\\u needs four hexadecimal digits"); }
    p->at += 5;
    if (*code_point == 0) {
        return fail_at(p, start, "\\u0000 in a string: text with NUL characters is not supported");
    }
    if (*code_point < 0xD800U || *code_point > 0xDFFFU) { return QRUN_OK; }
    uint32_t low;
    if (*code_point > 0xDBFFU || p->n_bytes - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u' ||
        !read_hex4(p, p->at + 2, &low) || low < 0xDC00U || low > 0xDFFFU) {
        return fail_at(p, start, "\\u%04x is half of a surrogate pair", (unsigned)*code_point);
    }
    p->at += 6;
    *code_point = 0x10000U + ((*code_point - 0xD800U) << 10) + (low - 0xDC00U);
    return QRUN_OK;
}

/* One escape with p->at on the backslash; appends to *out. */
static qrun_status read_escape(parser *p, char **out) {
    static const char letters[] = "\"\\/bfnrt";
    static const char meanings[] = "\"\\/\b\f\n\r\t";
    p->at++;
    const char c = p->at < p->n_bytes ? p->text[p->at] : '\0';
    if (c == 'u') {
        uint32_t code_point = 0;
        QR_RETURN_IF_ERROR(read_unicode_escape(p, &code_point));
        *out += qr_utf8_encode(code_point, *out);
        return QRUN_OK;
    }
    const char *found = c != '\0' ? strchr(letters, c) : NULL;
    if (found == NULL) { return fail_at(p, p->at - 1, "unknown escape in a string"); }
    *(*out)++ = meanings[found - letters];
    p->at++;
    return QRUN_OK;
}

/* Offset of the closing quote of the string whose first byte is at `start`; false when there is none. */
static bool find_closing_quote(const parser *p, size_t start, size_t *end) {
    for (size_t i = start; i < p->n_bytes; i++) {
        if (p->text[i] == '"') {
            *end = i;
            return true;
        }
        if (p->text[i] == '\\') { i++; }
    }
    return false;
}

/* A string with p->at on its quote, unescaped into the arena. An escape is never shorter than its character. */
static qrun_status read_string(parser *p, char **value) {
    const size_t start = p->at;
    size_t end;
    if (!find_closing_quote(p, start + 1, &end)) { return fail_at(p, start, "this string has no closing quote"); }
    char *out = take(p, end - start);
    if (out == NULL) { return fail_memory(p); }
    *value = out;
    p->at++;
    while (p->at < end) {
        const unsigned char c = (unsigned char)p->text[p->at];
        if (c == '\\') {
            QR_RETURN_IF_ERROR(read_escape(p, &out));
        } else if (c < 0x20U) {
            return fail_at(p, p->at, "control character 0x%02x in a string; write it as \\u%04x", c, c);
        } else if (c < 0x80U) {
            *out++ = (char)c;
            p->at++;
        } else {
            const size_t length = qr_utf8_sequence_length(p->text + p->at, end - p->at);
            if (length == 0) { return fail_at(p, p->at, "byte 0x%02x is not valid UTF-8 here", c); }
            memcpy(out, p->text + p->at, length);
            out += length;
            p->at += length;
        }
    }
    *out = '\0';
    p->at = end + 1;
    return QRUN_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static size_t skip_digits(const parser *p, size_t at) {
    while (at < p->n_bytes && p->text[at] >= '0' && p->text[at] <= '9') { at++; }
    return at;
}

/* Finds the end of the number at p->at; *is_integer when it has neither fraction nor exponent. */
static qrun_status scan_number(const parser *p, size_t *end, bool *is_integer) {
    size_t at = p->at + (p->text[p->at] == '-' ? 1 : 0);
    const size_t digits = at;
    at = skip_digits(p, at);
    if (at == digits) { return fail_at(p, at, "a number needs a digit here"); }
    if (p->text[digits] == '0' && at > digits + 1) { return fail_at(p, digits, "a number cannot begin with 0"); }
    *is_integer = true;
    if (at < p->n_bytes && p->text[at] == '.') {
        *is_integer = false;
        const size_t fraction = ++at;
        at = skip_digits(p, at);
        if (at == fraction) { return fail_at(p, at, "a number needs a digit after its point"); }
    }
    if (at < p->n_bytes && (p->text[at] == 'e' || p->text[at] == 'E')) {
        *is_integer = false;
        at++;
        if (at < p->n_bytes && (p->text[at] == '+' || p->text[at] == '-')) { at++; }
        const size_t exponent = at;
        at = skip_digits(p, at);
        if (at == exponent) { return fail_at(p, at, "a number needs a digit in its exponent"); }
    }
    *end = at;
    return QRUN_OK;
}

/* True when the integer written in `digits` is exactly `value`: 10^30 as Python prints it, which means "no limit"
 * in many tokenizer_config.json files, is such a number beyond 2^53. */
static bool is_exact(const char *digits, double value) {
    char exact[DBL_MAX_10_EXP + 3]; /* sign, digits, NUL */
    return isfinite(value) && qr_format(exact, sizeof exact, "%.0f", value) > 0 && strcmp(exact, digits) == 0;
}

static qrun_status read_number(parser *p, cJSON *node) {
    static const double largest_exact = 9007199254740992.0; /* 2^53 */
    const size_t start = p->at;
    size_t end = start;
    bool is_integer = false;
    QR_RETURN_IF_ERROR(scan_number(p, &end, &is_integer));
    const size_t length = end - start;
    if (!qr_array_reserve(&p->number, &p->number_capacity, length + 1, 1)) { return fail_memory(p); }
    memcpy(p->number, p->text + start, length);
    p->number[length] = '\0';
    const double value = qr_number_parse(p->number, NULL);
    if (is_integer && fabs(value) >= largest_exact && !is_exact(p->number, value)) {
        return fail_at(p, start, "the integer %.40s does not fit 53 bits", p->number);
    }
    if (!isfinite(value)) { return fail_at(p, start, "the number %.40s is too large", p->number); }
    node->type = cJSON_Number | (is_integer ? 0 : QR_JSON_FLOAT);
    node->valuedouble = value;
    node->valueint = value >= INT_MAX ? INT_MAX : value <= INT_MIN ? INT_MIN : (int)value;
    p->at = end;
    return QRUN_OK;
}

/* ---- containers -------------------------------------------------------------------------------------------------- */

static void skip_space(parser *p) {
    while (p->at < p->n_bytes) {
        const char c = p->text[p->at];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') { break; }
        p->at++;
    }
}

static int compare_keys(const void *a, const void *b) {
    const key_entry *x = a, *y = b;
    if (x->hash != y->hash) { return x->hash < y->hash ? -1 : 1; }
    const int order = strcmp(x->name, y->name);
    if (order != 0) { return order; }
    return x->offset < y->offset ? -1 : x->offset > y->offset ? 1 : 0;
}

/* Looks for a repeated key in keys[first, n_keys) and takes them off the stack. */
static qrun_status close_keys(parser *p, size_t first) {
    const size_t n = p->n_keys - first;
    p->n_keys = first;
    if (n < 2) { return QRUN_OK; }
    key_entry *keys = p->keys + first;
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n; i++) {
        if (keys[i].hash == keys[i - 1].hash && strcmp(keys[i].name, keys[i - 1].name) == 0) {
            return fail_at(p, keys[i].offset, "key \"%.200s\" occurs twice in one object", keys[i].name);
        }
    }
    return QRUN_OK;
}

static qrun_status open_key(parser *p, const char *name, size_t offset) {
    if (!qr_array_reserve(&p->keys, &p->keys_capacity, p->n_keys + 1, sizeof *p->keys)) { return fail_memory(p); }
    uint64_t hash = 0xCBF29CE484222325U; /* FNV-1a */
    for (const char *c = name; *c != '\0'; c++) { hash = (hash ^ (unsigned char)*c) * 0x100000001B3U; }
    p->keys[p->n_keys++] = (key_entry){hash, name, offset};
    return QRUN_OK;
}

static qrun_status read_value(parser *p, cJSON *node);

/* `"key":` with p->at where the key should begin. */
static qrun_status read_key(parser *p, cJSON *item) {
    const size_t offset = p->at;
    if (p->at >= p->n_bytes || p->text[p->at] != '"') { return fail_unexpected(p, "a key in quotes"); }
    QR_RETURN_IF_ERROR(read_string(p, &item->string));
    QR_RETURN_IF_ERROR(open_key(p, item->string, offset));
    skip_space(p);
    if (p->at >= p->n_bytes || p->text[p->at] != ':') { return fail_unexpected(p, "':'"); }
    p->at++;
    return QRUN_OK;
}

/* cJSON's list: forward links end in NULL; the first item's `prev` is the last item. */
static void append_item(cJSON *parent, cJSON *item) {
    if (parent->child == NULL) {
        parent->child = item->prev = item;
        return;
    }
    cJSON *last = parent->child->prev;
    last->next = item;
    item->prev = last;
    parent->child->prev = item;
}

/* The items of an array or object with p->at after its opening bracket, up to and including the closing one. */
static qrun_status read_items(parser *p, cJSON *parent, char closing) {
    const bool is_object = closing == '}';
    skip_space(p);
    if (p->at < p->n_bytes && p->text[p->at] == closing) {
        p->at++;
        return QRUN_OK;
    }
    for (;;) {
        cJSON *item = take_node(p);
        if (item == NULL) { return fail_memory(p); }
        append_item(parent, item);
        skip_space(p);
        QR_RETURN_IF_ERROR(is_object ? read_key(p, item) : QRUN_OK);
        QR_RETURN_IF_ERROR(read_value(p, item));
        skip_space(p);
        const char c = p->at < p->n_bytes ? p->text[p->at] : '\0';
        if (c != ',' && c != closing) { return fail_unexpected(p, is_object ? "',' or '}'" : "',' or ']'"); }
        p->at++;
        if (c == closing) { return QRUN_OK; }
    }
}

static qrun_status read_container(parser *p, cJSON *node) {
    if (++p->depth > QR_JSON_MAX_DEPTH) { return fail_at(p, p->at, "nested deeper than %d levels", QR_JSON_MAX_DEPTH); }
    const bool is_object = p->text[p->at++] == '{';
    node->type = is_object ? cJSON_Object : cJSON_Array;
    const size_t first_key = p->n_keys;
    qrun_status status = read_items(p, node, is_object ? '}' : ']');
    if (status == QRUN_OK) { status = close_keys(p, first_key); }
    p->depth--;
    return status;
}

static bool read_word(parser *p, cJSON *node) {
    static const struct {
        const char *word;
        int type, value;
    } words[] = {{"true", cJSON_True, 1}, {"false", cJSON_False, 0}, {"null", cJSON_NULL, 0}};
    for (size_t i = 0; i < QR_COUNT_OF(words); i++) {
        const size_t length = strlen(words[i].word);
        if (p->n_bytes - p->at >= length && memcmp(p->text + p->at, words[i].word, length) == 0) {
            node->type = words[i].type;
            node->valueint = words[i].value;
            p->at += length;
            return true;
        }
    }
    return false;
}

/* Infinity and -Infinity, which are no JSON, but are what Python writes to a config.json. */
static bool read_infinity(parser *p, cJSON *node) {
    static const char word[] = "Infinity";
    const size_t sign = p->at < p->n_bytes && p->text[p->at] == '-' ? 1 : 0, length = sign + strlen(word);
    if (p->n_bytes - p->at < length || memcmp(p->text + p->at + sign, word, strlen(word)) != 0) { return false; }
    node->type = cJSON_Number | QR_JSON_FLOAT;
    node->valuedouble = sign > 0 ? -(double)INFINITY : (double)INFINITY;
    p->at += length;
    return true;
}

static qrun_status read_value(parser *p, cJSON *node) {
    skip_space(p);
    const char c = p->at < p->n_bytes ? p->text[p->at] : '\0';
    if (c == '{' || c == '[') { return read_container(p, node); }
    if (c == '"') {
        node->type = cJSON_String;
        return read_string(p, &node->valuestring);
    }
    if (p->is_python && read_infinity(p, node)) { return QRUN_OK; }
    if (c == '-' || (c >= '0' && c <= '9')) { return read_number(p, node); }
    return read_word(p, node) ? QRUN_OK : fail_unexpected(p, "a value");
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static qrun_status parse_text(parser *p) {
    if (p->n_bytes >= 3 && memcmp(p->text, "\xEF\xBB\xBF", 3) == 0) {
        return fail_at(p, 0, "begins with a byte-order mark; save it as UTF-8 without one");
    }
    if (qr_file_is_lfs_pointer(p->text, p->n_bytes)) { return fail_at(p, 0, QR_LFS_POINTER_HELP); }
    QR_RETURN_IF_ERROR(read_value(p, &p->tree->root));
    skip_space(p);
    return p->at == p->n_bytes ? QRUN_OK : fail_unexpected(p, "the end of the text");
}

static qrun_status parse(parser p, qr_json **root) {
    *root = NULL;
    p.block_bytes = FIRST_BLOCK_BYTES;
    p.tree = qr_alloc_zeroed(sizeof *p.tree);
    const qrun_status status = p.tree != NULL ? parse_text(&p) : fail_memory(&p);
    qr_free(p.keys);
    qr_free(p.number);
    if (p.tree == NULL) { return status; }
    if (status == QRUN_OK) {
        *root = &p.tree->root;
    } else {
        qr_json_free(&p.tree->root);
    }
    return status;
}

qrun_status qr_json_parse(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err) {
    return parse((parser){.text = text, .n_bytes = n_bytes, .what = what, .err = err}, root);
}

qrun_status qr_json_parse_line(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err) {
    return parse((parser){.text = text, .n_bytes = n_bytes, .what = what, .is_line = true, .err = err}, root);
}

qrun_status qr_json_parse_python(const char *text, size_t n_bytes, const char *what, qr_json **root, qr_error *err) {
    return parse((parser){.text = text, .n_bytes = n_bytes, .what = what, .is_python = true, .err = err}, root);
}

qrun_status qr_json_read(const char *path, size_t max_bytes, qr_json **root, qr_error *err) {
    *root = NULL;
    char *text;
    size_t n_bytes;
    QR_RETURN_IF_ERROR(qr_file_read(path, max_bytes, &text, &n_bytes, err));
    const qrun_status status = qr_json_parse(text, n_bytes, path, root, err);
    qr_free(text);
    return status;
}

void qr_json_free(qr_json *root) {
    if (root == NULL) { return; }
    tree *owner = (tree *)(void *)((char *)root - offsetof(tree, root));
    for (arena_block *block = owner->blocks; block != NULL;) {
        arena_block *previous = block->previous;
        qr_free(block);
        block = previous;
    }
    qr_free(owner);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void append_string(qr_buffer *out, const char *text) { qr_buffer_append_json_string(out, text, strlen(text)); }

/* What was written with a fraction or exponent keeps one: to a template 1.0 and 1 are not the same. */
static void append_number(qr_buffer *out, const qr_json *number) {
    char text[QR_NUMBER_BYTES];
    if (!isfinite(number->valuedouble)) {
        qr_buffer_append_text(out, number->valuedouble > 0 ? "Infinity" : "-Infinity");
    } else if ((number->type & QR_JSON_FLOAT) != 0) {
        qr_number_format(number->valuedouble, text);
        qr_buffer_append_text(out, text);
    } else {
        qr_buffer_append_format(out, "%.0f", number->valuedouble);
    }
}

void qr_json_append(qr_buffer *out, const qr_json *value) {
    switch (value->type & 0xFF) {
        case cJSON_False: qr_buffer_append_text(out, "false"); return;
        case cJSON_True: qr_buffer_append_text(out, "true"); return;
        case cJSON_Number: append_number(out, value); return;
        case cJSON_String: append_string(out, value->valuestring); return;
        case cJSON_Array:
        case cJSON_Object: break;
        default: qr_buffer_append_text(out, "null"); return;
    }
    const bool is_object = (value->type & 0xFF) == cJSON_Object;
    qr_buffer_append_char(out, is_object ? '{' : '[');
    for (const qr_json *item = value->child; item != NULL; item = item->next) {
        if (item != value->child) { qr_buffer_append_char(out, ','); }
        if (is_object) {
            append_string(out, item->string);
            qr_buffer_append_char(out, ':');
        }
        qr_json_append(out, item);
    }
    qr_buffer_append_char(out, is_object ? '}' : ']');
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

const qr_json *qr_json_get(const qr_json *object, const char *key) {
    if (object == NULL || (object->type & 0xFF) != cJSON_Object) { return NULL; }
    for (const qr_json *item = object->child; item != NULL; item = item->next) {
        if (strcmp(item->string, key) == 0) { return item; }
    }
    return NULL;
}

bool qr_json_is_null(const qr_json *value) { return value == NULL || (value->type & 0xFF) == cJSON_NULL; }

const qr_json *qr_json_first(const qr_json *container) { return container == NULL ? NULL : container->child; }

size_t qr_json_count(const qr_json *container) {
    size_t n = 0;
    for (const qr_json *item = qr_json_first(container); item != NULL; item = item->next) { n++; }
    return n;
}

static const char *type_name(const qr_json *value) {
    switch (value->type & 0xFF) {
        case cJSON_False:
        case cJSON_True: return "a boolean";
        case cJSON_NULL: return "null";
        case cJSON_Number: return "a number";
        case cJSON_String: return "a string";
        case cJSON_Array: return "an array";
        case cJSON_Object: return "an object";
        default: return "something unknown";
    }
}

static qrun_status fail_type(const char *what, const char *key, const char *expected, const qr_json *value,
                             qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" should be %s and is %s", what, key, expected, type_name(value));
}

qrun_status qr_json_get_double(const qr_json *object, const char *key, double low, double high, double *value,
                               const char *what, qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (qr_json_is_null(member)) { return QRUN_OK; }
    if ((member->type & 0xFF) != cJSON_Number) { return fail_type(what, key, "a number", member, err); }
    if (!(member->valuedouble >= low && member->valuedouble <= high)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is %.17g, outside %.9g to %.9g", what, key,
                       member->valuedouble, low, high);
    }
    *value = member->valuedouble;
    return QRUN_OK;
}

/* "-0" is not: as an integer it would lose its sign. */
static bool is_written_as_integer(const qr_json *number) {
    return (number->type & QR_JSON_FLOAT) == 0 && !(number->valuedouble == 0 && signbit(number->valuedouble));
}

bool qr_json_as_int(const qr_json *value, int64_t low, int64_t high, int64_t *integer) {
    static const double largest_exact = 9007199254740992.0; /* 2^53 */
    if (value == NULL || (value->type & 0xFF) != cJSON_Number || !is_written_as_integer(value)) { return false; }
    if (fabs(value->valuedouble) > largest_exact) { return false; }
    const int64_t number = (int64_t)value->valuedouble;
    if (number < low || number > high) { return false; }
    *integer = number;
    return true;
}

qrun_status qr_json_get_int(const qr_json *object, const char *key, int64_t low, int64_t high, int64_t *value,
                            const char *what, qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (qr_json_is_null(member) || qr_json_as_int(member, low, high, value)) { return QRUN_OK; }
    if ((member->type & 0xFF) != cJSON_Number) { return fail_type(what, key, "an integer", member, err); }
    const double number = member->valuedouble;
    if (is_written_as_integer(member)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is %.17g, outside %lld to %lld", what, key, number,
                       (long long)low, (long long)high);
    }
    if (number != floor(number)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" is %.17g and should be an integer", what, key, number);
    }
    return qr_fail(err, QRUN_ERROR_INPUT,
                   "%s: \"%s\" should be an integer in digits, without point, exponent or \"-0\"", what, key);
}

qrun_status qr_json_get_bool(const qr_json *object, const char *key, bool *value, const char *what, qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (qr_json_is_null(member)) { return QRUN_OK; }
    const int type = member->type & 0xFF;
    if (type != cJSON_True && type != cJSON_False) { return fail_type(what, key, "true or false", member, err); }
    *value = type == cJSON_True;
    return QRUN_OK;
}

qrun_status qr_json_get_switch(const qr_json *object, const char *key, bool *value, const char *what, qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (member != NULL && qr_json_is_null(member)) { *value = false; }
    return qr_json_get_bool(object, key, value, what, err);
}

qrun_status qr_json_get_string(const qr_json *object, const char *key, const char **value, const char *what,
                               qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (qr_json_is_null(member)) { return QRUN_OK; }
    if ((member->type & 0xFF) != cJSON_String) { return fail_type(what, key, "a string", member, err); }
    *value = member->valuestring;
    return QRUN_OK;
}

static bool equal_texts(const char *a, const char *b) { return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0; }

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the parser allows */
bool qr_json_equal(const qr_json *a, const qr_json *b) {
    if ((a->type & 0xFF) != (b->type & 0xFF) || a->valuedouble != b->valuedouble ||
        !equal_texts(a->valuestring, b->valuestring)) {
        return false;
    }
    const qr_json *x = a->child, *y = b->child;
    for (; x != NULL && y != NULL; x = x->next, y = y->next) {
        if (!equal_texts(x->string, y->string) || !qr_json_equal(x, y)) { return false; }
    }
    return x == y;
}
