/* llama.cpp's architectures among our families, and the names of their tensors there and in transformers. */
#ifndef QR_LOADERS_SOURCE_GGUF_NAMES_H
#define QR_LOADERS_SOURCE_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "loaders/files/gguf.h"

enum { QR_GGUF_NAME_BYTES = 128, QR_GGUF_MOST_EXPERTS = 4096 };

/* What makes the shares of a token's experts. */
typedef enum qr_gguf_router {
    QR_GGUF_SOFTMAX,
    QR_GGUF_SIGMOID,     /* whether the file says so or not */
    QR_GGUF_SAYS_SIGMOID /* and the file has to say so */
} qr_gguf_router;

/* Whether they add up to 1. */
typedef enum qr_gguf_shares { QR_GGUF_SHARES_AS_THEY_ARE, QR_GGUF_SHARES_OF_ONE, QR_GGUF_SHARES_SAID } qr_gguf_shares;

/* Of the experts of an architecture: what config.json calls their counts and sizes; NULL: it has no such key. */
typedef struct qr_gguf_experts {
    const char *count, *per_token, *size;
    const char *shared_size;  /* of the expert that every token goes to */
    const char *shared_count; /* or how many others it is as large as */
    const char *n_dense;      /* layers that come first */
    const char *step;         /* every so many of the others has experts */
    qr_gguf_router router;
    qr_gguf_shares shares;
    bool scales_shares; /* the file has a factor of them */
    bool joins_gate_up; /* gate and up are one tensor where files are written */
} qr_gguf_experts;

/* Which matrices may have biases: bits. */
enum { QR_GGUF_QKV_BIASES = 1, QR_GGUF_OUT_BIASES = 2, QR_GGUF_MLP_BIASES = 4, QR_GGUF_ALL_BIASES = 7 };

typedef struct qr_gguf_arch {
    const char *name;       /* "general.architecture" */
    const char *model_type; /* of config.json */
    const char *read_as;    /* the model_type that its files are read as, if not that */
    unsigned names;         /* which rows of the table of tensor names it has: bits */
    unsigned biases;
    const qr_gguf_experts *experts; /* NULL: it has none */
    bool pairs_rows;                /* rows of q and k lie in pairs that are rotated together */
    bool adds_one;                  /* the file has 1 + weight of the norms */
    bool is_gpt2;
    bool rotates_in_part; /* heads, by rope.dimension_count */
    bool has_multipliers; /* of embeddings, scores, what blocks add, and logits */
    bool has_dividers;    /* of rotary frequencies, for Llama 3's scaling; as those that pair rows have */
    bool has_own_sizes;   /* layers differ in the sizes of their MLPs */
    bool has_latents;     /* that queries, keys and values are made of */
    bool splits_latents;  /* keys and values are made by two matrices */
    bool has_windows;     /* of attention, in layers that the file lists */
    bool has_delta;       /* layers of the gated delta rule */
    bool turns_heads;     /* whose value heads lie by turns */
    bool has_convs;       /* layers of short convolutions: those without heads of keys */
    bool has_spaces;      /* layers of a state space: those without heads of keys */
    bool is_only_read;    /* families are written under another name */
} qr_gguf_arch;

/* The architecture that a family of ours is written as, with or without experts and layers of a state space; NULL:
 * none. */
const qr_gguf_arch *qr_gguf_arch_of_model_type(const char *model_type, bool has_experts, bool has_spaces);
qrun_status qr_gguf_read_arch(const qr_gguf *file, const qr_gguf_arch **arch, qr_error *err);

/* A value of the architecture: the key is "<arch>.<key>". As qr_gguf_get_int and its like; a list of equal numbers, one
 * for each layer, is one number. */
qrun_status qr_gguf_get_arch_int(const qr_gguf *file, const qr_gguf_arch *arch, const char *key, int64_t low,
                                 int64_t high, int64_t *value, qr_error *err);
qrun_status qr_gguf_get_arch_double(const qr_gguf *file, const qr_gguf_arch *arch, const char *key, double low,
                                    double high, double *value, qr_error *err);
/* Layers, without the *n_ahead after them that predict tokens further on. */
qrun_status qr_gguf_count_layers(const qr_gguf *file, const qr_gguf_arch *arch, int64_t *n_layers, int64_t *n_ahead,
                                 qr_error *err);

/* Of the gated delta rule; keys and values of a head have one size there. */
typedef struct qr_gguf_delta {
    int64_t n_key_heads, n_value_heads, head_dim, kernel;
} qr_gguf_delta;
/* QRUN_ERROR_INPUT for numbers that are missing or do not go together. */
qrun_status qr_gguf_read_delta(const qr_gguf *file, const qr_gguf_arch *arch, qr_gguf_delta *delta, qr_error *err);

typedef struct qr_gguf_key {
    char text[QR_GGUF_NAME_BYTES];
} qr_gguf_key;
qr_gguf_key qr_gguf_arch_key(const qr_gguf_arch *arch, const char *key);

/* The other name of a tensor, with its layer and suffix ("blk.3.attn_q.weight" is
 * "model.layers.3.self_attn.q_proj.weight"). False where the architecture has no tensor of that name. A file has one
 * tensor for the matrices of all experts of a layer; they have names of their own, with "%d" for the expert. */
bool qr_gguf_name_to_hf(const qr_gguf_arch *arch, const char *name, char hf[QR_GGUF_NAME_BYTES]);
bool qr_gguf_name_from_hf(const qr_gguf_arch *arch, const char *hf, char name[QR_GGUF_NAME_BYTES]);

/* Whether the rows of a tensor of that (transformers') name are paired: q_proj and k_proj of an arch that pairs_rows.
 */
bool qr_gguf_has_paired_rows(const qr_gguf_arch *arch, const char *hf);

#endif
