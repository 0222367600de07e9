#include "runtime/train/loader.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/engine/layout.h"

enum { N_SLOTS = 2 };

/* ---- The arrays of a micro-batch --------------------------------------------------------------------------------- */

static const int64_t MAX_EXAMPLE_TOKENS = INT64_C(1) << 20; /* no example is longer: the limit of seq_tokens */

size_t qr_micro_arrays_place(qr_micro_arrays *data, int64_t max_tokens, int64_t max_sequences, void *memory) {
    qr_layout layout = {.base = memory};
    *data = (qr_micro_arrays){0};
    data->row_key = qr_layout_take(&layout, max_tokens, sizeof(int64_t));
    data->ids = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->position = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->target = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->seq_start = qr_layout_take(&layout, max_sequences + 1, sizeof(int32_t));
    data->batch = (qr_train_batch){.ids = data->ids,
                                   .position = data->position,
                                   .target = data->target,
                                   .seq_start = data->seq_start,
                                   .row_key = data->row_key};
    return layout.offset;
}

/* Tokens [first, first + n) of an example as the next sequence. */
static void fill_sequence(qr_micro_arrays *data, const qr_example *example, int64_t index, int64_t first, int64_t n) {
    const int64_t row = data->batch.n_tokens;
    const int32_t *ids = example->ids + first;
    const uint8_t *is_target = example->is_target + first;
    memcpy(data->ids + row, ids, (size_t)n * sizeof *ids);
    for (int64_t t = 0; t < n; t++) {
        const bool counts = t + 1 < n && is_target[t + 1] != 0;
        data->position[row + t] = (int32_t)t;
        data->row_key[row + t] = index * MAX_EXAMPLE_TOKENS + first + t;
        data->target[row + t] = counts ? ids[t + 1] : -1;
    }
    data->batch.n_tokens += n;
    data->seq_start[++data->batch.n_sequences] = (int32_t)data->batch.n_tokens;
}

void qr_micro_arrays_fill(qr_micro_arrays *data, const qr_dataset *dataset, const qr_micro_batch *micro) {
    data->batch.n_tokens = data->batch.n_sequences = 0;
    data->seq_start[0] = 0;
    for (int64_t i = 0; i < micro->n_examples; i++) {
        const qr_example example = qr_dataset_get(dataset, micro->examples[i]);
        const int64_t n_chosen = example.n_chosen;
        if (n_chosen > 0) { fill_sequence(data, &example, micro->examples[i], 0, n_chosen); }
        fill_sequence(data, &example, micro->examples[i], n_chosen, example.n_tokens - n_chosen);
    }
}

/* ---- Loading ahead ----------------------------------------------------------------------------------------------- */

/* The thread's work: make the batches of an epoch, where `view` is not NULL, and fill a slot with its first
 * micro-batch. */
typedef struct load_job {
    const qr_dataset_view *view;
    qr_batch_options options;
    int64_t epoch;
    qr_micro_source source; /* batches NULL until they are made; nothing is filled without */
    qr_epoch_batches *made; /* the loader's until take_epoch returns them; NULL also where memory was short */
} load_job;

struct qr_train_loader {
    qr_backend *backend;
    void *memory; /* both slots */
    size_t slot_bytes;
    qr_micro_arrays slots[N_SLOTS];
    int current; /* the slot lent to the caller; jobs fill the other one */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t changed;
    bool busy, ends; /* busy: the thread works on the job; otherwise the caller may change it */
    load_job job;
};

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void run_job(qr_train_loader *loader) {
    load_job *job = &loader->job;
    if (job->view != NULL) {
        /* A failure is not reported here: qr_train_loader_take_epoch tries again. */
        (void)qr_epoch_batches_create(job->view, &job->options, job->epoch, &job->made, NULL);
        job->source = (qr_micro_source){job->view->dataset, job->made, 0};
    }
    if (job->source.batches == NULL) { return; }
    const qr_micro_batch micro = qr_epoch_batches_micro(job->source.batches, job->source.index);
    qr_micro_arrays_fill(&loader->slots[1 - loader->current], job->source.dataset, &micro);
}

static void *serve(void *arg) {
    qr_train_loader *loader = arg;
    pthread_mutex_lock(&loader->lock);
    for (;;) {
        while (!loader->busy && !loader->ends) { pthread_cond_wait(&loader->changed, &loader->lock); }
        if (loader->ends) { break; }
        pthread_mutex_unlock(&loader->lock);
        run_job(loader);
        pthread_mutex_lock(&loader->lock);
        loader->busy = false;
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

static void raise_flag(qr_train_loader *loader, bool *flag) {
    pthread_mutex_lock(&loader->lock);
    *flag = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->lock);
}

/* Until the caller may change the job. */
static void wait_for_job(qr_train_loader *loader) {
    pthread_mutex_lock(&loader->lock);
    while (loader->busy) { pthread_cond_wait(&loader->changed, &loader->lock); }
    pthread_mutex_unlock(&loader->lock);
}

static void begin_job(qr_train_loader *loader, const load_job *job) {
    wait_for_job(loader);
    qr_epoch_batches_destroy(loader->job.made);
    loader->job = *job;
    raise_flag(loader, &loader->busy);
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

size_t qr_train_loader_bytes(int64_t max_tokens, int64_t max_sequences) {
    qr_micro_arrays data;
    return N_SLOTS * qr_micro_arrays_place(&data, max_tokens, max_sequences, NULL);
}

qrun_status qr_train_loader_create(qr_backend *backend, int64_t max_tokens, int64_t max_sequences,
                                   qr_train_loader **loader, qr_error *err) {
    *loader = NULL;
    const size_t n_bytes = qr_train_loader_bytes(max_tokens, max_sequences);
    qr_train_loader *made = qr_alloc_zeroed(sizeof *made);
    qrun_status status;
    if (made == NULL) { return qr_fail_memory(err, "the loader", sizeof *made); }
    made->backend = backend;
    made->slot_bytes = n_bytes / N_SLOTS;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    QR_TRY(backend->memory_create(backend, QR_MEMORY_HOST, n_bytes, &made->memory, err));
    for (int i = 0; i < N_SLOTS; i++) {
        void *slot = (unsigned char *)made->memory + (size_t)i * made->slot_bytes;
        (void)qr_micro_arrays_place(&made->slots[i], max_tokens, max_sequences, slot);
    }
    made->started = pthread_create(&made->thread, NULL, serve, made) == 0;
    if (!made->started) { QR_TRY(qr_fail(err, QRUN_ERROR_MEMORY, "cannot start a thread to read the data")); }
    *loader = made;
    made = NULL;
out:
    qr_train_loader_destroy(made);
    return status;
}

void qr_train_loader_destroy(qr_train_loader *loader) {
    if (loader == NULL) { return; }
    if (loader->started) {
        wait_for_job(loader);
        raise_flag(loader, &loader->ends);
        pthread_join(loader->thread, NULL);
    }
    qr_epoch_batches_destroy(loader->job.made);
    loader->backend->memory_destroy(loader->backend, QR_MEMORY_HOST, loader->memory, N_SLOTS * loader->slot_bytes);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    qr_free(loader);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

const qr_train_batch *qr_train_loader_take(qr_train_loader *loader, const qr_micro_source *source) {
    wait_for_job(loader);
    const qr_micro_source *ready = &loader->job.source;
    if (ready->batches == NULL || ready->batches != source->batches || ready->dataset != source->dataset ||
        ready->index != source->index) {
        const qr_micro_batch micro = qr_epoch_batches_micro(source->batches, source->index);
        qr_micro_arrays_fill(&loader->slots[1 - loader->current], source->dataset, &micro);
    }
    loader->job.source = (qr_micro_source){0}; /* the other slot is overwritten next */
    loader->current = 1 - loader->current;
    return &loader->slots[loader->current].batch;
}

void qr_train_loader_forget(qr_train_loader *loader) {
    wait_for_job(loader);
    qr_epoch_batches_destroy(loader->job.made);
    loader->job = (load_job){0};
}

void qr_train_loader_prepare(qr_train_loader *loader, const qr_micro_source *next) {
    begin_job(loader, &(load_job){.source = *next});
}

void qr_train_loader_prepare_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                   const qr_batch_options *options, int64_t epoch) {
    begin_job(loader, &(load_job){.view = view, .options = *options, .epoch = epoch});
}

qrun_status qr_train_loader_take_epoch(qr_train_loader *loader, const qr_dataset_view *view,
                                       const qr_batch_options *options, int64_t epoch, qr_epoch_batches **batches,
                                       qr_error *err) {
    wait_for_job(loader);
    load_job *job = &loader->job;
    if (job->made == NULL || job->view != view || job->epoch != epoch) {
        *batches = NULL;
        qr_train_loader_forget(loader);
        return qr_epoch_batches_create(view, options, epoch, batches, err);
    }
    *batches = job->made;
    job->made = NULL;
    return QRUN_OK;
}
