#include "runtime/train_data.h"

#include <string.h>

#include "base/alloc.h"

static const int64_t MAX_EXAMPLE_TOKENS = INT64_C(1) << 20; /* no example is longer: the limit of seq_tokens */

qrun_status qr_train_data_create(int64_t max_tokens, int64_t max_sequences, qr_train_data *data, qr_error *err) {
    const size_t t = (size_t)max_tokens;
    *data = (qr_train_data){.max_tokens = max_tokens, .max_sequences = max_sequences};
    data->ids = qr_alloc_array(t, sizeof(int32_t));
    data->position = qr_alloc_array(t, sizeof(int32_t));
    data->target = qr_alloc_array(t, sizeof(int32_t));
    data->seq_start = qr_alloc_array((size_t)max_sequences + 1, sizeof(int32_t));
    data->row_key = qr_alloc_array(t, sizeof(int64_t));
    if (data->ids == NULL || data->position == NULL || data->target == NULL || data->seq_start == NULL ||
        data->row_key == NULL) {
        qr_train_data_destroy(data);
        return qr_fail_memory(err, "a micro-batch", t * (3 * sizeof(int32_t) + sizeof(int64_t)));
    }
    data->batch = (qr_train_batch){.ids = data->ids, .position = data->position, .target = data->target,
                                   .seq_start = data->seq_start, .row_key = data->row_key};
    return QRUN_OK;
}

void qr_train_data_destroy(qr_train_data *data) {
    qr_free(data->ids);
    qr_free(data->position);
    qr_free(data->target);
    qr_free(data->seq_start);
    qr_free(data->row_key);
    *data = (qr_train_data){0};
}

void qr_train_data_fill(qr_train_data *data, const qr_dataset *dataset, const qr_micro_batch *micro) {
    int64_t row = 0;
    data->seq_start[0] = 0;
    for (int64_t i = 0; i < micro->n_examples; i++) {
        const qr_example example = qr_dataset_get(dataset, micro->examples[i]);
        memcpy(data->ids + row, example.ids, (size_t)example.n_tokens * sizeof *example.ids);
        for (int64_t t = 0; t < example.n_tokens; t++) {
            const bool counts = t + 1 < example.n_tokens && example.is_target[t + 1] != 0;
            data->position[row + t] = (int32_t)t;
            data->row_key[row + t] = micro->examples[i] * MAX_EXAMPLE_TOKENS + t;
            data->target[row + t] = counts ? example.ids[t + 1] : -1;
        }
        row += example.n_tokens;
        data->seq_start[i + 1] = (int32_t)row;
    }
    data->batch.n_tokens = row;
    data->batch.n_sequences = micro->n_examples;
}
