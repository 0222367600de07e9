/* Added tokens: text that becomes one id before, or right after, normalisation. */
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

/* --- loading ------------------------------------------------------------------------------------------------------ */

static int32_t find_exact(const qr_trie *trie, const char *text, size_t n_bytes) {
    uint32_t node = 0;
    int32_t value = -1;
    for (size_t i = 0; trie->edges != NULL && i < n_bytes; i++) {
        if (!qr_trie_step(trie, &node, (unsigned char)text[i], &value)) { return -1; }
    }
    return value;
}

int32_t qr_tokenizer_find_added(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes) {
    return find_exact(&tokenizer->added_contents, text, n_bytes);
}

static qrun_status read_flags(const qr_json *item, qr_added_token *token, const char *what, qr_error *err) {
    token->normalized = true;
    QR_RETURN_IF_ERROR(qr_json_get_bool(item, "special", &token->special, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(item, "single_word", &token->single_word, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(item, "lstrip", &token->lstrip, what, err));
    QR_RETURN_IF_ERROR(qr_json_get_bool(item, "rstrip", &token->rstrip, what, err));
    return qr_json_get_bool(item, "normalized", &token->normalized, what, err);
}

/* The library numbers the new tokens of a list on from here, whatever ids the file gives. */
static int32_t first_new_id(const qr_tokenizer *tokenizer) {
    const qr_vocab *vocab = &tokenizer->vocab;
    int32_t n_tokens = 0, after = 0;
    for (int32_t id = 0; id < vocab->n_ids; id++) { n_tokens += vocab->entries[id].length != QR_VOCAB_HOLE ? 1 : 0; }
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        if (tokenizer->added[i].id >= after) { after = tokenizer->added[i].id + 1; }
    }
    return after > n_tokens ? after : n_tokens;
}

/* The id is the vocabulary's where the vocabulary has the text, else the file's, which must be the next one. Of several
 * added tokens with one text the first gives the id and the last the flags, but special stays special. */
static qrun_status load_one(qr_tokenizer *tokenizer, const qr_json *item, int32_t id, int32_t *new_id, const char *what,
                            qr_error *err) {
    const char *content = NULL;
    qr_added_token token = {.id = id};
    QR_RETURN_IF_ERROR(qr_json_get_string(item, "content", &content, what, err));
    QR_RETURN_IF_ERROR(read_flags(item, &token, what, err));
    if (content == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: an added token has no content", what); }
    if (content[0] == '\0') { return QRUN_OK; }
    token.n_content = strlen(content);
    const int32_t known = qr_vocab_find(&tokenizer->vocab, content, token.n_content);
    const int32_t twin = qr_tokenizer_find_added(tokenizer, content, token.n_content);
    if (twin >= 0) {
        token.content = tokenizer->added[twin].content;
        token.id = tokenizer->added[twin].id;
        token.special = token.special || tokenizer->added[twin].special;
        tokenizer->added[twin] = token;
        return QRUN_OK;
    }
    size_t n_taken;
    if (known >= 0) {
        token.id = known;
    } else if (qr_vocab_text(&tokenizer->vocab, token.id, &n_taken) != NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: the added token \"%.64s\" has the id %d of another token", what,
                       content, (int)token.id);
    } else if (token.id != (*new_id)++) {
        return qr_fail(
            err, QRUN_ERROR_UNSUPPORTED,
            "%s: the added token \"%.64s\" has the id %d, where the next free one is %d; ids of added tokens "
            "with gaps are not supported",
            what, content, (int)token.id, (int)*new_id - 1);
    }
    if (!qr_array_reserve(&tokenizer->added, &tokenizer->added_capacity, tokenizer->n_added + 1, sizeof token) ||
        (token.content = qr_strdup(content)) == NULL) {
        return qr_fail_memory(err, "the added tokens", sizeof token);
    }
    qr_trie_insert(&tokenizer->added_contents, content, token.n_content, (int32_t)tokenizer->n_added);
    tokenizer->added[tokenizer->n_added++] = token;
    return QRUN_OK;
}

static qrun_status map_ids(qr_tokenizer *tokenizer, const char *what, qr_error *err) {
    tokenizer->n_ids = tokenizer->vocab.n_ids;
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        if (tokenizer->added[i].id >= tokenizer->n_ids) { tokenizer->n_ids = tokenizer->added[i].id + 1; }
    }
    tokenizer->added_of_id = qr_alloc_array((size_t)tokenizer->n_ids, sizeof *tokenizer->added_of_id);
    if (tokenizer->added_of_id == NULL) {
        return qr_fail_memory(err, "the table of ids", (size_t)tokenizer->n_ids * sizeof *tokenizer->added_of_id);
    }
    for (int32_t id = 0; id < tokenizer->n_ids; id++) { tokenizer->added_of_id[id] = -1; }
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        int32_t *slot = &tokenizer->added_of_id[tokenizer->added[i].id];
        if (*slot >= 0) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: the added tokens \"%.64s\" and \"%.64s\" have the same id %d",
                           what, tokenizer->added[*slot].content, tokenizer->added[i].content,
                           (int)tokenizer->added[i].id);
        }
        *slot = (int32_t)i;
    }
    return QRUN_OK;
}

/* Counts the tokens of a list or object and the bytes of their texts. */
static void measure(const qr_json *tokens, size_t *n_bytes, int64_t *n_tokens) {
    for (const qr_json *item = qr_json_first(tokens); item != NULL; item = item->next) {
        const qr_json *content = qr_json_get(item, "content");
        *n_bytes += cJSON_IsString(content) ? strlen(content->valuestring) : 0;
        ++*n_tokens;
    }
}

/* The key of added_tokens_decoder as an id. */
static qrun_status read_key(const char *key, int64_t largest_id, int32_t *id, const char *what, qr_error *err) {
    const size_t n = strspn(key, "0123456789");
    const long long value = n > 0 && n < 10 && key[n] == '\0' ? strtoll(key, NULL, 10) : -1;
    if (value < 0 || value > largest_id) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: added_tokens_decoder: \"%.64s\" is not an id from 0 to %lld", what,
                       key, (long long)largest_id);
    }
    *id = (int32_t)value;
    return QRUN_OK;
}

/* Those that are no added tokens yet. Of two with one text the last has the flags, but special stays special. */
static qrun_status load_named(qr_tokenizer *tokenizer, const qr_json *named, const char *what, qr_error *err) {
    const size_t n_before = tokenizer->n_added;
    int32_t new_id = first_new_id(tokenizer);
    for (const qr_json *item = qr_json_first(named); item != NULL; item = item->next) {
        const char *content = "";
        QR_RETURN_IF_ERROR(qr_json_get_string(item, "content", &content, what, err));
        const int32_t twin = qr_tokenizer_find_added(tokenizer, content, strlen(content));
        if (twin >= 0 && (size_t)twin < n_before) { continue; }
        QR_RETURN_IF_ERROR(load_one(tokenizer, item, new_id, &new_id, what, err));
    }
    return QRUN_OK;
}

qrun_status qr_tokenizer_load_added(qr_tokenizer *tokenizer, const qr_json *list, const qr_json *by_id,
                                    const qr_json *named, bool raw_specials, const char *what, qr_error *err) {
    if (!qr_json_is_null(list) && !cJSON_IsArray(list)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: added_tokens is not a list", what);
    }
    size_t n_bytes = 0;
    int64_t n_tokens = tokenizer->vocab.n_ids;
    measure(list, &n_bytes, &n_tokens);
    measure(by_id, &n_bytes, &n_tokens);
    measure(named, &n_bytes, &n_tokens);
    const int64_t largest_id = 4 * n_tokens + 65536;
    int32_t id = 0, new_id = first_new_id(tokenizer);
    QR_RETURN_IF_ERROR(qr_trie_create(&tokenizer->added_contents, n_bytes, err));
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        QR_RETURN_IF_ERROR(qr_tokenizer_json_id(qr_json_get(item, "id"), largest_id, &id, what, err));
        QR_RETURN_IF_ERROR(load_one(tokenizer, item, id, &new_id, what, err));
    }
    new_id = first_new_id(tokenizer);
    for (const qr_json *item = qr_json_first(by_id); item != NULL; item = item->next) {
        QR_RETURN_IF_ERROR(read_key(item->string != NULL ? item->string : "", largest_id, &id, what, err));
        QR_RETURN_IF_ERROR(load_one(tokenizer, item, id, &new_id, what, err));
    }
    QR_RETURN_IF_ERROR(load_named(tokenizer, named, what, err));
    for (size_t i = 0; i < tokenizer->n_added && raw_specials; i++) {
        tokenizer->added[i].normalized = tokenizer->added[i].normalized && !tokenizer->added[i].special;
    }
    return map_ids(tokenizer, what, err);
}

/* What is looked for in normalised text, and what the decoder is given, is the normalised content. */
static qrun_status normalize_content(qr_encode_work *work, qr_added_token *token) {
    qr_segment segment = {token->content, token->n_content, 0};
    QR_RETURN_IF_ERROR(qr_normalize(work, &segment));
    if (segment.n_bytes != token->n_content || memcmp(segment.text, token->content, segment.n_bytes) != 0) {
        token->decoded = qr_strndup(segment.text, segment.n_bytes);
        token->n_decoded = segment.n_bytes;
        if (token->decoded == NULL) { return qr_fail_memory(work->err, "the added tokens", segment.n_bytes); }
    }
    return QRUN_OK;
}

static qrun_status normalize_contents(qr_tokenizer *tokenizer, qr_error *err) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < tokenizer->n_added; i++) { n_bytes += tokenizer->added[i].n_content; }
    qr_encode_work work;
    qr_encode_work_init(&work, tokenizer, n_bytes, NULL, err);
    qrun_status status = QRUN_OK;
    for (size_t i = 0; i < tokenizer->n_added && status == QRUN_OK; i++) {
        if (tokenizer->added[i].normalized) { status = normalize_content(&work, &tokenizer->added[i]); }
    }
    qr_encode_work_free(&work);
    return status;
}

qrun_status qr_tokenizer_index_added(qr_tokenizer *tokenizer, qr_error *err) {
    size_t n_raw = 0, n_normalized = 0;
    QR_RETURN_IF_ERROR(normalize_contents(tokenizer, err));
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const qr_added_token *token = &tokenizer->added[i];
        *(token->normalized ? &n_normalized : &n_raw) += token->decoded != NULL ? token->n_decoded : token->n_content;
    }
    if (n_raw > 0) { QR_RETURN_IF_ERROR(qr_trie_create(&tokenizer->added_raw, n_raw, err)); }
    if (n_normalized > 0) { QR_RETURN_IF_ERROR(qr_trie_create(&tokenizer->added_normalized, n_normalized, err)); }
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        const qr_added_token *token = &tokenizer->added[i];
        const bool changed = token->decoded != NULL;
        qr_trie_insert(token->normalized ? &tokenizer->added_normalized : &tokenizer->added_raw,
                       changed ? token->decoded : token->content, changed ? token->n_decoded : token->n_content,
                       (int32_t)i);
    }
    return QRUN_OK;
}

void qr_tokenizer_free_added(qr_tokenizer *tokenizer) {
    for (size_t i = 0; i < tokenizer->n_added; i++) {
        qr_free(tokenizer->added[i].content);
        qr_free(tokenizer->added[i].decoded);
    }
    qr_free(tokenizer->added);
    qr_free(tokenizer->added_of_id);
    qr_trie_free(&tokenizer->added_contents);
    qr_trie_free(&tokenizer->added_raw);
    qr_trie_free(&tokenizer->added_normalized);
}

/* --- searching ---------------------------------------------------------------------------------------------------- */

static size_t longest_match(qr_added_search *search, const char *text, size_t n_bytes, int32_t *index) {
    uint32_t node = 0;
    size_t longest = 0, i = 0;
    int32_t value;
    for (; i < n_bytes && qr_trie_step(search->trie, &node, (unsigned char)text[i], &value); i++) {
        if (value >= 0) {
            longest = i + 1;
            *index = value;
        }
    }
    qr_budget_spend(search->budget, QR_STEPS_OF_TRIE * (i + 1));
    return longest;
}

static bool touches_word(const char *text, size_t n_bytes, size_t start, size_t end) {
    uint32_t c;
    if (start > 0) {
        const size_t before = qr_utf8_last(text, start);
        (void)qr_utf8_decode(text + before, start - before, &c);
        if (qr_is_word(c)) { return true; }
    }
    if (end < n_bytes) {
        (void)qr_utf8_decode(text + end, n_bytes - end, &c);
        if (qr_is_word(c)) { return true; }
    }
    return false;
}

/* Leftmost-longest, as the library's matcher: a match that is refused still uses up its text. */
int32_t qr_added_next(qr_added_search *search, size_t *gap_start, size_t *gap_end) {
    const char *text = search->text;
    const qr_trie *trie = search->trie;
    *gap_start = search->gap_start;
    while (trie->edges != NULL && search->at < search->n_bytes) {
        int32_t index = -1;
        const size_t start = search->at;
        if (!trie->begins[(unsigned char)text[start]]) {
            search->at++;
            continue;
        }
        const size_t length = longest_match(search, text + start, search->n_bytes - start, &index);
        if (search->budget->steps < 0) { break; }
        search->at += length > 0 ? length : 1;
        if (length == 0) { continue; }
        const qr_added_token *token = &search->tokenizer->added[index];
        const size_t end = start + length;
        if (search->skip_special && token->special) { continue; }
        if (token->single_word && touches_word(text, search->n_bytes, start, end)) { continue; }
        const size_t stop = token->rstrip ? end + qr_utf8_span(text + end, search->n_bytes - end, qr_is_space) : end;
        /* The token before may have taken spaces that are this one. With lstrip nothing is left of it then, and the
         * library leaves it out; without, it counts all the same. */
        if (token->lstrip && *gap_start >= stop) { continue; }
        *gap_end = start;
        if (token->lstrip && start > *gap_start) {
            *gap_end = *gap_start + qr_utf8_trim(text + *gap_start, start - *gap_start, qr_is_space);
        }
        if (*gap_end < *gap_start) { *gap_end = *gap_start; }
        search->gap_start = stop;
        qr_budget_spend(search->budget, stop - end);
        return index;
    }
    *gap_end = search->n_bytes;
    if (*gap_start > *gap_end) { *gap_start = *gap_end; }
    search->gap_start = search->n_bytes;
    return -1;
}
