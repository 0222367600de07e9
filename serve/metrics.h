/* What the engine does: for Prometheus, and for the page. */
#ifndef QRUN_SERVE_METRICS_H
#define QRUN_SERVE_METRICS_H

#include "serve/endpoints.h"
#include "serve/text.h"

/* Prometheus' text format. */
void metrics_write(const endpoints *e, serve_text *out);
/* An object for the page; NULL when memory is short. */
cJSON *metrics_live(const endpoints *e);

#endif
