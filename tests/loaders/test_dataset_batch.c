/* Orders, splits and the batches of an epoch. */
#include "dataset_check.h"

#include "loaders/data/epoch_batches.h"

static void test_permutation(void) {
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 1000, 4097};
    for (size_t s = 0; s < QR_COUNT_OF(sizes); s++) {
        const int64_t n = sizes[s];
        const qr_permutation p = qr_permutation_make(7, 1, n);
        unsigned char *seen = calloc(1, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = qr_permutation_at(&p, i);
            CHECK(at >= 0 && at < n && !seen[at]);
            if (at >= 0 && at < n) { seen[at] = 1; }
        }
        free(seen);
    }
    const qr_permutation large = qr_permutation_make(1, 0, INT64_C(1) << 40);
    CHECK(qr_permutation_at(&large, 0) != 0 && qr_permutation_at(&large, 0) < INT64_C(1) << 40);
}

/* Every index is as likely at the front as any other, over seeds and over streams. */
static void test_permutation_is_even(void) {
    enum { N = 10, SEEDS = 20000 };
    int by_seed[N] = {0}, by_stream[N] = {0};
    for (uint32_t i = 0; i < SEEDS; i++) {
        const qr_permutation a = qr_permutation_make(i, 0, N), b = qr_permutation_make(42, i, N);
        by_seed[qr_permutation_at(&a, 0)]++;
        by_stream[qr_permutation_at(&b, 0)]++;
    }
    for (int k = 0; k < N; k++) { /* five standard deviations: √(20000 · 0.1 · 0.9) = 42.4 */
        CHECK_MSG(abs(by_seed[k] - SEEDS / N) < 212, "%d of %d", by_seed[k], SEEDS / N);
        CHECK_MSG(abs(by_stream[k] - SEEDS / N) < 212, "%d of %d", by_stream[k], SEEDS / N);
    }
}

typedef struct fixture {
    temporary_folder folder;
    example_model model;
    qr_dataset *dataset;
} fixture;

/* n examples of ragged lengths, from 3 tokens to 40. */
static fixture fixture_create(int n) {
    fixture f = {temporary_create(), example_model_open(), NULL};
    qr_buffer text = {0};
    for (int i = 0; i < n; i++) {
        qr_buffer_append_text(&text, "{\"prompt\": \"a");
        for (int k = 0; k < i * 7 % 13; k++) { qr_buffer_append_text(&text, " b"); }
        qr_buffer_append_text(&text, "\", \"completion\": \" c");
        for (int k = 0; k < i * 11 % 26; k++) { qr_buffer_append_text(&text, " d"); }
        qr_buffer_append_text(&text, "\"}\n");
    }
    const qr_dataset_options options = dataset_options(&f.folder, temporary_text(&f.folder, "d", text.data), 48);
    qr_error err = {0};
    CHECK_MSG(qr_dataset_open(&options, f.model.tokenizer, NULL, &f.dataset, &err) == QRUN_OK, "%s", err.message);
    CHECK_INT(qr_dataset_count(f.dataset), n);
    qr_buffer_free(&text);
    return f;
}

static void fixture_free(const fixture *f) {
    qr_dataset_close(f->dataset);
    example_model_close(&f->model);
    temporary_remove(&f->folder);
}

static void test_split(void) {
    const fixture f = fixture_create(101);
    qr_dataset_view train, eval, again_train, again_eval;
    qr_error err = {0};
    CHECK(qr_dataset_split(f.dataset, 0.1, 3, &train, &eval, &err) == QRUN_OK);
    CHECK(qr_dataset_split(f.dataset, 0.1, 3, &again_train, &again_eval, &err) == QRUN_OK);
    CHECK_INT(eval.n, 10);
    CHECK_INT(train.n, 91);
    unsigned char seen[101] = {0};
    for (int64_t k = 0; k < eval.n; k++) { seen[qr_dataset_view_index(&eval, k)]++; }
    for (int64_t k = 0; k < train.n; k++) { seen[qr_dataset_view_index(&train, k)]++; }
    for (size_t i = 0; i < sizeof seen; i++) { CHECK_INT(seen[i], 1); }
    for (int64_t k = 0; k < eval.n; k++) {
        CHECK(qr_dataset_view_index(&eval, k) == qr_dataset_view_index(&again_eval, k));
    }
    CHECK(qr_dataset_split(f.dataset, 1e-9, 3, &train, &eval, &err) == QRUN_OK && eval.n == 1);
    CHECK(qr_dataset_split(f.dataset, 0.9999, 3, &train, &eval, &err) == QRUN_OK && train.n == 1);
    CHECK(qr_dataset_split(f.dataset, 1, 3, &train, &eval, &err) == QRUN_ERROR_ARGUMENT);
    qr_error_clear(&err);
    CHECK(qr_dataset_split(f.dataset, (double)NAN, 3, &train, &eval, &err) == QRUN_ERROR_ARGUMENT);
    fixture_free(&f);
}

static qr_epoch_batches *batches_of(const fixture *f, const qr_batch_options *options, int64_t epoch) {
    const qr_dataset_view view = qr_dataset_view_all(f->dataset);
    qr_epoch_batches *batches = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_epoch_batches_create(&view, options, epoch, &batches, &err) == QRUN_OK, "%s", err.message);
    return batches;
}

/* What holds for every epoch: each example once, true sums, steps that have all micro-batches. */
static void check_batches(const fixture *f, const qr_epoch_batches *batches, const qr_batch_options *options) {
    const int64_t n = qr_dataset_count(f->dataset);
    unsigned char *seen = calloc(1, (size_t)n);
    int64_t n_targets = 0;
    for (int64_t k = 0; k < qr_epoch_batches_count_micro(batches); k++) {
        const qr_micro_batch micro = qr_epoch_batches_micro(batches, k);
        int64_t tokens = 0, targets = 0;
        for (int64_t i = 0; i < micro.n_examples; i++) {
            const qr_example example = qr_dataset_get(f->dataset, micro.examples[i]);
            seen[micro.examples[i]]++;
            tokens += example.n_tokens;
            targets += example.n_targets;
        }
        CHECK_INT(micro.n_tokens, tokens);
        CHECK_INT(micro.n_targets, targets);
        CHECK(micro.n_rows > 0 && micro.n_rows <= micro.n_examples);
        if (options->mode != QR_BATCH_GROUP) { CHECK(micro.n_rows <= options->batch_rows); }
        if (options->mode == QR_BATCH_PACK) { CHECK(tokens <= micro.n_rows * options->row_tokens); }
        if (options->mode == QR_BATCH_GROUP) { CHECK(tokens <= options->batch_tokens || micro.n_examples == 1); }
        n_targets += targets;
    }
    for (int64_t i = 0; i < n; i++) { CHECK_INT(seen[i], 1); }
    int64_t next = 0;
    for (int64_t w = 0; w < qr_epoch_batches_count_steps(batches); w++) {
        const qr_step_batch step = qr_epoch_batches_step(batches, w);
        CHECK_INT(step.first, next);
        CHECK(step.n_micro_batches >= 1 && step.n_micro_batches <= options->n_accumulate);
        next += step.n_micro_batches;
        n_targets -= step.n_targets;
    }
    CHECK_INT(next, qr_epoch_batches_count_micro(batches));
    CHECK_INT(n_targets, 0);
    free(seen);
}

static bool same(const qr_epoch_batches *a, const qr_epoch_batches *b) {
    if (qr_epoch_batches_count_micro(a) != qr_epoch_batches_count_micro(b)) { return false; }
    for (int64_t k = 0; k < qr_epoch_batches_count_micro(a); k++) {
        const qr_micro_batch x = qr_epoch_batches_micro(a, k), y = qr_epoch_batches_micro(b, k);
        if (x.n_examples != y.n_examples ||
            memcmp(x.examples, y.examples, (size_t)x.n_examples * sizeof *x.examples) != 0) {
            return false;
        }
    }
    return true;
}

static void test_plans(void) {
    const fixture f = fixture_create(500);
    static const qr_batch_options cases[] = {
        {.mode = QR_BATCH_PLAIN, .batch_rows = 8, .n_accumulate = 3, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_PLAIN, .batch_rows = 1, .n_accumulate = 1, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_PLAIN, .batch_rows = 1000, .n_accumulate = 4, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_PACK, .row_tokens = 48, .batch_rows = 2, .n_accumulate = 4, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_PACK, .row_tokens = 999, .batch_rows = 1, .n_accumulate = 2, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_GROUP, .batch_tokens = 200, .n_accumulate = 2, .shuffle = true, .seed = 1},
        {.mode = QR_BATCH_GROUP, .batch_tokens = 1, .n_accumulate = 7, .shuffle = true, .seed = 1},
    };
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_epoch_batches *batches = batches_of(&f, &cases[i], 0), *again = batches_of(&f, &cases[i], 0);
        qr_epoch_batches *next = batches_of(&f, &cases[i], 1);
        qr_batch_options other_seed = cases[i];
        other_seed.seed = 2;
        qr_epoch_batches *other = batches_of(&f, &other_seed, 0);
        check_batches(&f, batches, &cases[i]);
        check_batches(&f, next, &cases[i]);
        CHECK(same(batches, again));
        CHECK(!same(batches, next));
        CHECK(!same(batches, other));
        qr_epoch_batches_destroy(batches);
        qr_epoch_batches_destroy(again);
        qr_epoch_batches_destroy(next);
        qr_epoch_batches_destroy(other);
    }
    fixture_free(&f);
}

/* Without shuffling, the file's order; packed rows are nearly full. */
static void test_order_and_fill(void) {
    const fixture f = fixture_create(500);
    const qr_batch_options plain = {.mode = QR_BATCH_PLAIN, .batch_rows = 7, .n_accumulate = 1};
    qr_epoch_batches *batches = batches_of(&f, &plain, 5);
    for (int64_t k = 0, n = 0; k < qr_epoch_batches_count_micro(batches); k++) {
        const qr_micro_batch micro = qr_epoch_batches_micro(batches, k);
        for (int64_t i = 0; i < micro.n_examples; i++, n++) { CHECK_INT(micro.examples[i], n); }
    }
    qr_epoch_batches_destroy(batches);
    const qr_batch_options pack = {.mode = QR_BATCH_PACK, .row_tokens = 256, .batch_rows = 1, .n_accumulate = 1};
    batches = batches_of(&f, &pack, 0);
    const int64_t rows = qr_epoch_batches_count_micro(batches), least = qr_dataset_get_info(f.dataset)->n_tokens / 256;
    CHECK_MSG(rows <= least + least / 20 + 1, "%lld rows where %lld would be full", (long long)rows, (long long)least);
    qr_epoch_batches_destroy(batches);
    fixture_free(&f);
}

/* Micro-batches of grouped examples hold like lengths. */
static void test_groups_are_alike(void) {
    const fixture f = fixture_create(500);
    const qr_batch_options options = {.mode = QR_BATCH_GROUP, .batch_tokens = 200, .n_accumulate = 1, .shuffle = true};
    qr_epoch_batches *batches = batches_of(&f, &options, 0);
    int64_t padding = 0;
    for (int64_t k = 0; k < qr_epoch_batches_count_micro(batches); k++) {
        const qr_micro_batch micro = qr_epoch_batches_micro(batches, k);
        int64_t longest = 0;
        for (int64_t i = 0; i < micro.n_examples; i++) {
            longest = qr_max(longest, qr_dataset_get(f.dataset, micro.examples[i]).n_tokens);
        }
        padding += longest * micro.n_examples - micro.n_tokens;
    }
    CHECK_MSG(padding * 20 < qr_dataset_get_info(f.dataset)->n_tokens, "padding would be %lld", (long long)padding);
    qr_epoch_batches_destroy(batches);
    fixture_free(&f);
}

static void test_refused(void) {
    const fixture f = fixture_create(10);
    const qr_dataset_view view = qr_dataset_view_all(f.dataset);
    const qr_batch_options bad[] = {{.mode = QR_BATCH_PLAIN, .batch_rows = 0, .n_accumulate = 1},
                                    {.mode = QR_BATCH_PLAIN, .batch_rows = 1, .n_accumulate = 0},
                                    {.mode = QR_BATCH_GROUP, .batch_rows = 1, .n_accumulate = 1},
                                    {.mode = QR_BATCH_PACK, .batch_rows = 1, .row_tokens = 5, .n_accumulate = 1}};
    for (size_t i = 0; i < QR_COUNT_OF(bad); i++) {
        qr_epoch_batches *batches;
        qr_error err = {0};
        CHECK(qr_epoch_batches_create(&view, &bad[i], 0, &batches, &err) == QRUN_ERROR_ARGUMENT && batches == NULL);
        CHECK(err.message[0] != '\0');
    }
    fixture_free(&f);
}

static qrun_status attempt(void *context, qr_error *err) {
    const qr_dataset_view *view = context;
    const qr_batch_options options = {.mode = QR_BATCH_PACK, .row_tokens = 48, .batch_rows = 2, .n_accumulate = 1};
    qr_epoch_batches *batches;
    const qrun_status status = qr_epoch_batches_create(view, &options, 0, &batches, err);
    qr_epoch_batches_destroy(batches);
    return status;
}

static void test_failing_allocations(void) {
    const fixture f = fixture_create(10);
    qr_dataset_view view = qr_dataset_view_all(f.dataset);
    check_failing_allocations(attempt, &view, false);
    fixture_free(&f);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_permutation);
    CHECK_RUN(test_permutation_is_even);
    CHECK_RUN(test_split);
    CHECK_RUN(test_plans);
    CHECK_RUN(test_order_and_fill);
    CHECK_RUN(test_groups_are_alike);
    CHECK_RUN(test_refused);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
