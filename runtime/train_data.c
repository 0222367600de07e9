#include "runtime/train_data.h"

#include <string.h>

#include "runtime/layout.h"

static const int64_t MAX_EXAMPLE_TOKENS = INT64_C(1) << 20; /* no example is longer: the limit of seq_tokens */

size_t qr_train_data_place(qr_train_data *data, int64_t max_tokens, int64_t max_sequences, void *memory) {
    qr_layout layout = {memory, 0};
    *data = (qr_train_data){0};
    data->row_key = qr_layout_take(&layout, max_tokens, sizeof(int64_t));
    data->ids = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->position = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->target = qr_layout_take(&layout, max_tokens, sizeof(int32_t));
    data->seq_start = qr_layout_take(&layout, max_sequences + 1, sizeof(int32_t));
    data->batch = (qr_train_batch){.ids = data->ids, .position = data->position, .target = data->target,
                                   .seq_start = data->seq_start, .row_key = data->row_key};
    return layout.offset;
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
