/* The input is a data file. In each of its examples that is accepted, as one or as a pair of answers, no target comes
 * first, tokens are the tokenizer's, and the counts add up; the same again in the same room. One input in PER_FILE,
 * chosen by its content, is also written and opened as a file: then every example has a target, and the second opening
 * finds the same in the cache. And it is the inside of a cache file with the right sum, which is refused or can be read
 * to the end. Files cost thirty times as much as the examples in them. */
#include "base/folder.h"
#include "base/random.h"
#include "fuzz.h"
#include "loaders/data/cache.h"
#include "loaders/data/dataset.h"
#include "loaders/data/example.h"
#include "loaders/data/source.h"

enum { SEQ_LEN = 64, PER_FILE = 64 };

static const char TOKENIZER[] =
    "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\","
    "\"merges\":[\"a b\",\"\xE2\x96\x81 a\"],"
    "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\xE2\x96\x81\":3,\"ab\":4,\"\xE2\x96\x81\x61\":5,"
    "\"<0xC3>\":6,\"<0xA9>\":7,"
    "\"<\":8,\">\":9}},\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
    "\"content\":\"\xE2\x96\x81\"},"
    "\"added_tokens\":[{\"id\":10,\"content\":\"<e>\",\"special\":true,\"rstrip\":true}],"
    "\"decoder\":{\"type\":\"Sequence\","
    "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}";
static const char TEMPLATE[] =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('b')[-1] }}{% else %}{{ m.content | trim }}{% endif %}<e>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

static qr_tokenizer *tokenizer;
static qr_chat_template *chat_template;
static qr_example_encoder encoder, pair_encoder;

static void make_model(void) {
    if (tokenizer != NULL) { return; }
    const qr_dataset_options options = {.seq_len = SEQ_LEN};
    FUZZ_CHECK(qr_tokenizer_parse(TOKENIZER, sizeof TOKENIZER - 1, "fuzz", &tokenizer, NULL) == QRUN_OK);
    FUZZ_CHECK(qr_chat_template_parse(TEMPLATE, sizeof TEMPLATE - 1, "fuzz", &chat_template, NULL) == QRUN_OK);
    const qr_dataset_options of_pairs = {.seq_len = SEQ_LEN, .preferences = true};
    FUZZ_CHECK(qr_example_encoder_create(&options, tokenizer, chat_template, &encoder, NULL) == QRUN_OK);
    FUZZ_CHECK(qr_example_encoder_create(&of_pairs, tokenizer, chat_template, &pair_encoder, NULL) == QRUN_OK);
}

/* ---- examples ---------------------------------------------------------------------------------------------------- */

static int64_t check_tokens(const int32_t *ids, const uint8_t *is_target, int64_t n) {
    int64_t n_targets = 0;
    FUZZ_CHECK(n <= SEQ_LEN && (n == 0 || is_target[0] == 0));
    for (int64_t t = 0; t < n; t++) {
        FUZZ_CHECK(ids[t] >= 0 && ids[t] < qr_tokenizer_vocab_size(tokenizer) && is_target[t] <= 1);
        n_targets += is_target[t];
    }
    return n_targets;
}

/* Of a pair: the targets of each answer; 0 where one of them has none. */
static int64_t check_pair(const int32_t *ids, const uint8_t *is_target, int64_t n, int64_t n_chosen) {
    FUZZ_CHECK(n_chosen >= 0 && n_chosen <= n && n <= SEQ_LEN);
    const int64_t chosen = check_tokens(ids, is_target, n_chosen);
    const int64_t rejected = check_tokens(ids + n_chosen, is_target + n_chosen, n - n_chosen);
    return chosen > 0 && rejected > 0 ? chosen + rejected : 0;
}

/* A status and a hash of the tokens. */
static uint64_t encode(const qr_example_encoder *by, const qr_json *root, qr_encoded_example *example) {
    qr_error err = {0};
    const qrun_status status = qr_example_encode(by, root, example, &err);
    FUZZ_CHECK((status == QRUN_OK) == (err.message[0] == '\0'));
    if (status != QRUN_OK) { return (uint64_t)-status; }
    const int64_t n = (int64_t)example->tokens.n;
    const uint8_t *is_target = (const uint8_t *)example->is_target.data;
    FUZZ_CHECK(by->preferences || example->n_chosen == 0);
    FUZZ_CHECK((by->preferences ? check_pair(example->tokens.ids, is_target, n, example->n_chosen)
                                : check_tokens(example->tokens.ids, is_target, n)) == example->n_targets);
    const uint64_t hash = qr_hash_bytes(QR_HASH_START, example->tokens.ids, (size_t)n * sizeof(int32_t));
    return qr_hash_bytes(hash, is_target, (size_t)n);
}

static void check_examples(const uint8_t *data, size_t size) {
    static qr_encoded_example example;
    qr_dataset_source source = {0};
    bool found = qr_dataset_source_open_text(&source, "data", (const char *)data, size, NULL) == QRUN_OK;
    for (qr_dataset_piece piece; found && qr_dataset_source_next(&source, &piece, &found, NULL) == QRUN_OK && found;) {
        qr_json *root = NULL;
        if (qr_dataset_piece_parse(&source, &piece, &root, NULL) == QRUN_OK) {
            FUZZ_CHECK(encode(&encoder, root, &example) == encode(&encoder, root, &example));
            FUZZ_CHECK(encode(&pair_encoder, root, &example) == encode(&pair_encoder, root, &example));
        }
        qr_json_free(root);
    }
    qr_dataset_source_close(&source);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void check_dataset(const qr_dataset *dataset) {
    const qr_dataset_info *info = qr_dataset_get_info(dataset);
    int64_t n_tokens = 0, n_targets = 0;
    FUZZ_CHECK(info->n_examples > 0);
    for (int64_t i = 0; i < info->n_examples; i++) {
        const qr_example example = qr_dataset_get(dataset, i);
        const int64_t n = example.n_chosen > 0
                              ? check_pair(example.ids, example.is_target, example.n_tokens, example.n_chosen)
                              : check_tokens(example.ids, example.is_target, example.n_tokens);
        FUZZ_CHECK(example.n_tokens >= 2 && n > 0 && n == example.n_targets);
        qr_buffer shown = {0};
        FUZZ_CHECK(qr_dataset_show(dataset, i, "[", "]", &shown, NULL) == QRUN_OK);
        qr_buffer_free(&shown);
        n_tokens += example.n_tokens;
        n_targets += n;
    }
    FUZZ_CHECK(n_tokens == info->n_tokens && n_targets == info->n_targets);
}

static void check_file(const char *path, const char *cache_folder, bool skip_bad, bool preferences) {
    const qr_dataset_options options = {.path = path,
                                        .cache_folder = cache_folder,
                                        .model_folder = cache_folder,
                                        .seq_len = SEQ_LEN,
                                        .skip_bad = skip_bad,
                                        .preferences = preferences};
    qr_dataset *dataset, *again;
    qr_error err = {0};
    const qrun_status status = qr_dataset_open(&options, tokenizer, chat_template, &dataset, &err);
    FUZZ_CHECK((status == QRUN_OK) == (dataset != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (dataset == NULL) { return; }
    check_dataset(dataset);
    FUZZ_CHECK(skip_bad || qr_dataset_get_info(dataset)->n_bad == 0);
    FUZZ_CHECK(qr_dataset_open(&options, tokenizer, chat_template, &again, &err) == QRUN_OK);
    FUZZ_CHECK(qr_dataset_get_info(again)->from_cache == 1);
    FUZZ_CHECK(qr_dataset_count(again) == qr_dataset_count(dataset));
    qr_dataset_close(again);
    qr_dataset_close(dataset);
}

/* The input between the head of a cache file and the right sum. */
static void check_cache(const uint8_t *data, size_t size) {
    static const char head[16] = "QRDATA03"; /* and the key: 0 */
    qr_buffer bytes = {0};
    qr_cache cache;
    qr_buffer_append(&bytes, head, sizeof head);
    qr_buffer_append(&bytes, data, size);
    FUZZ_CHECK(qr_buffer_ok(&bytes));
    const uint64_t sum = qr_hash_bytes(QR_HASH_START, bytes.data, bytes.size);
    qr_buffer_append(&bytes, &sum, sizeof sum);
    FUZZ_CHECK(qr_buffer_ok(&bytes));
    uint64_t hash = 0;
    if (qr_cache_open(&cache, fuzz_file("cache.qrdata", bytes.data, bytes.size), 0, NULL) == QRUN_OK) {
        for (int64_t i = 0; i < cache.info.n_examples; i++) {
            const qr_example example = qr_cache_get(&cache, i);
            hash = qr_hash_bytes(hash, example.ids, (size_t)example.n_tokens * sizeof *example.ids);
            hash = qr_hash_bytes(hash, example.is_target, (size_t)example.n_tokens);
        }
        qr_cache_close(&cache);
    }
    FUZZ_CHECK(hash != 1); /* so that it is computed */
    qr_buffer_free(&bytes);
    fuzz_file_remove("cache.qrdata");
}

static void check_files(const uint8_t *data, size_t size) {
    char cache_folder[128];
    const char *path = fuzz_file("data", data, size);
    snprintf(cache_folder, sizeof cache_folder, "%s/cache", fuzz_folder());
    check_file(path, cache_folder, false, false);
    check_file(path, cache_folder, true, false);
    check_file(path, cache_folder, true, true);
    FUZZ_CHECK(qr_folder_create(cache_folder, NULL) == QRUN_OK && qr_folder_mark(cache_folder, NULL) == QRUN_OK);
    FUZZ_CHECK(qr_folder_remove_marked(cache_folder, NULL) == QRUN_OK);
    fuzz_file_remove("data");
    check_cache(data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    make_model();
    check_examples(data, size);
    if (qr_hash_mix(qr_hash_bytes(QR_HASH_START, data, size)) % PER_FILE == 0) { check_files(data, size); }
    return 0;
}
