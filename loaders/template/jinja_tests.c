/* Tests: what may follow "is". */
#include <string.h>

#include "base/sizes.h"
#include "loaders/template/jinja_run.h"

#define TYPE_TEST(name, condition)                                                          \
    static qr_jinja_value test_##name(qr_jinja_run *run, const qr_jinja_invocation *call) { \
        const qr_jinja_value self = call->self;                                             \
        (void)run;                                                                          \
        return qr_jinja_bool(condition);                                                    \
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
TYPE_TEST(integer, self.type == QR_JINJA_INT || self.type == QR_JINJA_BIG)
TYPE_TEST(float, self.type == QR_JINJA_FLOAT)
TYPE_TEST(number, qr_jinja_is_number(self))
TYPE_TEST(string, self.type == QR_JINJA_STRING)
TYPE_TEST(mapping, self.type == QR_JINJA_DICT)
TYPE_TEST(sequence, is_sequence(self))
TYPE_TEST(iterable, qr_jinja_is_iterable(self) || self.type == QR_JINJA_LOOP)
TYPE_TEST(callable, is_callable(self))
TYPE_TEST(escaped, self.type == QR_JINJA_STRING && self.string->safe)

/* odd, even and divisibleby: the variant is the rest that is asked for. */
static qr_jinja_value test_remainder(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const bool has_divisor = call->builtin->n_required > 0;
    const qr_jinja_value rest = qr_jinja_binary(run, '%', call->self, has_divisor ? call->args[0] : qr_jinja_int(2));
    return qr_jinja_bool(!qr_jinja_failed(run) && qr_jinja_equal(run, rest, qr_jinja_int(call->builtin->variant)));
}

static qr_jinja_value test_comparison(qr_jinja_run *run, const qr_jinja_invocation *call) {
    return qr_jinja_bool(qr_jinja_holds(run, call->builtin->variant, call->self, call->args[0]));
}

/* The same object: for values without identity of their own here (numbers, strings) the same type and value. */
static qr_jinja_value test_sameas(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value self = call->self;
    const qr_jinja_value other = call->args[0];
    if (self.type != other.type) { return qr_jinja_bool(false); }
    const bool by_value = qr_jinja_is_number(self) || self.type == QR_JINJA_STRING || self.type == QR_JINJA_NONE;
    return qr_jinja_bool(by_value ? qr_jinja_equal(run, self, other) : self.list == other.list);
}

/* lower and upper: the methods islower and isupper of the value as a text. */
static qr_jinja_value test_case(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_value text = qr_jinja_to_text(run, call->self);
    const char *method = call->builtin->variant == QR_JINJA_UPPER ? "isupper" : "islower";
    return qr_jinja_call_builtin(run, qr_jinja_find_method(text, method, strlen(method)), "test", text, call->raw);
}

static qr_jinja_value test_filter(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *name = qr_jinja_str(run, call->self);
    return qr_jinja_bool(qr_jinja_find_filter(name->data, name->size) != NULL);
}

static qr_jinja_value test_test(qr_jinja_run *run, const qr_jinja_invocation *call) {
    const qr_jinja_string *name = qr_jinja_str(run, call->self);
    return qr_jinja_bool(qr_jinja_find_test(name->data, name->size) != NULL);
}

static const qr_jinja_builtin tests[] = {
    {"defined", "", 0, test_defined, 0, QR_JINJA_FLAT},
    {"undefined", "", 0, test_undefined, 0, QR_JINJA_FLAT},
    {"none", "", 0, test_none, 0, QR_JINJA_FLAT},
    {"boolean", "", 0, test_boolean, 0, QR_JINJA_FLAT},
    {"true", "", 0, test_true, 0, QR_JINJA_FLAT},
    {"false", "", 0, test_false, 0, QR_JINJA_FLAT},
    {"integer", "", 0, test_integer, 0, QR_JINJA_FLAT},
    {"float", "", 0, test_float, 0, QR_JINJA_FLAT},
    {"number", "", 0, test_number, 0, QR_JINJA_FLAT},
    {"string", "", 0, test_string, 0, QR_JINJA_FLAT},
    {"mapping", "", 0, test_mapping, 0, QR_JINJA_FLAT},
    {"sequence", "", 0, test_sequence, 0, QR_JINJA_FLAT},
    {"iterable", "", 0, test_iterable, 0, QR_JINJA_FLAT},
    {"callable", "", 0, test_callable, 0, QR_JINJA_FLAT},
    {"escaped", "", 0, test_escaped, 0, QR_JINJA_FLAT},
    {"odd", "", 0, test_remainder, 1, QR_JINJA_BY_SIZE},
    {"even", "", 0, test_remainder, 0, QR_JINJA_BY_SIZE},
    {"divisibleby", "num", 1, test_remainder, 0, QR_JINJA_BY_SIZE},
    {"eq", "other", 1, test_comparison, QR_JINJA_OP('=', '='), QR_JINJA_BY_SIZE},
    {"equalto", "other", 1, test_comparison, QR_JINJA_OP('=', '='), QR_JINJA_BY_SIZE},
    {"==", "other", 1, test_comparison, QR_JINJA_OP('=', '='), QR_JINJA_BY_SIZE},
    {"ne", "other", 1, test_comparison, QR_JINJA_OP('!', '='), QR_JINJA_BY_SIZE},
    {"!=", "other", 1, test_comparison, QR_JINJA_OP('!', '='), QR_JINJA_BY_SIZE},
    {"lt", "other", 1, test_comparison, '<', QR_JINJA_BY_SIZE},
    {"lessthan", "other", 1, test_comparison, '<', QR_JINJA_BY_SIZE},
    {"<", "other", 1, test_comparison, '<', QR_JINJA_BY_SIZE},
    {"le", "other", 1, test_comparison, QR_JINJA_OP('<', '='), QR_JINJA_BY_SIZE},
    {"<=", "other", 1, test_comparison, QR_JINJA_OP('<', '='), QR_JINJA_BY_SIZE},
    {"gt", "other", 1, test_comparison, '>', QR_JINJA_BY_SIZE},
    {"greaterthan", "other", 1, test_comparison, '>', QR_JINJA_BY_SIZE},
    {">", "other", 1, test_comparison, '>', QR_JINJA_BY_SIZE},
    {"ge", "other", 1, test_comparison, QR_JINJA_OP('>', '='), QR_JINJA_BY_SIZE},
    {">=", "other", 1, test_comparison, QR_JINJA_OP('>', '='), QR_JINJA_BY_SIZE},
    {"in", "seq", 1, test_comparison, 'i', QR_JINJA_BY_SIZE},
    {"sameas", "other", 1, test_sameas, 0, QR_JINJA_BY_SIZE},
    {"lower", "", 0, test_case, QR_JINJA_LOWER, QR_JINJA_BY_SIZE},
    {"upper", "", 0, test_case, QR_JINJA_UPPER, QR_JINJA_BY_SIZE},
    {"filter", "", 0, test_filter, 0, QR_JINJA_BY_SIZE},
    {"test", "", 0, test_test, 0, QR_JINJA_BY_SIZE},
};

const qr_jinja_table qr_jinja_tests = {"test", tests, QR_COUNT_OF(tests)};

const qr_jinja_builtin *qr_jinja_find_test(const char *name, size_t size) {
    return qr_jinja_find_builtin(&qr_jinja_tests, name, size);
}
