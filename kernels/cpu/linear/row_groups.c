#include "kernels/cpu/linear/row_groups.h"

#include "base/sizes.h"

size_t qr_cpu_row_groups_bytes(const qr_routing *routing) {
    const int64_t most = qr_min(routing->n_experts, qr_routing_slots(routing));
    return (size_t)qr_round_up(most * (int64_t)sizeof(qr_cpu_row_group), 64);
}

qr_cpu_row_groups qr_cpu_row_groups_of(const qr_weight *weights, const qr_routing *routing, bool gathers,
                                       void *memory) {
    qr_cpu_row_groups groups = {.list = memory, .source_row = gathers ? routing->slot_row : NULL};
    for (int32_t e = 0; e < routing->n_experts; e++) {
        const int64_t first = routing->expert_start[e], n_rows = routing->expert_start[e + 1] - first;
        if (n_rows == 0) { continue; }
        groups.list[groups.n++] = (qr_cpu_row_group){.weight = &weights[e], .first = first, .n_rows = n_rows};
    }
    return groups;
}

qr_cpu_row_groups qr_cpu_all_rows(const qr_weight *weight, int64_t n_rows, qr_cpu_row_group *group) {
    *group = (qr_cpu_row_group){.weight = weight, .n_rows = n_rows};
    return (qr_cpu_row_groups){.list = group, .n = 1};
}

int64_t qr_cpu_row_groups_cut(qr_cpu_row_groups *groups, int64_t chunk_rows, int64_t n_across) {
    int64_t n_tasks = 0;
    for (int64_t g = 0; g < groups->n; g++) {
        groups->list[g].first_task = n_tasks;
        n_tasks += qr_ceil_div(groups->list[g].n_rows, chunk_rows) * n_across;
    }
    return n_tasks;
}

const qr_cpu_row_group *qr_cpu_row_group_of_task(const qr_cpu_row_groups *groups, int64_t task) {
    int64_t low = 0, high = groups->n;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (groups->list[middle].first_task <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &groups->list[low];
}
