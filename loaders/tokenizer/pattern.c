/* Searching for literals and regular expressions. The expressions of tokenizer.json are written for Oniguruma with
 * Ruby's syntax; they are translated where PCRE2 reads them differently (the meaning of \s, \w, \h and (?m), nested
 * classes), and refused where there is no equivalent. */
#include <string.h>

#include "base/sizes.h"
#include "loaders/tokenizer/internal.h"

#define SPACE_CLASS "\\p{Z}\\t-\\r\\x{85}"
#define WORD_CLASS                                                                   \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE\\x{24B6}-\\x{24E9}" \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define HEX_CLASS "0-9A-Fa-f"

static void *regex_alloc(size_t size, void *context) {
    (void)context;
    return qr_alloc(size);
}

static void regex_free(void *block, void *context) {
    (void)context;
    qr_free(block);
}

qrun_status qr_regex_context_create(qr_regex_context *context, qr_error *err) {
    context->general = pcre2_general_context_create(regex_alloc, regex_free, NULL);
    context->compile = context->general != NULL ? pcre2_compile_context_create(context->general) : NULL;
    context->match = context->general != NULL ? pcre2_match_context_create(context->general) : NULL;
    if (context->compile == NULL || context->match == NULL) {
        return qr_fail_memory(err, "the regular expressions", sizeof *context);
    }
    (void)pcre2_set_newline(context->compile, PCRE2_NEWLINE_LF);
    /* Enough for a megabyte of one character class, too little for an exponential pattern to be felt. */
    (void)pcre2_set_match_limit(context->match, 20U * 1000U * 1000U);
    (void)pcre2_set_heap_limit(context->match, 256U * 1024U);
    return QRUN_OK;
}

void qr_regex_context_free(qr_regex_context *context) {
    pcre2_match_context_free(context->match);
    pcre2_compile_context_free(context->compile);
    pcre2_general_context_free(context->general);
    *context = (qr_regex_context){0};
}

qrun_status qr_pattern_literal(qr_pattern *pattern, const char *text, const char *what, qr_error *err) {
    if (text[0] == '\0') { return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: an empty pattern is not supported", what); }
    pattern->literal = qr_strdup(text);
    if (pattern->literal == NULL) { return qr_fail_memory(err, "a pattern", strlen(text)); }
    pattern->n_literal = strlen(text);
    return QRUN_OK;
}

/* --- translation -------------------------------------------------------------------------------------------------- */

/* The members of a class escape such as \s, and whether it is their complement; NULL for other escapes. */
static const char *class_escape(char letter, bool *complement) {
    *complement = letter == 'S' || letter == 'W' || letter == 'H';
    switch (letter) {
        case 's':
        case 'S': return SPACE_CLASS;
        case 'w':
        case 'W': return WORD_CLASS;
        case 'h':
        case 'H': return HEX_CLASS;
        default: return NULL;
    }
}

/* \p{Han} means the script itself in Oniguruma, and in PCRE2 since 10.40 also what the script borrows: the length of
 * "\p{" before a script's name that needs saying so, else 0. */
static size_t script_escape(const char *regex) {
#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40
    static const char *const scripts[] = {"Han}",        "Hiragana}", "Katakana}", "Hangul}",  "Latin}",
                                          "Greek}",      "Cyrillic}", "Arabic}",   "Hebrew}",  "Thai}",
                                          "Devanagari}", "Bengali}",  "Tamil}",    "Armenian}"};
    if ((regex[1] == 'p' || regex[1] == 'P') && regex[2] == '{') {
        const size_t n = regex[3] == '^' ? 4 : 3;
        for (size_t i = 0; i < QR_COUNT_OF(scripts); i++) {
            if (strncmp(regex + n, scripts[i], strlen(scripts[i])) == 0) { return n; }
        }
    }
#else
    (void)regex;
#endif
    return 0;
}

/* Translates the escape at regex[0] == '\\'; returns the characters read. */
static size_t translate_escape(const char *regex, bool in_class, qr_buffer *out) {
    bool complement;
    const char *members = class_escape(regex[1], &complement);
    if (regex[1] == '\0') {
        qr_buffer_append_char(out, '\\');
        return 1;
    }
    if (members != NULL && !in_class) {
        qr_buffer_append_format(out, "[%s%s]", complement ? "^" : "", members);
        return 2;
    }
    if (members != NULL && !complement) { /* a complement inside a class stays PCRE2's own */
        qr_buffer_append_text(out, members);
        return 2;
    }
    if (regex[1] == 'u' && strspn(regex + 2, "0123456789abcdefABCDEF") >= 4) {
        qr_buffer_append_format(out, "\\x{%.4s}", regex + 2);
        return 6;
    }
    const size_t n_script = script_escape(regex);
    qr_buffer_append(out, regex, n_script > 0 ? n_script : 2);
    if (n_script > 0) { qr_buffer_append_text(out, "sc:"); }
    return n_script > 0 ? n_script : 2;
}

/* "(?imx-imx:" or "(?imx)": Oniguruma's m is PCRE2's s. Returns the characters read, 1 where it is something else. */
static size_t translate_group(const char *regex, qr_buffer *out) {
    qr_buffer_append_char(out, '(');
    if (regex[1] != '?') { return 1; }
    const size_t n = strspn(regex + 2, "imx-");
    if (n == 0 || (regex[2 + n] != ':' && regex[2 + n] != ')')) { return 1; }
    qr_buffer_append_char(out, '?');
    for (size_t i = 0; i < n; i++) { qr_buffer_append_char(out, regex[2 + i] == 'm' ? 's' : regex[2 + i]); }
    return 2 + n;
}

/* A character inside a class; returns the characters read, 0 for what PCRE2 cannot say. */
static size_t translate_in_class(const char *regex, qr_buffer *out) {
    if (regex[0] == '\\') { return translate_escape(regex, true, out); }
    if (regex[0] == '&' && regex[1] == '&') { return 0; }
    if (regex[0] == '[') {
        static const char space[] = "[:space:]", punct[] = "[:punct:]";
        const char *end = regex[1] == ':' ? strstr(regex, ":]") : NULL;
        if (end == NULL) { return 0; }
        if (strncmp(regex, space, sizeof space - 1) == 0) {
            qr_buffer_append_text(out, SPACE_CLASS);
            return sizeof space - 1;
        }
        if (strncmp(regex, punct, sizeof punct - 1) == 0) {
            qr_buffer_append_text(out, "\\p{P}\\p{S}");
            return sizeof punct - 1;
        }
        qr_buffer_append(out, regex, (size_t)(end + 2 - regex));
        return (size_t)(end + 2 - regex);
    }
    qr_buffer_append_char(out, regex[0]);
    return 1;
}

static qrun_status translate(const char *regex, qr_buffer *out, const char *what, qr_error *err) {
    bool in_class = false, class_begins = false;
    for (const char *at = regex; *at != '\0';) {
        size_t n = 1;
        if (in_class && (*at != ']' || class_begins)) {
            const bool negation = class_begins && *at == '^';
            n = translate_in_class(at, out);
            if (n == 0) {
                return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                               "%s: the regular expression \"%.200s\" nests or intersects character classes, which is "
                               "not supported",
                               what, regex);
            }
            class_begins = negation;
        } else if (!in_class && *at == '\\') {
            n = translate_escape(at, false, out);
        } else if (!in_class && *at == '(') {
            n = translate_group(at, out);
        } else {
            class_begins = *at == '[';
            in_class = class_begins;
            qr_buffer_append_char(out, *at);
        }
        at += n;
    }
    return qr_buffer_ok(out) ? QRUN_OK : qr_fail_memory(err, "a regular expression", strlen(regex));
}

qrun_status qr_pattern_regex(qr_pattern *pattern, const qr_regex_context *context, const char *regex, const char *what,
                             qr_error *err) {
    qr_buffer translated = {0};
    qrun_status status = translate(regex, &translated, what, err);
    if (status == QRUN_OK) {
        const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
        int code = 0;
        PCRE2_SIZE offset = 0;
        pattern->code = pcre2_compile((PCRE2_SPTR)(translated.data != NULL ? translated.data : ""), translated.size,
                                      options, &code, &offset, context->compile);
        if (pattern->code == NULL && (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED)) {
            status = qr_fail_memory(err, "a regular expression", translated.size);
        } else if (pattern->code == NULL) {
            char message[128] = "";
            (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
            status =
                qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: the regular expression \"%.200s\": %s", what, regex, message);
        } else {
            (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it, matching is only slower */
        }
    }
    qr_buffer_free(&translated);
    return status;
}

void qr_pattern_free(qr_pattern *pattern) {
    qr_free(pattern->literal);
    pcre2_code_free(pattern->code);
    *pattern = (qr_pattern){0};
}

/* --- search ------------------------------------------------------------------------------------------------------- */

qr_pattern_search qr_pattern_search_in(const char *text, size_t n_bytes, const qr_pattern *pattern,
                                       const qr_tokenizer *tokenizer, pcre2_match_data **match) {
    return (qr_pattern_search){.pattern = pattern,
                               .context = &tokenizer->regex,
                               .match = match,
                               .text = text,
                               .n_bytes = n_bytes,
                               .last_end = SIZE_MAX};
}

static bool find_literal(qr_pattern_search *search, size_t *start, size_t *end) {
    const qr_pattern *pattern = search->pattern;
    const char *at = search->text + search->at;
    size_t left = search->n_bytes - search->at;
    while (left >= pattern->n_literal) {
        const char *hit = memchr(at, pattern->literal[0], left - pattern->n_literal + 1);
        if (hit == NULL) { break; }
        if (memcmp(hit, pattern->literal, pattern->n_literal) == 0) {
            *start = (size_t)(hit - search->text);
            *end = *start + pattern->n_literal;
            search->at = *end;
            return true;
        }
        left -= (size_t)(hit + 1 - at);
        at = hit + 1;
    }
    search->at = search->n_bytes;
    return false;
}

static int match_regex(qr_pattern_search *search) {
    const PCRE2_SPTR text = (PCRE2_SPTR)search->text;
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int n = pcre2_match(search->pattern->code, text, search->n_bytes, search->at, options, *search->match,
                        search->context->match);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) { /* deep recursion: the interpreter keeps its stack on the heap */
        n = pcre2_match(search->pattern->code, text, search->n_bytes, search->at, options | PCRE2_NO_JIT,
                        *search->match, search->context->match);
    }
    return n;
}

qrun_status qr_pattern_next(qr_pattern_search *search, size_t *start, size_t *end, bool *found, qr_error *err) {
    if (search->pattern->literal != NULL) {
        *found = find_literal(search, start, end);
        return QRUN_OK;
    }
    if (*search->match == NULL) { *search->match = pcre2_match_data_create(1, search->context->general); }
    if (*search->match == NULL) { return qr_fail_memory(err, "a regular expression", sizeof(PCRE2_SIZE)); }
    *found = false;
    while (search->at <= search->n_bytes) {
        const int n = match_regex(search);
        if (n == PCRE2_ERROR_NOMATCH) { break; }
        if (n == PCRE2_ERROR_NOMEMORY) { return qr_fail_memory(err, "a regular expression", search->n_bytes); }
        if (n < 0) {
            char message[128] = "";
            (void)pcre2_get_error_message(n, (PCRE2_UCHAR *)message, sizeof message);
            return qr_fail(err, QRUN_ERROR_INPUT, "a regular expression of the tokenizer failed on this text: %s",
                           message);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(*search->match);
        if (range[1] < range[0] || range[0] < search->at) { /* \K in a lookaround */
            return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "a regular expression of the tokenizer matched backwards");
        }
        if (range[0] == range[1] && range[1] == search->last_end) { /* an empty match right after a match is none */
            if (search->at >= search->n_bytes) { break; }
            search->at += qr_char_length(search->text[search->at]);
            continue;
        }
        *start = range[0];
        *end = range[1];
        *found = true;
        search->at = *end;
        search->last_end = *end;
        return QRUN_OK;
    }
    search->at = search->n_bytes + 1;
    return QRUN_OK;
}
