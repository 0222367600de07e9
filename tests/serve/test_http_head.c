/* Heads of HTTP requests: what is read, and what is refused, above all what others might read in another way. */
#include "check.h"

#include "serve/http_head.h"

/* The status of a head; `head` lives until the next call. */
static int parse(const char *text, http_head *head) {
    static char copy[1 << 16];
    snprintf(copy, sizeof copy, "%s", text);
    const int64_t n = http_head_bytes(copy, strlen(copy));
    if (n <= 0) { return n == 0 ? 1 : 2; }
    copy[n] = '\0';
    return http_head_parse(copy, (size_t)n, head);
}

static void test_what_is_read(void) {
    http_head head;
    CHECK_INT(
        parse("POST /v1/x?a=b HTTP/1.1\r\nhost:a\r\nContent-Length:  12 \r\nAuthorization: Bearer  k \r\n\r\nrest",
              &head),
        0);
    CHECK(head.method == HTTP_POST && strcmp(head.path, "/v1/x") == 0 && head.body_bytes == 12);
    CHECK(strcmp(http_head_field(&head, "AUTHORIZATION"), "Bearer  k") == 0);
    CHECK(http_head_field(&head, "Accept") == NULL && head.keeps_alive && !head.is_chunked);
    CHECK_INT(parse("GET / HTTP/1.0\r\n\r\n", &head), 0);
    CHECK(!head.keeps_alive && head.minor_version == 0 && head.n_fields == 0);
    CHECK_INT(parse("GET / HTTP/1.0\r\nConnection: Upgrade, keep-alive\r\n\r\n", &head), 0);
    CHECK(head.keeps_alive);
    CHECK_INT(parse("DELETE /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", &head), 0);
    CHECK(head.method == HTTP_DELETE && !head.keeps_alive);
    CHECK_INT(parse("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n", &head),
              0);
    CHECK(head.is_chunked && head.expects_continue && head.body_bytes == 0);
    CHECK_INT(parse("PATCH * HTTP/1.1\r\nHost: x\r\n\r\n", &head), 0);
    CHECK(head.method == HTTP_OTHER);
    CHECK_INT(parse("HEAD //v1///models/?a=/b/ HTTP/1.1\r\nHost: x\r\n\r\n", &head), 0);
    CHECK(head.method == HTTP_HEAD && strcmp(head.path, "/v1/models") == 0);
    /* the absolute form; what it says of the host counts */
    CHECK_INT(parse("GET HTTP://a.example:80//v1/models?x=/ HTTP/1.1\r\nHost: b.example\r\n\r\n", &head), 0);
    CHECK(strcmp(head.path, "/v1/models") == 0 && strcmp(http_head_field(&head, "Host"), "a.example:80") == 0);
    CHECK_INT(parse("GET https://a/ HTTP/1.0\r\n\r\n", &head), 0);
    CHECK(strcmp(head.path, "/") == 0 && strcmp(head.authority, "a") == 0);
    CHECK_INT(parse("GET /// HTTP/1.1\r\nHost: x\r\n\r\n", &head), 0);
    CHECK(strcmp(head.path, "/") == 0);
}

static void test_what_is_refused(void) {
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n", 1}, /* goes on */
        {"", 1},
        {"GET / HTTP/1.1\nHost: x\n\n", 2}, /* lines without CR */
        {"GET / HTTP/1.1\r\nHost: x\n\r\n", 2},
        {"\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {" GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET http://x HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET http://u@x/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET http://x?a/b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET ftp://x/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET a://x/a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /\x7F HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"G@T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
        {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 505},
        {"GET / SMTP\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400}, /* no Host */
        {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400}, /* folded */
        {"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        http_head head;
        const int status = parse(cases[i].text, &head);
        CHECK_MSG(status == cases[i].status, "%s: %d, not %d", cases[i].text, status, cases[i].status);
        CHECK_MSG(status < 400 || (head.why != NULL && strpbrk(head.why, "\"\\") == NULL), "%s", cases[i].text);
    }
    char many[8192] = "GET / HTTP/1.1\r\nHost: x\r\n";
    for (int i = 0; i < HTTP_MAX_FIELDS; i++) { strcat(many, "A: b\r\n"); }
    strcat(many, "\r\n");
    http_head head;
    CHECK_INT(parse(many, &head), 431);
}

static void test_sizes_of_chunks(void) {
    static const struct {
        const char *line;
        int64_t n;
    } cases[] = {
        {"0", 0},   {"1f", 31}, {"A;name=value", 10},      {"5 ", 5}, {"", -1}, {"g", -1}, {"-1", -1}, {"0x5", -1},
        {"5x", -1}, {";", -1},  {"ffffffffffffffffff", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t n = http_chunk_bytes(cases[i].line, strlen(cases[i].line));
        CHECK_MSG(n == cases[i].n, "\"%s\": %lld", cases[i].line, (long long)n);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_what_is_read);
    CHECK_RUN(test_what_is_refused);
    CHECK_RUN(test_sizes_of_chunks);
    return check_end();
}
