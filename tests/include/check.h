/* The smallest test harness that says what failed and where. A test program lists its cases in main:
 *
 *     int main(int argc, char **argv) {
 *         check_begin(argc, argv);
 *         CHECK_RUN(test_something);
 *         return check_end();
 *     }
 *
 * A case is `static void test_something(void)`. CHECK… macros record a failure and go on; REQUIRE ends the case.
 * check_skip("reason") inside a case marks it skipped; a program in which every case was skipped exits with 77.
 * An argument on the command line runs only the cases whose name contains it, or ends with it if it ends with "$".
 * With QRUN_TEST_TIMES set, each case prints the seconds of CPU time that it took. Of products of sizes, types and
 * options, a part runs that has each of them (check_thins); with QRUN_TEST_ALL set, all of it. With QRUN_TEST_SHORT
 * set, cases take fewer rounds of the same kind (check_repeats): sanitizers take up to fifty times as long. */
#ifndef QR_TESTS_CHECK_H
#define QR_TESTS_CHECK_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Under sanitizers times and memory mean little, and everything takes four times as long; more where an emulator runs
 * the tests (scripts/aarch64.sh). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(CHECK_EMULATED)
enum { CHECK_SANITIZED = 1 };
#else
enum { CHECK_SANITIZED = 0 };
#endif

/* Weak, so that a test program of several files has one. */
__attribute__((weak)) struct check_program {
    const char *filter;
    const char *case_name;
    int n_failures_in_case;
    bool skipped;
    int n_passed, n_failed, n_skipped;
} check_state;

static inline void check_begin(int argc, char **argv) {
    check_state.filter = argc > 1 ? argv[1] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0);
}

__attribute__((format(printf, 3, 4))) static inline void check_fail(const char *file, int line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    printf("  %s:%d: in %s: ", file, line, check_state.case_name);
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
    check_state.n_failures_in_case++;
}

static inline void check_skip(const char *reason) {
    printf("  skipped %s: %s\n", check_state.case_name, reason);
    check_state.skipped = true;
}

static inline bool check_is_wanted(const char *name, const char *filter) {
    const size_t length = filter != NULL ? strlen(filter) : 0, name_length = strlen(name);
    if (length == 0) { return true; }
    if (filter[length - 1] != '$') { return strstr(name, filter) != NULL; }
    return name_length >= length - 1 && strncmp(name + name_length - (length - 1), filter, length - 1) == 0;
}

static inline void check_case(const char *name, void (*run)(void)) {
    if (!check_is_wanted(name, check_state.filter)) { return; }
    check_state.case_name = name;
    check_state.n_failures_in_case = 0;
    check_state.skipped = false;
    const clock_t began = clock();
    run();
    if (getenv("QRUN_TEST_TIMES") != NULL) {
        printf("  %7.1f s %s\n", (double)(clock() - began) / CLOCKS_PER_SEC, name);
    }
    if (check_state.n_failures_in_case > 0) {
        check_state.n_failed++;
        printf("FAILED %s\n", name);
    } else if (check_state.skipped) {
        check_state.n_skipped++;
    } else {
        check_state.n_passed++;
    }
}

static inline int check_end(void) {
    printf("%d passed, %d failed, %d skipped\n", check_state.n_passed, check_state.n_failed, check_state.n_skipped);
    if (check_state.n_failed > 0) { return 1; }
    return check_state.n_passed == 0 ? 77 : 0;
}

/* Whether a product of options is thinned out, for time: never a single one, and always under sanitizers. */
static inline bool check_thins(void) { return CHECK_SANITIZED || getenv("QRUN_TEST_ALL") == NULL; }

/* Rounds of a loop, such as seeds: `all`, or `few` where tests shall be short. */
static inline int check_repeats(int all, int few) { return getenv("QRUN_TEST_SHORT") != NULL ? few : all; }

/* The path of a file among the real data beside the checkout; NULL when it is absent (skip the case then). The
 * result is valid until the next call. QRUN_SHARED_DATA overrides the folder. */
static inline const char *check_shared_data(const char *name) {
    static char path[4096];
    const char *folder = getenv("QRUN_SHARED_DATA");
    snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : QRUN_SOURCE_DIR "/../shared/data", name);
    struct stat info;
    return stat(path, &info) == 0 ? path : NULL;
}

/* The instruction sets that a test is for (QRUN_TEST_ISAS: names with commas); NULL: those of this machine. */
static inline const char *check_isas(void) {
    const char *isas = getenv("QRUN_TEST_ISAS");
    return isas != NULL && isas[0] != '\0' ? isas : NULL;
}

#define CHECK_RUN(function) check_case(#function, function)

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) { check_fail(__FILE__, __LINE__, "%s", #condition); } \
    } while (0)

#define REQUIRE(condition)                                    \
    do {                                                      \
        if (!(condition)) {                                   \
            check_fail(__FILE__, __LINE__, "%s", #condition); \
            return;                                           \
        }                                                     \
    } while (0)

/* As CHECK, with a formatted explanation. */
#define CHECK_MSG(condition, ...)                                          \
    do {                                                                   \
        if (!(condition)) { check_fail(__FILE__, __LINE__, __VA_ARGS__); } \
    } while (0)

#define CHECK_INT(actual, expected)                                                            \
    do {                                                                                       \
        const long long check_a = (long long)(actual), check_e = (long long)(expected);        \
        CHECK_MSG(check_a == check_e, "%s is %lld, expected %lld", #actual, check_a, check_e); \
    } while (0)

#define CHECK_STR(actual, expected)                                                                           \
    do {                                                                                                      \
        const char *check_a = (actual), *check_e = (expected);                                                \
        CHECK_MSG(check_a != NULL && strcmp(check_a, check_e) == 0, "%s is \"%s\", expected \"%s\"", #actual, \
                  check_a != NULL ? check_a : "(null)", check_e);                                             \
    } while (0)

#endif
