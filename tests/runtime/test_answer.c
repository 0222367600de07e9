/* The text of an answer as it streams: against the text of the whole, for tokenizers of every kind. */
#include "check.h"

#include "base/random.h"
#include "base/utf8.h"
#include "runtime/generate/answer.h"

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/tokenizers/"

static const char *const tokenizers[] = {"llama2", "llama3", "gemma", "qwen2", "unigram_bytes", "mistral_metaspace"};
enum { N_TOKENIZERS = sizeof tokenizers / sizeof *tokenizers, MAX_TEXT = 8192 };

static qr_tokenizer *open_tokenizer(const char *name) {
    char folder[512];
    snprintf(folder, sizeof folder, FIXTURES "%s", name);
    qr_tokenizer *tokenizer = NULL;
    qr_error err = {0};
    CHECK_MSG(qr_tokenizer_open(folder, &tokenizer, &err) == QRUN_OK, "%s: %s", name, err.message);
    return tokenizer;
}

static qr_tokens encode(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes) {
    qr_tokens tokens = {0};
    qr_error err = {0};
    CHECK(qr_tokenizer_encode(tokenizer, text, n_bytes, &(qr_encode_options){0}, &tokens, &err) == QRUN_OK);
    return tokens;
}

typedef struct outcome {
    char text[MAX_TEXT];
    size_t n_bytes;
    bool stopped;
    int32_t stop;
    int64_t n_pushed;
} outcome;

static void take(outcome *result, const char *text, size_t n_bytes) {
    CHECK_MSG(text[n_bytes] == '\0', "a piece of %zu bytes is not terminated: \"%s\"", n_bytes, text);
    CHECK_MSG(qr_utf8_valid_prefix(text, n_bytes) == n_bytes, "a piece is not whole characters: \"%.*s\"", (int)n_bytes,
              text);
    memcpy(result->text + result->n_bytes, text, n_bytes);
    result->n_bytes += n_bytes;
    result->text[result->n_bytes] = '\0';
}

static outcome stream(const qr_tokenizer *tokenizer, const int32_t *ids, int64_t n_prompt, int64_t n,
                      const qr_stop_list *stops) {
    static outcome result;
    result = (outcome){.n_bytes = 0};
    qr_answer answer;
    qr_error err = {0};
    CHECK(qr_answer_start(&answer, tokenizer, ids, n_prompt, stops, &err) == QRUN_OK);
    const char *text;
    size_t n_bytes;
    for (int64_t i = n_prompt; i < n && !result.stopped; i++) {
        CHECK(qr_answer_push(&answer, ids[i], &text, &n_bytes, &result.stopped, &err) == QRUN_OK);
        take(&result, text, n_bytes);
        result.n_pushed++;
    }
    if (!result.stopped) {
        CHECK(qr_answer_finish(&answer, &text, &n_bytes, &result.stopped, &err) == QRUN_OK);
        take(&result, text, n_bytes);
    }
    result.stop = answer.stop;
    qr_answer_free(&answer);
    return result;
}

/* Whole characters of the prompt that its decoder holds until a run of byte tokens ends. */
static size_t held_of_prompt(const qr_tokenizer *tokenizer, const int32_t *ids, int64_t n_prompt) {
    for (int64_t cut = 0; cut <= 3 && cut <= n_prompt; cut++) {
        qr_token_stream stream_state;
        qr_error err = {0};
        qr_buffer text = {0};
        qr_token_stream_init(&stream_state, tokenizer, true);
        for (int64_t i = 0; i < n_prompt - cut; i++) { qr_token_stream_push(&stream_state, ids[i], &text, &err); }
        qr_buffer_clear(&text);
        qr_token_stream_finish(&stream_state, &text, &err);
        qr_token_stream_free(&stream_state);
        const bool whole = text.size == 0 || strstr(text.data, "\xEF\xBF\xBD") == NULL;
        const size_t n_bytes = text.size;
        qr_buffer_free(&text);
        if (whole) { return n_bytes; }
    }
    return 0;
}

/* The text after every token of the answer, and after the end: the whole prompt fed to one stream. lengths [n −
 * n_prompt + 1]. */
static void whole_text(const qr_tokenizer *tokenizer, const int32_t *ids, int64_t n_prompt, int64_t n, qr_buffer *text,
                       size_t *lengths) {
    qr_token_stream stream_state;
    qr_error err = {0};
    qr_token_stream_init(&stream_state, tokenizer, true);
    for (int64_t i = 0; i <= n; i++) {
        if (i == n_prompt) { qr_buffer_clear(text); }
        if (i == n) { break; }
        CHECK(qr_token_stream_push(&stream_state, ids[i], text, &err) == QRUN_OK);
        if (i >= n_prompt) { lengths[i - n_prompt] = text->size; }
    }
    CHECK(qr_token_stream_finish(&stream_state, text, &err) == QRUN_OK);
    lengths[n - n_prompt] = text->size;
    qr_token_stream_free(&stream_state);
}

static const char *find(const char *text, size_t n, const char *what) {
    const size_t length = strlen(what);
    for (size_t at = 0; at + length <= n; at++) {
        if (memcmp(text + at, what, length) == 0) { return text + at; }
    }
    return NULL;
}

/* Where the answer ends by the definition: at the first token after which the text holds a stop string, before it. */
static size_t naive_end(const qr_buffer *text, const size_t *lengths, int64_t n_steps, const qr_stop_list *stops,
                        int32_t *stop, int64_t *step) {
    *stop = -1;
    for (*step = 0; *step < n_steps; ++*step) {
        size_t end = SIZE_MAX;
        for (int32_t s = 0; s < stops->n; s++) {
            const char *at = text->size > 0 ? find(text->data, lengths[*step], stops->texts[s]) : NULL;
            if (at != NULL && (size_t)(at - text->data) < end) { end = (size_t)(at - text->data), *stop = s; }
        }
        if (end != SIZE_MAX) { return end; }
    }
    return text->size;
}

static void check_stream(const qr_tokenizer *tokenizer, const int32_t *ids, int64_t n_prompt, int64_t n,
                         const qr_stop_list *stops, const char *what) {
    static size_t lengths[4096];
    qr_buffer text = {0};
    whole_text(tokenizer, ids, n_prompt, n, &text, lengths);
    const size_t held = held_of_prompt(tokenizer, ids, n_prompt);
    /* The run was no text after all. */
    if (held > 0 && text.size >= 3 && memcmp(text.data, "\xEF\xBF\xBD", 3) == 0) { goto out; }
    for (int64_t i = 0; i <= n - n_prompt; i++) { lengths[i] = lengths[i] > held ? lengths[i] - held : 0; }
    if (text.size > 0) {
        memmove(text.data, text.data + held, text.size + 1 - held);
        text.size -= held;
    }
    int32_t stop;
    int64_t step;
    const size_t expected = naive_end(&text, lengths, n - n_prompt + 1, stops, &stop, &step);
    const outcome result = stream(tokenizer, ids, n_prompt, n, stops);
    CHECK_MSG(result.n_bytes == expected && (expected == 0 || memcmp(result.text, text.data, expected) == 0),
              "%s, prompt of %lld: \"%s\" streamed, \"%.*s\" expected", what, (long long)n_prompt, result.text,
              (int)expected, text.data);
    CHECK_INT(result.stopped, stop >= 0);
    CHECK_INT(result.stop, stop);
    if (stop >= 0 && step < n - n_prompt) { CHECK_INT(result.n_pushed, step + 1); } /* not a token later */
out:
    qr_buffer_free(&text);
}

static const char SAMPLE[] =
    "Once upon a time, the caf\xC3\xA9 \xE2\x80\x94 na\xC3\xAFve \xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD"
    " end.\n\n"
    "User: 123  \xE4\xBD\xA0\xE5\xA5\xBD \xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D STOP stop ##\n###\nabababababac";

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void test_pieces_make_the_whole_from_any_prompt(void) {
    for (int t = 0; t < N_TOKENIZERS; t++) {
        qr_tokenizer *tokenizer = open_tokenizer(tokenizers[t]);
        if (tokenizer == NULL) { continue; }
        qr_tokens tokens = encode(tokenizer, SAMPLE, strlen(SAMPLE));
        const qr_stop_list none = {NULL, 0};
        for (int64_t n_prompt = 0; n_prompt <= (int64_t)tokens.n; n_prompt++) {
            check_stream(tokenizer, tokens.ids, n_prompt, (int64_t)tokens.n, &none, tokenizers[t]);
        }
        qr_tokens_free(&tokens);
        qr_tokenizer_destroy(tokenizer);
    }
}

static void test_stop_strings_wherever_they_lie(void) {
    static char *const texts[] = {
        "###", "STOP",      "\n\nUser:", "\xF0\x9F\x91\x8D",     "ababac", "time, the caf\xC3\xA9 \xE2\x80\x94 n", "e",
        " ",   "not there", "##\n##",    "\xE5\xA5\xBD \xD7\xA9"};
    for (int t = 0; t < N_TOKENIZERS; t++) {
        qr_tokenizer *tokenizer = open_tokenizer(tokenizers[t]);
        if (tokenizer == NULL) { continue; }
        qr_tokens tokens = encode(tokenizer, SAMPLE, strlen(SAMPLE));
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            const qr_stop_list one = {&texts[i], 1}, rest = {&texts[i], (int32_t)(sizeof texts / sizeof *texts - i)};
            for (int64_t n_prompt = 0; n_prompt < (int64_t)tokens.n; n_prompt += 3) {
                check_stream(tokenizer, tokens.ids, n_prompt, (int64_t)tokens.n, &one, texts[i]);
                check_stream(tokenizer, tokens.ids, n_prompt, (int64_t)tokens.n, &rest, texts[i]);
            }
        }
        qr_tokens_free(&tokens);
        qr_tokenizer_destroy(tokenizer);
    }
}

/* Any tokens in any order: halves of characters, special tokens, bytes. */
static void test_random_tokens(void) {
    static char *const texts[] = {"a", "th", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"};
    const qr_stop_list some = {texts, 3}, none = {NULL, 0};
    for (int t = 0; t < N_TOKENIZERS; t++) {
        qr_tokenizer *tokenizer = open_tokenizer(tokenizers[t]);
        if (tokenizer == NULL) { continue; }
        const int32_t vocab = qr_tokenizer_vocab_size(tokenizer);
        for (uint64_t seed = 0; seed < 300; seed++) {
            int32_t ids[40];
            int64_t n = 0;
            for (uint64_t i = 0; n < 40; i++) {
                const int32_t range = seed % 2 == 0 ? vocab : 300 < vocab ? 300 : vocab;
                const int32_t id = (int32_t)(qr_random_uniform(seed, 0, i) * range);
                size_t length;
                if (qr_tokenizer_token(tokenizer, id, &length) != NULL) { ids[n++] = id; }
            }
            check_stream(tokenizer, ids, 20, 40, &none, tokenizers[t]);
            check_stream(tokenizer, ids, 20, 40, &some, tokenizers[t]);
            if (check_state.n_failures_in_case > 0) { break; }
        }
        qr_tokenizer_destroy(tokenizer);
    }
}

static void test_ids_beyond_the_tokenizer_have_no_text(void) {
    qr_tokenizer *tokenizer = open_tokenizer("llama3");
    if (tokenizer == NULL) { return; }
    qr_tokens tokens = encode(tokenizer, "ab cd", 5);
    int32_t ids[64];
    int64_t n = 0;
    for (size_t i = 0; i < tokens.n; i++) {
        ids[n++] = qr_tokenizer_vocab_size(tokenizer) + (int32_t)i;
        ids[n++] = tokens.ids[i];
    }
    const outcome result = stream(tokenizer, ids, 1, n, &(qr_stop_list){NULL, 0});
    CHECK_STR(result.text, "ab cd");
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
}

static void test_without_a_tokenizer_pieces_are_empty(void) {
    const int32_t ids[] = {1, 2, 3};
    const qr_stop_list none = {NULL, 0};
    const outcome result = stream(NULL, ids, 1, 3, &none);
    CHECK_INT(result.n_bytes, 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_pieces_make_the_whole_from_any_prompt);
    CHECK_RUN(test_stop_strings_wherever_they_lie);
    CHECK_RUN(test_random_tokens);
    CHECK_RUN(test_ids_beyond_the_tokenizer_have_no_text);
    CHECK_RUN(test_without_a_tokenizer_pieces_are_empty);
    return check_end();
}
