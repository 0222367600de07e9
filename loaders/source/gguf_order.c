#include "loaders/source/gguf_order.h"

#include <string.h>

static qr_row_order value_heads(const qr_gguf_heads *heads, int64_t first, int64_t head_len) {
    if (heads->n_value_heads == heads->n_key_heads) { return (qr_row_order){0}; }
    return (qr_row_order){.first = first,
                          .n_key_heads = heads->n_key_heads,
                          .heads_per_key = heads->n_value_heads / heads->n_key_heads,
                          .head_len = head_len};
}

static bool is_of(const char *name, const char *module) {
    const char *found = strstr(name, ".linear_attn.");
    return found != NULL && strncmp(found + strlen(".linear_attn."), module, strlen(module)) == 0;
}

qr_row_order qr_gguf_row_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name) {
    if (qr_gguf_has_paired_rows(arch, name)) { return (qr_row_order){.head_dim = heads->head_dim}; }
    if (!arch->turns_heads) { return (qr_row_order){0}; }
    if (is_of(name, "in_proj_qkv.") || is_of(name, "conv1d.")) {
        return value_heads(heads, 2 * heads->n_key_heads * heads->key_dim, heads->value_dim);
    }
    if (is_of(name, "in_proj_z.")) { return value_heads(heads, 0, heads->value_dim); }
    const bool is_by_head =
        is_of(name, "in_proj_b.") || is_of(name, "in_proj_a.") || is_of(name, "A_log") || is_of(name, "dt_bias");
    return is_by_head ? value_heads(heads, 0, 1) : (qr_row_order){0};
}

qr_row_order qr_gguf_column_order(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name) {
    if (!arch->turns_heads) { return (qr_row_order){0}; }
    return is_of(name, "out_proj.") ? value_heads(heads, 0, heads->value_dim) : (qr_row_order){0};
}
