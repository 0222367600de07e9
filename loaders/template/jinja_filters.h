/* What the builtin functions share. */
#ifndef QR_LOADERS_TEMPLATE_JINJA_FILTERS_H
#define QR_LOADERS_TEMPLATE_JINJA_FILTERS_H

#include "loaders/template/jinja_run.h"

const qr_jinja_builtin *qr_jinja_find_sequence_filter(const char *name, size_t size);

/* An optional integer argument; fails for another type. */
int64_t qr_jinja_integer_or(qr_jinja_run *run, qr_jinja_value value, int64_t otherwise);
/* A NUL-terminated copy of str(value), for comparing with names; "" after a failure. */
const char *qr_jinja_cstring(qr_jinja_run *run, qr_jinja_value value);

#endif
