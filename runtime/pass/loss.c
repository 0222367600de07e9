/* The loss of a training pass, and its gradient with respect to the last layer's output: rows whose next token is a
 * target, so many at a time that their logits take 64 MiB; on a device 512 at least. */
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

static qrun_status loss_of_chunk(qr_train_pass *pass, int64_t first, int64_t n, float loss_scale, qr_error *err) {
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
                                        .n_rows = n,
                                        .vocab = model->shape.vocab,
                                        .softcap = model->shape.logit_softcap,
                                        .dloss = loss_scale * model->shape.logit_scale};
    QR_RETURN_IF_ERROR(qr_gather_rows(pass->backend, &gather, pass->workspace, err));
    QR_RETURN_IF_ERROR(qr_layer_head(&head, pass->b.selected, n, pass->b.selected_normed, pass->b.logits, err));
    return qr_cross_entropy(pass->backend, &loss, pass->workspace, err);
}

/* Of all rows, by one copy: a copy waits for the device. */
static qrun_status sum_losses(qr_train_pass *pass, int64_t n, double *sum, qr_error *err) {
    QR_RETURN_IF_ERROR(
        pass->backend->copy_out(pass->backend, pass->host_loss, pass->b.loss, (size_t)n * sizeof(float), err));
    for (int64_t i = 0; i < n; i++) { *sum += (double)pass->host_loss[i]; }
    return QRUN_OK;
}

qrun_status qr_pass_run_loss(qr_train_pass *pass, const qr_train_batch *batch, float loss_scale, bool backward,
                             double *sum, qr_error *err) {
    const int64_t n_targets = find_targets(pass, batch), most = qr_pass_logit_rows(pass->model, &pass->limits);
    *sum = 0;
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.rows, pass->host_rows, n_targets, err));
    QR_RETURN_IF_ERROR(qr_pass_copy_ints(pass, pass->b.target, pass->host_targets, n_targets, err));
    qr_pass_parts chunks = qr_pass_parts_begin(pass, n_targets, most);
    for (; chunks.n_rows > 0; qr_pass_parts_next(pass, &chunks)) {
        QR_RETURN_IF_ERROR(qr_pass_check_cancelled(pass, err));
        QR_RETURN_IF_ERROR(loss_of_chunk(pass, chunks.first, chunks.n_rows, loss_scale, err));
        if (backward) { QR_RETURN_IF_ERROR(head_backward(pass, chunks.first, chunks.n_rows, err)); }
    }
    if (!backward) { return sum_losses(pass, n_targets, sum, err); }
    const qr_scatter_rows_args scatter = {.src = pass->b.dselected,
                                          .rows = pass->b.rows,
                                          .dst = pass->b.dx,
                                          .n_rows = n_targets,
                                          .n_dst_rows = pass->n_tokens,
                                          .dim = pass->model->shape.hidden};
    QR_RETURN_IF_ERROR(qr_scatter_rows(pass->backend, &scatter, pass->workspace, err));
    return sum_losses(pass, n_targets, sum, err);
}
