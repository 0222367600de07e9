/* The model section of tokenizer.json: vocabulary, merges, scores. */
#include <math.h>
#include <string.h>

#include "base/sizes.h"
#include "loaders/tokenizer/internal.h"

enum { MAX_TOKENS = 1 << 26 };

qrun_status qr_tokenizer_json_id(const qr_json *value, int64_t limit, int32_t *id, const char *what, qr_error *err) {
    const double number = cJSON_IsNumber(value) ? value->valuedouble : -1.0;
    if (!(number >= 0.0 && number <= (double)limit) || number != floor(number)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%.64s\" is not an id from 0 to %lld", what,
                       value != NULL && value->string != NULL ? value->string : "id", (long long)limit);
    }
    *id = (int32_t)number;
    return QRUN_OK;
}

/* Ids may have holes, but not so many that tables over all ids would be absurd. */
static int64_t largest_id(int64_t n_tokens) { return 4 * n_tokens + 65536; }

/* --- vocabulary --------------------------------------------------------------------------------------------------- */

/* Counts and bounds for the arena of a vocabulary: an object {text: id} or, for Unigram, a list of [text, score]. */
typedef struct vocab_size {
    int64_t n_tokens;
    int32_t n_ids;
    size_t n_bytes;
} vocab_size;

static qrun_status measure_vocab(const qr_json *vocab, bool is_list, vocab_size *size, const char *what,
                                 qr_error *err) {
    if (is_list ? !cJSON_IsArray(vocab) : !cJSON_IsObject(vocab)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the model has no vocab %s", what, is_list ? "list" : "object");
    }
    const int64_t n_tokens = (int64_t)qr_json_count(vocab);
    if (n_tokens == 0 || n_tokens > MAX_TOKENS) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: a vocabulary of %lld tokens", what, (long long)n_tokens);
    }
    *size = (vocab_size){.n_tokens = n_tokens};
    for (const qr_json *item = qr_json_first(vocab); item != NULL; item = item->next) {
        const qr_json *text = is_list ? qr_json_first(item) : NULL;
        if (is_list && (!cJSON_IsArray(item) || !cJSON_IsString(text) || !cJSON_IsNumber(text->next))) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: an entry of the vocabulary is not [text, score]", what);
        }
        int32_t id = size->n_ids;
        if (!is_list) { QR_RETURN_IF_ERROR(qr_tokenizer_json_id(item, largest_id(n_tokens), &id, what, err)); }
        if (id >= size->n_ids) { size->n_ids = id + 1; }
        size->n_bytes += strlen(is_list ? text->valuestring : item->string);
    }
    if (size->n_bytes > (size_t)INT32_MAX) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the vocabulary has %zu bytes of text", what, size->n_bytes);
    }
    return QRUN_OK;
}

static qrun_status load_vocab(qr_tokenizer *tokenizer, const qr_json *vocab, bool is_list, const char *what,
                              qr_error *err) {
    vocab_size size = {0};
    QR_RETURN_IF_ERROR(measure_vocab(vocab, is_list, &size, what, err));
    QR_RETURN_IF_ERROR(qr_vocab_create(&tokenizer->vocab, (int32_t)size.n_tokens, size.n_ids, size.n_bytes, err));
    int32_t next_id = 0;
    for (const qr_json *item = qr_json_first(vocab); item != NULL; item = item->next) {
        const char *text = is_list ? qr_json_first(item)->valuestring : item->string;
        const int32_t id = is_list ? next_id++ : (int32_t)item->valuedouble;
        QR_RETURN_IF_ERROR(qr_vocab_add(&tokenizer->vocab, id, text, strlen(text), what, err));
    }
    for (int byte = 0; byte < 256; byte++) {
        static const char digits[] = "0123456789ABCDEF";
        const char name[6] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        tokenizer->byte_ids[byte] = qr_vocab_find(&tokenizer->vocab, name, sizeof name);
    }
    return QRUN_OK;
}

/* --- BPE ---------------------------------------------------------------------------------------------------------- */

static qrun_status create_merge_table(qr_bpe *bpe, qr_error *err) {
    size_t n_slots = 16;
    while (n_slots < 2 * (size_t)bpe->n_merges) { n_slots *= 2; }
    bpe->table = qr_alloc_array(n_slots, sizeof *bpe->table);
    bpe->result_of_rank = qr_alloc_array((size_t)bpe->n_merges, sizeof *bpe->result_of_rank);
    if (bpe->table == NULL || bpe->result_of_rank == NULL) {
        return qr_fail_memory(err, "the table of merges", n_slots * sizeof *bpe->table);
    }
    bpe->table_mask = (uint32_t)(n_slots - 1);
    bpe->hash_key = qr_hash_key_of_process();
    for (size_t i = 0; i < n_slots; i++) { bpe->table[i].left = -1; }
    return QRUN_OK;
}

/* Of a pair that is listed twice the later rank counts, as in the `tokenizers` library. */
static void insert_merge(qr_bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t result) {
    *qr_bpe_find_slot(bpe, left, right) = (qr_merge){left, right, rank, result};
    bpe->result_of_rank[rank] = result;
}

/* The two sides of a merge: "left right" with exactly one space, or a list of two. */
static bool merge_sides(const qr_json *merge, const char **left, size_t *n_left, const char **right, size_t *n_right) {
    if (cJSON_IsString(merge)) {
        const char *space = strchr(merge->valuestring, ' ');
        if (space == NULL || strchr(space + 1, ' ') != NULL) { return false; }
        *left = merge->valuestring;
        *n_left = (size_t)(space - *left);
        *right = space + 1;
    } else {
        const qr_json *first = cJSON_IsArray(merge) ? qr_json_first(merge) : NULL;
        const qr_json *second = first != NULL ? first->next : NULL;
        if (!cJSON_IsString(first) || !cJSON_IsString(second) || second->next != NULL) { return false; }
        *left = first->valuestring;
        *n_left = strlen(*left);
        *right = second->valuestring;
    }
    *n_right = strlen(*right);
    return true;
}

static bool has_mark_inside(const char *text) {
    static const char mark[] = "\xE2\x96\x81";
    while (strncmp(text, mark, 3) == 0) { text += 3; }
    return strstr(text, mark) != NULL;
}

static qrun_status load_merge(qr_tokenizer *tokenizer, const qr_json *merge, uint32_t rank, qr_buffer *text,
                              const char *what, qr_error *err) {
    const char *left, *right;
    size_t n_left, n_right;
    if (!merge_sides(merge, &left, &n_left, &right, &n_right)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: merge %u is not a pair of tokens", what, (unsigned)rank);
    }
    const size_t n_prefix = tokenizer->bpe.prefix != NULL ? strlen(tokenizer->bpe.prefix) : 0;
    qr_buffer_clear(text);
    qr_buffer_append(text, left, n_left);
    if (n_right >= n_prefix) { qr_buffer_append(text, right + n_prefix, n_right - n_prefix); }
    if (!qr_buffer_ok(text)) { return qr_fail_memory(err, "the table of merges", n_left + n_right); }
    const int32_t left_id = qr_vocab_find(&tokenizer->vocab, left, n_left);
    const int32_t right_id = qr_vocab_find(&tokenizer->vocab, right, n_right);
    const int32_t result = qr_vocab_find(&tokenizer->vocab, text->data != NULL ? text->data : "", text->size);
    if (left_id < 0 || right_id < 0 || result < 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: merge %u, \"%.*s\" + \"%.*s\", has a token that the "
                       "vocabulary lacks",
                       what, (unsigned)rank, (int)qr_min((int64_t)n_left, 64), left, (int)qr_min((int64_t)n_right, 64),
                       right);
    }
    if (tokenizer->bpe.splits_before_mark && has_mark_inside(text->data)) { tokenizer->bpe.splits_before_mark = false; }
    insert_merge(&tokenizer->bpe, left_id, right_id, rank, result);
    return QRUN_OK;
}

static qrun_status load_merges(qr_tokenizer *tokenizer, const qr_json *merges, const char *what, qr_error *err) {
    qr_bpe *bpe = &tokenizer->bpe;
    if (!cJSON_IsArray(merges)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: the model has no list of merges", what); }
    bpe->n_merges = (int64_t)qr_json_count(merges);
    if (bpe->n_merges > MAX_TOKENS) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %lld merges are too many", what, (long long)bpe->n_merges);
    }
    bpe->splits_before_mark = !bpe->ignore_merges && bpe->prefix == NULL && bpe->suffix == NULL &&
                              qr_vocab_find(&tokenizer->vocab, "\xE2\x96\x81", 3) >= 0;
    qrun_status status = create_merge_table(bpe, err);
    qr_buffer text = {0};
    uint32_t rank = 0;
    for (const qr_json *item = qr_json_first(merges); status == QRUN_OK && item != NULL; item = item->next) {
        status = load_merge(tokenizer, item, rank++, &text, what, err);
    }
    qr_buffer_free(&text);
    return status;
}

static qrun_status load_affix(const qr_json *model, const char *key, char **affix, const char *what, qr_error *err) {
    const char *text = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(model, key, &text, what, err));
    if (text == NULL || text[0] == '\0') { return QRUN_OK; }
    *affix = qr_strdup(text);
    return *affix != NULL ? QRUN_OK : qr_fail_memory(err, key, strlen(text));
}

/* The id of the model's unknown token. A name that the vocabulary lacks counts as none: unknown characters are then
 * left out, where the library would fail on the first. */
static qrun_status load_unk_token(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    const char *name = NULL;
    QR_RETURN_IF_ERROR(qr_json_get_string(model, "unk_token", &name, what, err));
    if (name != NULL) { tokenizer->model_unk_id = qr_vocab_find(&tokenizer->vocab, name, strlen(name)); }
    return QRUN_OK;
}

static qrun_status load_bpe(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    qr_bpe *bpe = &tokenizer->bpe;
    double dropout = 0;
    QR_RETURN_IF_ERROR(load_vocab(tokenizer, qr_json_get(model, "vocab"), false, what, err));
    QR_RETURN_IF_ERROR(load_unk_token(tokenizer, model, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(model, "fuse_unk", &bpe->fuse_unk, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(model, "byte_fallback", &tokenizer->byte_fallback, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(model, "ignore_merges", &bpe->ignore_merges, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_double(model, "dropout", 0.0, 1.0, &dropout, what, err));
    if (dropout != 0.0) {
        QR_RETURN_IF_ERROR(
            qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: BPE with dropout is random and not supported", what));
    }
    QR_RETURN_IF_ERROR(load_affix(model, "continuing_subword_prefix", &bpe->prefix, what, err));
    QR_RETURN_IF_ERROR(load_affix(model, "end_of_word_suffix", &bpe->suffix, what, err));
    QR_RETURN_IF_ERROR(load_merges(tokenizer, qr_json_get(model, "merges"), what, err));
    for (uint32_t c = 0; c < QR_BPE_DIRECT_CHARS; c++) {
        char bytes[2] = {(char)c, 0};
        if (c >= 0x80U) {
            bytes[0] = (char)(unsigned char)(0xC0U | c >> 6);
            bytes[1] = (char)(unsigned char)(0x80U | (c & 0x3FU));
        }
        bpe->direct[c] = qr_vocab_find(&tokenizer->vocab, bytes, c < 0x80U ? 1 : 2);
    }
    return QRUN_OK;
}

/* --- Unigram, WordPiece, WordLevel -------------------------------------------------------------------------------- */

static qrun_status load_unigram(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    enum { UNK_PENALTY = 10 };
    qr_unigram *unigram = &tokenizer->unigram;
    const qr_json *vocab = qr_json_get(model, "vocab");
    int64_t unk_id = -1;
    QR_RETURN_IF_ERROR(load_vocab(tokenizer, vocab, true, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_int(model, "unk_id", 0, tokenizer->vocab.n_ids - 1, &unk_id, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(model, "byte_fallback", &tokenizer->byte_fallback, what, err));
    tokenizer->model_unk_id = (int32_t)unk_id;
    unigram->scores = qr_alloc_array((size_t)tokenizer->vocab.n_ids, sizeof *unigram->scores);
    if (unigram->scores == NULL) {
        QR_RETURN_IF_ERROR(qr_fail_memory(err, "the scores", (size_t)tokenizer->vocab.n_ids * 8));
    }
    QR_RETURN_IF_ERROR(qr_trie_create(&unigram->trie, tokenizer->vocab.n_bytes, err));
    double lowest = INFINITY;
    int32_t id = 0;
    for (const qr_json *item = qr_json_first(vocab); item != NULL; item = item->next, id++) {
        const qr_json *text = qr_json_first(item);
        unigram->scores[id] = text->next->valuedouble;
        lowest = fmin(lowest, unigram->scores[id]);
        qr_trie_insert(&unigram->trie, text->valuestring, strlen(text->valuestring), id);
    }
    unigram->unk_score = lowest - UNK_PENALTY;
    return QRUN_OK;
}

static qrun_status load_word_level(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    QR_RETURN_IF_ERROR(load_vocab(tokenizer, qr_json_get(model, "vocab"), false, what, err));
    return load_unk_token(tokenizer, model, what, err);
}

static qrun_status load_word_piece(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    qr_word_piece *words = &tokenizer->word_piece;
    const char *prefix = "##";
    words->longest_word = 100;
    QR_RETURN_IF_ERROR(load_word_level(tokenizer, model, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_string(model, "continuing_subword_prefix", &prefix, what, err));
    QR_RETURN_IF_ERROR(
        qr_json_get_int(model, "max_input_chars_per_word", 0, INT32_MAX, &words->longest_word, what, err));
    QR_RETURN_IF_ERROR(qr_trie_create(&words->trie, tokenizer->vocab.n_bytes, err));
    for (int32_t id = 0; id < tokenizer->vocab.n_ids; id++) {
        size_t n_bytes;
        const char *text = qr_vocab_text(&tokenizer->vocab, id, &n_bytes);
        if (text != NULL) { qr_trie_insert(&words->trie, text, n_bytes, id); }
    }
    int32_t value;
    words->continues = true;
    for (; *prefix != '\0' && words->continues; prefix++) {
        words->continues = qr_trie_step(&words->trie, &words->continuing, (unsigned char)*prefix, &value);
    }
    return QRUN_OK;
}

/* Files older than the "type" member say by their members what they are. */
static const char *model_type(const qr_json *model) {
    const qr_json *type = qr_json_get(model, "type");
    if (cJSON_IsString(type)) { return type->valuestring; }
    if (qr_json_get(model, "merges") != NULL) { return "BPE"; }
    if (cJSON_IsArray(qr_json_get(model, "vocab"))) { return "Unigram"; }
    if (qr_json_get(model, "max_input_chars_per_word") != NULL) { return "WordPiece"; }
    return qr_json_get(model, "unk_token") != NULL ? "WordLevel" : "unnamed";
}

qrun_status qr_tokenizer_load_model(qr_tokenizer *tokenizer, const qr_json *model, const char *what, qr_error *err) {
    if (!cJSON_IsObject(model)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: no \"model\" object", what); }
    const char *type = model_type(model);
    tokenizer->model_unk_id = -1;
    if (strcmp(type, "BPE") == 0) {
        tokenizer->model = QR_MODEL_BPE;
        return load_bpe(tokenizer, model, what, err);
    }
    if (strcmp(type, "Unigram") == 0) {
        tokenizer->model = QR_MODEL_UNIGRAM;
        return load_unigram(tokenizer, model, what, err);
    }
    if (strcmp(type, "WordPiece") == 0) {
        tokenizer->model = QR_MODEL_WORD_PIECE;
        return load_word_piece(tokenizer, model, what, err);
    }
    if (strcmp(type, "WordLevel") == 0) {
        tokenizer->model = QR_MODEL_WORD_LEVEL;
        return load_word_level(tokenizer, model, what, err);
    }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: the tokenizer model \"%.64s\" is not supported (BPE, Unigram, WordPiece and "
                   "WordLevel are)",
                   what, type);
}

void qr_tokenizer_free_model(qr_tokenizer *tokenizer) {
    qr_vocab_free(&tokenizer->vocab);
    qr_free(tokenizer->bpe.table);
    qr_free(tokenizer->bpe.result_of_rank);
    qr_free(tokenizer->bpe.prefix);
    qr_free(tokenizer->bpe.suffix);
    qr_free(tokenizer->unigram.scores);
    qr_trie_free(&tokenizer->unigram.trie);
    qr_trie_free(&tokenizer->word_piece.trie);
}
