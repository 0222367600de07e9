/* What comes out of a run: an adapter, or a whole model. */
#include "base/file.h"
#include "runtime/adapter_export.h"
#include "runtime/model_export.h"

qrun_status qr_trainer_write_result(qrun_trainer *trainer, const char *folder, qr_error *err) {
    return trainer->settings.whole.full ? qr_model_export(&trainer->parameters, folder, err)
                                        : qr_adapter_export(trainer, folder, err);
}

qrun_status qrun_trainer_export(qrun_trainer *trainer, qrun_error *error) {
    qrun_status status = qr_trainer_require_out(trainer, error);
    if (status == QRUN_OK) { status = qr_folder_create(trainer->settings.out, error); }
    return status == QRUN_OK ? qr_trainer_write_result(trainer, trainer->settings.out, error) : status;
}
