#include "runtime/engine/plan.h"

void qr_plan_init(qr_plan *plan) {
    static const char *const names[QR_PLAN_COUNT] = {
        [QR_PLAN_WEIGHTS] = "weights",     [QR_PLAN_ADAPTERS] = "adapters",
        [QR_PLAN_KV_PAGES] = "kv pages",   [QR_PLAN_ACTIVATIONS] = "activations",
        [QR_PLAN_WORKSPACE] = "workspace", [QR_PLAN_TABLES] = "tables",
        [QR_PLAN_LOGITS] = "logits",       [QR_PLAN_GRADIENTS] = "gradients",
        [QR_PLAN_OPTIMIZER] = "optimizer", [QR_PLAN_HOST] = "host",
        [QR_PLAN_CONTEXT] = "context",
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
