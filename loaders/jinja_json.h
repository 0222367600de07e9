/* JSON values as template values. */
#ifndef QR_LOADERS_JINJA_JSON_H
#define QR_LOADERS_JINJA_JSON_H

#include "loaders/jinja_run.h"
#include "loaders/json.h"

/* A copy in the arena. */
qr_jinja_value qr_jinja_from_json(qr_jinja_run *run, const qr_json *json);

#endif
