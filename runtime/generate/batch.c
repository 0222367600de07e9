#include "runtime/generate/batch.h"

#include <string.h>

#include "base/sizes.h"
#include "runtime/engine/layout.h"

size_t qr_batch_lay(const qr_batch_sizes *sizes, int32_t n_kv_groups, void *base, qr_batch *batch) {
    const int64_t t = sizes->n_tokens, s = sizes->n_sequences;
    qr_layout layout = {.base = base};
    *batch = (qr_batch){.sizes = *sizes, .n_kv_groups = n_kv_groups};
    batch->ids = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->position = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->rope_slot = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->row_adapter = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->row_dora = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->row_plain = qr_layout_take(&layout, t, sizeof(int32_t));
    batch->q_start = qr_layout_take(&layout, s + 1, sizeof(int32_t));
    batch->first_position = qr_layout_take(&layout, s, sizeof(int32_t));
    batch->state_slot = qr_layout_take(&layout, s, sizeof(int32_t));
    batch->token_page = qr_layout_take(&layout, n_kv_groups * t, sizeof(int32_t));
    batch->rows = qr_layout_take(&layout, sizes->n_rows, sizeof(int32_t));
    batch->samples = qr_layout_take(&layout, sizes->n_samples, sizeof(qr_sample_params));
    batch->block_table = qr_layout_take(&layout, n_kv_groups * s * sizes->table_stride, sizeof(int32_t));
    return layout.offset;
}

static void add_pages(qr_batch *batch, const qr_kv_sequence *kv, int32_t group, int64_t first, int64_t n) {
    const qr_batch_sizes *sizes = &batch->sizes;
    const int64_t used = qr_ceil_div(first + n, QR_KV_PAGE_TOKENS);
    int32_t *token_page = batch->token_page + group * sizes->n_tokens + batch->n_tokens;
    int32_t *table = batch->block_table + (group * sizes->n_sequences + batch->n_sequences) * sizes->table_stride;
    for (int64_t i = 0; i < n; i++) { token_page[i] = qr_kv_table_entry(kv, group, (first + i) / QR_KV_PAGE_TOKENS); }
    for (int64_t b = 0; b < sizes->table_stride; b++) { table[b] = b < used ? qr_kv_table_entry(kv, group, b) : -1; }
}

void qr_batch_add(qr_batch *batch, const qr_kv_sequence *kv, const int32_t *tokens, int64_t first, int64_t n,
                  int32_t slot, int32_t adapter, int64_t n_logits) {
    const int64_t row = batch->n_tokens;
    memcpy(batch->ids + row, tokens + first, (size_t)n * sizeof *batch->ids);
    for (int64_t i = 0; i < n; i++) {
        batch->position[row + i] = (int32_t)(first + i);
        batch->rope_slot[row + i] = slot;
        batch->row_adapter[row + i] = adapter;
    }
    for (int32_t g = 0; g < batch->n_kv_groups; g++) { add_pages(batch, kv, g, first, n); }
    for (int64_t i = n - n_logits; i < n; i++) { batch->rows[batch->n_rows++] = (int32_t)(row + i); }
    batch->has_adapters |= adapter >= 0;
    batch->first_position[batch->n_sequences] = (int32_t)first;
    batch->state_slot[batch->n_sequences] = slot;
    batch->q_start[batch->n_sequences] = (int32_t)row;
    batch->n_tokens += n;
    batch->q_start[++batch->n_sequences] = (int32_t)batch->n_tokens;
}

void qr_batch_pad(qr_batch *batch) {
    const qr_batch_sizes *sizes = &batch->sizes;
    for (int64_t i = batch->n_tokens; i < sizes->n_tokens; i++) {
        batch->ids[i] = batch->position[i] = batch->rope_slot[i] = batch->first_position[i] = 0;
        batch->row_adapter[i] = batch->state_slot[i] = -1;
        batch->rows[i] = (int32_t)i;
        batch->samples[i] = (qr_sample_params){.row = (int32_t)i};
        batch->q_start[i + 1] = (int32_t)(i + 1);
        for (int32_t g = 0; g < batch->n_kv_groups; g++) {
            const int64_t at = g * sizes->n_sequences + i;
            batch->token_page[at] = -1;
            memset(batch->block_table + at * sizes->table_stride, 0, (size_t)sizes->table_stride * sizeof(int32_t));
        }
    }
    batch->n_tokens = batch->n_sequences = batch->n_rows = batch->n_samples = sizes->n_tokens;
}
