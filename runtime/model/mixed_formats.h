/* Mixed formats: which linear layers are held in INT8, or in 16 bits, while the others are in NF4_DQ, and the
 * measurement that decided it. Measured in runtime/generate/measure_mixed.c, written in
 * runtime/folders/quantize_folder.c. A folder that was written so says the format of each matrix by its tensors, as
 * every folder does; nothing is measured again. */
#ifndef QR_RUNTIME_MODEL_MIXED_FORMATS_H
#define QR_RUNTIME_MODEL_MIXED_FORMATS_H

#include "runtime/model/modules.h"

/* The file of a written folder that has the measurement. */
#define QR_MIXED_FILE "qrun_mixed.json"

/* A linear layer's matrix; or of experts, which are one op's and so of one format, those of a role and a layer. */
typedef struct qr_mixed_unit {
    qrun_mixed_matrix matrix; /* its name is owned */
    qr_tensor_role role;
    int64_t layer;
    int64_t nf4_bytes, raised_bytes; /* as they take up of a model's weights */
} qr_mixed_unit;

struct qrun_mixed {
    char *folder;            /* of the model */
    qr_weight_format raised; /* INT8, BF16 or F16 */
    qrun_mixed_info info;
    qr_mixed_unit *units; /* [info.n_matrices]: in the model's order, sorted by qr_mixed_choose */
    size_t capacity;
    char *json; /* made by qr_mixed_choose */
};

/* The units of a model that is described with all linear layers in NF4_DQ. raise_to: as in qrun_mixed_params. Nothing
 * is measured yet. */
qrun_status qr_mixed_create(qrun_model *model, qrun_quant raise_to, qrun_mixed **mixed, qr_error *err);

/* Chooses formats by what was measured, within info.budget_bytes; sorts the units and makes the JSON. */
qrun_status qr_mixed_choose(qrun_mixed *mixed, qr_error *err);

/* The modules that are held in 16 bits, every expert by itself. The caller frees the list and each name with qr_free,
 * also after a failure; begin from NULL and 0. */
qrun_status qr_mixed_plain_names(const qrun_mixed *mixed, const qrun_model *model, char ***names, size_t *n_names,
                                 qr_error *err);

/* The format of a module's matrix. */
qr_weight_format qr_mixed_format(const qrun_mixed *mixed, qr_tensor_role role, int64_t layer);

#endif
