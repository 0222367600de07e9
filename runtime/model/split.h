/* Tensor parallelism: a model whose matrices are split among ranks by rows of output. Each rank has whole heads (one
 * for keys and values may be on several, each with other queries), and a share of the rows of every other matrix of a
 * layer, of each expert too, and of a head of its own. Norms, routers and embeddings are everyone's. A row of output is
 * computed by one rank alone, over all columns, in the order in which one device adds them. So whoever gathers the
 * outputs of all ranks has the bits of one device.
 *
 * NF4 is cut between its blocks. Nested scales of 256 blocks stay nested where a share begins at such a border;
 * elsewhere they are held as the F32 values that they stand for. */
#ifndef QR_RUNTIME_MODEL_SPLIT_H
#define QR_RUNTIME_MODEL_SPLIT_H

#include "runtime/engine/device_memory.h"
#include "runtime/model/modules.h"

/* Sets model->split and the heads of model->shape, which are this rank's from then on; nothing for
 * params->tensor_parallel 0 and 1. Refuses what cannot be split. After the shape, before the description. */
qrun_status qr_split_model(qrun_model *model, const qrun_model_params *params, qr_error *err);

/* Rows are dealt in units: 64, or fewer where ranks would have none. Every rank gets as many, give or take one. */
int64_t qr_split_unit(const qr_split *split, int64_t n_rows);
/* Where the share of a rank begins, of n in units; of rank n_ranks: n. */
static inline int64_t qr_split_begin(const qr_split *split, int64_t n, int64_t unit, int32_t rank) {
    const int64_t n_units = (n + unit - 1) / unit, first = n_units * rank / split->n_ranks * unit;
    return first < n ? first : n;
}

/* How many of n rows or columns that are dealt out in such units are this rank's; n where the model is whole. */
int64_t qr_split_own(const qr_split *split, int64_t n);

/* How many of a layer's heads for keys and values each rank has; all n where the model is whole. Where there are more
 * ranks than heads, as many ranks have each as it is a part of them: those whose query heads read it. */
static inline int64_t qr_split_kv_heads(const qr_split *split, int64_t n) {
    return split->n_ranks > 0 && n > 0 && n < split->n_ranks ? 1 : split->n_ranks > 0 ? n / split->n_ranks : n;
}
/* Which head a rank's own begin with. */
static inline int64_t qr_split_first_kv_head(const qr_split *split, int64_t n) {
    return n * split->rank / split->n_ranks;
}

/* Whether a group of a state space, over whose values its norm goes, is on several ranks. Not where there is none. */
bool qr_split_shares_groups(const qrun_model *model);

/* This rank's share of n rows of a module of a layer (0 where it is of none), and how many those are; n, and no share,
 * where every rank has them all. Of biases of experts: of one expert's. */
int64_t qr_split_rows(const qrun_model *model, int64_t layer, qr_tensor_role role, int64_t n, qr_row_share *share);
/* Once the whole matrix's format is known: that of the share. */
qrun_status qr_split_format(const qrun_model *model, const qr_module *module, qr_error *err);

/* Of what the machine has free, this rank's part, where several of it share the model. */
void qr_split_memory(const qrun_model *model, qr_device_memory *memory);

/* As many ranks are there as the model is to be split among. */
qrun_status qr_split_check_ranks(const qrun_context *context, const qrun_model_params *params, qr_error *err);
/* Once a model is opened (own: how that went), all ranks know how it went for each of them: those that are to share it,
 * and those of a run that has not ended. */
qrun_status qr_split_agree(const qrun_context *context, const qrun_model_params *params, qrun_status own,
                           qr_error *err);
/* Before a session: QRUN_ERROR_RANK on the others where rank 0 has closed the model instead. */
qrun_status qr_split_meet(qrun_model *model, qr_error *err);
/* Rank 0 closes the model, and the others need not wait for a session. */
void qr_split_part(qrun_model *model);

#endif
