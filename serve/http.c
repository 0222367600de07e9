#include "serve/http.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>

enum { FIELDS_BYTES = 1024, NOTE_BYTES = 256, PATH_BYTES = 100, LINGER_SECONDS = 2 };

typedef enum connection_state {
    READING_HEAD,
    READING_BODY,       /* of a known length */
    READING_CHUNK_SIZE, /* of a body in chunks */
    READING_CHUNK,      /* and the CR LF after it */
    READING_TRAILERS,   /* after the last chunk */
    ANSWERING,          /* the exchange is its owner's */
    SENDING,            /* what is left of the answer */
    LINGERING           /* the answer is sent; what the client still sends is dropped, lest it lose the answer */
} connection_state;

/* A connection, and the exchange on it while one lasts. */
struct http_exchange {
    http_server *server;
    http_exchange **link, *next; /* among the server's */
    struct bufferevent *buffers;
    struct event *closed; /* the client left; pending while an answer is due */
    connection_state state;
    double since;     /* when this state of waiting began: idle, receiving, sending */
    bool is_complete; /* no byte of a next request is here */
    size_t n_unsent;  /* in the output at the last look */
    /* The request. */
    char *head_text;
    http_head head;
    struct evbuffer *body;
    int64_t chunk_left;
    double began;
    /* The answer. */
    char fields[FIELDS_BYTES];
    size_t n_fields_bytes;
    char note[NOTE_BYTES];
    int status;
    int64_t n_sent;
    bool keeps_alive, in_chunks, is_unsent; /* is_unsent: counted by the server */
    void (*left)(void *user);
    void *left_user;
};

struct http_server {
    http_params params;
    struct evconnlistener *listener;
    struct event *sweep;
    http_exchange *connections;
    int32_t n_connections;
    bool is_local;
    int64_t n_unsent, body_bytes; /* of all */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The end of exchanges and connections ------------------------------------------------------------------------ */

static const char *method_name(http_method method) {
    static const char *const names[] = {"GET", "POST", "DELETE", "OPTIONS", "HEAD", "OTHER"};
    return names[method];
}

static void record_end(const http_exchange *x, bool left) {
    char path[PATH_BYTES + 1];
    const http_params *p = &x->server->params;
    if (p->on_end == NULL) { return; }
    (void)snprintf(path, sizeof path, "%s", x->head.path != NULL ? x->head.path : "-");
    const http_record record = {.method = x->head.path != NULL ? method_name(x->head.method) : "-",
                                .path = path,
                                .note = x->note,
                                .status = x->status > 0 ? x->status : 499,
                                .left = left,
                                .n_bytes = x->n_sent,
                                .seconds = x->began > 0 ? now() - x->began : 0};
    p->on_end(p->user, &record);
}

static void stop_watching(http_exchange *x) {
    if (x->closed != NULL) { event_free(x->closed); }
    x->closed = NULL;
}

static void count_sent(http_exchange *x) {
    x->server->n_unsent -= x->is_unsent;
    x->is_unsent = false;
}

static void forget_body(http_exchange *x) {
    const size_t n = evbuffer_get_length(x->body);
    x->server->body_bytes -= (int64_t)n;
    evbuffer_drain(x->body, n);
}

static void forget_request(http_exchange *x) {
    free(x->head_text);
    x->head_text = NULL;
    x->head = (http_head){0};
    forget_body(x);
    x->n_fields_bytes = 0;
    x->fields[0] = x->note[0] = '\0';
    x->status = 0;
    x->n_sent = 0;
    x->in_chunks = false;
    x->left = NULL;
}

/* Closes the connection; who still answers on it is told. */
static void drop(http_exchange *x) {
    void (*const left)(void *) = x->state == ANSWERING ? x->left : NULL;
    void *const user = x->left_user;
    if (x->state == ANSWERING || x->state == SENDING) { record_end(x, true); }
    count_sent(x);
    stop_watching(x);
    *x->link = x->next;
    if (x->next != NULL) { x->next->link = x->link; }
    x->server->n_connections--;
    bufferevent_free(x->buffers);
    forget_body(x);
    evbuffer_free(x->body);
    free(x->head_text);
    free(x);
    if (left != NULL) { left(user); }
}

/* A reset, or an error of the connection. */
static bool is_broken(evutil_socket_t descriptor) {
    struct pollfd look = {.fd = descriptor};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLERR | POLLHUP)) != 0;
}

/* Of a client that closes its side, libevent says EV_CLOSED; of a reset only that there is something to read, as of the
 * bytes of a next request. Those stay unread and would be told again and again: once there are some, a reset is looked
 * for every second, and until then epoll tells of it without rest. */
static void on_closed(evutil_socket_t descriptor, short what, void *arg) {
    static const struct timeval second = {.tv_sec = 1};
    http_exchange *x = arg;
    if ((what & EV_CLOSED) != 0 || is_broken(descriptor)) {
        drop(x);
        return;
    }
    (void)event_assign(x->closed, x->server->params.base, descriptor, EV_CLOSED, on_closed, x);
    if (event_add(x->closed, &second) != 0) { drop(x); }
}

void http_on_left(http_exchange *x, void (*left)(void *user), void *user) {
    x->left = left;
    x->left_user = user;
}

/* ---- The answer -------------------------------------------------------------------------------------------------- */

static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) { return reasons[i].reason; }
    }
    return "Status";
}

void http_add_header(http_exchange *x, const char *name, const char *value) {
    const size_t room = sizeof x->fields - x->n_fields_bytes;
    const int n = snprintf(x->fields + x->n_fields_bytes, room, "%s: %s\r\n", name, value);
    if (n > 0 && (size_t)n < room) {
        x->n_fields_bytes += (size_t)n;
    } else {
        x->fields[x->n_fields_bytes] = '\0';
    }
}

void http_note(http_exchange *x, const char *format, ...) {
    const size_t used = strlen(x->note);
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(x->note + used, sizeof x->note - used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof x->note - used) { x->note[used] = '\0'; }
}

/* n_bytes −1: in pieces. */
static void put_head(http_exchange *x, int status, const char *content_type, int64_t n_bytes) {
    struct evbuffer *out = bufferevent_get_output(x->buffers);
    char date[40];
    x->status = status;
    (void)evutil_date_rfc1123(date, sizeof date, NULL);
    x->in_chunks = n_bytes < 0 && x->head.minor_version == 1;
    x->keeps_alive = x->keeps_alive && (n_bytes >= 0 || x->in_chunks);
    (void)evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\n", status, reason_of(status),
                              date, content_type);
    (void)evbuffer_add(out, x->fields, x->n_fields_bytes);
    if (n_bytes >= 0) { (void)evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)n_bytes); }
    if (x->in_chunks) { (void)evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n"); }
    (void)evbuffer_add_printf(out, "Connection: %s\r\n\r\n", x->keeps_alive ? "keep-alive" : "close");
}

static void advance(http_exchange *x);

static void read_next(http_exchange *x) {
    forget_request(x);
    x->state = READING_HEAD;
    x->since = now();
    x->is_complete = true;
    bufferevent_enable(x->buffers, EV_READ);
    advance(x);
}

/* The client reads what it was sent before the connection goes, also where it is still sending. */
static void linger(http_exchange *x) {
    x->state = LINGERING;
    x->since = now();
    if (x->server->params.tls != NULL) { (void)SSL_shutdown(bufferevent_openssl_get_ssl(x->buffers)); }
    (void)shutdown(bufferevent_getfd(x->buffers), SHUT_WR);
    bufferevent_enable(x->buffers, EV_READ);
}

static void on_sent(struct bufferevent *buffers, void *arg) {
    http_exchange *x = arg;
    if (x->state != SENDING || evbuffer_get_length(bufferevent_get_output(buffers)) > 0) { return; }
    record_end(x, false);
    count_sent(x);
    if (x->keeps_alive) {
        read_next(x);
    } else {
        linger(x);
    }
}

/* The exchange is over for its owner. */
static void finish(http_exchange *x) {
    stop_watching(x);
    x->state = SENDING;
    x->since = now();
    x->is_unsent = true;
    x->server->n_unsent++;
    x->n_unsent = evbuffer_get_length(bufferevent_get_output(x->buffers));
    if (x->n_unsent == 0) { bufferevent_trigger(x->buffers, EV_WRITE, BEV_OPT_DEFER_CALLBACKS); }
}

void http_reply(http_exchange *x, int status, const char *content_type, const char *bytes, size_t n_bytes) {
    put_head(x, status, content_type, (int64_t)n_bytes);
    if (x->head.method != HTTP_HEAD) {
        (void)bufferevent_write(x->buffers, bytes, n_bytes);
        x->n_sent = (int64_t)n_bytes;
    }
    finish(x);
}

void http_stream_begin(http_exchange *x, const char *content_type) {
    http_add_header(x, "Cache-Control", "no-cache");
    http_add_header(x, "X-Accel-Buffering", "no"); /* nginx passes pieces on as they come */
    put_head(x, 200, content_type, -1);
}

void http_stream_write(http_exchange *x, const char *bytes, size_t n_bytes) {
    struct evbuffer *out = bufferevent_get_output(x->buffers);
    if (n_bytes == 0) { return; }
    if (x->in_chunks) { (void)evbuffer_add_printf(out, "%zx\r\n", n_bytes); }
    const bool held = evbuffer_add(out, bytes, n_bytes) == 0;
    if (x->in_chunks) { (void)evbuffer_add(out, "\r\n", 2); }
    x->n_sent += (int64_t)n_bytes;
    if (!held || evbuffer_get_length(out) > (size_t)x->server->params.limits.unread_bytes) { drop(x); }
}

void http_stream_end(http_exchange *x) {
    if (x->in_chunks) { (void)bufferevent_write(x->buffers, "0\r\n\r\n", 5); }
    finish(x);
}

/* ---- The request ------------------------------------------------------------------------------------------------- */

http_method http_method_of(const http_exchange *x) { return x->head.method == HTTP_HEAD ? HTTP_GET : x->head.method; }
const char *http_path(const http_exchange *x) { return x->head.path; }
const char *http_header(const http_exchange *x, const char *name) { return http_head_field(&x->head, name); }

struct http_body {
    http_server *server;
    struct evbuffer *bytes;
    int64_t n_bytes;
};

http_body *http_take_body(http_exchange *x) {
    http_body *taken = malloc(sizeof *taken);
    struct evbuffer *empty = evbuffer_new();
    if (taken == NULL || empty == NULL) {
        free(taken);
        if (empty != NULL) { evbuffer_free(empty); }
        return NULL;
    }
    *taken = (http_body){x->server, x->body, (int64_t)evbuffer_get_length(x->body)};
    x->body = empty;
    return taken;
}

size_t http_body_size(const http_body *body) { return (size_t)body->n_bytes; }

const char *http_body_bytes(http_body *body, size_t *n_bytes) {
    *n_bytes = (size_t)body->n_bytes;
    return *n_bytes > 0 ? (const char *)evbuffer_pullup(body->bytes, -1) : "";
}

void http_body_free(http_body *body) {
    if (body == NULL) { return; }
    body->server->body_bytes -= body->n_bytes;
    evbuffer_free(body->bytes);
    free(body);
}

/* A request that is refused before it is whole: what comes after it cannot be told apart. `why` has no quotes; NULL:
 * the status says it. */
static void refuse(http_exchange *x, int status, const char *why) {
    char text[384], limit[96];
    if (status == 413) {
        (void)snprintf(limit, sizeof limit, "a request can have %lld bytes here (--max-body)",
                       (long long)x->server->params.limits.body_bytes);
        why = limit;
    }
    const int n = snprintf(
        text, sizeof text,
        "{\"type\":\"error\",\"error\":{\"message\":\"%s%s%.160s\",\"type\":\"invalid_request_error\",\"param\":null,"
        "\"code\":null}}",
        reason_of(status), why != NULL ? ": " : "", why != NULL ? why : "");
    bufferevent_disable(x->buffers, EV_READ);
    x->keeps_alive = false;
    x->began = now();
    http_reply(x, status, "application/json", text, (size_t)n);
}

/* The request is whole. Nothing is read while it is answered; that its client leaves is noticed by an event of its own.
 */
static void hand_over(http_exchange *x) {
    const evutil_socket_t descriptor = bufferevent_getfd(x->buffers);
    bufferevent_disable(x->buffers, EV_READ);
    x->began = now();
    x->closed = event_new(x->server->params.base, descriptor, EV_READ | EV_CLOSED, on_closed, x);
    if (x->closed == NULL || event_add(x->closed, NULL) != 0) {
        refuse(x, 503, NULL);
        return;
    }
    x->state = ANSWERING;
    x->server->params.handler(x->server->params.user, x);
}

static void begin_body(http_exchange *x) {
    x->chunk_left = x->head.body_bytes;
    if (x->head.body_bytes > x->server->params.limits.body_bytes) {
        refuse(x, 413, NULL);
        return;
    }
    if (x->head.expects_continue && (x->head.is_chunked || x->head.body_bytes > 0)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        (void)bufferevent_write(x->buffers, go_on, sizeof go_on - 1);
    }
    x->state = x->head.is_chunked ? READING_CHUNK_SIZE : READING_BODY;
}

/* Each of these takes what it can of the input. False: more has to come, or the exchange is no longer reading. */

static bool read_head(http_exchange *x, struct evbuffer *in) {
    const http_limits *limits = &x->server->params.limits;
    while (evbuffer_get_length(in) >= 2 && memcmp(evbuffer_pullup(in, 2), "\r\n", 2) == 0) { evbuffer_drain(in, 2); }
    const size_t n = evbuffer_get_length(in);
    if (n == 0) { return false; }
    if (x->is_complete) { x->since = now(); }
    x->is_complete = false;
    const size_t look = n < (size_t)limits->header_bytes ? n : (size_t)limits->header_bytes;
    const int64_t n_head = http_head_bytes((const char *)evbuffer_pullup(in, (ev_ssize_t)look), look);
    if (n_head <= 0) {
        if (n_head < 0) { refuse(x, 400, "a line of the head does not end with CR LF"); }
        if (n_head == 0 && n >= (size_t)limits->header_bytes) { refuse(x, 431, NULL); }
        return false;
    }
    x->head_text = malloc((size_t)n_head + 1);
    if (x->head_text == NULL) {
        refuse(x, 503, NULL);
        return false;
    }
    (void)evbuffer_remove(in, x->head_text, (size_t)n_head);
    x->head_text[n_head] = '\0';
    const int status = http_head_parse(x->head_text, (size_t)n_head, &x->head);
    x->keeps_alive = x->head.keeps_alive;
    if (status != 0) {
        refuse(x, status, x->head.why);
        return false;
    }
    begin_body(x);
    return x->state != SENDING;
}

static bool read_bytes(http_exchange *x, struct evbuffer *in) {
    http_server *server = x->server;
    const int64_t n = (int64_t)evbuffer_get_length(in), take = n < x->chunk_left ? n : x->chunk_left;
    const bool has_room = server->body_bytes + take <= server->params.limits.bodies_bytes;
    if (take > 0 && (!has_room || evbuffer_remove_buffer(in, x->body, (size_t)take) < 0)) {
        refuse(x, 503, NULL);
        return false;
    }
    server->body_bytes += take;
    x->chunk_left -= take;
    return x->chunk_left == 0;
}

static bool read_body(http_exchange *x, struct evbuffer *in) {
    if (!read_bytes(x, in)) { return false; }
    hand_over(x);
    return false;
}

/* A line of the chunked coding into `line`, without its CR LF. False: it is not whole yet, or was refused. */
static bool read_line(http_exchange *x, struct evbuffer *in, char *line, size_t capacity) {
    size_t n_end;
    const struct evbuffer_ptr end = evbuffer_search_eol(in, NULL, &n_end, EVBUFFER_EOL_CRLF_STRICT);
    const bool too_long = (end.pos < 0 ? evbuffer_get_length(in) : (size_t)end.pos) >= capacity;
    if (too_long) { refuse(x, 400, "a line of the chunked body is too long"); }
    if (end.pos < 0 || too_long) { return false; }
    (void)evbuffer_remove(in, line, (size_t)end.pos);
    line[end.pos] = '\0';
    evbuffer_drain(in, 2);
    return true;
}

static bool read_chunk_size(http_exchange *x, struct evbuffer *in) {
    char line[256];
    if (!read_line(x, in, line, sizeof line)) { return false; }
    x->chunk_left = http_chunk_bytes(line, strlen(line));
    const int64_t room = x->server->params.limits.body_bytes - (int64_t)evbuffer_get_length(x->body);
    if (x->chunk_left < 0 || x->chunk_left > room) {
        refuse(x, x->chunk_left < 0 ? 400 : 413, "a chunk of the body does not begin with its size in hexadecimal");
        return false;
    }
    x->state = x->chunk_left > 0 ? READING_CHUNK : READING_TRAILERS;
    return true;
}

static bool read_chunk(http_exchange *x, struct evbuffer *in) {
    char end[2];
    if (!read_bytes(x, in) || evbuffer_get_length(in) < 2) { return false; }
    (void)evbuffer_remove(in, end, 2);
    if (memcmp(end, "\r\n", 2) != 0) {
        refuse(x, 400, "a chunk of the body is longer than it says");
        return false;
    }
    x->state = READING_CHUNK_SIZE;
    return true;
}

/* Fields after the last chunk are read over. */
static bool read_trailers(http_exchange *x, struct evbuffer *in) {
    char line[1024];
    if (!read_line(x, in, line, sizeof line)) { return false; }
    if (line[0] != '\0') { return true; }
    hand_over(x);
    return false;
}

static void advance(http_exchange *x) {
    static bool (*const readers[])(http_exchange *, struct evbuffer *) = {
        [READING_HEAD] = read_head,   [READING_BODY] = read_body,         [READING_CHUNK_SIZE] = read_chunk_size,
        [READING_CHUNK] = read_chunk, [READING_TRAILERS] = read_trailers,
    };
    struct evbuffer *in = bufferevent_get_input(x->buffers);
    while (x->state < ANSWERING && readers[x->state](x, in)) {}
}

static void on_input(struct bufferevent *buffers, void *arg) {
    http_exchange *x = arg;
    if (x->state == LINGERING) {
        struct evbuffer *in = bufferevent_get_input(buffers);
        evbuffer_drain(in, evbuffer_get_length(in));
    }
    advance(x);
}

static void on_event(struct bufferevent *buffers, short what, void *arg) {
    (void)buffers;
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) != 0) { drop(arg); }
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* Makes room: of the connections without a whole request, the one that has waited for longest goes. */
static bool close_oldest(http_server *server) {
    http_exchange *oldest = NULL;
    for (http_exchange *x = server->connections; x != NULL; x = x->next) {
        const bool waits = x->state < ANSWERING || x->state == LINGERING;
        if (waits && (oldest == NULL || x->since < oldest->since)) { oldest = x; }
    }
    if (oldest == NULL) { return false; }
    drop(oldest);
    return true;
}

static struct bufferevent *make_buffers(http_server *server, evutil_socket_t descriptor) {
    const int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (server->params.tls == NULL) { return bufferevent_socket_new(server->params.base, descriptor, options); }
    SSL *tls = SSL_new(server->params.tls);
    if (tls == NULL) { return NULL; }
    struct bufferevent *made =
        bufferevent_openssl_socket_new(server->params.base, descriptor, tls, BUFFEREVENT_SSL_ACCEPTING, options);
    if (made == NULL) { SSL_free(tls); }
    return made;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t descriptor, struct sockaddr *address,
                      int n_address, void *arg) {
    http_server *server = arg;
    const int on = 1;
    (void)listener, (void)address, (void)n_address;
    const bool has_room = server->n_connections < server->params.limits.n_connections || close_oldest(server);
    http_exchange *x = has_room ? calloc(1, sizeof *x) : NULL;
    if (x != NULL) { x->body = evbuffer_new(); }
    if (x != NULL && x->body != NULL) { x->buffers = make_buffers(server, descriptor); }
    if (x == NULL || x->body == NULL || x->buffers == NULL) {
        if (x != NULL && x->body != NULL) { evbuffer_free(x->body); }
        free(x);
        evutil_closesocket(descriptor);
        return;
    }
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a token is sent when it is there */
    x->server = server;
    x->link = &server->connections;
    x->next = server->connections;
    if (x->next != NULL) { x->next->link = &x->next; }
    server->connections = x;
    server->n_connections++;
    x->since = now();
    x->is_complete = true;
    bufferevent_setcb(x->buffers, on_input, on_sent, on_event, x);
    bufferevent_setwatermark(x->buffers, EV_READ, 0, (size_t)server->params.limits.header_bytes);
    bufferevent_enable(x->buffers, EV_READ | EV_WRITE);
}

/* No descriptor is left, or no memory. Someone goes, or accepting rests until the next sweep. */
static void on_accept_failed(struct evconnlistener *listener, void *arg) {
    if (!close_oldest(arg)) { evconnlistener_disable(listener); }
}

/* What has waited for too long. */
static void look_at(http_exchange *x, double moment) {
    const http_limits *limits = &x->server->params.limits;
    const double waited = moment - x->since;
    if (x->state == ANSWERING) { return; }
    if (x->state == SENDING) {
        const size_t n = evbuffer_get_length(bufferevent_get_output(x->buffers));
        if (n < x->n_unsent) { x->since = moment; }
        x->n_unsent = n;
        if (waited > limits->idle_seconds) { drop(x); }
    } else if (x->state == LINGERING) {
        if (waited > LINGER_SECONDS) { drop(x); }
    } else if (x->is_complete) {
        if (waited > limits->idle_seconds) { drop(x); }
    } else if (waited > limits->request_seconds) {
        refuse(x, 408, "the request has not arrived whole in --request-seconds");
    }
}

static void on_sweep(evutil_socket_t descriptor, short what, void *arg) {
    http_server *server = arg;
    const double moment = now();
    (void)descriptor, (void)what;
    for (http_exchange *x = server->connections, *next; x != NULL; x = next) {
        next = x->next;
        look_at(x, moment);
    }
    if (server->listener != NULL) { (void)evconnlistener_enable(server->listener); }
}

/* ---- The server -------------------------------------------------------------------------------------------------- */

http_server *http_server_create(const http_params *params) {
    const struct timeval second = {.tv_sec = 1};
    http_server *server = calloc(1, sizeof *server);
    if (server == NULL) { return NULL; }
    server->params = *params;
    server->sweep = event_new(params->base, -1, EV_PERSIST, on_sweep, server);
    if (server->sweep == NULL || event_add(server->sweep, &second) != 0) {
        http_server_destroy(server);
        return NULL;
    }
    return server;
}

/* The port of a socket, and whether its address is one of this machine alone; −1: none of both is known. */
static int port_of(int descriptor, bool *is_local) {
    struct sockaddr_storage address = {0};
    socklen_t n_bytes = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &n_bytes) != 0) { return -1; }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&address;
    if (address.ss_family == AF_INET6) {
        *is_local = IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
        return ntohs(v6->sin6_port);
    }
    *is_local = address.ss_family != AF_INET || ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address.ss_family == AF_INET ? ntohs(v4->sin_port) : 0;
}

int http_server_listen_on(http_server *server, int descriptor) {
    const unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    const int port = port_of(descriptor, &server->is_local);
    if (port < 0 || evutil_make_socket_nonblocking(descriptor) != 0) { return -1; }
    server->listener = evconnlistener_new(server->params.base, on_accept, server, flags, 0, descriptor);
    if (server->listener == NULL) { return -1; }
    evconnlistener_set_error_cb(server->listener, on_accept_failed);
    return port;
}

/* A socket that is bound to one of the addresses; −1 with errno. */
static int bind_first(const struct evutil_addrinfo *list) {
    int descriptor = -1;
    for (const struct evutil_addrinfo *a = list; a != NULL && descriptor < 0; a = a->ai_next) {
        const int on = 1;
        descriptor = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (descriptor < 0) { continue; }
        (void)setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(descriptor, a->ai_addr, a->ai_addrlen) == 0 && listen(descriptor, SOMAXCONN) == 0) { break; }
        const int why = errno;
        evutil_closesocket(descriptor);
        errno = why;
        descriptor = -1;
    }
    return descriptor;
}

int http_server_listen(http_server *server, const char *host, int port) {
    const struct evutil_addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                          .ai_flags = EVUTIL_AI_PASSIVE | EVUTIL_AI_NUMERICSERV};
    struct evutil_addrinfo *list = NULL;
    char number[16];
    (void)snprintf(number, sizeof number, "%d", port);
    errno = 0;
    if (evutil_getaddrinfo(host, number, &hints, &list) != 0) {
        errno = 0;
        return -1;
    }
    const int descriptor = bind_first(list);
    const int why = errno;
    evutil_freeaddrinfo(list);
    errno = why;
    if (descriptor < 0) { return -1; }
    const int bound = http_server_listen_on(server, descriptor);
    if (bound < 0) { evutil_closesocket(descriptor); }
    return bound;
}

void http_server_stop_listening(http_server *server) {
    if (server->listener != NULL) { evconnlistener_free(server->listener); }
    server->listener = NULL;
}

void http_server_destroy(http_server *server) {
    if (server == NULL) { return; }
    http_server_stop_listening(server);
    while (server->connections != NULL) { drop(server->connections); }
    if (server->sweep != NULL) { event_free(server->sweep); }
    free(server);
}

bool http_server_is_local(const http_server *server) { return server->is_local; }
int64_t http_server_unsent(const http_server *server) { return server->n_unsent; }
int64_t http_server_connections(const http_server *server) { return server->n_connections; }
