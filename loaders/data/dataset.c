/* Opening a data set: found in its cache, or tokenised into it, some examples at a time on every thread. What a file
 * gives does not depend on the number of threads: examples are taken in order, and so is the first that is bad. */
#include "loaders/data/dataset.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/data/cache.h"
#include "loaders/data/example.h"
#include "loaders/data/source.h"

struct qr_dataset {
    qr_cache cache;
    uint64_t data_hash, tokenizer_hash; /* random tokens: 0 */
    const qr_tokenizer *tokenizer;      /* NULL: random tokens */
    unsigned char *random;              /* what the cache lies in instead of a map */
};

/* ---- what the tokens depend on ----------------------------------------------------------------------------------- */

/* Changes with anything that would make other tokens of the same files. */
static const char KEY_VERSION[] = "qrun tokenised data 2";

static uint64_t hash_text(uint64_t hash, const char *text) {
    return text != NULL ? qr_hash_bytes(hash, text, strlen(text) + 1) : qr_hash_bytes(hash, "\xFF", 1);
}

static qrun_status hash_file(const char *folder, const char *name, uint64_t *hash, qr_error *err) {
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    qr_file_map map = {0};
    const bool exists = qr_file_exists(path);
    const qrun_status status = exists ? qr_file_map_open(path, &map, err) : QRUN_OK;
    const uint64_t size = exists ? map.size : UINT64_MAX;
    *hash = qr_hash_bytes(*hash, &size, sizeof size);
    *hash = qr_hash_bytes(*hash, map.data, map.size);
    qr_file_map_close(&map);
    qr_free(path);
    return status;
}

static qrun_status tell_progress(const qr_dataset_options *options, size_t done, size_t total, qr_error *err) {
    const bool continues =
        options->progress == NULL || options->progress(options->progress_user, (int64_t)done, (int64_t)total);
    return continues ? QRUN_OK : qr_fail(err, QRUN_ERROR_CANCELLED, "reading %s was cancelled", options->path);
}

/* Piece by piece, so that it can be cancelled; nothing counts as done before it is tokenised. */
static qrun_status hash_data(const qr_dataset_options *options, const qr_file_map *data, uint64_t *hash,
                             qr_error *err) {
    const size_t piece = (size_t)1 << 26;
    *hash = QR_HASH_START;
    for (size_t at = 0; at < data->size; at += piece) {
        *hash = qr_hash_bytes(*hash, data->data + at, data->size - at < piece ? data->size - at : piece);
        QR_RETURN_IF_ERROR(tell_progress(options, 0, data->size, err));
    }
    return QRUN_OK;
}

/* What the tokens depend on apart from the data: tokenizer and template. */
static qrun_status hash_tokenizer(const qr_dataset_options *options, uint64_t *hash, qr_error *err) {
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "chat_template.jinja"};
    *hash = hash_text(QR_HASH_START, options->template_arguments);
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        QR_RETURN_IF_ERROR(hash_file(options->model_folder, names[i], hash, err));
    }
    return QRUN_OK;
}

static uint64_t make_key(const qr_dataset_options *options, const qr_dataset *dataset, size_t n_bytes) {
    const uint64_t numbers[] = {(uint64_t)options->seq_len, (uint64_t)options->now, n_bytes, dataset->data_hash,
                                dataset->tokenizer_hash};
    const uint64_t hash = qr_hash_bytes(QR_HASH_START, KEY_VERSION, sizeof KEY_VERSION);
    return qr_hash_mix(qr_hash_bytes(hash, numbers, sizeof numbers));
}

/* ---- tokenising -------------------------------------------------------------------------------------------------- */

enum { BATCH = 256 };

typedef struct build_item {
    qr_dataset_piece piece;
    qr_encoded_example example;
    qrun_status status;
    qr_error err;
} build_item;

typedef struct build {
    const qr_dataset_options *options;
    const qr_example_encoder *encoder;
    qr_dataset_source *source;
    qr_cache_writer *writer;
    build_item *items; /* [BATCH] */
    int64_t n_items;
    qr_dataset_info info;
    int64_t n_pieces;       /* examples of the file so far, of every kind */
    int64_t n_out_of_reach; /* of those without a target: all they had lay beyond seq_len */
} build;

static void encode_item(void *arg, int64_t index, int worker) {
    const build *b = arg;
    build_item *item = &b->items[index];
    qr_json *root = NULL;
    (void)worker;
    qr_error_clear(&item->err);
    item->status = qr_dataset_piece_parse(b->options->path, &item->piece, &root, &item->err);
    if (item->status == QRUN_OK) {
        item->status = qr_example_encode(b->encoder, root, &item->example, &item->err);
        char position[512];
        snprintf(position, sizeof position, "%s:%lld", b->options->path, (long long)item->piece.line);
        qr_error_prefix(&item->err, position);
    }
    qr_json_free(root);
}

static qrun_status check_format(const build *b, build_item *item) {
    const qr_dataset_format format = item->example.format;
    if (b->info.format < 0 || (int32_t)format == b->info.format) { return QRUN_OK; }
    return qr_fail(&item->err, QRUN_ERROR_INPUT,
                   "%s:%lld: this example is of the format \"%s\", and those before it "
                   "are of \"%s\"; put each format in its own file",
                   b->options->path, (long long)item->piece.line, qr_dataset_format_name(format),
                   qr_dataset_format_name((qr_dataset_format)b->info.format));
}

static qrun_status refuse(build *b, const build_item *item, qr_error *err) {
    if (item->status != QRUN_ERROR_INPUT) { return qr_fail(err, item->status, "%s", item->err.message); }
    if (!b->options->skip_bad) {
        return qr_fail(err, item->status, "%s; `skip_bad` leaves such examples out", item->err.message);
    }
    if (b->info.n_bad++ == 0) { memcpy(b->info.first_bad, item->err.message, sizeof b->info.first_bad); }
    return QRUN_OK;
}

static qrun_status take_item(build *b, build_item *item, qr_error *err) {
    const qr_encoded_example *example = &item->example;
    b->n_pieces++;
    if (item->status == QRUN_OK) { item->status = check_format(b, item); }
    if (item->status != QRUN_OK) { return refuse(b, item, err); }
    qr_dataset_info *info = &b->info;
    info->format = (int32_t)example->format;
    info->n_truncated += example->n_cut_tokens > 0 ? 1 : 0;
    info->n_cut_tokens += example->n_cut_tokens;
    if (example->n_targets == 0) {
        info->n_without_target++;
        b->n_out_of_reach += example->n_cut_targets > 0 ? 1 : 0;
        return QRUN_OK;
    }
    const qr_example made = {example->tokens.ids, (const uint8_t *)example->is_target.data, (int64_t)example->tokens.n,
                             example->n_targets, item->piece.line};
    info->n_examples++;
    info->n_tokens += made.n_tokens;
    info->n_targets += made.n_targets;
    info->longest_tokens = qr_max(info->longest_tokens, made.n_tokens);
    return qr_cache_writer_add(b->writer, &made, err);
}

/* Why there is nothing to train on. */
static qrun_status refuse_nothing(const build *b, qr_error *err) {
    const char *path = b->options->path;
    const qr_dataset_info *info = &b->info;
    if (b->n_pieces == 0) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: holds no examples", path); }
    if (info->n_bad == 1 && b->n_pieces == 1) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: its only example cannot be used: %s", path, info->first_bad);
    }
    if (info->n_bad == b->n_pieces) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: none of its %lld examples can be used; the first: %s", path,
                       (long long)b->n_pieces, info->first_bad);
    }
    if (b->n_out_of_reach > 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: no token is a target: what should be learned lies beyond the first "
                       "%lld tokens of every example; take a longer `seq_len`",
                       path, (long long)b->options->seq_len);
    }
    const char *reason = info->format == QR_DATASET_MESSAGES ? "no conversation has an answer of the role \"assistant\""
                         : info->format == QR_DATASET_SHAREGPT ? "no conversation has an answer from \"gpt\""
                                                               : "there is no text to learn in any example";
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: no token is a target: %s", path, reason);
}

/* Fills b->items; *found is false after the last piece of the file. */
static qrun_status read_batch(build *b, bool *found, qr_error *err) {
    for (b->n_items = 0; b->n_items < BATCH && *found;) {
        QR_RETURN_IF_ERROR(qr_dataset_source_next(b->source, &b->items[b->n_items].piece, found, err));
        if (*found) { b->n_items++; }
    }
    return QRUN_OK;
}

static qrun_status encode_all(build *b, qr_error *err) {
    const qr_dataset_options *options = b->options;
    for (bool found = true; found;) {
        qr_error source_err = {0};
        const qrun_status read = read_batch(b, &found, &source_err);
        qr_threads_run(options->threads, b->n_items, encode_item, b);
        for (int64_t i = 0; i < b->n_items; i++) { QR_RETURN_IF_ERROR(take_item(b, &b->items[i], err)); }
        if (read != QRUN_OK) { QR_RETURN_IF_ERROR(qr_fail(err, read, "%s", source_err.message)); }
        QR_RETURN_IF_ERROR(tell_progress(options, b->source->at, b->source->map.size, err));
    }
    return b->info.n_examples == 0 ? refuse_nothing(b, err) : QRUN_OK;
}

static qrun_status tokenise(const qr_dataset_options *options, const qr_example_encoder *encoder,
                            qr_dataset_source *source, const char *cache_path, uint64_t key, qr_error *err) {
    qr_cache_writer writer = {0};
    build b = {.options = options, .encoder = encoder, .source = source, .writer = &writer, .info = {.format = -1}};
    qrun_status status;
    b.items = qr_alloc_array_zeroed(BATCH, sizeof *b.items);
    if (b.items == NULL) { QR_TRY(qr_fail_memory(err, "a batch of examples", BATCH * sizeof *b.items)); }
    QR_TRY(qr_cache_writer_open(&writer, cache_path, key, err));
    QR_TRY(encode_all(&b, err));
    QR_TRY(qr_cache_writer_commit(&writer, &b.info, err));
out:
    qr_cache_writer_abort(&writer);
    for (size_t i = 0; b.items != NULL && i < BATCH; i++) { qr_encoded_example_free(&b.items[i].example); }
    qr_free(b.items);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static qrun_status check_options(const qr_dataset_options *options, qr_error *err) {
    if (options->path == NULL || options->cache_folder == NULL || options->model_folder == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a data set needs its file, a cache folder and the model's folder");
    }
    if (options->seq_len < 2 || options->seq_len > INT32_MAX) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a sequence length of %lld cannot be trained on; at least 2 is needed",
                       (long long)options->seq_len);
    }
    return QRUN_OK;
}

static char *cache_path(const qr_dataset_options *options, uint64_t key) {
    char name[32];
    snprintf(name, sizeof name, "%016" PRIx64 ".qrdata", key);
    return qr_path_join(options->cache_folder, name);
}

/* A cache that cannot be used, whatever the reason, is made again. So is one that left bad examples out, if bad
 * examples are now to be refused. */
static qrun_status open_cache(qr_dataset *dataset, const qr_dataset_options *options, const char *path, uint64_t key) {
    const qrun_status status = qr_cache_open(&dataset->cache, path, key, NULL);
    if (status == QRUN_OK && dataset->cache.info.n_bad > 0 && !options->skip_bad) {
        qr_cache_close(&dataset->cache);
        return QRUN_ERROR_NOT_FOUND;
    }
    dataset->cache.info.from_cache = 1;
    return status;
}

static qrun_status make_cache(qr_dataset *dataset, const qr_dataset_options *options,
                              const qr_chat_template *chat_template, qr_dataset_source *source, const char *path,
                              uint64_t key, qr_error *err) {
    qr_example_encoder encoder = {0};
    qrun_status status;
    QR_TRY(qr_folder_create(options->cache_folder, err));
    QR_TRY(qr_example_encoder_create(options, dataset->tokenizer, chat_template, &encoder, err));
    QR_TRY(tokenise(options, &encoder, source, path, key, err));
    QR_TRY(qr_cache_open(&dataset->cache, path, key, err));
out:
    qr_example_encoder_free(&encoder);
    return status;
}

qrun_status qr_dataset_open(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                            const qr_chat_template *chat_template, qr_dataset **dataset, qr_error *err) {
    *dataset = NULL;
    qr_dataset_source source = {0};
    qr_dataset *made = NULL;
    char *path = NULL;
    uint64_t key;
    qrun_status status;
    QR_TRY(check_options(options, err));
    made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { QR_TRY(qr_fail_memory(err, "a data set", sizeof *made)); }
    made->tokenizer = tokenizer;
    QR_TRY(qr_dataset_source_open(&source, options->path, err));
    QR_TRY(hash_data(options, &source.map, &made->data_hash, err));
    QR_TRY(hash_tokenizer(options, &made->tokenizer_hash, err));
    key = make_key(options, made, source.map.size);
    path = cache_path(options, key);
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(options->cache_folder))); }
    if (open_cache(made, options, path, key) != QRUN_OK) {
        QR_TRY(make_cache(made, options, chat_template, &source, path, key, err));
    }
    *dataset = made;
    made = NULL;
out:
    qr_dataset_close(made);
    qr_dataset_source_close(&source);
    qr_free(path);
    return status;
}

/* ---- random tokens ----------------------------------------------------------------------------------------------- */

/* One example after the other: ids, then is_target, filled up to whole ids. */
static size_t random_example_bytes(int64_t n_tokens) {
    return (size_t)(n_tokens * (int64_t)sizeof(int32_t) + qr_round_up(n_tokens, sizeof(int32_t)));
}

static void fill_random(qr_dataset *dataset, qr_cache_entry *entries, int64_t n_tokens, int64_t vocab, uint64_t seed) {
    qr_dataset_info *info = &dataset->cache.info;
    const size_t ids_bytes = (size_t)n_tokens * sizeof(int32_t), stride = random_example_bytes(n_tokens);
    uint64_t sample = seed;
    for (int64_t i = 0; i < info->n_examples; i++) {
        unsigned char *example = dataset->random + (size_t)i * stride;
        for (int64_t t = 0; t < n_tokens; t++) {
            sample = qr_hash_mix(sample + 1);
            ((int32_t *)(void *)example)[t] = (int32_t)(sample % (uint64_t)vocab);
        }
        memset(example + ids_bytes, 1, (size_t)n_tokens);
        example[ids_bytes] = 0;
        entries[i] = (qr_cache_entry){(uint64_t)i * stride, i + 1, (int32_t)n_tokens, (int32_t)n_tokens - 1};
    }
    info->n_tokens = info->n_examples * n_tokens;
    info->n_targets = info->n_examples * (n_tokens - 1);
    info->longest_tokens = n_tokens;
    info->format = QR_DATASET_TEXT;
}

qrun_status qr_dataset_create_random(int64_t n_examples, int64_t n_tokens, int64_t vocab, uint64_t seed,
                                     qr_dataset **dataset, qr_error *err) {
    *dataset = NULL;
    if (n_examples < 1 || n_tokens < 2 || n_tokens > INT32_MAX || vocab < 1 || vocab > INT32_MAX) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "random data needs examples of at least 2 tokens of a vocabulary");
    }
    qr_dataset *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "a data set", sizeof *made); }
    const size_t stride = random_example_bytes(n_tokens);
    qr_cache_entry *entries = qr_alloc_array((size_t)n_examples, sizeof *entries);
    made->cache.entries = entries;
    made->random = qr_alloc_array((size_t)n_examples, stride);
    if (entries == NULL || made->random == NULL) {
        qr_dataset_close(made);
        return qr_fail_memory(err, "random data", (size_t)n_examples * stride);
    }
    made->cache.info.n_examples = n_examples;
    made->cache.map.data = made->random;
    fill_random(made, entries, n_tokens, vocab, seed);
    *dataset = made;
    return QRUN_OK;
}

static void free_random(qr_dataset *dataset) {
    qr_free((void *)(uintptr_t)dataset->cache.entries);
    qr_free(dataset->random);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

void qr_dataset_close(qr_dataset *dataset) {
    if (dataset == NULL) { return; }
    if (dataset->cache.map.size > 0) {
        qr_cache_close(&dataset->cache);
    } else {
        free_random(dataset);
    }
    qr_free(dataset);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

const qr_dataset_info *qr_dataset_get_info(const qr_dataset *dataset) { return &dataset->cache.info; }

uint64_t qr_dataset_data_hash(const qr_dataset *dataset) { return dataset->data_hash; }

uint64_t qr_dataset_tokenizer_hash(const qr_dataset *dataset) { return dataset->tokenizer_hash; }

qr_example qr_dataset_get(const qr_dataset *dataset, int64_t i) { return qr_cache_get(&dataset->cache, i); }

qrun_status qr_dataset_show(const qr_dataset *dataset, int64_t i, const char *open_mark, const char *close_mark,
                            qr_buffer *out, qr_error *err) {
    const qr_example example = qr_dataset_get(dataset, i);
    qr_token_stream stream;
    qrun_status status = QRUN_OK;
    bool inside = false;
    if (dataset->tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "random tokens are not text, so they cannot be shown");
    }
    qr_token_stream_init(&stream, dataset->tokenizer, false);
    for (int64_t t = 0; t < example.n_tokens; t++) {
        if (inside != (example.is_target[t] != 0)) { qr_buffer_append_text(out, inside ? close_mark : open_mark); }
        inside = example.is_target[t] != 0;
        QR_TRY(qr_token_stream_push(&stream, example.ids[t], out, err));
    }
    QR_TRY(qr_token_stream_finish(&stream, out, err));
    if (inside) { qr_buffer_append_text(out, close_mark); }
    if (!qr_buffer_ok(out)) { status = qr_fail_memory(err, "the text of an example", out->size); }
out:
    qr_token_stream_free(&stream);
    return status;
}
