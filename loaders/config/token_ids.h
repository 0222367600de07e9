/* "One id or a list of ids", as eos_token_id in config.json and generation_config.json. */
#ifndef QR_LOADERS_CONFIG_TOKEN_IDS_H
#define QR_LOADERS_CONFIG_TOKEN_IDS_H

#include "base/status.h"
#include "loaders/files/json.h"

enum { QR_TOKEN_IDS_MAX = 64 };

typedef struct qr_token_ids {
    int32_t ids[QR_TOKEN_IDS_MAX];
    int n;
} qr_token_ids;

/* An integer, a list of them, or null (none). Absent leaves *ids untouched; -1, which old files write for "none", is
 * left out. */
qrun_status qr_token_ids_read(const qr_json *object, const char *key, qr_token_ids *ids, const char *what,
                              qr_error *err);
/* One id. Absent leaves *id untouched; null gives -1. */
qrun_status qr_token_id_read(const qr_json *object, const char *key, int64_t *id, const char *what, qr_error *err);

#endif
