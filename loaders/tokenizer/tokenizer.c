/* Opening a tokenizer and looking things up in it. */
#include "loaders/tokenizer/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/source/model_source.h"
#include "loaders/tokenizer/internal.h"

enum { MAX_FILE_BYTES = 512 << 20, MAX_CONFIG_BYTES = 64 << 20 };

/* What other files of the folder say. */
typedef struct folder_says {
    const qr_json *config; /* tokenizer_config.json; NULL: there is none */
    const qr_json *named;  /* as qr_tokenizer_load_added has them, as the next */
    bool raw_specials;
} folder_says;

static qrun_status load(qr_tokenizer *tokenizer, const qr_json *root, const folder_says *says, const char *what,
                        qr_error *err) {
    if (!cJSON_IsObject(root)) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: not a JSON object", what); }
    QR_RETURN_IF_ERROR(qr_regex_context_create(&tokenizer->regex, err));
    QR_RETURN_IF_ERROR(qr_tokenizer_load_model(tokenizer, qr_json_get(root, "model"), what, err));
    QR_RETURN_IF_ERROR(qr_tokenizer_load_added(tokenizer, qr_json_get(root, "added_tokens"),
                                               qr_json_get(says->config, "added_tokens_decoder"), says->named,
                                               says->raw_specials, what, err));
    QR_RETURN_IF_ERROR(qr_tokenizer_load_components(tokenizer, root, what, err));
    QR_RETURN_IF_ERROR(qr_tokenizer_load_post_processor(tokenizer, qr_json_get(root, "post_processor"), what, err));
    QR_RETURN_IF_ERROR(qr_tokenizer_index_added(tokenizer, err));
    tokenizer->unk_id = tokenizer->model_unk_id;
    return QRUN_OK;
}

static qrun_status create(const qr_json *root, const folder_says *says, const char *what, qr_tokenizer **tokenizer,
                          qr_error *err) {
    *tokenizer = NULL;
    qr_tokenizer *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the tokenizer", sizeof *made); }
    made->bos_id = made->eos_id = made->pad_id = made->unk_id = -1;
    const qrun_status status = load(made, root, says, what, err);
    if (status != QRUN_OK) {
        qr_tokenizer_destroy(made);
        return status;
    }
    *tokenizer = made;
    return QRUN_OK;
}

qrun_status qr_tokenizer_parse(const char *text, size_t n_bytes, const char *what, qr_tokenizer **tokenizer,
                               qr_error *err) {
    qr_json *root = NULL;
    *tokenizer = NULL;
    qrun_status status = qr_json_parse(text, n_bytes, what, &root, err);
    if (status == QRUN_OK) { status = create(root, &(folder_says){0}, what, tokenizer, err); }
    qr_json_free(root);
    return status;
}

void qr_tokenizer_destroy(qr_tokenizer *tokenizer) {
    if (tokenizer == NULL) { return; }
    qr_tokenizer_free_components(tokenizer);
    qr_tokenizer_free_added(tokenizer);
    qr_tokenizer_free_model(tokenizer);
    qr_regex_context_free(&tokenizer->regex);
    qr_free(tokenizer);
}

/* --- the folder's other files ------------------------------------------------------------------------------------- */

/* "bos_token": "<s>" or {"content": "<s>", …}; a text that is not a token leaves *id unchanged. */
static void read_named_token(const qr_tokenizer *tokenizer, const qr_json *config, const char *key, int32_t *id) {
    const qr_json *value = qr_json_get(config, key);
    if (cJSON_IsObject(value)) { value = qr_json_get(value, "content"); }
    if (!cJSON_IsString(value)) { return; }
    const int32_t found = qr_tokenizer_id(tokenizer, value->valuestring, strlen(value->valuestring));
    if (found >= 0) { *id = found; }
}

/* Two classes of transformers 5 make a post-processor of their own. All others that go with the supported families take
 * that of tokenizer.json, whatever add_bos_token and add_eos_token say. */
static qrun_status read_class(qr_tokenizer *tokenizer, const char *class, qr_error *err) {
    const bool adds_bos = qr_tokenizer_class_is(class, "CodeLlamaTokenizer");
    if (!adds_bos && !qr_tokenizer_class_is(class, "GPTNeoXTokenizer")) { return QRUN_OK; }
    tokenizer->prefix.n = 0;
    tokenizer->suffix.n = 0;
    const int32_t bos = tokenizer->bos_id >= 0 ? tokenizer->bos_id : qr_tokenizer_id(tokenizer, "<s>", 3);
    return adds_bos && bos >= 0 ? qr_tokens_push(&tokenizer->prefix, bos, err) : QRUN_OK;
}

static void read_named_tokens(qr_tokenizer *tokenizer, const qr_json *config) {
    read_named_token(tokenizer, config, "bos_token", &tokenizer->bos_id);
    read_named_token(tokenizer, config, "eos_token", &tokenizer->eos_id);
    read_named_token(tokenizer, config, "pad_token", &tokenizer->pad_id);
    read_named_token(tokenizer, config, "unk_token", &tokenizer->unk_id);
}

/* Of LlamaTokenizer, where the folder does not name them. */
static void read_usual_tokens(qr_tokenizer *tokenizer) {
    tokenizer->bos_id = qr_tokenizer_id(tokenizer, "<s>", 3);
    tokenizer->eos_id = qr_tokenizer_id(tokenizer, "</s>", 4);
    tokenizer->unk_id = qr_tokenizer_id(tokenizer, "<unk>", 5);
}

/* *root stays NULL where the model has no such file. */
static qrun_status read_optional(const char *folder, const char *name, qr_json **root, qr_error *err) {
    return qr_source_read_json(folder, name, MAX_CONFIG_BYTES, root, NULL, err);
}

qrun_status qr_tokenizer_open(const char *folder, qr_tokenizer **tokenizer, qr_error *err) {
    qr_json *root = NULL, *specials = NULL, *config = NULL, *added = NULL, *model_config = NULL, *named = NULL;
    qrun_status status;
    char *path = NULL;
    *tokenizer = NULL;
    QR_TRY(qr_source_read_json(folder, "tokenizer.json", MAX_FILE_BYTES, &root, &path, err));
    if (root == NULL) {
        QR_TRY(qr_fail(err, QRUN_ERROR_NOT_FOUND,
                       "%s: no such file; a model folder needs a tokenizer.json (a "
                       "tokenizer.model alone is not read: save the tokenizer with transformers to get one)",
                       path));
    }
    QR_TRY(read_optional(folder, "special_tokens_map.json", &specials, err));
    QR_TRY(read_optional(folder, "tokenizer_config.json", &config, err));
    QR_TRY(read_optional(folder, "added_tokens.json", &added, err));
    QR_TRY(read_optional(folder, "config.json", &model_config, err));
    const char *class = qr_tokenizer_class_of(root, config, model_config);
    const bool is_llama = qr_tokenizer_class_is(class, "LlamaTokenizer");
    if (qr_file_is_folder(folder)) { /* a GGUF file says all of it in one place */
        const qr_tokenizer_files files = {class, config, specials, added};
        QR_TRY(qr_tokenizer_named_tokens(&files, &named, err));
    }
    QR_TRY(create(root, &(folder_says){config, named, is_llama}, path, tokenizer, err));
    if (is_llama) { read_usual_tokens(*tokenizer); }
    /* special_tokens_map.json counts where tokenizer_config.json does not list the added tokens. */
    const bool config_is_last = cJSON_IsObject(qr_json_get(config, "added_tokens_decoder"));
    read_named_tokens(*tokenizer, config_is_last ? specials : config);
    read_named_tokens(*tokenizer, config_is_last ? config : specials);
    QR_TRY(read_class(*tokenizer, class, err));
out:
    if (status != QRUN_OK) {
        qr_tokenizer_destroy(*tokenizer);
        *tokenizer = NULL;
    }
    qr_json_free(root);
    qr_json_free(specials);
    qr_json_free(config);
    qr_json_free(added);
    qr_json_free(model_config);
    qr_json_free(named);
    qr_free(path);
    return status;
}

/* --- lookups ------------------------------------------------------------------------------------------------------ */

int32_t qr_tokenizer_vocab_size(const qr_tokenizer *tokenizer) { return tokenizer->n_ids; }

int32_t qr_tokenizer_id(const qr_tokenizer *tokenizer, const char *text, size_t n_bytes) {
    const int32_t index = qr_tokenizer_find_added(tokenizer, text, n_bytes);
    return index >= 0 ? tokenizer->added[index].id : qr_vocab_find(&tokenizer->vocab, text, n_bytes);
}

const char *qr_tokenizer_token(const qr_tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    if (id < 0 || id >= tokenizer->n_ids) { return NULL; }
    const int32_t index = tokenizer->added_of_id[id];
    if (index < 0) { return qr_vocab_text(&tokenizer->vocab, id, n_bytes); }
    *n_bytes = tokenizer->added[index].n_content;
    return tokenizer->added[index].content;
}

bool qr_tokenizer_is_added(const qr_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->n_ids && tokenizer->added_of_id[id] >= 0;
}

bool qr_tokenizer_is_special(const qr_tokenizer *tokenizer, int32_t id) {
    const int32_t index = id >= 0 && id < tokenizer->n_ids ? tokenizer->added_of_id[id] : -1;
    return index >= 0 && tokenizer->added[index].special;
}

int32_t qr_tokenizer_bos_id(const qr_tokenizer *tokenizer) { return tokenizer->bos_id; }
int32_t qr_tokenizer_eos_id(const qr_tokenizer *tokenizer) { return tokenizer->eos_id; }
int32_t qr_tokenizer_pad_id(const qr_tokenizer *tokenizer) { return tokenizer->pad_id; }
int32_t qr_tokenizer_unk_id(const qr_tokenizer *tokenizer) { return tokenizer->unk_id; }

static bool is_byte_level(const qr_tokenizer *tokenizer) {
    for (size_t i = 0; i < tokenizer->n_pretokenizers; i++) {
        if (tokenizer->pretokenizers[i].kind == QR_PRETOKENIZE_BYTE_LEVEL) { return true; }
    }
    for (size_t i = 0; i < tokenizer->n_normalizers; i++) {
        if (tokenizer->normalizers[i].kind == QR_NORMALIZE_BYTE_LEVEL) { return true; }
    }
    return false;
}

void qr_tokenizer_get_info(const qr_tokenizer *tokenizer, qr_tokenizer_info *info) {
    static const char *const models[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    *info = (qr_tokenizer_info){.model = models[tokenizer->model],
                                .byte_level = is_byte_level(tokenizer),
                                .byte_fallback = tokenizer->byte_fallback,
                                .vocab_size = tokenizer->n_ids,
                                .n_added = (int32_t)tokenizer->n_added,
                                .n_merges = tokenizer->bpe.n_merges};
    for (size_t i = 0; i < tokenizer->n_added; i++) { info->n_special += tokenizer->added[i].special ? 1 : 0; }
}
