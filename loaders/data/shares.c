#include "loaders/data/shares.h"

#include <math.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"

typedef struct file_share {
    const int64_t *examples; /* [n]: of the data set */
    int64_t n;
    int64_t first, count; /* among an epoch's examples */
    qr_permutation order;
} file_share;

struct qr_shares {
    file_share *files; /* [n_files] */
    int64_t n_files;
    int64_t n;         /* examples of an epoch */
    int64_t *examples; /* [examples of the view]: file after file */
};

/* The view's examples, each to its file. */
static void sort_by_file(qr_shares *shares, const qr_dataset_view *view) {
    int64_t next = 0;
    for (int64_t k = 0; k < view->n; k++) {
        shares->files[qr_dataset_file_of(view->dataset, qr_dataset_view_index(view, k))].n++;
    }
    for (int64_t f = 0; f < shares->n_files; f++) {
        shares->files[f].examples = shares->examples + next;
        next += shares->files[f].n;
        shares->files[f].n = 0;
    }
    for (int64_t k = 0; k < view->n; k++) {
        const int64_t index = qr_dataset_view_index(view, k);
        file_share *file = &shares->files[qr_dataset_file_of(view->dataset, index)];
        shares->examples[file->examples - shares->examples + file->n++] = index;
    }
}

static qrun_status count_examples(qr_shares *shares, const qr_dataset_view *view, const double *weights,
                                  qr_error *err) {
    double most = 0; /* examples for a weight of 1 */
    for (int64_t f = 0; f < shares->n_files; f++) {
        if (shares->files[f].n == 0) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: no example is left to train on, so it cannot have a share",
                           qr_dataset_get_file(view->dataset, f).path);
        }
        most = fmax(most, (double)shares->files[f].n / weights[f]);
    }
    double total = 0;
    for (int64_t f = 0; f < shares->n_files; f++) {
        file_share *file = &shares->files[f];
        const double wanted = fmax((double)file->n, round(weights[f] * most));
        total += wanted;
        if (wanted > (double)file->n * QR_SHARES_MOST_REPEATS || total > INT32_MAX) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT,
                           "%s: an epoch in these `data_weights` would have its %lld examples %.0f times each; give "
                           "weights nearer to the numbers of examples",
                           qr_dataset_get_file(view->dataset, f).path, (long long)file->n, wanted / (double)file->n);
        }
        file->first = shares->n;
        file->count = (int64_t)wanted;
        shares->n += file->count;
    }
    return QRUN_OK;
}

qrun_status qr_shares_create(const qr_dataset_view *view, const double *weights, uint64_t seed, qr_shares **shares,
                             qr_error *err) {
    *shares = NULL;
    qr_shares *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the shares of the files", sizeof *made); }
    made->n_files = qr_dataset_count_files(view->dataset);
    made->files = qr_alloc_array_zeroed((size_t)made->n_files, sizeof *made->files);
    made->examples = qr_alloc_array((size_t)view->n, sizeof *made->examples);
    qrun_status status = QRUN_OK;
    if (made->files == NULL || made->examples == NULL) {
        QR_TRY(qr_fail_memory(err, "the shares of the files", (size_t)view->n * sizeof *made->examples));
    }
    sort_by_file(made, view);
    QR_TRY(count_examples(made, view, weights, err));
    for (int64_t f = 0; f < made->n_files; f++) {
        /* A seed of its own: every stream of the run's is taken by an epoch. */
        made->files[f].order = qr_permutation_make(qr_hash_mix(seed + 1), (uint32_t)f, made->files[f].n);
    }
    *shares = made;
    made = NULL;
out:
    qr_shares_destroy(made);
    return status;
}

void qr_shares_destroy(qr_shares *shares) {
    if (shares == NULL) { return; }
    qr_free(shares->files);
    qr_free(shares->examples);
    qr_free(shares);
}

int64_t qr_shares_count(const qr_shares *shares) { return shares->n; }

int64_t qr_shares_count_of(const qr_shares *shares, int64_t file) { return shares->files[file].count; }

int64_t qr_shares_index(const qr_shares *shares, int64_t epoch, int64_t k) {
    int64_t low = 0, high = shares->n_files; /* files[low].first ≤ k < files[high].first */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        *(shares->files[middle].first <= k ? &low : &high) = middle;
    }
    const file_share *file = &shares->files[low];
    const int64_t begun = epoch % file->n * (file->count % file->n) % file->n; /* both below 2^31 */
    return file->examples[qr_permutation_at(&file->order, (begun + k - file->first) % file->n)];
}
