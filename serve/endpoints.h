/* Everything but completions: the page, models and adapters, health, metrics, and the tokenizer. */
#ifndef QRUN_SERVE_ENDPOINTS_H
#define QRUN_SERVE_ENDPOINTS_H

#include "serve/completions.h"
#include "serve/openai/text.h"

/* What these answer from; lent. */
typedef struct endpoints {
    const serve_params *params;
    completions *completions;
    models *models;
    const http_server *http;
    jobs *adapters;           /* loads and drops them */
    struct request *requests; /* that a job is at */
} endpoints;

/* Answers now, or when a job is done; an unknown path or method is refused. */
void endpoints_answer(endpoints *e, http_exchange *exchange, const char *path);
/* Frees what is open when jobs have ended. */
void endpoints_drop(endpoints *e);

/* Of metrics.c: what the engine does, in Prometheus' text format. */
void metrics_write(const endpoints *e, serve_text *out);
/* As an object for the page; NULL when memory is short. */
cJSON *metrics_live(const endpoints *e);

#endif
