/* Several files as one data set, and their shares of an epoch. */
#include "dataset_check.h"

#include "loaders/data/epoch_batches.h"

typedef struct fixture {
    temporary_folder folder;
    example_model model;
    qr_dataset *dataset;
    int64_t n_files, n[8]; /* examples of each */
} fixture;

/* Texts "<file> <number>", n[f] of them in file f, after a line that is no example. */
static qrun_status open_file(fixture *f, int64_t file, qr_dataset **dataset) {
    qr_buffer text = {0};
    char name[32];
    qr_error err = {0};
    qr_buffer_append_text(&text, "{}\n");
    for (int64_t i = 0; i < f->n[file]; i++) {
        qr_buffer_append_format(&text, "{\"text\": \"%lld %lld\"}\n", (long long)file, (long long)i);
    }
    snprintf(name, sizeof name, "f%lld", (long long)file);
    qr_dataset_options options = dataset_options(&f->folder, temporary_text(&f->folder, name, text.data), 48);
    options.skip_bad = true;
    const qrun_status status = qr_dataset_open(&options, f->model.tokenizer, NULL, dataset, &err);
    CHECK_MSG(status == QRUN_OK, "%s", err.message);
    qr_buffer_free(&text);
    return status;
}

static fixture fixture_open(int64_t n_files, const int64_t *n) {
    fixture f = {.folder = temporary_create(), .model = example_model_open(), .n_files = n_files};
    memcpy(f.n, n, (size_t)n_files * sizeof *n);
    for (int64_t file = 0; file < n_files; file++) {
        qr_dataset *one = NULL;
        if (open_file(&f, file, &one) != QRUN_OK) { break; }
        if (file == 0) {
            f.dataset = one;
        } else {
            CHECK(qr_dataset_append(f.dataset, one, NULL) == QRUN_OK);
        }
    }
    return f;
}

static void fixture_close(fixture *f) {
    qr_dataset_close(f->dataset);
    example_model_close(&f->model);
    temporary_remove(&f->folder);
}

static void test_files_follow_each_other(void) {
    fixture f = fixture_open(3, (const int64_t[]){3, 1, 5});
    const qr_dataset_info *info = qr_dataset_get_info(f.dataset);
    CHECK_INT(info->n_examples, 9);
    CHECK_INT(info->n_bad, 3);
    CHECK(strstr(info->first_bad, "/f0:1: ") != NULL);
    CHECK_INT(qr_dataset_count_files(f.dataset), 3);
    int64_t at = 0, n_tokens = 0;
    for (int64_t file = 0; file < 3; file++) {
        const qr_dataset_file found = qr_dataset_get_file(f.dataset, file);
        CHECK_INT(found.first, at);
        CHECK_INT(found.info->n_examples, f.n[file]);
        for (int64_t i = 0; i < f.n[file]; i++, at++) {
            qr_buffer shown = {0};
            char expected[64];
            snprintf(expected, sizeof expected, "<|bos|>[%lld %lld<|eos|>]", (long long)file, (long long)i);
            CHECK(qr_dataset_show(f.dataset, at, "[", "]", &shown, NULL) == QRUN_OK);
            CHECK_STR(shown.data, expected);
            CHECK_INT(qr_dataset_file_of(f.dataset, at), file);
            CHECK_INT(qr_dataset_get(f.dataset, at).line, i + 2);
            n_tokens += qr_dataset_get(f.dataset, at).n_tokens;
            qr_buffer_free(&shown);
        }
    }
    CHECK_INT(info->n_tokens, n_tokens);
    fixture_close(&f);
}

/* Other files, and the same in another order, are other data. */
static void test_hash_of_several_files(void) {
    fixture f = fixture_open(2, (const int64_t[]){2, 2});
    qr_dataset *a[2], *b[2];
    for (int64_t i = 0; i < 2; i++) {
        REQUIRE(open_file(&f, i, &a[i]) == QRUN_OK);
        REQUIRE(open_file(&f, i, &b[i]) == QRUN_OK);
    }
    const uint64_t alone = qr_dataset_data_hash(a[0]), both = qr_dataset_data_hash(f.dataset);
    CHECK(qr_dataset_append(a[0], a[1], NULL) == QRUN_OK);
    CHECK(qr_dataset_append(b[1], b[0], NULL) == QRUN_OK);
    CHECK(alone != both);
    CHECK(qr_dataset_data_hash(a[0]) == both);
    CHECK(qr_dataset_data_hash(b[1]) != both);
    CHECK(qr_dataset_get_info(a[0])->from_cache == 1);
    qr_dataset_close(a[0]);
    qr_dataset_close(b[1]);
    fixture_close(&f);
}

/* How often each example is in the batches of these epochs. */
static void count_epochs(const qr_dataset_view *view, const qr_shares *shares, int64_t first, int64_t n_epochs,
                         int64_t *seen) {
    const qr_batch_options options = {.mode = QR_BATCH_PACK,
                                      .row_tokens = 64,
                                      .batch_rows = 2,
                                      .n_accumulate = 1,
                                      .shuffle = true,
                                      .seed = 9,
                                      .shares = shares};
    for (int64_t epoch = first; epoch < first + n_epochs; epoch++) {
        qr_epoch_batches *batches;
        REQUIRE(qr_epoch_batches_create(view, &options, epoch, &batches, NULL) == QRUN_OK);
        for (int64_t k = 0; k < qr_epoch_batches_count_micro(batches); k++) {
            const qr_micro_batch micro = qr_epoch_batches_micro(batches, k);
            for (int64_t i = 0; i < micro.n_examples; i++) { seen[micro.examples[i]]++; }
        }
        qr_epoch_batches_destroy(batches);
    }
}

typedef struct share_case {
    int64_t n[3];
    double weights[3];
    int64_t expected[3]; /* examples of an epoch */
} share_case;

/* Each file has its share, in every epoch; no example is missing; none is taken twice more than another. */
static void check_shares(const share_case *c) {
    fixture f = fixture_open(3, c->n);
    const qr_dataset_view view = qr_dataset_view_all(f.dataset);
    qr_shares *shares;
    qr_error err = {0};
    REQUIRE(qr_shares_create(&view, c->weights, 4, &shares, &err) == QRUN_OK);
    CHECK_INT(qr_shares_count(shares), c->expected[0] + c->expected[1] + c->expected[2]);
    int64_t seen[64] = {0};
    REQUIRE(view.n <= 64);
    for (int64_t epoch = 0; epoch < 5; epoch++) {
        int64_t here[64] = {0};
        count_epochs(&view, shares, epoch, 1, here);
        for (int64_t file = 0, at = 0; file < 3; file++) {
            int64_t n = 0, least = INT64_MAX, most = 0;
            for (int64_t i = 0; i < c->n[file]; i++, at++) {
                CHECK(here[at] > 0);
                n += here[at];
                seen[at] += here[at];
                least = qr_min(least, seen[at]);
                most = qr_max(most, seen[at]);
            }
            CHECK_INT(n, c->expected[file]);
            CHECK(most - least <= 1);
        }
    }
    qr_shares_destroy(shares);
    fixture_close(&f);
}

static void test_shares(void) {
    const share_case cases[] = {
        {{10, 10, 10}, {1, 1, 1}, {10, 10, 10}},     /* of equal size: as without weights */
        {{30, 10, 20}, {3, 1, 2}, {30, 10, 20}},     /* by size: likewise */
        {{30, 10, 5}, {1, 1, 1}, {30, 30, 30}},      /* the small ones are repeated */
        {{10, 7, 3}, {0.5, 0.25, 0.25}, {14, 7, 7}}, /* the second has most for its weight */
        {{1, 1, 20}, {10, 1, 1}, {200, 20, 20}},     {{9, 3, 2}, {0.7, 0.2, 0.1}, {14, 4, 2}},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) { check_shares(&cases[i]); }
}

/* An epoch is a function of seed and epoch; another seed and another epoch have another order. */
static void test_shares_repeat(void) {
    fixture f = fixture_open(2, (const int64_t[]){20, 3});
    const qr_dataset_view view = qr_dataset_view_all(f.dataset);
    const double weights[] = {2, 1};
    qr_shares *shares[3];
    for (int i = 0; i < 3; i++) {
        REQUIRE(qr_shares_create(&view, weights, i < 2 ? 5 : 6, &shares[i], NULL) == QRUN_OK);
    }
    int n_other_seed = 0, n_other_epoch = 0;
    for (int64_t k = 0; k < qr_shares_count(shares[0]); k++) {
        CHECK_INT(qr_shares_index(shares[0], 3, k), qr_shares_index(shares[1], 3, k));
        n_other_seed += qr_shares_index(shares[0], 3, k) != qr_shares_index(shares[2], 3, k);
        n_other_epoch += qr_shares_index(shares[0], 3, k) != qr_shares_index(shares[0], 4, k);
    }
    CHECK(n_other_seed > 10 && n_other_epoch > 0);
    CHECK(qr_shares_index(shares[0], INT64_C(0x7FFFFFFF), 29) >= 20);
    for (int i = 0; i < 3; i++) { qr_shares_destroy(shares[i]); }
    fixture_close(&f);
}

/* Of a part of the examples: only of that part. */
static void test_shares_of_a_split(void) {
    fixture f = fixture_open(2, (const int64_t[]){20, 10});
    const double weights[] = {1, 1};
    qr_dataset_view train, eval;
    qr_shares *shares;
    int64_t seen[30] = {0};
    REQUIRE(qr_dataset_split(f.dataset, 0.3, 3, &train, &eval, NULL) == QRUN_OK);
    REQUIRE(qr_shares_create(&train, weights, 3, &shares, NULL) == QRUN_OK);
    count_epochs(&train, shares, 0, 2, seen);
    for (int64_t k = 0; k < train.n; k++) { CHECK(seen[qr_dataset_view_index(&train, k)] >= 2); }
    for (int64_t k = 0; k < eval.n; k++) { CHECK_INT(seen[qr_dataset_view_index(&eval, k)], 0); }
    CHECK_INT(qr_shares_count_of(shares, 0), qr_shares_count_of(shares, 1));
    qr_shares_destroy(shares);
    fixture_close(&f);
}

static void test_shares_that_are_refused(void) {
    fixture f = fixture_open(2, (const int64_t[]){20, 1});
    const qr_dataset_view view = qr_dataset_view_all(f.dataset);
    qr_dataset_view first = {.dataset = f.dataset, .n = 20};
    qr_shares *shares;
    qr_error err = {0};
    CHECK(qr_shares_create(&view, (const double[]){1, 51}, 3, &shares, &err) == QRUN_ERROR_ARGUMENT && shares == NULL);
    CHECK_MSG(strstr(err.message, "/f1: an epoch in these `data_weights` would have its 1 examples 1020 times each") !=
                  NULL,
              "%s", err.message);
    CHECK(qr_shares_create(&view, (const double[]){1e-6, 1e6}, 3, &shares, NULL) == QRUN_ERROR_ARGUMENT);
    qr_error_clear(&err);
    CHECK(qr_shares_create(&first, (const double[]){1, 1}, 3, &shares, &err) == QRUN_ERROR_ARGUMENT);
    CHECK_MSG(strstr(err.message, "/f1: no example is left to train on") != NULL, "%s", err.message);
    CHECK(qr_shares_create(&view, (const double[]){1, 50}, 3, &shares, NULL) == QRUN_OK);
    qr_shares_destroy(shares);
    fixture_close(&f);
}

static qrun_status attempt(void *context, qr_error *err) {
    const fixture *f = context;
    const qr_dataset_view view = qr_dataset_view_all(f->dataset);
    qr_shares *shares;
    const qrun_status status = qr_shares_create(&view, (const double[]){1, 2}, 3, &shares, err);
    qr_shares_destroy(shares);
    return status;
}

static void test_failing_allocations(void) {
    fixture f = fixture_open(2, (const int64_t[]){4, 2});
    check_failing_allocations(attempt, &f, true);
    fixture_close(&f);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_files_follow_each_other);
    CHECK_RUN(test_hash_of_several_files);
    CHECK_RUN(test_shares);
    CHECK_RUN(test_shares_repeat);
    CHECK_RUN(test_shares_of_a_split);
    CHECK_RUN(test_shares_that_are_refused);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
