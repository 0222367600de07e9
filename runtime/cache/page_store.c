#include "runtime/cache/page_store.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/keyed_hash.h"
#include "runtime/model/content.h"

enum { NONE = -1 };

/* A page in host memory; its bytes are in the slot of the same number. */
typedef struct kept_page {
    qr_digest block;
    int32_t group;
    int32_t tokens[QR_KV_PAGE_TOKENS];
    int32_t previous, next; /* by last use, the longest unused first; `next` links free ones too */
    int32_t next_in_bucket;
} kept_page;

struct qr_page_store {
    const qrun_model *model;
    qr_backend *backend;
    qr_page_store_options options;
    qr_kv_keeper keeper;
    qr_digest identity; /* of the model and the formats */
    qr_page_files *files;
    unsigned char *memory; /* host: [n_slots] pages, and one that files are read into and written from */
    size_t memory_bytes;
    kept_page *kept; /* [n_slots] */
    int32_t *buckets;
    uint32_t bucket_mask;
    qr_hash_key hash_key;
    int32_t first, last, free;
};

size_t qr_page_store_bytes(int64_t n_slots, size_t page_bytes) { return (size_t)(n_slots + 1) * page_bytes; }

static unsigned char *slot(const qr_page_store *store, int64_t n) {
    return store->memory + (size_t)n * store->options.page_bytes;
}

static unsigned char *staging(const qr_page_store *store) { return slot(store, store->options.n_slots); }

/* ---- Pages in host memory ---------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const qr_page_store *store, const qr_digest *block, int32_t group) {
    uint64_t hash;
    memcpy(&hash, block->bytes, sizeof hash);
    hash = qr_hash_keyed_word(&store->hash_key, hash + (uint64_t)group);
    return &store->buckets[(uint32_t)hash & store->bucket_mask];
}

static int32_t find(const qr_page_store *store, const qr_digest *block, int32_t group) {
    if (store->options.n_slots == 0) { return NONE; }
    int32_t n = *bucket_of(store, block, group);
    while (n != NONE && (store->kept[n].group != group || memcmp(&store->kept[n].block, block, sizeof *block) != 0)) {
        n = store->kept[n].next_in_bucket;
    }
    return n;
}

static void unlink_use(qr_page_store *store, int32_t n) {
    const kept_page *page = &store->kept[n];
    *(page->previous == NONE ? &store->first : &store->kept[page->previous].next) = page->next;
    *(page->next == NONE ? &store->last : &store->kept[page->next].previous) = page->previous;
}

static void append_use(qr_page_store *store, int32_t n) {
    kept_page *page = &store->kept[n];
    page->previous = store->last;
    page->next = NONE;
    *(store->last == NONE ? &store->first : &store->kept[store->last].next) = n;
    store->last = n;
}

static void touch(qr_page_store *store, int32_t n) {
    unlink_use(store, n);
    append_use(store, n);
}

static void write_file(qr_page_store *store, int32_t n) {
    const kept_page *page = &store->kept[n];
    const qr_kv_page_name name = {page->block, page->group, page->tokens};
    if (store->files != NULL) { qr_page_files_write(store->files, &name, slot(store, n)); }
}

/* A free slot, or the one that was not used for longest, whose page goes to a file. */
static int32_t take_slot(qr_page_store *store) {
    int32_t n = store->free;
    if (n != NONE) {
        store->free = store->kept[n].next;
        return n;
    }
    n = store->first;
    write_file(store, n);
    unlink_use(store, n);
    int32_t *link = bucket_of(store, &store->kept[n].block, store->kept[n].group);
    while (*link != n) { link = &store->kept[*link].next_in_bucket; }
    *link = store->kept[n].next_in_bucket;
    return n;
}

static void give_slot_back(qr_page_store *store, int32_t n) {
    store->kept[n].next = store->free;
    store->free = n;
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static bool copy_from_pool(qr_page_store *store, int32_t page, void *memory) {
    const size_t n_bytes = store->options.page_bytes;
    qrun_context *context = store->model->context;
    qr_compute_lock(context);
    const qrun_status status =
        store->backend->copy_out(store->backend, memory, store->options.pages + (size_t)page * n_bytes, n_bytes, NULL);
    qr_compute_unlock(context);
    return status == QRUN_OK;
}

static bool copy_into_pool(qr_page_store *store, const void *memory, int32_t page) {
    const size_t n_bytes = store->options.page_bytes;
    qrun_context *context = store->model->context;
    qr_compute_lock(context);
    const qrun_status status =
        store->backend->copy_in(store->backend, store->options.pages + (size_t)page * n_bytes, memory, n_bytes, NULL);
    qr_compute_unlock(context);
    return status == QRUN_OK;
}

/* ---- What the cache calls ---------------------------------------------------------------------------------------- */

static qr_digest root_of(void *arg, qr_kv_key key) {
    const qr_page_store *store = arg;
    const uint64_t facts[] = {key.adapter != 0, key.content, (uint64_t)key.rope_class};
    qr_digest_state state;
    qr_digest_begin(&state);
    qr_digest_add(&state, &store->identity, sizeof store->identity);
    qr_digest_add(&state, facts, sizeof facts);
    return qr_digest_end(&state);
}

static bool has(void *arg, const qr_kv_page_name *name) {
    const qr_page_store *store = arg;
    return find(store, &name->block, name->group) != NONE ||
           (store->files != NULL && qr_page_files_have(store->files, name));
}

static bool bring(void *arg, const qr_kv_page_name *name, int32_t page) {
    qr_page_store *store = arg;
    const int32_t n = find(store, &name->block, name->group);
    if (n != NONE) {
        touch(store, n);
        return copy_into_pool(store, slot(store, n), page);
    }
    return store->files != NULL && qr_page_files_read(store->files, name, staging(store)) &&
           copy_into_pool(store, staging(store), page);
}

static void keep_in_memory(qr_page_store *store, const qr_kv_page_name *name, int32_t page) {
    const int32_t n = take_slot(store);
    kept_page *kept = &store->kept[n];
    if (!copy_from_pool(store, page, slot(store, n))) {
        give_slot_back(store, n);
        return;
    }
    int32_t *bucket = bucket_of(store, &name->block, name->group);
    *kept = (kept_page){.block = name->block, .group = name->group, .next_in_bucket = *bucket};
    memcpy(kept->tokens, name->tokens, sizeof kept->tokens);
    *bucket = n;
    append_use(store, n);
}

static void keep(void *arg, const qr_kv_page_name *name, int32_t page, bool lasting) {
    qr_page_store *store = arg;
    const int32_t n = find(store, &name->block, name->group);
    if (n != NONE) { touch(store, n); }
    if (!lasting && store->options.n_slots > 0) {
        if (n == NONE) { keep_in_memory(store, name, page); }
    } else if (store->files != NULL && !qr_page_files_have(store->files, name) &&
               copy_from_pool(store, page, staging(store))) {
        qr_page_files_write(store->files, name, staging(store));
    }
}

const qr_kv_keeper *qr_page_store_keeper(const qr_page_store *store) { return store != NULL ? &store->keeper : NULL; }

bool qr_page_store_has_files(const qr_page_store *store) { return store->files != NULL; }

void qr_page_store_write_all(qr_page_store *store) {
    for (int32_t n = store->first; n != NONE; n = store->kept[n].next) { write_file(store, n); }
}

void qr_page_store_note(const qr_page_store *store, char *note, size_t n_bytes) {
    const bool has_files = store != NULL && store->files != NULL;
    (void)snprintf(note, n_bytes, "%s", has_files ? qr_page_files_note(store->files) : "");
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* All that K/V depend on besides adapter, rotary class and tokens. Without files, only this session reads the names. */
static qrun_status identify(qr_page_store *store, qr_error *err) {
    const qrun_model *model = store->model;
    const int64_t facts[] = {model->act_dtype, store->options.kv_format, (int64_t)store->options.page_bytes,
                             QR_KV_PAGE_TOKENS};
    qr_digest_state state;
    if (store->options.folder == NULL) { return QRUN_OK; }
    qr_digest content;
    QR_RETURN_IF_ERROR(qr_model_content(model, &content, err));
    qr_digest_begin(&state);
    qr_digest_add(&state, qrun_version(), strlen(qrun_version()) + 1);
    qr_digest_add(&state, store->backend->name, strlen(store->backend->name) + 1);
    qr_digest_add(&state, store->backend->isa, strlen(store->backend->isa) + 1);
    qr_digest_add(&state, facts, sizeof facts);
    qr_digest_add(&state, &content, sizeof content);
    store->identity = qr_digest_end(&state);
    return QRUN_OK;
}

static qrun_status make_slots(qr_page_store *store, qr_error *err) {
    const int64_t n_slots = store->options.n_slots;
    uint32_t n_buckets = 16;
    while (n_buckets < (uint64_t)n_slots) { n_buckets *= 2; }
    store->bucket_mask = n_buckets - 1;
    store->hash_key = qr_hash_key_of_process();
    store->kept = qr_alloc_array((size_t)n_slots, sizeof *store->kept);
    store->buckets = qr_alloc_array(n_buckets, sizeof *store->buckets);
    if (store->kept == NULL || store->buckets == NULL) {
        return qr_fail_memory(err, "the table of kept pages", (unsigned long long)n_slots * sizeof *store->kept);
    }
    for (uint32_t b = 0; b < n_buckets; b++) { store->buckets[b] = NONE; }
    for (int64_t n = n_slots; n-- > 0;) { give_slot_back(store, (int32_t)n); }
    const size_t n_bytes = qr_page_store_bytes(n_slots, store->options.page_bytes);
    void *memory;
    QR_RETURN_IF_ERROR(store->backend->memory_create(store->backend, QR_MEMORY_HOST, n_bytes, &memory, err));
    store->memory = memory;
    store->memory_bytes = n_bytes;
    return QRUN_OK;
}

qrun_status qr_page_store_create(const qrun_model *model, const qr_page_store_options *options, qr_page_store **store,
                                 qr_error *err) {
    *store = NULL;
    qr_page_store *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the store of kept pages", sizeof *made); }
    *made = (qr_page_store){.model = model,
                            .backend = model->context->backend,
                            .options = *options,
                            .keeper = {made, root_of, has, bring, keep},
                            .first = NONE,
                            .last = NONE,
                            .free = NONE};
    qrun_status status;
    QR_TRY(make_slots(made, err));
    QR_TRY(identify(made, err));
    if (options->folder != NULL) {
        QR_TRY(qr_page_files_open(options->folder, options->max_file_bytes, options->page_bytes, &made->files, err));
    }
    *store = made;
    return QRUN_OK;
out:
    qr_page_store_destroy(made);
    return status;
}

void qr_page_store_destroy(qr_page_store *store) {
    if (store == NULL) { return; }
    qr_page_files_close(store->files);
    store->backend->memory_destroy(store->backend, QR_MEMORY_HOST, store->memory, store->memory_bytes);
    qr_free(store->kept);
    qr_free(store->buckets);
    qr_free(store);
}
