/* Template text to tokens: Jinja's rules of whitespace (trim_blocks and lstrip_blocks on) and Python's literals. */
#include <string.h>

#include "base/number.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

typedef struct lexer {
    qr_jinja_run *run;
    const char *source;
    size_t size;
    size_t at;
    int line;
    bool line_starting; /* the last delimiter ended with a newline, or there was none yet */
    qr_jinja_token *tokens;
    size_t n_tokens, capacity;
} lexer;

static bool add(lexer *lx, qr_jinja_token token) {
    if (!qr_jinja_reserve(lx->run, &lx->tokens, &lx->capacity, lx->n_tokens + 1, sizeof token)) { return false; }
    lx->tokens[lx->n_tokens++] = token;
    return true;
}

static bool add_text(lexer *lx, qr_jinja_token_kind kind, const char *text, size_t size) {
    return add(lx, (qr_jinja_token){.kind = kind, .line = lx->line, .text = text, .size = size});
}

static bool fail_here(lexer *lx, const char *message) {
    lx->run->line = lx->line;
    (void)qr_jinja_error(lx->run, "%s", message);
    return false;
}

static bool starts_with(const lexer *lx, size_t at, const char *text) {
    const size_t length = strlen(text);
    return lx->size - at >= length && memcmp(lx->source + at, text, length) == 0;
}

static void move_to(lexer *lx, size_t at) {
    for (; lx->at < at; lx->at++) { lx->line += lx->source[lx->at] == '\n'; }
}

static size_t skip_space(const lexer *lx, size_t at) {
    return at + qr_utf8_span(lx->source + at, lx->size - at, qr_jinja_is_space);
}

/* The text before a delimiter at `end`, minus what "-" or lstrip_blocks take from it. */
static bool add_data(lexer *lx, size_t end, char sign, bool is_print) {
    const char *text = lx->source + lx->at;
    size_t size = end - lx->at;
    if (sign == '-') {
        size = qr_utf8_trim(text, size, qr_jinja_is_space);
    } else if (sign != '+' && !is_print) {
        size_t line_start = size;
        while (line_start > 0 && text[line_start - 1] != '\n') { line_start--; }
        if ((line_start > 0 || lx->line_starting) &&
            qr_utf8_trim(text + line_start, size - line_start, qr_jinja_is_space) == 0) {
            size = line_start;
        }
    }
    const bool added = size == 0 || add_text(lx, QR_JINJA_TOKEN_DATA, text, size);
    move_to(lx, end);
    return added;
}

/* Past the end of a tag whose closing characters are at `at` (with its sign before them): takes the space that "-"
 * asks for, or the one newline that trim_blocks takes. */
static void close_tag(lexer *lx, size_t at, char sign, bool trims_newline) {
    at += 2;
    if (sign == '-') {
        at = skip_space(lx, at);
    } else if (sign != '+' && trims_newline && at < lx->size && lx->source[at] == '\n') {
        at++;
    }
    move_to(lx, at);
    lx->line_starting = at > 0 && lx->source[at - 1] == '\n';
}

static bool lex_comment(lexer *lx) {
    static const qr_jinja_string end = {.data = "#}", .size = 2};
    const size_t body = lx->at + 2;
    const char *found = qr_jinja_search(lx->run, lx->source + body, lx->size - body, &end);
    if (found == NULL) { return fail_here(lx, "the comment has no end: #} is missing"); }
    const size_t at = (size_t)(found - lx->source);
    const char sign = at > body && (found[-1] == '-' || found[-1] == '+') ? found[-1] : '\0';
    close_tag(lx, at, sign, true);
    return true;
}

/* {%[sign] word [-]%} at `at`: the offset of its closing "%}", and both signs; false where there is something else. */
static bool match_word_tag(const lexer *lx, size_t at, const char *word, char *open_sign, char *sign, size_t *close) {
    if (!starts_with(lx, at, "{%")) { return false; }
    at += 2;
    *open_sign = '\0';
    if (at < lx->size && (lx->source[at] == '-' || lx->source[at] == '+')) { *open_sign = lx->source[at++]; }
    at = skip_space(lx, at);
    if (!starts_with(lx, at, word)) { return false; }
    at = skip_space(lx, at + strlen(word));
    *sign = '\0';
    if (at < lx->size && (lx->source[at] == '-' || lx->source[at] == '+')) { *sign = lx->source[at++]; }
    *close = at;
    return starts_with(lx, at, "%}");
}

static bool lex_raw(lexer *lx, char sign, size_t close) {
    close_tag(lx, close, sign, false);
    for (size_t at = lx->at; at < lx->size; at++) {
        char open_sign;
        if (match_word_tag(lx, at, "endraw", &open_sign, &sign, &close)) {
            lx->line_starting = lx->line_starting || at > lx->at;
            if (!add_data(lx, at, open_sign, false)) { return false; }
            close_tag(lx, close, sign, true);
            return true;
        }
    }
    return fail_here(lx, "the raw block has no end: {% endraw %} is missing");
}

/* --- inside of {{ }} and {% %} --- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
           ((unsigned char)c & 0x80U) != 0;
}

static size_t skip_digits(const lexer *lx, size_t at) {
    while (at < lx->size &&
           (is_digit(lx->source[at]) || (lx->source[at] == '_' && at + 1 < lx->size && is_digit(lx->source[at + 1])))) {
        at++;
    }
    return at;
}

static bool lex_number(lexer *lx) {
    const size_t start = lx->at;
    size_t at = skip_digits(lx, start);
    bool is_float = false;
    if (lx->source[start] == '0' && at == start + 1 && at < lx->size && strchr("xXoObB", lx->source[at]) != NULL) {
        at++;
        while (at < lx->size && is_name_byte(lx->source[at])) { at++; }
        move_to(lx, at);
        return add_text(lx, QR_JINJA_TOKEN_INT, lx->source + start, at - start);
    }
    if (at + 1 < lx->size && lx->source[at] == '.' && is_digit(lx->source[at + 1])) {
        const bool after_dot = start > 0 && lx->source[start - 1] == '.';
        if (!after_dot) {
            is_float = true;
            at = skip_digits(lx, at + 1);
        }
    }
    if (at < lx->size && (lx->source[at] | 0x20) == 'e') {
        const size_t sign = at + 1 < lx->size && (lx->source[at + 1] == '-' || lx->source[at + 1] == '+');
        if (at + 1 + sign < lx->size && is_digit(lx->source[at + 1 + sign])) {
            is_float = true;
            at = skip_digits(lx, at + 1 + sign);
        }
    }
    move_to(lx, at);
    return add_text(lx, is_float ? QR_JINJA_TOKEN_FLOAT : QR_JINJA_TOKEN_INT, lx->source + start, at - start);
}

/* \xhh, \uhhhh, \Uhhhhhhhh and \ooo: the code point, and how many characters after the backslash it took. */
static bool read_code_point(lexer *lx, const char *text, size_t size, uint32_t *code_point, size_t *used) {
    const char letter = text[0];
    *code_point = 0;
    if (letter >= '0' && letter <= '7') {
        *used = 0;
        while (*used < 3 && *used < size && text[*used] >= '0' && text[*used] <= '7') {
            *code_point = *code_point * 8 + (uint32_t)(text[(*used)++] - '0');
        }
        return true;
    }
    const size_t n = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
    if (size < n + 1) { return fail_here(lx, "a string ends in the middle of an escape sequence"); }
    for (size_t i = 1; i <= n; i++) {
        const int digit = qr_hex_digit(text[i]);
        if (digit < 0) { return fail_here(lx, "an escape sequence in a string has a bad hexadecimal digit"); }
        *code_point = *code_point << 4 | (uint32_t)digit;
    }
    *used = n + 1;
    return true;
}

/* One escape after a backslash; text[0] is the character after it. */
static bool decode_escape(lexer *lx, qr_jinja_builder *out, const char *text, size_t size, size_t *used) {
    static const char letters[] = "abfnrtv\\'\"";
    static const char values[] = "\a\b\f\n\r\t\v\\'\"";
    const char *found = text[0] != '\0' ? strchr(letters, text[0]) : NULL;
    *used = 1;
    if (found != NULL) {
        qr_jinja_append(out, &values[found - letters], 1);
    } else if (text[0] == '\n') {
        return true;
    } else if (strchr("01234567xuU", text[0]) != NULL && text[0] != '\0') {
        uint32_t code_point;
        if (!read_code_point(lx, text, size, &code_point, used)) { return false; }
        if (code_point > 0x10FFFFU || (code_point >= 0xD800U && code_point <= 0xDFFFU)) {
            return fail_here(lx, "an escape sequence in a string names no character");
        }
        qr_jinja_append_code_point(out, code_point);
    } else if (text[0] == 'N') {
        return fail_here(lx, "\\N{…} in a string is not supported; write the character itself");
    } else { /* unknown escapes stay as they are */
        *used = 0;
        qr_jinja_append(out, "\\", 1);
    }
    return !qr_jinja_failed(lx->run);
}

static bool lex_string(lexer *lx) {
    const char quote = lx->source[lx->at];
    const size_t start = lx->at + 1;
    size_t end = start;
    bool has_escape = false;
    while (end < lx->size && lx->source[end] != quote) {
        has_escape = has_escape || lx->source[end] == '\\';
        end += lx->source[end] == '\\' && end + 1 < lx->size ? 2 : 1;
    }
    if (end >= lx->size) { return fail_here(lx, "a string has no end: the closing quote is missing"); }
    qr_jinja_token token = {
        .kind = QR_JINJA_TOKEN_STRING, .line = lx->line, .text = lx->source + start, .size = end - start};
    if (has_escape) {
        qr_jinja_builder out = {.run = lx->run};
        for (size_t i = start; i < end;) {
            size_t used = 1;
            if (lx->source[i] != '\\') {
                qr_jinja_append(&out, lx->source + i, 1);
            } else if (decode_escape(lx, &out, lx->source + i + 1, end - i - 1, &used)) {
                used++;
            }
            if (qr_jinja_failed(lx->run)) { return false; }
            i += used;
        }
        token.text = out.data;
        token.size = out.size;
    }
    move_to(lx, end + 1);
    return add(lx, token);
}

static bool lex_operator(lexer *lx, char *open, size_t *n_open) {
    static const char *const pairs[] = {"**", "//", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < QR_COUNT_OF(pairs); i++) {
        if (starts_with(lx, lx->at, pairs[i])) {
            lx->at += 2;
            return add(lx, (qr_jinja_token){.kind = QR_JINJA_TOKEN_OPERATOR,
                                            .line = lx->line,
                                            .op = QR_JINJA_OP(pairs[i][0], pairs[i][1])});
        }
    }
    const char c = lx->source[lx->at];
    if (c == '\0' || strchr("+-*/%~[](){}<>=.:|,;", c) == NULL) {
        lx->run->line = lx->line;
        (void)qr_jinja_error(lx->run, "unexpected character '%c'", c);
        return false;
    }
    const char *closing = strchr(")]}", c);
    if (strchr("([{", c) != NULL) {
        if (*n_open == QR_JINJA_MAX_DEPTH) { return fail_here(lx, "too many open brackets"); }
        open[(*n_open)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (closing != NULL) {
        if (*n_open == 0 || open[*n_open - 1] != c) {
            lx->run->line = lx->line;
            (void)qr_jinja_error(lx->run, "unexpected '%c'", c);
            return false;
        }
        (*n_open)--;
    }
    lx->at++;
    return add(lx, (qr_jinja_token){.kind = QR_JINJA_TOKEN_OPERATOR, .line = lx->line, .op = c});
}

/* From after "{{" or "{%" to after its end, which counts only where no bracket is open. */
static bool lex_code(lexer *lx, bool is_print) {
    const char *end = is_print ? "}}" : "%}";
    char open[QR_JINJA_MAX_DEPTH];
    size_t n_open = 0;
    for (;;) {
        move_to(lx, skip_space(lx, lx->at));
        if (lx->at >= lx->size) {
            return fail_here(lx,
                             is_print ? "the end of the print, }}, is missing" : "the end of the tag, %}, is missing");
        }
        const char c = lx->source[lx->at];
        const bool has_sign = c == '-' || (c == '+' && !is_print);
        if (n_open == 0 && (starts_with(lx, lx->at, end) || (has_sign && starts_with(lx, lx->at + 1, end)))) {
            const qr_jinja_token token = {.kind = is_print ? QR_JINJA_TOKEN_PRINT_END : QR_JINJA_TOKEN_TAG_END,
                                          .line = lx->line};
            if (!add(lx, token)) { return false; }
            close_tag(lx, lx->at + (has_sign ? 1U : 0U), has_sign ? c : '\0', !is_print);
            return true;
        }
        bool ok;
        if (is_digit(c)) {
            ok = lex_number(lx);
        } else if (is_name_byte(c)) {
            size_t stop = lx->at;
            while (stop < lx->size && is_name_byte(lx->source[stop])) { stop++; }
            ok = add_text(lx, QR_JINJA_TOKEN_NAME, lx->source + lx->at, stop - lx->at);
            move_to(lx, stop);
        } else if (c == '\'' || c == '"') {
            ok = lex_string(lx);
        } else {
            ok = lex_operator(lx, open, &n_open);
        }
        if (!ok) { return false; }
    }
}

/* Whatever starts with "{{", "{%" or "{#" at `at`. */
static bool lex_delimiter(lexer *lx, size_t at) {
    const char kind = lx->source[at + 1];
    const bool is_print = kind == '{';
    char sign = at + 2 < lx->size ? lx->source[at + 2] : '\0';
    if (sign != '-' && sign != '+') { sign = '\0'; }
    char open_sign, raw_sign;
    size_t close;
    const bool is_raw = match_word_tag(lx, at, "raw", &open_sign, &raw_sign, &close);
    if (!add_data(lx, at, sign, is_print)) { return false; }
    if (kind == '#') { return lex_comment(lx); }
    if (is_raw) { return lex_raw(lx, raw_sign, close); }
    const qr_jinja_token token = {.kind = is_print ? QR_JINJA_TOKEN_PRINT_BEGIN : QR_JINJA_TOKEN_TAG_BEGIN,
                                  .line = lx->line};
    lx->at += sign != '\0' ? 3 : 2;
    return add(lx, token) && lex_code(lx, is_print);
}

bool qr_jinja_tokenise(qr_jinja_run *run, const char *source, size_t size, qr_jinja_token **tokens) {
    lexer lx = {.run = run, .source = source, .size = size, .line = 1, .line_starting = true};
    while (lx.at < size) {
        size_t at = lx.at;
        while (at + 1 < size &&
               !(source[at] == '{' && strchr("{%#", source[at + 1]) != NULL && source[at + 1] != '\0')) {
            at++;
        }
        if (at + 1 >= size) {
            if (!add_text(&lx, QR_JINJA_TOKEN_DATA, source + lx.at, size - lx.at)) { return false; }
            move_to(&lx, size);
        } else if (!lex_delimiter(&lx, at)) {
            return false;
        }
    }
    if (!add(&lx, (qr_jinja_token){.kind = QR_JINJA_TOKEN_END, .line = lx.line})) { return false; }
    *tokens = lx.tokens;
    return true;
}
