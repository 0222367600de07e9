/* The head of an HTTP/1.x request, after RFC 9112. Strict where leniency has let requests be read in two ways: lines
 * end with CR LF, fields are not folded, a body has one length. */
#ifndef QRUN_SERVE_HTTP_HEAD_H
#define QRUN_SERVE_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_MAX_FIELDS = 100 };

typedef enum http_method { HTTP_GET, HTTP_POST, HTTP_DELETE, HTTP_OPTIONS, HTTP_HEAD, HTTP_OTHER } http_method;

typedef struct http_field {
    const char *name, *value;
} http_field;

/* Points into the text it was parsed from. */
typedef struct http_head {
    http_method method;
    const char *path; /* without the query; several slashes are one, and one at the end is none */
    int minor_version;
    http_field fields[HTTP_MAX_FIELDS];
    int n_fields;
    int64_t body_bytes;    /* Content-Length; 0: no body, or is_chunked */
    bool is_chunked;       /* the body comes in chunks */
    bool keeps_alive;      /* the client may send further requests */
    bool expects_continue; /* the client waits before it sends the body */
    const char *authority; /* of a target in absolute form: the Host too; NULL: another form */
    const char *why;       /* of a head that is refused */
} http_head;

/* Bytes of the head at the beginning of text[0, n_bytes), its empty line included. 0: it continues; −1: it has a line
 * that does not end with CR LF. */
int64_t http_head_bytes(const char *text, size_t n_bytes);

/* Parses a whole head, of http_head_bytes, in place. 0, or the HTTP status to refuse it with, for the reason in
 * head->why. */
int http_head_parse(char *text, size_t n_bytes, http_head *head);

/* The value of a field, in any case of its name; NULL: not sent. */
const char *http_head_field(const http_head *head, const char *name);

/* The size line of a chunk, without its CR LF: the bytes of the chunk, or −1. */
int64_t http_chunk_bytes(const char *line, size_t n_bytes);

#endif
