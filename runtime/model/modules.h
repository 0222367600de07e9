/* The modules of a model that have weights (tables, norms, linear layers): the one walk over them, and their names. */
#ifndef QR_RUNTIME_MODEL_MODULES_H
#define QR_RUNTIME_MODEL_MODULES_H

#include "runtime/model/model.h"

/* Where the model keeps a module's weights. */
typedef struct qr_module {
    qr_tensor_role role;
    int64_t layer;        /* 0 where a model has the module once */
    int64_t expert;       /* of the layer; 0 where it is no expert's */
    qr_weight *matrix;    /* NULL: a norm */
    const float **weight; /* a norm's, [n]; NULL: a matrix */
    const float **bias;   /* [n]; NULL: it has none */
    int64_t n;            /* rows of the matrix, or the norm's width */
    qr_row_share *share;  /* of the matrix and its bias, or of the norm; NULL: those are never split among ranks */
} qr_module;

static inline bool qr_module_is_part(const qr_module *module) {
    return module->share != NULL && qr_row_share_is_part(module->share);
}
/* Of a part: how many shares stand one after the other, which are as many as there are experts in a vector of theirs,
 * else one. */
static inline int64_t qr_module_n_shares(const qr_module *module) {
    const int64_t n_rows = qr_row_share_rows(module->share);
    return n_rows > 0 ? module->n / n_rows : 0;
}
/* What files store of it: rows of the whole matrix, or the norm's width. */
static inline int64_t qr_module_stored_n(const qr_module *module) {
    return qr_module_is_part(module) ? qr_module_n_shares(module) * module->share->all : module->n;
}

/* Calls visit for every module of a described model, the output head last. A tied head is visited only once the model's
 * weights are placed. */
typedef qrun_status (*qr_module_visitor)(void *arg, const qr_module *module, qr_error *err);
qrun_status qr_model_each_module(qrun_model *model, qr_module_visitor visit, void *arg, qr_error *err);

/* Whether the module is an output head that is the embedding's matrix. */
static inline bool qr_module_is_tied_head(const qrun_model *model, const qr_module *module) {
    return module->role == QR_ROLE_HEAD && model->shape.tied_head;
}

/* The norm, or other vector, of a layer with that role (QR_ROLE_ATTN_NORM … QR_ROLE_EXPERT_OUT_BIAS). */
qr_norm *qr_norm_of_layer(qr_layer *layer, qr_tensor_role role);

/* Whether `name` is how people call the modules of a role: "lm_head", "self_attn.q_proj", "model.norm". */
bool qr_module_is_called(const qr_family *family, qr_tensor_role role, const char *name, size_t n_bytes);

/* The name that PEFT finds these modules by: the end of their path, as short as possible without matching others. */
const char *qr_module_short_name(const qr_family *family, qr_tensor_role role);

#endif
