/* The trainable tensors of a run: one arena of F32 values, one of gradients with the same layout, and the table of the
 * tensors in them. The gradients of layers may share one place, each until the backward pass reaches the next layer.
 * Or the values are in host memory, gradients leave for it through two such places, and the processor updates there.
 * Optimiser, update and checkpoint walk the table and do not ask what a tensor is for. It is filled by
 * lora_parameters.h and whole_parameters.h of training. */
#ifndef QR_RUNTIME_LAYERS_PARAMETERS_H
#define QR_RUNTIME_LAYERS_PARAMETERS_H

#include "runtime/layers/layer.h"
#include "runtime/model/modules.h"
#include "runtime/model/weight_override.h"

enum { QR_PARAMETER_ALIGNMENT = 16 }; /* in floats, of every tensor in the arenas */

typedef enum qr_parameter_kind {
    QR_PARAMETER_LORA_A,         /* [rank, in], of every expert where it is of experts: so the next */
    QR_PARAMETER_LORA_B,         /* [out, rank] */
    QR_PARAMETER_LORA_MAGNITUDE, /* DoRA's: [1, out] */
    QR_PARAMETER_MATRIX,         /* whole [out, in], or a table [rows, hidden] */
    QR_PARAMETER_NORM,           /* a norm's weight [1, n], or another vector of a layer */
    QR_PARAMETER_BIAS            /* of a linear layer or a norm, [1, n] */
} qr_parameter_kind;

typedef struct qr_parameter {
    qr_parameter_kind kind;
    qr_tensor_role role; /* of the module that it belongs to */
    int64_t layer;
    int64_t expert;     /* of a matrix of an expert; else 0 */
    int64_t rows, cols; /* a vector has one row, of all experts where it is of experts */
    int64_t offset;     /* floats, in the arena of values */
    int64_t gradient;   /* floats, in that of gradients: the same, unless layers share it */
} qr_parameter;

/* Tensors of the table that follow each other and are of one layer, or of none. A layer may have several sections:
 * norms, linear layers, experts. */
typedef struct qr_section {
    int64_t layer;
    int64_t begin;                     /* floats, in the arena of values */
    int64_t floats_before, all_floats; /* of the layer: in sections before this one, and in all. Of what belongs to
                                        * none, each section is by itself */
} qr_section;

/* LoRA on one linear layer, or on one of the matrices of all experts of a layer. */
typedef struct qr_lora_pair {
    const qr_linear_layer *linear; /* NULL: of experts (expert_adapters.h) */
    int64_t n_experts;             /* 1 of a linear layer: each has an A and a B */
    int64_t layer;
    qr_tensor_role role;
    int32_t slot;
    int64_t a_offset, b_offset; /* floats: A [rank, in], B [out, rank] */
    int64_t magnitude_offset;   /* DoRA: [out] */
    int64_t output_offset;      /* DoRA: of its [out] in norms and ratios */
    int64_t in, out;
} qr_lora_pair;

/* The LoRA of a run; zeroed: none. */
typedef struct qr_lora_layers {
    int32_t rank;
    float scale, dropout;
    qr_lora_pair *pairs; /* [n_pairs] in slot order */
    int64_t n_pairs;
    int64_t *pair_of_slot; /* [n_slots], −1: not adapted */
    qr_lora_factor *table; /* device, [n_slots]: what the lora op reads */
    size_t table_bytes;
    bool dora;
    bool some_layers;      /* the other layers have no LoRA, by the user's choice */
    int64_t n_outputs;     /* DoRA: of all pairs, each at a multiple of 16 */
    float *norms, *ratios; /* device, [n_outputs] each: ‖W + scale · B A‖ per row, and magnitude over it */
    /* The adapter that the run began from, where answers are compared with its: values and table of their own, and the
     * same norms and ratios, which each pass makes anew. */
    bool has_reference;
    float *reference_values;
    qr_lora_factor *reference_table;
} qr_lora_layers;

/* A tensor trained whole, and where the model keeps it. */
typedef struct qr_whole_tensor {
    int64_t parameter; /* in the table */
    qr_weight *matrix; /* NULL: a vector */
    const float **vector;
    qr_weight override;           /* of a matrix that is not written in place; of others only its desc */
    const float *original_vector; /* full: in the model, which receives the trained values at the end */
} qr_whole_tensor;

/* All of a run; zeroed: none. */
typedef struct qr_whole_modules {
    bool full;                /* every weight: matrices are trained in the model's own memory */
    qr_whole_tensor *tensors; /* [n] */
    int64_t n;
    size_t capacity;
    qr_weight_overrides overrides;
    void *override_memory; /* device: the matrices that are not written in place */
    size_t override_bytes;
    int64_t original_vocab; /* of the model, while its tables have rows for new tokens; 0: they have none */
    bool refreshed;         /* the matrices have been written from their masters */
} qr_whole_modules;

typedef struct qr_parameters {
    qrun_model *model;
    qr_backend *backend; /* the model's, or one that plans for it */
    qr_parameter *list;  /* [n] */
    int64_t n;
    size_t capacity;
    qr_section *sections; /* [n_sections] */
    int64_t n_sections;
    size_t section_capacity;
    int64_t n_floats;                   /* of the values; every tensor begins at a multiple of QR_PARAMETER_ALIGNMENT */
    int64_t n_gradient_floats;          /* of the gradients: as many, unless layers share places */
    bool shares_gradients;              /* layers do, from float shared_begin on */
    int64_t shared_begin, place_floats; /* place_floats: of each */
    int32_t n_places;                   /* layer l has place l mod n_places */
    /* Of trained weights alone: the values are in host memory, and this backend computes with them there; the model has
     * vectors too in memory of its own. NULL: they are on the device, like everything that the model reads. */
    qr_backend *processor;
    float *values, *gradients; /* device, [n_values], [n_gradient_floats]; NULL until they are made */
    void *codes;               /* values on their way to the model's matrices (whole_codes.h); host */
    /* Values in shards (ZeRO 3): this rank has those of its shard (shards.h), lent; NULL: all. read_values brings any
     * of them, of one section at a time, to host memory. */
    const struct qr_shards *shards;
    int64_t n_values; /* those that `values` has */
    qrun_status (*read_values)(void *user, int64_t first, int64_t n, float *values, qr_error *err);
    void *read_values_user;
    qr_lora_layers lora;
    qr_whole_modules whole;
} qr_parameters;

/* Appends a tensor, from {.model = model, .backend = its backend} on. *offset: its first float in both arenas. */
qrun_status qr_parameters_add(qr_parameters *parameters, qr_parameter parameter, int64_t *offset, qr_error *err);

/* Before they are created: gives the gradients of all layers one place, or several in turn. Those that belong to no
 * layer keep their own. */
void qr_parameters_share_gradients(qr_parameters *parameters, int32_t n_places);
/* Before they are created: values in host memory, gradients in two places. */
void qr_parameters_hold_on_host(qr_parameters *parameters, qr_backend *processor);
/* Before they are created: this rank has the values of its shard alone. Shards are lent. */
void qr_parameters_shard_values(qr_parameters *parameters, const struct qr_shards *shards);
/* Where a float of the arena is, of those that this rank has. */
float *qr_parameters_at(const qr_parameters *parameters, int64_t position);
/* The last tensor, or section, that begins at most there. */
int64_t qr_parameters_find(const qr_parameters *parameters, int64_t position);
int64_t qr_parameters_section(const qr_parameters *parameters, int64_t position);
static inline int64_t qr_parameters_section_end(const qr_parameters *parameters, int64_t section) {
    return section + 1 < parameters->n_sections ? parameters->sections[section + 1].begin : parameters->n_floats;
}
/* Between host memory and values [first, first + n), which this rank has and which follow each other there. */
qrun_status qr_parameters_read(const qr_parameters *parameters, int64_t first, int64_t n, float *values, qr_error *err);
qrun_status qr_parameters_write(const qr_parameters *parameters, int64_t first, int64_t n, const float *values,
                                qr_error *err);
/* Whether it is the gradient of a layer, and of which. */
int64_t qr_parameter_layer(const qr_parameter *parameter); /* −1: of none */

/* Floats of the arena of values whose gradients follow each other too. */
typedef struct qr_parameter_run {
    int64_t begin, end;
    int64_t gradient; /* of the float at `begin` */
} qr_parameter_run;
/* The next run of a layer's parameters (−1: of none) from tensor *i on, which moves on; false where none is left. The
 * tensors of a layer need not follow each other in the table. */
bool qr_parameters_next_run(const qr_parameters *parameters, int64_t layer, int64_t *i, qr_parameter_run *run);
/* What computes with values and their gradients in an update. */
static inline qr_backend *qr_parameters_updater(const qr_parameters *parameters) {
    return parameters->processor != NULL ? parameters->processor : parameters->backend;
}
/* The memory of everything that an update works on. */
static inline qr_memory_kind qr_parameters_memory(const qr_parameters *parameters) {
    return parameters->processor != NULL ? QR_MEMORY_HOST : QR_MEMORY_DEVICE;
}

/* Allocates both arenas, zeroed. */
qrun_status qr_parameters_create(qr_parameters *parameters, qr_error *err);
/* The model uses its own memory again. Fine for a zeroed one. */
void qr_parameters_destroy(qr_parameters *parameters);

/* The gradient of the value at `value`; NULL where that is not in the arena of values. */
float *qr_parameters_gradient(const qr_parameters *parameters, const float *value);

/* Floats of a pair's factors. */
static inline int64_t qr_lora_pair_a_floats(const qr_parameters *parameters, const qr_lora_pair *pair) {
    return pair->n_experts * parameters->lora.rank * pair->in;
}
static inline int64_t qr_lora_pair_b_floats(const qr_parameters *parameters, const qr_lora_pair *pair) {
    return pair->n_experts * parameters->lora.rank * pair->out;
}

size_t qr_parameters_bytes(const qr_parameters *parameters);      /* of all values */
size_t qr_parameters_held_bytes(const qr_parameters *parameters); /* of those that this rank has */
size_t qr_parameters_gradient_bytes(const qr_parameters *parameters);
size_t qr_parameters_codes_bytes(const qr_parameters *parameters);
size_t qr_lora_norms_bytes(const qr_parameters *parameters);     /* of DoRA's norms and ratios */
size_t qr_lora_reference_bytes(const qr_parameters *parameters); /* of the reference's values and table */
int64_t qr_parameters_count(const qr_parameters *parameters);    /* elements of the tensors, without padding */

/* ---- As files have them ------------------------------------------------------------------------------------------ */

/* Whether files hold a trained matrix as [in, out] (Conv1D). */
bool qr_parameter_is_transposed(const qrun_model *model, const qr_parameter *parameter);

/* The shape in files; returns the number of dimensions. */
int qr_parameter_file_dims(const qrun_model *model, const qr_parameter *parameter, int64_t dims[QR_MAX_DIMS]);

/* Copies elements [first, first + n) in the order of the file to host memory. A transposed matrix is copied whole for
 * that, whatever n is. */
qrun_status qr_parameter_read(const qr_parameters *parameters, const qr_parameter *parameter, int64_t first, int64_t n,
                              float *values, qr_error *err);

/* The tensor as its file will name it: "model.layers.0.self_attn.q_proj.lora_A.weight". */
void qr_parameter_name(const qr_parameters *parameters, const qr_parameter *parameter, char *name, size_t name_bytes);

/* Its module, as the model object of transformers and PEFT has it: "model.layers.0.self_attn.q_proj". */
void qr_parameters_module_name(const qr_parameters *parameters, qr_tensor_role role, int64_t layer, char *name,
                               size_t name_bytes);

#endif
