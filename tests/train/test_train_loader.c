/* Micro-batches loaded ahead: whatever was prepared before, or is being prepared, what is taken is what was asked for.
 */
#include "check.h"

#include "base/random.h"
#include "runtime/train/loader.h"

enum { N_EXAMPLES = 37, TOKENS = 24, ROW_TOKENS = 2 * TOKENS, MAX_SEQUENCES = ROW_TOKENS / 2 + 1 };

static qr_backend *backend;
static qr_dataset *dataset;
static const qr_batch_options options = {
    .mode = QR_BATCH_PACK, .row_tokens = ROW_TOKENS, .batch_rows = 1, .n_accumulate = 1, .shuffle = true, .seed = 5};

static bool is_micro_batch(const qr_train_batch *batch, const qr_epoch_batches *batches, int64_t index) {
    static _Alignas(64) unsigned char memory[1 << 14];
    qr_micro_arrays data;
    const qr_micro_batch micro = qr_epoch_batches_micro(batches, index);
    CHECK(qr_micro_arrays_place(&data, ROW_TOKENS, MAX_SEQUENCES, NULL) <= sizeof memory);
    (void)qr_micro_arrays_place(&data, ROW_TOKENS, MAX_SEQUENCES, memory);
    qr_micro_arrays_fill(&data, dataset, &micro);
    const size_t n = (size_t)data.batch.n_tokens;
    return batch->n_tokens == data.batch.n_tokens && batch->n_sequences == data.batch.n_sequences &&
           memcmp(batch->ids, data.ids, n * sizeof *data.ids) == 0 &&
           memcmp(batch->position, data.position, n * sizeof *data.position) == 0 &&
           memcmp(batch->target, data.target, n * sizeof *data.target) == 0 &&
           memcmp(batch->row_key, data.row_key, n * sizeof *data.row_key) == 0 &&
           memcmp(batch->seq_start, data.seq_start, ((size_t)batch->n_sequences + 1) * sizeof *data.seq_start) == 0;
}

static qr_train_loader *make_loader(void) {
    qr_train_loader *loader = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_train_loader_create(backend, ROW_TOKENS, MAX_SEQUENCES, &loader, &err) == QRUN_OK, "%s", err.message);
    return loader;
}

/* An epoch as training goes through it, and the beginning of the next. */
static void test_in_order(void) {
    const qr_dataset_view view = qr_dataset_view_all(dataset);
    qr_train_loader *loader = make_loader();
    qr_epoch_batches *batches = NULL, *next = NULL;
    size_t held, peak;
    REQUIRE(loader != NULL);
    backend->memory_held(backend, &held, &peak);
    CHECK_INT(held, qr_train_loader_bytes(ROW_TOKENS, MAX_SEQUENCES));
    REQUIRE(qr_train_loader_take_epoch(loader, &view, &options, 0, &batches, NULL) == QRUN_OK);
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        const int64_t n = qr_epoch_batches_count_micro(batches);
        for (int64_t i = 0; i < n; i++) {
            const qr_micro_source source = {dataset, batches, i}, following = {dataset, batches, i + 1};
            const qr_train_batch *batch = qr_train_loader_take(loader, &source);
            if (i + 1 < n) {
                qr_train_loader_prepare(loader, &following);
            } else {
                qr_train_loader_prepare_epoch(loader, &view, &options, epoch + 1);
            }
            CHECK(is_micro_batch(batch, batches, i)); /* while the next one is made */
        }
        REQUIRE(qr_train_loader_take_epoch(loader, &view, &options, epoch + 1, &next, NULL) == QRUN_OK);
        qr_epoch_batches_destroy(batches);
        batches = next;
    }
    qr_train_loader_destroy(loader);
    qr_epoch_batches_destroy(batches);
    backend->memory_held(backend, &held, &peak);
    CHECK_INT(held, 0);
}

/* Anything prepared, anything asked for, batches that come and go at the same address. */
static void test_in_any_order(void) {
    const qr_dataset_view view = qr_dataset_view_all(dataset);
    qr_train_loader *loader = make_loader();
    qr_epoch_batches *batches = NULL;
    REQUIRE(loader != NULL);
    for (uint64_t i = 0; i < 3000; i++) {
        const uint64_t draw = qr_hash_mix(i);
        const int64_t epoch = (int64_t)(draw >> 8 & 3);
        if (batches == NULL || draw % 5 == 0) {
            qr_epoch_batches *made;
            REQUIRE(qr_train_loader_take_epoch(loader, &view, &options, epoch, &made, NULL) == QRUN_OK);
            qr_epoch_batches_destroy(batches);
            batches = made;
        }
        const uint64_t n = (uint64_t)qr_epoch_batches_count_micro(batches);
        const qr_micro_source source = {dataset, batches, (int64_t)((draw >> 16) % n)};
        const qr_micro_source next = {dataset, batches, (int64_t)((draw >> 32) % n)};
        const qr_train_batch *batch = qr_train_loader_take(loader, &source);
        switch (draw >> 48 & 3) {
            case 0: qr_train_loader_prepare(loader, &next); break;
            case 1: qr_train_loader_prepare_epoch(loader, &view, &options, epoch); break;
            case 2: qr_train_loader_forget(loader); break;
            default: break;
        }
        CHECK_MSG(is_micro_batch(batch, batches, source.index), "call %d", (int)i);
    }
    qr_train_loader_destroy(loader);
    qr_epoch_batches_destroy(batches);
}

/* Ends while the thread is at work. */
static void test_ends_at_once(void) {
    const qr_dataset_view view = qr_dataset_view_all(dataset);
    for (int i = 0; i < 50; i++) {
        qr_train_loader *loader = make_loader();
        REQUIRE(loader != NULL);
        qr_train_loader_prepare_epoch(loader, &view, &options, i);
        qr_train_loader_destroy(loader);
    }
    qr_train_loader_destroy(NULL);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    if (qr_backend_cpu_create(NULL, NULL, &backend, NULL) != QRUN_OK ||
        qr_dataset_create_random(N_EXAMPLES, TOKENS, 100, 3, false, &dataset, NULL) != QRUN_OK) {
        return 1;
    }
    CHECK_RUN(test_in_order);
    CHECK_RUN(test_in_any_order);
    CHECK_RUN(test_ends_at_once);
    qr_dataset_close(dataset);
    qr_backend_destroy(backend);
    return check_end();
}
