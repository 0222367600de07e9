#include "runtime/engine/plan.h"

#include <string.h>

#include "base/alloc.h"
#include "kernels/timeline/timeline.h"

void qr_plan_init(qr_plan *plan) {
    static const char *const names[QR_PLAN_COUNT] = {
        [QR_PLAN_WEIGHTS] = "weights",     [QR_PLAN_ADAPTERS] = "adapters",
        [QR_PLAN_KV_PAGES] = "kv pages",   [QR_PLAN_ACTIVATIONS] = "activations",
        [QR_PLAN_WORKSPACE] = "workspace", [QR_PLAN_TABLES] = "tables",
        [QR_PLAN_LOGITS] = "logits",       [QR_PLAN_GRADIENTS] = "gradients",
        [QR_PLAN_OPTIMIZER] = "optimizer", [QR_PLAN_HOST] = "host",
        [QR_PLAN_CONTEXT] = "context",     [QR_PLAN_STATES] = "states",
    };
    for (int i = 0; i < QR_PLAN_COUNT; i++) { plan->entries[i] = (qrun_plan_entry){names[i], 0, false}; }
}

void qr_plan_set_device(qr_plan *plan, const qr_device_memory *memory) {
    plan->entries[QR_PLAN_CONTEXT].bytes = memory->context_bytes;
    plan->entries[QR_PLAN_HOST].is_apart = memory->is_separate;
}

/* A size that is not known adds nothing. */
static int64_t sum(const qr_plan *plan, bool apart) {
    int64_t total = 0;
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        const qrun_plan_entry *entry = &plan->entries[i];
        if (entry->is_apart == apart && entry->bytes > 0) { total += entry->bytes; }
    }
    return total;
}

int64_t qr_plan_total(const qr_plan *plan) { return sum(plan, false); }

int64_t qr_plan_host_total(const qr_plan *plan) { return sum(plan, true); }

static qr_memory_kind kind_of(int category) { return category == QR_PLAN_HOST ? QR_MEMORY_HOST : QR_MEMORY_DEVICE; }

/* What is used in turn lives; the rest is held from the first event to the last. */
void qr_plan_describe(const qr_plan *plan, int32_t n_categories, qr_backend *backend) {
    for (int32_t i = 0; i < n_categories; i++) {
        const qrun_plan_entry *entry = &plan->entries[i];
        const bool lives = i == QR_PLAN_ACTIVATIONS || i == QR_PLAN_LOGITS || i == QR_PLAN_WORKSPACE;
        const qr_timeline_category category = {.name = entry->category,
                                               .bytes = entry->bytes > 0 ? entry->bytes : 0,
                                               .lives = lives,
                                               .apart = entry->is_apart};
        qr_timeline_put_category(backend, i, &category);
    }
}

qrun_status qr_plan_memory_create(qr_backend *backend, const size_t n_bytes[QR_PLAN_COUNT], qr_plan_memory *memory,
                                  qr_error *err) {
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        if (n_bytes[i] == 0) { continue; }
        QR_RETURN_IF_ERROR(backend->memory_create(backend, kind_of(i), n_bytes[i], &memory->at[i], err));
        memory->bytes[i] = n_bytes[i];
    }
    return QRUN_OK;
}

void qr_plan_memory_destroy(qr_backend *backend, const qr_plan_memory *memory) {
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        if (memory->at[i] != NULL) { qr_timeline_drop_tensors(backend, memory->at[i], memory->bytes[i]); }
        backend->memory_destroy(backend, kind_of(i), memory->at[i], memory->bytes[i]);
    }
}

void qr_plan_add(qr_plan *plan, const qr_plan_memory *memory, size_t workspace_bytes) {
    for (int i = 0; i < QR_PLAN_COUNT; i++) {
        plan->entries[i].bytes += (int64_t)(i == QR_PLAN_WORKSPACE ? workspace_bytes : memory->bytes[i]);
    }
}

qrun_status qr_plan_largest(int64_t low, int64_t high, qr_plan_fits_fn fits, void *arg, int64_t *largest,
                            qr_error *err) {
    int64_t below = low - 1, above = high + 1; /* below fits, or is none; above does not */
    for (int64_t n = high; above - below > 1; n = below + (above - below) / 2) { /* all of it is the usual case */
        bool fit = false;
        QR_RETURN_IF_ERROR(fits(arg, n, &fit, err));
        if (fit) {
            below = n;
        } else {
            above = n;
        }
    }
    *largest = below;
    return QRUN_OK;
}

qrun_status qr_plan_copy(const qr_plan *plan, int32_t n_entries, qrun_plan_entry **entries, qr_error *err) {
    const size_t n_bytes = (size_t)n_entries * sizeof **entries;
    *entries = qr_alloc(n_bytes);
    if (*entries == NULL) { return qr_fail_memory(err, "the plan", n_bytes); }
    memcpy(*entries, plan->entries, n_bytes);
    return QRUN_OK;
}
