/* Opening a data set: found in its cache, or tokenised into it, some examples at a time on every thread. What a file
 * gives does not depend on the number of threads: examples are taken in order, and so is the first that is bad. */
#include "loaders/data/dataset.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/random.h"
#include "base/sizes.h"
#include "loaders/data/cache.h"
#include "loaders/data/contents.h"
#include "loaders/data/example.h"
#include "loaders/data/source.h"

/* One file. */
typedef struct dataset_part {
    char *path;
    qr_cache cache;
    unsigned char *random; /* what the cache lies in instead of a map */
    uint64_t data_hash;    /* random tokens: 0 */
    int64_t first;         /* its first example in the data set */
} dataset_part;

struct qr_dataset {
    dataset_part *parts;
    size_t n_parts, capacity;
    qr_dataset_info info;          /* of all parts together */
    uint64_t tokenizer_hash;       /* random tokens: 0 */
    const qr_tokenizer *tokenizer; /* NULL: random tokens */
};

/* ---- what the tokens depend on ----------------------------------------------------------------------------------- */

/* Changes with anything that would make other tokens of the same files. */
static const char KEY_VERSION[] = "qrun tokenised data 6";

static uint64_t hash_text(uint64_t hash, const char *text) {
    return text != NULL ? qr_hash_bytes(hash, text, strlen(text) + 1) : qr_hash_bytes(hash, "\xFF", 1);
}

static qrun_status hash_file(const char *folder, const char *name, uint64_t *hash, qr_error *err) {
    char *path = qr_path_join(folder, name);
    if (path == NULL) { return qr_fail_memory(err, "a path", strlen(folder)); }
    qr_file_map map = {0};
    const bool exists = qr_file_exists(path);
    qrun_status status = exists ? qr_file_map_open(path, &map, err) : QRUN_OK;
    const uint64_t size = exists ? map.size : UINT64_MAX;
    *hash = qr_hash_bytes(*hash, &size, sizeof size);
    *hash = qr_hash_bytes(*hash, map.data, map.size);
    if (status == QRUN_OK) { status = qr_file_map_check(&map, path, err); }
    qr_file_map_close(&map);
    qr_free(path);
    return status;
}

/* The files of the path that was given, and what is open of them. A folder's are opened one after the other, twice: a
 * pipe could not be, so a single file stays open. */
typedef struct dataset_files {
    const qr_dataset_options *options;
    qr_file_list list;
    size_t n_opened;          /* how many were opened in this pass; the last of them may be open */
    qr_dataset_source source; /* of list.paths[n_opened − 1] */
    int64_t n_bytes, n_done_bytes;
} dataset_files;

static void files_close(dataset_files *files) {
    qr_dataset_source_close(&files->source);
    qr_file_list_free(&files->list);
}

/* The next file, or *found is false after the last. */
static qrun_status files_next(dataset_files *files, bool *found, qr_error *err) {
    *found = files->n_opened < files->list.n;
    if (!*found) { return QRUN_OK; }
    const char *path = files->list.paths[files->n_opened++];
    if (files->list.n == 1 && files->source.text != NULL) { return QRUN_OK; } /* open since the first pass */
    files->n_done_bytes += (int64_t)files->source.size;
    qr_dataset_source_close(&files->source);
    return qr_dataset_source_open(&files->source, files->options, path, err);
}

static qrun_status files_begin(const qr_dataset_options *options, dataset_files *files, qr_error *err) {
    *files = (dataset_files){.options = options};
    if (options->form == QR_FORM_AUTO && qr_file_is_folder(options->path)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: is a folder; say what its files are, such as `format=text` or `format=json`",
                       options->path);
    }
    return qr_file_list_make(options->path, &files->list, err);
}

/* Piece by piece, so that it can be cancelled; nothing counts as done before it is tokenised. */
static qrun_status hash_source(const qr_dataset_options *options, const qr_dataset_source *data, uint64_t *hash,
                               qr_error *err) {
    const size_t piece = (size_t)1 << 26;
    *hash = QR_HASH_START;
    for (size_t at = 0; at < data->size; at += piece) {
        *hash = qr_hash_bytes(*hash, data->text + at, data->size - at < piece ? data->size - at : piece);
        QR_RETURN_IF_ERROR(qr_contents_progress(options, 0, (int64_t)data->size, err));
    }
    return qr_file_map_check(&data->map, data->path, err);
}

/* Of every file, and of how it is read where that is not as JSON. The sum of their sizes goes into files->n_bytes. */
static qrun_status hash_data(dataset_files *files, uint64_t *hash, qr_error *err) {
    const qr_dataset_options *options = files->options;
    const bool is_folder = files->list.n > 1;
    for (bool found = true;;) {
        uint64_t own;
        QR_RETURN_IF_ERROR(files_next(files, &found, err));
        if (!found) { break; }
        QR_RETURN_IF_ERROR(hash_source(options, &files->source, &own, err));
        *hash = is_folder ? qr_hash_bytes(files->n_opened > 1 ? *hash : QR_HASH_START, &own, sizeof own) : own;
        files->n_bytes += (int64_t)files->source.size;
    }
    const uint64_t form = (uint64_t)files->source.form;
    if (form > QR_FORM_JSON) { *hash = qr_hash_bytes(*hash, &form, sizeof form); }
    if (is_folder) { qr_dataset_source_close(&files->source); }
    if (options->columns != NULL) { *hash = qr_hash_bytes(*hash, options->columns, strlen(options->columns)); }
    files->n_opened = 0;
    files->n_done_bytes = 0;
    return QRUN_OK;
}

/* What the tokens depend on apart from the data: tokenizer and template. */
static qrun_status hash_tokenizer(const qr_dataset_options *options, uint64_t *hash, qr_error *err) {
    *hash = hash_text(QR_HASH_START, options->template_arguments);
    for (size_t i = 0; qr_chat_template_files[i] != NULL; i++) {
        QR_RETURN_IF_ERROR(hash_file(options->model_folder, qr_chat_template_files[i], hash, err));
    }
    return hash_file(options->model_folder, "tokenizer.json", hash, err);
}

static uint64_t make_key(const qr_dataset_options *options, const qr_dataset *dataset, size_t n_bytes) {
    const uint64_t numbers[] = {(uint64_t)options->seq_len,  (uint64_t)options->now,  n_bytes,
                                dataset->parts[0].data_hash, dataset->tokenizer_hash, options->preferences};
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
    dataset_files *files;
    const qr_dataset_source *source; /* of the file that is read */
    qr_cache_writer *writer;
    qr_tokens row; /* of a text that runs on: what is less than a row so far */
    qr_buffer row_is_target;
    int64_t row_line;
    build_item *items; /* [BATCH] */
    int64_t n_items;
    qr_dataset_info info;
    int64_t n_pieces;       /* examples of the file so far, of every kind */
    int64_t n_out_of_reach; /* of those without a target: all they had lay beyond seq_len */
    int64_t n_set_aside;    /* of those without a target: they have an answer that does not count */
} build;

static void encode_item(void *arg, int64_t index, int worker) {
    const build *b = arg;
    build_item *item = &b->items[index];
    qr_json *root = NULL;
    (void)worker;
    qr_error_clear(&item->err);
    if (qr_dataset_source_is_text(b->source)) {
        item->status = qr_example_encode_text(b->encoder, b->source, &item->piece, &item->example, &item->err);
        return;
    }
    item->status = qr_dataset_piece_parse(b->source, &item->piece, &root, &item->err);
    if (item->status == QRUN_OK) {
        item->status = qr_example_encode(b->encoder, root, &item->example, &item->err);
        char position[512];
        snprintf(position, sizeof position, "%s:%lld", b->source->path, (long long)item->piece.line);
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
                   b->source->path, (long long)item->piece.line, qr_dataset_format_name(format),
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

/* Adds a name in quotes to a list, once; a list that is full ends in "…". */
static void add_name(char list[QR_DATASET_NAMES_BYTES], const char *quoted) {
    static const char full[] = ", …";
    const size_t n = strlen(list), room = QR_DATASET_NAMES_BYTES - sizeof full;
    if (strstr(list, quoted) != NULL || (n >= sizeof full && strcmp(list + n + 1 - sizeof full, full) == 0)) { return; }
    const bool fits = n + 2 + strlen(quoted) <= room;
    (void)snprintf(list + n, QR_DATASET_NAMES_BYTES - n, "%s%s", n > 0 && fits ? ", " : "", fits ? quoted : full);
}

static qrun_status note_unknown(qr_dataset_info *info, const qr_buffer *names, int64_t line, qr_error *err) {
    qr_buffer quoted = {0};
    for (size_t at = 0; at < names->size; at += strlen(names->data + at) + 1) {
        const char *name = names->data + at;
        qr_buffer_clear(&quoted);
        qr_buffer_append_json_string(&quoted, name, strlen(name));
        if (!qr_buffer_ok(&quoted)) { break; }
        if (info->unknown_members[0] == '\0') { info->unknown_line = line; }
        add_name(info->unknown_members, quoted.data);
    }
    const bool ok = qr_buffer_ok(&quoted);
    qr_buffer_free(&quoted);
    return ok ? QRUN_OK : qr_fail_memory(err, "the names of members", names->size);
}

/* Adds an example to the file of tokens. */
static qrun_status add_example(build *b, const qr_example *example, qr_error *err) {
    qr_dataset_info *info = &b->info;
    info->n_examples++;
    info->n_tokens += example->n_tokens;
    info->n_targets += example->n_targets;
    info->longest_tokens = qr_max(info->longest_tokens, example->n_tokens);
    return qr_cache_writer_add(b->writer, example, err);
}

/* The row that has been gathered, as an example; a new one begins. */
static qrun_status end_row(build *b, qr_error *err) {
    uint8_t *is_target = (uint8_t *)b->row_is_target.data;
    int64_t n_targets = 0;
    qrun_status status = QRUN_OK;
    if (b->row.n == 0) { return QRUN_OK; }
    is_target[0] = 0; /* nothing predicts it */
    for (size_t t = 0; t < b->row.n; t++) { n_targets += is_target[t]; }
    const qr_example row = {.ids = b->row.ids,
                            .is_target = is_target,
                            .n_tokens = (int64_t)b->row.n,
                            .n_targets = n_targets,
                            .line = b->row_line};
    if (n_targets > 0) { status = add_example(b, &row, err); }
    b->row.n = 0;
    qr_buffer_clear(&b->row_is_target);
    return status;
}

/* A stretch of a text that runs on: rows of seq_len tokens, the next stretch after this one. */
static qrun_status take_stretch(build *b, const build_item *item, qr_error *err) {
    const qr_encoded_example *example = &item->example;
    for (size_t t = 0; t < example->tokens.n; t++) {
        if (b->row.n == 0) { b->row_line = item->piece.line; }
        QR_RETURN_IF_ERROR(qr_tokens_push(&b->row, example->tokens.ids[t], err));
        qr_buffer_append_char(&b->row_is_target, example->is_target.data[t]);
        if (!qr_buffer_ok(&b->row_is_target)) { return qr_fail_memory(err, "a row", b->row.n); }
        if ((int64_t)b->row.n == b->options->seq_len) { QR_RETURN_IF_ERROR(end_row(b, err)); }
    }
    return QRUN_OK;
}

static qrun_status take_item(build *b, build_item *item, qr_error *err) {
    const qr_encoded_example *example = &item->example;
    b->n_pieces++;
    if (item->status == QRUN_OK) { item->status = check_format(b, item); }
    if (item->status != QRUN_OK) { return refuse(b, item, err); }
    qr_dataset_info *info = &b->info;
    info->format = (int32_t)example->format;
    if (b->source->form == QR_FORM_TEXT) { return take_stretch(b, item, err); }
    QR_RETURN_IF_ERROR(note_unknown(info, &example->notes.unknown_members, item->piece.line, err));
    info->n_truncated += example->n_cut_tokens > 0 ? 1 : 0;
    info->n_cut_tokens += example->n_cut_tokens;
    if (example->n_targets == 0) {
        info->n_without_target++;
        b->n_out_of_reach += example->n_cut_targets > 0 ? 1 : 0;
        b->n_set_aside += example->notes.sets_aside ? 1 : 0;
        return QRUN_OK;
    }
    const qr_example made = {.ids = example->tokens.ids,
                             .is_target = (const uint8_t *)example->is_target.data,
                             .n_tokens = (int64_t)example->tokens.n,
                             .n_targets = example->n_targets,
                             .n_chosen = example->n_chosen,
                             .line = item->piece.line};
    return add_example(b, &made, err);
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
    if (b->n_set_aside > 0) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: no token is a target: the answers have \"weight\": 0 or \"train\": false", path);
    }
    const char *reason = info->format == QR_DATASET_MESSAGES ? "no conversation has an answer of the role \"assistant\""
                         : info->format == QR_DATASET_SHAREGPT ? "no conversation has an answer from \"gpt\""
                         : qr_dataset_format_is_preference((qr_dataset_format)info->format)
                             ? "no pair has an answer of the assistant's in both of \"chosen\" and \"rejected\""
                             : "there is no text to learn in any example";
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: no token is a target: %s", path, reason);
}

/* Fills b->items; *found is false after the last piece of the file. */
static qrun_status read_batch(build *b, bool *found, qr_error *err) {
    for (b->n_items = 0; b->n_items < BATCH && *found;) {
        QR_RETURN_IF_ERROR(qr_dataset_source_next(&b->files->source, &b->items[b->n_items].piece, found, err));
        if (*found) { b->n_items++; }
    }
    return QRUN_OK;
}

static qrun_status encode_file(build *b, qr_error *err) {
    const qr_dataset_options *options = b->options;
    b->source = &b->files->source;
    for (bool found = true; found;) {
        qr_error source_err = {0};
        const qrun_status read = read_batch(b, &found, &source_err);
        qr_threads_run(options->threads, b->n_items, encode_item, b);
        QR_RETURN_IF_ERROR(qr_file_map_check(&b->source->map, b->source->path, err)); /* before its errors count */
        for (int64_t i = 0; i < b->n_items; i++) { QR_RETURN_IF_ERROR(take_item(b, &b->items[i], err)); }
        if (read != QRUN_OK) { QR_RETURN_IF_ERROR(qr_fail(err, read, "%s", source_err.message)); }
        const int64_t n_done = b->files->n_done_bytes + (int64_t)b->source->at;
        QR_RETURN_IF_ERROR(qr_contents_progress(options, n_done, b->files->n_bytes, err));
    }
    return QRUN_OK;
}

static qrun_status encode_all(build *b, qr_error *err) {
    for (bool found = true;;) {
        QR_RETURN_IF_ERROR(files_next(b->files, &found, err));
        if (!found) { break; }
        QR_RETURN_IF_ERROR(encode_file(b, err));
    }
    QR_RETURN_IF_ERROR(end_row(b, err));
    return b->info.n_examples == 0 ? refuse_nothing(b, err) : QRUN_OK;
}

static qrun_status tokenise(const qr_dataset_options *options, const qr_example_encoder *encoder, dataset_files *files,
                            const char *cache_path, uint64_t key, qr_error *err) {
    qr_cache_writer writer = {0};
    build b = {.options = options, .encoder = encoder, .files = files, .writer = &writer, .info = {.format = -1}};
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
    qr_tokens_free(&b.row);
    qr_buffer_free(&b.row_is_target);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static qrun_status check_options(const qr_dataset_options *options, qr_error *err) {
    if (options->path == NULL || options->cache_folder == NULL || options->model_folder == NULL) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "a data set needs its file, a cache folder and the model's folder");
    }
    QR_RETURN_IF_ERROR(qr_dataset_columns_check(options->columns, err));
    const qr_file_form form = options->form != QR_FORM_AUTO ? options->form : qr_file_form_of(options->path);
    if (options->preferences && (form == QR_FORM_TEXT || form == QR_FORM_PARAGRAPHS)) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: a plain text has no chosen and rejected answers; pairs are in JSON or a table",
                       options->path);
    }
    if (options->seq_len < (options->preferences ? 4 : 2) || options->seq_len > INT32_MAX) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT,
                       "a sequence length of %lld cannot be trained on; at least %d is needed",
                       (long long)options->seq_len, options->preferences ? 4 : 2);
    }
    return QRUN_OK;
}

static char *cache_path(const qr_dataset_options *options, uint64_t key) {
    char name[32];
    snprintf(name, sizeof name, "%016" PRIx64 ".qrdata", key);
    return qr_path_join(options->cache_folder, name);
}

/* Whether every token is one of the tokenizer's: models have a row for each of these, or look for those they lack. */
static bool check_ids(const qr_cache *cache, int32_t n_ids) {
    for (int64_t i = 0; i < cache->info.n_examples; i++) {
        const qr_example example = qr_cache_get(cache, i);
        for (int64_t t = 0; t < example.n_tokens; t++) {
            if (example.ids[t] < 0 || example.ids[t] >= n_ids) { return false; }
        }
    }
    return true;
}

/* A cache that cannot be used, whatever the reason, is made again. So is one that left bad examples out, if bad
 * examples are now to be refused. */
static qrun_status open_cache(qr_cache *cache, const qr_dataset_options *options, int32_t n_ids, const char *path,
                              uint64_t key) {
    QR_RETURN_IF_ERROR(qr_cache_open(cache, path, key, NULL));
    if ((cache->info.n_bad > 0 && !options->skip_bad) || !check_ids(cache, n_ids)) {
        qr_cache_close(cache);
        return QRUN_ERROR_NOT_FOUND;
    }
    cache->info.from_cache = 1;
    return QRUN_OK;
}

static qrun_status make_cache(qr_dataset *dataset, const qr_dataset_options *options,
                              const qr_chat_template *chat_template, dataset_files *files, const char *path,
                              uint64_t key, qr_error *err) {
    qr_example_encoder encoder = {0};
    qrun_status status;
    QR_TRY(qr_folder_create(options->cache_folder, err));
    QR_TRY(qr_example_encoder_create(options, dataset->tokenizer, chat_template, &encoder, err));
    QR_TRY(tokenise(options, &encoder, files, path, key, err));
    QR_TRY(qr_cache_open(&dataset->parts[0].cache, path, key, err));
out:
    qr_example_encoder_free(&encoder);
    return status;
}

/* A data set of one empty part. */
static qrun_status create(const char *path, const qr_tokenizer *tokenizer, qr_dataset **dataset, qr_error *err) {
    qr_dataset *made = qr_alloc_zeroed(sizeof *made);
    *dataset = NULL;
    if (made == NULL) { return qr_fail_memory(err, "a data set", sizeof *made); }
    made->tokenizer = tokenizer;
    made->parts = qr_alloc_zeroed(sizeof *made->parts);
    if (made->parts != NULL) {
        made->n_parts = made->capacity = 1;
        made->parts[0].path = qr_strdup(path);
    }
    if (made->parts == NULL || made->parts[0].path == NULL) {
        qr_dataset_close(made);
        return qr_fail_memory(err, "a data set", sizeof *made->parts);
    }
    *dataset = made;
    return QRUN_OK;
}

qrun_status qr_dataset_open(const qr_dataset_options *options, const qr_tokenizer *tokenizer,
                            const qr_chat_template *chat_template, qr_dataset **dataset, qr_error *err) {
    *dataset = NULL;
    dataset_files files = {0};
    qr_dataset *made = NULL;
    char *path = NULL;
    uint64_t key;
    qrun_status status;
    QR_TRY(check_options(options, err));
    QR_TRY(create(options->path, tokenizer, &made, err));
    QR_TRY(files_begin(options, &files, err));
    QR_TRY(hash_data(&files, &made->parts[0].data_hash, err));
    QR_TRY(hash_tokenizer(options, &made->tokenizer_hash, err));
    key = make_key(options, made, (size_t)files.n_bytes);
    path = cache_path(options, key);
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(options->cache_folder))); }
    if (open_cache(&made->parts[0].cache, options, qr_tokenizer_vocab_size(tokenizer), path, key) != QRUN_OK) {
        QR_TRY(make_cache(made, options, chat_template, &files, path, key, err));
    }
    made->info = made->parts[0].cache.info;
    *dataset = made;
    made = NULL;
out:
    qr_dataset_close(made);
    files_close(&files);
    qr_free(path);
    return status;
}

/* ---- several files ----------------------------------------------------------------------------------------------- */

static void add_info(qr_dataset_info *all, const qr_dataset_info *more) {
    all->n_examples += more->n_examples;
    all->n_tokens += more->n_tokens;
    all->n_targets += more->n_targets;
    all->longest_tokens = qr_max(all->longest_tokens, more->longest_tokens);
    all->n_without_target += more->n_without_target;
    all->n_truncated += more->n_truncated;
    all->n_cut_tokens += more->n_cut_tokens;
    if (all->n_bad == 0) { memcpy(all->first_bad, more->first_bad, sizeof all->first_bad); }
    all->n_bad += more->n_bad;
    all->from_cache = all->from_cache != 0 && more->from_cache != 0;
}

qrun_status qr_dataset_append(qr_dataset *dataset, qr_dataset *more, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_array_grow(&dataset->parts, &dataset->capacity, dataset->n_parts + more->n_parts,
                                     sizeof *dataset->parts, "the files of the data set", err));
    for (size_t i = 0; i < more->n_parts; i++) {
        dataset_part *part = &dataset->parts[dataset->n_parts++];
        *part = more->parts[i];
        part->first = dataset->info.n_examples;
        add_info(&dataset->info, &part->cache.info);
    }
    more->n_parts = 0;
    qr_dataset_close(more);
    return QRUN_OK;
}

/* ---- random tokens ----------------------------------------------------------------------------------------------- */

/* One example after the other: ids, then is_target, filled up to whole ids. */
static size_t random_example_bytes(int64_t n_tokens) {
    return (size_t)(n_tokens * (int64_t)sizeof(int32_t) + qr_round_up(n_tokens, sizeof(int32_t)));
}

static void fill_random(dataset_part *part, qr_cache_entry *entries, int64_t n_tokens, int64_t n_chosen, int64_t vocab,
                        uint64_t seed) {
    qr_dataset_info *info = &part->cache.info;
    const size_t ids_bytes = (size_t)n_tokens * sizeof(int32_t), stride = random_example_bytes(n_tokens);
    const int64_t n_targets = n_tokens - (n_chosen > 0 ? 2 : 1);
    uint64_t sample = seed;
    for (int64_t i = 0; i < info->n_examples; i++) {
        unsigned char *example = part->random + (size_t)i * stride;
        for (int64_t t = 0; t < n_tokens; t++) {
            sample = qr_hash_mix(sample + 1);
            ((int32_t *)(void *)example)[t] = (int32_t)(sample % (uint64_t)vocab);
        }
        memset(example + ids_bytes, 1, (size_t)n_tokens);
        example[ids_bytes] = example[ids_bytes + (size_t)n_chosen] = 0;
        entries[i] = (qr_cache_entry){.offset = (uint64_t)i * stride,
                                      .line = i + 1,
                                      .n_tokens = (int32_t)n_tokens,
                                      .n_targets = (int32_t)n_targets,
                                      .n_chosen = (int32_t)n_chosen};
    }
    info->n_tokens = info->n_examples * n_tokens;
    info->n_targets = info->n_examples * n_targets;
    info->longest_tokens = n_tokens;
    info->format = n_chosen > 0 ? QR_DATASET_PREFERENCE : QR_DATASET_TEXT;
}

qrun_status qr_dataset_create_random(int64_t n_examples, int64_t n_tokens, int64_t vocab, uint64_t seed,
                                     bool preferences, qr_dataset **dataset, qr_error *err) {
    *dataset = NULL;
    if (n_examples < 1 || n_tokens < (preferences ? 4 : 2) || n_tokens > INT32_MAX || vocab < 1 || vocab > INT32_MAX) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "random data needs examples of at least %d tokens of a vocabulary",
                       preferences ? 4 : 2);
    }
    qr_dataset *made;
    QR_RETURN_IF_ERROR(create("", NULL, &made, err));
    dataset_part *part = &made->parts[0];
    const size_t stride = random_example_bytes(n_tokens);
    qr_cache_entry *entries = qr_alloc_array((size_t)n_examples, sizeof *entries);
    part->cache.entries = entries;
    part->random = qr_alloc_array((size_t)n_examples, stride);
    if (entries == NULL || part->random == NULL) {
        qr_dataset_close(made);
        return qr_fail_memory(err, "random data", (size_t)n_examples * stride);
    }
    part->cache.info.n_examples = n_examples;
    part->cache.map.data = part->random;
    fill_random(part, entries, n_tokens, preferences ? n_tokens / 2 : 0, vocab, seed);
    made->info = part->cache.info;
    *dataset = made;
    return QRUN_OK;
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

static void close_part(dataset_part *part) {
    if (part->cache.map.size > 0) {
        qr_cache_close(&part->cache);
    } else {
        qr_free((void *)(uintptr_t)part->cache.entries);
        qr_free(part->random);
    }
    qr_free(part->path);
}

void qr_dataset_close(qr_dataset *dataset) {
    if (dataset == NULL) { return; }
    for (size_t i = 0; i < dataset->n_parts; i++) { close_part(&dataset->parts[i]); }
    qr_free(dataset->parts);
    qr_free(dataset);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

qrun_status qr_dataset_check(const qr_dataset *dataset, qr_error *err) {
    for (size_t i = 0; i < dataset->n_parts; i++) { QR_RETURN_IF_ERROR(qr_cache_check(&dataset->parts[i].cache, err)); }
    return QRUN_OK;
}

const qr_dataset_info *qr_dataset_get_info(const qr_dataset *dataset) { return &dataset->info; }

int64_t qr_dataset_count_files(const qr_dataset *dataset) { return (int64_t)dataset->n_parts; }

qr_dataset_file qr_dataset_get_file(const qr_dataset *dataset, int64_t file) {
    const dataset_part *part = &dataset->parts[file];
    return (qr_dataset_file){part->path, part->first, &part->cache.info};
}

int64_t qr_dataset_file_of(const qr_dataset *dataset, int64_t example) {
    size_t low = 0, high = dataset->n_parts; /* parts[low].first ≤ example < parts[high].first */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(dataset->parts[middle].first <= example ? &low : &high) = middle;
    }
    return (int64_t)low;
}

uint64_t qr_dataset_data_hash(const qr_dataset *dataset) {
    uint64_t hash = dataset->parts[0].data_hash;
    for (size_t i = 1; i < dataset->n_parts; i++) {
        hash = qr_hash_bytes(hash, &dataset->parts[i].data_hash, sizeof hash);
    }
    return hash;
}

uint64_t qr_dataset_tokenizer_hash(const qr_dataset *dataset) { return dataset->tokenizer_hash; }

qr_example qr_dataset_get(const qr_dataset *dataset, int64_t i) {
    const dataset_part *part = &dataset->parts[qr_dataset_file_of(dataset, i)];
    return qr_cache_get(&part->cache, i - part->first);
}

/* Tokens [first, end) of an example, a text of its own. */
static qrun_status show_sequence(const qr_tokenizer *tokenizer, const qr_example *example, int64_t first, int64_t end,
                                 const char *open_mark, const char *close_mark, qr_buffer *out, qr_error *err) {
    qr_token_stream stream;
    qrun_status status = QRUN_OK;
    bool inside = false;
    qr_token_stream_init(&stream, tokenizer, false);
    for (int64_t t = first; t < end; t++) {
        if (inside != (example->is_target[t] != 0)) { qr_buffer_append_text(out, inside ? close_mark : open_mark); }
        inside = example->is_target[t] != 0;
        QR_TRY(qr_token_stream_push(&stream, example->ids[t], out, err));
    }
    QR_TRY(qr_token_stream_finish(&stream, out, err));
    if (inside) { qr_buffer_append_text(out, close_mark); }
out:
    qr_token_stream_free(&stream);
    return status;
}

qrun_status qr_dataset_show(const qr_dataset *dataset, int64_t i, const char *open_mark, const char *close_mark,
                            qr_buffer *out, qr_error *err) {
    const qr_example example = qr_dataset_get(dataset, i);
    const qr_tokenizer *tokenizer = dataset->tokenizer;
    if (tokenizer == NULL) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "random tokens are not text, so they cannot be shown");
    }
    if (example.n_chosen > 0) {
        QR_RETURN_IF_ERROR(show_sequence(tokenizer, &example, 0, example.n_chosen, open_mark, close_mark, out, err));
        qr_buffer_append_char(out, '\n');
    }
    QR_RETURN_IF_ERROR(
        show_sequence(tokenizer, &example, example.n_chosen, example.n_tokens, open_mark, close_mark, out, err));
    return qr_buffer_ok(out) ? QRUN_OK : qr_fail_memory(err, "the text of an example", out->size);
}
