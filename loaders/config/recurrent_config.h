/* The layers of a model that carry a state along a sequence instead of attending to it: which they are, and their
 * sizes. */
#ifndef QR_LOADERS_CONFIG_RECURRENT_CONFIG_H
#define QR_LOADERS_CONFIG_RECURRENT_CONFIG_H

#include "base/status.h"
#include "loaders/config/block_config.h"
#include "loaders/files/json.h"

typedef enum qr_recurrent_kind {
    QR_RECURRENT_NONE,
    QR_RECURRENT_DELTA, /* the gated delta rule, after a convolution (Qwen3.5) */
    QR_RECURRENT_CONV,  /* a short convolution between two gates (LFM2) */
    QR_RECURRENT_SPACE  /* a selective state space, after a convolution (Mamba-2) */
} qr_recurrent_kind;

enum { QR_SPACE_PARTS = 5 };

typedef struct qr_recurrent_config {
    qr_recurrent_kind kind; /* of all of them */
    bool *layers;           /* [n_layers], owned; NULL: every layer is attention */
    int64_t n_key_heads;    /* of the delta rule, as the next; divides n_value_heads. Of a state space the groups that
                             * share B and C */
    int64_t n_value_heads;
    int64_t key_dim, value_dim; /* of a head; key_dim: of a state space, rows of a state */
    int64_t conv_kernel;        /* tokens that the convolution sees */
    bool has_conv_bias;
    bool doubles_beta;     /* OLMo Hybrid: of the delta rule, what is written to a state counts twice */
    double norm_eps;       /* OLMo Hybrid: of the delta rule's norm; 0: as the model's other norms have */
    bool decays_channels;  /* Kimi Linear: of the delta rule, every channel of a key has a decay of its own */
    int64_t gate_rank;     /* Kimi Linear: what decays and gates are made of; 0: of the layer's input itself */
    bool beside_attention; /* Falcon-H1: every layer attends and has a state */
    bool without_norm;     /* Falcon-H1: what a state space gives goes through its gate alone */
    /* Falcon-H1: of what the first matrix makes: the gate, x, B, C and steps. */
    double multipliers[QR_SPACE_PARTS];
} qr_recurrent_config;

/* What depends on the family, and on the rest of config.json. */
typedef struct qr_recurrent_context {
    const char *what; /* file name for messages */
    qr_recurrent_kind kind;
    int64_t conv_kernel; /* unless the file says */
    int64_t n_layers, hidden_size;
    int64_t n_heads;           /* of attention: of OLMo Hybrid's delta rule too, unless the file says; else 0 */
    bool by_channel;           /* of the delta rule: it is Kimi delta attention */
    bool has_windows;          /* layers that attend may have one */
    bool beside_attention;     /* as qr_recurrent_config has it */
    const char *attending_key; /* lists the layers that attend; NULL: other keys say which */
    const qr_block *blocks;    /* [n_layers]: where layers are blocks, these say which have a state; else NULL */
} qr_recurrent_context;

/* Which layers: attending_key; else layer_types; else of the delta rule full_attention_interval (4 unless given), or of
 * Kimi delta attention linear_attn_config, which has its sizes too; of convolutions full_attn_idxs, and of state spaces
 * layers_block_type, or the blocks. Their sizes: the linear_… keys, conv_L_cache, or the mamba_… keys (Nemotron-H has
 * some of other names, and Falcon-H1 more), with transformers' defaults. QRUN_ERROR_INPUT for counts that are
 * impossible, QRUN_ERROR_UNSUPPORTED for a model without a layer that attends, for convolutions between gates with
 * biases, and for state spaces whose projections have biases or whose steps are limited. Where no layer has a state
 * space, the kind is none, as it is where nothing is read. */
qrun_status qr_recurrent_config_read(const qr_json *json, const qr_recurrent_context *context,
                                     qr_recurrent_config *config, qr_error *err);
/* A list of n positive numbers; absent or null leaves them. */
qrun_status qr_config_read_factors(const qr_json *json, const char *key, int64_t n, double *factors, const char *what,
                                   qr_error *err);
void qr_recurrent_config_free(qr_recurrent_config *config); /* leaves it zeroed */

#endif
