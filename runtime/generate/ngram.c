#include "runtime/generate/ngram.h"

/* Equal tokens before `end` and before n, at most QR_NGRAM_LONGEST. */
static int32_t common_length(const int32_t *tokens, int64_t end, int64_t n) {
    int32_t length = 0;
    while (length < QR_NGRAM_LONGEST && length < end && tokens[end - 1 - length] == tokens[n - 1 - length]) {
        length++;
    }
    return length;
}

qr_ngram_match qr_ngram_find(const int32_t *tokens, int64_t n) {
    qr_ngram_match best = {0, 0};
    for (int64_t end = n - 1; end >= QR_NGRAM_SHORTEST && best.length < QR_NGRAM_LONGEST; end--) {
        if (tokens[end - 1] != tokens[n - 1]) { continue; }
        const int32_t length = common_length(tokens, end, n);
        if (length >= QR_NGRAM_SHORTEST && length > best.length) { best = (qr_ngram_match){end, length}; }
    }
    return best;
}
