/* The optimiser's states, and the parameters' values, where each rank has a part of them: brought together piece by
 * piece, so that a checkpoint is what one rank would write. */
#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/train/trainer.h"

/* The parts that ranks have of [offset, offset + n), one rank after the other, from them to rank 0, which puts them
 * into host [n]; NULL on the others. packed [n]: scratch. */
static qrun_status collect(const qrun_trainer *trainer, size_t offset, size_t n, void *host, unsigned char *packed,
                           qr_error *err) {
    const qr_optimizer *optimizer = trainer->optimizer;
    qr_collectives *ranks = trainer->ranks;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    if (host == NULL) {
        sent[0] = (qr_parcel){packed, qr_optimizer_states_count(optimizer, ranks->rank, offset, n)};
        return qr_all_to_all(ranks, sent, received, err);
    }
    for (int32_t r = 1; r < ranks->n_ranks; r++) {
        received[r] = (qr_parcel){packed, qr_optimizer_states_count(optimizer, r, offset, n)};
        packed += received[r].n_bytes;
    }
    QR_RETURN_IF_ERROR(qr_all_to_all(ranks, sent, received, err));
    for (int32_t r = 1; r < ranks->n_ranks; r++) {
        qr_optimizer_states_unpack(optimizer, r, offset, n, received[r].memory, host);
    }
    return QRUN_OK;
}

static qrun_status read_together(const qrun_trainer *trainer, size_t offset, size_t n, void *host, qr_error *err) {
    unsigned char *packed = qr_alloc(n);
    qrun_status status = packed == NULL ? qr_fail_memory(err, "a checkpoint", n)
                         : host == NULL ? qr_optimizer_states_pack(trainer->optimizer, offset, n, packed, err)
                                        : qr_optimizer_states_read(trainer->optimizer, offset, n, host, err);
    status = qr_ranks_agree(trainer->ranks, status, err);
    if (status == QRUN_OK) { status = collect(trainer, offset, n, host, packed, err); }
    qr_free(packed);
    return status;
}

qrun_status qr_trainer_read_states(const qrun_trainer *trainer, size_t offset, size_t n, void *host, qr_error *err) {
    if (qr_optimizer_shards(trainer->optimizer) == NULL) {
        return qr_optimizer_states_read(trainer->optimizer, offset, n, host, err);
    }
    QR_RETURN_IF_ERROR(qr_ranks_lead(trainer->ranks, QR_RANK_READ_STATES, (int64_t)offset, (int64_t)n, err));
    return read_together(trainer, offset, n, host, err);
}

qrun_status qr_trainer_send_states(const qrun_trainer *trainer, const qr_rank_command *command, qr_error *err) {
    const int64_t n_all = (int64_t)qr_optimizer_states_bytes(trainer->optimizer);
    const bool fits = command->first >= 0 && command->first <= n_all && command->n > 0 &&
                      command->n <= QR_STATES_PIECE_BYTES && command->n <= n_all - command->first;
    if (!fits || qr_optimizer_shards(trainer->optimizer) == NULL) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 asked for states that do not exist");
    }
    return read_together(trainer, (size_t)command->first, (size_t)command->n, NULL, err);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Floats [first, first + n) of one section, each from the rank that has it, into `values` on rank 0; NULL on the
 * others. */
static qrun_status collect_values(const qrun_trainer *trainer, int64_t first, int64_t n, float *values, qr_error *err) {
    const qr_parameters *p = &trainer->parameters;
    const qr_shards *shards = &trainer->shards;
    qr_parcel sent[QR_MAX_RANKS] = {{0}}, received[QR_MAX_RANKS] = {{0}};
    int64_t begin;
    const int64_t n_own = qr_shards_common(shards, shards->rank, first, first + n, &begin);
    float *own = values != NULL ? values + (begin - first) : qr_alloc((size_t)qr_max(n_own, 1) * sizeof *own);
    qrun_status status = own == NULL ? qr_fail_memory(err, "a checkpoint", (size_t)n * sizeof *own) : QRUN_OK;
    if (status == QRUN_OK && n_own > 0) {
        status = p->backend->copy_out(p->backend, own, qr_parameters_at(p, begin), (size_t)n_own * sizeof *own, err);
    }
    QR_TRY(qr_ranks_agree(trainer->ranks, status, err));
    if (values == NULL) { sent[0] = (qr_parcel){own, (size_t)n_own * sizeof *own}; }
    for (int32_t r = 1; r < shards->n_ranks && values != NULL; r++) {
        const int64_t n_here = qr_shards_common(shards, r, first, first + n, &begin);
        if (n_here > 0) { received[r] = (qr_parcel){values + (begin - first), (size_t)n_here * sizeof *values}; }
    }
    QR_TRY(qr_all_to_all(trainer->ranks, sent, received, err));
out:
    if (values == NULL) { qr_free(own); }
    return status;
}

qrun_status qr_trainer_read_values(void *user, int64_t first, int64_t n, float *values, qr_error *err) {
    const qrun_trainer *trainer = user;
    const qr_parameters *p = &trainer->parameters;
    const int64_t most = QR_STATES_PIECE_BYTES / (int64_t)sizeof *values;
    if (p->shards == NULL) { return qr_parameters_read(p, first, n, values, err); }
    for (int64_t done = 0, n_here; done < n; done += n_here) {
        const int64_t at = first + done;
        n_here = qr_min(qr_min(most, n - done), qr_parameters_section_end(p, qr_parameters_section(p, at)) - at);
        QR_RETURN_IF_ERROR(qr_ranks_lead(trainer->ranks, QR_RANK_READ_VALUES, at, n_here, err));
        QR_RETURN_IF_ERROR(collect_values(trainer, at, n_here, values + done, err));
    }
    return QRUN_OK;
}

qrun_status qr_trainer_send_values(const qrun_trainer *trainer, const qr_rank_command *command, qr_error *err) {
    const int64_t n_all = trainer->parameters.n_floats;
    const bool fits = command->first >= 0 && command->first <= n_all && command->n > 0 &&
                      command->n <= QR_STATES_PIECE_BYTES / (int64_t)sizeof(float) &&
                      command->n <= n_all - command->first;
    if (!fits || trainer->parameters.shards == NULL) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 asked for values that do not exist");
    }
    return collect_values(trainer, command->first, command->n, NULL, err);
}
