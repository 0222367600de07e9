/* Values of the template language: Python's, as far as chat templates use them. All of them live in one arena, are
 * never changed once another value may refer to them (namespaces, iterators and counters excepted), and are freed
 * with the arena. Strings are valid UTF-8.
 *
 * Failure is sticky: the first error is recorded in the run, every function then returns an undefined value (or false,
 * or an empty string) and what is computed from it is never seen. Loops ask qr_jinja_failed. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_VALUE_H
#define QR_LOADERS_TEMPLATE_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef struct qr_jinja_chunk qr_jinja_chunk;

/* Memory that is taken piece by piece and freed at once. */
typedef struct qr_jinja_arena {
    qr_jinja_chunk *newest;
    size_t n_bytes; /* taken from the heap so far */
} qr_jinja_arena;

/* NULL when memory is short. Aligned to 16 bytes, not initialised. */
void *qr_jinja_arena_take(qr_jinja_arena *arena, size_t n_bytes);
/* Grows the block in place where it is the newest one, else moves it. */
void *qr_jinja_arena_grow(qr_jinja_arena *arena, void *block, size_t old_bytes, size_t n_bytes);
void qr_jinja_arena_free(qr_jinja_arena *arena);

typedef enum qr_jinja_type {
    QR_JINJA_MISSING, /* an argument that was not given; never seen by a template */
    QR_JINJA_UNDEFINED,
    QR_JINJA_NONE,
    QR_JINJA_BOOL,
    QR_JINJA_INT,
    QR_JINJA_BIG, /* an int that does not fit 64 bits */
    QR_JINJA_FLOAT,
    QR_JINJA_STRING,
    QR_JINJA_LIST,
    QR_JINJA_TUPLE,
    QR_JINJA_RANGE,
    QR_JINJA_VIEW,     /* the keys, values or items of a dict */
    QR_JINJA_ITERATOR, /* a list that can be walked once */
    QR_JINJA_DICT,
    QR_JINJA_NAMESPACE,
    QR_JINJA_FUNCTION,
    QR_JINJA_METHOD,
    QR_JINJA_MACRO,
    QR_JINJA_LOOP,
    QR_JINJA_CYCLER,
    QR_JINJA_JOINER
} qr_jinja_type;

typedef struct qr_jinja_string {
    const char *data;
    size_t size;
    uint64_t hash; /* of the bytes, 0 = not computed yet */
    bool safe;     /* Markup: does not need HTML escaping */
} qr_jinja_string;

typedef struct qr_jinja_big qr_jinja_big;
typedef struct qr_jinja_list qr_jinja_list;
typedef struct qr_jinja_dict qr_jinja_dict;
typedef struct qr_jinja_absence qr_jinja_absence;
typedef struct qr_jinja_builtin qr_jinja_builtin;
typedef struct qr_jinja_method qr_jinja_method;
typedef struct qr_jinja_macro qr_jinja_macro;
typedef struct qr_jinja_loop qr_jinja_loop;
typedef struct qr_jinja_run qr_jinja_run;

typedef struct qr_jinja_value {
    qr_jinja_type type;
    union {
        bool boolean;
        int64_t integer;
        const qr_jinja_big *big;
        double number;
        qr_jinja_string *string;
        qr_jinja_list
            *list; /* lists, tuples, ranges, views, iterators, cyclers; a joiner's only item is its separator */
        qr_jinja_dict *dict;             /* dicts and namespaces */
        const qr_jinja_absence *absence; /* why it is undefined; may be NULL */
        const qr_jinja_builtin *function;
        qr_jinja_method *method;
        qr_jinja_macro *macro;
        qr_jinja_loop *loop;
    };
} qr_jinja_value;

typedef struct qr_jinja_range {
    int64_t start, stop, step;
} qr_jinja_range;

struct qr_jinja_list {
    qr_jinja_value *items;
    size_t n_items;
    size_t capacity;
    size_t cursor;         /* iterators and cyclers: the next item; joiners: 1 after the first use */
    const char *kind;      /* how repr names a view, for example "dict_keys" */
    qr_jinja_range bounds; /* of a range */
    bool is_group;         /* a tuple of groupby: has .grouper and .list */
};

typedef struct qr_jinja_entry {
    qr_jinja_value key;
    qr_jinja_value value;
    uint64_t hash;
} qr_jinja_entry;

/* In insertion order. From 9 entries on, `slots` is an open-addressed table of entry numbers + 1. */
struct qr_jinja_dict {
    qr_jinja_entry *entries;
    size_t n_entries;
    size_t capacity;
    uint32_t *slots;
    size_t n_slots; /* 0 or a power of two, more than n_entries */
};

typedef enum qr_jinja_absence_reason {
    QR_JINJA_NO_NAME,
    QR_JINJA_NO_ATTRIBUTE,
    QR_JINJA_NO_ELEMENT,
    QR_JINJA_NO_ARGUMENT,
    QR_JINJA_EMPTY_SEQUENCE,
    QR_JINJA_FORBIDDEN
} qr_jinja_absence_reason;

/* What a use of an undefined value says. */
struct qr_jinja_absence {
    qr_jinja_absence_reason reason;
    const char *owner; /* type name of the object that lacks it */
    qr_jinja_value key;
};

/* Limits on one rendering, so that no template can run without end or fill the memory.
 *
 * The steps bound the time. Evaluating a node is a step, visiting an item is one, and walking over bytes costs by the
 * byte. Whoever walks charges first: the functions here and in jinja_run.h do, and a call of a builtin is charged all
 * that it is given unless its row says otherwise (qr_jinja_cost). */
enum {
    QR_JINJA_MAX_DEPTH = 300,              /* nested evaluations, macro calls and nested values */
    QR_JINJA_MAX_STEPS = 10 * 1000 * 1000, /* a fraction of a second, a few at worst */
    QR_JINJA_STEP_BYTES = 16,              /* a walk over so many bytes is a step */
    QR_JINJA_MAX_RANGE = 100000,           /* as Jinja's sandbox */
    QR_JINJA_MAX_DIGITS = 4300,            /* of an integer that is written out, as Python has it */
    QR_JINJA_MAX_BITS = 14336,             /* of an integer: a little more than these digits need */
    QR_JINJA_MAX_BYTES = 256 * 1024 * 1024 /* arena of one rendering */
};

/* --- the run: errors and limits (jinja_value.c) --- */
qr_jinja_value qr_jinja_error(qr_jinja_run *run, const char *fmt, ...)
    QR_PRINTF(2, 3); /* records an input error; returns undefined */
bool qr_jinja_failed(const qr_jinja_run *run);
bool qr_jinja_enter(
    qr_jinja_run *run); /* one level deeper; false (and the error) when that is too deep. Pair with qr_jinja_leave. */
void qr_jinja_leave(qr_jinja_run *run);
bool qr_jinja_walk(qr_jinja_run *run, size_t n_bytes);  /* charges a walk over bytes; false when the run has failed */
bool qr_jinja_step(qr_jinja_run *run, size_t n_items);  /* the same for nodes or items */
void *qr_jinja_take(qr_jinja_run *run, size_t n_bytes); /* zeroed; NULL after a failure */

/* Makes room for `needed` elements of an array in the arena, which doubles; false when the run has failed. */
bool qr_jinja_reserve(qr_jinja_run *run, void *array, size_t *capacity, size_t needed, size_t size);

/* --- making values --- */
static inline bool qr_jinja_is_text(const qr_jinja_string *string, const char *text) {
    return strlen(text) == string->size && memcmp(text, string->data, string->size) == 0;
}
static inline qr_jinja_value qr_jinja_undefined(void) { return (qr_jinja_value){.type = QR_JINJA_UNDEFINED}; }
static inline qr_jinja_value qr_jinja_none(void) { return (qr_jinja_value){.type = QR_JINJA_NONE}; }
static inline qr_jinja_value qr_jinja_bool(bool b) { return (qr_jinja_value){.type = QR_JINJA_BOOL, .boolean = b}; }
static inline qr_jinja_value qr_jinja_int(int64_t i) { return (qr_jinja_value){.type = QR_JINJA_INT, .integer = i}; }
static inline qr_jinja_value qr_jinja_float(double d) { return (qr_jinja_value){.type = QR_JINJA_FLOAT, .number = d}; }
static inline qr_jinja_value qr_jinja_from_list(qr_jinja_type type, qr_jinja_list *list) {
    return (qr_jinja_value){.type = type, .list = list};
}
static inline qr_jinja_value qr_jinja_from_dict(qr_jinja_dict *dict) {
    return (qr_jinja_value){.type = QR_JINJA_DICT, .dict = dict};
}
qr_jinja_value qr_jinja_absent(qr_jinja_run *run, qr_jinja_absence_reason reason, const char *owner,
                               qr_jinja_value key);
/* Lends the bytes: they must live as long as the arena or be constants. */
qr_jinja_value qr_jinja_lend(qr_jinja_run *run, const char *data, size_t size);
qr_jinja_value qr_jinja_text(qr_jinja_run *run, const char *text); /* lends a C string constant */
qr_jinja_value qr_jinja_copy(qr_jinja_run *run, const char *data, size_t size);
/* The same text, marked as one that needs no HTML escaping, or as one that does. */
qr_jinja_value qr_jinja_with_safety(const qr_jinja_run *run, qr_jinja_value text, bool safe);

qr_jinja_list *qr_jinja_list_create(qr_jinja_run *run, size_t capacity);
void qr_jinja_list_append(qr_jinja_run *run, qr_jinja_list *list, qr_jinja_value item);
void qr_jinja_list_extend(qr_jinja_run *run, qr_jinja_list *list, const qr_jinja_value *items, size_t n_items);
qr_jinja_value qr_jinja_tuple(qr_jinja_run *run, const qr_jinja_value *items, size_t n_items);
qr_jinja_value qr_jinja_pair(qr_jinja_run *run, qr_jinja_value first, qr_jinja_value second); /* a tuple */

qr_jinja_dict *qr_jinja_dict_create(qr_jinja_run *run);
bool qr_jinja_dict_set(qr_jinja_run *run, qr_jinja_dict *dict, qr_jinja_value key,
                       qr_jinja_value value); /* fails for an unhashable key */
qr_jinja_value *qr_jinja_dict_find(qr_jinja_run *run, const qr_jinja_dict *dict,
                                   qr_jinja_value key); /* NULL where absent; fails as set */
qr_jinja_value *qr_jinja_dict_find_text(qr_jinja_run *run, const qr_jinja_dict *dict, const char *key);

/* --- text being built in the arena --- */
typedef struct qr_jinja_builder {
    qr_jinja_run *run;
    char *data;
    size_t size;
    size_t capacity;
} qr_jinja_builder;

void qr_jinja_append(qr_jinja_builder *builder, const char *data, size_t size);
void qr_jinja_append_text(qr_jinja_builder *builder, const char *text);
void qr_jinja_append_times(qr_jinja_builder *builder, const char *data, size_t size, int64_t n); /* n < 0: as 0 */
void qr_jinja_append_value(qr_jinja_builder *builder, qr_jinja_value value);                     /* as str() */
void qr_jinja_append_repr(qr_jinja_builder *builder, qr_jinja_value value);                      /* as repr() */
void qr_jinja_append_code_point(qr_jinja_builder *builder, uint32_t code_point);
qr_jinja_value qr_jinja_built(qr_jinja_builder *builder); /* the text as a string; the builder is empty afterwards */

/* --- Python's semantics --- */
const char *qr_jinja_type_name(qr_jinja_value value); /* "str", "int", "dict" … */
bool qr_jinja_truth(qr_jinja_value value);
bool qr_jinja_is_number(qr_jinja_value value);  /* bool, int or float */
bool qr_jinja_is_integer(qr_jinja_value value); /* bool or int */
double qr_jinja_as_double(qr_jinja_value number);
bool qr_jinja_as_index(qr_jinja_value value, int64_t *index);             /* bool, or an int of 64 bits */
qr_jinja_string *qr_jinja_str(qr_jinja_run *run, qr_jinja_value value);   /* str(value); never NULL */
qr_jinja_value qr_jinja_to_text(qr_jinja_run *run, qr_jinja_value value); /* the same as a value */
bool qr_jinja_equal(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b);
/* a < b gives -1, equal 0, a > b 1; fails for types without an order. NaN compares as 2. */
int qr_jinja_compare(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b, const char *operator_name);
bool qr_jinja_contains(qr_jinja_run *run, qr_jinja_value container, qr_jinja_value item);
uint64_t qr_jinja_hash(qr_jinja_run *run, qr_jinja_value value);               /* fails for lists and dicts */
bool qr_jinja_length(qr_jinja_run *run, qr_jinja_value value, size_t *length); /* len(); false where there is none */
/* What iterating over value yields, to be read only; an iterator is used up. Fails for what cannot be iterated. */
qr_jinja_list *qr_jinja_iterate(qr_jinja_run *run, qr_jinja_value value);
bool qr_jinja_is_iterable(qr_jinja_value value);

/* Characters, not bytes. */
size_t qr_jinja_char_count(qr_jinja_run *run, const char *data, size_t size);
size_t qr_jinja_char_offset(qr_jinja_run *run, const char *data, size_t size,
                            size_t index); /* byte offset of a character; size past the end */
/* The character at byte *i < size, and *i moved after it. U+FFFD for a byte that is not UTF-8. */
uint32_t qr_jinja_next_character(const qr_jinja_string *text, size_t *i);
bool qr_jinja_is_space(uint32_t code_point); /* str.isspace, isalpha and isalnum */
bool qr_jinja_is_alpha(uint32_t code_point);
bool qr_jinja_is_alnum(uint32_t code_point);
/* The first or last occurrence in text[0, size); NULL where there is none. */
const char *qr_jinja_search(qr_jinja_run *run, const char *text, size_t size, const qr_jinja_string *wanted);
const char *qr_jinja_search_last(qr_jinja_run *run, const char *text, size_t size, const qr_jinja_string *wanted);

/* As strtod on the whole text[0, size), decimal point '.', underscores between digits and surrounding space allowed,
 * "inf" and "nan" too. */
bool qr_jinja_parse_double(const char *text, size_t size, double *value);

/* --- integers (jinja_integer.c); what is called integer here is a BOOL, an INT or a BIG --- */
/* As int(text, base): sign, prefix, underscores, surrounding space. QR_JINJA_MISSING where text is no integer; fails
 * where it is too long. */
qr_jinja_value qr_jinja_parse_integer(qr_jinja_run *run, const char *text, size_t size, int base);
/* + - * ** (no negative exponent) // and % (no zero divisor). Fails where the result is too long. */
qr_jinja_value qr_jinja_integer_arithmetic(qr_jinja_run *run, int op, qr_jinja_value a, qr_jinja_value b);
qr_jinja_value qr_jinja_integer_ratio(qr_jinja_run *run, qr_jinja_value a, qr_jinja_value b); /* a / b; b is not 0 */
qr_jinja_value qr_jinja_integer_from_double(qr_jinja_run *run, double number); /* finite; rounds towards 0 */
int qr_jinja_integer_compare(qr_jinja_value a, qr_jinja_value b); /* as qr_jinja_compare; b may be a FLOAT */
bool qr_jinja_is_negative(qr_jinja_value integer);
double qr_jinja_big_double(const qr_jinja_big *big); /* the nearest one; infinite where it is too large */
/* Its digits without a sign. Fails for more than QR_JINJA_MAX_DIGITS decimal ones. */
void qr_jinja_append_digits(qr_jinja_builder *builder, qr_jinja_value integer, uint32_t base);

#endif
