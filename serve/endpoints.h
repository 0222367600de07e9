/* Everything but completions: the page, models and adapters, health, metrics, and the tokenizer. */
#ifndef QRUN_SERVE_ENDPOINTS_H
#define QRUN_SERVE_ENDPOINTS_H

#include "serve/completions.h"

/* What these answer from; lent for the call. */
typedef struct endpoints {
    const serve_params *params;
    const completions *completions;
    models *models;
    int64_t n_connections;
} endpoints;

/* Answers at once; an unknown path or method is refused. */
void endpoints_answer(const endpoints *e, http_exchange *exchange, const char *path);

#endif
