/* The folder of a run: made and locked before anything in it is looked at or changed. So of two runs started together
 * one has it, and the other changes nothing. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "runtime/train/trainer.h"

enum { MAX_TRIES = 100 };

/* Whether the folder that is locked is the one that the path names now. */
static bool is_held(const char *path, int lock) {
    struct stat held, named;
    return fstat(lock, &held) == 0 && stat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* A run that could not begin removes the folder that it made. Where that happens between our making and our locking,
 * we begin again. */
static qrun_status make_and_lock(qrun_trainer *trainer, qr_error *err) {
    const char *out = trainer->settings.out;
    for (int i = 0; i < MAX_TRIES; i++) {
        qr_error why = {0};
        const bool made = !qr_file_exists(out);
        QR_RETURN_IF_ERROR(qr_folder_create(out, err));
        const qrun_status status = qr_folder_lock(out, &trainer->out_lock, &why);
        if (status == QRUN_OK && is_held(out, trainer->out_lock)) {
            trainer->made_out = made;
            return QRUN_OK;
        }
        qr_folder_unlock(&trainer->out_lock);
        if (status != QRUN_OK && status != QRUN_ERROR_NOT_FOUND) { return qr_fail(err, status, "%s", why.message); }
    }
    return qr_fail(err, QRUN_ERROR_IO, "%s: another program removes this folder again and again; choose another", out);
}

qrun_status qr_trainer_enter_folder(qrun_trainer *trainer, qr_error *err) {
    const char *out = trainer->settings.out;
    char *tokens = NULL;
    qrun_status status;
    if (qr_file_is_same(out, trainer->model->folder)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: is the model's own folder; give another one as `out`", out);
    }
    QR_TRY(make_and_lock(trainer, err));
    tokens = qr_path_join(out, QR_TOKENS_FOLDER);
    if (tokens == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(out))); }
    QR_TRY(qr_folder_remove_partials(out, err));
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
