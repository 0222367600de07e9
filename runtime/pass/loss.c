/* The loss of a training pass, and its gradient with respect to the last layer's output: rows whose next token is a
 * target, so many at a time that their logits take 64 MiB; on a device 512 at least. Of pairs of answers, each target's
 * gradient is weighted by what the pair's loss changes by with its answer. */
#include "runtime/pass/pass_state.h"

#include "base/sizes.h"

static int64_t find_targets(qr_train_pass *pass, const qr_train_batch *batch) {
    int64_t n = 0;
    for (int64_t t = 0; t < batch->n_tokens; t++) {
        if (batch->target[t] < 0) { continue; }
        pass->host_rows[n] = (int32_t)t;
        pass->host_targets[n++] = batch->target[t];
    }
    return n;
}

/* Gradient of the rows of a chunk, from the gradient of their logits into dselected. */
static qrun_status head_backward(qr_train_pass *pass, int64_t first, int64_t n, qr_error *err) {
    const qrun_model *model = pass->model;
    const int64_t hidden = model->shape.hidden, vocab = model->shape.vocab;
    if (pass->b.dlogits != pass->b.logits) {
        const qr_round_act_args round = {.src = pass->b.logits,
                                         .dst = pass->b.dlogits,
                                         .dst_dtype = model->act_dtype,
                                         .n_rows = n,
                                         .dim = vocab,
                                         .src_stride = vocab,
                                         .dst_stride = vocab};
        QR_RETURN_IF_ERROR(qr_round_act(pass->backend, &round, pass->workspace, err));
    }
    const qr_linear_backward_args args = {.weight = &model->head,
                                          .dy = pass->b.dlogits,
                                          .dy_dtype = model->act_dtype,
                                          .dx = pass->b.dselected_normed,
                                          .n_rows = n,
                                          .dy_stride = vocab,
                                          .dx_stride = hidden,
                                          .any_order = true};
    QR_RETURN_IF_ERROR(qr_linear_backward(pass->backend, &args, pass->workspace, err));
    QR_RETURN_IF_ERROR(
        qr_pass_whole_backward(pass, &pass->model->head, NULL, pass->b.selected_normed, pass->b.logits, vocab, n, err));
    return qr_pass_norm_backward(pass, &model->final_norm, pass->b.selected, pass->b.dselected_normed,
                                 pass->b.dselected + first * hidden, n, false, err);
}

/* Losses of rows [first, first + n), and the gradients of their logits, times loss_scale and the rows' weights
 * (NULL: 1). */
static qrun_status loss_of_chunk(qr_train_pass *pass, int64_t first, int64_t n, float loss_scale, const float *weight,
                                 qr_error *err) {
    const qrun_model *model = pass->model;
    const qr_layer_pass head = qr_pass_layer(pass);
    const qr_gather_rows_args gather = {.src = pass->b.x,
                                        .rows = pass->b.rows + first,
                                        .dst = pass->b.selected,
                                        .n_rows = n,
                                        .dim = model->shape.hidden};
    const qr_cross_entropy_args loss = {.logits = pass->b.logits,
                                        .target = pass->b.target + first,
                                        .loss = pass->b.loss + first,
                                        .weight = weight != NULL ? weight + first : NULL,
                                        .n_rows = n,
                                        .vocab = model->shape.vocab,
                                        .softcap = model->shape.logit_softcap,
                                        .dloss = loss_scale * model->shape.logit_scale};
    QR_RETURN_IF_ERROR(qr_gather_rows(pass->backend, &gather, pass->workspace, err));
    QR_RETURN_IF_ERROR(qr_layer_head(&head, pass->b.selected, n, pass->b.selected_normed, pass->b.logits, err));
    return qr_cross_entropy(pass->backend, &loss, pass->workspace, err);
}

/* All targets' losses, and with backward the gradients of their rows, in dselected. */
static qrun_status run_chunks(qr_train_pass *pass, int64_t n_targets, float loss_scale, const float *weight,
                              bool backward, qr_error *err) {
    qr_pass_parts chunks = qr_pass_parts_begin(pass, n_targets, qr_pass_logit_rows(pass->model, &pass->limits));
    for (; chunks.n_rows > 0; qr_pass_parts_next(pass, &chunks)) {
        QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
        QR_RETURN_IF_ERROR(loss_of_chunk(pass, chunks.first, chunks.n_rows, loss_scale, weight, err));
        if (backward) { QR_RETURN_IF_ERROR(head_backward(pass, chunks.first, chunks.n_rows, err)); }
    }
    return QRUN_OK;
}

/* Finds the targets, for the device too. */
static qrun_status take_targets(qr_train_pass *pass, const qr_train_batch *batch, int64_t *n_targets, qr_error *err) {
    *n_targets = find_targets(pass, batch);
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.rows, pass->host_rows, *n_targets, err));
    return qr_pass_copy_ints(pass, pass->b.target, pass->host_targets, *n_targets, err);
}

/* Of all rows, by one copy: a copy waits for the device. */
static qrun_status fetch_losses(qr_train_pass *pass, int64_t n, qr_error *err) {
    return pass->backend->copy_out(pass->backend, pass->host_loss, pass->b.loss, (size_t)n * sizeof(float), err);
}

static double sum_losses(const qr_train_pass *pass, int64_t first, int64_t end) {
    double sum = 0;
    for (int64_t i = first; i < end; i++) { sum += (double)pass->host_loss[i]; }
    return sum;
}

/* ---- Pairs of answers -------------------------------------------------------------------------------------------- */

/* The targets of sequence s are host_rows [first, the result). */
static int64_t end_of_sequence(const qr_train_pass *pass, const qr_train_batch *batch, int64_t s, int64_t first,
                               int64_t n_targets) {
    int64_t end = first;
    while (end < n_targets && pass->host_rows[end] < batch->seq_start[s + 1]) { end++; }
    return end;
}

qrun_status qr_pass_note_reference(qr_train_pass *pass, const qr_train_batch *batch, qr_error *err) {
    int64_t n_targets;
    QR_RETURN_IF_ERROR(take_targets(pass, batch, &n_targets, err));
    QR_RETURN_IF_ERROR(run_chunks(pass, n_targets, 0, NULL, false, err));
    QR_RETURN_IF_ERROR(fetch_losses(pass, n_targets, err));
    for (int64_t s = 0, first = 0; s < batch->n_sequences; s++) {
        const int64_t end = end_of_sequence(pass, batch, s, first, n_targets);
        pass->answers[s].reference = -sum_losses(pass, first, end);
        first = end;
    }
    return QRUN_OK;
}

/* From the losses of the targets: the sums over pairs, and the weights of the targets' gradients. −log p of each target
 * of an answer has the same, since the answer's log p is their sum. */
static void weigh_pairs(qr_train_pass *pass, const qr_train_batch *batch, int64_t n_targets, double *sums) {
    int64_t first = 0;
    for (int i = 0; i < QR_MOST_LOSS_SUMS; i++) { sums[i] = 0; }
    for (int64_t s = 0; s + 1 < batch->n_sequences; s += 2) {
        qr_answer *answers = &pass->answers[s];
        const int64_t middle = end_of_sequence(pass, batch, s, first, n_targets);
        const int64_t end = end_of_sequence(pass, batch, s + 1, middle, n_targets);
        if (middle == first || end == middle) { /* a plan's: data have targets in both */
            first = end;
            continue;
        }
        answers[0].log_p = -sum_losses(pass, first, middle);
        answers[1].log_p = -sum_losses(pass, middle, end);
        answers[0].n_targets = middle - first;
        answers[1].n_targets = end - middle;
        const qr_pair_loss pair = qr_preference_loss(&pass->limits.preference, answers);
        for (; first < end; first++) { pass->host_weight[first] = (float)-pair.slope[first < middle ? 0 : 1]; }
        sums[QR_SUM_LOSS] += pair.loss;
        sums[QR_SUM_CHOSEN] += pair.chosen;
        sums[QR_SUM_REJECTED] += pair.rejected;
        sums[QR_SUM_RIGHT] += pair.chosen > pair.rejected ? 1 : 0;
    }
}

/* A pair's loss has to be known before its gradient is: the logits are computed twice. */
static qrun_status run_pairs(qr_train_pass *pass, const qr_train_batch *batch, int64_t n_targets, float loss_scale,
                             bool backward, double *sums, qr_error *err) {
    QR_RETURN_IF_ERROR(run_chunks(pass, n_targets, 0, NULL, false, err));
    QR_RETURN_IF_ERROR(fetch_losses(pass, n_targets, err));
    weigh_pairs(pass, batch, n_targets, sums);
    if (!backward) { return QRUN_OK; }
    const size_t n_bytes = (size_t)n_targets * sizeof(float);
    QR_RETURN_IF_ERROR(pass->backend->copy_in(pass->backend, pass->b.weight, pass->host_weight, n_bytes, err));
    return run_chunks(pass, n_targets, loss_scale, pass->b.weight, true, err);
}

/* ---- The loss ---------------------------------------------------------------------------------------------------- */

qrun_status qr_pass_run_loss(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                             double *sums, qr_error *err) {
    const bool has_pairs = qr_preference_has_pairs(&pass->limits.preference);
    int64_t n_targets;
    QR_RETURN_IF_ERROR(take_targets(pass, batch, &n_targets, err));
    if (has_pairs) {
        QR_RETURN_IF_ERROR(run_pairs(pass, batch, n_targets, loss_scale, backward, sums, err));
    } else {
        QR_RETURN_IF_ERROR(run_chunks(pass, n_targets, loss_scale, NULL, backward, err));
    }
    if (backward) {
        const qr_scatter_rows_args scatter = {.src = pass->b.dselected,
                                              .rows = pass->b.rows,
                                              .dst = pass->b.dx,
                                              .n_rows = n_targets,
                                              .n_dst_rows = pass->n_tokens,
                                              .dim = pass->model->shape.hidden};
        QR_RETURN_IF_ERROR(qr_scatter_rows(pass->backend, &scatter, pass->workspace, err));
    }
    if (has_pairs) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(fetch_losses(pass, n_targets, err));
    sums[QR_SUM_LOSS] = sum_losses(pass, 0, n_targets);
    return QRUN_OK;
}
