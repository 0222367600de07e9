/* Byte-pair encoding: a linked list of symbols and a heap of candidate merges, ordered by rank and then position, so
 * that a word of n characters takes O(n log n). */
#include <string.h>

#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 */
enum { MARK_BYTES = 3 };

static const qr_merge *find_merge(const qr_bpe *bpe, int32_t left, int32_t right) {
    const qr_merge *slot = qr_bpe_find_slot(bpe, left, right);
    return slot->left >= 0 ? slot : NULL;
}

/* --- heap of rank << 32 | position -------------------------------------------------------------------------------- */

static void heap_push(qr_encode_work *work, uint64_t key) {
    size_t at = work->n_heap++;
    while (at > 0 && work->heap[(at - 1) / 2] > key) {
        work->heap[at] = work->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    work->heap[at] = key;
}

static uint64_t heap_pop(qr_encode_work *work) {
    const uint64_t top = work->heap[0];
    const uint64_t key = work->heap[--work->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= work->n_heap) { break; }
        if (child + 1 < work->n_heap && work->heap[child + 1] < work->heap[child]) { child++; }
        if (work->heap[child] >= key) { break; }
        work->heap[at] = work->heap[child];
        at = child;
    }
    work->heap[at] = key;
    return top;
}

static void push_candidate(qr_encode_work *work, int32_t left) {
    const qr_bpe_symbol *symbol = &work->symbols[left];
    const qr_merge *merge = find_merge(&work->tokenizer->bpe, symbol->id, work->symbols[symbol->next].id);
    if (merge != NULL) { heap_push(work, (uint64_t)merge->rank << 32 | (uint32_t)left); }
}

/* --- symbols ------------------------------------------------------------------------------------------------------ */

/* Rewrites the character as the vocabulary spells it at this position of the word. */
static void add_affixes(const qr_bpe *bpe, qr_buffer *word, bool is_first, bool is_last, const char **text,
                        size_t *n_bytes) {
    if ((is_first || bpe->prefix == NULL) && (!is_last || bpe->suffix == NULL)) { return; }
    qr_buffer_clear(word);
    if (!is_first && bpe->prefix != NULL) { qr_buffer_append_text(word, bpe->prefix); }
    qr_buffer_append(word, *text, *n_bytes);
    if (is_last && bpe->suffix != NULL) { qr_buffer_append_text(word, bpe->suffix); }
    if (qr_buffer_ok(word)) {
        *text = word->data;
        *n_bytes = word->size;
    }
}

static int32_t find_character(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes) {
    const unsigned char *b = (const unsigned char *)text;
    if (n_bytes == 1) { return tokenizer->bpe.direct[b[0]]; }
    if (n_bytes == 2 && b[0] >= 0xC2U && b[0] < 0xC6U) {
        return tokenizer->bpe.direct[(b[0] & 0x1FU) << 6 | (b[1] & 0x3FU)];
    }
    return qr_vocab_find(&tokenizer->vocab, text, n_bytes);
}

/* Symbols of a word in the order they are found. An unknown character waits, so that a run can become one symbol; as
 * in the `tokenizers` library, bytes of byte fallback do not end such a run. */
typedef struct symbol_list {
    qr_encode_work *work;
    int32_t n;
    int32_t enough; /* symbols that surely give more tokens than are wanted */
    bool unknown_waits;
    qrun_status status;
} symbol_list;

static void add_symbol(symbol_list *list, int32_t id) {
    enum { MOST_SYMBOLS = INT32_MAX / 2 };
    qr_encode_work *work = list->work;
    if (list->status != QRUN_OK) { return; }
    if (list->n == MOST_SYMBOLS) {
        list->status = qr_fail(work->err, QRUN_ERROR_ARGUMENT, "a word of more than 1 GiB is too long to encode");
        return;
    }
    if ((size_t)list->n == work->symbols_capacity) {
        list->status = qr_array_grow(&work->symbols, &work->symbols_capacity, (size_t)list->n + 1,
                                     sizeof *work->symbols, "a word of the text", work->err);
        if (list->status != QRUN_OK) { return; }
    }
    work->symbols[list->n] = (qr_bpe_symbol){id, list->n - 1, list->n + 1};
    list->n++;
}

static void flush_unknown(symbol_list *list) {
    if (list->unknown_waits) { add_symbol(list, list->work->tokenizer->model_unk_id); }
    list->unknown_waits = false;
}

static bool add_bytes(symbol_list *list, const char *text, size_t n_bytes) {
    const qr_tokenizer *tokenizer = list->work->tokenizer;
    for (size_t i = 0; i < n_bytes; i++) {
        if (tokenizer->byte_ids[(unsigned char)text[i]] < 0) { return false; }
    }
    if (tokenizer->bpe.prefix != NULL || tokenizer->bpe.suffix != NULL) {
        list->work->budget.growth -= (int64_t)n_bytes;
    }
    for (size_t i = 0; i < n_bytes && list->n <= list->enough; i++) {
        add_symbol(list, tokenizer->byte_ids[(unsigned char)text[i]]);
    }
    return true;
}

static void add_character(symbol_list *list, const char *text, size_t n_bytes) {
    qr_encode_work *work = list->work;
    const qr_tokenizer *tokenizer = work->tokenizer;
    uint32_t c = 0;
    char byte = 0;
    if (work->escape_base != 0 && n_bytes == 4) { (void)qr_utf8_decode(text, n_bytes, &c); }
    if (qr_is_escape(work->escape_base, c)) {
        byte = (char)(unsigned char)(c - work->escape_base);
        text = &byte;
        n_bytes = 1;
    } else {
        const int32_t id = find_character(tokenizer, text, n_bytes);
        if (id >= 0) {
            flush_unknown(list);
            add_symbol(list, id);
            return;
        }
    }
    if (tokenizer->byte_fallback && add_bytes(list, text, n_bytes)) { return; }
    if (tokenizer->model_unk_id < 0) { return; } /* the library drops it too */
    if (!tokenizer->bpe.fuse_unk) { flush_unknown(list); }
    list->unknown_waits = true;
}

/* A token of the result has at most as many symbols as the longest token has bytes: merging puts texts together. That
 * does not hold where a merge drops a prefix, or where the unknown token has no text. */
static int32_t enough_symbols(const qr_encode_work *work) {
    const qr_tokenizer *tokenizer = work->tokenizer;
    const int32_t unk = tokenizer->model_unk_id;
    const bool unknown_is_empty = unk >= 0 && tokenizer->vocab.entries[unk].length == 0;
    const size_t room = work->max_out - work->out->n, longest = tokenizer->vocab.longest;
    if (tokenizer->bpe.prefix != NULL || unknown_is_empty || room >= (size_t)INT32_MAX / (longest + 1)) {
        return INT32_MAX - 1;
    }
    return (int32_t)((room + 1) * longest);
}

static qrun_status find_symbols(qr_encode_work *work, const char *text, size_t n_bytes, int32_t *n) {
    const qr_bpe *bpe = &work->tokenizer->bpe;
    symbol_list list = {.work = work, .enough = enough_symbols(work)};
    for (size_t i = 0, length; i < n_bytes && list.status == QRUN_OK && list.n <= list.enough; i += length) {
        length = qr_char_length(text[i]);
        const char *character = text + i;
        size_t n_character = length;
        add_affixes(bpe, &work->word, i == 0, i + length == n_bytes, &character, &n_character);
        add_character(&list, character, n_character);
        qr_budget_spend(&work->budget, n_character);
        if (work->budget.growth < 0 || work->budget.steps < 0) { break; }
    }
    if (!qr_buffer_ok(&work->word)) { return qr_fail_memory(work->err, "a word of the text", n_bytes); }
    flush_unknown(&list);
    QR_RETURN_IF_ERROR(list.status);
    if (list.n > 0) { work->symbols[list.n - 1].next = -1; }
    *n = list.n;
    qr_budget_spend(&work->budget, QR_STEPS_OF_SYMBOL * (size_t)list.n);
    return qr_budget_check(&work->budget, work->err);
}

static qrun_status merge_symbols(qr_encode_work *work, int32_t n) {
    const qr_bpe *bpe = &work->tokenizer->bpe;
    qr_bpe_symbol *symbols = work->symbols;
    /* One candidate for each neighbouring pair at the start. A merge, of which there are fewer than symbols, takes one
     * out and puts in two. */
    const size_t n_candidates = 2 * (size_t)n + 1;
    QR_RETURN_IF_ERROR(qr_array_grow(&work->heap, &work->heap_capacity, n_candidates, sizeof *work->heap,
                                     "a word of the text", work->err));
    work->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) { push_candidate(work, i); }
    while (work->n_heap > 0) {
        const uint64_t key = heap_pop(work);
        const int32_t at = (int32_t)(uint32_t)key;
        qr_bpe_symbol *left = &symbols[at];
        if (left->id < 0 || left->next < 0) { continue; }
        /* The candidate may be out of date; it still counts when the pair of today makes the same token. */
        const qr_merge *merge = find_merge(bpe, left->id, symbols[left->next].id);
        if (merge == NULL || merge->result != bpe->result_of_rank[key >> 32]) { continue; }
        qr_bpe_symbol *right = &symbols[left->next];
        left->id = merge->result;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) { symbols[left->next].prev = at; }
        if (left->prev >= 0) { push_candidate(work, left->prev); }
        if (left->next >= 0) { push_candidate(work, at); }
    }
    return QRUN_OK;
}

static qrun_status encode_word(qr_encode_work *work, const char *text, size_t n_bytes) {
    const qr_tokenizer *tokenizer = work->tokenizer;
    if (tokenizer->bpe.ignore_merges) {
        const int32_t id = qr_vocab_find(&tokenizer->vocab, text, n_bytes);
        if (id >= 0) { return qr_tokens_push(work->out, id, work->err); }
    }
    int32_t n = 0;
    QR_RETURN_IF_ERROR(find_symbols(work, text, n_bytes, &n));
    QR_RETURN_IF_ERROR(merge_symbols(work, n));
    for (int32_t i = 0; i >= 0 && i < n; i = work->symbols[i].next) {
        QR_RETURN_IF_ERROR(qr_tokens_push(work->out, work->symbols[i].id, work->err));
    }
    return QRUN_OK;
}

/* The end of the word that begins at text: before the next mark that follows another character. */
static size_t word_length(const char *text, size_t n_bytes) {
    size_t i = 0;
    while (n_bytes - i >= MARK_BYTES && memcmp(text + i, mark, MARK_BYTES) == 0) { i += MARK_BYTES; }
    while (i < n_bytes) {
        const char *hit = memchr(text + i, mark[0], n_bytes - i);
        if (hit == NULL) { break; }
        i = (size_t)(hit - text);
        if (n_bytes - i >= MARK_BYTES && memcmp(hit, mark, MARK_BYTES) == 0) { return i; }
        i++;
    }
    return n_bytes;
}

qrun_status qr_bpe_encode(qr_encode_work *work, const char *text, size_t n_bytes) {
    while (n_bytes > 0 && !qr_encode_is_over(work)) {
        const size_t n = work->tokenizer->bpe.splits_before_mark ? word_length(text, n_bytes) : n_bytes;
        QR_RETURN_IF_ERROR(encode_word(work, text, n));
        text += n;
        n_bytes -= n;
    }
    return QRUN_OK;
}
