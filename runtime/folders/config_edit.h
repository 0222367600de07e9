/* config.json of a folder whose weights were changed: the members that no longer hold are set, and the rest of the text
 * stays as its author wrote it. */
#ifndef QR_RUNTIME_FOLDERS_CONFIG_EDIT_H
#define QR_RUNTIME_FOLDERS_CONFIG_EDIT_H

#include "base/buffer.h"
#include "base/dtype.h"

/* Changes the object in *config; `what` names it in messages. */
typedef qrun_status (*qr_config_edit_fn)(void *arg, qr_buffer *config, const char *what, qr_error *err);

/* Copies config.json from one folder into another, as `edit` changes it. */
qrun_status qr_config_copy(const char *from, const char *to, qr_config_edit_fn edit, void *arg, qr_error *err);

/* Of weights that are stored plain now. */
typedef struct qr_config_changes {
    qr_dtype dtype;     /* F32, F16, BF16 */
    int64_t vocab_size; /* 0: unchanged */
    bool unties_head;
} qr_config_changes;

/* A qr_config_edit_fn; arg is the qr_config_changes. In a model with an image encoder it also changes the part about
 * the language model, "text_config". */
qrun_status qr_config_apply(void *arg, qr_buffer *config, const char *what, qr_error *err);

#endif
