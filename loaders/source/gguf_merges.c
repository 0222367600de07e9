/* SentencePiece joins the two neighbours whose piece has the highest score. A BPE of the `tokenizers` library has a
 * list of pairs, the first of which is joined first: every way to make a piece of two others, the best pieces first, as
 * transformers' own converter lists them. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/files/json_put.h"
#include "loaders/source/gguf_model.h"

enum {
    MAX_PIECE_BYTES = 256,     /* longer ones are never made of two */
    MAX_MERGES_PER_PIECE = 64, /* on average; real vocabularies have 2 to 3 */
};

typedef struct merge {
    size_t piece;
    size_t left; /* bytes */
    float score;
} merge;

typedef struct merge_list {
    const qr_gguf_text *tokens;
    const qr_gguf_text **sorted; /* by text */
    size_t n_sorted;
    merge *merges;
    size_t n, capacity;
} merge_list;

static int compare_texts(const qr_gguf_text *a, const qr_gguf_text *b) {
    const int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return order != 0 ? order : a->n < b->n ? -1 : a->n > b->n;
}

static int compare_pointers(const void *a, const void *b) {
    return compare_texts(*(const qr_gguf_text *const *)a, *(const qr_gguf_text *const *)b);
}

static int compare_merges(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->score != y->score) { return x->score > y->score ? -1 : 1; }
    if (x->piece != y->piece) { return x->piece < y->piece ? -1 : 1; }
    return x->left > y->left ? -1 : x->left < y->left;
}

static bool is_piece(const merge_list *list, const char *bytes, size_t n) {
    const qr_gguf_text text = {bytes, n}, *wanted = &text;
    return bsearch(&wanted, list->sorted, list->n_sorted, sizeof *list->sorted, compare_pointers) != NULL;
}

static qrun_status add_merges(merge_list *list, size_t piece, float score, qr_error *err) {
    const qr_gguf_text *text = &list->tokens[piece];
    if (text->n > MAX_PIECE_BYTES) { return QRUN_OK; }
    size_t left = text->n > 0 ? qr_utf8_sequence_length(text->bytes, text->n) : 0;
    while (left > 0 && left < text->n) {
        if (is_piece(list, text->bytes, left) && is_piece(list, text->bytes + left, text->n - left)) {
            QR_RETURN_IF_ERROR(qr_array_grow(&list->merges, &list->capacity, list->n + 1, sizeof *list->merges,
                                             "the merges of a tokenizer", err));
            list->merges[list->n++] = (merge){piece, left, score};
        }
        const size_t next = qr_utf8_sequence_length(text->bytes + left, text->n - left);
        left = next > 0 ? left + next : text->n;
    }
    return QRUN_OK;
}

/* A piece that occurs a thousand times would be made a thousand times. */
static qrun_status sort_pieces(merge_list *list, qr_error *err) {
    qsort(list->sorted, list->n_sorted, sizeof *list->sorted, compare_pointers);
    for (size_t i = 1; i < list->n_sorted; i++) {
        if (compare_texts(list->sorted[i - 1], list->sorted[i]) == 0) {
            return qr_fail(err, QRUN_ERROR_INPUT, "the token \"%.*s\" occurs twice",
                           (int)qr_min((int64_t)list->sorted[i]->n, 40), list->sorted[i]->bytes);
        }
    }
    return QRUN_OK;
}

static bool is_made(int64_t type) { return type == QR_GGUF_TOKEN_NORMAL || type == QR_GGUF_TOKEN_UNUSED; }

qrun_status qr_gguf_write_merges(const qr_gguf_text *tokens, const float *scores, const int64_t *types, size_t n_tokens,
                                 qr_buffer *out, qr_error *err) {
    merge_list list = {.tokens = tokens, .sorted = qr_alloc_array(n_tokens, sizeof *list.sorted)};
    qrun_status status = QRUN_OK;
    if (list.sorted == NULL) {
        QR_TRY(qr_fail_memory(err, "the merges of a tokenizer", n_tokens * sizeof *list.sorted));
    }
    for (size_t i = 0; i < n_tokens; i++) {
        if (types == NULL || is_made(types[i])) { list.sorted[list.n_sorted++] = &tokens[i]; }
    }
    QR_TRY(sort_pieces(&list, err));
    for (size_t i = 0; i < n_tokens; i++) {
        if (types == NULL || is_made(types[i])) { QR_TRY(add_merges(&list, i, scores[i], err)); }
        if (list.n / MAX_MERGES_PER_PIECE > n_tokens) {
            QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "its tokens can be made of each other in more than %d ways each",
                           MAX_MERGES_PER_PIECE));
        }
    }
    if (list.n > 0) { qsort(list.merges, list.n, sizeof *list.merges, compare_merges); }
    qr_json_put_begin(out, "merges", '[');
    for (size_t i = 0; i < list.n; i++) {
        const merge *m = &list.merges[i];
        const qr_gguf_text *text = &tokens[m->piece];
        qr_json_put_begin(out, NULL, '[');
        qr_json_put_bytes(out, NULL, text->bytes, m->left);
        qr_json_put_bytes(out, NULL, text->bytes + m->left, text->n - m->left);
        qr_json_put_end(out, ']');
    }
    qr_json_put_end(out, ']');
out:
    qr_free(list.sorted);
    qr_free(list.merges);
    return status;
}
