#include "serve/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <time.h>

#include <event2/event.h>
#include <event2/util.h>

#include "serve/completions.h"
#include "serve/endpoints.h"
#include "serve/supervisor.h"
#include "serve/tls.h"

enum { HEADER_BYTES = 64 << 10, UNREAD_BYTES = 1 << 20, MOST_HEADERS_BYTES = 512 };
enum { OTHER_DESCRIPTORS = 64 }; /* than those of connections */

typedef struct server {
    const serve_params *params;
    struct event_base *base;
    struct ssl_ctx_st *tls;
    http_server *http;
    replicas replicas;
    jobs *quick, *slow, *adapters;
    models models;
    completions completions;
    endpoints endpoints;
    struct event *on_term, *on_int, *on_hangup, *on_drained, *on_tick;
    qrun_error error;
} server;

/* ---- Who may ask ------------------------------------------------------------------------------------------------- */

/* In a time that does not tell how much of it is right. */
static bool same_text(const char *a, const char *b) {
    const size_t n_a = strlen(a), n_b = strlen(b);
    unsigned char difference = n_a != n_b;
    for (size_t i = 0; i < n_a; i++) { difference |= (unsigned char)(a[i] ^ b[n_b > 0 ? i % n_b : 0]); }
    return difference == 0;
}

static bool has_key(const server *s, const http_exchange *exchange, const char *path) {
    static const char bearer[] = "Bearer ";
    const char *given = http_header(exchange, "Authorization"), *bare = http_header(exchange, "x-api-key");
    /* The page has no secrets, and asks for the key itself. */
    if (s->params->api_key == NULL || strcmp(path, "/health") == 0 || strcmp(path, "/") == 0) { return true; }
    return (given != NULL && strncasecmp(given, bearer, sizeof bearer - 1) == 0 &&
            same_text(given + sizeof bearer - 1, s->params->api_key)) ||
           (bare != NULL && same_text(bare, s->params->api_key)); /* as Anthropic's clients send it */
}

/* localhost, a name below it, or an address in digits, with a port or without. */
static bool names_this_machine(const char *host) {
    static const char local[] = "localhost";
    const size_t n = strcspn(host, ":"), n_local = sizeof local - 1;
    if (host[0] == '[' || strspn(host, "0123456789.") >= n) { return true; }
    if (n < n_local || strncasecmp(host + n - n_local, local, n_local) != 0) { return false; }
    return n == n_local || host[n - n_local - 1] == '.';
}

/* A browser says which page asks. Ours does: its origin is the host that it asks. Another's does, too, if its name has
 * been given the address of this machine meanwhile. So what only this machine can reach, and asks for no key, has the
 * names of this machine alone. */
static bool is_allowed_origin(const server *s, const http_exchange *exchange, const char *origin) {
    const char *allowed = s->params->allow_origin, *host = http_header(exchange, "Host");
    const char *authority = strstr(origin, "://");
    if (allowed != NULL && (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0)) { return true; }
    if (host == NULL || authority == NULL || strcasecmp(authority + 3, host) != 0) { return false; }
    return s->params->api_key != NULL || !http_server_is_local(s->http) || names_this_machine(host);
}

/* What a browser is told of an origin that may ask. OpenAI's client for browsers sends headers of its own. */
static void allow(const server *s, http_exchange *exchange) {
    const char *asked = http_header(exchange, "Access-Control-Request-Headers");
    const bool fits = asked != NULL && strlen(asked) <= MOST_HEADERS_BYTES;
    http_add_header(exchange, "Access-Control-Allow-Origin", s->params->allow_origin);
    http_add_header(exchange, "Access-Control-Allow-Headers", fits ? asked : "Authorization, Content-Type");
    http_add_header(exchange, "Access-Control-Allow-Methods", "GET, POST, DELETE");
    http_add_header(exchange, "Access-Control-Expose-Headers", "X-Request-Id, request-id, X-Seed, Retry-After");
    http_add_header(exchange, "Vary", "Origin");
}

/* False: the exchange is answered. */
static bool may_ask(const server *s, http_exchange *exchange, const char *path) {
    openai_error error = {0};
    const char *origin = http_header(exchange, "Origin"), *coding = http_header(exchange, "Content-Encoding");
    if (origin != NULL && !is_allowed_origin(s, exchange, origin)) {
        (void)openai_refuse(&error, 403, NULL, "pages of other origins may not ask; see --allow-origin");
    } else if (http_method_of(exchange) != HTTP_OPTIONS && !has_key(s, exchange, path)) {
        (void)openai_refuse(&error, 401, NULL,
                            "the key is missing or wrong: send Authorization: Bearer KEY, or x-api-key: KEY");
    } else if (coding != NULL && strcasecmp(coding, "identity") != 0) {
        (void)openai_refuse(&error, 415, NULL, "bodies in %.20s are not read: send it without Content-Encoding",
                            coding);
    }
    if (origin != NULL && s->params->allow_origin != NULL && error.status != 403) { allow(s, exchange); }
    if (error.status != 0) { completions_refuse(exchange, &error); }
    return error.status == 0;
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

/* A line of key=value. Nothing in it is of a prompt or an answer. */
static void log_end(void *user, const http_record *record) {
    const server *s = user;
    char moment[32], path[128];
    struct tm parts;
    const time_t now = time(NULL);
    if (s->params->log == NULL || gmtime_r(&now, &parts) == NULL) { return; }
    strftime(moment, sizeof moment, "%Y-%m-%dT%H:%M:%SZ", &parts);
    size_t n = 0;
    for (const char *c = record->path; *c != '\0' && n + 1 < sizeof path; c++) {
        path[n++] = (char)(*c > 0x20 && *c < 0x7F && *c != '"' && *c != '\\' ? *c : '?');
    }
    path[n] = '\0';
    fprintf(s->params->log, "time=%s method=%s path=\"%s\" status=%d left=%s seconds=%.6f bytes=%lld%s\n", moment,
            record->method, path, record->status, record->left ? "true" : "false", record->seconds,
            (long long)record->n_bytes, record->note);
    fflush(s->params->log);
}

static void answer_request(void *user, http_exchange *exchange) {
    server *s = user;
    const char *path = http_path(exchange);
    const answer_protocol *protocol = completions_protocol(path);
    if (!may_ask(s, exchange, path)) { return; }
    if (http_method_of(exchange) == HTTP_OPTIONS && s->params->allow_origin != NULL) {
        http_reply(exchange, 200, "text/plain", "", 0);
        return;
    }
    if (protocol != NULL && http_method_of(exchange) == HTTP_POST) {
        completions_begin(&s->completions, exchange, protocol);
    } else {
        endpoints_answer(&s->endpoints, exchange, path);
    }
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Nothing runs any more. Answers that are still being sent get a moment. */
static void leave(server *s) {
    const struct timeval moment = {.tv_sec = http_server_unsent(s->http) > 0};
    event_base_loopexit(s->base, &moment);
}

static void on_session_failed(void *user, qrun_status status, const char *message) {
    server *s = user;
    if (s->error.status != QRUN_OK) { return; } /* another replica's was first */
    s->error.status = status;
    (void)snprintf(s->error.message, sizeof s->error.message, "%s", message);
    http_server_stop_listening(s->http);
    s->completions.is_closing = true;
    completions_fail_all(&s->completions);
    leave(s);
}

static void on_idle(void *user) {
    server *s = user;
    if (s->completions.is_closing) { leave(s); }
}

static void on_drained(evutil_socket_t descriptor, short what, void *user) {
    server *s = user;
    (void)descriptor, (void)what;
    completions_cancel_all(&s->completions);
}

static void on_tick(evutil_socket_t descriptor, short what, void *user) {
    server *s = user;
    (void)descriptor, (void)what;
    completions_tick(&s->completions);
}

/* The first signal lets what runs finish, for a while; a second one ends it at once. */
static void on_signal(evutil_socket_t number, short what, void *user) {
    server *s = user;
    const struct timeval patience = {.tv_sec = s->params->drain_seconds};
    (void)number, (void)what;
    http_server_stop_listening(s->http);
    supervisor_tell("STOPPING=1");
    if (s->completions.n_open == 0) {
        leave(s);
    } else if (s->completions.is_closing) {
        completions_cancel_all(&s->completions);
    } else {
        evtimer_add(s->on_drained, &patience);
    }
    s->completions.is_closing = true;
}

/* ---- The server -------------------------------------------------------------------------------------------------- */

static bool fail(server *s, qrun_status status, const char *format, const char *what, const char *why) {
    s->error.status = status;
    (void)snprintf(s->error.message, sizeof s->error.message, format, what, why);
    return false;
}

static bool out_of_memory(server *s) { return fail(s, QRUN_ERROR_MEMORY, "%s%s", "out of memory for the server", ""); }

/* As many connections as the process may have descriptors, after asking for more. */
static int32_t possible_connections(int32_t wanted) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) { return wanted; }
    const rlim_t needed = (rlim_t)wanted + OTHER_DESCRIPTORS;
    if (limit.rlim_cur < needed) {
        limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= needed) { return wanted; }
    return limit.rlim_cur > 2 * OTHER_DESCRIPTORS ? (int32_t)limit.rlim_cur - OTHER_DESCRIPTORS : OTHER_DESCRIPTORS;
}

static bool create_http(server *s) {
    enum { LEAST_BODIES_BYTES = 256 << 20 };
    const serve_params *p = s->params;
    if (p->tls_cert != NULL) {
        s->tls = tls_open(p->tls_cert, p->tls_key, &s->error);
        if (s->tls == NULL) { return false; }
    }
    const int64_t four_bodies = p->max_body_bytes < INT64_MAX / 4 ? 4 * p->max_body_bytes : INT64_MAX;
    const http_params params = {
        .base = s->base,
        .tls = s->tls,
        .limits = {.body_bytes = p->max_body_bytes,
                   .bodies_bytes = four_bodies > LEAST_BODIES_BYTES ? four_bodies : LEAST_BODIES_BYTES,
                   .header_bytes = HEADER_BYTES,
                   .unread_bytes = UNREAD_BYTES,
                   .n_connections = possible_connections(p->max_connections),
                   .idle_seconds = p->idle_seconds,
                   .request_seconds = p->request_seconds},
        .handler = answer_request,
        .on_end = log_end,
        .user = s};
    s->http = http_server_create(&params);
    return s->http != NULL || out_of_memory(s);
}

/* And the time. */
static bool watch_signals(server *s) {
    static const struct timeval tick = {.tv_sec = COMPLETIONS_TICK_SECONDS};
    s->on_term = evsignal_new(s->base, SIGTERM, on_signal, s);
    s->on_int = evsignal_new(s->base, SIGINT, on_signal, s);
    s->on_hangup = evsignal_new(s->base, SIGHUP, on_signal, s);
    s->on_drained = evtimer_new(s->base, on_drained, s);
    s->on_tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    return (s->on_term != NULL && s->on_int != NULL && s->on_hangup != NULL && s->on_drained != NULL &&
            evsignal_add(s->on_term, NULL) == 0 && evsignal_add(s->on_int, NULL) == 0 &&
            evsignal_add(s->on_hangup, NULL) == 0 && s->on_tick != NULL && event_add(s->on_tick, &tick) == 0) ||
           out_of_memory(s);
}

/* *port: 0 for a socket that has none. */
static bool listen_somewhere(server *s, int *port) {
    const serve_params *p = s->params;
    const int inherited = supervisor_socket();
    if (inherited == -2) {
        return fail(s, QRUN_ERROR_ARGUMENT, "%s%s", "LISTEN_FDS passes several sockets; this server takes one", "");
    }
    *port = inherited >= 0 ? http_server_listen_on(s->http, inherited) : http_server_listen(s->http, p->host, p->port);
    if (*port >= 0) { return true; }
    char where[300];
    (void)snprintf(where, sizeof where, "%s, port %d", p->host, p->port);
    if (errno == EADDRINUSE && inherited < 0) {
        return fail(s, QRUN_ERROR_IO, "cannot listen on %s: another program does; port 0 takes a free one%s", where,
                    "");
    }
    return fail(s, QRUN_ERROR_IO, "cannot listen on %s: %s", inherited >= 0 ? "the inherited socket" : where,
                errno != 0 ? strerror(errno) : "this is no address of this machine");
}

static bool open_models(server *s) {
    const serve_params *p = s->params;
    models_open(&s->models, p->replicas, p->n_replicas, p->model_name, p->adapter_folder);
    for (int i = 0; i < p->n_adapters; i++) {
        if (strcmp(p->adapters[i], p->model_name) == 0) { /* nobody could ask for it */
            return fail(s, QRUN_ERROR_ARGUMENT,
                        "an adapter has the name of the model, %s; give it another one (--adapter NAME=DIR)%s",
                        p->adapters[i], "");
        }
        if (!models_add(&s->models, p->adapters[i], NULL)) {
            return fail(s, QRUN_ERROR_ARGUMENT, "the name of adapter %s is too long%s", p->adapters[i], "");
        }
    }
    return true;
}

static bool start_threads(server *s) {
    s->quick = jobs_start(s->base);
    s->slow = jobs_start(s->base);
    s->adapters = jobs_start(s->base);
    const bool has_jobs = s->quick != NULL && s->slow != NULL && s->adapters != NULL;
    return (has_jobs &&
            serve_replicas_start(&s->replicas, s->params, s->base, completions_take, on_session_failed, s)) ||
           out_of_memory(s);
}

static bool start(server *s) {
    const serve_params *p = s->params;
    int port;
    if (!open_models(s)) { return false; }
    s->base = event_base_new();
    if (s->base == NULL) { return out_of_memory(s); }
    if (!create_http(s) || !watch_signals(s) || !listen_somewhere(s, &port) || !start_threads(s)) { return false; }
    s->completions = (completions){.params = p,
                                   .models = &s->models,
                                   .replicas = &s->replicas,
                                   .quick = s->quick,
                                   .slow = s->slow,
                                   .on_idle = on_idle,
                                   .user = s};
    evutil_secure_rng_get_bytes(&s->completions.id_start, sizeof s->completions.id_start);
    s->endpoints = (endpoints){
        .params = p, .completions = &s->completions, .models = &s->models, .http = s->http, .adapters = s->adapters};
    answer_format_learn(qrun_model_tokenizer(p->model), &s->completions.format);
    call_form_learn(qrun_model_tokenizer(p->model), &s->completions.format, &s->completions.call_form);
    if (p->on_listening != NULL) { p->on_listening(p->user, port); }
    supervisor_tell("READY=1");
    return true;
}

/* What libevent would print is told by what failed. */
static void keep_quiet(int severity, const char *message) { (void)severity, (void)message; }

/* First what runs beside the loop, then what it works for. */
static void stop(server *s) {
    jobs_stop(s->quick);
    jobs_stop(s->slow);
    jobs_stop(s->adapters);
    serve_replicas_stop(&s->replicas);
    endpoints_drop(&s->endpoints);
    completions_drop(&s->completions);
    http_server_destroy(s->http);
    models_close(&s->models);
    tls_close(s->tls);
    struct event *const events[] = {s->on_term, s->on_int, s->on_hangup, s->on_drained, s->on_tick};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i] != NULL) { event_free(events[i]); }
    }
    if (s->base != NULL) { event_base_free(s->base); }
}

bool serve_run(const serve_params *params, qrun_error *error) {
    event_set_log_callback(keep_quiet);
    (void)signal(SIGPIPE, SIG_IGN); /* a client that left is an error of its socket */
    server s = {.params = params, .error = QRUN_ERROR_INIT};
    if (start(&s)) { event_base_dispatch(s.base); }
    stop(&s);
    *error = s.error;
    return s.error.status == QRUN_OK;
}
