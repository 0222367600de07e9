/* Searching for literals and regular expressions, and counting what that costs.
 *
 * PCRE2's own match limit is of no use for a whole text: it starts again at every offset, and compiled code does not
 * count the characters that a repeat walks over. The expressions have meters instead (oniguruma.c). A meter spends what
 * it took to walk from the last one to here, and ends the match once the text's steps are spent. */
#include <string.h>

#include "base/sizes.h"
#include "loaders/tokenizer/internal.h"

enum { MAX_COMPILED_BYTES = 16 << 20, MAX_MATCH_KIB = 16 << 10 };

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
    if (context->compile == NULL) { return qr_fail_memory(err, "the regular expressions", sizeof *context); }
    (void)pcre2_set_newline(context->compile, PCRE2_NEWLINE_LF);
    return QRUN_OK;
}

void qr_regex_context_free(qr_regex_context *context) {
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

/* --- compilation -------------------------------------------------------------------------------------------------- */

static qrun_status compile(qr_pattern *pattern, qr_regex_context *context, const qr_buffer *translated,
                           const char *regex, const char *what, qr_error *err) {
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int code = 0;
    PCRE2_SIZE offset = 0;
    pattern->code = pcre2_compile((PCRE2_SPTR)(translated->data != NULL ? translated->data : ""), translated->size,
                                  options, &code, &offset, context->compile);
    if (pattern->code == NULL && (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED)) {
        return qr_fail_memory(err, "a regular expression", translated->size);
    }
    if (pattern->code == NULL) {
        char message[128] = "";
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: the regular expression \"%.200s\": %s", what, regex, message);
    }
    (void)pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* without it, matching is only slower */
    size_t n_bytes = 0, n_jit_bytes = 0;
    (void)pcre2_pattern_info(pattern->code, PCRE2_INFO_SIZE, &n_bytes);
    (void)pcre2_pattern_info(pattern->code, PCRE2_INFO_JITSIZE, &n_jit_bytes);
    context->compiled_bytes += n_bytes + n_jit_bytes;
    if (context->compiled_bytes > MAX_COMPILED_BYTES) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: the regular expressions take more than 16 MiB compiled", what);
    }
    return QRUN_OK;
}

qrun_status qr_pattern_regex(qr_pattern *pattern, qr_regex_context *context, const char *regex, const char *what,
                             qr_error *err) {
    qr_buffer translated = {0};
    qrun_status status = qr_oniguruma_translate(context, regex, &translated, &pattern->meter_steps, what, err);
    if (status == QRUN_OK) { status = compile(pattern, context, &translated, regex, what, err); }
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
                                       qr_matcher *matcher) {
    return (qr_pattern_search){
        .pattern = pattern, .matcher = matcher, .text = text, .n_bytes = n_bytes, .last_end = SIZE_MAX};
}

/* A meter of the same attempt and alternative walked here from the last one, any other from where the attempt began. */
static int read_meter(pcre2_callout_block *block, void *data) {
    qr_matcher *matcher = data;
    qr_meter *last = &matcher->last_meter;
    const bool follows = block->start_match == last->start && block->callout_number == last->branch;
    const size_t at = block->current_position, from = follows ? last->at : block->start_match;
    *last = (qr_meter){block->start_match, at, block->callout_number};
    matcher->budget->steps -= matcher->meter_steps + (int64_t)(at > from ? at - from : from - at);
    return matcher->budget->steps < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

static qrun_status prepare_matcher(qr_matcher *matcher, qr_error *err) {
    if (matcher->data != NULL) { return QRUN_OK; }
    if (matcher->context == NULL) { matcher->context = pcre2_match_context_create(matcher->regex->general); }
    matcher->data = pcre2_match_data_create(1, matcher->regex->general);
    if (matcher->context == NULL || matcher->data == NULL) {
        return qr_fail_memory(err, "a regular expression", sizeof(PCRE2_SIZE));
    }
    (void)pcre2_set_match_limit(matcher->context, UINT32_MAX);
    (void)pcre2_set_depth_limit(matcher->context, UINT32_MAX);
    (void)pcre2_set_heap_limit(matcher->context, MAX_MATCH_KIB);
    (void)pcre2_set_callout(matcher->context, read_meter, matcher);
    return QRUN_OK;
}

void qr_matcher_free(qr_matcher *matcher) {
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    *matcher = (qr_matcher){0};
}

static bool find_literal(qr_pattern_search *search, size_t *start, size_t *end) {
    const qr_pattern *pattern = search->pattern;
    const char *at = search->text + search->at;
    size_t left = search->n_bytes - search->at;
    while (left >= pattern->n_literal && search->matcher->budget->steps >= 0) {
        const char *hit = memchr(at, pattern->literal[0], left - pattern->n_literal + 1);
        if (hit == NULL) { break; }
        qr_budget_spend(search->matcher->budget, pattern->n_literal);
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
    qr_matcher *matcher = search->matcher;
    const PCRE2_SPTR text = (PCRE2_SPTR)search->text;
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    matcher->last_meter = (qr_meter){.start = SIZE_MAX};
    int n =
        pcre2_match(search->pattern->code, text, search->n_bytes, search->at, options, matcher->data, matcher->context);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) { /* deep recursion: the interpreter keeps its stack on the heap */
        n = pcre2_match(search->pattern->code, text, search->n_bytes, search->at, options | PCRE2_NO_JIT, matcher->data,
                        matcher->context);
    }
    return n;
}

qrun_status qr_pattern_next(qr_pattern_search *search, size_t *start, size_t *end, bool *found, qr_error *err) {
    if (search->pattern->literal != NULL) {
        *found = find_literal(search, start, end);
        return qr_budget_check(search->matcher->budget, err);
    }
    qr_matcher *matcher = search->matcher;
    QR_RETURN_IF_ERROR(prepare_matcher(matcher, err));
    matcher->meter_steps = search->pattern->meter_steps;
    *found = false;
    while (search->at <= search->n_bytes) {
        const int n = match_regex(search);
        /* An attempt at each offset before the match. */
        const size_t reached = n >= 0 ? pcre2_get_startchar(matcher->data) : search->n_bytes;
        matcher->budget->steps -= matcher->meter_steps * (int64_t)(reached - search->at + 1);
        QR_RETURN_IF_ERROR(qr_budget_check(matcher->budget, err));
        if (n == PCRE2_ERROR_NOMATCH) { break; }
        if (n == PCRE2_ERROR_NOMEMORY) { return qr_fail_memory(err, "a regular expression", search->n_bytes); }
        if (n < 0) {
            char message[128] = "";
            (void)pcre2_get_error_message(n, (PCRE2_UCHAR *)message, sizeof message);
            return qr_fail(err, QRUN_ERROR_INPUT, "a regular expression of the tokenizer failed on this text: %s",
                           message);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
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
