/* JSON values as template values. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_JSON_H
#define QR_LOADERS_TEMPLATE_JINJA_JSON_H

#include "loaders/files/json.h"
#include "loaders/template/jinja_run.h"

/* A copy in the arena. */
qr_jinja_value qr_jinja_from_json(qr_jinja_run *run, const qr_json *json);

#endif
