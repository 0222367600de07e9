/* qrun serve: sessions behind the OpenAI API over HTTP. One thread runs the event loop, and one steps each session.
 * See docs/serve.md for the endpoints. */
#ifndef QRUN_SERVE_SERVER_H
#define QRUN_SERVE_SERVER_H

#include <stdio.h>

#include "qrun.h"

/* A copy of the model, in a context of its own. All have the same options and adapters. */
typedef struct serve_replica {
    qrun_model *model;
    qrun_session *session;
    const char *generation_json; /* of qrun_request_params_from_model: it belongs to the model */
} serve_replica;

enum { SERVE_REPLICAS_MAX = 64 };

typedef struct serve_params {
    const serve_replica *replicas; /* [n_replicas], from 1 */
    int n_replicas;
    qrun_model *model;           /* whose tokenizer and template are used: the first replica's */
    const char *model_name;      /* of the base model, as clients call it */
    const char *const *adapters; /* [n_adapters] names, each a model of its own to clients */
    int n_adapters;
    const char *adapter_folder;   /* clients may load adapters from below it; NULL: they may not */
    qrun_request_params defaults; /* what a request does not say; generation_json is each replica's */
    const char *host;
    int port;                       /* 0: a free one */
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS */
    const char *api_key;            /* NULL: anyone may ask */
    const char *allow_origin;       /* pages of other origins may ask: one of them, or "*"; NULL: none */
    int64_t max_waiting;            /* answers; further requests get 429 */
    int64_t max_body_bytes;
    int32_t max_connections;
    int drain_seconds;   /* after SIGTERM, for what runs */
    int request_seconds; /* for a request to arrive */
    int idle_seconds;    /* of a connection without a request, and of an answer that the client does not read */
    FILE *log;           /* a line for every request; NULL: none */
    /* The server accepts connections; may be NULL. port 0: on an inherited socket that has none. */
    void (*on_listening)(void *user, int port);
    void *user;
} serve_params;

/* Serves until SIGTERM or SIGINT. False with a message in *error: the address is taken, the session failed. */
bool serve_run(const serve_params *params, qrun_error *error);

#endif
