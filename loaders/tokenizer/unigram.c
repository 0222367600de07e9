/* Unigram: the path of highest total score through the pieces that match (Viterbi); unknown characters score below
 * every piece, and a run of them is one token. */
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static void relax(qr_unigram_node *node, double score, size_t start, int32_t id) {
    if (node->start < 0 || score > node->score) { *node = (qr_unigram_node){score, (int64_t)start, id}; }
}

/* Offers every piece that begins at `at`, and the unknown token where no piece is exactly the character there. */
static qrun_status extend_paths(qr_encode_work *work, const char *text, size_t n_bytes, size_t at) {
    const qr_unigram *unigram = &work->tokenizer->unigram;
    const double so_far = work->nodes[at].score;
    const size_t length = qr_char_length(text[at]);
    bool has_character = false;
    uint32_t node = 0;
    size_t end = at;
    while (end < n_bytes) {
        int32_t id;
        if (!qr_trie_step(&unigram->trie, &node, (unsigned char)text[end], &id)) { break; }
        end++;
        if (id < 0) { continue; }
        relax(&work->nodes[end], unigram->scores[id] + so_far, at, id);
        has_character = has_character || end == at + length;
    }
    qr_budget_spend(&work->budget, QR_STEPS_OF_TRIE * (end - at + 1));
    if (work->budget.steps < 0) { return qr_budget_check(&work->budget, work->err); }
    if (has_character) { return QRUN_OK; }
    const int32_t unk = work->tokenizer->model_unk_id;
    qr_unigram_node *target = &work->nodes[at + length];
    const double score = unigram->unk_score + so_far;
    if (unk < 0 && (target->start < 0 || score > target->score)) {
        return qr_fail(work->err, QRUN_ERROR_INPUT,
                       "the text has a character that the Unigram vocabulary lacks, and it has no unk_id");
    }
    relax(target, score, at, unk);
    return QRUN_OK;
}

/* The ids of one piece of the path: text that is not a token is spelled in bytes or is unknown. */
static qrun_status push_piece(qr_encode_work *work, const char *text, size_t n_bytes) {
    const int32_t id = qr_vocab_find(&work->tokenizer->vocab, text, n_bytes);
    if (id >= 0) { return qr_tokens_push(work->out, id, work->err); }
    bool done = false;
    if (work->tokenizer->byte_fallback) { QR_RETURN_IF_ERROR(qr_byte_fallback(work, text, n_bytes, &done)); }
    return done ? QRUN_OK : qr_tokens_push(work->out, work->tokenizer->model_unk_id, work->err);
}

/* Turns the links to the left into links to the right: nodes[start].start = end of the piece. */
static void reverse_path(qr_unigram_node *nodes, size_t n_bytes) {
    size_t end = n_bytes;
    int64_t next = (int64_t)n_bytes;
    int32_t next_id = -1;
    while (true) {
        const int64_t start = nodes[end].start;
        const int32_t id = nodes[end].id;
        nodes[end].start = next;
        nodes[end].id = next_id;
        if (end == 0) { break; }
        next = (int64_t)end;
        next_id = id;
        end = (size_t)start;
    }
}

qrun_status qr_unigram_encode(qr_encode_work *work, const char *text, size_t n_bytes) {
    QR_RETURN_IF_ERROR(qr_array_grow(&work->nodes, &work->nodes_capacity, n_bytes + 1, sizeof *work->nodes,
                                     "a word of the text", work->err));
    qr_unigram_node *nodes = work->nodes;
    for (size_t i = 0; i <= n_bytes; i++) { nodes[i] = (qr_unigram_node){0, -1, -1}; }
    for (size_t i = 0; i < n_bytes; i += qr_char_length(text[i])) {
        QR_RETURN_IF_ERROR(extend_paths(work, text, n_bytes, i));
    }
    reverse_path(nodes, n_bytes);
    const int32_t unk = work->tokenizer->model_unk_id;
    for (size_t i = 0; i < n_bytes;) {
        size_t end = (size_t)nodes[i].start;
        while (unk >= 0 && nodes[i].id == unk && end < n_bytes && nodes[end].id == unk) {
            end = (size_t)nodes[end].start;
        }
        QR_RETURN_IF_ERROR(push_piece(work, text + i, end - i));
        i = end;
    }
    return QRUN_OK;
}
