/* A head of HTTP, and the size line of a chunk. What is accepted points into its text and has one length of body. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "serve/http_head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const int64_t n = http_head_bytes((const char *)data, size);
    const int64_t n_chunk = http_chunk_bytes((const char *)data, size);
    FUZZ_CHECK(n >= -1 && n <= (int64_t)size && n_chunk >= -1);
    if (n <= 0) { return 0; }
    char *text = malloc((size_t)n + 1);
    FUZZ_CHECK(text != NULL);
    memcpy(text, data, (size_t)n);
    text[n] = '\0';
    http_head head;
    const int status = http_head_parse(text, (size_t)n, &head);
    FUZZ_CHECK(status == 0 || (status >= 400 && status < 600));
    if (status == 0) {
        FUZZ_CHECK(head.path >= text && head.path < text + n && (head.path[0] == '/' || head.path[0] == '*'));
        FUZZ_CHECK(head.body_bytes >= 0 && (!head.is_chunked || head.body_bytes == 0));
        for (int i = 0; i < head.n_fields; i++) {
            FUZZ_CHECK(head.fields[i].name[0] != '\0' && head.fields[i].value < text + n);
            FUZZ_CHECK(http_head_field(&head, head.fields[i].name) != NULL);
        }
    }
    free(text);
    return 0;
}
