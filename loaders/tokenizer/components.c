/* The normaliser, pre-tokeniser, post-processor and decoder sections of tokenizer.json, flattened into lists. */
#include <string.h>

#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

/* The regular expression of the ByteLevel pre-tokeniser, GPT-2's. */
static const char gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* The Whitespace pre-tokeniser's, which the library gives to another engine than the rest: runs of \w as Unicode TR 18
 * defines it, and runs of what is neither that nor White_Space. */
#define WORD_MEMBERS                                                                              \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}" \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
static const char whitespace_regex[] = "[" WORD_MEMBERS "]+|[^" WORD_MEMBERS "\\s]+";

/* Where a component is read into, and what messages name. */
typedef struct component_reader {
    qr_tokenizer *tokenizer;
    const char *what;
    qr_error *err;
    bool in_parts; /* a post-processor left the sequence and what it added unjoined */
} component_reader;

typedef qrun_status (*read_component)(component_reader *reader, const char *type, const qr_json *json);

static qrun_status refuse(component_reader *reader, const char *section, const char *type) {
    return qr_fail(reader->err, QRUN_ERROR_UNSUPPORTED, "%s: the %s \"%.64s\" is not supported", reader->what, section,
                   type);
}

static qrun_status get_string(component_reader *reader, const qr_json *json, const char *key, const char **value) {
    return qr_json_get_string(json, key, value, reader->what, reader->err);
}

static qrun_status get_bool(component_reader *reader, const qr_json *json, const char *key, bool *value) {
    return qr_json_get_bool(json, key, value, reader->what, reader->err);
}

/* Calls `read` for the component, or for each member of a Sequence, however nested. */
static qrun_status read_sequence(component_reader *reader, const qr_json *json, const char *section,
                                 const char *members, read_component read) {
    if (qr_json_is_null(json)) { return QRUN_OK; }
    const char *type = NULL;
    QR_RETURN_IF_ERROR(cJSON_IsObject(json) ? get_string(reader, json, "type", &type) : QRUN_OK);
    if (type == NULL) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: a %s without a type", reader->what, section);
    }
    if (strcmp(type, "Sequence") != 0) { return read(reader, type, json); }
    const qr_json *list = qr_json_get(json, members);
    if (!cJSON_IsArray(list)) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: a %s Sequence without \"%s\"", reader->what, section,
                       members);
    }
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next) {
        QR_RETURN_IF_ERROR(read_sequence(reader, item, section, members, read));
    }
    return QRUN_OK;
}

/* "pattern": {"String": …} or {"Regex": …}. */
static qrun_status read_pattern(component_reader *reader, const qr_json *json, qr_pattern *pattern) {
    const qr_json *object = qr_json_get(json, "pattern");
    const qr_json *string = qr_json_get(object, "String"), *regex = qr_json_get(object, "Regex");
    if (cJSON_IsString(string)) { return qr_pattern_literal(pattern, string->valuestring, reader->what, reader->err); }
    if (cJSON_IsString(regex)) {
        return qr_pattern_regex(pattern, &reader->tokenizer->regex, regex->valuestring, reader->what, reader->err);
    }
    return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: a pattern that is neither a String nor a Regex", reader->what);
}

static qrun_status read_text(component_reader *reader, const qr_json *json, const char *key, char **text, size_t *n) {
    const char *value = NULL;
    QR_RETURN_IF_ERROR(get_string(reader, json, key, &value));
    if (value == NULL) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: a component without \"%s\"", reader->what, key);
    }
    *text = qr_strdup(value);
    *n = strlen(value);
    return *text != NULL ? QRUN_OK : qr_fail_memory(reader->err, key, *n);
}

/* --- normalisers -------------------------------------------------------------------------------------------------- */

static qrun_status read_charsmap(component_reader *reader, const qr_json *json, qr_normalizer *normalizer) {
    const char *base64 = NULL;
    QR_RETURN_IF_ERROR(get_string(reader, json, "precompiled_charsmap", &base64));
    return qr_charsmap_parse(&normalizer->charsmap, base64 != NULL ? base64 : "", reader->what, reader->err);
}

static qrun_status add_normalizer(component_reader *reader, qr_normalizer_kind kind, qr_normalizer **normalizer) {
    qr_tokenizer *tokenizer = reader->tokenizer;
    QR_RETURN_IF_ERROR(qr_array_grow(&tokenizer->normalizers, &tokenizer->normalizers_capacity,
                                     tokenizer->n_normalizers + 1, sizeof *tokenizer->normalizers, "the normalizers",
                                     reader->err));
    *normalizer = &tokenizer->normalizers[tokenizer->n_normalizers++];
    **normalizer = (qr_normalizer){.kind = kind};
    return QRUN_OK;
}

/* BERT's is up to five simple ones. Accents go where the text is lowercased, unless strip_accents says otherwise. */
static qrun_status read_bert_normalizer(component_reader *reader, const qr_json *json) {
    bool clean = true, chinese = true, lowercase = true;
    QR_RETURN_IF_ERROR(get_bool(reader, json, "clean_text", &clean));
    QR_RETURN_IF_ERROR(get_bool(reader, json, "handle_chinese_chars", &chinese));
    QR_RETURN_IF_ERROR(get_bool(reader, json, "lowercase", &lowercase));
    bool accents = lowercase;
    QR_RETURN_IF_ERROR(get_bool(reader, json, "strip_accents", &accents));
    const struct {
        bool wanted;
        qr_normalizer_kind kind;
    } steps[] = {{clean, QR_NORMALIZE_BERT_CLEAN},
                 {chinese, QR_NORMALIZE_BERT_CHINESE},
                 {accents, QR_NORMALIZE_FORM},
                 {accents, QR_NORMALIZE_STRIP_NONSPACING},
                 {lowercase, QR_NORMALIZE_LOWERCASE}};
    for (size_t i = 0; i < QR_COUNT_OF(steps); i++) {
        qr_normalizer *normalizer = NULL;
        if (!steps[i].wanted) { continue; }
        QR_RETURN_IF_ERROR(add_normalizer(reader, steps[i].kind, &normalizer));
        normalizer->form = QR_NFD;
    }
    return QRUN_OK;
}

static qrun_status read_normalizer(component_reader *reader, const char *type, const qr_json *json) {
    static const struct {
        const char *type;
        qr_normalizer_kind kind;
        qr_normal_form form;
    } kinds[] = {{"NFC", QR_NORMALIZE_FORM, QR_NFC},
                 {"NFD", QR_NORMALIZE_FORM, QR_NFD},
                 {"NFKC", QR_NORMALIZE_FORM, QR_NFKC},
                 {"NFKD", QR_NORMALIZE_FORM, QR_NFKD},
                 {"Replace", QR_NORMALIZE_REPLACE, 0},
                 {"Prepend", QR_NORMALIZE_PREPEND, 0},
                 {"Strip", QR_NORMALIZE_STRIP, 0},
                 {"Lowercase", QR_NORMALIZE_LOWERCASE, 0},
                 {"StripAccents", QR_NORMALIZE_STRIP_ACCENTS, 0},
                 {"Nmt", QR_NORMALIZE_NMT, 0},
                 {"Precompiled", QR_NORMALIZE_CHARSMAP, 0},
                 {"ByteLevel", QR_NORMALIZE_BYTE_LEVEL, 0}};
    if (strcmp(type, "BertNormalizer") == 0) { return read_bert_normalizer(reader, json); }
    size_t kind = 0;
    while (kind < QR_COUNT_OF(kinds) && strcmp(kinds[kind].type, type) != 0) { kind++; }
    if (kind == QR_COUNT_OF(kinds)) { return refuse(reader, "normalizer", type); }
    qr_normalizer *normalizer = NULL;
    QR_RETURN_IF_ERROR(add_normalizer(reader, kinds[kind].kind, &normalizer));
    normalizer->form = kinds[kind].form;
    switch (normalizer->kind) {
        case QR_NORMALIZE_REPLACE:
            QR_RETURN_IF_ERROR(read_pattern(reader, json, &normalizer->pattern));
            QR_RETURN_IF_ERROR(read_text(reader, json, "content", &normalizer->content, &normalizer->n_content));
            break;
        case QR_NORMALIZE_PREPEND:
            QR_RETURN_IF_ERROR(read_text(reader, json, "prepend", &normalizer->content, &normalizer->n_content));
            break;
        case QR_NORMALIZE_STRIP:
            QR_RETURN_IF_ERROR(get_bool(reader, json, "strip_left", &normalizer->left));
            QR_RETURN_IF_ERROR(get_bool(reader, json, "strip_right", &normalizer->right));
            break;
        case QR_NORMALIZE_CHARSMAP: QR_RETURN_IF_ERROR(read_charsmap(reader, json, normalizer)); break;
        default: break;
    }
    return QRUN_OK;
}

/* --- pre-tokenisers ----------------------------------------------------------------------------------------------- */

static qrun_status read_behavior(component_reader *reader, const qr_json *json, qr_split_behavior *behavior) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    QR_RETURN_IF_ERROR(get_string(reader, json, "behavior", &name));
    if (name == NULL) { return QRUN_OK; }
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *behavior = (qr_split_behavior)i;
            return QRUN_OK;
        }
    }
    return refuse(reader, "split behavior", name);
}

/* A member that is one character, `text` where it is absent. */
static qrun_status read_character(component_reader *reader, const qr_json *json, const char *key, const char *text,
                                  const char *name, qr_pattern *pattern) {
    QR_RETURN_IF_ERROR(get_string(reader, json, key, &text));
    const size_t n = strlen(text);
    if (n == 0 || qr_utf8_sequence_length(text, n) != n) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: the %s is not one character", reader->what, name);
    }
    return qr_pattern_literal(pattern, text, reader->what, reader->err);
}

/* The character that Metaspace writes for a space; older files lack it. */
static qrun_status read_replacement(component_reader *reader, const qr_json *json, qr_pattern *pattern) {
    return read_character(reader, json, "replacement", "\xE2\x96\x81", "Metaspace replacement", pattern);
}

static qrun_status read_scheme(component_reader *reader, const qr_json *json, qr_prepend_scheme *scheme) {
    const char *name = "always";
    bool add_prefix_space = true;
    QR_RETURN_IF_ERROR(get_string(reader, json, "prepend_scheme", &name));
    QR_RETURN_IF_ERROR(get_bool(reader, json, "add_prefix_space", &add_prefix_space));
    if (!add_prefix_space || strcmp(name, "never") == 0) {
        *scheme = QR_PREPEND_NEVER;
    } else if (strcmp(name, "first") == 0) {
        *scheme = QR_PREPEND_FIRST;
    } else if (strcmp(name, "always") == 0) {
        *scheme = QR_PREPEND_ALWAYS;
    } else {
        return refuse(reader, "prepend_scheme", name);
    }
    return QRUN_OK;
}

static qrun_status read_byte_level(component_reader *reader, const qr_json *json, qr_pretokenizer *step) {
    step->kind = QR_PRETOKENIZE_BYTE_LEVEL;
    step->add_prefix_space = true;
    step->split = true;
    QR_RETURN_IF_ERROR(get_bool(reader, json, "add_prefix_space", &step->add_prefix_space));
    QR_RETURN_IF_ERROR(get_bool(reader, json, "use_regex", &step->split));
    if (step->split) {
        QR_RETURN_IF_ERROR(
            qr_pattern_regex(&step->pattern, &reader->tokenizer->regex, gpt2_regex, reader->what, reader->err));
    }
    return QRUN_OK;
}

static qrun_status read_metaspace(component_reader *reader, const qr_json *json, qr_pretokenizer *step) {
    step->kind = QR_PRETOKENIZE_METASPACE;
    step->split = true;
    step->behavior = QR_SPLIT_MERGED_WITH_NEXT;
    QR_RETURN_IF_ERROR(read_replacement(reader, json, &step->pattern));
    QR_RETURN_IF_ERROR(read_scheme(reader, json, &step->scheme));
    return get_bool(reader, json, "split", &step->split);
}

static qrun_status read_split(component_reader *reader, const qr_json *json, qr_pretokenizer *step) {
    QR_RETURN_IF_ERROR(read_pattern(reader, json, &step->pattern));
    QR_RETURN_IF_ERROR(read_behavior(reader, json, &step->behavior));
    return get_bool(reader, json, "invert", &step->invert);
}

static qrun_status read_digits(component_reader *reader, const qr_json *json, qr_pretokenizer *step) {
    bool individual = false;
    QR_RETURN_IF_ERROR(get_bool(reader, json, "individual_digits", &individual));
    step->is_delimiter = qr_is_numeric;
    step->behavior = individual ? QR_SPLIT_ISOLATED : QR_SPLIT_CONTIGUOUS;
    return QRUN_OK;
}

static qrun_status read_fixed_length(component_reader *reader, const qr_json *json, qr_pretokenizer *step) {
    step->kind = QR_PRETOKENIZE_FIXED_LENGTH;
    step->n_characters = 5;
    return qr_json_get_int(json, "length", 1, INT32_MAX, &step->n_characters, reader->what, reader->err);
}

static qrun_status add_pretokenizer(component_reader *reader, qr_pretokenizer **step) {
    qr_tokenizer *tokenizer = reader->tokenizer;
    QR_RETURN_IF_ERROR(qr_array_grow(&tokenizer->pretokenizers, &tokenizer->pretokenizers_capacity,
                                     tokenizer->n_pretokenizers + 1, sizeof *tokenizer->pretokenizers,
                                     "the pre-tokenizers", reader->err));
    *step = &tokenizer->pretokenizers[tokenizer->n_pretokenizers++];
    **step = (qr_pretokenizer){.kind = QR_PRETOKENIZE_SPLIT, .behavior = QR_SPLIT_ISOLATED};
    return QRUN_OK;
}

/* BERT's is two: spaces go, then punctuation stands alone. */
static qrun_status read_bert_pretokenizer(component_reader *reader, qr_pretokenizer *step) {
    step->is_delimiter = qr_is_space;
    step->behavior = QR_SPLIT_REMOVED;
    QR_RETURN_IF_ERROR(add_pretokenizer(reader, &step));
    step->is_delimiter = qr_is_punctuation;
    return QRUN_OK;
}

static qrun_status read_pretokenizer(component_reader *reader, const char *type, const qr_json *json) {
    qr_pretokenizer *step = NULL;
    QR_RETURN_IF_ERROR(add_pretokenizer(reader, &step));
    if (strcmp(type, "ByteLevel") == 0) { return read_byte_level(reader, json, step); }
    if (strcmp(type, "Metaspace") == 0) { return read_metaspace(reader, json, step); }
    if (strcmp(type, "Split") == 0) { return read_split(reader, json, step); }
    if (strcmp(type, "Digits") == 0) { return read_digits(reader, json, step); }
    if (strcmp(type, "FixedLength") == 0) { return read_fixed_length(reader, json, step); }
    if (strcmp(type, "BertPreTokenizer") == 0) { return read_bert_pretokenizer(reader, step); }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        step->behavior = QR_SPLIT_REMOVED;
        return read_character(reader, json, "delimiter", "", "delimiter of CharDelimiterSplit", &step->pattern);
    }
    if (strcmp(type, "Punctuation") == 0) {
        step->is_delimiter = qr_is_punctuation;
        return read_behavior(reader, json, &step->behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) {
        step->is_delimiter = qr_is_space;
        step->behavior = QR_SPLIT_REMOVED;
        return QRUN_OK;
    }
    if (strcmp(type, "Whitespace") == 0) {
        step->behavior = QR_SPLIT_REMOVED;
        step->invert = true;
        return qr_pattern_regex(&step->pattern, &reader->tokenizer->regex, whitespace_regex, reader->what, reader->err);
    }
    return refuse(reader, "pre_tokenizer", type);
}

/* --- post-processors ---------------------------------------------------------------------------------------------- */

/* What one processor puts around the sequence. */
typedef struct affixes {
    qr_tokens before, after;
} affixes;

static bool is_empty(const affixes *around) { return around->before.n + around->after.n == 0; }

static qrun_status check_id(component_reader *reader, const qr_json *json, int32_t *id) {
    size_t n;
    QR_RETURN_IF_ERROR(qr_tokenizer_json_id(json, reader->tokenizer->n_ids - 1, id, reader->what, reader->err));
    if (qr_tokenizer_token(reader->tokenizer, *id, &n) == NULL) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: the post-processor adds the id %d, which is not a token",
                       reader->what, (int)*id);
    }
    return QRUN_OK;
}

static qrun_status push_special(component_reader *reader, const qr_json *specials, const qr_json *piece,
                                qr_tokens *tokens) {
    const char *name = NULL;
    QR_RETURN_IF_ERROR(get_string(reader, piece, "id", &name));
    const qr_json *ids = name != NULL ? qr_json_get(qr_json_get(specials, name), "ids") : NULL;
    if (!cJSON_IsArray(ids)) {
        return qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: the template's special token \"%.64s\" has no ids",
                       reader->what, name != NULL ? name : "");
    }
    for (const qr_json *item = qr_json_first(ids); item != NULL; item = item->next) {
        int32_t id;
        QR_RETURN_IF_ERROR(check_id(reader, item, &id));
        QR_RETURN_IF_ERROR(qr_tokens_push(tokens, id, reader->err));
    }
    return QRUN_OK;
}

static qrun_status read_template(component_reader *reader, const qr_json *json, affixes *around) {
    const qr_json *specials = qr_json_get(json, "special_tokens");
    bool seen = false;
    for (const qr_json *item = qr_json_first(qr_json_get(json, "single")); item != NULL; item = item->next) {
        const qr_json *special = qr_json_get(item, "SpecialToken");
        const qr_json *sequence = qr_json_get(qr_json_get(item, "Sequence"), "id");
        if (special != NULL) {
            QR_RETURN_IF_ERROR(push_special(reader, specials, special, seen ? &around->after : &around->before));
        } else if (!seen && cJSON_IsString(sequence) && strcmp(sequence->valuestring, "A") == 0) {
            seen = true;
        } else {
            return refuse(reader, "post_processor template piece", item->string != NULL ? item->string : "Sequence");
        }
    }
    return seen ? QRUN_OK
                : qr_fail(reader->err, QRUN_ERROR_INPUT, "%s: the post-processor's template has no sequence A",
                          reader->what);
}

/* BertProcessing, RobertaProcessing: "cls" and "sep", each [text, id]. */
static qrun_status read_cls_sep(component_reader *reader, const qr_json *json, affixes *around) {
    static const char *const keys[] = {"cls", "sep"};
    for (size_t i = 0; i < 2; i++) {
        const qr_json *text = qr_json_first(qr_json_get(json, keys[i]));
        int32_t id;
        QR_RETURN_IF_ERROR(check_id(reader, text != NULL ? text->next : NULL, &id));
        QR_RETURN_IF_ERROR(qr_tokens_push(i == 0 ? &around->before : &around->after, id, reader->err));
    }
    return QRUN_OK;
}

/* A later processor wraps what the earlier ones made, which a template leaves in parts where it adds something. The
 * library then takes the parts for several sequences. */
static qrun_status wrap(component_reader *reader, const affixes *around) {
    qr_tokenizer *tokenizer = reader->tokenizer;
    qr_tokens prefix = {0};
    qrun_status status = qr_tokens_append(&prefix, &around->before, reader->err);
    if (status == QRUN_OK) { status = qr_tokens_append(&prefix, &tokenizer->prefix, reader->err); }
    if (status == QRUN_OK) { status = qr_tokens_append(&tokenizer->suffix, &around->after, reader->err); }
    qr_tokens_free(&tokenizer->prefix);
    tokenizer->prefix = prefix;
    return status;
}

static qrun_status read_post_processor(component_reader *reader, const char *type, const qr_json *json) {
    affixes around = {0};
    qrun_status status = QRUN_OK;
    if (strcmp(type, "TemplateProcessing") == 0) {
        status = read_template(reader, json, &around);
    } else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        status = read_cls_sep(reader, json, &around);
    } else if (strcmp(type, "ByteLevel") != 0) { /* ByteLevel only trims offsets */
        status = refuse(reader, "post_processor", type);
    }
    if (status == QRUN_OK && reader->in_parts && strcmp(type, "ByteLevel") != 0) {
        status = qr_fail(reader->err, QRUN_ERROR_UNSUPPORTED,
                         "%s: the post_processor \"%.64s\" after a TemplateProcessing that adds tokens is not "
                         "supported",
                         reader->what, type);
    }
    reader->in_parts = reader->in_parts || (strcmp(type, "TemplateProcessing") == 0 && !is_empty(&around));
    if (status == QRUN_OK) { status = wrap(reader, &around); }
    qr_tokens_free(&around.before);
    qr_tokens_free(&around.after);
    return status;
}

qrun_status qr_tokenizer_load_post_processor(qr_tokenizer *tokenizer, const qr_json *processor, const char *what,
                                             qr_error *err) {
    component_reader reader = {tokenizer, what, err, false};
    return read_sequence(&reader, processor, "post_processor", "processors", read_post_processor);
}

/* --- decoders ----------------------------------------------------------------------------------------------------- */

static qrun_status read_decoder_strip(component_reader *reader, const qr_json *json, qr_decoder *decoder) {
    int64_t start = 0, stop = 0;
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "start", 0, 1 << 20, &start, reader->what, reader->err));
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "stop", 0, 1 << 20, &stop, reader->what, reader->err));
    decoder->n_start = (size_t)start;
    decoder->n_stop = (size_t)stop;
    return read_character(reader, json, "content", " ", "Strip decoder's content", &decoder->pattern);
}

static qrun_status read_decoder_metaspace(component_reader *reader, const qr_json *json, qr_decoder *decoder) {
    qr_prepend_scheme scheme = QR_PREPEND_ALWAYS;
    QR_RETURN_IF_ERROR(read_replacement(reader, json, &decoder->pattern));
    QR_RETURN_IF_ERROR(read_scheme(reader, json, &scheme));
    decoder->drop_first = scheme != QR_PREPEND_NEVER;
    return QRUN_OK;
}

static qrun_status read_decoder_word_piece(component_reader *reader, const qr_json *json, qr_decoder *decoder) {
    decoder->clean_up = true;
    QR_RETURN_IF_ERROR(read_text(reader, json, "prefix", &decoder->content, &decoder->n_content));
    return get_bool(reader, json, "cleanup", &decoder->clean_up);
}

static qrun_status read_decoder_bpe(component_reader *reader, const qr_json *json, qr_decoder *decoder) {
    const char *suffix = "";
    QR_RETURN_IF_ERROR(get_string(reader, json, "suffix", &suffix));
    return qr_pattern_literal(&decoder->pattern, suffix, reader->what, reader->err);
}

static qrun_status add_decoder(component_reader *reader, qr_decoder_kind kind, qr_decoder **decoder) {
    qr_tokenizer *tokenizer = reader->tokenizer;
    if (tokenizer->n_decoders == QR_DECODE_MAX_STAGES) {
        return qr_fail(reader->err, QRUN_ERROR_UNSUPPORTED, "%s: more than %d decoders are not supported", reader->what,
                       (int)QR_DECODE_MAX_STAGES);
    }
    QR_RETURN_IF_ERROR(qr_array_grow(&tokenizer->decoders, &tokenizer->decoders_capacity, tokenizer->n_decoders + 1,
                                     sizeof *tokenizer->decoders, "the decoders", reader->err));
    *decoder = &tokenizer->decoders[tokenizer->n_decoders++];
    **decoder = (qr_decoder){.kind = kind};
    return QRUN_OK;
}

static qrun_status read_decoder(component_reader *reader, const char *type, const qr_json *json) {
    static const struct {
        const char *type;
        qr_decoder_kind kind;
    } kinds[] = {{"ByteLevel", QR_DECODE_BYTE_LEVEL},
                 {"Metaspace", QR_DECODE_METASPACE},
                 {"ByteFallback", QR_DECODE_BYTE_FALLBACK},
                 {"Fuse", QR_DECODE_FUSE},
                 {"Strip", QR_DECODE_STRIP},
                 {"Replace", QR_DECODE_REPLACE},
                 {"WordPiece", QR_DECODE_WORD_PIECE},
                 {"BPEDecoder", QR_DECODE_BPE}};
    size_t kind = 0;
    while (kind < QR_COUNT_OF(kinds) && strcmp(kinds[kind].type, type) != 0) { kind++; }
    if (kind == QR_COUNT_OF(kinds)) { return refuse(reader, "decoder", type); }
    qr_decoder *decoder = NULL;
    QR_RETURN_IF_ERROR(add_decoder(reader, kinds[kind].kind, &decoder));
    switch (decoder->kind) {
        case QR_DECODE_STRIP: return read_decoder_strip(reader, json, decoder);
        case QR_DECODE_METASPACE: return read_decoder_metaspace(reader, json, decoder);
        case QR_DECODE_WORD_PIECE: return read_decoder_word_piece(reader, json, decoder);
        case QR_DECODE_BPE: return read_decoder_bpe(reader, json, decoder);
        case QR_DECODE_REPLACE:
            QR_RETURN_IF_ERROR(read_pattern(reader, json, &decoder->pattern));
            return read_text(reader, json, "content", &decoder->content, &decoder->n_content);
        default: return QRUN_OK;
    }
}

static bool rewrites(const qr_tokenizer *tokenizer, size_t after) {
    for (size_t i = 0; i < tokenizer->n_pretokenizers; i++) {
        if (tokenizer->pretokenizers[i].kind == QR_PRETOKENIZE_BYTE_LEVEL) { return true; }
    }
    return after + 1 < tokenizer->n_normalizers;
}

/* A Replace may put text in front of all text. The library then fails on the next step that rewrites text, or writes
 * some of it twice. */
static qrun_status check_replacements(component_reader *reader) {
    const qr_tokenizer *tokenizer = reader->tokenizer;
    for (size_t i = 0; i < tokenizer->n_normalizers; i++) {
        const qr_normalizer *normalizer = &tokenizer->normalizers[i];
        uint32_t matches_nothing = 0;
        if (normalizer->pattern.code == NULL || normalizer->n_content == 0) { continue; }
        (void)pcre2_pattern_info(normalizer->pattern.code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
        if (matches_nothing != 0 && rewrites(tokenizer, i)) {
            return qr_fail(reader->err, QRUN_ERROR_UNSUPPORTED,
                           "%s: the normalizer \"Replace\" with a pattern that matches no text, before another "
                           "normalizer or ByteLevel, is not supported",
                           reader->what);
        }
    }
    return QRUN_OK;
}

qrun_status qr_tokenizer_load_components(qr_tokenizer *tokenizer, const qr_json *root, const char *what,
                                         qr_error *err) {
    component_reader reader = {tokenizer, what, err, false};
    qr_decoder *join;
    QR_RETURN_IF_ERROR(
        read_sequence(&reader, qr_json_get(root, "normalizer"), "normalizer", "normalizers", read_normalizer));
    QR_RETURN_IF_ERROR(read_sequence(&reader, qr_json_get(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers",
                                     read_pretokenizer));
    QR_RETURN_IF_ERROR(check_replacements(&reader));
    QR_RETURN_IF_ERROR(read_sequence(&reader, qr_json_get(root, "decoder"), "decoder", "decoders", read_decoder));
    if (qr_json_is_null(qr_json_get(root, "decoder"))) {
        QR_RETURN_IF_ERROR(add_decoder(&reader, QR_DECODE_JOIN, &join));
    }
    return QRUN_OK;
}

void qr_tokenizer_free_components(qr_tokenizer *tokenizer) {
    for (size_t i = 0; i < tokenizer->n_normalizers; i++) {
        qr_pattern_free(&tokenizer->normalizers[i].pattern);
        qr_free(tokenizer->normalizers[i].content);
        qr_charsmap_free(&tokenizer->normalizers[i].charsmap);
    }
    for (size_t i = 0; i < tokenizer->n_pretokenizers; i++) { qr_pattern_free(&tokenizer->pretokenizers[i].pattern); }
    for (size_t i = 0; i < tokenizer->n_decoders; i++) {
        qr_pattern_free(&tokenizer->decoders[i].pattern);
        qr_free(tokenizer->decoders[i].content);
    }
    qr_free(tokenizer->normalizers);
    qr_free(tokenizer->pretokenizers);
    qr_free(tokenizer->decoders);
    qr_tokens_free(&tokenizer->prefix);
    qr_tokens_free(&tokenizer->suffix);
}
