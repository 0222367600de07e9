/* What those who write config.json from the metadata of a GGUF file share (gguf_config.c, gguf_layers.c,
 * gguf_experts.c, gguf_rope.c). */
#ifndef QR_LOADERS_SOURCE_GGUF_READER_H
#define QR_LOADERS_SOURCE_GGUF_READER_H

#include <string.h>

#include "loaders/files/json_put.h"
#include "loaders/source/gguf_names.h"

enum { QR_GGUF_MOST_LAYERS = 1 << 12, QR_GGUF_MOST_HEADS = 1 << 12 };

typedef struct qr_gguf_reader {
    const qr_gguf *file;
    const qr_gguf_arch *arch;
    qr_buffer *out;
    qr_error *err;
    int64_t n_layers, hidden, n_heads, head_dim, window; /* window 0: none */
    double theta;
} qr_gguf_reader;

/* A value of the architecture; one that is absent leaves *value unchanged. */
static inline qrun_status qr_read_int(const qr_gguf_reader *r, const char *key, int64_t high, int64_t *value) {
    return qr_gguf_get_arch_int(r->file, r->arch, key, 0, high, value, r->err);
}

static inline qrun_status qr_read_double(const qr_gguf_reader *r, const char *key, double *value) {
    return qr_gguf_get_arch_double(r->file, r->arch, key, 0, 1e15, value, r->err);
}

static inline bool qr_reads(const qr_gguf_reader *r, const char *key) {
    return qr_gguf_has(r->file, qr_gguf_arch_key(r->arch, key).text);
}

static inline bool qr_reads_arch(const qr_gguf_reader *r, const char *name) { return strcmp(r->arch->name, name) == 0; }

/* One that a file must have, from 1 on. */
qrun_status qr_require_int(const qr_gguf_reader *r, const char *key, int64_t high, int64_t *value);

/* A number for each layer, [n_layers], the caller's to qr_free: a list, or the one number that all layers have, `usual`
 * where the file has none. */
qrun_status qr_read_layers(const qr_gguf_reader *r, const char *key, int64_t usual, int64_t **values);

/* The tensor blk.<layer>.<name>; NULL: there is none. */
const qr_gguf_tensor *qr_find_in_layer(const qr_gguf_reader *r, int64_t layer, const char *name);
bool qr_any_layer_has(const qr_gguf_reader *r, const char *name);

/* Members of config.json: about layers that differ in their heads or kinds (gguf_layers.c), about experts, and about
 * rotary positions. */
qrun_status qr_put_gemma4(const qr_gguf_reader *r, const int64_t *mlp);
/* Heads that are made of latents. Sets r->head_dim to what rotates of one. */
qrun_status qr_put_latents(qr_gguf_reader *r);
/* Heads of keys as a list, though all layers have as many. */
qrun_status qr_put_kv_heads_of_list(const qr_gguf_reader *r);
/* Granite's hybrids; and Nemotron-H, whose layers have an MLP where mlp is not 0. Both put heads of keys too. */
qrun_status qr_put_granite_hybrid(const qr_gguf_reader *r);
qrun_status qr_put_nemotron_h(const qr_gguf_reader *r, const int64_t *mlp);
qrun_status qr_put_experts(const qr_gguf_reader *r);
qrun_status qr_put_one_rope(const qr_gguf_reader *r);
/* Of two kinds of layers; local_theta: unless the file says another. */
qrun_status qr_put_two_ropes(const qr_gguf_reader *r, double local_theta);
qrun_status qr_put_gemma4_ropes(const qr_gguf_reader *r);

#endif
