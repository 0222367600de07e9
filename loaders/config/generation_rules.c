#include "loaders/config/generation_rules.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"

static const int64_t MOST_TOKENS = INT64_C(1) << 31;

bool qr_generation_rules_know(const char *key) {
    static const char *const keys[] = {
        "sequence_bias",
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "min_length",
        "encoder_repetition_penalty",
        "no_repeat_ngram_size",
        "min_new_tokens",
        "encoder_no_repeat_ngram_size",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "exponential_decay_length_penalty",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
    };
    for (size_t i = 0; i < QR_COUNT_OF(keys); i++) {
        if (strcmp(key, keys[i]) == 0) { return true; }
    }
    return false;
}

/* What is read, and what ids are held against. */
typedef struct rules_source {
    const qr_json *object;
    const char *what;
    int64_t vocab;
    bool of_model;
} rules_source;

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static qrun_status wrong_form(const char *what, const char *key, const char *wanted, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" must be %s", what, key, wanted);
}

static bool get_id(const qr_json *item, int32_t *id) {
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(value >= 0 && value <= INT32_MAX) || value != (double)(int32_t)value) { return false; }
    *id = (int32_t)value;
    return true;
}

static qrun_status check_vocabulary(const rules_source *source, const char *key, const int32_t *ids, int64_t n,
                                    qr_error *err) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < source->vocab) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"%s\" has token %d, which is outside the vocabulary of %lld",
                       source->what, key, ids[i], (long long)source->vocab);
    }
    return QRUN_OK;
}

static void free_ids(qr_generation_rules *rules, qr_id_list *list) {
    rules->n_bytes -= list->n * (int64_t)sizeof *list->ids;
    qr_free(list->ids);
    *list = (qr_id_list){0};
}

static qrun_status read_ids(const rules_source *source, const char *key, qr_generation_rules *rules, qr_id_list *list,
                            qr_error *err) {
    const qr_json *array = qr_json_get(source->object, key);
    if (array == NULL) { return QRUN_OK; }
    free_ids(rules, list);
    if (cJSON_IsNull(array)) { return QRUN_OK; }
    if (!cJSON_IsArray(array)) { return wrong_form(source->what, key, "a list of token ids", err); }
    const size_t n = qr_json_count(array);
    if (n == 0) { return QRUN_OK; }
    list->ids = qr_alloc_array(n, sizeof *list->ids);
    if (list->ids == NULL) { return qr_fail_memory(err, key, n * sizeof *list->ids); }
    rules->n_bytes += (int64_t)(n * sizeof *list->ids);
    list->n = (int64_t)n;
    int32_t *id = list->ids;
    for (const qr_json *item = qr_json_first(array); item != NULL; item = item->next) {
        if (!get_id(item, id++)) { return wrong_form(source->what, key, "a list of token ids", err); }
    }
    /* transformers leaves such ids out, and tokenizers of models with images have tokens that the head has no row for:
     * a folder may have them. In a request they are a mistake. */
    return source->of_model ? QRUN_OK : check_vocabulary(source, key, list->ids, list->n, err);
}

static int64_t sequence_bytes(const qr_sequence_list *list) {
    const size_t n_ids = list->n > 0 ? (size_t)list->ends[list->n - 1] : 0;
    const size_t each = sizeof *list->ends + (list->biases != NULL ? sizeof *list->biases : 0);
    return (int64_t)(n_ids * sizeof *list->ids + (size_t)list->n * each);
}

static void free_sequences(qr_generation_rules *rules, qr_sequence_list *list) {
    rules->n_bytes -= sequence_bytes(list);
    qr_free(list->ids);
    qr_free(list->ends);
    qr_free(list->biases);
    *list = (qr_sequence_list){0};
}

/* The token ids of one item: [id, …] itself, or the first of [[id, …], bias]. NULL: neither. */
static const qr_json *ids_of(const qr_json *item, bool has_bias) {
    if (has_bias) { item = cJSON_IsArray(item) && qr_json_count(item) == 2 ? qr_json_first(item) : NULL; }
    return cJSON_IsArray(item) && qr_json_count(item) > 0 ? item : NULL;
}

/* False for an item of another form. */
static bool fill_sequences(const qr_json *array, bool has_bias, qr_sequence_list *list) {
    int64_t n = 0, n_ids = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL; item = item->next, n++) {
        for (const qr_json *id = qr_json_first(ids_of(item, has_bias)); id != NULL; id = id->next) {
            if (!get_id(id, &list->ids[n_ids++])) { return false; }
        }
        list->ends[n] = n_ids;
        if (!has_bias) { continue; }
        const qr_json *bias = qr_json_first(item)->next;
        if (!cJSON_IsNumber(bias) || !(bias->valuedouble >= -1e30 && bias->valuedouble <= 1e30)) { return false; }
        list->biases[n] = (float)bias->valuedouble;
    }
    return true;
}

/* An id outside the vocabulary is refused in every case, as by transformers. */
static qrun_status read_sequences(const rules_source *source, const char *key, bool has_bias,
                                  qr_generation_rules *rules, qr_sequence_list *list, qr_error *err) {
    const char *wanted = has_bias ? "a list of [[token ids], bias]" : "a list of lists of token ids";
    const qr_json *array = qr_json_get(source->object, key);
    if (array == NULL) { return QRUN_OK; }
    free_sequences(rules, list);
    if (cJSON_IsNull(array)) { return QRUN_OK; }
    if (!cJSON_IsArray(array)) { return wrong_form(source->what, key, wanted, err); }
    size_t n = 0, n_ids = 0;
    for (const qr_json *item = qr_json_first(array); item != NULL; item = item->next, n++) {
        const qr_json *ids = ids_of(item, has_bias);
        if (ids == NULL) { return wrong_form(source->what, key, wanted, err); }
        n_ids += qr_json_count(ids);
    }
    if (n == 0) { return QRUN_OK; }
    qr_sequence_list made = {.ids = qr_alloc_array(n_ids, sizeof *made.ids),
                             .ends = qr_alloc_array_zeroed(n, sizeof *made.ends),
                             .biases = has_bias ? qr_alloc_array_zeroed(n, sizeof *made.biases) : NULL};
    if (made.ids == NULL || made.ends == NULL || (has_bias && made.biases == NULL)) {
        free_sequences(rules, &made);
        return qr_fail_memory(err, key, n_ids * sizeof *made.ids + n * sizeof *made.ends);
    }
    const bool well_formed = fill_sequences(array, has_bias, &made);
    made.n = (int64_t)n;
    rules->n_bytes += sequence_bytes(&made);
    *list = made;
    if (!well_formed) { return wrong_form(source->what, key, wanted, err); }
    return check_vocabulary(source, key, list->ids, (int64_t)n_ids, err);
}

/* ---- The members ------------------------------------------------------------------------------------------------- */

/* [tokens of the answer before it begins, factor] */
static qrun_status read_decay(const qr_json *object, const char *what, qr_generation_rules *rules, qr_error *err) {
    static const char key[] = "exponential_decay_length_penalty";
    const qr_json *pair = qr_json_get(object, key);
    if (pair == NULL) { return QRUN_OK; }
    rules->decay_start = 0;
    rules->decay_factor = 0;
    if (cJSON_IsNull(pair)) { return QRUN_OK; }
    int32_t start;
    const qr_json *first = cJSON_IsArray(pair) && qr_json_count(pair) == 2 ? qr_json_first(pair) : NULL;
    const double factor = first != NULL && cJSON_IsNumber(first->next) ? first->next->valuedouble : 0;
    if (first == NULL || !get_id(first, &start) || !(factor > 0 && factor <= 1e3)) {
        return wrong_form(what, key, "[a number of tokens, a factor]", err);
    }
    rules->decay_start = start;
    rules->decay_factor = factor;
    return QRUN_OK;
}

static qrun_status read_count(const qr_json *object, const char *key, const char *what, int64_t *value, qr_error *err) {
    const qr_json *member = qr_json_get(object, key);
    if (member == NULL) { return QRUN_OK; }
    *value = 0;
    return qr_json_get_int(object, key, 0, MOST_TOKENS, value, what, err);
}

/* null means `neutral`. */
static qrun_status read_number(const qr_json *object, const char *key, double low, double high, double neutral,
                               const char *what, double *value, qr_error *err) {
    if (qr_json_get(object, key) == NULL) { return QRUN_OK; }
    *value = neutral;
    return qr_json_get_double(object, key, low, high, value, what, err);
}

/* 0 and 1 are off. */
static qrun_status read_cutoff(const qr_json *object, const char *key, const char *what, double *value, qr_error *err) {
    QR_RETURN_IF_ERROR(read_number(object, key, 0, 1, 0, what, value, err));
    if (*value == 1) { *value = 0; }
    return QRUN_OK;
}

qrun_status qr_generation_rules_read(const qr_json *object, const char *what, int64_t vocab, bool of_model,
                                     qr_generation_rules *rules, qr_error *err) {
    const rules_source source = {object, what, vocab, of_model};
    qr_generation_rules *r = rules;
    QR_RETURN_IF_ERROR(read_sequences(&source, "sequence_bias", true, r, &r->sequence_bias, err));
    QR_RETURN_IF_ERROR(read_sequences(&source, "bad_words_ids", false, r, &r->bad_words, err));
    QR_RETURN_IF_ERROR(read_ids(&source, "suppress_tokens", r, &r->suppress, err));
    QR_RETURN_IF_ERROR(read_ids(&source, "begin_suppress_tokens", r, &r->begin_suppress, err));
    QR_RETURN_IF_ERROR(
        read_number(object, "encoder_repetition_penalty", 1e-3, 1e3, 1, what, &r->encoder_repetition_penalty, err));
    QR_RETURN_IF_ERROR(read_count(object, "no_repeat_ngram_size", what, &r->no_repeat_ngram_size, err));
    QR_RETURN_IF_ERROR(read_count(object, "encoder_no_repeat_ngram_size", what, &r->encoder_no_repeat_ngram_size, err));
    QR_RETURN_IF_ERROR(read_count(object, "min_length", what, &r->min_length, err));
    QR_RETURN_IF_ERROR(read_count(object, "min_new_tokens", what, &r->min_new_tokens, err));
    QR_RETURN_IF_ERROR(qr_token_id_read(object, "forced_bos_token_id", &r->forced_bos, what, err));
    QR_RETURN_IF_ERROR(qr_token_ids_read(object, "forced_eos_token_id", &r->forced_eos, what, err));
    QR_RETURN_IF_ERROR(read_number(object, "typical_p", 1e-6, 1, 1, what, &r->typical_p, err));
    QR_RETURN_IF_ERROR(read_cutoff(object, "epsilon_cutoff", what, &r->epsilon_cutoff, err));
    QR_RETURN_IF_ERROR(read_cutoff(object, "eta_cutoff", what, &r->eta_cutoff, err));
    return read_decay(object, what, r, err);
}

void qr_generation_rules_free(qr_generation_rules *rules) {
    free_sequences(rules, &rules->sequence_bias);
    free_sequences(rules, &rules->bad_words);
    free_ids(rules, &rules->suppress);
    free_ids(rules, &rules->begin_suppress);
}

bool qr_generation_rules_are_neutral(const qr_generation_rules *r) {
    return r->sequence_bias.n + r->bad_words.n + r->suppress.n + r->begin_suppress.n == 0 &&
           r->encoder_repetition_penalty == 1 && r->no_repeat_ngram_size == 0 && r->encoder_no_repeat_ngram_size == 0 &&
           r->min_length == 0 && r->min_new_tokens == 0 && r->forced_bos < 0 && r->forced_eos.n == 0 &&
           r->decay_factor == 0 && r->typical_p == 1 && r->epsilon_cutoff == 0 && r->eta_cutoff == 0;
}
