/* How attention cuts the positions of a sequence into splits (kernels/cuda/attention/attention_splits.cuh), far beyond
 * what the tests of the op reach. */
#include "kernels/cuda/attention/attention_splits.cuh"

extern "C" {
#include "check.h"
}

/* Every position is in one split, splits follow each other, and begin where pages and blocks of keys do. */
static void test_splits_follow_each_other(void) {
    const int32_t last = split_of(INT32_MAX);
    int64_t n_wrong = 0;
    for (int32_t split = 0; split <= last; split++) {
        const int64_t begin = split_begin(split), end = split_begin(split + 1);
        n_wrong += begin % SPLIT_TOKENS != 0 || end <= begin;
        n_wrong += split_of(begin) != split || split_of(end - 1) != split || split_of((begin + end) / 2) != split;
        n_wrong += split > 0 && split_of(begin - 1) != split - 1;
    }
    CHECK_INT(n_wrong, 0);
    CHECK_INT(split_begin(0), 0);
    CHECK(split_begin(last + 1) > INT32_MAX);
}

/* As many as the header says: no split is more than a sixteenth of what lies before it, or the shortest. */
static void test_splits_grow_with_the_context(void) {
    CHECK_INT(split_of(8191), 31);
    CHECK_INT(split_of(131071), 95);
    for (int32_t split = 0; split < 300; split++) {
        const int64_t begin = split_begin(split), length = split_begin(split + 1) - begin;
        CHECK(length == SPLIT_TOKENS || length * 16 <= begin);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_splits_follow_each_other);
    CHECK_RUN(test_splits_grow_with_the_context);
    return check_end();
}
