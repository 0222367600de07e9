/* The input is a data file. In an accepted one every example has a target, no target comes first, tokens are the
 * tokenizer's, the counts add up, and the second opening finds the same in the cache. A damaged cache file, made of the
 * input, is as good as none. */
#include "fuzz.h"
#include "loaders/data/cache.h"
#include "loaders/data/dataset.h"

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

static void make_model(void) {
    if (tokenizer != NULL) { return; }
    FUZZ_CHECK(qr_tokenizer_parse(TOKENIZER, sizeof TOKENIZER - 1, "fuzz", &tokenizer, NULL) == QRUN_OK);
    FUZZ_CHECK(qr_chat_template_parse(TEMPLATE, sizeof TEMPLATE - 1, "fuzz", &chat_template, NULL) == QRUN_OK);
}

static void check_dataset(const qr_dataset *dataset, int64_t seq_len) {
    const qr_dataset_info *info = qr_dataset_get_info(dataset);
    int64_t n_tokens = 0, n_targets = 0;
    FUZZ_CHECK(info->n_examples > 0);
    for (int64_t i = 0; i < info->n_examples; i++) {
        const qr_example example = qr_dataset_get(dataset, i);
        int64_t n = 0;
        FUZZ_CHECK(example.n_tokens >= 2 && example.n_tokens <= seq_len && example.is_target[0] == 0);
        for (int64_t t = 0; t < example.n_tokens; t++) {
            FUZZ_CHECK(example.ids[t] >= 0 && example.ids[t] < qr_tokenizer_vocab_size(tokenizer));
            FUZZ_CHECK(example.is_target[t] <= 1);
            n += example.is_target[t];
        }
        FUZZ_CHECK(n > 0 && n == example.n_targets);
        qr_buffer shown = {0};
        FUZZ_CHECK(qr_dataset_show(dataset, i, "[", "]", &shown, NULL) == QRUN_OK);
        qr_buffer_free(&shown);
        n_tokens += example.n_tokens;
        n_targets += n;
    }
    FUZZ_CHECK(n_tokens == info->n_tokens && n_targets == info->n_targets);
}

static void check_file(const char *path, const char *cache_folder, bool skip_bad) {
    const qr_dataset_options options = {
        .path = path, .cache_folder = cache_folder, .model_folder = cache_folder, .seq_len = 64, .skip_bad = skip_bad};
    qr_dataset *dataset, *again;
    qr_error err = {0};
    const qrun_status status = qr_dataset_open(&options, tokenizer, chat_template, &dataset, &err);
    FUZZ_CHECK((status == QRUN_OK) == (dataset != NULL) && (status == QRUN_OK) == (err.message[0] == '\0'));
    if (dataset == NULL) { return; }
    check_dataset(dataset, options.seq_len);
    FUZZ_CHECK(skip_bad || qr_dataset_get_info(dataset)->n_bad == 0);
    FUZZ_CHECK(qr_dataset_open(&options, tokenizer, chat_template, &again, &err) == QRUN_OK);
    FUZZ_CHECK(qr_dataset_get_info(again)->from_cache == 1);
    FUZZ_CHECK(qr_dataset_count(again) == qr_dataset_count(dataset));
    qr_dataset_close(again);
    qr_dataset_close(dataset);
}

static void check_cache(const char *path) {
    qr_cache cache;
    if (qr_cache_open(&cache, path, 0, NULL) == QRUN_OK) { qr_cache_close(&cache); }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char cache_folder[128];
    make_model();
    const char *path = fuzz_file("data", data, size);
    snprintf(cache_folder, sizeof cache_folder, "%s/cache", fuzz_folder());
    check_file(path, cache_folder, false);
    check_file(path, cache_folder, true);
    check_cache(path);
    FUZZ_CHECK(qr_folder_remove_flat(cache_folder, NULL) == QRUN_OK);
    fuzz_file_remove("data");
    return 0;
}
