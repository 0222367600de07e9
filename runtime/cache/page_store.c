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
    bool is_of_another; /* what the files' note says happened on another rank, which has its own */
    char others_note[QR_PAGE_NOTE_BYTES + 24]; /* on rank 0: why another rank's files are not used or written; "" */
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

/* ---- Several ranks ----------------------------------------------------------------------------------------------- */

static qr_collectives *ranks_of(const qr_page_store *store) { return store->options.shared.ranks; }

/* The other ranks do the same. False: one of them is lost, and the session ends. */
static bool tell(const qr_page_store *store, qr_page_action action, int32_t slot_index, int32_t page,
                 const qr_kv_page_name *name) {
    const qr_page_ranks *shared = &store->options.shared;
    if (shared->ranks == NULL) { return true; }
    qr_page_task task = {.action = (int32_t)action, .slot = slot_index, .page = page, .group = name->group};
    task.block = name->block;
    memcpy(task.tokens, name->tokens, sizeof task.tokens);
    return shared->tell(shared->arg, &task, NULL) == QRUN_OK;
}

/* What the file of this rank's part of a page is called after. */
static qr_digest own_block(const qr_page_store *store, const qr_digest *block) {
    qr_digest_state state;
    qr_digest_begin(&state);
    qr_digest_add(&state, &store->identity, sizeof store->identity);
    qr_digest_add(&state, block, sizeof *block);
    return qr_digest_end(&state);
}

/* Whether all ranks have it; all call it. */
static bool all_have(const qr_page_store *store, bool own) {
    qr_collectives *ranks = ranks_of(store);
    bool of_rank[QR_MAX_RANKS];
    if (ranks == NULL) { return own; }
    of_rank[ranks->rank] = own;
    if (qr_all_gather(ranks, of_rank, sizeof of_rank[0], NULL) != QRUN_OK) { return false; }
    for (int32_t r = 0; r < ranks->n_ranks; r++) { own = own && of_rank[r]; }
    return own;
}

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
    if (store->files == NULL || !tell(store, QR_PAGE_WRITE_SLOT, n, NONE, &name)) { return; }
    qr_page_files_write(store->files, &name, slot(store, n));
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

static unsigned char *pool_page(const qr_page_store *store, int32_t page) {
    return store->options.pages + (size_t)page * store->options.page_bytes;
}

static bool copy_from_pool(const qr_page_store *store, int32_t page, void *memory) {
    qrun_context *context = store->model->context;
    qr_compute_lock(context);
    const qrun_status status =
        store->backend->copy_out(store->backend, memory, pool_page(store, page), store->options.page_bytes, NULL);
    qr_compute_unlock(context);
    return status == QRUN_OK;
}

static bool copy_into_pool(const qr_page_store *store, const void *memory, int32_t page) {
    qrun_context *context = store->model->context;
    qr_compute_lock(context);
    const qrun_status status =
        store->backend->copy_in(store->backend, pool_page(store, page), memory, store->options.page_bytes, NULL);
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

/* Into the staging page, on all ranks. */
static bool read_file(qr_page_store *store, const qr_kv_page_name *name) {
    const bool own = qr_page_files_read(store->files, name, staging(store));
    if (all_have(store, own)) { return true; }
    if (own) {
        store->is_of_another = store->is_of_another || qr_page_files_note(store->files)[0] == '\0';
        qr_page_files_drop(store->files, name, "another rank has no such file that can be used");
    }
    return false;
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
        return tell(store, QR_PAGE_BRING, n, page, name) && copy_into_pool(store, slot(store, n), page);
    }
    if (store->files == NULL || !tell(store, QR_PAGE_READ, NONE, page, name)) { return false; }
    return read_file(store, name) && copy_into_pool(store, staging(store), page);
}

static void keep_in_memory(qr_page_store *store, const qr_kv_page_name *name, int32_t page) {
    const int32_t n = take_slot(store);
    kept_page *kept = &store->kept[n];
    if (!tell(store, QR_PAGE_KEEP, n, page, name) || !copy_from_pool(store, page, slot(store, n))) {
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
               tell(store, QR_PAGE_WRITE_PAGE, NONE, page, name) && copy_from_pool(store, page, staging(store))) {
        qr_page_files_write(store->files, name, staging(store));
    }
}

/* ---- Notes of other ranks ---------------------------------------------------------------------------------------- */

/* All ranks call it: the first other rank whose files have a note of their own gives it to rank 0. */
static qrun_status share_notes(qr_page_store *store, qr_error *err) {
    qr_collectives *ranks = ranks_of(store);
    bool has_note[QR_MAX_RANKS];
    char text[QR_PAGE_NOTE_BYTES] = "";
    int32_t first = 1;
    has_note[ranks->rank] = qr_page_files_note(store->files)[0] != '\0' && !store->is_of_another;
    QR_RETURN_IF_ERROR(qr_all_gather(ranks, has_note, sizeof has_note[0], err));
    while (first < ranks->n_ranks && !has_note[first]) { first++; }
    if (first == ranks->n_ranks || has_note[0]) { return QRUN_OK; }
    if (ranks->rank == first) { (void)snprintf(text, sizeof text, "%s", qr_page_files_note(store->files)); }
    QR_RETURN_IF_ERROR(qr_broadcast(ranks, text, sizeof text, first, err));
    text[sizeof text - 1] = '\0';
    (void)snprintf(store->others_note, sizeof store->others_note, "rank %d: %s", (int)first, text);
    return QRUN_OK;
}

/* ---- What rank 0's store tells ----------------------------------------------------------------------------------- */

static qrun_status follow_read(qr_page_store *store, const qr_kv_page_name *name, int32_t page, qr_error *err) {
    if (!read_file(store, name)) { return QRUN_OK; }
    return store->backend->copy_in(store->backend, pool_page(store, page), staging(store), store->options.page_bytes,
                                   err);
}

static qrun_status follow_write(qr_page_store *store, const qr_kv_page_name *name, int32_t page, qr_error *err) {
    QR_RETURN_IF_ERROR(store->backend->copy_out(store->backend, staging(store), pool_page(store, page),
                                                store->options.page_bytes, err));
    qr_page_files_write(store->files, name, staging(store));
    return QRUN_OK;
}

qrun_status qr_page_store_follow(qr_page_store *store, const qr_page_task *task, qr_error *err) {
    const bool has_slot = task->slot >= 0 && task->slot < store->options.n_slots;
    const bool has_page = task->page >= 0 && task->page < store->options.n_pages;
    const bool needs_slot = task->action < QR_PAGE_READ || task->action == QR_PAGE_WRITE_SLOT;
    const bool needs_page = task->action != QR_PAGE_WRITE_SLOT && task->action != QR_PAGE_SHARE_NOTES;
    const bool needs_files = task->action >= QR_PAGE_READ;
    if ((needs_slot && !has_slot) || (needs_page && !has_page) || (needs_files && store->files == NULL)) {
        return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 keeps a page that does not exist here");
    }
    const qr_kv_page_name name = {own_block(store, &task->block), task->group, task->tokens};
    unsigned char *page = needs_page ? pool_page(store, task->page) : NULL;
    unsigned char *kept = needs_slot ? slot(store, task->slot) : NULL;
    const size_t n_bytes = store->options.page_bytes;
    switch ((qr_page_action)task->action) {
        case QR_PAGE_KEEP: return store->backend->copy_out(store->backend, kept, page, n_bytes, err);
        case QR_PAGE_BRING: return store->backend->copy_in(store->backend, page, kept, n_bytes, err);
        case QR_PAGE_READ: return follow_read(store, &name, task->page, err);
        case QR_PAGE_WRITE_SLOT: qr_page_files_write(store->files, &name, kept); return QRUN_OK;
        case QR_PAGE_WRITE_PAGE: return follow_write(store, &name, task->page, err);
        case QR_PAGE_SHARE_NOTES: return share_notes(store, err);
    }
    return qr_fail(err, QRUN_ERROR_INTERNAL, "rank 0 does with a page what does not exist");
}

const qr_kv_keeper *qr_page_store_keeper(const qr_page_store *store) { return store != NULL ? &store->keeper : NULL; }

bool qr_page_store_has_files(const qr_page_store *store) { return store->files != NULL; }

void qr_page_store_write_all(qr_page_store *store) {
    for (int32_t n = store->first; n != NONE; n = store->kept[n].next) { write_file(store, n); }
}

void qr_page_store_ask_notes(qr_page_store *store) {
    static const int32_t no_tokens[QR_KV_PAGE_TOKENS];
    static const qr_kv_page_name none = {.tokens = no_tokens};
    if (store->files == NULL || ranks_of(store) == NULL) { return; }
    if (tell(store, QR_PAGE_SHARE_NOTES, NONE, NONE, &none)) { (void)share_notes(store, NULL); }
}

void qr_page_store_note(const qr_page_store *store, char *note, size_t n_bytes) {
    const bool has_files = store != NULL && store->files != NULL;
    const char *text = !has_files ? "" : qr_page_files_note(store->files);
    (void)snprintf(note, n_bytes, "%s", has_files && store->others_note[0] != '\0' ? store->others_note : text);
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

/* The weights of this rank, or of all. */
static qrun_status find_content(const qr_page_store *store, qr_digest *content, qr_error *err) {
    qr_collectives *ranks = ranks_of(store);
    qrun_status status = qr_model_content(store->model, content, err);
    qr_digest all[QR_MAX_RANKS];
    qr_digest_state state;
    if (ranks == NULL) { return status; }
    QR_RETURN_IF_ERROR(qr_agree(ranks, status, err));
    all[ranks->rank] = *content;
    QR_RETURN_IF_ERROR(qr_all_gather(ranks, all, sizeof all[0], err));
    qr_digest_begin(&state);
    qr_digest_add(&state, all, (size_t)ranks->n_ranks * sizeof all[0]);
    *content = qr_digest_end(&state);
    return QRUN_OK;
}

/* All that K/V depend on besides adapter, rotary class and tokens. Without files, only this session reads the names. */
static qrun_status identify(qr_page_store *store, qr_error *err) {
    const qrun_model *model = store->model;
    const int64_t facts[] = {model->act_dtype, store->options.kv_format, (int64_t)store->options.page_bytes,
                             QR_KV_PAGE_TOKENS};
    const int64_t share[] = {model->split.n_ranks, model->split.rank};
    qr_digest_state state;
    if (store->options.folder == NULL) { return QRUN_OK; }
    qr_digest content;
    QR_RETURN_IF_ERROR(find_content(store, &content, err));
    qr_digest_begin(&state);
    qr_digest_add(&state, qrun_version(), strlen(qrun_version()) + 1);
    qr_digest_add(&state, store->backend->name, strlen(store->backend->name) + 1);
    qr_digest_add(&state, store->backend->isa, strlen(store->backend->isa) + 1);
    qr_digest_add(&state, facts, sizeof facts);
    qr_digest_add(&state, &content, sizeof content);
    if (model->split.n_ranks > 0) { qr_digest_add(&state, share, sizeof share); }
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

/* Of several ranks, each has a folder of its own in it: what they have of a page is different. */
static qrun_status open_files(qr_page_store *store, qr_error *err) {
    const qr_page_store_options *options = &store->options;
    const qr_split *split = &store->model->split;
    if (options->folder == NULL) { return QRUN_OK; }
    if (split->n_ranks == 0) {
        return qr_page_files_open(options->folder, options->max_file_bytes, options->page_bytes, &store->files, err);
    }
    const size_t n_bytes = strlen(options->folder) + 48;
    char *folder = qr_alloc(n_bytes);
    if (folder == NULL) { return qr_fail_memory(err, "the folder of kept K/V pages", n_bytes); }
    (void)snprintf(folder, n_bytes, "%s/rank-%d-of-%d", options->folder, (int)split->rank, (int)split->n_ranks);
    const qrun_status status =
        qr_page_files_open(folder, options->max_file_bytes / split->n_ranks, options->page_bytes, &store->files, err);
    qr_free(folder);
    return status;
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
    status = make_slots(made, err);
    if (options->folder != NULL && ranks_of(made) != NULL) { status = qr_agree(ranks_of(made), status, err); }
    QR_TRY(status);
    QR_TRY(identify(made, err));
    QR_TRY(open_files(made, err));
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
