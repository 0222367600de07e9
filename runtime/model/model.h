/* A model as the forward pass sees it: its shape, its family, and its weights in the backend's memory. One struct for
 * every family; what differs between families is data (family.h), not code.
 *
 * A model is described first: formats and shapes of all weights, without data. Then qr_model_place_weights walks over
 * the description, once to count the bytes of the plan and once to give every weight its address.
 *
 * Shapes: D hidden size, H query heads, KV key/value heads, HD head size, M MLP size, V vocabulary, L layers, E experts
 * of a layer. */
#ifndef QR_RUNTIME_MODEL_MODEL_H
#define QR_RUNTIME_MODEL_MODEL_H

#include <pthread.h>

#include "loaders/config/generation_config.h"
#include "loaders/config/model_config.h"
#include "loaders/files/stored_weight.h"
#include "runtime/engine/context.h"
#include "runtime/engine/expert_way.h"
#include "runtime/engine/plan.h"
#include "runtime/model/family.h"
#include "runtime/model/row_share.h"
#include "runtime/model/tokenizer.h"

/* n_ranks 0: the model is whole. */
typedef struct qr_split {
    int32_t n_ranks, rank;
} qr_split;

/* A linear layer. `slot` is its number within the model: its row in the adapters' table of factors. */
typedef struct qr_linear_layer {
    qr_weight weight; /* [out, in] */
    bool has_bias;
    const float *bias; /* device, [out], or NULL */
    int32_t slot;
    int64_t out_offset; /* first column of its output in the buffer shared with its siblings: [q | k | v], [gate | up];
                         * or in all columns that ranks make together: those of attn_out and mlp_out */
    qr_row_share share;
} qr_linear_layer;

typedef struct qr_norm {
    const float *weight; /* device, [dim] */
    const float *bias;   /* device, [dim]; NULL: none, as of RMSNorm */
    int64_t dim;         /* 0: the family has no such norm */
    float eps, offset;   /* it multiplies by weight + offset */
    bool is_layer_norm;  /* not RMSNorm */
    qr_row_share share;  /* of a vector that is split among ranks; dim is then this rank's */
} qr_norm;

enum { QR_MAX_ATTN_IN = 6, QR_MAX_MLP_IN = 2, QR_XIELU_NUMBERS = 4, QR_DELTA_LATENTS = 2 };

/* What a layer with a state has besides its matrices. Vectors, as norms are. */
typedef struct qr_recurrent_vectors {
    qr_norm conv;           /* [channels, kernel] */
    qr_norm norm;           /* [value_dim]; of a state space [values] */
    qr_norm a_log, dt_bias; /* [n_value_heads]; of these two kinds alone */
    qr_norm conv_bias;      /* [channels]; of a state space, as the next */
    qr_norm skip;           /* [n_value_heads] */
} qr_recurrent_vectors;

/* Latent attention (qr_latent_config, layer_latent.h): what queries are made of, and keys and values, and how. */
typedef struct qr_latent_layers {
    qr_linear_layer q_down;  /* [query_rank, D]; rows 0: q alone makes queries, attn_in[0] */
    qr_linear_layer q_up;    /* [H·HD, query_rank] */
    qr_linear_layer kv_down; /* [kv_rank + rotated_dim, D]: the latent, and what of keys rotates */
    qr_linear_layer kv_up; /* [H·(plain_dim + value_dim), kv_rank]: of each head what of its key stays, and its value */
    qr_norm q_norm, kv_norm; /* [query_rank], [kv_rank] */
} qr_latent_layers;

/* How a layer mixes residual streams (layer_streams.h). Vectors, as norms are. */
typedef struct qr_stream_vectors {
    qr_norm norm;    /* [D] */
    qr_norm router;  /* [N, D] */
    qr_norm predict; /* [N², N] */
    qr_norm correct; /* [N, N] */
    qr_norm scale;   /* [D] */
} qr_stream_vectors;

typedef struct qr_layer {
    qr_norm attn_norm, post_attn_norm, mlp_norm, post_mlp_norm; /* [D] */
    qr_norm q_norm, k_norm;                                     /* [HD], or of all heads together: [H·HD], [KV·HD] */
    qr_norm v_norm;                                             /* [HD]; its weight is the model's ones, as that of
                                                                 * q_norm and k_norm of families without names of
                                                                 * theirs */
    qr_norm post_input_norm;    /* [D], of layers with inputs of their own, as the next (layer_inputs.h) */
    qr_linear_layer input_gate; /* [P, D] */
    qr_linear_layer input_out;  /* [D, P] */
    qr_norm residual_norm;      /* [D]: of the low-rank product of what attention reads, beside attention, as the next;
                                 * dim 0: there is none */
    qr_linear_layer residual_down, residual_up; /* [R, D], [D, R] */
    qr_stream_vectors streams;
    bool gate_is_sparse; /* of its MLP's gate what is far above the mean is left: gaussian_topk */
    float gate_quantile;
    qr_norm scalar; /* [1]: what the layer puts out is multiplied by it */
    /* [D], where experts stand beside a dense MLP: after that, before them, after them, and of the router. dim 0: they
     * stand alone, or beside the expert that every token goes to. */
    qr_norm dense_out_norm, expert_norm, expert_out_norm, router_norm;
    qr_norm expert_scale;                  /* [E]: of their shares */
    qr_norm choice_bias;                   /* [E]: of their scores, where they are chosen; dim 0: none */
    int64_t n_heads, n_kv_heads, head_dim; /* H, KV and HD of this layer, of this rank */
    int64_t mlp;                           /* M of its dense MLP */
    bool values_are_keys;                  /* v is what k_proj makes, before norm and rotation */
    bool is_read_by_others;                /* its K/V, by later layers */
    bool reads_shared_kv; /* of another layer, whose kv_group and kv_index these are: it has neither k nor v */
    qr_linear_layer attn_in[QR_MAX_ATTN_IN]; /* q, k, v; or one fused: columns [H·HD | KV·HD | KV·HD]. A q with gates,
                                              * [H, 2·HD] rows, has columns of its own. Of a layer with a
                                              * state: qr_recurrent_shape.columns */
    qr_latent_layers latent;
    qr_linear_layer delta_down[QR_DELTA_LATENTS]; /* [gate_rank, D]: what z and a are made of (layer_delta.h) */
    qr_linear_layer attn_gate;                    /* [H·HD, D] or [H, D]: gates of attention's output; rows 0: none */
    qr_linear_layer attn_out; /* [D, H·HD], with shorter values [D, H·value_dim], or of a layer with a state
                               * [D, values] */
    bool mixes, has_mlp;      /* has what is above and below, or only one of both */
    bool is_parallel;         /* its MLP reads the x that attention reads, and x grows by both; without an mlp_norm it
                               * reads attn_norm of x too */
    bool is_recurrent;        /* carries a state along (layer_recurrent.h), and does not attend */
    struct qr_layer *beside;  /* what carries a state along beside this layer's attention: both read attn_norm of x, and
                               * x grows by both. Of it alone: attn_in, attn_out, out_scale, recurrent and state_index.
                               * NULL: there is none */
    float out_scale, mlp_scale; /* of what attention or what is in its place adds to x, and the MLP */
    qr_recurrent_vectors recurrent;
    qr_norm xielu[QR_XIELU_NUMBERS]; /* [1]: alpha_p, alpha_n, beta, eps of its MLP's activation; as the next, vectors
                                      * of a norm's form. dim 0: it has another */
    qr_norm sinks;                   /* [H] of attention */
    qr_norm expert_gate_bias, expert_up_bias, expert_out_bias; /* [E, M], [E, M], [E, D] */
    int32_t state_index;                                       /* its number among the layers with a state */
    qr_linear_layer mlp_in[QR_MAX_MLP_IN]; /* gate, up; or one fused: columns [M | M]; or one ungated; of a layer
                                            * with experts the one that every token goes to, where there is one */
    qr_linear_layer mlp_out;               /* [D, M] */
    qr_linear_layer shared_share;          /* [1, D]: of that expert; rows 0: there is none */
    qr_linear_layer router;                /* [E, D] */
    qr_weight *expert_gate, *expert_up;    /* [E] matrices [M, D], M that of experts; NULL: the layer has none. Without
                                            * a gate the first is the one before the activation, the second NULL */
    qr_weight *expert_out;                 /* [E] matrices [D, M] */
    qr_row_share expert_share[3];          /* of each expert's gate, up and last matrix */
    int32_t expert_slot; /* among linear layers' slots: LoRA on gate and up of all experts; the next: on expert_out */
    int32_t window;      /* tokens a position sees; 0: all */
    int32_t key_rope_kind, query_rope_kind; /* which rotary tables; QR_ROPE_NONE: none */
    int32_t kv_group;                       /* layers of a group share block tables */
    int32_t kv_index;                       /* position within the group's pages */
    size_t staged_bytes, host_offset;       /* of its matrices together, where they are not held (layer_stream.h) */
    size_t experts_offset;                  /* of its experts, where they are in host memory (host_experts.h) */
} qr_layer;

static inline qr_row_share *qr_expert_share(qr_layer *layer, qr_tensor_role role) {
    return &layer->expert_share[role - QR_ROLE_EXPERT_GATE];
}

/* Layers whose K/V share pages, all with the same window and heads. Layers with a state and those that read another's
 * K/V have none. The largest group decides the size of pages. */
typedef struct qr_kv_group {
    int32_t window;
    int32_t n_layers;
    int64_t n_kv_heads, head_dim; /* of what pages hold */
    bool keys_are_values;         /* pages hold latents: one head, the latent and keys' shared part */
} qr_kv_group;

static inline qr_kv_layout qr_kv_group_layout(const qr_kv_group *group, qr_kv_format format) {
    return (qr_kv_layout){.format = format,
                          .n_kv_heads = (int32_t)group->n_kv_heads,
                          .head_dim = (int32_t)group->head_dim,
                          .keys_are_values = group->keys_are_values};
}

/* What makes the inputs of every token to each layer, P elements each (layer_inputs.h); all empty where there are
 * none. */
typedef struct qr_input_weights {
    qr_weight embedding;    /* [V, L · P] */
    qr_linear_layer linear; /* [L · P, D] */
    qr_norm norm;           /* [P] */
} qr_input_weights;

/* What makes residual streams of the embeddings, and what they go through in the end; of each stream but the first. */
typedef struct qr_stream_ends {
    qr_linear_layer in[QR_MAX_STREAMS - 1], out[QR_MAX_STREAMS - 1]; /* [D, D] */
} qr_stream_ends;

/* Of layers that carry a state along; with a split, of this rank's heads or channels. */
typedef struct qr_recurrent_shape {
    qr_recurrent_kind kind;
    qr_act_fn activation; /* after the convolution of a state space */
    int32_t n_layers;     /* 0: the model has none */
    int64_t kernel;       /* of the convolution that either kind has */
    int64_t channels; /* that it goes over. Of the delta rule: q, k and v side by side; of a state space x, B and C */
    int64_t values;   /* what the last matrix reads. Of the delta rule and state spaces: n_value_heads · value_dim */
    int64_t columns;  /* what the first ones make. Of the delta rule: channels, z, b and a side by side; of a
                       * convolution: its gates B and C and its x, as many of each; of a state space: its gate, channels
                       * and steps */
    int64_t n_key_heads, n_value_heads, key_dim, value_dim; /* as qr_recurrent_config; by_key_head: of the delta rule */
    bool by_key_head; /* the projections make them for one key head, and its value heads, after the other */
    bool doubles_beta, decays_channels; /* of the delta rule: qr_gated_delta_args */
    int64_t gate_rank; /* of the delta rule: columns of what z and a are made of; 0: of the layer's input. Then z's
                        * gates are sigmoids */
    float norm_eps;    /* of the norm that it has */
    bool has_norm;     /* of a state space: what it gives is normed after its gate */
    bool is_scaled;    /* of a state space: its gate, x, B, C and steps have factors */
    float scales[QR_SPACE_PARTS];
} qr_recurrent_shape;

/* Decays of a value head of the delta rule. */
static inline int64_t qr_recurrent_decays(const qr_recurrent_shape *shape) {
    return shape->decays_channels ? shape->key_dim : 1;
}

/* Of config.json, without a split; all 0 where no layer has a state. */
qr_recurrent_shape qr_recurrent_shape_of(const qr_model_config *config);

typedef struct qr_model_shape {
    int64_t hidden, n_layers, n_heads, mlp, vocab; /* n_heads, n_kv_heads, widest_qkv: of this rank, with a split */
    int64_t n_kv_heads, head_dim; /* of most layers: those with a window, where they differ; n_heads: the most of any */
    int64_t value_dim;       /* of a value's head, where it is another than of keys; 0: they are alike in every layer */
    int64_t widest_attended; /* H · HD, or values of a layer with a state, the largest of all layers and ranks */
    int64_t widest_qkv;      /* (H + 2 KV) · HD, the largest of all layers */
    int64_t n_experts, experts_per_token, expert_mlp; /* of layers with experts, all M; 0: there are none */
    int64_t shared_mlp;                               /* of the expert that every token goes to */
    int64_t context_tokens;
    float norm_eps, norm_offset;       /* of most norms */
    float attn_scale;                  /* multiplies q · k */
    float attn_softcap, logit_softcap; /* 0: none */
    float embedding_scale;
    float gate_scale;   /* of the MLP's gate, before its activation */
    float router_scale; /* of the logits of experts */
    float logit_scale;  /* of logits, before their soft-cap */
    qr_act_fn activation;
    bool tied_head;         /* the output head is the embedding's matrix */
    int64_t rope_half[2];   /* pairs rotated per head, per rope kind; 0: no rotary positions */
    int32_t n_rope_kinds;   /* 0, 1 or 2 */
    bool rope_interleaved;  /* qr_rope_args */
    float temperature_beta; /* of the tables of queries: qr_rope_table_args */
    int32_t temperature_tokens;
    int32_t n_streams;            /* N: residual streams; 0: one, and layers do not mix any */
    bool scales_stream;           /* what makes a layer's input is scaled first */
    int64_t residual_rank;        /* R: of the low-rank product beside attention */
    int64_t layer_input;          /* P: elements of a token's input to each layer; 0: there is none */
    float input_scale;            /* of the rows of their table */
    float gate_alpha, gate_limit; /* of experts, qr_clamped_gate_args; 0: `activation` */
    bool attn_gated;              /* attention's output is multiplied by the sigmoid of gates that q_proj makes */
    bool attn_gate_apart;         /* a matrix of their own makes them */
    bool attn_gate_by_head;       /* and one for each head, not for each of its elements */
    bool attn_gate_by_softplus;   /* not by the sigmoid */
    qr_latent_config latent;
    qr_recurrent_shape recurrent;
} qr_model_shape;

/* Elements of a value's head in a layer. */
static inline int64_t qr_value_dim(const qr_model_shape *shape, const qr_layer *layer) {
    return shape->value_dim > 0 ? shape->value_dim : layer->head_dim;
}

/* What attention of a layer puts out for a token, and its last matrix reads. */
static inline int64_t qr_attended_columns(const qr_model_shape *shape, const qr_layer *layer) {
    return layer->n_heads * qr_value_dim(shape, layer);
}

/* Experts that are not held on the device (host_experts.h). */
typedef struct qr_host_experts {
    bool used;
    bool computed;        /* on the processor, in its layout; else fetched to the device, in the device's */
    unsigned char *host;  /* those of the layers one after the other; NULL: of a plan alone */
    unsigned char *stage; /* device; where they are computed there is none */
    size_t host_bytes, stage_bytes;
    size_t matrix_bytes;             /* of host_bytes; their vectors follow where they are computed */
    char note[QR_EXPERT_NOTE_BYTES]; /* which of both, and why; empty where they are on the device */
} qr_host_experts;

enum { QR_MAX_ADAPTERS = 64 /* the bits of dora_adapters */, QR_MAX_LORA_RANK = 512 };

struct qrun_adapter;

struct qrun_model {
    qrun_context *context;
    char *folder;
    char *hub_name;       /* "org/name@commit" where the folder is in the cache of the hub; else NULL */
    const char *prefix;   /* before all module names of this checkpoint */
    char *left_out;       /* parts of the folder that text needs none of, "model.visual, mtp"; NULL: none */
    bool prequantized;    /* matrices are held as the folder stores them: bitsandbytes quantised it, or MXFP4 is kept */
    bool is_mixed;        /* some of its matrices are stored in INT8, though others are in NF4 */
    bool is_partly_plain; /* some of its matrices are stored unquantised */
    bool random_weights;  /* no weights were read */
    bool trainable;       /* all matrices are in the compute type */
    qr_model_config config;
    qr_generation_config generation;
    const qr_family *family;
    qr_model_shape shape;
    qr_dtype act_dtype;             /* of activations that enter linear layers: BF16, F16 or F32 */
    qr_weight_format linear_format; /* of linear layers, unless the folder stores them otherwise */

    qr_weight embedding;          /* [V, D] */
    qr_weight position_embedding; /* [context, D]; rows 0 where the family has none */
    qr_input_weights inputs;
    qr_stream_ends stream_ends;
    qr_weight head; /* [V, D]; shares the embedding's data when tied */
    qr_row_share head_share;
    qr_split split;
    bool split_waits; /* on rank 0: the others wait to be told of a session */
    qr_norm final_norm;
    const float *ones;         /* device, [n_ones]: the weight of norms that have none */
    int64_t n_ones;            /* 0: all norms have weights */
    qr_norm embedding_norm;    /* [D], of the ones; dim 0: embeddings are not normed */
    qr_layer *layers;          /* [L], and where they have something beside their attention as many of that */
    qr_weight *expert_weights; /* [layers with experts][3][E]; the layers' tables point into it */
    int32_t n_slots;           /* linear layers, head excluded, and two for the experts of a layer */

    int32_t n_kv_groups;
    qr_kv_group *kv_groups;

    void *weight_memory; /* device; all of the above point into it */
    size_t weight_bytes;
    const char *block_type; /* of the file's blocks of quantised weights, as a GGUF has them; NULL: it has none */
    struct qr_layer_stream *stream; /* layers' matrices come through stages (layer_stream.h); NULL: all are held */
    unsigned char *stages;          /* device: n_stages of them */
    int32_t n_stages;               /* with a stream: 1 or 2, that layers take in turn */
    size_t held_bytes, stage_bytes; /* with a stream: of weight_bytes before the stages, and of each stage */
    struct qr_late_layers *late;    /* lent: layers that are written when they are used next; NULL: none are */
    qr_host_experts host_experts;
    void *table_memory; /* device: embedding and head after full training has added rows; or NULL */
    size_t table_bytes;
    int64_t n_parameters, n_quantized_parameters;
    uint64_t content_hash; /* identifies the weights: of names, shapes and samples of the folder's tensors; random: 0 */
    double load_seconds;

    qrun_tokenizer *tokenizer;                      /* NULL: the folder has none */
    struct qrun_adapter *adapters[QR_MAX_ADAPTERS]; /* NULL: free */
    const struct qrun_adapter *replaced_by;         /* the open adapter that replaces whole modules; NULL: none */
    qr_lora_factor *lora_table;     /* device, [n_slots][QR_MAX_ADAPTERS]; NULL until the first adapter */
    _Atomic uint64_t dora_adapters; /* bit i: adapters[i] is DoRA; read by sessions while others are opened */
    int32_t n_sessions;
    pthread_mutex_t lock; /* guards adapters and n_sessions */
};

/* The shape and family that a config describes; nothing is allocated. */
qrun_status qr_model_shape_from_config(const qr_model_config *config, qr_dtype act_dtype, qr_model_shape *shape,
                                       const qr_family **family, qr_error *err);

/* The fields of qrun_model_params that would hold this model's weights in fewer bytes, as messages name them:
 * "`quant=nf4-dq`, `quant_head_int8`, `quant_embedding_int8`"; empty where there are none. */
typedef struct qr_options_text {
    char text[64];
} qr_options_text;
qr_options_text qr_model_smaller_options(const qrun_model *model);

/* How the linear layers are held, as `quant` is called: "nf4-dq", "mixed". */
const char *qr_model_quant_name(const qrun_model *model);

struct qr_model_options {
    qr_weight_format linear_format; /* of linear layers that are not stored quantised */
    qr_weight_format table_format;  /* of embedding and head where no file says so */
    bool head_int8, embedding_int8; /* of a head that is the embedding, either */
    bool trainable;                 /* tables in table_format, whatever the files store */
};

/* Whether the model has a head of its own although config.json says that it is the embedding (qr_model_settle_head). */
static inline bool qr_model_has_own_head(const qrun_model *model) {
    return model->config.tie_word_embeddings && !model->shape.tied_head;
}

/* Whether all that the layers keep of a sequence is in K/V pages, addressed by position: then tokens can be taken back
 * by overwriting them, and whole pages hold a prefix. Layers with a recurrent state can do neither. */
static inline bool qr_model_can_take_back(const qrun_model *model) { return model->shape.recurrent.n_layers == 0; }

/* The format of a matrix in the compute type. */
qr_weight_format qr_model_compute_format(const qrun_model *model);

/* Fills layers, groups, slots, every weight's description (no data) and weight_bytes: what a plan needs. `source`, NULL
 * for random weights, says in which types the folder stores its tensors; every tensor of the model is looked up in it.
 * The model owns the tables; qr_model_free_tables frees them. */
qrun_status qr_model_describe(qrun_model *model, const struct qr_model_options *options, const qr_safetensors *source,
                              qr_error *err);
void qr_model_free_tables(qrun_model *model);

/* placement.c. Points every weight into `memory` (NULL: only counts), in a fixed order, and returns the bytes. With a
 * stream, the matrices of layers share stages after all others; experts in host memory share one. */
size_t qr_model_place_weights(qrun_model *model, void *memory);
/* Where the matrices of a layer are staged. */
static inline unsigned char *qr_model_stage(const qrun_model *model, int64_t l) {
    return model->stages + (size_t)(l % model->n_stages) * model->stage_bytes;
}

/* For the plan of a model that is only described: until `end` its weights have addresses in the planning backend. Does
 * nothing for a loaded model. `end` is fine after a begin that failed. */
qrun_status qr_model_plan_begin(qrun_model *model, qr_backend *planner, qr_error *err);
void qr_model_plan_end(qrun_model *model);

/* Whether layers have their blocks side by side: qr_layer.is_parallel. */
bool qr_model_is_parallel(const qrun_model *model);

/* What a norm of that role adds to its weights. */
float qr_model_norm_offset(const qrun_model *model, qr_tensor_role role);

/* Calls visit for every linear layer of the model (not the head), in slot order. */
typedef qrun_status (*qr_linear_visitor)(void *arg, qr_linear_layer *linear, int64_t layer, qr_tensor_role role,
                                         qr_error *err);
qrun_status qr_model_each_linear(qrun_model *model, qr_linear_visitor visit, void *arg, qr_error *err);

/* Calls visit for every matrix of every expert, expert by expert: a stack of matrices is read front to back. */
typedef qrun_status (*qr_expert_visitor)(void *arg, qr_weight *matrix, int64_t layer, qr_tensor_role role,
                                         int64_t expert, qr_error *err);
qrun_status qr_model_each_expert(qrun_model *model, qr_expert_visitor visit, void *arg, qr_error *err);

int64_t qr_model_expert_matrices(const qrun_model *model); /* how many those are */

/* Of all layers together: of the experts that a token goes to, and of the others, which it leaves idle. */
typedef struct qr_expert_counts {
    int64_t n_active_parameters, n_idle_parameters, idle_bytes;
} qr_expert_counts;
qr_expert_counts qr_model_count_experts(const qrun_model *model);

/* Host memory that weights take, where layers or experts are not held on the device. */
size_t qr_model_host_bytes(const qrun_model *model);

/* Adds `change` to n_sessions, under the lock; returns what it was before. */
int32_t qr_model_count_sessions(qrun_model *model, int32_t change);

#endif
