#include "serve/http_head.h"

#include <string.h>
#include <strings.h>

int64_t http_head_bytes(const char *text, size_t n_bytes) {
    const char *line = text, *end = text + n_bytes;
    for (;;) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (newline == NULL) { return 0; }
        if (newline == line || newline[-1] != '\r') { return -1; }
        if (newline == line + 1) { return newline + 1 - text; }
        line = newline + 1;
    }
}

static bool is_token_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Ends the line at its CR LF, and returns the next one. */
static char *cut_line(char *line) {
    char *newline = strchr(line, '\n');
    newline[-1] = '\0';
    return newline + 1;
}

/* ---- The first line ---------------------------------------------------------------------------------------------- */

static http_method method_of(const char *name) {
    static const char *const names[] = {"GET", "POST", "DELETE", "OPTIONS", "HEAD"};
    for (int i = 0; i < HTTP_OTHER; i++) {
        if (strcmp(name, names[i]) == 0) { return (http_method)i; }
    }
    return HTTP_OTHER;
}

/* Clients join a base address and a path as they like: "//v1/models/" is "/v1/models". */
static void clean_path(char *path) {
    char *end = path;
    for (const char *c = path; *c != '\0'; c++) {
        if (c[0] != '/' || c[1] != '/') { *end++ = *c; }
    }
    if (end > path + 1 && end[-1] == '/') { end--; }
    *end = '\0';
}

/* The absolute form, "http://host:port/path", to the path; a server must read it too (RFC 9112, section 3.2.2). NULL:
 * it is none. */
static char *cut_authority(char *target, http_head *head) {
    char *scheme_end = strstr(target, "://");
    const size_t n_scheme = scheme_end != NULL ? (size_t)(scheme_end - target) : 0;
    const bool is_known = (n_scheme == 4 && strncasecmp(target, "http", 4) == 0) ||
                          (n_scheme == 5 && strncasecmp(target, "https", 5) == 0);
    const size_t n = is_known ? strcspn(scheme_end + 3, "/") : 0;
    if (n == 0 || strcspn(scheme_end + 3, "@?#") < n || scheme_end[3 + n] == '\0') { return NULL; }
    memmove(target, scheme_end + 3, n);
    target[n] = '\0';
    head->authority = target;
    return scheme_end + 3 + n;
}

/* The origin form, "/path?query", the absolute form, or "*". */
static bool read_target(char *target, http_head *head) {
    for (const char *c = target; *c != '\0'; c++) {
        if (*c <= 0x20 || *c >= 0x7F) { return false; }
    }
    if (target[0] != '/' && strcmp(target, "*") != 0) { target = cut_authority(target, head); }
    if (target == NULL) { return false; }
    target[strcspn(target, "?#")] = '\0';
    clean_path(target);
    head->path = target;
    return true;
}

static int refuse(http_head *head, int status, const char *why) {
    head->why = why;
    return status;
}

static int read_request_line(char *line, http_head *head) {
    char *target = strchr(line, ' ');
    char *version = target != NULL ? strchr(target + 1, ' ') : NULL;
    if (version == NULL || target == line) {
        return refuse(head, 400, "the first line is not: method, path, HTTP/1.1");
    }
    *target++ = '\0';
    *version++ = '\0';
    for (const char *c = line; *c != '\0'; c++) {
        if (!is_token_character(*c)) { return refuse(head, 400, "the first line does not begin with a method"); }
    }
    head->method = method_of(line);
    if (!read_target(target, head)) {
        return refuse(head, 400, "the path of the first line must begin with a slash, and be ASCII without spaces");
    }
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        return refuse(head, strncmp(version, "HTTP/", 5) == 0 ? 505 : 400, "this server speaks HTTP/1.1 and HTTP/1.0");
    }
    head->minor_version = version[7] - '0';
    return 0;
}

/* ---- Fields ------------------------------------------------------------------------------------------------------ */

static int read_field(char *line, http_head *head) {
    char *value = strchr(line, ':');
    if (value == NULL || value == line) { return refuse(head, 400, "a header line is not: name, colon, value"); }
    if (head->n_fields == HTTP_MAX_FIELDS) { return refuse(head, 431, "a request can have 100 headers here"); }
    for (const char *c = line; c < value; c++) { /* a folded line begins with a space */
        if (!is_token_character(*c)) { return refuse(head, 400, "the name of a header has a space or a sign"); }
    }
    *value++ = '\0';
    value += strspn(value, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t')) { n--; }
    value[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)value[i];
        if ((c < 0x20 && c != '\t') || c == 0x7F) { return refuse(head, 400, "a header has a control character"); }
    }
    head->fields[head->n_fields++] = (http_field){line, value};
    return 0;
}

const char *http_head_field(const http_head *head, const char *name) {
    for (int i = 0; i < head->n_fields; i++) {
        if (strcasecmp(head->fields[i].name, name) == 0) { return head->fields[i].value; }
    }
    return NULL;
}

static int count_fields(const http_head *head, const char *name) {
    int n = 0;
    for (int i = 0; i < head->n_fields; i++) { n += strcasecmp(head->fields[i].name, name) == 0; }
    return n;
}

/* Whether a list such as "keep-alive, Upgrade" has a word. */
static bool has_word(const char *list, const char *word) {
    const size_t n_word = strlen(word);
    while (list != NULL && *list != '\0') {
        list += strspn(list, ", \t");
        const size_t n = strcspn(list, ", \t");
        if (n == n_word && strncasecmp(list, word, n) == 0) { return true; }
        list += n;
    }
    return false;
}

/* ---- The body ---------------------------------------------------------------------------------------------------- */

/* Digits alone; −1 for anything else, and for what no body has. */
static int64_t read_decimal(const char *digits) {
    int64_t value = 0;
    if (*digits == '\0') { return -1; }
    for (const char *c = digits; *c != '\0'; c++) {
        if (*c < '0' || *c > '9' || value > INT64_C(1) << 53) { return -1; }
        value = 10 * value + (*c - '0');
    }
    return value;
}

static int read_body_length(http_head *head) {
    const char *length = http_head_field(head, "Content-Length"), *coding = http_head_field(head, "Transfer-Encoding");
    if (count_fields(head, "Content-Length") > 1 || (length != NULL && coding != NULL)) {
        return refuse(head, 400, "the length of the body is said twice (Content-Length, Transfer-Encoding)");
    }
    if (coding != NULL) {
        if (head->minor_version == 0) { return refuse(head, 400, "HTTP/1.0 has no Transfer-Encoding"); }
        if (count_fields(head, "Transfer-Encoding") > 1 || strcasecmp(coding, "chunked") != 0) {
            return refuse(head, 501, "the Transfer-Encoding that is read is chunked");
        }
        head->is_chunked = true;
    }
    if (length == NULL) { return 0; }
    head->body_bytes = read_decimal(length);
    return head->body_bytes < 0 ? refuse(head, 400, "Content-Length is not a number of bytes in digits") : 0;
}

int64_t http_chunk_bytes(const char *line, size_t n_bytes) {
    static const char digits[] = "0123456789abcdef";
    int64_t value = 0;
    size_t i = 0;
    for (; i < n_bytes && line[i] != '\0'; i++) {
        const char c = line[i] >= 'A' && line[i] <= 'F' ? (char)(line[i] + ('a' - 'A')) : line[i];
        const char *digit = strchr(digits, c);
        if (digit == NULL) { break; }
        if (value > INT64_C(1) << 48) { return -1; }
        value = 16 * value + (digit - digits);
    }
    const bool ends = i == n_bytes || line[i] == ';' || line[i] == ' ' || line[i] == '\t'; /* extensions are ignored */
    return i > 0 && ends ? value : -1;
}

/* ---- The head ---------------------------------------------------------------------------------------------------- */

int http_head_parse(char *text, size_t n_bytes, http_head *head) {
    *head = (http_head){0};
    if (n_bytes < 4 || memchr(text, '\0', n_bytes) != NULL) { /* less is an empty line alone */
        return refuse(head, 400, "the head of the request is empty, or has a zero byte");
    }
    char *end = text + n_bytes - 2, *line = text; /* the empty line */
    *end = '\0';
    char *next = cut_line(line);
    int status = read_request_line(line, head);
    for (line = next; status == 0 && line < end; line = next) {
        next = cut_line(line);
        status = read_field(line, head);
    }
    if (status != 0) { return status; }
    if (head->minor_version == 1 && count_fields(head, "Host") != 1) {
        return refuse(head, 400, "a request of HTTP/1.1 must have one Host header");
    }
    for (int i = 0; i < head->n_fields && head->authority != NULL; i++) {
        if (strcasecmp(head->fields[i].name, "Host") == 0) { head->fields[i].value = head->authority; }
    }
    const char *connection = http_head_field(head, "Connection");
    head->keeps_alive = head->minor_version == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    head->expects_continue = head->minor_version == 1 && has_word(http_head_field(head, "Expect"), "100-continue");
    return read_body_length(head);
}
