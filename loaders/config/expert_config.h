/* The part of config.json about a mixture of experts: which layers have experts, how many, and how a token's are
 * chosen. */
#ifndef QR_LOADERS_CONFIG_EXPERT_CONFIG_H
#define QR_LOADERS_CONFIG_EXPERT_CONFIG_H

#include "base/status.h"
#include "loaders/config/block_config.h"
#include "loaders/files/json.h"

/* The most that a layer and a model may have: memory for their descriptions is taken before a tensor is seen. */
enum {
    QR_MOST_EXPERTS = 4096,
    QR_MOST_EXPERTS_OF_MODEL = 1 << 17,
    QR_MOST_EXPERTS_PER_TOKEN = 64,
    QR_MOST_EXPERT_GROUPS = 64
};

typedef struct qr_expert_config {
    int64_t n_experts; /* of a layer that has any; 0: no layer has */
    int64_t n_per_token;
    int64_t intermediate_size;
    int64_t shared_intermediate_size; /* of the expert that every token goes to; 0: there is none */
    bool normalizes;                  /* the shares of a token's experts add up to 1 */
    bool has_biases;                  /* the matrices of experts, and the router */
    bool beside_dense;                /* layers have a dense MLP too, whose output is added to the experts' */
    double gate_alpha, gate_limit;    /* their activation is the clamped gate of gpt-oss; 0: that of dense layers */
    bool has_choice_bias;             /* something is added to shares where experts are chosen */
    bool has_sigmoid_router;          /* shares are sigmoids of the router's logits, not a softmax; as the next */
    bool chooses_by_logits;           /* of sigmoids: experts are chosen by the logits themselves, plus the bias */
    double sum_eps;                   /* that their sum is larger by where they are normalised */
    double share_factor;              /* that they are multiplied by at last; 1 of most */
    int64_t n_groups, n_top_groups;   /* n_groups > 1: a token's experts are chosen from so many of so many groups, as
                                       * qr_router has it */
    bool balances_load;               /* training adds a loss that keeps the experts busy alike */
    bool *layer_has_experts;          /* [n_layers], owned; NULL: no layer has */
} qr_expert_config;

/* What a family does with its experts, and what the keys that config.json lacks are. */
typedef struct qr_expert_defaults {
    int64_t n_experts, n_per_token; /* 0: the family has no experts */
    int64_t intermediate_size;      /* 0: that of the model's dense layers, which it has none of */
    int64_t shared_intermediate_size;
    const char *count_key, *per_token_key; /* other names of the first two; NULL: there are none */
    const char *shared_key; /* the shared expert is as large as so many others, n_shared unless given; NULL: nothing
                             * gives it */
    const char *other_shared_key; /* another name of it; NULL: there is none */
    int64_t n_shared;             /* 0 without shared_key: another key has its size, or there is none */
    bool normalizes;              /* unless norm_topk_prob says otherwise */
    const char *normalizes_key;   /* another name of that; NULL: there is none */
    bool always_normalizes;       /* whatever config.json says */
    bool never_normalizes;
    bool has_biases;
    bool has_choice_bias; /* of a softmax */
    bool has_sigmoid_router;
    bool chooses_by_logits;
    bool asks_selection;   /* expert_selection_fn: the softmax of the logits chosen, or their sigmoids */
    const char *bias_key;  /* says whether scores have a bias where experts are chosen; NULL: they have */
    const char *dense_key; /* the number of dense layers that come first, all others having experts; n_dense unless
                            * given; NULL: other keys say which have */
    int64_t n_dense;
    int64_t n_groups, n_top_groups; /* unless n_group and topk_group say otherwise; 0: experts are in no groups */
    const char *groups_key;         /* another name of n_group; NULL: there is none */
    double sum_eps;
    double share_factor;           /* unless the next says otherwise; 0: 1 */
    const char *factor_key;        /* NULL: routed_scaling_factor */
    bool balances_load;            /* of a router of sigmoids: output_router_logits adds a loss, as with a softmax */
    bool lists_layers;             /* mlp_layer_types may say which layers have them */
    bool lists_frequency;          /* so may moe_layer_freq, with 0 or 1 for each */
    bool ranges_layers;            /* moe_layer_start_index, …_end_index and …_interval do */
    double gate_alpha, gate_limit; /* 0: the family has no such activation */
    const char *switch_key;        /* not NULL: only models with this key set have experts, beside dense MLPs */
    bool may_have_none;            /* a num_local_experts of 0: all layers are dense */
    const char *size_key;          /* of intermediate_size; NULL: moe_intermediate_size */
    bool by_blocks;                /* the model's blocks say which layers have them (block_config.h) */
    const char *shared_size_key;   /* of shared_intermediate_size; NULL: shared_expert_intermediate_size */
} qr_expert_defaults;

/* Reads it from the model's object; intermediate_size: that of dense layers; blocks: the model's, or NULL.
 * QRUN_ERROR_UNSUPPORTED for a router that works otherwise than the family's. */
qrun_status qr_expert_config_read(const qr_json *json, const char *what, const qr_expert_defaults *defaults,
                                  int64_t n_layers, int64_t intermediate_size, const qr_block *blocks,
                                  qr_expert_config *experts, qr_error *err);
void qr_expert_config_free(qr_expert_config *experts);

#endif
