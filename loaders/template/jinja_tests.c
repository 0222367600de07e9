/* Tests: what may stand behind "is". */
#include <string.h>

#include "base/sizes.h"
#include "loaders/template/jinja_filters.h"

#define TYPE_TEST(name, condition)                                                                        \
    static qr_jinja_value test_##name(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args, \
                                      const qr_jinja_args *raw) {                                         \
        (void)run, (void)args, (void)raw;                                                                 \
        return qr_jinja_bool(condition);                                                                  \
    }

static bool is_sequence(qr_jinja_value value) {
    return value.type == QR_JINJA_LIST || value.type == QR_JINJA_TUPLE || value.type == QR_JINJA_RANGE ||
           value.type == QR_JINJA_STRING || value.type == QR_JINJA_DICT || value.type == QR_JINJA_UNDEFINED;
}

static bool is_callable(qr_jinja_value value) {
    return value.type == QR_JINJA_FUNCTION || value.type == QR_JINJA_METHOD || value.type == QR_JINJA_MACRO ||
           value.type == QR_JINJA_LOOP || value.type == QR_JINJA_JOINER || value.type == QR_JINJA_UNDEFINED;
}

TYPE_TEST(defined, self.type != QR_JINJA_UNDEFINED)
TYPE_TEST(undefined, self.type == QR_JINJA_UNDEFINED)
TYPE_TEST(none, self.type == QR_JINJA_NONE)
TYPE_TEST(boolean, self.type == QR_JINJA_BOOL)
TYPE_TEST(true, self.type == QR_JINJA_BOOL && self.boolean)
TYPE_TEST(false, self.type == QR_JINJA_BOOL && !self.boolean)
TYPE_TEST(integer, self.type == QR_JINJA_INT)
TYPE_TEST(float, self.type == QR_JINJA_FLOAT)
TYPE_TEST(number, qr_jinja_is_number(self))
TYPE_TEST(string, self.type == QR_JINJA_STRING)
TYPE_TEST(mapping, self.type == QR_JINJA_DICT)
TYPE_TEST(sequence, is_sequence(self))
TYPE_TEST(iterable, qr_jinja_is_iterable(self) || self.type == QR_JINJA_LOOP)
TYPE_TEST(callable, is_callable(self))
TYPE_TEST(escaped, self.type == QR_JINJA_STRING && self.string->safe)

static qr_jinja_value has_remainder(qr_jinja_run *run, qr_jinja_value self, qr_jinja_value divisor, int64_t wanted) {
    const qr_jinja_value rest = qr_jinja_binary(run, '%', self, divisor);
    return qr_jinja_bool(!qr_jinja_failed(run) && qr_jinja_equal(run, rest, qr_jinja_int(wanted)));
}

static qr_jinja_value test_odd(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                               const qr_jinja_args *raw) {
    (void)args, (void)raw;
    return has_remainder(run, self, qr_jinja_int(2), 1);
}

static qr_jinja_value test_even(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                const qr_jinja_args *raw) {
    (void)args, (void)raw;
    return has_remainder(run, self, qr_jinja_int(2), 0);
}

static qr_jinja_value test_divisibleby(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                       const qr_jinja_args *raw) {
    (void)raw;
    return has_remainder(run, self, args[0], 0);
}

static qr_jinja_value test_eq(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    return qr_jinja_bool(qr_jinja_equal(run, self, args[0]));
}

static qr_jinja_value test_ne(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    return qr_jinja_bool(!qr_jinja_equal(run, self, args[0]));
}

static qr_jinja_value test_lt(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    return qr_jinja_bool(qr_jinja_compare(run, self, args[0], "<") == -1);
}

static qr_jinja_value test_gt(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    return qr_jinja_bool(qr_jinja_compare(run, self, args[0], ">") == 1);
}

static qr_jinja_value test_le(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    const int order = qr_jinja_compare(run, self, args[0], "<=");
    return qr_jinja_bool(order == -1 || order == 0);
}

static qr_jinja_value test_ge(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    const int order = qr_jinja_compare(run, self, args[0], ">=");
    return qr_jinja_bool(order == 1 || order == 0);
}

static qr_jinja_value test_in(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                              const qr_jinja_args *raw) {
    (void)raw;
    return qr_jinja_bool(qr_jinja_contains(run, args[0], self));
}

/* The same object: for values without identity of their own here (numbers, strings) the same type and value. */
static qr_jinja_value test_sameas(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                  const qr_jinja_args *raw) {
    (void)raw;
    const qr_jinja_value other = args[0];
    if (self.type != other.type) { return qr_jinja_bool(false); }
    const bool by_value = qr_jinja_is_number(self) || self.type == QR_JINJA_STRING || self.type == QR_JINJA_NONE;
    return qr_jinja_bool(by_value ? qr_jinja_equal(run, self, other) : self.list == other.list);
}

static qr_jinja_value text_is_mapped(qr_jinja_run *run, qr_jinja_value self, const char *method) {
    const qr_jinja_value text = {.type = QR_JINJA_STRING, .string = qr_jinja_str(run, self)};
    const qr_jinja_args none = {0};
    return qr_jinja_call_builtin(run, qr_jinja_find_method(text, method, strlen(method)), "test", text, &none);
}

static qr_jinja_value test_lower(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                 const qr_jinja_args *raw) {
    (void)args, (void)raw;
    return text_is_mapped(run, self, "islower");
}

static qr_jinja_value test_upper(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                 const qr_jinja_args *raw) {
    (void)args, (void)raw;
    return text_is_mapped(run, self, "isupper");
}

static qr_jinja_value test_filter(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                  const qr_jinja_args *raw) {
    (void)args, (void)raw;
    const qr_jinja_string *name = qr_jinja_str(run, self);
    return qr_jinja_bool(qr_jinja_find_filter(name->data, name->size) != NULL);
}

static qr_jinja_value test_test(qr_jinja_run *run, qr_jinja_value self, const qr_jinja_value *args,
                                const qr_jinja_args *raw) {
    (void)args, (void)raw;
    const qr_jinja_string *name = qr_jinja_str(run, self);
    return qr_jinja_bool(qr_jinja_find_test(name->data, name->size) != NULL);
}

static const qr_jinja_builtin tests[] = {
    {"defined", "", 0, test_defined},    {"undefined", "", 0, test_undefined},
    {"none", "", 0, test_none},          {"boolean", "", 0, test_boolean},
    {"true", "", 0, test_true},          {"false", "", 0, test_false},
    {"integer", "", 0, test_integer},    {"float", "", 0, test_float},
    {"number", "", 0, test_number},      {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},    {"sequence", "", 0, test_sequence},
    {"iterable", "", 0, test_iterable},  {"callable", "", 0, test_callable},
    {"escaped", "", 0, test_escaped},    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},          {"divisibleby", "num", 1, test_divisibleby},
    {"eq", "other", 1, test_eq},         {"equalto", "other", 1, test_eq},
    {"==", "other", 1, test_eq},         {"ne", "other", 1, test_ne},
    {"!=", "other", 1, test_ne},         {"lt", "other", 1, test_lt},
    {"lessthan", "other", 1, test_lt},   {"<", "other", 1, test_lt},
    {"le", "other", 1, test_le},         {"<=", "other", 1, test_le},
    {"gt", "other", 1, test_gt},         {"greaterthan", "other", 1, test_gt},
    {">", "other", 1, test_gt},          {"ge", "other", 1, test_ge},
    {">=", "other", 1, test_ge},         {"in", "seq", 1, test_in},
    {"sameas", "other", 1, test_sameas}, {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},        {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},
};

const qr_jinja_builtin *qr_jinja_find_test(const char *name, size_t size) {
    return qr_jinja_find_builtin(tests, QR_COUNT_OF(tests), name, size);
}
