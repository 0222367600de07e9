/* Adapters in a backend's memory: LoRA factors of every linear layer, unmerged; each row of a batch names its adapter.
 */
#ifndef QR_RUNTIME_MODEL_ADAPTER_H
#define QR_RUNTIME_MODEL_ADAPTER_H

#include "loaders/adapter/adapter.h"
#include "runtime/model/modules.h"
#include "runtime/model/weight_override.h"

struct qrun_adapter {
    qrun_model *model;
    char *name;
    int32_t index; /* in model->adapters and in the rows of the factor table */
    void *memory;  /* device: every A [rank, in] and B [out, rank], and DoRA's ratios [out], F32 */
    size_t memory_bytes;
    void *module_memory; /* device: whole modules (adapter_modules.h) */
    size_t module_bytes;
    qr_weight_overrides overrides;
    qr_row_share original_head; /* the model's own, while module_memory is there */
    uint64_t content_hash;      /* of all tensors and scales */
    int64_t original_vocab;     /* the model's own, while the adapter's tables have more rows; 0: they have not */
    int64_t identity;           /* 1 …; no other adapter of the process has or had it */
    int64_t n_requests;         /* that name it; under the model's lock */
    bool is_on_device;          /* something of it may be there */
};

/* −1 for NULL, the base model. */
static inline int32_t qr_adapter_index(const struct qrun_adapter *adapter) {
    return adapter != NULL ? adapter->index : -1;
}

/* What K/V that were computed with it are known by; 0 for NULL. */
static inline int64_t qr_adapter_identity(const struct qrun_adapter *adapter) {
    return adapter != NULL ? adapter->identity : 0;
}

static inline uint64_t qr_adapter_content(const struct qrun_adapter *adapter) {
    return adapter != NULL ? adapter->content_hash : 0;
}

/* Counts a request that names it; it is not closed until change −1. NULL is fine. */
void qr_adapter_count_requests(const struct qrun_adapter *adapter, int64_t change);

/* QRUN_ERROR_ARGUMENT for an adapter of another model. While an adapter that replaces whole modules is open, the same
 * for every other one and for NULL. */
qrun_status qr_adapter_check_owner(const qrun_model *model, const struct qrun_adapter *adapter, qr_error *err);

/* QRUN_ERROR_INPUT where LoRA of these sizes does not fit a matrix. */
qrun_status qr_adapter_check_shape(const qr_adapter_module *module, int64_t rows, int64_t cols,
                                   const qr_weight_desc *desc, qr_error *err);

/* The open adapter of that name, or NULL. Counted as a request is, so that it stays until it is given back by
 * qr_adapter_count_requests with −1. */
const struct qrun_adapter *qr_adapter_take(qrun_model *model, const char *name);

/* Device memory of the open adapters and their table. */
int64_t qr_adapters_bytes(qrun_model *model);

/* Frees all of a model's adapters and the table. */
void qr_adapters_release(qrun_model *model);

#endif
