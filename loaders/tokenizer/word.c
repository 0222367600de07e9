/* Models of whole words: WordPiece, which takes the longest token again and again, and WordLevel. */
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static qrun_status push_unknown(qr_encode_work *work) {
    if (work->tokenizer->model_unk_id < 0) {
        return qr_fail(work->err, QRUN_ERROR_INPUT,
                       "the text has a word that the vocabulary lacks, and its unk_token is not a token");
    }
    return qr_tokens_push(work->out, work->tokenizer->model_unk_id, work->err);
}

qrun_status qr_word_level_encode(qr_encode_work *work, const char *text, size_t n_bytes) {
    const int32_t id = qr_vocab_find(&work->tokenizer->vocab, text, n_bytes);
    return id >= 0 ? qr_tokens_push(work->out, id, work->err) : push_unknown(work);
}

static bool is_longer(const char *text, size_t n_bytes, int64_t n_characters) {
    for (size_t i = 0; i < n_bytes; i += qr_char_length(text[i])) {
        if (n_characters-- == 0) { return true; }
    }
    return false;
}

/* The longest token that text begins with, from this node on: its length, or 0 where there is none. */
static size_t longest_token(qr_encode_work *work, uint32_t node, const char *text, size_t n_bytes, int32_t *id) {
    const qr_trie *trie = &work->tokenizer->word_piece.trie;
    size_t longest = 0, i = 0;
    int32_t value;
    for (; i < n_bytes && qr_trie_step(trie, &node, (unsigned char)text[i], &value); i++) {
        if (value >= 0) {
            longest = i + 1;
            *id = value;
        }
    }
    qr_budget_spend(&work->budget, QR_STEPS_OF_TRIE * (i + 1));
    return longest;
}

/* A word of which some part is no token is unknown as a whole. */
qrun_status qr_word_piece_encode(qr_encode_work *work, const char *text, size_t n_bytes) {
    const qr_word_piece *model = &work->tokenizer->word_piece;
    const size_t n_before = work->out->n;
    if (is_longer(text, n_bytes, model->longest_word)) { return push_unknown(work); }
    for (size_t i = 0; i < n_bytes;) {
        int32_t id = -1;
        const bool can_match = i == 0 || model->continues;
        const size_t n =
            can_match ? longest_token(work, i == 0 ? 0 : model->continuing, text + i, n_bytes - i, &id) : 0;
        QR_RETURN_IF_ERROR(qr_budget_check(&work->budget, work->err));
        if (n == 0) {
            work->out->n = n_before;
            return push_unknown(work);
        }
        QR_RETURN_IF_ERROR(qr_tokens_push(work->out, id, work->err));
        i += n;
    }
    return QRUN_OK;
}
