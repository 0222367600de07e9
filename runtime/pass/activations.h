/* What training keeps of the forward pass and what it computes again: a recompute policy over layers.
 *
 * A layer has two blocks (attention, MLP). Each block's activations either are in buffers of the layer's own, from
 * the forward pass until its backward pass (kept), or are computed again from the block's input just before
 * (recomputed, in buffers shared with others). The input of a segment of layers is always kept. What is computed again
 * is computed by the same ops from the same input, so the gradient has the same bits under every policy. */
#ifndef QR_RUNTIME_PASS_ACTIVATIONS_H
#define QR_RUNTIME_PASS_ACTIVATIONS_H

#include "runtime/layers/layer.h"

typedef enum qr_recompute_kind {
    QR_RECOMPUTE_NONE,  /* keep everything */
    QR_RECOMPUTE_FULL,  /* keep each layer's input */
    QR_RECOMPUTE_EVERY, /* keep the input of every n-th layer */
    QR_RECOMPUTE_ATTN,  /* recompute attention blocks, keep MLPs */
    QR_RECOMPUTE_MLP,   /* recompute MLPs, keep attention blocks */
    QR_RECOMPUTE_AUTO   /* keep as many whole layers as the budget allows */
} qr_recompute_kind;

typedef struct qr_recompute_policy {
    qr_recompute_kind kind;
    int64_t n;         /* EVERY: layers of a segment; AUTO: layers kept whole, once it is settled */
    bool offload;      /* the inputs of segments that are computed again are held in host memory */
    int64_t tile_rows; /* FULL, and AUTO with n 0: rows that a layer has of all but attention at a time; 0: all */
} qr_recompute_policy;

/* "none", "full", "every:N", "attn", "mlp", "auto". */
qrun_status qr_recompute_policy_parse(const char *text, int64_t n_layers, qr_recompute_policy *policy, qr_error *err);

/* Buffers of one layer beyond those of qr_layer_buffers. */
typedef struct qr_kept_layer {
    float *x_in;       /* [T, D] input of the layer; of a segment's first layer it outlives the forward pass */
    float *streams_in; /* [T, N, D]: the same, where there are several residual streams; x_in is what the layer computes
                        * with then, and does not outlive it */
    float *x_out;      /* [T, D]: of several streams, what the layer has made of x_in; with tiles, those of one */
    float *x_mid; /* [T, D] between the blocks; with tiles, those of one. It may be x_in where there is one block, and
                   * is NULL where they are parallel */
    float *lse;   /* [T, H] */
    qr_layer_buffers buffers;
    bool attn_kept, mlp_kept; /* false: to be computed again */
} qr_kept_layer;

typedef struct qr_segment {
    int64_t first, n; /* layers */
    bool kept;        /* false: its layers are computed again from layers[first].x_in, unless they are untrained */
    bool untrained;   /* the backward pass ends above it: its layers take one set of buffers in turn */
    int stage;        /* offload: x_in is one of two stages, 0 or 1, that segments share; else −1 */
    float *x_host;    /* [T, D] in host memory, where x_in is kept meanwhile; NULL: it stays in its place, as it does of
                       * the last two segments too, which nobody takes the stages from */
} qr_segment;

typedef struct qr_activations {
    qr_kept_layer *layers; /* [L] */
    qr_segment *segments;
    int64_t n_segments;
    size_t bytes, host_bytes;
} qr_activations;

/* What is kept of a layer's input. */
static inline float *qr_kept_input(const qr_kept_layer *kept) {
    return kept->streams_in != NULL ? kept->streams_in : kept->x_in;
}

/* Whether every layer is computed again by itself, so that it may be cut into tiles of rows (tiles.c). */
bool qr_recompute_policy_takes_tiles(const qr_recompute_policy *policy);

/* Whether the policy computes whole segments again, so that there are inputs to hold in host memory. */
bool qr_recompute_policy_has_inputs(const qr_recompute_policy *policy);

/* Of T tokens, those that a tile has. */
int64_t qr_recompute_policy_rows(const qr_recompute_policy *policy, int64_t n_tokens);

/* Lays the buffers of T tokens out in `memory` and `host` (NULL: only counts bytes). Of layers before `first_trained`
 * nothing is kept. The plan and the layout are the same walk. The timeline of `names`, if it has one, learns what lies
 * where; NULL: none does. */
qrun_status qr_activations_lay_out(const qrun_model *model, const qr_recompute_policy *policy, int64_t first_trained,
                                   int64_t n_tokens, qr_backend *names, void *memory, void *host,
                                   qr_activations *activations, qr_error *err);
void qr_activations_free(qr_activations *activations);

#endif
