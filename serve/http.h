/* HTTP/1.1 over libevent's buffers: a request comes in, its answer is sent whole or in pieces, and the one who waits
 * for it may leave at any time. Everything but reading a body happens on the thread of the event loop.
 *
 * libevent's own evhttp is not used. It ends the process when bytes arrive at the wrong time. It limits neither
 * connections nor the time that a request takes to arrive. */
#ifndef QRUN_SERVE_HTTP_H
#define QRUN_SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/http_head.h"

struct event_base;
struct ssl_ctx_st;
typedef struct http_server http_server;

/* One request and its answer. It is over, and must not be used any more, after http_reply, after http_stream_end, and
 * after the callback of http_on_left. */
typedef struct http_exchange http_exchange;

typedef struct http_limits {
    int64_t body_bytes;    /* of a request; a larger one gets 413 */
    int64_t bodies_bytes;  /* of all requests that are here; beyond it 503 */
    int64_t header_bytes;  /* of a request */
    int64_t unread_bytes;  /* of an answer that the client does not read; beyond that it is taken to have left */
    int32_t n_connections; /* beyond it the one that has been idle or incomplete for longest is closed */
    int idle_seconds;      /* without a request, and without progress in sending an answer */
    int request_seconds;   /* from the first byte of a request to its last */
} http_limits;

/* Called for every complete request; answers now, or later. */
typedef void (*http_handler)(void *user, http_exchange *exchange);

/* An answer that is over, for a log. */
typedef struct http_record {
    const char *method, *path; /* the path is cut at 100 bytes; "-" where the request could not be read */
    const char *note;          /* of http_note */
    int status;                /* 499: the client left before it got one */
    bool left;                 /* the client left before the answer's end */
    int64_t n_bytes;           /* of the answer's body */
    double seconds;            /* from the complete request to the end of its answer */
} http_record;
typedef void (*http_end_fn)(void *user, const http_record *record);

typedef struct http_params {
    struct event_base *base;
    struct ssl_ctx_st *tls; /* NULL: plain HTTP; lent */
    http_limits limits;
    http_handler handler;
    http_end_fn on_end; /* may be NULL */
    void *user;         /* of both */
} http_params;

/* NULL when memory is short. */
http_server *http_server_create(const http_params *params);
void http_server_destroy(http_server *server); /* NULL is fine; open exchanges are told that their clients left */

/* Port 0 takes a free one. Returns the port, or −1 with errno set, 0 for a host that is no address here. */
int http_server_listen(http_server *server, const char *host, int port);
/* Accepts on a socket that listens already, and becomes its owner. The port (0: it has none), or −1. */
int http_server_listen_on(http_server *server, int descriptor);
/* Whether this machine alone can connect; false before it listens. */
bool http_server_is_local(const http_server *server);
void http_server_stop_listening(http_server *server); /* connections that exist stay */

/* The request; lent while the exchange lasts. The method of HEAD, whose answer is sent without its body, is HTTP_GET.
 */
http_method http_method_of(const http_exchange *exchange);
const char *http_path(const http_exchange *exchange);                     /* without the query */
const char *http_header(const http_exchange *exchange, const char *name); /* NULL: not sent */

/* The body of a request, which then no longer has it: it may outlive the exchange, and counts for bodies_bytes until it
 * is freed. NULL when memory is short. */
typedef struct http_body http_body;
http_body *http_take_body(http_exchange *exchange);
size_t http_body_size(const http_body *body);
/* On any thread, by one at a time. NULL when memory is short; "" is an empty one. */
const char *http_body_bytes(http_body *body, size_t *n_bytes);
void http_body_free(http_body *body); /* on the loop's thread, before the server is destroyed; NULL is fine */

/* A header of the answer; what does not fit into 1 KiB is left out. */
void http_add_header(http_exchange *exchange, const char *name, const char *value);
/* The whole answer. */
void http_reply(http_exchange *exchange, int status, const char *content_type, const char *bytes, size_t n_bytes);
/* An answer in pieces, with status 200. A write may end the exchange: when the client does not read. */
void http_stream_begin(http_exchange *exchange, const char *content_type);
void http_stream_write(http_exchange *exchange, const char *bytes, size_t n_bytes);
void http_stream_end(http_exchange *exchange);

/* Adds " key=value …" to the record of the exchange; what does not fit is left out. */
void http_note(http_exchange *exchange, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Answers that are over for their owner and not sent yet; open connections. */
int64_t http_server_unsent(const http_server *server);
int64_t http_server_connections(const http_server *server);

/* What to call when the client leaves before the answer has ended; NULL: nothing. */
void http_on_left(http_exchange *exchange, void (*left)(void *user), void *user);

#endif
