#include "runtime/folders/gguf_order.h"

#include <string.h>

#include "loaders/files/safetensors.h"

static qr_gguf_order value_heads(const qrun_model *model, int64_t first, int64_t head_len) {
    const qr_delta_shape *delta = &model->shape.delta;
    if (delta->n_value_heads == delta->n_key_heads) { return (qr_gguf_order){0}; }
    return (qr_gguf_order){.first = first,
                           .n_key_heads = delta->n_key_heads,
                           .heads_per_key = delta->n_value_heads / delta->n_key_heads,
                           .head_len = head_len};
}

static bool is_of(const char *name, const char *module) {
    const char *found = strstr(name, ".linear_attn.");
    return found != NULL && strncmp(found + strlen(".linear_attn."), module, strlen(module)) == 0;
}

qr_gguf_order qr_gguf_row_order(const qrun_model *model, const qr_gguf_arch *arch, const char *name) {
    const qr_delta_shape *delta = &model->shape.delta;
    if (qr_gguf_has_paired_rows(arch, name)) { return (qr_gguf_order){.head_dim = model->shape.head_dim}; }
    if (is_of(name, "in_proj_qkv.") || is_of(name, "conv1d.")) {
        return value_heads(model, 2 * delta->n_key_heads * delta->key_dim, delta->value_dim);
    }
    if (is_of(name, "in_proj_z.")) { return value_heads(model, 0, delta->value_dim); }
    const bool is_by_head =
        is_of(name, "in_proj_b.") || is_of(name, "in_proj_a.") || is_of(name, "A_log") || is_of(name, "dt_bias");
    return is_by_head ? value_heads(model, 0, 1) : (qr_gguf_order){0};
}

qr_gguf_order qr_gguf_column_order(const qrun_model *model, const char *name) {
    return is_of(name, "out_proj.") ? value_heads(model, 0, model->shape.delta.value_dim) : (qr_gguf_order){0};
}

int64_t qr_gguf_source_index(const qr_gguf_order *order, int64_t index) {
    if (order->head_dim > 0) { return qr_row_of_stored(order->head_dim, index); }
    if (order->n_key_heads == 0 || index < order->first) { return index; }
    const int64_t within = (index - order->first) % order->head_len, head = (index - order->first) / order->head_len;
    const int64_t key_head = head % order->n_key_heads, turn = head / order->n_key_heads;
    return order->first + (key_head * order->heads_per_key + turn) * order->head_len + within;
}
