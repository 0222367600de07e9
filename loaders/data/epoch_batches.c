#include "loaders/data/epoch_batches.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/sizes.h"

/* An example in the epoch's order. */
typedef struct epoch_example {
    int64_t index; /* in the dataset */
    int64_t group; /* the row, or the micro-batch, that it goes to */
    int32_t n_tokens, n_targets;
} epoch_example;

typedef struct micro_batch {
    int64_t first, n_examples; /* in examples */
    int64_t n_rows, n_tokens, n_targets;
} micro_batch;

struct qr_epoch_batches {
    int64_t *examples; /* [n]: indices into the dataset, micro-batch after micro-batch */
    int64_t n_examples;
    micro_batch *list; /* the micro-batches */
    int64_t n_batches;
    int64_t n_accumulate;
};

/* Streams of the seed: epochs shuffle with theirs, grouped micro-batches with those from 2³¹ on. */
static const uint32_t GROUP_STREAMS = UINT32_C(1) << 31;

static qrun_status check_options(const qr_batch_options *options, int64_t epoch, qr_error *err) {
    const bool grouped = options->mode == QR_BATCH_GROUP;
    if (options->n_accumulate < 1 || (!grouped && options->batch_rows < 1) || (grouped && options->batch_tokens < 1)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a batch needs a row or a token at least, and a step a batch");
    }
    if (epoch < 0 || epoch >= INT64_C(1) << 31) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "there is no epoch %lld", (long long)epoch);
    }
    return QRUN_OK;
}

static int64_t count_examples(const qr_dataset_view *view, const qr_batch_options *options) {
    return options->shares != NULL ? qr_shares_count(options->shares) : view->n;
}

static void list_examples(const qr_dataset_view *view, const qr_batch_options *options, int64_t epoch,
                          epoch_example *list) {
    const int64_t n = count_examples(view, options);
    const qr_permutation order = qr_permutation_make(options->seed, (uint32_t)epoch, n);
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = options->shuffle ? qr_permutation_at(&order, k) : k;
        const int64_t index =
            options->shares != NULL ? qr_shares_index(options->shares, epoch, at) : qr_dataset_view_index(view, at);
        const qr_example example = qr_dataset_get(view->dataset, index);
        list[k] = (epoch_example){index, k, (int32_t)example.n_tokens, (int32_t)example.n_targets};
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* First fit over the last rows; sets each example's row and returns how many rows there are. left: [n], room. */
static qrun_status pack_rows(epoch_example *list, int64_t n, int64_t row_tokens, int64_t *left, int64_t *n_rows,
                             qr_error *err) {
    *n_rows = 0;
    for (int64_t k = 0; k < n; k++) {
        if (list[k].n_tokens > row_tokens) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "an example of %d tokens does not fit a row of %lld",
                           (int)list[k].n_tokens, (long long)row_tokens);
        }
        int64_t row = qr_max(0, *n_rows - QR_BATCH_OPEN_ROWS);
        while (row < *n_rows && left[row] < list[k].n_tokens) { row++; }
        if (row == *n_rows) { left[(*n_rows)++] = row_tokens; }
        left[row] -= list[k].n_tokens;
        list[k].group = row;
    }
    return QRUN_OK;
}

/* ---- groups of like length --------------------------------------------------------------------------------------- */

static int compare_lengths(const void *a, const void *b) {
    const epoch_example *x = a, *y = b;
    if (x->n_tokens != y->n_tokens) { return x->n_tokens > y->n_tokens ? -1 : 1; }
    return x->group < y->group ? -1 : x->group > y->group; /* the epoch's order */
}

/* Sets each example's micro-batch, in random order, and returns how many there are. */
static int64_t group_by_length(epoch_example *list, int64_t n, const qr_batch_options *options, int64_t epoch) {
    int64_t n_batches = 0;
    for (int64_t first = 0; first < n; first += QR_BATCH_GROUP_EXAMPLES) {
        const int64_t n_here = qr_min(QR_BATCH_GROUP_EXAMPLES, n - first);
        qsort(list + first, (size_t)n_here, sizeof *list, compare_lengths);
        int64_t n_tokens = 0;
        for (int64_t k = first; k < first + n_here; k++) {
            n_tokens += list[k].n_tokens;
            if (k == first || n_tokens > options->batch_tokens) {
                n_batches++;
                n_tokens = list[k].n_tokens;
            }
            list[k].group = n_batches - 1;
        }
    }
    const qr_permutation order = qr_permutation_make(options->seed, GROUP_STREAMS + (uint32_t)epoch, n_batches);
    for (int64_t k = 0; k < n && options->shuffle; k++) { list[k].group = qr_permutation_at(&order, list[k].group); }
    return n_batches;
}

/* ---- the batches ------------------------------------------------------------------------------------------------- */

/* Puts the examples group by group, in the list's order within each. rows_per_batch groups make a micro-batch; 0: a
 * group is one, and every example of it a row. */
static qrun_status lay_out(qr_epoch_batches *batches, const epoch_example *list, int64_t n_groups,
                           int64_t rows_per_batch, qr_error *err) {
    const int64_t n_batches = rows_per_batch > 0 ? qr_ceil_div(n_groups, rows_per_batch) : n_groups;
    int64_t *next = qr_alloc_array_zeroed((size_t)n_groups + 1, sizeof *next);
    batches->list = qr_alloc_array_zeroed((size_t)n_batches, sizeof *batches->list);
    if (next == NULL || batches->list == NULL) {
        qr_free(next);
        return qr_fail_memory(err, "the batches of an epoch", (unsigned long long)n_groups * sizeof *next);
    }
    batches->n_batches = n_batches;
    for (int64_t k = 0; k < batches->n_examples; k++) { next[list[k].group + 1]++; }
    for (int64_t g = 0; g < n_groups; g++) {
        micro_batch *batch = &batches->list[rows_per_batch > 0 ? g / rows_per_batch : g];
        if (batch->n_rows == 0) { batch->first = next[g]; }
        batch->n_rows += rows_per_batch > 0 ? 1 : next[g + 1];
        next[g + 1] += next[g];
    }
    for (int64_t k = 0; k < batches->n_examples; k++) {
        micro_batch *batch = &batches->list[rows_per_batch > 0 ? list[k].group / rows_per_batch : list[k].group];
        batches->examples[next[list[k].group]++] = list[k].index;
        batch->n_examples++;
        batch->n_tokens += list[k].n_tokens;
        batch->n_targets += list[k].n_targets;
    }
    qr_free(next);
    return QRUN_OK;
}

/* list: of the epoch. Uses batches->examples as room before it holds the examples. */
static qrun_status arrange(qr_epoch_batches *batches, epoch_example *list, const qr_batch_options *options,
                           int64_t epoch, qr_error *err) {
    const int64_t n = batches->n_examples;
    int64_t n_groups = n;
    if (options->mode == QR_BATCH_GROUP) {
        return lay_out(batches, list, group_by_length(list, n, options, epoch), 0, err);
    }
    if (options->mode == QR_BATCH_PACK) {
        QR_RETURN_IF_ERROR(pack_rows(list, n, options->row_tokens, batches->examples, &n_groups, err));
    }
    return lay_out(batches, list, n_groups, options->batch_rows, err);
}

qrun_status qr_epoch_batches_create(const qr_dataset_view *view, const qr_batch_options *options, int64_t epoch,
                                    qr_epoch_batches **batches, qr_error *err) {
    *batches = NULL;
    qr_epoch_batches *made = NULL;
    epoch_example *list = NULL;
    const int64_t n = count_examples(view, options);
    qrun_status status;
    QR_TRY(check_options(options, epoch, err));
    made = qr_alloc_zeroed(sizeof *made);
    list = qr_alloc_array((size_t)n, sizeof *list);
    if (made != NULL) { made->examples = qr_alloc_array((size_t)n, sizeof *made->examples); }
    if (made == NULL || list == NULL || made->examples == NULL) {
        QR_TRY(qr_fail_memory(err, "the batches of an epoch", (unsigned long long)n * sizeof *list));
    }
    made->n_examples = n;
    made->n_accumulate = options->n_accumulate;
    list_examples(view, options, epoch, list);
    QR_TRY(arrange(made, list, options, epoch, err));
    *batches = made;
    made = NULL;
out:
    qr_epoch_batches_destroy(made);
    qr_free(list);
    return status;
}

void qr_epoch_batches_destroy(qr_epoch_batches *batches) {
    if (batches == NULL) { return; }
    qr_free(batches->examples);
    qr_free(batches->list);
    qr_free(batches);
}

int64_t qr_epoch_batches_count_micro(const qr_epoch_batches *batches) { return batches->n_batches; }

int64_t qr_epoch_batches_count_steps(const qr_epoch_batches *batches) {
    return qr_ceil_div(batches->n_batches, batches->n_accumulate);
}

qr_micro_batch qr_epoch_batches_micro(const qr_epoch_batches *batches, int64_t k) {
    const micro_batch *batch = &batches->list[k];
    return (qr_micro_batch){batches->examples + batch->first, batch->n_examples, batch->n_rows, batch->n_tokens,
                            batch->n_targets};
}

qr_step_batch qr_epoch_batches_step(const qr_epoch_batches *batches, int64_t i) {
    qr_step_batch step = {.first = i * batches->n_accumulate};
    step.n_micro_batches = qr_min(batches->n_accumulate, batches->n_batches - step.first);
    for (int64_t k = step.first; k < step.first + step.n_micro_batches; k++) {
        step.n_examples += batches->list[k].n_examples;
        step.n_tokens += batches->list[k].n_tokens;
        step.n_targets += batches->list[k].n_targets;
    }
    return step;
}
