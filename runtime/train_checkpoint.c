/* Checkpoints: out/checkpoint-<step>/ with the parameters and the optimiser's states (state.safetensors), where the run
 * stands (state.json), what run it is (run.json), and the adapter as PEFT reads it. Written aside, fsynced, renamed: a
 * folder of that name is always whole. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/safetensors.h"
#include "loaders/safetensors_writer.h"
#include "runtime/adapter_export.h"
#include "runtime/trainer.h"

static const char CHECKPOINT_PREFIX[] = "checkpoint-";
enum { MAX_STATE_BYTES = 1 << 20, COPY_BYTES = 1 << 22 };

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

/* All but the last n_kept. */
static void remove_old(const qrun_trainer *trainer, int64_t n_kept) {
    int64_t step = INT64_MAX;
    for (int64_t kept = 0; (step = last_checkpoint(trainer->settings.out, step)) >= 0; kept++) {
        if (kept < n_kept) { continue; }
        char *path = checkpoint_path(trainer, step);
        if (path != NULL) { qr_folder_remove_flat(path); }
        qr_free(path);
    }
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static qrun_status write_text(const char *folder, const char *name, const char *text, qr_error *err) {
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    const qrun_status status = qr_file_write(path, text, strlen(text), err);
    qr_free(path);
    return status;
}

/* Device memory into the next tensor of the writer, piece by piece. */
static qrun_status write_device(qrun_trainer *trainer, qr_safetensors_writer *writer, const void *device,
                                size_t n_bytes, void *staging, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    qrun_status status = QRUN_OK;
    for (size_t done = 0; done < n_bytes && status == QRUN_OK; done += COPY_BYTES) {
        const size_t n = n_bytes - done < COPY_BYTES ? n_bytes - done : COPY_BYTES;
        status = backend->copy_out(backend, staging, (const unsigned char *)device + done, n, err);
        if (status == QRUN_OK) { status = qr_safetensors_writer_write(writer, staging, n, err); }
    }
    return status;
}

static qrun_status write_state(qrun_trainer *trainer, const char *folder, qr_error *err) {
    size_t n_optimizer;
    void *optimizer = qr_optimizer_states(trainer->optimizer, &n_optimizer);
    const qr_safetensors_spec specs[] = {{"parameters", QR_DTYPE_F32, 1, {trainer->parameters.n_floats}},
                                         {"optimizer", QR_DTYPE_U8, 1, {(int64_t)n_optimizer}}};
    qr_safetensors_writer *writer = NULL;
    void *staging = qr_alloc(COPY_BYTES);
    qrun_status status = QRUN_OK;
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "a checkpoint", COPY_BYTES)); }
    QR_TRY(qr_safetensors_writer_create(folder, "state", specs, QR_COUNT_OF(specs), 0, &writer, err));
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        const bool parameters = spec == &specs[0];
        QR_TRY(write_device(trainer, writer, parameters ? (const void *)trainer->parameters.values : optimizer,
                            parameters ? qr_parameters_bytes(&trainer->parameters) : n_optimizer, staging,
                            err));
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
out:
    qr_safetensors_writer_abort(writer);
    qr_free(staging);
    return status;
}

qrun_status qrun_trainer_save(qrun_trainer *trainer, qrun_error *error) {
    const qr_train_state *state = &trainer->state;
    char text[160];
    (void)snprintf(text, sizeof text, "{\"version\":1,\"step\":%lld,\"epoch\":%lld,\"window\":%lld}\n",
                   (long long)state->step, (long long)state->cursor.epoch, (long long)state->cursor.window);
    char *path = checkpoint_path(trainer, state->step);
    qr_folder_writer folder = {0};
    qrun_status status = QRUN_OK;
    if (path == NULL) { QR_TRY(qr_fail_memory(error, "a path", strlen(trainer->settings.out))); }
    QR_TRY(qr_trainer_require_out(trainer, error));
    if (trainer->begins_anew) { remove_old(trainer, 0); } /* those of the run before would be taken for this one's */
    trainer->begins_anew = false;
    if (qr_file_exists(path)) { goto out; } /* saved already: nothing has changed since */
    QR_TRY(qr_folder_writer_open(&folder, path, error));
    QR_TRY(write_state(trainer, folder.partial_path, error));
    QR_TRY(write_text(folder.partial_path, "run.json", trainer->fingerprint, error));
    QR_TRY(write_text(folder.partial_path, "state.json", text, error));
    QR_TRY(qr_adapter_export(trainer, folder.partial_path, error));
    status = qr_folder_writer_commit(&folder, error);
    if (status == QRUN_OK) { remove_old(trainer, trainer->settings.keep); }
out:
    qr_folder_writer_abort(&folder);
    qr_free(path);
    return status;
}

/* ---- Taking up again --------------------------------------------------------------------------------------------- */

static qrun_status read_text(const char *folder, const char *name, char **text, qr_error *err) {
    size_t n_bytes;
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    const qrun_status status = qr_file_read(path, MAX_STATE_BYTES, text, &n_bytes, err);
    qr_free(path);
    return status;
}

static qrun_status check_run(const qrun_trainer *trainer, const char *folder, qr_error *err) {
    char *text = NULL;
    qrun_status status = read_text(folder, "run.json", &text, err);
    if (status == QRUN_OK && strcmp(text, trainer->fingerprint) != 0) {
        status = qr_fail(err, QRUN_ERROR_INPUT,
                         "%s: was made with another model, data or options (see its run.json); use the same ones, "
                         "--restart to begin anew, or another --out", folder);
    }
    qr_free(text);
    return status;
}

static qrun_status read_position(const char *folder, qr_train_state *state, qr_error *err) {
    qr_json *root = NULL;
    char *path = qr_path_join(folder, "state.json");
    qrun_status status = QRUN_OK;
    int64_t version = 0;
    const int64_t most = INT64_C(1) << 52;
    *state = (qr_train_state){.step = -1, .cursor = {-1, -1}};
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(folder))); }
    QR_TRY(qr_json_read(path, MAX_STATE_BYTES, &root, err));
    QR_TRY(qr_json_get_int(root, "version", 1, 1, &version, path, err));
    QR_TRY(qr_json_get_int(root, "step", 0, most, &state->step, path, err));
    QR_TRY(qr_json_get_int(root, "epoch", 0, most, &state->cursor.epoch, path, err));
    QR_TRY(qr_json_get_int(root, "window", 0, most, &state->cursor.window, path, err));
    if (version != 1 || state->step < 0 || state->cursor.epoch < 0 || state->cursor.window < 0) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: lacks version, step, epoch or window", path));
    }
out:
    qr_json_free(root);
    qr_free(path);
    return status;
}

static qrun_status read_state(qrun_trainer *trainer, const char *folder, qr_error *err) {
    qr_backend *backend = trainer->model->context->backend;
    size_t n_optimizer;
    void *optimizer = qr_optimizer_states(trainer->optimizer, &n_optimizer);
    const int64_t n_parameters = trainer->parameters.n_floats, n_states = (int64_t)n_optimizer;
    const qr_safetensors_tensor *values, *states;
    qr_safetensors *file = NULL;
    char *path = qr_path_join(folder, "state.safetensors");
    qrun_status status = QRUN_OK;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(folder))); }
    QR_TRY(qr_safetensors_open(path, &file, err));
    QR_TRY(qr_safetensors_require(file, "parameters", QR_DTYPE_BIT(QR_DTYPE_F32), 1, &n_parameters, &values, err));
    QR_TRY(qr_safetensors_require(file, "optimizer", QR_DTYPE_BIT(QR_DTYPE_U8), 1, &n_states, &states, err));
    QR_TRY(backend->copy_in(backend, trainer->parameters.values, values->data, values->n_bytes, err));
    QR_TRY(backend->copy_in(backend, optimizer, states->data, states->n_bytes, err));
out:
    qr_safetensors_close(file);
    qr_free(path);
    return status;
}

qrun_status qr_trainer_stored_now(const qrun_trainer *trainer, int64_t *now, qr_error *err) {
    const int64_t step = last_checkpoint(trainer->settings.out, INT64_MAX);
    if (step < 0) { return QRUN_OK; }
    qr_json *root = NULL;
    char *folder = checkpoint_path(trainer, step);
    char *path = folder != NULL ? qr_path_join(folder, "run.json") : NULL;
    qrun_status status = path != NULL ? qr_json_read(path, MAX_STATE_BYTES, &root, err)
                                      : qr_fail_memory(err, "a path", strlen(trainer->settings.out));
    if (status == QRUN_OK) { status = qr_json_get_int(root, "now", 0, INT64_C(1) << 40, now, path, err); }
    qr_json_free(root);
    qr_free(path);
    qr_free(folder);
    return status;
}

qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err) {
    const int64_t step = last_checkpoint(trainer->settings.out, INT64_MAX);
    if (step < 0) { return QRUN_OK; }
    char *path = checkpoint_path(trainer, step);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(trainer->settings.out)); }
    qrun_status status = QRUN_OK;
    qr_train_state state;
    QR_TRY(check_run(trainer, path, err));
    QR_TRY(read_position(path, &state, err));
    QR_TRY(read_state(trainer, path, err));
    if (state.step != step || state.step > trainer->total_steps) {
        QR_TRY(qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: state.json does not fit this run; remove the folder to go on from the "
                       "checkpoint before it",
                       path));
    }
    trainer->state = state;
out:
    qr_free(path);
    return status;
}
