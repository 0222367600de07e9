/* What other files of a model's folder add to its tokenizer.json, as in transformers 5: a class, and tokens that they
 * alone name. */
#include <stdlib.h>
#include <string.h>

#include "base/sizes.h"
#include "loaders/files/json_put.h"
#include "loaders/tokenizer/internal.h"

/* ---- The class --------------------------------------------------------------------------------------------------- */

/* model_type of families that take tokenizer.json as it is, whatever class their folders name. */
static const char *const classless[] = {
    "mistral",       "mistral3",   "ministral",        "ministral3",       "mixtral",  "phi3",          "phimoe",
    "olmo2",         "olmo3",      "olmo_hybrid",      "flex_olmo",        "qwen2",    "qwen3_5",       "qwen3_5_moe",
    "granite",       "granitemoe", "granitemoehybrid", "granitemoeshared", "glm",      "glm4",          "glm4_moe",
    "glm4_moe_lite", "glm4v",      "glm4v_moe",        "minimax_m2",       "stablelm", "internlm3",     "hyperclovax",
    "iquestcoder",   "ernie4_5",   "ernie4_5_moe",     "nemotron",         "minicpm3", "mimo_v2_flash", "kimi_linear"};

static bool has_type(const qr_json *component, const char *type) {
    const qr_json *own = qr_json_get(component, "type");
    return cJSON_IsString(own) && strcmp(own->valuestring, type) == 0;
}

/* A component, or one of its parts. */
static bool is_byte_level(const qr_json *component, const char *parts) {
    bool found = has_type(component, "ByteLevel");
    for (const qr_json *part = qr_json_first(qr_json_get(component, parts)); part != NULL && !found;
         part = part->next) {
        found = has_type(part, "ByteLevel");
    }
    return found;
}

/* DeepSeek's folders, and others like Llama 3's, say LlamaTokenizer, which transformers does not believe of them. */
static bool is_of_bytes(const qr_json *root) {
    return is_byte_level(qr_json_get(root, "pre_tokenizer"), "pretokenizers") ||
           is_byte_level(qr_json_get(root, "decoder"), "decoders");
}

const char *qr_tokenizer_class_of(const qr_json *root, const qr_json *config, const qr_json *model_config) {
    const qr_json *family = qr_json_get(model_config, "model_type"), *class = qr_json_get(config, "tokenizer_class");
    if (!cJSON_IsString(class)) { return ""; }
    if (qr_tokenizer_class_is(class->valuestring, "LlamaTokenizer") && is_of_bytes(root)) { return ""; }
    for (size_t i = 0; cJSON_IsString(family) && i < QR_COUNT_OF(classless); i++) {
        if (strcmp(family->valuestring, classless[i]) == 0) { return ""; }
    }
    return class->valuestring;
}

bool qr_tokenizer_class_is(const char *class, const char *wanted) {
    size_t n = strlen(class);
    if (n > 4 && strcmp(class + n - 4, "Fast") == 0) { n -= 4; }
    return n == strlen(wanted) && memcmp(class, wanted, n) == 0;
}

/* ---- Tokens that are named --------------------------------------------------------------------------------------- */

/* A token as added_tokens has them: from its name, or from an object with its flags. */
static void put_token(qr_buffer *out, const qr_json *value) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    const qr_json *content = cJSON_IsObject(value) ? qr_json_get(value, "content") : value;
    if (!cJSON_IsString(content)) { return; }
    qr_json_put_begin(out, NULL, '{');
    qr_json_put_text(out, "content", content->valuestring);
    qr_json_put_bool(out, "special", true);
    if (!cJSON_IsObject(value)) { qr_json_put_bool(out, "normalized", false); }
    for (size_t i = 0; i < QR_COUNT_OF(flags) && cJSON_IsObject(value); i++) {
        const qr_json *flag = qr_json_get(value, flags[i]);
        if (cJSON_IsBool(flag)) { qr_json_put_bool(out, flags[i], cJSON_IsTrue(flag)); }
    }
    qr_json_put_end(out, '}');
}

static void put_tokens(qr_buffer *out, const qr_json *values) {
    for (const qr_json *value = qr_json_first(values); value != NULL; value = value->next) { put_token(out, value); }
}

static const char *const named[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

static bool is_named(const char *key) {
    for (size_t i = 0; i < QR_COUNT_OF(named); i++) {
        if (strcmp(key, named[i]) == 0) { return true; }
    }
    return false;
}

/* "image_token": "<image>", a model's own. */
static bool is_own(const qr_json *member) {
    static const char ending[] = "_token";
    const size_t n = member->string != NULL ? strlen(member->string) : 0, n_ending = sizeof ending - 1;
    return n > n_ending && strcmp(member->string + n - n_ending, ending) == 0 && cJSON_IsString(member) &&
           !is_named(member->string);
}

static int compare_ids(const void *a, const void *b) {
    const double first = (*(const qr_json *const *)a)->valuedouble, second = (*(const qr_json *const *)b)->valuedouble;
    return (first > second) - (first < second);
}

/* {"<tool>": 32001}: of older folders, in the order of the ids. */
static qrun_status put_added(qr_buffer *out, const qr_json *added, qr_error *err) {
    const size_t n = cJSON_IsObject(added) ? qr_json_count(added) : 0;
    size_t n_items = 0;
    if (n == 0) { return QRUN_OK; }
    const qr_json **items = qr_alloc_array(n, sizeof(const qr_json *));
    if (items == NULL) { return qr_fail_memory(err, "the added tokens", n * sizeof(const qr_json *)); }
    for (const qr_json *item = qr_json_first(added); item != NULL; item = item->next) {
        if (cJSON_IsNumber(item)) { items[n_items++] = item; }
    }
    qsort(items, n_items, sizeof(const qr_json *), compare_ids);
    for (size_t i = 0; i < n_items; i++) {
        qr_json_put_begin(out, NULL, '{');
        qr_json_put_text(out, "content", items[i]->string);
        qr_json_put_end(out, '}');
    }
    qr_free(items);
    return QRUN_OK;
}

/* What LlamaTokenizer calls a token that its folder does not name. */
static const char *usual_name(const char *key) {
    return strcmp(key, "bos_token") == 0 ? "<s>" : strcmp(key, "eos_token") == 0 ? "</s>" : "<unk>";
}

qrun_status qr_tokenizer_named_tokens(const qr_tokenizer_files *files, qr_json **list, qr_error *err) {
    enum { N_OF_LLAMA = 3 }; /* the first of `named` */
    static const char *const lists[] = {"extra_special_tokens", "additional_special_tokens"};
    const qr_json *config = files->config;
    const bool has_list = cJSON_IsObject(qr_json_get(config, "added_tokens_decoder"));
    const qr_json *specials = has_list ? NULL : files->specials;
    const bool is_llama = qr_tokenizer_class_is(files->class, "LlamaTokenizer");
    qr_buffer text = {0};
    *list = NULL;
    qr_json_put_begin(&text, NULL, '[');
    qrun_status status = has_list ? QRUN_OK : put_added(&text, files->added, err);
    for (size_t i = 0; i < QR_COUNT_OF(named); i++) {
        const qr_json *own = qr_json_get(specials, named[i]),
                      *value = own != NULL ? own : qr_json_get(config, named[i]);
        const qr_json usual = {.type = cJSON_String, .valuestring = (char *)usual_name(named[i])};
        put_token(&text, value == NULL && is_llama && i < N_OF_LLAMA ? &usual : value);
    }
    for (const qr_json *member = qr_json_first(config); member != NULL; member = member->next) {
        if (is_own(member)) { put_token(&text, member); }
    }
    for (size_t i = 0; i < QR_COUNT_OF(lists); i++) {
        put_tokens(&text, qr_json_get(config, lists[i]));
        put_tokens(&text, qr_json_get(specials, lists[i]));
    }
    qr_json_put_end(&text, ']');
    if (status == QRUN_OK && !qr_buffer_ok(&text)) { status = qr_fail_memory(err, "the special tokens", text.size); }
    if (status == QRUN_OK) { status = qr_json_parse(text.data, text.size, "the special tokens", list, err); }
    qr_buffer_free(&text);
    return status;
}
