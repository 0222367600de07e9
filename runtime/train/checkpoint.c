/* Checkpoints: out/checkpoint-<step>/ with the parameters and the optimiser's states (state.safetensors), the position
 * of the run (state.json), its fingerprint (run.json), and the adapter as PEFT reads it. Written under another name,
 * fsynced, renamed: a folder of that name is always whole. */
#include <dirent.h>
#include <float.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/number.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/files/checkpoint.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/pass/whole_shards.h"
#include "runtime/train/trainer.h"

static const char CHECKPOINT_PREFIX[] = "checkpoint-";
enum { COPY_BYTES = QR_STATES_PIECE_BYTES };

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static qrun_status join_path(const char *folder, const char *name, char **path, qr_error *err) {
    *path = qr_path_join(folder, name);
    return *path != NULL ? QRUN_OK : qr_fail_memory(err, "a path", strlen(folder));
}

/* *path: qr_free. */
static qrun_status checkpoint_path(const qrun_trainer *trainer, int64_t step, char **path, qr_error *err) {
    char name[48];
    (void)snprintf(name, sizeof name, "%s%lld", CHECKPOINT_PREFIX, (long long)step);
    return join_path(trainer->settings.out, name, path, err);
}

/* The step in a checkpoint's name; −1 for any other name. */
static int64_t step_of_name(const char *name) {
    const size_t length = sizeof CHECKPOINT_PREFIX - 1;
    if (strncmp(name, CHECKPOINT_PREFIX, length) != 0 || name[length] < '1' || name[length] > '9') { return -1; }
    char *end;
    const long long step = strtoll(name + length, &end, 10);
    return *end == '\0' ? step : -1;
}

/* Whether there is a checkpoint of ours of that step. */
static qrun_status has_checkpoint(const qrun_trainer *trainer, int64_t step, bool *has, qr_error *err) {
    char *path;
    QR_RETURN_IF_ERROR(checkpoint_path(trainer, step, &path, err));
    const qrun_status status = qr_checkpoint_recognise(path, has, err);
    qr_free(path);
    return status;
}

/* *last: the largest step below `below` that has a checkpoint of ours; −1: none. Folders of others may have such names
 * too; they are passed over. */
static qrun_status last_checkpoint(const qrun_trainer *trainer, int64_t below, int64_t *last, qr_error *err) {
    DIR *folder = opendir(trainer->settings.out);
    qrun_status status = QRUN_OK;
    *last = -1;
    for (const struct dirent *entry; folder != NULL && status == QRUN_OK && (entry = readdir(folder)) != NULL;) {
        const int64_t step = step_of_name(entry->d_name);
        bool has = false;
        if (step < below && step > *last) { status = has_checkpoint(trainer, step, &has, err); }
        if (has) { *last = step; }
    }
    if (folder != NULL) { closedir(folder); }
    return status;
}

qrun_status qr_trainer_refuse_foreign(const qrun_trainer *trainer, qr_error *err) {
    DIR *folder = opendir(trainer->settings.out);
    qrun_status status = QRUN_OK;
    for (const struct dirent *entry; folder != NULL && status == QRUN_OK && (entry = readdir(folder)) != NULL;) {
        const int64_t step = step_of_name(entry->d_name);
        bool has = true;
        if (step > trainer->state.step && step <= trainer->total_steps) {
            status = has_checkpoint(trainer, step, &has, err);
        }
        if (status == QRUN_OK && !has) {
            status = qr_fail(err, QRUN_ERROR_INPUT,
                             "%s/%s: is in the way of this run's checkpoints and no checkpoint of qrun, so it is left "
                             "alone; move it away, or choose another `out`",
                             trainer->settings.out, entry->d_name);
        }
    }
    if (folder != NULL) { closedir(folder); }
    return status;
}

/* All but the last n_kept and, where any are kept, that of the best evaluation. */
static qrun_status remove_old(const qrun_trainer *trainer, int64_t n_kept, qr_error *err) {
    int64_t step = INT64_MAX;
    for (int64_t n = 0;; n++) {
        QR_RETURN_IF_ERROR(last_checkpoint(trainer, step, &step, err));
        if (step < 0) { return QRUN_OK; }
        if (n < n_kept || (n_kept > 0 && step == trainer->state.best_step)) { continue; }
        char *path;
        QR_RETURN_IF_ERROR(checkpoint_path(trainer, step, &path, err));
        const qrun_status status = qr_folder_retire(path, err);
        qr_free(path);
        QR_RETURN_IF_ERROR(status);
    }
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static qrun_status write_text(const char *folder, const char *name, const char *text, qr_error *err) {
    char *path;
    QR_RETURN_IF_ERROR(join_path(folder, name, &path, err));
    const qrun_status status = qr_file_write(path, text, strlen(text), err);
    qr_free(path);
    return status;
}

/* Bytes [offset, offset + n) of the values or of the optimiser's states. */
static qrun_status read_bytes(qrun_trainer *trainer, bool parameters, size_t offset, size_t n, void *host,
                              qr_error *err) {
    if (!parameters) { return qr_trainer_read_states(trainer, offset, n, host, err); }
    return qr_trainer_read_values(trainer, (int64_t)(offset / sizeof(float)), (int64_t)(n / sizeof(float)), host, err);
}

/* The parameters or the optimiser's states, piece by piece, as the next tensor of the writer. */
static qrun_status write_tensor(qrun_trainer *trainer, qr_safetensors_writer *writer, bool parameters, void *staging,
                                uint64_t *checksum, qr_error *err) {
    const size_t n_bytes =
        parameters ? qr_parameters_bytes(&trainer->parameters) : qr_optimizer_states_bytes(trainer->optimizer);
    for (size_t done = 0; done < n_bytes; done += COPY_BYTES) {
        const size_t n = n_bytes - done < COPY_BYTES ? n_bytes - done : COPY_BYTES;
        QR_RETURN_IF_ERROR(read_bytes(trainer, parameters, done, n, staging, err));
        *checksum = qr_hash_words(*checksum, staging, n);
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, staging, n, err));
    }
    return QRUN_OK;
}

/* The tensors, in the order of the checksum: the file has them by falling alignment of their types. */
static qrun_status write_state(qrun_trainer *trainer, const char *folder, uint64_t *checksum, qr_error *err) {
    const int64_t n_optimizer = (int64_t)qr_optimizer_states_bytes(trainer->optimizer);
    const qr_safetensors_spec specs[] = {{"parameters", QR_DTYPE_F32, 1, {trainer->parameters.n_floats}},
                                         {"optimizer", QR_DTYPE_U8, 1, {n_optimizer}}};
    qr_safetensors_writer *writer = NULL;
    void *staging = qr_alloc(COPY_BYTES);
    qrun_status status = QRUN_OK;
    if (staging == NULL) { QR_TRY(qr_fail_memory(err, "a checkpoint", COPY_BYTES)); }
    QR_TRY(qr_safetensors_writer_create(folder, "state", specs, QR_COUNT_OF(specs), 0, &writer, err));
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        QR_TRY(write_tensor(trainer, writer, spec == &specs[0], staging, checksum, err));
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
out:
    qr_safetensors_writer_abort(writer);
    qr_free(staging);
    return status;
}

/* The members of state.json, in the order of the file: fields of the trainer's state, and the checksum of the tensors.
 */
typedef enum member_kind { MEMBER_CHECKSUM, MEMBER_COUNT, MEMBER_NUMBER } member_kind;
#define COUNT(name, field) \
    { .key = name, .kind = MEMBER_COUNT, .offset = offsetof(qr_train_state, field) }
#define NUMBER(name, field, least, most) \
    { .key = name, .kind = MEMBER_NUMBER, .offset = offsetof(qr_train_state, field), .low = least, .high = most }
static const struct {
    const char *key;
    member_kind kind;
    size_t offset; /* of an int64_t, or of a double from low to high */
    double low, high;
} members[] = {
    COUNT("step", step),
    COUNT("updates", updates),
    COUNT("epoch", cursor.epoch),
    COUNT("batch", cursor.batch),
    NUMBER("loss_scale", loss_scale.factor, 1, FLT_MAX),
    COUNT("good_steps", loss_scale.good_steps),
    {.key = "checksum"},
    COUNT("evaluated_step", evaluated_step),
    COUNT("best_step", best_step),
    NUMBER("best_loss", best_loss, -1e300, 1e300),
    COUNT("n_not_better", n_not_better),
};
#undef COUNT
#undef NUMBER

static qrun_status write_position(const qrun_trainer *trainer, const char *folder, uint64_t checksum, qr_error *err) {
    const qr_train_state *state = &trainer->state;
    const char *run = trainer->fingerprint;
    qr_buffer text = {0};
    qr_buffer_append_text(&text, "{\"version\":1");
    for (size_t i = 0; i < QR_COUNT_OF(members); i++) {
        const void *field = (const unsigned char *)state + members[i].offset;
        char value[QR_NUMBER_BYTES];
        if (members[i].kind == MEMBER_CHECKSUM) {
            (void)snprintf(value, sizeof value, "\"%016" PRIx64 "\"", checksum);
        } else {
            const bool is_count = members[i].kind == MEMBER_COUNT;
            qr_number_format_digits(is_count ? (double)*(const int64_t *)field : *(const double *)field, 17, value);
        }
        qr_buffer_append_format(&text, ",\"%s\":%s", members[i].key, value);
    }
    qr_buffer_append_format(&text, ",\"run_checksum\":\"%016" PRIx64 "\"}\n",
                            qr_hash_bytes(QR_HASH_START, run, strlen(run)));
    const qrun_status status = qr_buffer_ok(&text) ? write_text(folder, "state.json", text.data, err)
                                                   : qr_fail_memory(err, "a checkpoint", text.size);
    qr_buffer_free(&text);
    return status;
}

qrun_status qr_trainer_write_checkpoint(qrun_trainer *trainer, qr_error *err) {
    char *path = NULL;
    qr_folder_writer folder = {0};
    uint64_t checksum = QR_HASH_START;
    bool exists = false;
    qrun_status status = QRUN_OK;
    QR_TRY(checkpoint_path(trainer, trainer->state.step, &path, err));
    QR_TRY(qr_checkpoint_recognise(path, &exists, err));
    if (!trainer->restarts && exists) { goto out; } /* saved already: nothing has changed since */
    if (exists) { QR_TRY(qr_folder_retire(path, err)); }
    QR_TRY(qr_folder_writer_open(&folder, path, err));
    QR_TRY(write_state(trainer, folder.partial_path, &checksum, err));
    QR_TRY(write_text(folder.partial_path, "run.json", trainer->fingerprint, err));
    QR_TRY(write_position(trainer, folder.partial_path, checksum, err));
    QR_TRY(qr_trainer_write_result(trainer, folder.partial_path, err));
    if (trainer->restarts) { QR_TRY(remove_old(trainer, 0, err)); } /* they would be taken for this run's */
    trainer->restarts = false;
    QR_TRY(qr_folder_writer_commit(&folder, err));
    QR_TRY(remove_old(trainer, trainer->settings.keep, err));
out:
    qr_folder_writer_abort(&folder);
    qr_free(path);
    return status;
}

qrun_status qrun_trainer_save(qrun_trainer *trainer, qrun_error *error) {
    QR_RETURN_IF_ERROR(qr_trainer_require_out(trainer, error));
    QR_RETURN_IF_ERROR(qr_trainer_require_current(trainer, error));
    QR_RETURN_IF_ERROR(qr_trainer_end_update(trainer, error));
    return qr_trainer_write_checkpoint(trainer, error);
}

/* ---- Resuming ---------------------------------------------------------------------------------------------------- */

static qrun_status check_run(const qrun_trainer *trainer, const char *folder, const qr_checkpoint *checkpoint,
                             qr_error *err) {
    qr_json *own = NULL;
    char *difference = NULL;
    qrun_status status;
    QR_TRY(qr_json_parse(trainer->fingerprint, strlen(trainer->fingerprint), "this run", &own, err));
    difference = qr_checkpoint_difference(own, checkpoint->run);
    if (difference == NULL) { QR_TRY(qr_fail_memory(err, "a message", 0)); }
    if (difference[0] != '\0') {
        QR_TRY(
            qr_fail(err, QRUN_ERROR_INPUT,
                    "%s: was made by another run: %s; use the same model, data and options, `restart` to begin again, "
                    "or another `out`",
                    folder, difference));
    }
out:
    qr_json_free(own);
    qr_free(difference);
    return status;
}

/* Passes on why a checkpoint cannot be used; of a damaged one, also how to continue without it. */
static qrun_status refuse_checkpoint(const qrun_trainer *trainer, int64_t step, const qr_error *why, qr_error *err) {
    const bool damaged = why->status == QRUN_ERROR_INPUT || why->status == QRUN_ERROR_NOT_FOUND;
    int64_t before = -1;
    char way[128] = "`restart` begins again";
    if (!damaged) { return qr_fail(err, why->status, "%s", why->message); }
    (void)last_checkpoint(trainer, step, &before, NULL);
    if (before >= 0) {
        (void)snprintf(way, sizeof way, "remove that folder to continue from %s%lld, before it; the result is the same",
                       CHECKPOINT_PREFIX, (long long)before);
    }
    return qr_fail(err, why->status, "the checkpoint of step %lld is damaged: %s; %s", (long long)step, why->message,
                   way);
}

/* Opens the checkpoint of a step and checks that it is of this run. Close it and free *folder, also after an error. */
static qrun_status open_checkpoint(const qrun_trainer *trainer, int64_t step, char **folder, qr_checkpoint *checkpoint,
                                   qr_error *err) {
    qr_error why = {0};
    *checkpoint = (qr_checkpoint){0};
    QR_RETURN_IF_ERROR(checkpoint_path(trainer, step, folder, err));
    qrun_status status = qr_checkpoint_open(*folder, checkpoint, &why);
    if (status == QRUN_OK && checkpoint->step != step) {
        status =
            qr_fail(&why, QRUN_ERROR_INPUT, "%s: state.json is of step %lld", *folder, (long long)checkpoint->step);
    }
    if (status != QRUN_OK) { return refuse_checkpoint(trainer, step, &why, err); }
    return check_run(trainer, *folder, checkpoint, err);
}

static qrun_status read_position(const qr_json *object, const char *folder, qr_train_state *state, qr_error *err) {
    for (size_t i = 0; i < QR_COUNT_OF(members); i++) {
        const char *key = qr_checkpoint_key(object, members[i].key);
        void *field = (unsigned char *)state + members[i].offset;
        if (qr_json_is_null(qr_json_get(object, key))) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: state.json lacks \"%s\"; `restart` begins again", folder, key);
        }
        if (members[i].kind == MEMBER_COUNT) {
            QR_RETURN_IF_ERROR(qr_json_get_int(object, key, 0, INT64_C(1) << 52, field, folder, err));
        } else if (members[i].kind == MEMBER_NUMBER) {
            QR_RETURN_IF_ERROR(qr_json_get_double(object, key, members[i].low, members[i].high, field, folder, err));
        }
    }
    if (state->updates <= state->step && state->evaluated_step <= state->step &&
        state->best_step <= state->evaluated_step) {
        return QRUN_OK;
    }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: the steps in state.json contradict each other; `restart` begins again",
                   folder);
}

/* state.safetensors has as many bytes as this run needs. */
static qrun_status check_bytes(const qr_safetensors_tensor *stored, size_t n_bytes, const char *folder, qr_error *err) {
    if (stored->n_bytes == n_bytes) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: does not have the size that this run needs; `restart` begins again",
                   folder);
}

static qrun_status take_parameters(qrun_trainer *trainer, const qr_checkpoint *checkpoint, const char *folder,
                                   qr_error *err) {
    const qr_parameters *p = &trainer->parameters;
    const qr_safetensors_tensor *values = checkpoint->parameters;
    const float *floats = (const float *)(const void *)values->data;
    QR_RETURN_IF_ERROR(check_bytes(values, qr_parameters_bytes(p), folder, err));
    if (qr_trainer_shards_values(trainer)) { return qr_whole_shards_put_all(p, floats, err); }
    return qr_parameters_write(p, 0, p->n_floats, floats, err);
}

static qrun_status take_state(qrun_trainer *trainer, const qr_checkpoint *checkpoint, const char *folder,
                              qr_error *err) {
    const qr_safetensors_tensor *states = checkpoint->optimizer;
    qr_train_state state = {.loss_scale = trainer->state.loss_scale};
    int64_t n_total = trainer->total_steps;
    bool has_best = true;
    QR_RETURN_IF_ERROR(check_bytes(states, qr_optimizer_states_bytes(trainer->optimizer), folder, err));
    QR_RETURN_IF_ERROR(read_position(checkpoint->state, folder, &state, err));
    if (state.step > trainer->total_steps) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is after the last step of this run, %lld; `restart` begins again",
                       folder, (long long)trainer->total_steps);
    }
    QR_RETURN_IF_ERROR(qr_json_get_int(checkpoint->run, "total_steps", 1, INT64_C(1) << 52, &n_total, folder, err));
    trainer->earlier_total_steps = n_total < trainer->total_steps ? n_total : 0;
    if (state.best_step > 0) { QR_RETURN_IF_ERROR(has_checkpoint(trainer, state.best_step, &has_best, err)); }
    if (!has_best) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: the checkpoint of the best evaluation, %s%lld, is missing from the same folder; put it "
                       "back, or use `restart` to begin again",
                       folder, CHECKPOINT_PREFIX, (long long)state.best_step);
    }
    QR_RETURN_IF_ERROR(take_parameters(trainer, checkpoint, folder, err));
    QR_RETURN_IF_ERROR(qr_optimizer_states_write(trainer->optimizer, 0, states->n_bytes, states->data, err));
    trainer->state = state;
    return QRUN_OK;
}

qrun_status qr_trainer_read_parameters(qrun_trainer *trainer, int64_t step, qr_error *err) {
    qr_checkpoint checkpoint;
    char *folder;
    qrun_status status;
    QR_TRY(open_checkpoint(trainer, step, &folder, &checkpoint, err));
    QR_TRY(take_parameters(trainer, &checkpoint, folder, err));
    QR_TRY(qr_whole_parameters_refresh(&trainer->parameters, trainer->scratch, err));
out:
    qr_checkpoint_close(&checkpoint);
    qr_free(folder);
    return status;
}

qrun_status qr_trainer_has_checkpoint(const qrun_trainer *trainer, bool *has, qr_error *err) {
    int64_t step = -1;
    if (trainer->settings.out[0] != '\0' && !trainer->restarts) {
        QR_RETURN_IF_ERROR(last_checkpoint(trainer, INT64_MAX, &step, err));
    }
    *has = step >= 0;
    return QRUN_OK;
}

qrun_status qr_trainer_resume(qrun_trainer *trainer, qr_error *err) {
    int64_t step;
    QR_RETURN_IF_ERROR(last_checkpoint(trainer, INT64_MAX, &step, err));
    if (step < 0) { return QRUN_OK; }
    qr_checkpoint checkpoint;
    char *folder;
    qrun_status status;
    QR_TRY(open_checkpoint(trainer, step, &folder, &checkpoint, err));
    QR_TRY(take_state(trainer, &checkpoint, folder, err));
    if (qr_ranks_leads(trainer->ranks)) { QR_TRY(remove_old(trainer, trainer->settings.keep, err)); }
out:
    qr_checkpoint_close(&checkpoint);
    qr_free(folder);
    return status;
}

static qrun_status take_settled(const qr_json *run, const char *path, qr_train_settings *s, qr_error *err) {
    int64_t now, seq_tokens, batch_size;
    QR_RETURN_IF_ERROR(qr_json_get_int(run, "now", 0, INT64_C(1) << 40, &now, path, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(run, "seq_tokens", 2, 1 << 20, &seq_tokens, path, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(run, "batch_size", 1, 4096, &batch_size, path, err));
    if (!s->has_date) { s->now = now; }
    if (s->auto_seq_tokens) { s->seq_tokens = seq_tokens; }
    if (s->auto_batch_size) { s->batch_size = batch_size; }
    if (!s->has_batch_tokens) { s->batch_tokens = s->batch_size * s->seq_tokens; }
    s->auto_seq_tokens = s->auto_batch_size = false;
    return QRUN_OK;
}

qrun_status qr_trainer_take_stored(qrun_trainer *trainer, qr_error *err) {
    int64_t step;
    if (trainer->settings.has_date && !trainer->settings.auto_seq_tokens && !trainer->settings.auto_batch_size) {
        return QRUN_OK;
    }
    QR_RETURN_IF_ERROR(last_checkpoint(trainer, INT64_MAX, &step, err));
    if (step < 0) { return QRUN_OK; }
    qr_error why = {0};
    qr_json *root = NULL;
    char *folder = NULL, *path = NULL;
    qrun_status status;
    QR_TRY(checkpoint_path(trainer, step, &folder, &why));
    QR_TRY(join_path(folder, "run.json", &path, &why));
    QR_TRY(qr_json_read(path, QR_CHECKPOINT_JSON_BYTES, &root, &why));
    QR_TRY(take_settled(root, path, &trainer->settings, &why));
out:
    if (status != QRUN_OK) { status = refuse_checkpoint(trainer, step, &why, err); }
    qr_json_free(root);
    qr_free(path);
    qr_free(folder);
    return status;
}
