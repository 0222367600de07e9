/* Rows of a product in groups, each with a matrix of its own: one group, all rows, or the slots of every expert that
 * has any. All groups are cut into tasks of one loop, so that an expert with few tokens costs no start of threads. */
#ifndef QR_KERNELS_CPU_LINEAR_ROW_GROUPS_H
#define QR_KERNELS_CPU_LINEAR_ROW_GROUPS_H

#include "kernels/backend.h"

typedef struct qr_cpu_row_group {
    const qr_weight *weight;
    int64_t first, n_rows; /* of the output */
    int64_t first_task;
} qr_cpu_row_group;

typedef struct qr_cpu_row_groups {
    qr_cpu_row_group *list;
    int64_t n;
    const int32_t *source_row; /* the input's row of each row of the output; NULL: the same */
} qr_cpu_row_groups;

/* Room for the groups of a routing, at most; a multiple of 64. */
size_t qr_cpu_row_groups_bytes(const qr_routing *routing);
/* The experts that have slots, in `memory`. */
qr_cpu_row_groups qr_cpu_row_groups_of(const qr_weight *weights, const qr_routing *routing, bool gathers, void *memory);
/* One group of all rows; *group is its list. */
qr_cpu_row_groups qr_cpu_all_rows(const qr_weight *weight, int64_t n_rows, qr_cpu_row_group *group);

/* Gives every group a task for each chunk of chunk_rows and each of n_across; returns how many there are. */
int64_t qr_cpu_row_groups_cut(qr_cpu_row_groups *groups, int64_t chunk_rows, int64_t n_across);
const qr_cpu_row_group *qr_cpu_row_group_of_task(const qr_cpu_row_groups *groups, int64_t task);

#endif
