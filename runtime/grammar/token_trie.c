#include "runtime/grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/utf8.h"

typedef struct sorted_token {
    const char *bytes;
    uint32_t n_bytes;
    int32_t id;
} sorted_token;

/* By their bytes, then by id. */
static int compare(const void *a, const void *b) {
    const sorted_token *first = a, *second = b;
    const size_t n = first->n_bytes < second->n_bytes ? first->n_bytes : second->n_bytes;
    const int order = memcmp(first->bytes, second->bytes, n);
    if (order != 0) { return order; }
    if (first->n_bytes != second->n_bytes) { return first->n_bytes < second->n_bytes ? -1 : 1; }
    return first->id < second->id ? -1 : 1;
}

/* Whole characters that stand for themselves in a JSON string, if there are at most QR_PLAIN_TOKEN_CHARACTERS, and
 * nothing else; 0: there is. */
static size_t count_plain(const char *bytes, size_t n_bytes) {
    size_t n_characters = 0;
    for (size_t i = 0; i < n_bytes; n_characters++) {
        const size_t length = qr_utf8_sequence_length(bytes + i, n_bytes - i);
        if (length == 0 || (unsigned char)bytes[i] < 0x20 || bytes[i] == '"' || bytes[i] == '\\') { return 0; }
        i += length;
    }
    return n_characters <= QR_PLAIN_TOKEN_CHARACTERS ? n_characters : 0;
}

/* A token of the mark's byte, as byte-level vocabularies have one, is no text. */
static void append_special(const qr_tokenizer *tokenizer, int32_t id, size_t begin, qr_buffer *text) {
    size_t n_bytes = text->size - begin;
    if (n_bytes > 0 && memchr(text->data + begin, QR_SPECIAL_MARK, n_bytes) != NULL) { text->size = begin; }
    const char *name = qr_tokenizer_token(tokenizer, id, &n_bytes);
    if (name == NULL || !qr_tokenizer_is_special(tokenizer, id)) { return; }
    qr_buffer_append_char(text, (char)QR_SPECIAL_MARK);
    qr_buffer_append(text, name, n_bytes);
}

static qrun_status read_tokens(const qr_tokenizer *tokenizer, qr_token_trie *trie, qr_error *err) {
    qr_buffer text = {0};
    qrun_status status = QRUN_OK;
    for (int64_t id = 0; id < trie->vocab; id++) {
        const size_t begin = text.size;
        trie->begins[id] = (uint32_t)begin;
        status = qr_tokenizer_token_bytes(tokenizer, (int32_t)id, &text, err);
        if (status == QRUN_ERROR_UNSUPPORTED) { qr_error_prefix(err, "no schema can be held"); }
        QR_TRY(status);
        append_special(tokenizer, (int32_t)id, begin, &text);
        if (text.size - begin > QR_TOKEN_MAX_BYTES) { text.size = begin; }
        if (text.size > INT32_MAX) { QR_TRY(qr_fail(err, QRUN_ERROR_UNSUPPORTED, "the tokens have too much text")); }
    }
    trie->begins[trie->vocab] = (uint32_t)text.size;
    qr_buffer_append_char(&text, '\0');
    trie->text = qr_buffer_take(&text);
    if (trie->text == NULL) { status = qr_fail_memory(err, "the text of tokens", text.size); }
out:
    qr_buffer_free(&text);
    return status;
}

static size_t common_bytes(const sorted_token *a, const sorted_token *b) {
    size_t n = 0;
    while (n < a->n_bytes && n < b->n_bytes && a->bytes[n] == b->bytes[n]) { n++; }
    return n;
}

/* Nodes at a depth of more than `depth` end before the node that comes next. */
static void end_nodes(qr_trie_part *part, int32_t *open, size_t from, size_t depth) {
    for (; from > depth; from--) { part->nodes[open[from]].end = part->n_nodes; }
}

static void insert_all(qr_token_trie *trie, qr_trie_part *part, const sorted_token *tokens, size_t n) {
    int32_t open[QR_TOKEN_MAX_BYTES + 1] = {0}; /* the node at each depth */
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t common = i > 0 ? common_bytes(&tokens[i - 1], &tokens[i]) : 0;
        if (i > 0 && common == tokens[i].n_bytes) { /* the same as the one before */
            trie->next_same[tokens[i].id] = part->nodes[open[common]].token;
            part->nodes[open[common]].token = tokens[i].id;
            continue;
        }
        end_nodes(part, open, depth, common);
        for (depth = common; depth < tokens[i].n_bytes; depth++) {
            open[depth + 1] = part->n_nodes;
            part->nodes[part->n_nodes++] =
                (qr_trie_node){.token = -1, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)tokens[i].bytes[depth]};
        }
        part->nodes[open[depth]].token = tokens[i].id;
    }
    end_nodes(part, open, depth, 0);
}

static qrun_status fill_part(qr_token_trie *trie, qr_trie_part *part, const sorted_token *tokens, size_t n,
                             qr_error *err) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < n; i++) {
        n_nodes += tokens[i].n_bytes - (i > 0 ? common_bytes(&tokens[i - 1], &tokens[i]) : 0);
    }
    part->nodes = qr_alloc_array(n_nodes + 1, sizeof *part->nodes);
    if (part->nodes == NULL) { return qr_fail_memory(err, "the trie of tokens", n_nodes * sizeof *part->nodes); }
    insert_all(trie, part, tokens, n);
    return QRUN_OK;
}

static qrun_status fill(qr_token_trie *trie, sorted_token *tokens, qr_error *err) {
    size_t n_plain = 0, n_other = 0;
    sorted_token *other = tokens + trie->vocab;
    for (int64_t id = 0; id < trie->vocab; id++) {
        sorted_token token = {.id = (int32_t)id};
        size_t n_bytes;
        token.bytes = qr_token_trie_bytes(trie, (int32_t)id, &n_bytes);
        token.n_bytes = (uint32_t)n_bytes;
        trie->next_same[id] = -1;
        if (n_bytes == 0) { continue; }
        const size_t n_characters = count_plain(token.bytes, n_bytes);
        for (size_t n = n_characters; n > 0 && n <= QR_PLAIN_TOKEN_CHARACTERS; n++) {
            trie->plain_masks[n * (size_t)trie->mask_words + (size_t)id / 32] |= 1U << (id % 32);
        }
        if (n_characters > 0) {
            tokens[n_plain++] = token;
        } else {
            other[n_other++] = token;
        }
    }
    qsort(tokens, n_plain, sizeof *tokens, compare);
    qsort(other, n_other, sizeof *other, compare);
    QR_RETURN_IF_ERROR(fill_part(trie, &trie->plain, tokens, n_plain, err));
    return fill_part(trie, &trie->other, other, n_other, err);
}

qrun_status qr_token_trie_create(const qr_tokenizer *tokenizer, int64_t vocab, qr_token_trie *trie, qr_error *err) {
    sorted_token *tokens = qr_alloc_array(2 * (size_t)vocab, sizeof *tokens);
    qrun_status status;
    *trie = (qr_token_trie){.vocab = vocab, .mask_words = qr_ceil_div(vocab, 32)};
    trie->next_same = qr_alloc_array((size_t)vocab, sizeof *trie->next_same);
    trie->begins = qr_alloc_array((size_t)vocab + 1, sizeof *trie->begins);
    trie->plain_masks =
        qr_alloc_array_zeroed((QR_PLAIN_TOKEN_CHARACTERS + 1) * (size_t)trie->mask_words, sizeof *trie->plain_masks);
    if (tokens == NULL || trie->next_same == NULL || trie->begins == NULL || trie->plain_masks == NULL) {
        QR_TRY(qr_fail_memory(err, "the trie of tokens", (unsigned long long)vocab * 40));
    }
    QR_TRY(read_tokens(tokenizer, trie, err));
    QR_TRY(fill(trie, tokens, err));
out:
    qr_free(tokens);
    if (status != QRUN_OK) { qr_token_trie_free(trie); }
    return status;
}

void qr_token_trie_free(qr_token_trie *trie) {
    qr_free(trie->plain.nodes);
    qr_free(trie->other.nodes);
    qr_free(trie->next_same);
    qr_free(trie->plain_masks);
    qr_free(trie->text);
    qr_free(trie->begins);
    *trie = (qr_token_trie){0};
}

const char *qr_token_trie_bytes(const qr_token_trie *trie, int32_t token, size_t *n_bytes) {
    *n_bytes = trie->begins[token + 1] - trie->begins[token];
    return trie->text + trie->begins[token];
}
