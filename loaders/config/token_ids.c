#include "loaders/config/token_ids.h"

static qrun_status append_id(const qr_json *item, const char *key, qr_token_ids *ids, const char *what, qr_error *err) {
    int64_t value;
    if (!qr_json_as_int(item, -1, INT32_MAX, &value)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" holds something that is not a token id", what, key);
    }
    if (value < 0) { return QRUN_OK; }
    if (ids->n == QR_TOKEN_IDS_MAX) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" holds more than %d token ids", what, key,
                       QR_TOKEN_IDS_MAX);
    }
    ids->ids[ids->n++] = (int32_t)value;
    return QRUN_OK;
}

qrun_status qr_token_ids_read(const qr_json *object, const char *key, qr_token_ids *ids, const char *what,
                              qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (member == NULL) { return QRUN_OK; }
    ids->n = 0;
    if (cJSON_IsNull(member)) { return QRUN_OK; }
    if (!cJSON_IsArray(member)) { return append_id(member, key, ids, what, err); }
    for (const qr_json *item = qr_json_first(member); item != NULL; item = item->next) {
        QR_RETURN_IF_ERROR(append_id(item, key, ids, what, err));
    }
    return QRUN_OK;
}

qrun_status qr_token_id_read(const qr_json *object, const char *key, int64_t *id, const char *what, qr_error *err) {
    qr_token_ids ids;
    if (qr_json_get(object, key) == NULL) { return QRUN_OK; }
    ids.n = 0;
    QR_RETURN_IF_ERROR(qr_token_ids_read(object, key, &ids, what, err));
    if (ids.n > 1) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" should be one token id", what, key); }
    *id = ids.n == 1 ? ids.ids[0] : -1;
    return QRUN_OK;
}
