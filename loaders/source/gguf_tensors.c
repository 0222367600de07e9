/* The tensors of a GGUF file under the names of transformers. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/files/suffix.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/gguf_order.h"

/* They are a part of config.json. */
static bool is_rotary(qr_gguf_text name) {
    return qr_gguf_text_is(name, "rope_freqs.weight") || qr_gguf_text_is(name, "rope_factors_long.weight") ||
           qr_gguf_text_is(name, "rope_factors_short.weight");
}

/* What orders rows, of architectures that have any in another order. */
static qrun_status read_heads(const qr_gguf *file, const qr_gguf_arch *arch, qr_gguf_heads *heads, qr_error *err) {
    int64_t hidden = 0, n_heads = 0;
    *heads = (qr_gguf_heads){0};
    if (arch->has_delta) {
        qr_gguf_delta delta;
        QR_RETURN_IF_ERROR(qr_gguf_read_delta(file, arch, &delta, err));
        heads->n_key_heads = delta.n_key_heads;
        heads->n_value_heads = delta.n_value_heads;
        heads->key_dim = heads->value_dim = delta.head_dim;
    }
    if (!arch->pairs_rows) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "embedding_length", 1, 1 << 20, &hidden, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_arch_int(file, arch, "attention.head_count", 1, 1 << 12, &n_heads, err));
    if (n_heads > 0) { heads->head_dim = hidden / n_heads; }
    return qr_gguf_get_arch_int(file, arch, "attention.key_length", 1, 1 << 12, &heads->head_dim, err);
}

typedef struct tensor_name {
    char text[QR_GGUF_NAME_BYTES];
} tensor_name;

static tensor_name own_name(const qr_gguf_tensor *tensor) {
    tensor_name name;
    const size_t n = tensor->name.n < sizeof name.text ? tensor->name.n : sizeof name.text - 1;
    memcpy(name.text, tensor->name.bytes, n);
    name.text[n] = '\0';
    return name;
}

static qrun_status translate(const qr_gguf *file, const qr_gguf_arch *arch, const qr_gguf_tensor *tensor,
                             char name[QR_GGUF_NAME_BYTES], qr_error *err) {
    const tensor_name own = own_name(tensor);
    if (qr_gguf_name_to_hf(arch, own.text, name)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: tensor %s is none of those that a %s model has",
                   qr_gguf_path(file), own.text, arch->name);
}

/* ---- Experts ----------------------------------------------------------------------------------------------------- */

enum { MOST_EXPERT_MATRICES = 3 << 17 }; /* of all layers: what a config may ask for */

/* Gate before up in one matrix of each expert. */
static bool is_gate_and_up(const char *name) { return strstr(name, ".gate_up_proj.") != NULL; }

/* 1 for a tensor that is not of experts. */
static int64_t count_matrices(const qr_gguf_arch *arch, const qr_gguf_tensor *tensor) {
    char name[QR_GGUF_NAME_BYTES];
    const tensor_name own = own_name(tensor);
    if (!qr_gguf_name_to_hf(arch, own.text, name)) { return 1; }
    const bool is_stack = strstr(name, "%d") != NULL;
    const int64_t n_parts = is_stack && is_gate_and_up(name) ? 2 : 1;
    if (!is_stack && qr_gguf_is_joined(name)) { return 2; }
    return is_stack && tensor->n_dims == 3 ? n_parts * qr_min(tensor->dims[0], QR_GGUF_MOST_EXPERTS) : 1;
}

/* The name of expert e's matrix, by a pattern with %d for the expert. */
static qrun_status name_expert(const char *pattern, int64_t e, const char *part, char name[QR_GGUF_NAME_BYTES],
                               qr_error *err) {
    const char *number = strstr(pattern, "%d"), *end = number + 2, *both = strstr(end, "gate_up_proj");
    const int n_end = both != NULL ? (int)(both - end) : (int)strlen(end);
    const int n = snprintf(name, QR_GGUF_NAME_BYTES, "%.*s%lld%.*s%s%s", (int)(number - pattern), pattern, (long long)e,
                           n_end, end, both != NULL ? part : "", both != NULL ? both + strlen("gate_up_proj") : "");
    return n < QR_GGUF_NAME_BYTES ? QRUN_OK : qr_fail(err, QRUN_ERROR_INTERNAL, "%s: is too long a name", pattern);
}

/* A tensor [E, rows, cols] as E matrices with names of their own, or 2 E where gate and up are in one; name has %d for
 * the expert. Adds them at *n. */
static qrun_status use_experts(const qr_gguf *file, const qr_gguf_tensor *from, const char *name,
                               char (*names)[QR_GGUF_NAME_BYTES], qr_safetensors_tensor *tensors, size_t *n,
                               qr_error *err) {
    static const char *const parts[] = {"gate_proj", "up_proj"};
    const int64_t n_parts = is_gate_and_up(name) ? 2 : 1;
    if (from->n_dims != 3 || from->dims[0] < 1 || from->dims[0] > QR_GGUF_MOST_EXPERTS ||
        from->dims[1] % n_parts != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor %s is no stack of 1 to %d matrices", qr_gguf_path(file),
                       own_name(from).text, QR_GGUF_MOST_EXPERTS);
    }
    const size_t n_bytes = from->n_bytes / (size_t)(from->dims[0] * n_parts); /* rows are whole blocks */
    for (int64_t i = 0; i < from->dims[0] * n_parts; i++, ++*n) {
        QR_RETURN_IF_ERROR(name_expert(name, i / n_parts, parts[i % n_parts], names[*n], err));
        tensors[*n] = (qr_safetensors_tensor){.name = names[*n],
                                              .dtype = from->dtype,
                                              .n_dims = 2,
                                              .dims = {from->dims[1] / n_parts, from->dims[2]},
                                              .data = from->data + (size_t)i * n_bytes,
                                              .n_bytes = n_bytes};
    }
    return QRUN_OK;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

/* Whether `n` is what the order's heads take, and no more. */
static bool fits_order(const qr_row_order *order, int64_t n) {
    if (order->head_dim != 0) { return order->head_dim > 0 && order->head_dim % 2 == 0 && n % order->head_dim == 0; }
    return order->n_key_heads == 0 || n == order->first + order->n_key_heads * order->heads_per_key * order->head_len;
}

/* Of a state space: vectors are matrices there. */
static bool is_space_vector(const char *gguf) {
    return qr_ends_with(gguf, ".ssm_a") || qr_ends_with(gguf, ".ssm_d") || qr_ends_with(gguf, ".ssm_norm.weight");
}

static qrun_status use_tensor(const qr_gguf *file, const qr_gguf_arch *arch, const qr_gguf_tensor *from,
                              const qr_gguf_heads *heads, char name[QR_GGUF_NAME_BYTES], qr_safetensors_tensor *tensor,
                              qr_error *err) {
    const tensor_name own = own_name(from);
    const bool is_conv = qr_ends_with(own.text, "conv1d.weight") || qr_ends_with(own.text, "shortconv.conv.weight");
    *tensor = (qr_safetensors_tensor){
        .name = name, .dtype = from->dtype, .n_dims = from->n_dims, .data = from->data, .n_bytes = from->n_bytes};
    for (int i = 0; i < from->n_dims; i++) { tensor->dims[i] = from->dims[i]; }
    if (from->n_dims == 2 && is_space_vector(own.text)) {
        tensor->n_dims = 1, tensor->dims[0] = from->dims[0] * from->dims[1];
    }
    if (from->n_dims == 1 && strstr(name, "shared_expert_gate.") != NULL) { /* a matrix of one row */
        tensor->n_dims = 2, tensor->dims[0] = 1, tensor->dims[1] = from->dims[0];
    }
    tensor->is_negative_exp = qr_ends_with(name, ".A_log");
    tensor->rows = qr_gguf_row_order(heads, arch, name);
    tensor->columns = qr_gguf_column_order(heads, arch, name);
    const int64_t n_rows = from->n_dims > 0 ? from->dims[0] : 1, n_cols = from->n_dims > 1 ? from->dims[1] : 1;
    if (!fits_order(&tensor->rows, n_rows) || !fits_order(&tensor->columns, n_cols)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: tensor %s is of size [%lld, %lld], which the model's heads do not give", qr_gguf_path(file),
                       own.text, (long long)n_rows, (long long)n_cols);
    }
    if (is_conv && from->n_dims == 2) { /* [C, 1, kernel], read by elements */
        tensor->n_dims = 3, tensor->dims[1] = 1, tensor->dims[2] = n_cols;
        tensor->rows.first *= n_cols;
        tensor->rows.head_len *= n_cols;
    }
    return QRUN_OK;
}

/* Two matrices in one, as a tensor each whose rows lie apart. Adds them at *n. */
static qrun_status use_joined(const qr_gguf *file, const qr_gguf_tensor *from, const qr_gguf_heads *heads,
                              const char *name, char (*names)[QR_GGUF_NAME_BYTES], qr_safetensors_tensor *tensors,
                              size_t *n, qr_error *err) {
    if (from->n_dims != 2 || from->dims[0] != 2 * heads->n_value_heads) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor %s is no matrix of %lld rows, which the model's heads give",
                       qr_gguf_path(file), own_name(from).text, (long long)(2 * heads->n_value_heads));
    }
    for (int i = 0; i < 2; i++, ++*n) {
        tensors[*n] = (qr_safetensors_tensor){.name = names[*n],
                                              .dtype = from->dtype,
                                              .n_dims = 2,
                                              .dims = {heads->n_value_heads, from->dims[1]},
                                              .data = from->data,
                                              .n_bytes = from->n_bytes};
        qr_gguf_part_of_joined(heads, name, i, names[*n], &tensors[*n].rows);
    }
    return QRUN_OK;
}

/* Values of a latent, and the keys that are a tensor of their own: one matrix of transformers. */
static qrun_status use_latent(const qr_gguf *file, const qr_gguf_tensor *values, char name[QR_GGUF_NAME_BYTES],
                              qr_safetensors_tensor *tensor, qr_error *err) {
    char own[QR_GGUF_NAME_BYTES];
    (void)snprintf(own, sizeof own, "%s", own_name(values).text);
    char *letter = strstr(own, ".attn_v_b.");
    if (letter != NULL) { letter[6] = 'k'; }
    const qr_gguf_tensor *keys = qr_gguf_find_tensor(file, own);
    const bool are_three = keys != NULL && keys->n_dims == 3 && values->n_dims == 3;
    if (!are_three || keys->dims[0] != values->dims[0] || keys->dims[1] != values->dims[2]) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensors %s and %s are not keys and values of one latent",
                       qr_gguf_path(file), own, own_name(values).text);
    }
    char *module = strstr(name, ".v_b_proj.");
    memmove(module + 2, module + 1, strlen(module + 1) + 1); /* there is room: a name of GGUF is shorter */
    module[1] = 'k';
    *tensor = (qr_safetensors_tensor){
        .name = name,
        .dtype = values->dtype,
        .n_dims = 2,
        .dims = {values->dims[0] * (keys->dims[2] + values->dims[1]), values->dims[2]},
        .data = values->data,
        .n_bytes = values->n_bytes,
        .keys = {.data = keys->data, .dtype = keys->dtype, .plain_dim = keys->dims[2], .value_dim = values->dims[1]}};
    return QRUN_OK;
}

/* A layer that predicts tokens further on: files have them after the others, and text needs none. */
static bool is_left_out(qr_gguf_text name, int64_t n_layers, int64_t n_ahead) {
    static const char block[] = "blk.";
    int64_t layer = 0;
    if (name.n < sizeof block || memcmp(name.bytes, block, sizeof block - 1) != 0) { return false; }
    for (size_t i = sizeof block - 1; i < name.n && name.bytes[i] >= '0' && name.bytes[i] <= '9' && layer < 1 << 20;
         i++) {
        layer = 10 * layer + (name.bytes[i] - '0');
    }
    return layer >= n_layers && layer - n_layers < n_ahead;
}

qrun_status qr_gguf_open_tensors(const char *path, qr_safetensors **tensors, qr_error *err) {
    qr_gguf *file;
    const qr_gguf_arch *arch;
    qr_gguf_heads heads;
    int64_t n_layers = 0, n_ahead = 0;
    qr_safetensors_tensor *list = NULL;
    char(*names)[QR_GGUF_NAME_BYTES] = NULL;
    size_t n = 0;
    *tensors = NULL;
    QR_RETURN_IF_ERROR(qr_gguf_open(path, &file, err));
    const size_t n_own = qr_gguf_tensor_count(file);
    size_t n_most = 0;
    qrun_status status = QRUN_OK;
    QR_TRY(qr_gguf_read_arch(file, &arch, err));
    QR_TRY(read_heads(file, arch, &heads, err));
    QR_TRY(qr_gguf_count_layers(file, arch, &n_layers, &n_ahead, err));
    for (size_t i = 0; i < n_own; i++) { n_most += (size_t)count_matrices(arch, qr_gguf_get_tensor(file, i)); }
    if (n_most > n_own + MOST_EXPERT_MATRICES) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: has %zu matrices of experts; at most %d are read", path,
                       n_most - n_own, MOST_EXPERT_MATRICES));
    }
    list = qr_alloc_array(n_most, sizeof *list);
    names = qr_alloc_array(n_most, sizeof *names);
    if (list == NULL || names == NULL) { QR_TRY(qr_fail_memory(err, path, n_most * sizeof *list)); }
    for (size_t i = 0; i < n_own; i++) {
        const qr_gguf_tensor *from = qr_gguf_get_tensor(file, i);
        char name[QR_GGUF_NAME_BYTES];
        if (is_rotary(from->name) || is_left_out(from->name, n_layers, n_ahead)) { continue; }
        QR_TRY(translate(file, arch, from, name, err));
        if (strstr(name, "%d") != NULL) {
            QR_TRY(use_experts(file, from, name, names, list, &n, err));
            continue;
        }
        if (strstr(name, ".k_b_proj.") != NULL) { continue; }
        if (strstr(name, ".v_b_proj.") != NULL) {
            memcpy(names[n], name, sizeof name);
            QR_TRY(use_latent(file, from, names[n], &list[n], err));
            n++;
            continue;
        }
        if (qr_gguf_is_joined(name)) {
            QR_TRY(use_joined(file, from, &heads, name, names, list, &n, err));
            continue;
        }
        memcpy(names[n], name, sizeof name);
        QR_TRY(use_tensor(file, arch, from, &heads, names[n], &list[n], err));
        n++;
    }
    qr_file_map map = qr_gguf_take_map(file);
    status = qr_safetensors_from_map(path, &map, list, n, (char *)names, tensors, err);
    list = NULL;
    names = NULL;
out:
    qr_free(list);
    qr_free(names);
    qr_gguf_close(file);
    return status;
}
