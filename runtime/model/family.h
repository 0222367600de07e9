/* Model families as data: which tensors a family has, what they are called, and the few switches that the forward pass
 * reads. Adding a family is a row in family.c plus a golden test. */
#ifndef QR_RUNTIME_MODEL_FAMILY_H
#define QR_RUNTIME_MODEL_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "loaders/config/model_config.h"

/* Every module with weights that a model may have: first those it has once, then those of each layer. */
typedef enum qr_tensor_role {
    QR_ROLE_EMBEDDING,
    QR_ROLE_POSITION_EMBEDDING,
    QR_ROLE_INPUTS_EMBEDDING, /* of inputs to the layers, as the next */
    QR_ROLE_INPUTS_NORM,
    QR_ROLE_FINAL_NORM,
    QR_ROLE_HEAD,
    QR_ROLE_ATTN_NORM, /* the first role of a layer */
    QR_ROLE_POST_ATTN_NORM,
    QR_ROLE_MLP_NORM,
    QR_ROLE_POST_MLP_NORM,
    QR_ROLE_POST_INPUT_NORM,
    QR_ROLE_DENSE_OUT_NORM, /* where experts stand beside a dense MLP: after that, before them and after them */
    QR_ROLE_EXPERT_NORM,
    QR_ROLE_EXPERT_OUT_NORM,
    QR_ROLE_Q_NORM,
    QR_ROLE_K_NORM,
    QR_ROLE_Q_DOWN_NORM, /* of latents: qr_latent_layers */
    QR_ROLE_KV_DOWN_NORM,
    QR_ROLE_RESIDUAL_NORM,   /* of the low-rank product beside attention */
    QR_ROLE_STREAM_NORM,     /* of residual streams (layer_streams.h), as the next: before the router */
    QR_ROLE_STREAM_ROUTER,   /* [N, D] */
    QR_ROLE_STREAM_PREDICT,  /* [N², N] */
    QR_ROLE_STREAM_CORRECT,  /* [N, N] */
    QR_ROLE_STREAM_SCALE,    /* [D]: of the stream that makes the layer's input */
    QR_ROLE_LAYER_SCALAR,    /* [1]: what a layer puts out is multiplied by it */
    QR_ROLE_RECURRENT_NORM,  /* of the gated delta rule, or a state space */
    QR_ROLE_CONV,            /* of any layer with a state */
    QR_ROLE_RECURRENT_A_LOG, /* of the gated delta rule, or a state space, as the next */
    QR_ROLE_RECURRENT_DT_BIAS,
    QR_ROLE_CONV_BIAS,     /* of a state space, as the next */
    QR_ROLE_SKIP,          /* what goes past the state: "D" */
    QR_ROLE_SINKS,         /* scores without a value, one for each head */
    QR_ROLE_XIELU_ALPHA_P, /* [1]: of an MLP's activation, as the next; the last two are constants */
    QR_ROLE_XIELU_ALPHA_N,
    QR_ROLE_XIELU_BETA,
    QR_ROLE_XIELU_EPS,
    QR_ROLE_ROUTER_NORM,      /* the weight of the router's own norm */
    QR_ROLE_EXPERT_SCALE,     /* [E]: what experts' shares are multiplied by */
    QR_ROLE_CHOICE_BIAS,      /* [E]: what is added to scores where experts are chosen; it is not trained */
    QR_ROLE_EXPERT_GATE_BIAS, /* of all experts of a layer, as the next */
    QR_ROLE_EXPERT_UP_BIAS,
    QR_ROLE_EXPERT_OUT_BIAS, /* the last vector of a layer */
    QR_ROLE_Q,               /* the first linear layer */
    QR_ROLE_K,
    QR_ROLE_V,
    QR_ROLE_QKV,
    QR_ROLE_Q_DOWN, /* latent attention: in place of q, k and v, or of k and v */
    QR_ROLE_Q_UP,
    QR_ROLE_KV_DOWN,
    QR_ROLE_KV_UP,
    QR_ROLE_ATTN_GATE, /* of attention's output, where q_proj does not make it */
    QR_ROLE_ATTN_OUT,
    QR_ROLE_DELTA_Q, /* the gated delta rule, in place of attention: q, k and v apart, */
    QR_ROLE_DELTA_K,
    QR_ROLE_DELTA_V,
    QR_ROLE_DELTA_QKV, /* or in one */
    QR_ROLE_DELTA_Z,
    QR_ROLE_DELTA_B,
    QR_ROLE_DELTA_A,
    QR_ROLE_DELTA_QKVZ, /* or all of them in two, head by head */
    QR_ROLE_DELTA_BA,
    QR_ROLE_DELTA_Z_DOWN, /* what z and a are made of, where that is not the layer's input */
    QR_ROLE_DELTA_A_DOWN,
    QR_ROLE_CONV_IN,       /* a convolution between two gates, in place of attention */
    QR_ROLE_SPACE_IN,      /* a state space, in place of attention: its gate, x, B, C and steps in one */
    QR_ROLE_RECURRENT_OUT, /* of any of these */
    QR_ROLE_INPUTS,        /* the layers' inputs, of all in one; a model has it once, with layer 0 */
    QR_ROLE_INPUT_GATE,
    QR_ROLE_INPUT_OUT,
    QR_ROLE_STREAM_IN_1, /* what makes streams of the embeddings; a model has these once, as the next */
    QR_ROLE_STREAM_IN_2,
    QR_ROLE_STREAM_IN_3,
    QR_ROLE_STREAM_OUT_1, /* what streams go through before they become one row again */
    QR_ROLE_STREAM_OUT_2,
    QR_ROLE_STREAM_OUT_3,
    QR_ROLE_RESIDUAL_DOWN, /* the low-rank product beside attention */
    QR_ROLE_RESIDUAL_UP,
    QR_ROLE_GATE,
    QR_ROLE_UP,
    QR_ROLE_GATE_UP,
    QR_ROLE_MLP_OUT,
    QR_ROLE_SHARED_GATE, /* of layers with experts, instead of an MLP: the expert that every token goes to */
    QR_ROLE_SHARED_UP,
    QR_ROLE_SHARED_GATE_UP, /* or both in one */
    QR_ROLE_SHARED_OUT,
    QR_ROLE_SHARED_SHARE, /* what that expert counts for */
    QR_ROLE_ROUTER,       /* the last linear layer */
    QR_ROLE_EXPERT_GATE,  /* matrices of each expert; where it has no gate, this is the one before the activation */
    QR_ROLE_EXPERT_UP,
    QR_ROLE_EXPERT_OUT,
    QR_ROLE_COUNT
} qr_tensor_role;

static inline bool qr_role_is_expert_bias(qr_tensor_role role) {
    return role >= QR_ROLE_EXPERT_GATE_BIAS && role <= QR_ROLE_EXPERT_OUT_BIAS;
}

/* Whether it is a vector that only the ops of experts read. */
static inline bool qr_role_is_expert_vector(qr_tensor_role role) {
    return role == QR_ROLE_EXPERT_SCALE || role == QR_ROLE_CHOICE_BIAS || qr_role_is_expert_bias(role);
}

static inline bool qr_role_is_xielu(qr_tensor_role role) {
    return role >= QR_ROLE_XIELU_ALPHA_P && role <= QR_ROLE_XIELU_EPS;
}

/* As transformers begins with them: softplus of the alphas is 0.8 and 0.3. */
static inline float qr_xielu_initial(qr_tensor_role role) {
    static const float values[] = {0.20338232F, -1.0502257F, 0.5F, -1e-6F};
    return values[role - QR_ROLE_XIELU_ALPHA_P];
}

/* Whether files have it without dimensions. */
static inline bool qr_role_is_constant(qr_tensor_role role) {
    return role == QR_ROLE_XIELU_BETA || role == QR_ROLE_XIELU_EPS;
}

/* Whether it is a buffer to torch, which is never trained. */
static inline bool qr_role_is_buffer(qr_tensor_role role) {
    return role == QR_ROLE_LAYER_SCALAR || role == QR_ROLE_CHOICE_BIAS || qr_role_is_constant(role);
}

/* Whether it is of what carries a state along. */
static inline bool qr_role_is_of_recurrence(qr_tensor_role role) {
    return (role >= QR_ROLE_RECURRENT_NORM && role <= QR_ROLE_SKIP) ||
           (role >= QR_ROLE_DELTA_Q && role <= QR_ROLE_RECURRENT_OUT);
}

/* Whether it makes residual streams of the embeddings, or goes before they become one row again; and which stream it is
 * of, from 1 on. */
static inline bool qr_role_is_stream_end(qr_tensor_role role) {
    return role >= QR_ROLE_STREAM_IN_1 && role <= QR_ROLE_STREAM_OUT_3;
}
static inline int64_t qr_role_stream(qr_tensor_role role) {
    return 1 + role - (role < QR_ROLE_STREAM_OUT_1 ? QR_ROLE_STREAM_IN_1 : QR_ROLE_STREAM_OUT_1);
}

/* Whether it is a small matrix that is held as a vector of F32: it says how residual streams are mixed. */
static inline bool qr_role_is_stream_mix(qr_tensor_role role) {
    return role >= QR_ROLE_STREAM_ROUTER && role <= QR_ROLE_STREAM_CORRECT;
}

/* Whether a model has the module once. */
static inline bool qr_role_is_of_model(qr_tensor_role role) {
    return role < QR_ROLE_ATTN_NORM || role == QR_ROLE_INPUTS || qr_role_is_stream_end(role);
}

static inline bool qr_role_is_expert(qr_tensor_role role) {
    return role >= QR_ROLE_EXPERT_GATE && role <= QR_ROLE_EXPERT_OUT;
}

/* Whether matrices of this role are held in the format of linear layers. What weighs experts is small, and which ones
 * are chosen depends on its last bits: that keeps its type. */
static inline bool qr_role_is_quantised(qr_tensor_role role) {
    return role >= QR_ROLE_Q && role != QR_ROLE_ROUTER && role != QR_ROLE_SHARED_SHARE;
}

enum { QR_CONV_PARTS = 3 };

typedef struct qr_family {
    qr_model_family family;
    const char *name;
    /* Module names with %d for the layer, and another for the expert, without ".weight"; NULL where the family has no
     * such tensor. A checkpoint may put one of `prefixes` before all of them. */
    const char *modules[QR_ROLE_COUNT];
    /* Tensors that a checkpoint may have in their place, each with the matrices of all experts: [E, 2 M, D], gate
     * before up, and [E, D, M]. */
    const char *stacked_gate_up, *stacked_out;
    /* Those are [E, D, 2 M], columns of gate and up in turn, and [E, M, D] (gpt-oss). Packed ones are [E, 2 M, D], rows
     * in turn, and [E, D, M]. The vectors of biases are in turn too. */
    bool stacks_in_turn;
    bool stacks_may_be_wide; /* [E, D, 2 M] and [E, M, D], gate before up, where the sizes say so */
    /* The end of a module's name where files have another, and that. The name is transformers' in memory, and so that
     * of adapters. */
    struct {
        const char *in_memory, *in_files;
    } renamed[12];
    bool writes_stacks;      /* how published folders have experts, for one that is made from no other */
    const char *prefixes[4]; /* NULL-terminated; besides "" (qr_family_prefix) */
    bool has_frame;          /* adapters have prefixes[0] before all names, whatever the checkpoint has */
    /* What files may have in place of QR_ROLE_CONV, one after the other: its channels of q, k and v; NULL: nothing. */
    const char *conv_parts[QR_CONV_PARTS];
    bool a_log_is_wide;        /* [1, 1, n_value_heads, 1] in files */
    bool norms_by_kind;        /* layers that attend have norms after their blocks alone, those with a state before */
    bool norms_experts_alone;  /* QR_ROLE_POST_MLP_NORM is of layers with experts; files have it of all */
    bool choice_bias_may_lack; /* files may be without QR_ROLE_CHOICE_BIAS: it is 0 then */
    bool choice_bias_is_row;   /* [1, E] in files, not [E] */
    bool layer_norm;           /* LayerNorm instead of RMSNorm */
    bool norm_biases;          /* norms have biases */
    bool is_parallel;          /* a layer's MLP reads the same x as what is beside it: qr_layer.is_parallel */
    bool qkv_by_head;          /* QR_ROLE_QKV makes q, k and v of one head after the other: [H, 3, HD] */
    bool norms_rotated;        /* q_norm and k_norm come after rotation */
    bool norms_all_heads;      /* q_norm and k_norm are over all heads of a token together */
    bool transposed;           /* linear weights are stored [in, out] (Conv1D) */
    /* PEFT refuses adapters on QR_ROLE_RECURRENT_OUT. */
    bool recurrent_out_without_lora;
} qr_family;

/* How many matrices an expert has before its last: gate and up, or of the families whose experts have no gate one. */
static inline int64_t qr_family_experts_in(const qr_family *family) {
    return family->modules[QR_ROLE_EXPERT_UP] != NULL ? 2 : 1;
}

/* The description of a family; never NULL for a family that model_config accepts. */
const qr_family *qr_family_find(qr_model_family family);

/* The description of the same family with the other names that checkpoints have; NULL: there are none. */
const qr_family *qr_family_renamed(const qr_family *family);

/* The i-th prefix that a checkpoint or an adapter may put before all module names: "" first; NULL after the last. */
const char *qr_family_prefix(const qr_family *family, size_t i);

/* Whether this layer of the model has the module. A layer with a state has others than one with attention,
 * and a layer with experts has others than one with an MLP. Roles that a model has once are not asked for. */
bool qr_family_layer_has(const qr_family *family, const qr_model_config *config, int64_t layer, qr_tensor_role role);

/* Whether files store the module's vector under its own name, without ".weight": torch has it as a parameter, not as a
 * module. */
static inline bool qr_role_is_bare(qr_tensor_role role) {
    return role == QR_ROLE_LAYER_SCALAR || role == QR_ROLE_STREAM_SCALE ||
           (role >= QR_ROLE_RECURRENT_A_LOG && role <= QR_ROLE_EXPERT_OUT_BIAS);
}

/* Whether the linear layer of this role carries a bias. */
bool qr_family_has_bias(const qr_model_config *config, qr_tensor_role role);

/* Writes "<prefix><module>" into name. layer is ignored by roles that a model has once. */
void qr_family_module_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer, char *name,
                           size_t name_bytes);

/* Changes the name of a module, or of a stack of experts, to the one that files have. */
void qr_family_name_in_files(const qr_family *family, char *name, size_t name_bytes);

/* What follows the layer's number in the name of a layer's module: "mlp.gate". */
const char *qr_family_name_in_layer(const char *module);

/* The same of a name with %d, or with one for the layer and one for the expert. */
void qr_family_write_name(const char *prefix, const char *module, int64_t layer, int64_t expert, char *name,
                          size_t name_bytes);

/* The name of a module's tensor in files: "<prefix><module>.<suffix>", or the module's alone where that is a vector of
 * its own (A_log). Returns its length, which is that of the whole name also where it does not fit. */
size_t qr_family_tensor_name(const qr_family *family, const char *prefix, qr_tensor_role role, int64_t layer,
                             const char *suffix, char *name, size_t name_bytes);

#endif
