/* Checkpoints: out/checkpoint-<step>/ with the parameters and the optimiser's states (state.safetensors), where the run
 * stands (state.json), what run it is (run.json), and the adapter as PEFT reads it. Written aside, fsynced, renamed: a
 * folder of that name is always whole. */
#include <dirent.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/checkpoint.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/train/trainer.h"

static const char CHECKPOINT_PREFIX[] = "checkpoint-";
enum { COPY_BYTES = 1 << 22 };

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static char *checkpoint_path(const qrun_trainer *trainer, int64_t step) {
    char name[48];
    (void)snprintf(name, sizeof name, "%s%lld", CHECKPOINT_PREFIX, (long long)step);
    return qr_path_join(trainer->settings.out, name);
}

/* The step in a checkpoint's name; −1 for any other name. */
static int64_t step_of_name(const char *name) {
    const size_t length = sizeof CHECKPOINT_PREFIX - 1;
    if (strncmp(name, CHECKPOINT_PREFIX, length) != 0 || name[length] < '0' || name[length] > '9') { return -1; }
    char *end;
    const long long step = strtoll(name + length, &end, 10);
    return *end == '\0' ? step : -1;
}

/* The largest step below `below` that has a checkpoint; −1: none. */
static int64_t last_checkpoint(const char *out, int64_t below) {
    DIR *folder = opendir(out);
    int64_t last = -1;
    if (folder == NULL) { return -1; }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        const int64_t step = step_of_name(entry->d_name);
        if (step < below && step > last) { last = step; }
    }
    closedir(folder);
    return last;
}

static bool has_checkpoint(const qrun_trainer *trainer, int64_t step) {
    return last_checkpoint(trainer->settings.out, step + 1) == step;
}

/* All but the last n_kept and, where any are kept, that of the best evaluation. */
static qrun_status remove_old(const qrun_trainer *trainer, int64_t n_kept, qr_error *err) {
    qrun_status status = QRUN_OK;
    int64_t step = INT64_MAX, n = 0;
    for (; status == QRUN_OK && (step = last_checkpoint(trainer->settings.out, step)) >= 0; n++) {
        if (n < n_kept || (n_kept > 0 && step == trainer->state.best_step)) { continue; }
        char *path = checkpoint_path(trainer, step);
        status =
            path != NULL ? qr_folder_retire(path, err) : qr_fail_memory(err, "a path", strlen(trainer->settings.out));
        qr_free(path);
    }
    return status;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static qrun_status write_text(const char *folder, const char *name, const char *text, qr_error *err) {
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    const qrun_status status = qr_file_write(path, text, strlen(text), err);
    qr_free(path);
    return status;
}

/* Bytes [offset, offset + n) of the values or of the optimiser's states. */
static qrun_status read_bytes(const qrun_trainer *trainer, bool parameters, size_t offset, size_t n, void *host,
                              qr_error *err) {
    if (!parameters) { return qr_optimizer_states_read(trainer->optimizer, offset, n, host, err); }
    qr_backend *backend = trainer->model->context->backend;
    return backend->copy_out(backend, host, (const unsigned char *)trainer->parameters.values + offset, n, err);
}

/* Into the next tensor of the writer, piece by piece. */
static qrun_status write_tensor(const qrun_trainer *trainer, qr_safetensors_writer *writer, bool parameters,
                                size_t n_bytes, void *staging, uint64_t *checksum, qr_error *err) {
    qrun_status status = QRUN_OK;
    for (size_t done = 0; done < n_bytes && status == QRUN_OK; done += COPY_BYTES) {
        const size_t n = n_bytes - done < COPY_BYTES ? n_bytes - done : COPY_BYTES;
        status = read_bytes(trainer, parameters, done, n, staging, err);
        if (status == QRUN_OK) {
            *checksum = qr_hash_words(*checksum, staging, n);
            status = qr_safetensors_writer_write(writer, staging, n, err);
        }
    }
    return status;
}

/* The tensors, in the order of the checksum: the file has them by falling alignment of their types. */
static qrun_status write_state(const qrun_trainer *trainer, const char *folder, uint64_t *checksum, qr_error *err) {
    const size_t n_parameters = qr_parameters_bytes(&trainer->parameters);
    const size_t n_optimizer = qr_optimizer_states_bytes(trainer->optimizer);
    const qr_safetensors_spec specs[] = {{"parameters", QR_DTYPE_F32, 1, {trainer->parameters.n_floats}},
                                         {"optimizer", QR_DTYPE_U8, 1, {(int64_t)n_optimizer}}};
    qr_safetensors_writer *writer = NULL;
    void *staging = qr_alloc(COPY_BYTES);
    qrun_status status = QRUN_OK;
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "a checkpoint", COPY_BYTES)); }
    QR_TRY(qr_safetensors_writer_create(folder, "state", specs, QR_COUNT_OF(specs), 0, &writer, err));
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        const bool parameters = spec == &specs[0];
        QR_TRY(
            write_tensor(trainer, writer, parameters, parameters ? n_parameters : n_optimizer, staging, checksum, err));
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
out:
    qr_safetensors_writer_abort(writer);
    qr_free(staging);
    return status;
}

static qrun_status write_place(const qr_train_state *state, const char *folder, uint64_t checksum, qr_error *err) {
    char text[512];
    const int n = snprintf(text, sizeof text,
                           "{\"version\":1,\"step\":%lld,\"updates\":%lld,\"epoch\":%lld,\"window\":%lld,"
                           "\"loss_scale\":%.17g,\"good_steps\":%d,\"checksum\":\"%016" PRIx64 "\",",
                           (long long)state->step, (long long)state->updates, (long long)state->cursor.epoch,
                           (long long)state->cursor.window, (double)state->loss_scale.factor,
                           state->loss_scale.good_steps, checksum);
    (void)snprintf(text + n, sizeof text - (size_t)n,
                   "\"evaluated_step\":%lld,\"best_step\":%lld,\"best_loss\":%.17g,\"n_not_better\":%lld}\n",
                   (long long)state->evaluated_step, (long long)state->best_step, state->best_loss,
                   (long long)state->n_not_better);
    return write_text(folder, "state.json", text, err);
}

qrun_status qrun_trainer_save(qrun_trainer *trainer, qrun_error *error) {
    char *path = checkpoint_path(trainer, trainer->state.step);
    qr_folder_writer folder = {0};
    uint64_t checksum = QR_HASH_START;
    qrun_status status = QRUN_OK;
    if (path == NULL) { QR_TRY(qr_fail_memory(error, "a path", strlen(trainer->settings.out))); }
    QR_TRY(qr_trainer_require_out(trainer, error));
    QR_TRY(qr_trainer_require_current(trainer, error));
    if (!trainer->begins_anew && qr_file_exists(path)) { goto out; } /* saved already: nothing has changed since */
    if (qr_file_exists(path)) { QR_TRY(qr_folder_retire(path, error)); }
    QR_TRY(qr_folder_writer_open(&folder, path, error));
    QR_TRY(write_state(trainer, folder.partial_path, &checksum, error));
    QR_TRY(write_text(folder.partial_path, "run.json", trainer->fingerprint, error));
    QR_TRY(write_place(&trainer->state, folder.partial_path, checksum, error));
    QR_TRY(qr_trainer_write_result(trainer, folder.partial_path, error));
    if (trainer->begins_anew) { QR_TRY(remove_old(trainer, 0, error)); } /* they would be taken for this run's */
    trainer->begins_anew = false;
    QR_TRY(qr_folder_writer_commit(&folder, error));
    QR_TRY(remove_old(trainer, trainer->settings.keep, error));
out:
    qr_folder_writer_abort(&folder);
    qr_free(path);
    return status;
}

/* ---- Taking up again --------------------------------------------------------------------------------------------- */

static qrun_status check_run(const qrun_trainer *trainer, const char *folder, const qr_checkpoint *checkpoint,
                             qr_error *err) {
    qr_json *own = NULL;
    char *difference = NULL;
    qrun_status status;
    QR_TRY(qr_json_parse(trainer->fingerprint, strlen(trainer->fingerprint), "this run", &own, err));
    difference = qr_checkpoint_difference(own, checkpoint->run);
    if (difference == NULL) { QR_TRY(qr_fail_memory(err, "a message", 0)); }
    if (difference[0] != '\0') {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: was made by another run: %s; use the same model, data and options, "
                       "--restart to begin anew, or another --out",
                       folder, difference));
    }
out:
    qr_json_free(own);
    qr_free(difference);
    return status;
}

/* How to go on without a checkpoint that cannot be used. */
static qrun_status refuse_damaged(const qrun_trainer *trainer, int64_t step, const qr_error *why, qr_error *err) {
    const int64_t before = last_checkpoint(trainer->settings.out, step);
    char way[128] = "--restart begins anew";
    if (before >= 0) {
        (void)snprintf(way, sizeof way, "remove that folder to go on from %s%lld, before it; the result is the same",
                       CHECKPOINT_PREFIX, (long long)before);
    }
    return qr_fail(err, why->status, "the checkpoint of step %lld is damaged: %s; %s", (long long)step, why->message,
                   way);
}

static qrun_status open_checkpoint(const qrun_trainer *trainer, int64_t step, const char *folder,
                                   qr_checkpoint *checkpoint, qr_error *err) {
    qr_error why = {0};
    qrun_status status = qr_checkpoint_open(folder, checkpoint, &why);
    if (status == QRUN_OK && checkpoint->step != step) {
        status = qr_fail(&why, QRUN_ERROR_INPUT, "%s: state.json is of step %lld", folder, (long long)checkpoint->step);
    }
    if (status == QRUN_ERROR_INPUT || status == QRUN_ERROR_NOT_FOUND) {
        return refuse_damaged(trainer, step, &why, err);
    }
    return status == QRUN_OK ? status : qr_fail(err, status, "%s", why.message);
}

/* What the evaluations up to there have given. */
static qrun_status read_evaluations(const qr_json *object, const char *folder, qr_train_state *state, qr_error *err) {
    const struct {
        const char *key;
        int64_t *value;
    } members[] = {{"evaluated_step", &state->evaluated_step},
                   {"best_step", &state->best_step},
                   {"n_not_better", &state->n_not_better}};
    qrun_status status = QRUN_OK;
    for (size_t i = 0; i < QR_COUNT_OF(members) && status == QRUN_OK; i++) {
        *members[i].value = -1;
        status = qr_json_get_int(object, members[i].key, 0, INT64_C(1) << 52, members[i].value, folder, err);
    }
    state->best_loss = NAN;
    if (status == QRUN_OK) {
        status = qr_json_get_double(object, "best_loss", -1e300, 1e300, &state->best_loss, folder, err);
    }
    const bool whole = state->evaluated_step >= 0 && state->evaluated_step <= state->step && state->best_step >= 0 &&
                       state->best_step <= state->evaluated_step && state->n_not_better >= 0 &&
                       isfinite(state->best_loss);
    if (status != QRUN_OK || whole) { return status; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: state.json lacks the evaluations of the run; --restart begins anew",
                   folder);
}

/* The updates so far, and the loss scale that the last one left. */
static qrun_status read_scaling(const qr_json *object, const char *folder, qr_train_state *state, qr_error *err) {
    double factor = 0;
    int64_t good_steps = -1;
    state->updates = -1;
    QR_RETURN_IF_ERROR(qr_json_get_int(object, "updates", 0, state->step, &state->updates, folder, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(object, "loss_scale", 1, FLT_MAX, &factor, folder, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(object, "good_steps", 0, INT32_MAX, &good_steps, folder, err));
    if (state->updates < 0 || factor < 1 || good_steps < 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: state.json lacks updates, loss_scale or good_steps; --restart begins "
                       "anew",
                       folder);
    }
    state->loss_scale.factor = (float)factor;
    state->loss_scale.good_steps = (int32_t)good_steps;
    return QRUN_OK;
}

static qrun_status take_parameters(qrun_trainer *trainer, const qr_checkpoint *checkpoint, const char *folder,
                                   qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    const qr_safetensors_tensor *values = checkpoint->parameters;
    if (values->n_bytes != qr_parameters_bytes(&trainer->parameters)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: does not have the size that this run needs; --restart begins anew",
                       folder);
    }
    return backend->copy_in(backend, trainer->parameters.values, values->data, values->n_bytes, err);
}

static qrun_status take_state(qrun_trainer *trainer, const qr_checkpoint *checkpoint, const char *folder,
                              qr_error *err) {
    const qr_safetensors_tensor *states = checkpoint->optimizer;
    qr_train_state state = {.step = checkpoint->step,
                            .cursor = {checkpoint->epoch, checkpoint->window},
                            .loss_scale = trainer->state.loss_scale};
    if (states->n_bytes != qr_optimizer_states_bytes(trainer->optimizer) || checkpoint->step > trainer->total_steps) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: does not have the size that this run needs; --restart begins anew",
                       folder);
    }
    QR_RETURN_IF_ERROR(read_scaling(checkpoint->state, folder, &state, err));
    QR_RETURN_IF_ERROR(read_evaluations(checkpoint->state, folder, &state, err));
    if (state.best_step > 0 && !has_checkpoint(trainer, state.best_step)) {
        QR_RETURN_IF_ERROR(qr_fail(err, QRUN_ERROR_INPUT,
                                   "%s: the checkpoint of the best evaluation, %s%lld, is not beside it; "
                                   "put it back, or use --restart to begin anew",
                                   folder, CHECKPOINT_PREFIX, (long long)state.best_step));
    }
    QR_RETURN_IF_ERROR(take_parameters(trainer, checkpoint, folder, err));
    QR_RETURN_IF_ERROR(qr_optimizer_states_write(trainer->optimizer, 0, states->n_bytes, states->data, err));
    trainer->state = state;
    return QRUN_OK;
}

qrun_status qr_trainer_read_parameters(qrun_trainer *trainer, int64_t step, qr_error *err) {
    qr_checkpoint checkpoint = {0};
    char *path = checkpoint_path(trainer, step);
    qrun_status status;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(trainer->settings.out))); }
    QR_TRY(open_checkpoint(trainer, step, path, &checkpoint, err));
    QR_TRY(check_run(trainer, path, &checkpoint, err));
    QR_TRY(take_parameters(trainer, &checkpoint, path, err));
    QR_TRY(qr_whole_parameters_refresh(&trainer->parameters, trainer->scratch, err));
out:
    qr_checkpoint_close(&checkpoint);
    qr_free(path);
    return status;
}

/* In the folder of a run: none of another is at work there, and nothing is left of those that were killed. */
qrun_status qr_trainer_enter_folder(qrun_trainer *trainer, qr_error *err) {
    const char *out = trainer->settings.out;
    char *tokens = NULL;
    qrun_status status;
    if (qr_file_is_same(out, trainer->model->folder)) {
        QR_TRY(
            qr_fail(err, QRUN_ERROR_INPUT, "%s: is the model's own folder; give another one to write to (--out)", out));
    }
    trainer->made_out = !qr_file_is_folder(out);
    QR_TRY(qr_folder_create(out, err));
    QR_TRY(qr_folder_lock(out, &trainer->out_lock, err));
    QR_TRY(qr_folder_remove_partials(out, err));
    tokens = qr_path_join(out, QR_TOKENS_FOLDER);
    if (tokens == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(out))); }
    QR_TRY(qr_folder_remove_partials(tokens, err));
out:
    qr_free(tokens);
    return status;
}

void qr_trainer_leave_folder(qrun_trainer *trainer) {
    if (!trainer->made_out) { return; }
    char *tokens = qr_path_join(trainer->settings.out, QR_TOKENS_FOLDER);
    if (tokens != NULL) { (void)rmdir(tokens); }
    (void)rmdir(trainer->settings.out);
    qr_free(tokens);
}

qrun_status qr_trainer_stored_now(const qrun_trainer *trainer, int64_t *now, qr_error *err) {
    const int64_t step = last_checkpoint(trainer->settings.out, INT64_MAX);
    if (step < 0) { return QRUN_OK; }
    qr_error why = {0};
    qr_json *root = NULL;
    char *folder = checkpoint_path(trainer, step);
    char *path = folder != NULL ? qr_path_join(folder, "run.json") : NULL;
    qrun_status status = path != NULL ? qr_json_read(path, QR_CHECKPOINT_JSON_BYTES, &root, &why)
                                      : qr_fail_memory(&why, "a path", strlen(trainer->settings.out));
    if (status == QRUN_OK) { status = qr_json_get_int(root, "now", 0, INT64_C(1) << 40, now, path, &why); }
    if (status == QRUN_ERROR_INPUT || status == QRUN_ERROR_NOT_FOUND) {
        status = refuse_damaged(trainer, step, &why, err);
    } else if (status != QRUN_OK) {
        status = qr_fail(err, status, "%s", why.message);
    }
    qr_json_free(root);
    qr_free(path);
    qr_free(folder);
    return status;
}

qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err) {
    const int64_t step = last_checkpoint(trainer->settings.out, INT64_MAX);
    if (step < 0) { return QRUN_OK; }
    qr_checkpoint checkpoint = {0};
    char *path = checkpoint_path(trainer, step);
    qrun_status status;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(trainer->settings.out))); }
    QR_TRY(open_checkpoint(trainer, step, path, &checkpoint, err));
    QR_TRY(check_run(trainer, path, &checkpoint, err));
    QR_TRY(take_state(trainer, &checkpoint, path, err));
    QR_TRY(remove_old(trainer, trainer->settings.keep, err)); /* a run killed before it did */
out:
    qr_checkpoint_close(&checkpoint);
    qr_free(path);
    return status;
}
