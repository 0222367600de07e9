/* The modules of a model that have weights of their own (tables, norms, linear layers), and weights that stand in for
 * the model's own for a while: those of a trainer, or of an adapter with modules_to_save. */
#ifndef QR_RUNTIME_MODEL_MODULES_H
#define QR_RUNTIME_MODEL_MODULES_H

#include "loaders/files/safetensors.h"
#include "runtime/model/model.h"

/* Where the model keeps a module's weights. */
typedef struct qr_module {
    qr_tensor_role role;
    int64_t layer;        /* 0 of those that stand once */
    qr_weight *matrix;    /* NULL: a norm */
    const float **weight; /* a norm's, [n]; NULL: a matrix */
    const float **bias;   /* [n]; NULL: it has none */
    int64_t n;            /* rows of the matrix, or the norm's width */
} qr_module;

/* Calls visit for every module, the output head last, also where it is the embedding's matrix. */
typedef qrun_status (*qr_module_visitor)(void *arg, const qr_module *module, qr_error *err);
qrun_status qr_model_each_module(qrun_model *model, qr_module_visitor visit, void *arg, qr_error *err);

/* Whether `name` is how people call the modules of a role: "lm_head", "self_attn.q_proj", "model.norm". */
bool qr_module_is_called(const qr_family *family, qr_tensor_role role, const char *name, size_t n_bytes);

/* How PEFT is told of them: the end of their path, as short as it can be without meaning others too. */
const char *qr_module_short_name(const qr_family *family, qr_tensor_role role);

/* The vector `suffix` ("weight", "bias") of a module as the folder stores it: n numbers of a float type. */
qrun_status qr_module_find_vector(const qrun_model *model, const qr_safetensors *source, qr_tensor_role role,
                                  int64_t layer, const char *suffix, int64_t n, const qr_safetensors_tensor **tensor,
                                  qr_error *err);

/* ---- Weights in the place of others ------------------------------------------------------------------------------ */

typedef struct qr_stand_in {
    qr_weight *matrix;    /* in the model; NULL: a vector */
    qr_weight own_matrix; /* what was there */
    const float **vector;
    const float *own_vector;
} qr_stand_in;

typedef struct qr_stand_ins {
    qr_stand_in *list;
    int64_t n, capacity;
} qr_stand_ins;

/* Room for `most`; the model is then changed without failing. */
qrun_status qr_stand_ins_reserve(qr_stand_ins *stand_ins, int64_t most, qr_error *err);
void qr_stand_in_matrix(qr_stand_ins *stand_ins, qr_weight *place, const qr_weight *matrix);
void qr_stand_in_vector(qr_stand_ins *stand_ins, const float **place, const float *vector);

/* Gives the model its own weights back. Fine for a zeroed one. */
void qr_stand_ins_end(qr_stand_ins *stand_ins);

#endif
