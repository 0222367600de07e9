/* The tokenizer against what other implementations gave for real tokenizers (the data beside the checkout) and for the
 * small ones in tests/fixtures/tokenizers, made by tests/golden/make_tokenizer_goldens.py. */
#include <dirent.h>

#include "loaders/files/json.h"
#include "tokenizer_check.h"

static void check_ids(const qr_tokens *tokens, const qr_json *expected, const char *text) {
    size_t i = 0;
    for (const qr_json *id = qr_json_first(expected); id != NULL; id = id->next, i++) {
        if (i >= tokens->n || tokens->ids[i] != (int32_t)id->valuedouble) {
            check_fail(__FILE__, __LINE__, "token %zu of \"%.80s\" is %d, expected %d", i, text,
                       i < tokens->n ? (int)tokens->ids[i] : -1, (int)id->valuedouble);
            return;
        }
    }
    CHECK_MSG(i == tokens->n, "\"%.80s\" gave %zu tokens, expected %zu", text, tokens->n, i);
}

/* --- goldens of real tokenizers ----------------------------------------------------------------------------------- */

/* Texts between separator lines, and a line of ids for each. */
static void check_listed_goldens(const char *tokenizer_name, const char *golden) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    qr_tokenizer *tokenizer = open_shared(tokenizer_name);
    if (tokenizer == NULL) { return; }
    char name[256];
    char *texts = NULL, *ids = NULL;
    size_t n_texts = 0, n_ids = 0, n_cases = 0;
    snprintf(name, sizeof name, "tokenizers/goldens/%s.inp", golden);
    REQUIRE(qr_file_read(check_shared_data(name), 1 << 20, &texts, &n_texts, NULL) == QRUN_OK);
    snprintf(name, sizeof name, "tokenizers/goldens/%s.out", golden);
    REQUIRE(qr_file_read(check_shared_data(name), 1 << 20, &ids, &n_ids, NULL) == QRUN_OK);
    char *line = ids;
    for (char *text = texts; text < texts + n_texts; n_cases++) {
        char *end = strstr(text, separator);
        const size_t n_bytes = end != NULL ? (size_t)(end - text) : (size_t)(texts + n_texts - text);
        qr_tokens tokens = encode(tokenizer, text, n_bytes, &plain);
        size_t i = 0;
        bool same = true;
        for (; *line != '\n' && *line != '\0'; i++) {
            const long expected = strtol(line, &line, 10);
            same = same && i < tokens.n && tokens.ids[i] == expected;
            while (*line == ' ') { line++; }
        }
        CHECK_MSG(same && i == tokens.n, "case %zu, \"%.*s\": %zu tokens, expected %zu", n_cases, (int)n_bytes, text,
                  tokens.n, i);
        line += *line == '\n';
        qr_tokens_free(&tokens);
        text += n_bytes + (end != NULL ? sizeof separator - 1 : 0);
        if (end == NULL) { break; }
    }
    CHECK_MSG(n_cases >= 45, "%zu cases", n_cases);
    qr_free(texts);
    qr_free(ids);
    qr_tokenizer_destroy(tokenizer);
}

static void test_listed_llama_3(void) { check_listed_goldens("llama-3.2", "llama-bpe"); }
static void test_listed_gpt2(void) { check_listed_goldens("gpt2", "gpt-2"); }
static void test_listed_llama_2(void) { check_listed_goldens("llama-2/support/token_config", "llama-spm"); }
static void test_listed_phi_3(void) { check_listed_goldens("phi-3-mini", "phi-3"); }

/* Goldens may have NUL in their texts, which the JSON reader refuses: it is read as U+F8FF and put back here. */
static qr_json *read_golden(const char *path) {
    qr_error err = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    qr_json *root = NULL;
    CHECK_MSG(qr_file_read(path, 1 << 24, &text, &n_bytes, &err) == QRUN_OK, "%s", err.message);
    for (char *at = text; at != NULL && (at = strstr(at, "\\u0000")) != NULL; at += 6) { memcpy(at + 2, "f8ff", 4); }
    if (text != NULL) { CHECK_MSG(qr_json_parse(text, n_bytes, path, &root, &err) == QRUN_OK, "%s", err.message); }
    qr_free(text);
    return root;
}

/* A string of such a file, of *n_bytes, the caller's to free. */
static char *golden_text(const qr_json *value, size_t *n_bytes) {
    char *text = qr_strdup(cJSON_IsString(value) ? value->valuestring : "");
    size_t n = 0;
    for (const char *from = text; *from != '\0';) {
        const bool is_nul = strncmp(from, "\xEF\xA3\xBF", 3) == 0;
        text[n++] = is_nul ? '\0' : *from;
        from += is_nul ? 3 : 1;
    }
    text[n] = '\0';
    *n_bytes = n;
    return text;
}

/* What transformers' clean_up_tokenization_spaces made of decoded text; the goldens of transformers.js were made
 * with it on for the byte-level tokenizers. qrun leaves decoded text as it is. */
static void clean_up_spaces(char *text, size_t *n_bytes) {
    static const char *const marks[] = {".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const size_t n_mark = strlen(marks[i]);
        for (size_t at = 0; at + n_mark < *n_bytes; at++) {
            if (text[at] != ' ' || memcmp(text + at + 1, marks[i], n_mark) != 0) { continue; }
            memmove(text + at, text + at + 1, *n_bytes - at);
            (*n_bytes)--;
        }
    }
}

/* {"text", "ids", "decoded"}: the ids of the text and the text of the ids. */
static void check_golden(const qr_tokenizer *tokenizer, const qr_json *test, const qr_encode_options *options,
                         bool skip_special, bool cleaned_up) {
    size_t n_text, n_decoded, n_back;
    char *text = golden_text(qr_json_get(test, "text"), &n_text);
    char *decoded = golden_text(qr_json_get(test, "decoded"), &n_decoded);
    qr_tokens tokens = encode(tokenizer, text, n_text, options);
    check_ids(&tokens, qr_json_get(test, "ids"), text);
    char *back = decode_both_ways(tokenizer, &tokens, skip_special, &n_back);
    if (cleaned_up) { clean_up_spaces(back, &n_back); }
    const bool has_decoded = cJSON_IsString(qr_json_get(test, "decoded")); /* null: the library fails on these ids */
    CHECK_MSG(!has_decoded || (n_back == n_decoded && memcmp(back, decoded, n_back) == 0),
              "decoded \"%s\", expected \"%s\"", back, decoded);
    qr_tokens_free(&tokens);
    qr_free(back);
    qr_free(decoded);
    qr_free(text);
}

/* {"tests": [...]}. */
static void check_json_goldens(const char *tokenizer_name, const char *golden, bool add_special, bool cleaned_up) {
    qr_tokenizer *tokenizer = open_shared(tokenizer_name);
    if (tokenizer == NULL) { return; }
    char name[256];
    snprintf(name, sizeof name, "tokenizers/goldens/%s.json", golden);
    qr_json *root = read_golden(check_shared_data(name));
    size_t n_cases = 0;
    const qr_encode_options options = {.add_special = add_special, .parse_special = true};
    for (const qr_json *test = qr_json_first(qr_json_get(root, "tests")); test != NULL; test = test->next, n_cases++) {
        check_golden(tokenizer, test, &options, false, cleaned_up);
    }
    CHECK_MSG(n_cases >= 10, "%zu cases", n_cases);
    qr_json_free(root);
    qr_tokenizer_destroy(tokenizer);
}

static void test_json_llama_3(void) { check_json_goldens("llama-3.2", "llama3", false, true); }
static void test_json_llama_3_bos(void) { check_json_goldens("llama-3.2", "llama3-bos", true, true); }
static void test_json_gpt2(void) { check_json_goldens("gpt2", "gpt2", false, true); }
static void test_json_llama_2(void) { check_json_goldens("llama-2/support/token_config", "llama", true, false); }

/* --- goldens of the small tokenizers ------------------------------------------------------------------------------ */

#define FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/tokenizers"
#define RANDOM_FIXTURES QRUN_SOURCE_DIR "/tests/fixtures/random_tokenizers"

/* A tokenizer that this library does not open says what it lacks. */
static void check_refused(const char *folder, const char *message) {
    qr_error err = {0};
    qr_tokenizer *tokenizer = NULL;
    CHECK_MSG(qr_tokenizer_open(folder, &tokenizer, &err) == QRUN_ERROR_UNSUPPORTED, "%s is not refused", folder);
    CHECK_MSG(strstr(err.message, message) != NULL, "%s: \"%s\", expected \"%s\"", folder, err.message, message);
    qr_tokenizer_destroy(tokenizer);
}

static void check_fixture(const char *folder, const char *name) {
    char path[600];
    snprintf(path, sizeof path, "%s/goldens.json", folder);
    qr_json *root = read_golden(path);
    REQUIRE(root != NULL);
    const qr_json *refused = qr_json_get(root, "refused");
    if (cJSON_IsString(refused)) {
        check_refused(folder, refused->valuestring);
        qr_json_free(root);
        return;
    }
    qr_tokenizer *tokenizer = open_folder(folder);
    REQUIRE(tokenizer != NULL);
    const int failures = check_state.n_failures_in_case;
    size_t n_cases = 0;
    for (const qr_json *test = qr_json_first(qr_json_get(root, "tests")); test != NULL; test = test->next, n_cases++) {
        qr_encode_options options = {0};
        bool skip_special = false;
        REQUIRE(qr_json_get_bool(test, "add_special", &options.add_special, name, NULL) == QRUN_OK);
        REQUIRE(qr_json_get_bool(test, "parse_special", &options.parse_special, name, NULL) == QRUN_OK);
        REQUIRE(qr_json_get_bool(test, "skip_special", &skip_special, name, NULL) == QRUN_OK);
        check_golden(tokenizer, test, &options, skip_special, false);
    }
    CHECK_MSG(n_cases >= 13, "%s has %zu cases", name, n_cases);
    CHECK_MSG(failures == check_state.n_failures_in_case, "those were in %s", name);
    qr_json_free(root);
    qr_tokenizer_destroy(tokenizer);
}

static void check_fixtures(const char *path, size_t n_least) {
    DIR *folder = opendir(path);
    REQUIRE(folder != NULL);
    size_t n = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char fixture[512];
        if (entry->d_name[0] == '.') { continue; }
        snprintf(fixture, sizeof fixture, "%s/%s", path, entry->d_name);
        check_fixture(fixture, entry->d_name);
        n++;
    }
    closedir(folder);
    CHECK_MSG(n >= n_least, "%zu fixtures", n);
}

static void test_fixtures(void) { check_fixtures(FIXTURES, 24); }

/* Of random components, made by tests/golden/random_tokenizers.py, which compares many more. */
static void test_random_fixtures(void) { check_fixtures(RANDOM_FIXTURES, 40); }

static void test_lookups(void) {
    qr_tokenizer *tokenizer = open_folder(FIXTURES "/llama2");
    REQUIRE(tokenizer != NULL);
    qr_tokenizer_info info;
    qr_tokenizer_get_info(tokenizer, &info);
    CHECK_STR(info.model, "BPE");
    CHECK(info.byte_fallback && !info.byte_level && info.n_merges > 200 && info.n_added == 8 && info.n_special == 6);
    CHECK_INT(info.vocab_size, qr_tokenizer_vocab_size(tokenizer));
    size_t n;
    for (int32_t id = 0; id < info.vocab_size; id++) {
        const char *text = qr_tokenizer_token(tokenizer, id, &n);
        REQUIRE(text != NULL);
        CHECK_INT(qr_tokenizer_id(tokenizer, text, n), id);
    }
    CHECK(qr_tokenizer_token(tokenizer, -1, &n) == NULL && qr_tokenizer_token(tokenizer, info.vocab_size, &n) == NULL);
    CHECK_INT(qr_tokenizer_id(tokenizer, "no such token", 13), -1);
    CHECK(qr_tokenizer_is_special(tokenizer, 1) && !qr_tokenizer_is_special(tokenizer, 3) &&
          !qr_tokenizer_is_special(tokenizer, qr_tokenizer_id(tokenizer, "tagged", 6)));
    CHECK_INT(qr_tokenizer_unk_id(tokenizer), 0);
    CHECK_INT(qr_tokenizer_bos_id(tokenizer), -1); /* the folder has no tokenizer_config.json */
    qr_error err = {0};
    qr_buffer out = {0};
    const int32_t bad = info.vocab_size;
    CHECK_INT(qr_tokenizer_decode(tokenizer, &bad, 1, false, &out, &err), QRUN_ERROR_ARGUMENT);
    CHECK(strstr(err.message, "is not a token") != NULL);
    qr_buffer_free(&out);
    qr_tokenizer_destroy(tokenizer);
}

/* Without the care of qr_file_write, which waits for the disk. */
static void write_text(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    remove(path);
    if (text == NULL) { return; }
    FILE *file = fopen(path, "wb");
    REQUIRE(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK(fclose(file) == 0);
}

/* A folder with the tokenizer.json of a fixture, this tokenizer_config.json, and this config.json or none. */
static qr_tokenizer *open_with_configs(const char *fixture, const char *config, const char *model_config,
                                       qr_error *err) {
    char folder[] = "/tmp/qrun_test_tokenizer_XXXXXX", path[600];
    char *json = NULL;
    size_t n_bytes = 0;
    qr_tokenizer *tokenizer = NULL;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", FIXTURES, fixture);
    CHECK(qr_file_read(path, 1 << 20, &json, &n_bytes, NULL) == QRUN_OK);
    write_text(folder, "tokenizer.json", json);
    write_text(folder, "tokenizer_config.json", config);
    write_text(folder, "config.json", model_config);
    (void)qr_tokenizer_open(folder, &tokenizer, err);
    write_text(folder, "tokenizer.json", NULL);
    write_text(folder, "tokenizer_config.json", NULL);
    write_text(folder, "config.json", NULL);
    remove(folder);
    qr_free(json);
    return tokenizer;
}

static qr_tokenizer *open_with_config(const char *config, qr_error *err) {
    return open_with_configs("llama3", config, NULL, err);
}

static void test_config(void) {
    const qr_encode_options with_special = {.add_special = true, .parse_special = true};
    qr_error err = {0};
    qr_tokenizer *tokenizer = open_with_config(
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"pad_token\":\"<|tool|>\",\"unk_token\":null,"
        "\"model_max_length\":1000000000000000019884624838656,\"added_tokens_decoder\":{"
        "\"646\":{\"content\":\"<|tool|>\",\"special\":true,\"normalized\":false},"
        "\"640\":{\"content\":\"<s>\",\"special\":true,\"normalized\":false,\"rstrip\":true}}}",
        &err);
    REQUIRE(tokenizer != NULL);
    const int32_t bos = qr_tokenizer_bos_id(tokenizer), eos = qr_tokenizer_eos_id(tokenizer);
    CHECK(bos == qr_tokenizer_id(tokenizer, "<s>", 3) && eos == qr_tokenizer_id(tokenizer, "</s>", 4) && bos != eos);
    CHECK_INT(qr_tokenizer_pad_id(tokenizer), 646);
    CHECK_INT(qr_tokenizer_unk_id(tokenizer), -1);
    CHECK_INT(qr_tokenizer_vocab_size(tokenizer), 647);
    qr_tokens tokens = encode(tokenizer, "<|tool|><s>  ", 13, &with_special);
    CHECK(tokens.n == 3 && tokens.ids[0] == bos && tokens.ids[1] == 646 && tokens.ids[2] == bos);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);

    CHECK(open_with_config("{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", &err) == NULL);
    CHECK_MSG(strstr(err.message, "\"x\" is not an id") != NULL, "%s", err.message);
}

/* Tokens that tokenizer_config.json alone names: of the vocabulary, or new ones, as transformers 5 adds them. */
static void test_named_tokens(void) {
    qr_error err = {0};
    qr_tokenizer *plain_one = open_with_config("{}", &err);
    qr_tokenizer *tokenizer = open_with_config(
        "{\"bos_token\":\"<|a|>\",\"eos_token\":\"</s>\",\"pad_token\":{\"content\":\"<|p|>\",\"rstrip\":true},"
        "\"add_bos_token\":true,\"image_token\":\"<|i|>\",\"unk_token\":null,\"extra_special_tokens\":[],"
        "\"additional_special_tokens\":[\"<|b|>\",\"<|a|>\",\"z\",{\"content\":\"<|c|>\",\"lstrip\":true},7]}",
        &err);
    REQUIRE(plain_one != NULL && tokenizer != NULL);
    static const char *const added[] = {"<|a|>", "<|p|>", "<|i|>", "<|b|>", "<|c|>"}; /* in this order */
    const int32_t first = qr_tokenizer_vocab_size(plain_one), z = qr_tokenizer_id(plain_one, "z", 1);
    for (int32_t i = 0; i < 5; i++) {
        CHECK_INT(qr_tokenizer_id(tokenizer, added[i], strlen(added[i])), first + i);
        CHECK_INT(qr_tokenizer_id(plain_one, added[i], strlen(added[i])), -1);
    }
    CHECK_INT(qr_tokenizer_vocab_size(tokenizer), first + 5);
    CHECK_INT(qr_tokenizer_bos_id(tokenizer), first);
    CHECK_INT(qr_tokenizer_pad_id(tokenizer), first + 1);
    CHECK(z >= 0 && qr_tokenizer_eos_id(tokenizer) == qr_tokenizer_id(plain_one, "</s>", 4));
    static const char text[] = "z<|a|><|p|>  <|b|>  <|c|><|i|>";
    const qr_encode_options parsed = {.parse_special = true};
    qr_tokens tokens = encode(tokenizer, text, sizeof text - 1, &parsed);
    const int32_t expected[] = {z, first, first + 1, first + 3, first + 4, first + 2};
    CHECK(tokens.n == 6 && memcmp(tokens.ids, expected, sizeof expected) == 0);
    qr_tokens_free(&tokens);
    tokens = encode(tokenizer, text, sizeof text - 1, &(qr_encode_options){0});
    for (size_t i = 0; i < tokens.n; i++) { CHECK(tokens.ids[i] < first); }
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
    /* LlamaTokenizer's usual names are not added to a byte-level file, which does not have that class. */
    tokenizer = open_with_config("{\"tokenizer_class\":\"LlamaTokenizerFast\"}", &err);
    REQUIRE(tokenizer != NULL);
    CHECK_INT(qr_tokenizer_vocab_size(tokenizer), first);
    CHECK_INT(qr_tokenizer_id(tokenizer, "<unk>", 5), qr_tokenizer_id(plain_one, "<unk>", 5));
    qr_tokenizer_destroy(plain_one);
    qr_tokenizer_destroy(tokenizer);
}

/* A member and a comma; nothing where the test has no such member. */
static void append_member(qr_buffer *out, const qr_json *test, const char *key) {
    const qr_json *value = qr_json_get(test, key);
    if (cJSON_IsString(value)) { qr_buffer_append_format(out, "\"%s\":\"%s\",", key, value->valuestring); }
}

/* add_bos_token and add_eos_token are absent (0), true or false. */
static void check_added(const qr_json *test, const char *text, int add_bos, int add_eos) {
    static const char *const values[] = {"null", "true", "false"};
    const qr_encode_options with_special = {.add_special = true, .parse_special = true};
    qr_error err = {0};
    qr_buffer config = {0}, model_config = {0};
    qr_buffer_append_char(&config, '{');
    append_member(&config, test, "bos_token");
    append_member(&config, test, "eos_token");
    append_member(&config, test, "tokenizer_class");
    qr_buffer_append_format(&config, "\"add_bos_token\":%s,\"add_eos_token\":%s}", values[add_bos], values[add_eos]);
    qr_buffer_append_char(&model_config, '{');
    append_member(&model_config, test, "model_type");
    qr_buffer_append_text(&model_config, "\"tie_word_embeddings\":true}");
    const char *fixture = qr_json_get(test, "tokenizer")->valuestring;
    const bool has_model = qr_json_get(test, "model_type") != NULL;
    qr_tokenizer *tokenizer = open_with_configs(fixture, config.data, has_model ? model_config.data : NULL, &err);
    REQUIRE(tokenizer != NULL);
    const int failures = check_state.n_failures_in_case;
    qr_tokens tokens = encode(tokenizer, text, strlen(text), &with_special);
    check_ids(&tokens, qr_json_get(test, "ids"), text);
    CHECK_MSG(failures == check_state.n_failures_in_case, "with %s, %s", config.data, model_config.data);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(tokenizer);
    qr_buffer_free(&config);
    qr_buffer_free(&model_config);
}

/* What transformers adds, recorded by tests/golden/make_tokenizer_config_goldens.py. */
static void test_added_by_class(void) {
    qr_json *root = read_golden(QRUN_SOURCE_DIR "/tests/fixtures/tokenizer_configs.json");
    REQUIRE(root != NULL);
    const char *text = qr_json_get(root, "text")->valuestring;
    size_t n_tests = 0;
    for (const qr_json *test = qr_json_first(qr_json_get(root, "tests")); test != NULL; test = test->next, n_tests++) {
        for (int i = 0; i < 9; i++) { check_added(test, text, i / 3, i % 3); }
        if (check_state.n_failures_in_case > 20) { break; }
    }
    CHECK_MSG(n_tests >= 360, "%zu tests", n_tests);
    qr_json_free(root);
}

/* tokenizer_config.json of real folders: named tokens, and add_bos_token against the template of tokenizer.json. */
static void test_config_of_real_folders(void) {
    qr_tokenizer *llama = open_shared("llama-3.2");
    if (llama == NULL) { return; }
    CHECK_INT(qr_tokenizer_bos_id(llama), 128000);
    CHECK_INT(qr_tokenizer_eos_id(llama), 128009);
    qr_tokenizer *phi = open_shared("phi-3-mini");
    CHECK_INT(qr_tokenizer_bos_id(phi), 1);
    CHECK_INT(qr_tokenizer_pad_id(phi), 32000);
    const qr_encode_options with_special = {.add_special = true, .parse_special = true};
    qr_tokens tokens = encode(phi, "Hi<|end|>", 9, &with_special);
    CHECK(tokens.n == 2 && tokens.ids[1] == 32007);
    qr_tokens_free(&tokens);
    qr_tokenizer_destroy(llama);
    qr_tokenizer_destroy(phi);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_listed_llama_3);
    CHECK_RUN(test_listed_gpt2);
    CHECK_RUN(test_listed_llama_2);
    CHECK_RUN(test_listed_phi_3);
    CHECK_RUN(test_json_llama_3);
    CHECK_RUN(test_json_llama_3_bos);
    CHECK_RUN(test_json_gpt2);
    CHECK_RUN(test_json_llama_2);
    CHECK_RUN(test_fixtures);
    CHECK_RUN(test_random_fixtures);
    CHECK_RUN(test_lookups);
    CHECK_RUN(test_config);
    CHECK_RUN(test_named_tokens);
    CHECK_RUN(test_added_by_class);
    CHECK_RUN(test_config_of_real_folders);
    return check_end();
}
