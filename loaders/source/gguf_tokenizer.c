/* tokenizer.json and tokenizer_config.json, from the metadata of a GGUF file: a byte-level BPE ("gpt2") or one of
 * SentencePiece ("llama"), which has scores in place of merges, unless it is Gemma 4's ("gemma4"). */
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/files/json_put.h"
#include "loaders/source/gguf_model.h"
#include "loaders/source/gguf_names.h"
#include "loaders/source/gguf_pretokenizers.h"

#define KEY(name) "tokenizer.ggml." name
#define SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

typedef struct vocabulary {
    const qr_gguf *file;
    const qr_gguf_arch *arch;
    bool is_spm;
    bool has_merges;                 /* always, but of SentencePiece */
    const qr_gguf_pretokenizer *pre; /* of a byte-level one */
    qr_gguf_text *tokens;
    int64_t *types; /* NULL: all are normal */
    size_t n_tokens, n_types;
    float *scores;
    size_t n_scores;
    int64_t bos, eos, unk, pad; /* −1: none */
    bool adds_bos, adds_eos, adds_space;
} vocabulary;

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static qrun_status read_kind(vocabulary *v, qr_error *err) {
    qr_gguf_text model = {0}, pre = {"default", 7};
    QR_RETURN_IF_ERROR(qr_gguf_get_text(v->file, KEY("model"), &model, err));
    v->has_merges = !qr_gguf_text_is(model, "llama");
    v->is_spm = !v->has_merges || qr_gguf_text_is(model, "gemma4");
    if (!v->is_spm && !qr_gguf_text_is(model, "gpt2")) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: a tokenizer of the kind \"%.*s\" is not read; \"gpt2\", \"llama\" and \"gemma4\" are",
                       qr_gguf_path(v->file), (int)qr_min((int64_t)model.n, 40), model.n > 0 ? model.bytes : "");
    }
    QR_RETURN_IF_ERROR(qr_gguf_get_text(v->file, KEY("pre"), &pre, err));
    v->pre = qr_gguf_pretokenizer_find(pre);
    if (v->is_spm || v->pre != NULL) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: " KEY("pre") " is \"%.*s\", a pre-tokenizer that is not known",
                   qr_gguf_path(v->file), (int)qr_min((int64_t)pre.n, 40), pre.bytes);
}

static qrun_status read_id(const vocabulary *v, const char *key, int64_t *id, qr_error *err) {
    *id = -1;
    QR_RETURN_IF_ERROR(qr_gguf_get_int(v->file, key, -1, UINT32_MAX, id, err));
    if (*id >= (int64_t)v->n_tokens) { *id = -1; } /* files write 2^32 − 1, too, for none */
    return QRUN_OK;
}

static qrun_status check_tokens(const vocabulary *v, qr_error *err) {
    if (v->n_tokens == 0 || v->n_tokens > INT32_MAX / 2) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: " KEY("tokens") " has %zu tokens", qr_gguf_path(v->file),
                       v->n_tokens);
    }
    if (v->types != NULL && v->n_types != v->n_tokens) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: " KEY("token_type") " has %zu values for %zu tokens",
                       qr_gguf_path(v->file), v->n_types, v->n_tokens);
    }
    if (!v->has_merges && v->n_scores != v->n_tokens) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: " KEY("scores") " has %zu values for %zu tokens",
                       qr_gguf_path(v->file), v->n_scores, v->n_tokens);
    }
    for (size_t i = 0; i < v->n_tokens; i++) {
        const qr_gguf_text t = v->tokens[i];
        if (qr_utf8_valid_prefix(t.bytes, t.n) == t.n && memchr(t.bytes, 0, t.n) == NULL) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: token %zu is not UTF-8", qr_gguf_path(v->file), i);
    }
    return QRUN_OK;
}

static void vocabulary_free(vocabulary *v) {
    qr_free(v->tokens);
    qr_free(v->types);
    qr_free(v->scores);
}

static qrun_status vocabulary_read(const qr_gguf *file, vocabulary *v, qr_error *err) {
    *v = (vocabulary){.file = file};
    QR_RETURN_IF_ERROR(qr_gguf_read_arch(file, &v->arch, err));
    QR_RETURN_IF_ERROR(read_kind(v, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_texts(file, KEY("tokens"), &v->tokens, &v->n_tokens, err));
    QR_RETURN_IF_ERROR(qr_gguf_get_ints(file, KEY("token_type"), &v->types, &v->n_types, err));
    if (!v->has_merges) { QR_RETURN_IF_ERROR(qr_gguf_get_floats(file, KEY("scores"), &v->scores, &v->n_scores, err)); }
    QR_RETURN_IF_ERROR(check_tokens(v, err));
    QR_RETURN_IF_ERROR(read_id(v, KEY("bos_token_id"), &v->bos, err));
    QR_RETURN_IF_ERROR(read_id(v, KEY("eos_token_id"), &v->eos, err));
    QR_RETURN_IF_ERROR(read_id(v, KEY("unknown_token_id"), &v->unk, err));
    QR_RETURN_IF_ERROR(read_id(v, KEY("padding_token_id"), &v->pad, err));
    v->adds_bos = v->is_spm || v->pre->adds_bos;
    v->adds_space = !v->has_merges;
    QR_RETURN_IF_ERROR(qr_gguf_get_bool(file, KEY("add_bos_token"), &v->adds_bos, err));
    v->adds_bos |= v->is_spm && v->has_merges; /* as llama.cpp does, whatever the file says */
    QR_RETURN_IF_ERROR(qr_gguf_get_bool(file, KEY("add_eos_token"), &v->adds_eos, err));
    return qr_gguf_get_bool(file, KEY("add_space_prefix"), &v->adds_space, err);
}

static int64_t type_of(const vocabulary *v, size_t i) { return v->types != NULL ? v->types[i] : QR_GGUF_TOKEN_NORMAL; }

static bool is_added(const vocabulary *v, size_t i) {
    const int64_t type = type_of(v, i);
    return type == QR_GGUF_TOKEN_CONTROL || type == QR_GGUF_TOKEN_USER_DEFINED ||
           (v->is_spm && type == QR_GGUF_TOKEN_UNKNOWN);
}

/* Converters fill rows of the embedding without a token with names of this form. */
static bool is_padding(const vocabulary *v, size_t i) {
    return type_of(v, i) == QR_GGUF_TOKEN_UNUSED && v->tokens[i].n > 4 && memcmp(v->tokens[i].bytes, "[PAD", 4) == 0;
}

/* ---- tokenizer.json ---------------------------------------------------------------------------------------------- */

static void put_token(qr_buffer *out, const char *key, const vocabulary *v, int64_t id) {
    if (id >= 0) {
        qr_json_put_bytes(out, key, v->tokens[id].bytes, v->tokens[id].n);
    } else {
        qr_json_put_text(out, key, NULL);
    }
}

/* Phi-3's own file says that these tokens take the spaces after them, and llama.cpp knows it by the model. */
static bool strips_right(const vocabulary *v, size_t i) {
    return v->is_spm && strcmp(v->arch->name, "phi3") == 0 && !qr_gguf_text_is(v->tokens[i], "<unk>") &&
           !qr_gguf_text_is(v->tokens[i], "<s>") && !qr_gguf_text_is(v->tokens[i], "<|endoftext|>");
}

static void put_added(qr_buffer *out, const vocabulary *v) {
    qr_json_put_begin(out, "added_tokens", '[');
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (!is_added(v, i)) { continue; }
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_int(out, "id", (int64_t)i);
        put_token(out, "content", v, (int64_t)i);
        qr_json_put_bool(out, "single_word", false);
        qr_json_put_bool(out, "lstrip", false);
        qr_json_put_bool(out, "rstrip", strips_right(v, i));
        qr_json_put_bool(out, "normalized", false);
        qr_json_put_bool(out, "special", type_of(v, i) != QR_GGUF_TOKEN_USER_DEFINED);
        qr_json_put_end(out, '}');
    }
    qr_json_put_end(out, ']');
}

/* As the tokenizers of Llama 2, Mistral and Gemma have them. Those of Gemma 4 have tokens of several ends of lines, for
 * which files have no merges. */
static void put_spm_stages(qr_buffer *out, const vocabulary *v) {
    static const char lines[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\n]+|[\\n]+\"},"
                                "\"behavior\":\"Isolated\",\"invert\":false}";
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE_MARK "\"}";
    static const char prepend[] = "{\"type\":\"Prepend\",\"prepend\":\"" SPACE_MARK "\"}";
    static const char back[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE_MARK "\"},\"content\":\" \"}";
    static const char strip[] = "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";
    qr_json_put_begin(out, "normalizer", '{');
    qr_json_put_text(out, "type", "Sequence");
    qr_json_put_begin(out, "normalizers", '[');
    if (v->adds_space) { qr_json_put_raw(out, NULL, prepend); }
    qr_json_put_raw(out, NULL, replace);
    qr_json_put_end(out, ']');
    qr_json_put_end(out, '}');
    qr_json_put_raw(out, "pre_tokenizer", v->has_merges ? lines : "null");
    qr_json_put_begin(out, "decoder", '{');
    qr_json_put_text(out, "type", "Sequence");
    qr_json_put_begin(out, "decoders", '[');
    qr_json_put_raw(out, NULL, back);
    qr_json_put_raw(out, NULL, "{\"type\":\"ByteFallback\"}");
    qr_json_put_raw(out, NULL, "{\"type\":\"Fuse\"}");
    if (v->adds_space) { qr_json_put_raw(out, NULL, strip); }
    qr_json_put_end(out, ']');
    qr_json_put_end(out, '}');
}

static void put_byte_level_stages(qr_buffer *out, const vocabulary *v) {
    static const char byte_level[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}";
    qr_json_put_raw(out, "normalizer", v->pre->nfc ? "{\"type\":\"NFC\"}" : "null");
    qr_json_put_begin(out, "pre_tokenizer", '{');
    qr_json_put_text(out, "type", "Sequence");
    qr_json_put_begin(out, "pretokenizers", '[');
    for (int i = 0; v->pre->regexes[i] != NULL; i++) {
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_text(out, "type", "Split");
        qr_json_put_begin(out, "pattern", '{');
        qr_json_put_text(out, "Regex", v->pre->regexes[i]);
        qr_json_put_end(out, '}');
        qr_json_put_text(out, "behavior", "Isolated");
        qr_json_put_bool(out, "invert", false);
        qr_json_put_end(out, '}');
    }
    qr_json_put_raw(out, NULL, byte_level);
    qr_json_put_end(out, ']');
    qr_json_put_end(out, '}');
    qr_json_put_raw(out, "decoder", byte_level);
}

static void put_special(qr_buffer *out, const vocabulary *v, int64_t id) {
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_begin(out, "SpecialToken", '{');
    put_token(out, "id", v, id);
    qr_json_put_int(out, "type_id", 0);
    qr_json_put_end(out, '}');
    qr_json_put_end(out, '}');
}

static void put_sequence(qr_buffer *out, const vocabulary *v, const char *key, bool is_pair) {
    qr_json_put_begin(out, key, '[');
    if (v->adds_bos && v->bos >= 0) { put_special(out, v, v->bos); }
    qr_json_put_raw(out, NULL, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    if (is_pair) { qr_json_put_raw(out, NULL, "{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}"); }
    if (v->adds_eos && v->eos >= 0) { put_special(out, v, v->eos); }
    qr_json_put_end(out, ']');
}

static void put_special_ids(qr_buffer *out, const vocabulary *v, int64_t id) {
    qr_buffer name = {0};
    qr_buffer_append(&name, v->tokens[id].bytes, v->tokens[id].n);
    out->failed |= !qr_buffer_ok(&name);
    qr_json_put_begin(out, name.data != NULL ? name.data : "", '{');
    put_token(out, "id", v, id);
    qr_json_put_ints(out, "ids", &id, 1);
    qr_json_put_begin(out, "tokens", '[');
    put_token(out, NULL, v, id);
    qr_json_put_end(out, ']');
    qr_json_put_end(out, '}');
    qr_buffer_free(&name);
}

/* What is added around a text. */
static void put_post_processor(qr_buffer *out, const vocabulary *v) {
    const bool bos = v->adds_bos && v->bos >= 0, eos = v->adds_eos && v->eos >= 0;
    if (!bos && !eos) {
        qr_json_put_text(out, "post_processor", NULL);
        return;
    }
    qr_json_put_begin(out, "post_processor", '{');
    qr_json_put_text(out, "type", "TemplateProcessing");
    put_sequence(out, v, "single", false);
    put_sequence(out, v, "pair", true);
    qr_json_put_begin(out, "special_tokens", '{');
    if (bos) { put_special_ids(out, v, v->bos); }
    if (eos && v->eos != v->bos) { put_special_ids(out, v, v->eos); }
    qr_json_put_end(out, '}');
    qr_json_put_end(out, '}');
}

/* Added tokens too, because the ids of others may come after theirs. */
static void put_vocab(qr_buffer *out, const vocabulary *v) {
    qr_json_put_begin(out, "vocab", '{');
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (is_padding(v, i)) { continue; }
        qr_buffer name = {0};
        qr_buffer_append(&name, v->tokens[i].bytes, v->tokens[i].n);
        out->failed |= !qr_buffer_ok(&name);
        qr_json_put_int(out, name.data != NULL ? name.data : "", (int64_t)i);
        qr_buffer_free(&name);
    }
    qr_json_put_end(out, '}');
}

/* "left right", the first of which may begin with a space. */
static qrun_status put_merges(qr_buffer *out, const vocabulary *v, qr_error *err) {
    qr_gguf_text *merges;
    size_t n;
    QR_RETURN_IF_ERROR(qr_gguf_get_texts(v->file, KEY("merges"), &merges, &n, err));
    if (merges == NULL) { return qr_gguf_fail_missing(v->file, KEY("merges"), err); }
    qrun_status status = QRUN_OK;
    qr_json_put_begin(out, "merges", '[');
    for (size_t i = 0; i < n && status == QRUN_OK; i++) {
        const char *bytes = merges[i].bytes;
        const char *space = merges[i].n > 2 ? memchr(bytes + 1, ' ', merges[i].n - 2) : NULL;
        if (space == NULL) {
            status = qr_fail(err, QRUN_ERROR_INPUT, "%s: merge %zu is not two tokens with a space between",
                             qr_gguf_path(v->file), i);
            break;
        }
        const size_t left = (size_t)(space - bytes);
        qr_json_put_begin(out, NULL, '[');
        qr_json_put_bytes(out, NULL, bytes, left);
        qr_json_put_bytes(out, NULL, space + 1, merges[i].n - left - 1);
        qr_json_put_end(out, ']');
    }
    qr_json_put_end(out, ']');
    qr_free(merges);
    return status;
}

static qrun_status put_model(qr_buffer *out, const vocabulary *v, qr_error *err) {
    qr_json_put_begin(out, "model", '{');
    qr_json_put_text(out, "type", "BPE");
    if (v->is_spm) {
        put_token(out, "unk_token", v, v->unk);
        qr_json_put_bool(out, "fuse_unk", true);
        qr_json_put_bool(out, "byte_fallback", true);
        qr_json_put_bool(out, "ignore_merges", v->has_merges);
    } else {
        qr_json_put_bool(out, "ignore_merges", v->pre->ignore_merges);
    }
    put_vocab(out, v);
    const qrun_status status = v->has_merges
                                   ? put_merges(out, v, err)
                                   : qr_gguf_write_merges(v->tokens, v->scores, v->types, v->n_tokens, out, err);
    if (status != QRUN_OK) {
        if (!v->has_merges) { qr_error_prefix(err, qr_gguf_path(v->file)); }
        return status;
    }
    qr_json_put_end(out, '}');
    return QRUN_OK;
}

qrun_status qr_gguf_write_tokenizer(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    vocabulary v;
    qrun_status status = QRUN_OK;
    QR_TRY(vocabulary_read(file, &v, err));
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "version", "1.0");
    put_added(out, &v);
    if (v.is_spm) {
        put_spm_stages(out, &v);
    } else {
        put_byte_level_stages(out, &v);
    }
    put_post_processor(out, &v);
    QR_TRY(put_model(out, &v, err));
    qr_json_put_end(out, '}');
out:
    vocabulary_free(&v);
    return status;
}

/* ---- tokenizer_config.json --------------------------------------------------------------------------------------- */

qrun_status qr_gguf_write_tokenizer_config(const qr_gguf *file, qr_buffer *out, qr_error *err) {
    vocabulary v;
    const qrun_status status = vocabulary_read(file, &v, err);
    if (status == QRUN_OK) {
        qr_json_put_begin(out, NULL, '{');
        if (v.bos >= 0) { put_token(out, "bos_token", &v, v.bos); }
        if (v.eos >= 0) { put_token(out, "eos_token", &v, v.eos); }
        if (v.unk >= 0) { put_token(out, "unk_token", &v, v.unk); }
        if (v.pad >= 0) { put_token(out, "pad_token", &v, v.pad); }
        qr_json_put_end(out, '}');
    }
    vocabulary_free(&v);
    return status;
}
