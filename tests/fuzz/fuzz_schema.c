/* Every text that a schema's grammar leads to can be ended, and is JSON then. The text is one of the bytes that each
 * place allows, chosen by the input; towards the end the first that leads on. */
#include "base/buffer.h"
#include "base/random.h"
#include "fuzz.h"
#include "loaders/files/json.h"
#include "runtime/grammar/grammar.h"

enum { FREE_BYTES = 150, MOST_BYTES = 4000 };

static qr_match_arena arena;

/* One of the bytes that may follow; −1: none may. */
static int choose_byte(const qr_match_set *set, bool first, uint64_t seed, uint64_t at) {
    int found = -1;
    const int start = first ? 0 : (int)(qr_random_uniform(seed, 1, at) * 256);
    static const char ends[] = "\"]}0n";
    for (int i = -(int)(sizeof ends - 1); i < 256 && found < 0; i++) {
        if (i < 0 && !first) { continue; }
        const int byte = i < 0 ? (unsigned char)ends[i + (int)(sizeof ends - 1)] : (start + i) % 256;
        const qr_match_set next = qr_match_step(&arena, set, (uint8_t)byte);
        if (next.begin < next.end || next.is_complete) { found = byte; }
        qr_match_return(&arena, set);
    }
    return found;
}

/* Our reader takes integers that a double holds, and no name twice. */
static bool is_strict_only(const char *message) {
    return strstr(message, "integer") != NULL || strstr(message, "twice") != NULL ||
           strstr(message, "uplicate") != NULL;
}

static void follow(const qr_grammar *grammar, uint64_t seed) {
    qr_buffer text = {0};
    qr_match_place place;
    FUZZ_CHECK(qr_match_place_create(&place, NULL) == QRUN_OK);
    qr_match_set set = qr_match_start(&arena, &grammar->automaton);
    bool is_over = false;
    while (!is_over && !arena.overflow && text.size < MOST_BYTES) {
        const int byte = choose_byte(&set, text.size > FREE_BYTES, seed, text.size);
        if (arena.overflow) { break; }
        FUZZ_CHECK(byte >= 0 || set.is_complete);
        is_over = byte < 0 || (set.is_complete && text.size > FREE_BYTES);
        if (is_over) { break; }
        qr_buffer_append_char(&text, (char)byte);
        set = qr_match_step(&arena, &set, (uint8_t)byte);
        if (arena.overflow || !qr_match_keep(&arena, &set, &place)) { break; }
        set = qr_match_restore(&arena, &grammar->automaton, &place);
    }
    if (is_over) {
        qr_json *root = NULL;
        qr_error err = {0};
        const qrun_status status = qr_json_parse(text.data, text.size, "answer", &root, &err);
        FUZZ_CHECK(status == QRUN_OK || is_strict_only(err.message));
        qr_json_free(root);
    }
    qr_match_place_free(&place);
    qr_buffer_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (arena.configs == NULL) { FUZZ_CHECK(qr_match_arena_create(&arena, NULL) == QRUN_OK); }
    qr_grammar *grammar = NULL;
    qr_error err = {0};
    const qrun_status status = qr_grammar_create((const char *)data, size, &grammar, &err);
    FUZZ_CHECK((status == QRUN_OK) == (grammar != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    for (uint64_t seed = 0; grammar != NULL && seed < 2; seed++) { follow(grammar, seed + size); }
    qr_grammar_destroy(grammar);
    return 0;
}
