#include "loaders/source/gguf_order.h"

#include <stdio.h>
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

/* ---- One matrix or two ------------------------------------------------------------------------------------------- */

/* The name with another in the place of the module's. */
static void rename_module(const char *name, const char *module, const char *other, char renamed[QR_GGUF_NAME_BYTES]) {
    const char *at = strstr(name, module);
    (void)snprintf(renamed, QR_GGUF_NAME_BYTES, "%.*s%s%s", (int)(at - name), name, other, at + strlen(module));
}

/* Queries, keys, values and gates of every key head together; a file has the first three of all heads, and the gates.
 */
static void split_delta(const qr_gguf_heads *heads, const char *name, qr_gguf_part parts[2]) {
    static const char module[] = ".in_proj_qkvz.";
    const int64_t key = heads->key_dim, n_keys = heads->n_key_heads * key;
    const int64_t value = heads->n_value_heads / heads->n_key_heads * heads->value_dim;
    const int64_t n_values = heads->n_key_heads * value, stride = 2 * (key + value);
    rename_module(name, module, ".in_proj_qkv.", parts[0].name);
    rename_module(name, module, ".in_proj_z.", parts[1].name);
    parts[0].groups[0] = (qr_row_groups){.len = key, .stride = stride, .n_rows = n_keys};
    parts[0].groups[1] = (qr_row_groups){.first = key, .len = key, .stride = stride, .n_rows = n_keys};
    parts[0].groups[2] = (qr_row_groups){.first = 2 * key, .len = value, .stride = stride, .n_rows = n_values};
    parts[1].groups[0] = (qr_row_groups){.first = 2 * key + value, .len = value, .stride = stride, .n_rows = n_values};
}

/* Keys and values of every head; a file has the keys of all heads, turned, and the values. */
static void split_latent(const qr_gguf_heads *heads, const char *name, qr_gguf_part parts[2]) {
    static const char module[] = ".kv_b_proj.";
    const int64_t n = heads->n_latent_heads, key = heads->plain_dim, value = heads->latent_value_dim;
    rename_module(name, module, ".k_b_proj.", parts[0].name);
    rename_module(name, module, ".v_b_proj.", parts[1].name);
    parts[0].groups[0] = (qr_row_groups){.len = key, .stride = key + value, .n_rows = n * key};
    parts[1].groups[0] = (qr_row_groups){.first = key, .len = value, .stride = key + value, .n_rows = n * value};
    parts[0].n_heads = parts[1].n_heads = n;
    parts[0].is_turned = true;
}

int qr_gguf_split(const qr_gguf_heads *heads, const qr_gguf_arch *arch, const char *name, int64_t rows,
                  qr_gguf_part parts[2]) {
    static const char halves[] = ".input_linear.";
    memset(parts, 0, 2 * sizeof *parts);
    if (is_of(name, "in_proj_qkvz.")) {
        split_delta(heads, name, parts);
        return 2;
    }
    if (arch->splits_latents && strstr(name, ".self_attn.kv_b_proj.") != NULL) {
        split_latent(heads, name, parts);
        return 2;
    }
    if (strstr(name, ".shared_mlp.input_linear.") == NULL) { return 0; }
    for (int i = 0; i < 2; i++) {
        rename_module(name, halves, i == 0 ? ".gate_proj." : ".up_proj.", parts[i].name);
        parts[i].groups[0] =
            (qr_row_groups){.first = i * (rows / 2), .len = rows / 2, .stride = rows / 2, .n_rows = rows / 2};
    }
    return 2;
}

bool qr_gguf_is_joined(const char *name) { return is_of(name, "in_proj_ba."); }

void qr_gguf_part_of_joined(const qr_gguf_heads *heads, const char *name, int part, char part_name[QR_GGUF_NAME_BYTES],
                            qr_row_order *rows) {
    const int64_t n = heads->n_value_heads / heads->n_key_heads;
    rename_module(name, ".in_proj_ba.", part == 0 ? ".in_proj_b." : ".in_proj_a.", part_name);
    *rows = (qr_row_order){.groups = {.first = part * n, .len = n, .stride = 2 * n, .n_rows = heads->n_value_heads}};
}
