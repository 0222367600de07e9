/* The tokenizer and the chat template of a model folder, as the metadata of a GGUF file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "loaders/source/gguf_pretokenizers.h"
#include "loaders/source/model_source.h"
#include "runtime/folders/gguf_metadata.h"
#include "runtime/model/tokenizer.h"

#define KEY(name) "tokenizer.ggml." name
#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

enum { MAX_JSON_BYTES = 512 << 20, MAX_TEMPLATE_BYTES = 4 << 20, MAX_REGEXES = 6 };

/* "tokenizer.ggml.token_type" */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

typedef struct vocab_job {
    const qrun_model *model;
    qr_gguf_writer *writer;
    qrun_tokenizer *tools;
    const qr_tokenizer *tokenizer;
    qr_json *root, *config; /* tokenizer.json, tokenizer_config.json or NULL */
    int64_t n_rows;
    uint8_t *types; /* [n_rows] */
    bool is_spm;
    bool is_gemma4; /* of SentencePiece's kind, and written with merges */
} vocab_job;

static qrun_status refuse(const vocab_job *job, const char *what, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: its tokenizer has %s, which llama.cpp has no name for that is known here", job->model->folder,
                   what);
}

/* ---- What each token is ------------------------------------------------------------------------------------------ */

static bool is_byte_token(const char *text, size_t n) {
    return n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
}

/* Gemma 4's, which llama.cpp's converter lets answers show: programs find calls of tools and thoughts by them. */
static bool is_shown(const vocab_job *job, const char *text, size_t n) {
    static const char *const shown[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                        "<|tool_response>", "<tool_response|>", "<|\"|>"};
    for (size_t i = 0; job->is_gemma4 && text != NULL && i < QR_COUNT_OF(shown); i++) {
        if (n == strlen(shown[i]) && memcmp(text, shown[i], n) == 0) { return true; }
    }
    return false;
}

/* Tokens beside the model's own, special or not. One of SentencePiece's space marks, as Gemma has them, is found in
 * texts as spelled, so not in place of spaces: it stays a piece that merges make. */
static void mark_added(vocab_job *job, int32_t id) {
    size_t n = 0;
    const char *text = qr_tokenizer_token(job->tokenizer, id, &n);
    const bool is_piece = job->is_spm && text != NULL && n >= 3 && memcmp(text, SPACE_MARK, 3) == 0;
    if (qr_tokenizer_is_special(job->tokenizer, id) && !is_shown(job, text, n)) {
        job->types[id] = CONTROL;
    } else if (!is_piece) {
        job->types[id] = USER_DEFINED;
    }
}

static qrun_status find_types(vocab_job *job, qr_error *err) {
    const int32_t n_ids = qr_tokenizer_vocab_size(job->tokenizer);
    int32_t n_needed = n_ids; /* added tokens that the model has no row for are left out: nobody can use them */
    while (n_needed > job->n_rows && qr_tokenizer_is_added(job->tokenizer, n_needed - 1)) { n_needed--; }
    if (n_needed > job->n_rows) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: its tokenizer has %d ids, and its embedding %lld rows",
                       job->model->folder, (int)n_ids, (long long)job->n_rows);
    }
    job->types = qr_alloc_zeroed((size_t)job->n_rows);
    if (job->types == NULL) { return qr_fail_memory(err, "the types of tokens", (size_t)job->n_rows); }
    for (int32_t id = 0; id < job->n_rows; id++) {
        size_t n = 0;
        const char *text = id < n_ids ? qr_tokenizer_token(job->tokenizer, id, &n) : NULL;
        job->types[id] = text == NULL ? UNUSED : job->is_spm && is_byte_token(text, n) ? BYTE : NORMAL;
    }
    for (int32_t id = 0; id < n_ids && id < job->n_rows; id++) {
        if (qr_tokenizer_is_added(job->tokenizer, id)) { mark_added(job, id); }
    }
    const int32_t unk = qr_tokenizer_unk_id(job->tokenizer);
    if (job->is_spm && unk >= 0 && unk < job->n_rows) { job->types[unk] = UNKNOWN; }
    return QRUN_OK;
}

static void put_token(const vocab_job *job, int32_t id) {
    size_t n = 0;
    const char *text = qr_tokenizer_token(job->tokenizer, id, &n);
    if (text == NULL) {
        char padding[24];
        (void)snprintf(padding, sizeof padding, "[PAD%d]", (int)id);
        qr_gguf_put_text_item(job->writer, padding, strlen(padding));
        return;
    }
    qr_gguf_put_text_item(job->writer, text, n);
}

static void put_tokens(vocab_job *job) {
    qr_gguf_put_list(job->writer, KEY("tokens"), QR_GGUF_STRING, (uint64_t)job->n_rows);
    for (int32_t id = 0; id < job->n_rows; id++) { put_token(job, id); }
    qr_gguf_put_list(job->writer, KEY("token_type"), QR_GGUF_I32, (uint64_t)job->n_rows);
    for (int64_t id = 0; id < job->n_rows; id++) { qr_gguf_put_i32_item(job->writer, job->types[id]); }
}

/* ---- Merges ------------------------------------------------------------------------------------------------------ */

/* A merge is "left right" or ["left", "right"]. */
static bool read_merge(const qr_json *item, const char **left, size_t *n_left, const char **right) {
    const qr_json *first = qr_json_first(item);
    if (cJSON_IsArray(item) && cJSON_IsString(first) && cJSON_IsString(first->next)) {
        *left = first->valuestring;
        *n_left = strlen(*left);
        *right = first->next->valuestring;
        return true;
    }
    const char *space = cJSON_IsString(item) ? strchr(item->valuestring, ' ') : NULL;
    if (space == NULL) { return false; }
    *left = item->valuestring;
    *n_left = (size_t)(space - *left);
    *right = space + 1;
    return true;
}

static void put_merges(vocab_job *job) {
    const qr_json *merges = qr_json_get(qr_json_get(job->root, "model"), "merges");
    qr_gguf_put_list(job->writer, KEY("merges"), QR_GGUF_STRING, qr_json_count(merges));
    qr_buffer text = {0};
    for (const qr_json *item = qr_json_first(merges); item != NULL; item = item->next) {
        const char *left = "", *right = "";
        size_t n_left = 0;
        (void)read_merge(item, &left, &n_left, &right); /* the tokenizer has checked them */
        qr_buffer_clear(&text);
        qr_buffer_append(&text, left, n_left);
        qr_buffer_append_char(&text, ' ');
        qr_buffer_append_text(&text, right);
        qr_gguf_put_text_item(job->writer, text.data != NULL ? text.data : "", text.size);
    }
    job->writer->values.failed |= !qr_buffer_ok(&text);
    qr_buffer_free(&text);
}

/* SentencePiece joins the pair whose piece has the highest score: the earlier a merge, the higher. */
static qrun_status put_scores(vocab_job *job, qr_error *err) {
    float *scores = qr_alloc_array_zeroed((size_t)job->n_rows, sizeof *scores);
    if (scores == NULL) { return qr_fail_memory(err, "the scores of tokens", (size_t)job->n_rows * sizeof *scores); }
    const qr_json *merges = qr_json_get(qr_json_get(job->root, "model"), "merges");
    const float rank_of_none = -1e9F;
    float rank = 0;
    qr_buffer text = {0};
    for (int64_t id = 0; id < job->n_rows; id++) { scores[id] = job->types[id] == NORMAL ? rank_of_none : -1000; }
    for (const qr_json *item = qr_json_first(merges); item != NULL; item = item->next) {
        const char *left = "", *right = "";
        size_t n_left = 0;
        (void)read_merge(item, &left, &n_left, &right);
        qr_buffer_clear(&text);
        qr_buffer_append(&text, left, n_left);
        qr_buffer_append_text(&text, right);
        const int32_t id = text.data != NULL ? qr_tokenizer_id(job->tokenizer, text.data, text.size) : -1;
        if (id >= 0 && id < job->n_rows && scores[id] == rank_of_none) { scores[id] = -rank; }
        rank++;
    }
    qr_gguf_put_list(job->writer, KEY("scores"), QR_GGUF_F32, (uint64_t)job->n_rows);
    for (int64_t id = 0; id < job->n_rows; id++) { qr_gguf_put_f32_item(job->writer, scores[id]); }
    job->writer->values.failed |= !qr_buffer_ok(&text);
    qr_buffer_free(&text);
    qr_free(scores);
    return QRUN_OK;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* One pre-tokenizer as a regular expression; NULL where it splits nothing. False where it is none of those. */
static bool read_split(const qr_json *stage, const char **regex) {
    const qr_json *type = qr_json_get(stage, "type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "";
    *regex = NULL;
    if (strcmp(name, "ByteLevel") == 0) {
        if (!cJSON_IsFalse(qr_json_get(stage, "use_regex"))) { *regex = qr_gguf_gpt2_regex; }
        return !cJSON_IsTrue(qr_json_get(stage, "add_prefix_space"));
    }
    if (strcmp(name, "Digits") == 0) {
        *regex = qr_gguf_digit_regex;
        return cJSON_IsTrue(qr_json_get(stage, "individual_digits"));
    }
    const qr_json *pattern = qr_json_get(qr_json_get(stage, "pattern"), "Regex");
    const qr_json *behavior = qr_json_get(stage, "behavior");
    if (strcmp(name, "Split") != 0 || !cJSON_IsString(pattern) || !cJSON_IsString(behavior)) { return false; }
    *regex = pattern->valuestring;
    return strcmp(behavior->valuestring, "Isolated") == 0 && !cJSON_IsTrue(qr_json_get(stage, "invert"));
}

static qrun_status find_pretokenizer(const vocab_job *job, const qr_gguf_pretokenizer **found, qr_error *err) {
    const qr_json *pre = qr_json_get(job->root, "pre_tokenizer");
    const qr_json *list = qr_json_get(pre, "pretokenizers");
    const char *regexes[MAX_REGEXES];
    int n = 0;
    for (const qr_json *stage = cJSON_IsArray(list) ? list->child : pre; stage != NULL;
         stage = cJSON_IsArray(list) ? stage->next : NULL) {
        const char *regex;
        if (!read_split(stage, &regex) || (regex != NULL && n == MAX_REGEXES)) {
            return refuse(job, "a way to split texts into words", err);
        }
        if (regex != NULL) { regexes[n++] = regex; }
    }
    const qr_json *type = qr_json_get(qr_json_get(job->root, "normalizer"), "type");
    const bool nfc = cJSON_IsString(type) && strcmp(type->valuestring, "NFC") == 0;
    const bool ignores = cJSON_IsTrue(qr_json_get(qr_json_get(job->root, "model"), "ignore_merges"));
    *found = qr_gguf_pretokenizer_of(regexes, n, ignores, nfc);
    return *found != NULL ? QRUN_OK : refuse(job, "a way to split texts into words", err);
}

/* Whether a text is encoded with a space before it. */
static qrun_status adds_space(const vocab_job *job, bool *adds, qr_error *err) {
    const qr_encode_options options = {0};
    qr_tokens tokens = {0};
    size_t n = 0;
    const qrun_status status = qr_tokenizer_encode(job->tokenizer, "a", 1, &options, &tokens, err);
    const char *text = tokens.n > 0 ? qr_tokenizer_token(job->tokenizer, tokens.ids[0], &n) : NULL;
    *adds = text != NULL && n >= 3 && memcmp(text, SPACE_MARK, 3) == 0;
    qr_tokens_free(&tokens);
    return status;
}

static qrun_status put_kind(vocab_job *job, qr_error *err) {
    const char *kind = job->is_gemma4 ? "gemma4" : job->is_spm ? "llama" : "gpt2";
    qr_gguf_put_text(job->writer, KEY("model"), kind, strlen(kind));
    if (job->is_spm) {
        bool adds = false;
        QR_RETURN_IF_ERROR(adds_space(job, &adds, err));
        if (job->is_gemma4 && adds) { return refuse(job, "a space before every text", err); }
        if (!job->is_gemma4) { qr_gguf_put_text(job->writer, KEY("pre"), "default", 7); }
        qr_gguf_put_bool(job->writer, KEY("add_space_prefix"), adds);
        return QRUN_OK;
    }
    const qr_gguf_pretokenizer *pre;
    QR_RETURN_IF_ERROR(find_pretokenizer(job, &pre, err));
    qr_gguf_put_text(job->writer, KEY("pre"), pre->name, strlen(pre->name));
    return QRUN_OK;
}

/* ---- Special tokens ---------------------------------------------------------------------------------------------- */

static void put_id(vocab_job *job, const char *key, int64_t id) {
    if (id >= 0 && id < job->n_rows) { qr_gguf_put_u32(job->writer, key, (uint32_t)id); }
}

/* What ends an answer: the tokenizer's own end where the model obeys it, and one more. */
static void put_ends(vocab_job *job, int32_t own, bool is_added) {
    const qr_token_ids *ends = &job->model->generation.eos;
    int64_t eos = own, eot = -1;
    bool obeyed = ends->n == 0 || is_added;
    for (int i = 0; i < ends->n; i++) { obeyed |= ends->ids[i] == eos; }
    if (!obeyed) { eos = ends->ids[0]; }
    for (int i = ends->n; i > 0; i--) { eot = ends->ids[i - 1] != eos ? ends->ids[i - 1] : eot; }
    put_id(job, KEY("eos_token_id"), eos);
    put_id(job, KEY("eot_token_id"), eot);
}

/* The tokens that are added before and after a text: one each at most, or −1. */
static qrun_status find_around(const vocab_job *job, int32_t *before, int32_t *after, qr_error *err) {
    const qr_encode_options plain = {0}, special = {.add_special = true};
    qr_tokens text = {0}, whole = {0};
    qrun_status status = QRUN_OK;
    *before = *after = -1;
    QR_TRY(qr_tokenizer_encode(job->tokenizer, "a", 1, &plain, &text, err));
    QR_TRY(qr_tokenizer_encode(job->tokenizer, "a", 1, &special, &whole, err));
    const size_t n = whole.n - text.n;
    const bool begins = n > 0 && memcmp(whole.ids, text.ids, text.n * sizeof *text.ids) != 0;
    if (begins) { *before = whole.ids[0]; }
    if (n > (begins ? 1U : 0U)) { *after = whole.ids[whole.n - 1]; }
    if (n > (begins ? 2U : 1U)) { QR_TRY(refuse(job, "more tokens around a text than a first and a last one", err)); }
out:
    qr_tokens_free(&text);
    qr_tokens_free(&whole);
    return status;
}

static qrun_status put_special(vocab_job *job, qr_error *err) {
    int32_t before, after;
    QR_RETURN_IF_ERROR(find_around(job, &before, &after, err));
    put_id(job, KEY("bos_token_id"), before >= 0 ? before : qr_tokenizer_bos_id(job->tokenizer));
    put_ends(job, after >= 0 ? after : qr_tokenizer_eos_id(job->tokenizer), after >= 0);
    put_id(job, KEY("unknown_token_id"), qr_tokenizer_unk_id(job->tokenizer));
    put_id(job, KEY("padding_token_id"), qr_tokenizer_pad_id(job->tokenizer));
    qr_gguf_put_bool(job->writer, KEY("add_bos_token"), before >= 0);
    qr_gguf_put_bool(job->writer, KEY("add_eos_token"), after >= 0);
    return QRUN_OK;
}

/* The default one, whichever way the folder has it. */
static qrun_status put_template(vocab_job *job, qr_error *err) {
    qr_source_file file;
    QR_RETURN_IF_ERROR(qr_source_read(job->model->folder, "chat_template.jinja", MAX_TEMPLATE_BYTES, &file, err));
    const qr_json *member = qr_json_get(job->config, "chat_template");
    for (const qr_json *item = cJSON_IsArray(member) ? member->child : NULL; item != NULL; item = item->next) {
        const qr_json *name = qr_json_get(item, "name");
        if (!cJSON_IsString(name) || strcmp(name->valuestring, "default") != 0) { continue; }
        member = qr_json_get(item, "template");
        break;
    }
    if (file.text != NULL) {
        qr_gguf_put_text(job->writer, "tokenizer.chat_template", file.text, file.n_bytes);
    } else if (cJSON_IsString(member)) {
        qr_gguf_put_text(job->writer, "tokenizer.chat_template", member->valuestring, strlen(member->valuestring));
    }
    qr_source_file_free(&file);
    return QRUN_OK;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static qrun_status put_all(vocab_job *job, qr_error *err) {
    qr_tokenizer_info info;
    qr_tokenizer_get_info(job->tokenizer, &info);
    job->is_spm = info.byte_fallback && !info.byte_level;
    job->is_gemma4 = job->is_spm && job->model->config.family == QR_FAMILY_GEMMA4;
    if (strcmp(info.model, "BPE") != 0 || (!job->is_spm && !info.byte_level)) {
        return refuse(job, "a model other than byte-level BPE or SentencePiece's BPE", err);
    }
    QR_RETURN_IF_ERROR(find_types(job, err));
    QR_RETURN_IF_ERROR(put_kind(job, err));
    put_tokens(job);
    if (job->is_spm && !job->is_gemma4) {
        QR_RETURN_IF_ERROR(put_scores(job, err));
    } else {
        put_merges(job);
    }
    QR_RETURN_IF_ERROR(put_special(job, err));
    return put_template(job, err);
}

qrun_status qr_gguf_put_tokenizer(qr_gguf_writer *writer, const qrun_model *model, int64_t n_rows, qr_error *err) {
    vocab_job job = {.model = model, .writer = writer, .n_rows = n_rows};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_folder_tokenizer_open_optional(model->folder, &job.tools, err));
    if (job.tools == NULL) {
        qr_gguf_put_text(writer, KEY("model"), "none", 4);
        goto out;
    }
    job.tokenizer = job.tools->tokenizer;
    QR_TRY(qr_source_read_json(model->folder, "tokenizer.json", MAX_JSON_BYTES, &job.root, NULL, err));
    QR_TRY(qr_source_read_json(model->folder, "tokenizer_config.json", MAX_JSON_BYTES, &job.config, NULL, err));
    QR_TRY(put_all(&job, err));
out:
    qrun_tokenizer_destroy(job.tools);
    qr_json_free(job.root);
    qr_json_free(job.config);
    qr_free(job.types);
    return status;
}
