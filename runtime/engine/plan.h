/* The memory plan: every byte, by category, computed before anything is allocated. Each category is one allocation of
 * exactly the planned size, so the backend's high-water mark equals the plan's sum; but for the context, which the
 * driver has taken before. */
#ifndef QR_RUNTIME_ENGINE_PLAN_H
#define QR_RUNTIME_ENGINE_PLAN_H

#include <stdint.h>

#include "qrun.h"
#include "runtime/engine/device_memory.h"

typedef enum qr_plan_category {
    QR_PLAN_WEIGHTS,
    QR_PLAN_ADAPTERS,
    QR_PLAN_KV_PAGES,
    QR_PLAN_STATES, /* of sequences, where layers carry one along */
    QR_PLAN_ACTIVATIONS,
    QR_PLAN_WORKSPACE,
    QR_PLAN_TABLES,
    QR_PLAN_LOGITS,
    QR_PLAN_CONTEXT,   /* what the device's driver takes for the process; −1 bytes: not known */
    QR_PLAN_HOST,      /* not on the device: batches before they are copied to it, states kept out of it */
    QR_PLAN_GRADIENTS, /* training only, like the next */
    QR_PLAN_OPTIMIZER,
    QR_PLAN_COUNT,
    QR_PLAN_SESSION_COUNT = QR_PLAN_GRADIENTS /* the categories of a session */
} qr_plan_category;

typedef struct qr_plan {
    qrun_plan_entry entries[QR_PLAN_COUNT]; /* indexed by category */
} qr_plan;

void qr_plan_init(qr_plan *plan); /* names set, all sizes 0 */
/* Enters what the device is: its context, and whether host memory is apart. */
void qr_plan_set_device(qr_plan *plan, const qr_device_memory *memory);
int64_t qr_plan_total(const qr_plan *plan);      /* of the device's memory */
int64_t qr_plan_host_total(const qr_plan *plan); /* of host memory apart from it */

/* The timeline of a backend, if it has one, learns the categories. */
void qr_plan_describe(const qr_plan *plan, int32_t n_categories, qr_backend *backend);

/* What a part of the engine holds: one allocation for each category. */
typedef struct qr_plan_memory {
    void *at[QR_PLAN_COUNT];
    size_t bytes[QR_PLAN_COUNT];
} qr_plan_memory;

/* *memory is zero before; after an error it holds what was made, to be destroyed. */
qrun_status qr_plan_memory_create(qr_backend *backend, const size_t n_bytes[QR_PLAN_COUNT], qr_plan_memory *memory,
                                  qr_error *err);
void qr_plan_memory_destroy(qr_backend *backend, const qr_plan_memory *memory);
/* Adds it to the plan, with this many bytes of workspace in place of its own. */
void qr_plan_add(qr_plan *plan, const qr_plan_memory *memory, size_t workspace_bytes);

/* Planning backwards. Whether n fits. */
typedef qrun_status (*qr_plan_fits_fn)(void *arg, int64_t n, bool *fits, qr_error *err);
/* The largest n from low to high that fits, where all smaller ones do too: the next larger one has then been found not
 * to fit. low − 1: none fits. Ends with the first error of `fits`. */
qrun_status qr_plan_largest(int64_t low, int64_t high, qr_plan_fits_fn fits, void *arg, int64_t *largest,
                            qr_error *err);

/* The first n_entries as qrun.h returns them: *entries is released by qr_free. */
qrun_status qr_plan_copy(const qr_plan *plan, int32_t n_entries, qrun_plan_entry **entries, qr_error *err);

#endif
