/* What a key that config.json lacks is: the defaults of transformers' configuration classes, a row for each family. */
#ifndef QR_LOADERS_CONFIG_FAMILY_DEFAULTS_H
#define QR_LOADERS_CONFIG_FAMILY_DEFAULTS_H

#include "loaders/config/model_config.h"

/* Where a family keeps what all of them have. */
typedef struct qr_config_keys {
    const char *hidden_size, *intermediate_size, *n_layers, *n_heads, *max_positions, *norm_eps, *activation;
} qr_config_keys;

/* Which layers have a sliding window. */
typedef enum qr_window_rule {
    QR_WINDOW_NEVER,              /* the key is ignored */
    QR_WINDOW_ALL,                /* every layer, when sliding_window is set */
    QR_WINDOW_WHERE_USED,         /* use_sliding_window, every layer */
    QR_WINDOW_FROM_LAYER,         /* use_sliding_window, layers from max_window_layers on */
    QR_WINDOW_LATE,               /* layers from max_window_layers on */
    QR_WINDOW_EVERY_OTHER,        /* use_sliding_window, even layers before max_window_layers */
    QR_WINDOW_PATTERN,            /* every layer but each n-th */
    QR_WINDOW_PATTERN_FROM_FIRST, /* every layer but each n-th, beginning with the first, which has none */
    QR_WINDOW_PATTERN_BUT_FIRST,  /* every layer but the first and each n-th */
    QR_WINDOW_PATTERN_FROM_LAST,  /* every layer but each n-th, counted backward from the last, which has none */
    QR_WINDOW_UNROTATED,          /* use_sliding_window, layers without rotary positions */
    QR_WINDOW_FOURTHS,            /* layers 4, 8, 12 … counted from 0 */
    QR_WINDOW_LISTED,             /* those of layer_types alone */
    QR_WINDOW_ALL_UNLESS_LISTED   /* every layer, unless layer_types says otherwise */
} qr_window_rule;

/* 0 is none, or derived as the field says. */
typedef struct qr_family_defaults {
    const qr_config_keys *names;
    int64_t vocab_size, hidden_size, n_layers, n_heads, max_positions;
    int64_t intermediate_size; /* 0: four times hidden_size */
    bool may_list_mlps;        /* that may be a list, of each layer's */
    int64_t n_kv_heads;        /* 0: n_heads */
    int64_t head_dim;          /* 0: hidden_size / n_heads */
    int64_t value_dim;         /* unless v_head_dim says otherwise; 0: head_dim, whatever it says */
    double norm_eps;
    const char *activation;
    bool gelu_is_own; /* "gelu" means `activation`: published files say so of an approximation */
    bool tied;
    const char *tie_key;      /* says it as well as tie_word_embeddings; NULL: nothing does */
    bool qkv_bias;            /* unless attention_bias says otherwise */
    bool biases_are_fixed;    /* attention_bias is not asked for */
    bool o_has_no_bias;       /* whatever attention_bias says of the others */
    const char *o_bias_key;   /* says it of attention's output, which has none otherwise; NULL: as the others */
    bool asks_mlp_bias;       /* mlp_bias may give the MLP some */
    bool mlp_bias;            /* it has, unless that says otherwise */
    const char *qkv_bias_key; /* says that instead of attention_bias, and there are no others; NULL: it does not */
    const char *bias_key;     /* says it of every projection, of attention and MLP; NULL: other keys do */
    double theta;
    const char *theta_key; /* says it instead of rope_theta; NULL: it does not */
    bool has_no_rope;
    bool null_theta_is_no_rope; /* a rope_theta that is null says that there are no positions */
    double window_theta;        /* of layers with a window, which have rotary parameters of their own; 0: they do not */
    const char *window_theta_key; /* may say otherwise; NULL: nothing does */
    double proportional_part;     /* of a head, in layers without a window: the type "proportional", unless there are
                                   * rope_parameters; 0: there is no such type */
    bool su_is_longrope;          /* "su" is an older name of "longrope" */
    int64_t original_positions;   /* original_max_position_embeddings unless given; 0: none */
    double rotated_part;          /* of a head, unless partial_rotary_factor says otherwise; 0: all, whatever it says */
    const char *rotated_part_key; /* says that instead; NULL: it does not */
    bool interleaves_rope;        /* neighbours are a pair that rotates, not elements half a head apart */
    bool reverses_rope;           /* pairs rotate the other way around */
    bool has_rope_sections;       /* Qwen2-VL: rope of the type "mrope" */
    bool has_fixed_alpha;         /* Hunyuan: "dynamic" with an alpha scales the base by it, at any length */
    const char *rotated_key; /* the number of elements of a head that rotate, where partial_rotary_factor is not given;
                              * NULL: there is none */
    const char *interleave_key; /* may say otherwise; NULL: nothing does */
    int64_t bos, eos, pad;      /* −1: none */
    int32_t more_eos[2];        /* 0: none */
    qr_window_rule window;
    int64_t sliding_window, window_pattern;
    bool asks_window_pattern;       /* sliding_window_pattern may be another */
    const char *window_pattern_key; /* says it instead; NULL: it does not */
    bool needs_window;              /* a model without one is another, which is not read */
    int64_t first_window;           /* max_window_layers unless given; 0: 28 */
    bool rotates_in_windows;        /* layers without one do not rotate, where the model has windows */
    double attn_softcap, final_softcap;
    bool has_sinks;          /* attention's softmax is over a learned score of each head too */
    bool scales_queries;     /* by the logarithm of their position, as the rotary parameters say */
    bool needs_rope_scaling; /* a model without is another */
    bool has_multipliers;    /* of embeddings, blocks, scores and logits: Granite's four keys */
    int64_t n_layers_ahead;  /* num_nextn_predict_layers unless given; 0: the key is ignored */
    qr_latent_config latent;
    qr_expert_defaults experts;
    qr_recurrent_kind recurrent;       /* what layers that carry a state along are */
    bool state_beside_attention;       /* every layer attends and has a state */
    const char *attending_key;         /* lists the layers that attend, by number, in place of layer_types */
    int64_t conv_kernel;               /* of such layers */
    bool delta_has_heads_of_attention; /* as many, unless the file says; their size then follows from hidden_size */
    bool delta_by_channel;             /* Kimi delta attention: a decay of every channel, and other keys of its sizes */
} qr_family_defaults;

const qr_family_defaults *qr_family_defaults_of(qr_model_family family);

#endif
