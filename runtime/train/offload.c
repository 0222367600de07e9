/* Inputs of segments that are held in host memory. The forward pass sends each there from one of two stages on the
 * device, which take turns. It is fetched back to its stage while the next segment runs backward. A stage is used again
 * only when its last use is over: transfers begin after the ops issued before them, and ops wait for the stage's
 * transfer. */
#include "runtime/train/pass_state.h"

static size_t input_bytes(const qr_train_pass *pass) {
    return (size_t)(pass->n_tokens * pass->model->shape.hidden) * sizeof(float);
}

qrun_status qr_pass_await_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->stage < 0) { return QRUN_OK; }
    return pass->backend->transfer_wait(pass->backend, pass->stage_tickets[segment->stage], err);
}

qrun_status qr_pass_send_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->x_host == NULL) { return QRUN_OK; }
    const float *stage = pass->activations.layers[segment->first].x_in;
    return pass->backend->transfer_out(pass->backend, segment->x_host, stage, input_bytes(pass),
                                       &pass->stage_tickets[segment->stage], err);
}

qrun_status qr_pass_fetch_input(qr_train_pass *pass, const qr_segment *segment, qr_error *err) {
    if (segment->x_host == NULL) { return QRUN_OK; }
    float *stage = pass->activations.layers[segment->first].x_in;
    return pass->backend->transfer_in(pass->backend, stage, segment->x_host, input_bytes(pass),
                                      &pass->stage_tickets[segment->stage], err);
}
