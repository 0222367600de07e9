/* Ids to text. The decoders of tokenizer.json are stages; each is given tokens as bytes followed by an end, and passes
 * on what can no longer change. Every stage is given, and passes on, whole characters, so that whatever leaves the last
 * one is whole characters too. */
#include <string.h>

#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/tokenizer/internal.h"

static const char replacement_character[] = "\xEF\xBF\xBD";

/* Where a stage's output goes: the next stage, or `out` after the last. */
typedef struct decode_run {
    qr_token_stream *stream;
    qr_buffer *out;
    qr_error *err;
} decode_run;

static qrun_status stage_text(decode_run *run, size_t stage, const char *text, size_t n_bytes);
static qrun_status stage_end_token(decode_run *run, size_t stage);

static const qr_decoder *decoder_of(const decode_run *run, size_t stage) {
    return &run->stream->tokenizer->decoders[stage];
}

static qrun_status hold(decode_run *run, qr_buffer *held, const char *text, size_t n_bytes) {
    qr_buffer_append(held, text, n_bytes);
    return qr_buffer_ok(held) ? QRUN_OK : qr_fail_memory(run->err, "the decoded text", n_bytes);
}

/* Takes the first n bytes off a held text. */
static void drop_front(qr_buffer *held, size_t n) {
    if (n == 0) { return; }
    memmove(held->data, held->data + n, held->size - n);
    held->size -= n;
    held->data[held->size] = '\0';
}

/* --- ByteLevel ---------------------------------------------------------------------------------------------------- */

/* A token whose characters all belong to the alphabet stands for their bytes, any other for its own. */
static qrun_status hold_token_bytes(decode_run *run, qr_buffer *held, const char *text, size_t n_bytes) {
    uint32_t c;
    size_t i = 0;
    while (i < n_bytes) {
        const size_t length = qr_utf8_decode(text + i, n_bytes - i, &c);
        if (length == 0 || qr_char_to_byte(c) < 0) { return hold(run, held, text, n_bytes); }
        i += length;
    }
    for (i = 0; i < n_bytes;) {
        i += qr_utf8_decode(text + i, n_bytes - i, &c);
        qr_buffer_append_char(held, (char)(unsigned char)qr_char_to_byte(c));
    }
    return qr_buffer_ok(held) ? QRUN_OK : qr_fail_memory(run->err, "the decoded text", n_bytes);
}

/* Passes on the held bytes as characters, each ill-formed part as U+FFFD; an unfinished character stays unless this is
 * the end. */
static qrun_status flush_bytes(decode_run *run, size_t stage, bool at_end) {
    qr_buffer *held = &run->stream->stages[stage].held;
    qrun_status status = QRUN_OK;
    size_t i = 0;
    while (status == QRUN_OK && i < held->size) {
        const size_t valid = qr_utf8_valid_prefix(held->data + i, held->size - i);
        if (valid > 0) { status = stage_text(run, stage + 1, held->data + i, valid); }
        i += valid;
        if (status != QRUN_OK || i == held->size) { break; }
        size_t n_bad = 1; /* the longest beginning of a character, as one */
        while (i + n_bad < held->size && qr_utf8_is_incomplete(held->data + i, n_bad + 1)) { n_bad++; }
        if (!at_end && i + n_bad == held->size && qr_utf8_is_incomplete(held->data + i, n_bad)) { break; }
        status = stage_text(run, stage + 1, replacement_character, 3);
        i += n_bad;
    }
    drop_front(held, i);
    return status;
}

/* --- ByteFallback ------------------------------------------------------------------------------------------------- */

/* "<0xNN>" → NN, −1 for any other token. Rust reads "+N" as a number too. */
static int fallback_byte(const char *text, size_t n_bytes) {
    if (n_bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') { return -1; }
    const int high = text[3] == '+' ? 0 : qr_hex_digit(text[3]), low = qr_hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* The end of a run of bytes: one token of text where all of it is well formed, else a U+FFFD for each byte. */
static qrun_status flush_fallback(decode_run *run, size_t stage) {
    qr_buffer *held = &run->stream->stages[stage].held;
    const size_t n = held->size;
    qrun_status status = QRUN_OK;
    if (n > 0 && qr_utf8_valid_prefix(held->data, n) == n) {
        status = stage_text(run, stage + 1, held->data, n);
        if (status == QRUN_OK) { status = stage_end_token(run, stage + 1); }
    } else {
        for (size_t i = 0; status == QRUN_OK && i < n; i++) {
            status = stage_text(run, stage + 1, replacement_character, 3);
            if (status == QRUN_OK) { status = stage_end_token(run, stage + 1); }
        }
    }
    qr_buffer_clear(held);
    return status;
}

/* A byte joins the run; any other token ends it. */
static qrun_status fallback_token(decode_run *run, size_t stage) {
    qr_decode_stage_state *state = &run->stream->stages[stage];
    const int byte = fallback_byte(state->token.data, state->token.size);
    if (byte >= 0) {
        const char c = (char)(unsigned char)byte;
        return hold(run, &state->held, &c, 1);
    }
    QR_RETURN_IF_ERROR(flush_fallback(run, stage));
    QR_RETURN_IF_ERROR(stage_text(run, stage + 1, state->token.data, state->token.size));
    return stage_end_token(run, stage + 1);
}

/* --- Metaspace, Strip, Replace ------------------------------------------------------------------------------------ */

static qrun_status metaspace_text(decode_run *run, size_t stage, const char *text, size_t n_bytes) {
    const qr_decoder *decoder = decoder_of(run, stage);
    const bool drops = decoder->drop_first && run->stream->stages[stage].n_tokens == 0;
    const size_t n_mark = decoder->pattern.n_literal;
    qrun_status status = QRUN_OK;
    for (size_t i = 0; status == QRUN_OK && i < n_bytes;) {
        const size_t length = qr_char_length(text[i]);
        if (length == n_mark && memcmp(text + i, decoder->pattern.literal, n_mark) == 0) {
            if (!drops) { status = stage_text(run, stage + 1, " ", 1); }
        } else {
            status = stage_text(run, stage + 1, text + i, length);
        }
        i += length;
    }
    return status;
}

/* At the front, up to n_start of the character go; at the end, up to n_stop, which therefore wait. */
static qrun_status strip_text(decode_run *run, size_t stage, const char *text, size_t n_bytes) {
    const qr_decoder *decoder = decoder_of(run, stage);
    const qr_pattern *content = &decoder->pattern;
    qr_decode_stage_state *state = &run->stream->stages[stage];
    for (size_t i = 0, length; i < n_bytes; i += length) {
        length = qr_char_length(text[i]);
        const bool is_content = length == content->n_literal && memcmp(text + i, content->literal, length) == 0;
        if (is_content && !state->open && state->n_stripped < decoder->n_start) {
            state->n_stripped++;
            continue;
        }
        state->open = true;
        if (is_content && state->n_trailing < decoder->n_stop) {
            state->n_trailing++;
            continue;
        }
        for (; !is_content && state->n_trailing > 0; state->n_trailing--) {
            QR_RETURN_IF_ERROR(stage_text(run, stage + 1, content->literal, content->n_literal));
        }
        QR_RETURN_IF_ERROR(stage_text(run, stage + 1, text + i, length));
    }
    return QRUN_OK;
}

/* Bytes at the end of text that may be the beginning of the literal. */
static size_t literal_overlap(const qr_pattern *pattern, const char *text, size_t n_bytes, qr_budget *budget) {
    size_t n = n_bytes < pattern->n_literal ? n_bytes : pattern->n_literal - 1;
    for (; n > 0 && memcmp(text + n_bytes - n, pattern->literal, n) != 0; n--) { qr_budget_spend(budget, n / 8); }
    return n;
}

static qrun_status flush_replace(decode_run *run, size_t stage, bool at_end) {
    const qr_decoder *decoder = decoder_of(run, stage);
    qr_buffer *held = &run->stream->stages[stage].held;
    if (!at_end && decoder->pattern.literal == NULL) { return QRUN_OK; } /* a regex must see the whole token */
    qr_budget *budget = &run->stream->budget;
    qr_matcher matcher = {.regex = &run->stream->tokenizer->regex, .budget = budget};
    qr_pattern_search search = qr_pattern_search_in(held->data, held->size, &decoder->pattern, &matcher);
    size_t start, end, passed = 0;
    qrun_status status = QRUN_OK;
    for (bool found = held->size > 0; found && status == QRUN_OK;) {
        status = qr_pattern_next(&search, &start, &end, &found, run->err);
        if (status != QRUN_OK || !found) { break; }
        if (passed < start) { status = stage_text(run, stage + 1, held->data + passed, start - passed); }
        if (status == QRUN_OK) { status = qr_budget_charge_stage(budget, end - start, decoder->n_content, run->err); }
        if (status == QRUN_OK) { status = stage_text(run, stage + 1, decoder->content, decoder->n_content); }
        passed = end;
    }
    qr_matcher_free(&matcher);
    if (status != QRUN_OK) { return status; }
    const size_t keep =
        at_end ? 0 : literal_overlap(&decoder->pattern, held->data + passed, held->size - passed, budget);
    const size_t n_rest = held->size - passed - keep;
    if (n_rest > 0) { status = stage_text(run, stage + 1, held->data + passed, n_rest); }
    drop_front(held, passed + n_rest);
    return status;
}

/* --- WordPiece, BPE ----------------------------------------------------------------------------------------------- */

/* Rewrites *text with every `from` as `to`, which is shorter. */
static void shorten(char *text, size_t *n_bytes, const char *from, const char *to) {
    const size_t n_from = strlen(from), n_to = strlen(to);
    size_t n = 0;
    for (size_t i = 0; i < *n_bytes;) {
        if (*n_bytes - i >= n_from && memcmp(text + i, from, n_from) == 0) {
            memcpy(text + n, to, n_to);
            n += n_to;
            i += n_from;
        } else {
            text[n++] = text[i++];
        }
    }
    *n_bytes = n;
}

/* The first token stays as it is, a continuing one loses the prefix, and any other begins a word. */
static qrun_status word_piece_token(decode_run *run, size_t stage) {
    static const char *const spaced[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                            {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                            {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const qr_decoder *decoder = decoder_of(run, stage);
    qr_decode_stage_state *state = &run->stream->stages[stage];
    const char *text = state->token.data != NULL ? state->token.data : "";
    size_t n_bytes = state->token.size;
    if (state->n_tokens > 1) {
        if (n_bytes >= decoder->n_content && memcmp(text, decoder->content, decoder->n_content) == 0) {
            text += decoder->n_content;
            n_bytes -= decoder->n_content;
        } else {
            qr_buffer_append_char(&state->held, ' ');
        }
    }
    QR_RETURN_IF_ERROR(hold(run, &state->held, text, n_bytes));
    for (size_t i = 0; decoder->clean_up && i < QR_COUNT_OF(spaced); i++) {
        shorten(state->held.data, &state->held.size, spaced[i][0], spaced[i][1]);
    }
    const qrun_status status =
        state->held.size > 0 ? stage_text(run, stage + 1, state->held.data, state->held.size) : QRUN_OK;
    qr_buffer_clear(&state->held);
    return status;
}

/* The token that was held: its suffix is the space to the next word, and nothing at the end. */
static qrun_status flush_bpe(decode_run *run, size_t stage, bool at_end) {
    const qr_pattern *suffix = &decoder_of(run, stage)->pattern;
    qr_buffer *held = &run->stream->stages[stage].held;
    qr_matcher matcher = {.regex = &run->stream->tokenizer->regex, .budget = &run->stream->budget};
    qr_pattern_search search = qr_pattern_search_in(held->data, held->size, suffix, &matcher);
    size_t start, end, passed = 0;
    for (bool found = held->size > 0; found;) {
        QR_RETURN_IF_ERROR(qr_pattern_next(&search, &start, &end, &found, run->err));
        if (!found) { break; }
        if (passed < start) { QR_RETURN_IF_ERROR(stage_text(run, stage + 1, held->data + passed, start - passed)); }
        if (!at_end) { QR_RETURN_IF_ERROR(stage_text(run, stage + 1, " ", 1)); }
        passed = end;
    }
    if (passed < held->size) {
        QR_RETURN_IF_ERROR(stage_text(run, stage + 1, held->data + passed, held->size - passed));
    }
    qr_buffer_clear(held);
    return stage_end_token(run, stage + 1);
}

/* --- the chain ---------------------------------------------------------------------------------------------------- */

static qrun_status stage_text(decode_run *run, size_t stage, const char *text, size_t n_bytes) {
    if (stage == run->stream->tokenizer->n_decoders) {
        qr_buffer_append(run->out, text, n_bytes);
        return qr_buffer_ok(run->out) ? QRUN_OK : qr_fail_memory(run->err, "the decoded text", n_bytes);
    }
    qr_budget_spend(&run->stream->budget, n_bytes + 1);
    QR_RETURN_IF_ERROR(qr_budget_check(&run->stream->budget, run->err));
    qr_decode_stage_state *state = &run->stream->stages[stage];
    switch (decoder_of(run, stage)->kind) {
        case QR_DECODE_BYTE_LEVEL:
        case QR_DECODE_WORD_PIECE:
        case QR_DECODE_BPE:
        case QR_DECODE_BYTE_FALLBACK: return hold(run, &state->token, text, n_bytes);
        case QR_DECODE_METASPACE: return metaspace_text(run, stage, text, n_bytes);
        case QR_DECODE_STRIP: return strip_text(run, stage, text, n_bytes);
        case QR_DECODE_REPLACE:
            QR_RETURN_IF_ERROR(hold(run, &state->held, text, n_bytes));
            return flush_replace(run, stage, false);
        case QR_DECODE_JOIN:
            QR_RETURN_IF_ERROR(state->n_tokens > 0 ? stage_text(run, stage + 1, " ", 1) : QRUN_OK);
            return stage_text(run, stage + 1, text, n_bytes);
        case QR_DECODE_FUSE: break;
    }
    return stage_text(run, stage + 1, text, n_bytes);
}

static qrun_status stage_end_token(decode_run *run, size_t stage) {
    if (stage == run->stream->tokenizer->n_decoders) { return QRUN_OK; }
    qr_decode_stage_state *state = &run->stream->stages[stage];
    qrun_status status = QRUN_OK;
    state->n_tokens++;
    switch (decoder_of(run, stage)->kind) {
        case QR_DECODE_FUSE: return QRUN_OK; /* all tokens become one, which ends with the stream */
        case QR_DECODE_BYTE_LEVEL:           /* here too */
            status = hold_token_bytes(run, &state->held, state->token.data, state->token.size);
            qr_buffer_clear(&state->token);
            return status == QRUN_OK ? flush_bytes(run, stage, false) : status;
        case QR_DECODE_BYTE_FALLBACK:
            status = fallback_token(run, stage);
            qr_buffer_clear(&state->token);
            return status;
        case QR_DECODE_REPLACE: status = flush_replace(run, stage, true); break;
        case QR_DECODE_WORD_PIECE:
            status = word_piece_token(run, stage);
            qr_buffer_clear(&state->token);
            break;
        case QR_DECODE_BPE: /* the token before ends now, this one with the next */
            if (state->n_tokens > 1) { status = flush_bpe(run, stage, false); }
            if (status == QRUN_OK) { status = hold(run, &state->held, state->token.data, state->token.size); }
            qr_buffer_clear(&state->token);
            return status;
        case QR_DECODE_STRIP:
            state->n_stripped = 0;
            state->n_trailing = 0;
            break;
        case QR_DECODE_METASPACE:
        case QR_DECODE_JOIN: break;
    }
    state->open = false;
    return status == QRUN_OK ? stage_end_token(run, stage + 1) : status;
}

static qrun_status end_stream(decode_run *run) {
    for (size_t stage = 0; stage < run->stream->tokenizer->n_decoders; stage++) {
        const qr_decoder_kind kind = decoder_of(run, stage)->kind;
        if (kind == QR_DECODE_BYTE_FALLBACK) { QR_RETURN_IF_ERROR(flush_fallback(run, stage)); }
        if (kind == QR_DECODE_BPE && run->stream->stages[stage].n_tokens > 0) {
            QR_RETURN_IF_ERROR(flush_bpe(run, stage, true));
        }
        if (kind == QR_DECODE_BYTE_LEVEL) { QR_RETURN_IF_ERROR(flush_bytes(run, stage, true)); }
        if (kind == QR_DECODE_BYTE_LEVEL || kind == QR_DECODE_FUSE) {
            QR_RETURN_IF_ERROR(stage_end_token(run, stage + 1));
        }
    }
    return QRUN_OK;
}

void qr_token_stream_init(qr_token_stream *stream, const qr_tokenizer *tokenizer, bool skip_special) {
    *stream = (qr_token_stream){.tokenizer = tokenizer, .skip_special = skip_special, .budget = qr_budget_for(0)};
    stream->budget.section = "decoder";
}

void qr_token_stream_free(qr_token_stream *stream) {
    for (size_t i = 0; i < QR_DECODE_MAX_STAGES; i++) {
        qr_buffer_free(&stream->stages[i].token);
        qr_buffer_free(&stream->stages[i].held);
    }
    *stream = (qr_token_stream){0};
}

/* What the decoders are given for an id; NULL where the id is not a token. */
static const char *decoder_input(const qr_tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    const int32_t index = id >= 0 && id < tokenizer->n_ids ? tokenizer->added_of_id[id] : -1;
    if (index < 0 || tokenizer->added[index].decoded == NULL) { return qr_tokenizer_token(tokenizer, id, n_bytes); }
    *n_bytes = tokenizer->added[index].n_decoded;
    return tokenizer->added[index].decoded;
}

qrun_status qr_token_stream_push(qr_token_stream *stream, int32_t id, qr_buffer *out, qr_error *err) {
    decode_run run = {stream, out, err};
    size_t n_bytes = 0;
    const char *text = decoder_input(stream->tokenizer, id, &n_bytes);
    if (text == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "the id %d is not a token of this tokenizer (ids are below %d)",
                       (int)id, (int)stream->tokenizer->n_ids);
    }
    if (stream->skip_special && qr_tokenizer_is_special(stream->tokenizer, id)) { return QRUN_OK; }
    qr_budget_extend(&stream->budget, n_bytes);
    QR_RETURN_IF_ERROR(stage_text(&run, 0, text, n_bytes));
    return stage_end_token(&run, 0);
}

qrun_status qr_token_stream_finish(qr_token_stream *stream, qr_buffer *out, qr_error *err) {
    decode_run run = {stream, out, err};
    const qrun_status status = end_stream(&run);
    const qr_tokenizer *tokenizer = stream->tokenizer;
    const bool skip_special = stream->skip_special;
    qr_token_stream_free(stream);
    qr_token_stream_init(stream, tokenizer, skip_special);
    return status;
}

qrun_status qr_tokenizer_decode(const qr_tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                                qr_buffer *out, qr_error *err) {
    qr_token_stream stream;
    qr_token_stream_init(&stream, tokenizer, skip_special);
    qrun_status status = QRUN_OK;
    for (size_t i = 0; status == QRUN_OK && i < n; i++) { status = qr_token_stream_push(&stream, ids[i], out, err); }
    if (status == QRUN_OK) { status = qr_token_stream_finish(&stream, out, err); }
    qr_token_stream_free(&stream);
    return status;
}

/* --- One token alone ---------------------------------------------------------------------------------------------- */

/* Rewrites every `literal` in text[begin, size) as `content`. */
static void replace_all(qr_buffer *text, size_t begin, const char *literal, size_t n_literal, const char *content,
                        size_t n_content) {
    const size_t size = text->size;
    for (size_t i = begin; n_literal > 0 && qr_buffer_ok(text) && i < size;) {
        const bool found = size - i >= n_literal && memcmp(text->data + i, literal, n_literal) == 0;
        const char c = text->data[i];
        if (found) {
            qr_buffer_append(text, content, n_content);
        } else {
            qr_buffer_append_char(text, c);
        }
        i += found ? n_literal : 1;
    }
    if (!qr_buffer_ok(text) || n_literal == 0) { return; }
    memmove(text->data + begin, text->data + size, text->size - size);
    text->size -= size - begin;
    text->data[text->size] = '\0';
}

/* A stage for a token in the middle of a text, text[begin, size). False where its neighbours matter. *fused: the stage
 * before has made one token of all. */
static bool decode_alone(const qr_decoder *decoder, bool *fused, size_t begin, qr_buffer *text) {
    const qr_pattern *pattern = &decoder->pattern;
    const size_t n_bytes = text->size - begin;
    switch (decoder->kind) {
        case QR_DECODE_BYTE_LEVEL: {
            qr_buffer bytes = {0};
            decode_run run = {.err = NULL};
            if (*fused || hold_token_bytes(&run, &bytes, text->data + begin, n_bytes) != QRUN_OK) {
                qr_buffer_free(&bytes);
                return false;
            }
            text->size = begin;
            qr_buffer_append(text, bytes.data, bytes.size);
            qr_buffer_free(&bytes);
            *fused = true;
            return true;
        }
        case QR_DECODE_BYTE_FALLBACK: {
            const int byte = n_bytes > 0 ? fallback_byte(text->data + begin, n_bytes) : -1;
            if (byte < 0) { return !*fused; }
            text->size = begin;
            qr_buffer_append_char(text, (char)(unsigned char)byte);
            return !*fused;
        }
        case QR_DECODE_METASPACE: replace_all(text, begin, pattern->literal, pattern->n_literal, " ", 1); return true;
        case QR_DECODE_REPLACE:
            if (*fused || pattern->literal == NULL) { return false; }
            replace_all(text, begin, pattern->literal, pattern->n_literal, decoder->content, decoder->n_content);
            return true;
        case QR_DECODE_FUSE: *fused = true; return true;
        case QR_DECODE_STRIP: return *fused && decoder->n_stop == 0;
        case QR_DECODE_WORD_PIECE:
        case QR_DECODE_BPE:
        case QR_DECODE_JOIN: break;
    }
    return false;
}

qrun_status qr_tokenizer_token_bytes(const qr_tokenizer *tokenizer, int32_t id, qr_buffer *out, qr_error *err) {
    size_t n_bytes = 0;
    const size_t begin = out->size;
    const char *text = decoder_input(tokenizer, id, &n_bytes);
    bool fused = false;
    if (text == NULL || n_bytes == 0 || qr_tokenizer_is_special(tokenizer, id)) { return QRUN_OK; }
    qr_buffer_append(out, text, n_bytes);
    for (size_t i = 0; qr_buffer_ok(out) && i < tokenizer->n_decoders; i++) {
        if (decode_alone(&tokenizer->decoders[i], &fused, begin, out)) { continue; }
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "with this tokenizer the text of a token depends on its neighbours (its decoder joins words)");
    }
    return qr_buffer_ok(out) ? QRUN_OK : qr_fail_memory(err, "the bytes of a token", n_bytes);
}
