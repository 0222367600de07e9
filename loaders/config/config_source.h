/* A config.json that is being read, and how its keys are: an absent key leaves the value as it is. */
#ifndef QR_LOADERS_CONFIG_CONFIG_SOURCE_H
#define QR_LOADERS_CONFIG_CONFIG_SOURCE_H

#include "loaders/config/family_defaults.h"
#include "loaders/files/json.h"

typedef struct qr_config_source {
    const qr_json *json; /* the text model's object */
    const qr_json *root; /* the whole file: another object where the model has images */
    const char *what;    /* the file, for messages */
    const qr_family_defaults *defaults;
    qr_error *err;
} qr_config_source;

static inline qrun_status qr_config_get_bool(const qr_config_source *s, const char *key, bool *value) {
    return qr_json_get_bool(s->json, key, value, s->what, s->err);
}

static inline qrun_status qr_config_get_int(const qr_config_source *s, const char *key, int64_t low, int64_t high,
                                            int64_t *value) {
    return qr_json_get_int(s->json, key, low, high, value, s->what, s->err);
}

static inline qrun_status qr_config_get_double(const qr_config_source *s, const char *key, double low, double high,
                                               double *value) {
    return qr_json_get_double(s->json, key, low, high, value, s->what, s->err);
}

/* null gives 0. */
static inline qrun_status qr_config_get_nullable(const qr_config_source *s, const char *key, double high,
                                                 double *value) {
    const qr_json *member = qr_json_get(s->json, key);
    if (member != NULL && qr_json_is_null(member)) { *value = 0; }
    return qr_config_get_double(s, key, 0, high, value);
}

/* What would change the model and is not read: true is refused. */
static inline qrun_status qr_config_refuse_flag(const qr_config_source *s, const char *key) {
    bool set = false;
    QR_RETURN_IF_ERROR(qr_config_get_bool(s, key, &set));
    if (!set) { return QRUN_OK; }
    return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" is not supported", s->what, key);
}

#endif
