#include "runtime/plan.h"

void qr_plan_init(qr_plan *plan) {
    static const char *const names[QR_PLAN_COUNT] = {
        [QR_PLAN_WEIGHTS] = "weights",         [QR_PLAN_ADAPTERS] = "adapters",   [QR_PLAN_KV_PAGES] = "kv pages",
        [QR_PLAN_ACTIVATIONS] = "activations", [QR_PLAN_WORKSPACE] = "workspace", [QR_PLAN_TABLES] = "tables",
        [QR_PLAN_LOGITS] = "logits",           [QR_PLAN_GRADIENTS] = "gradients", [QR_PLAN_OPTIMIZER] = "optimizer",
        [QR_PLAN_HOST] = "host",
    };
    for (int i = 0; i < QR_PLAN_COUNT; i++) { plan->entries[i] = (qrun_plan_entry){names[i], 0}; }
}

int64_t qr_plan_total(const qr_plan *plan) {
    int64_t total = 0;
    for (int i = 0; i < QR_PLAN_COUNT; i++) { total += plan->entries[i].bytes; }
    return total;
}
