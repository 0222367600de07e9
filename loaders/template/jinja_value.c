/* Values, their arena, dicts and text under construction. */
#include "loaders/template/jinja_value.h"

#include <stdalign.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/utf8.h"
#include "loaders/template/jinja_run.h"

/* --- arena --- */

struct qr_jinja_chunk {
    qr_jinja_chunk *older;
    size_t capacity;
    size_t used;
    alignas(16) unsigned char bytes[];
};

enum { CHUNK_BYTES = 16 * 1024, ALIGNMENT = 16 };

void *qr_jinja_arena_take(qr_jinja_arena *arena, size_t n_bytes) {
    size_t rounded;
    if (!qr_size_align(n_bytes, ALIGNMENT, &rounded)) { return NULL; }
    qr_jinja_chunk *chunk = arena->newest;
    if (chunk == NULL || chunk->capacity - chunk->used < rounded) {
        size_t capacity = chunk == NULL ? CHUNK_BYTES : chunk->capacity < (1U << 20) ? chunk->capacity * 2 : 1U << 20;
        if (capacity < rounded) { capacity = rounded; }
        size_t total;
        if (!qr_size_add(capacity, sizeof(qr_jinja_chunk), &total)) { return NULL; }
        chunk = qr_alloc(total);
        if (chunk == NULL) { return NULL; }
        *chunk = (qr_jinja_chunk){.older = arena->newest, .capacity = capacity};
        arena->newest = chunk;
        arena->n_bytes += total;
    }
    void *block = chunk->bytes + chunk->used;
    chunk->used += rounded;
    return block;
}

void *qr_jinja_arena_grow(qr_jinja_arena *arena, void *block, size_t old_bytes, size_t n_bytes) {
    qr_jinja_chunk *chunk = arena->newest;
    size_t old_rounded, rounded;
    if (!qr_size_align(old_bytes, ALIGNMENT, &old_rounded) || !qr_size_align(n_bytes, ALIGNMENT, &rounded)) {
        return NULL;
    }
    if (block != NULL && chunk != NULL && chunk->used >= old_rounded &&
        chunk->bytes + chunk->used - old_rounded == (unsigned char *)block &&
        chunk->capacity - chunk->used >= rounded - old_rounded) {
        chunk->used += rounded - old_rounded;
        return block;
    }
    void *moved = qr_jinja_arena_take(arena, n_bytes);
    if (moved != NULL && old_bytes > 0) { memcpy(moved, block, old_bytes); }
    return moved;
}

void qr_jinja_arena_free(qr_jinja_arena *arena) {
    while (arena->newest != NULL) {
        qr_jinja_chunk *older = arena->newest->older;
        qr_free(arena->newest);
        arena->newest = older;
    }
    arena->n_bytes = 0;
}

/* --- the run --- */

qr_jinja_value qr_jinja_error(qr_jinja_run *run, const char *fmt, ...) {
    if (run->status == QRUN_OK) {
        qr_error text = {0};
        va_list args;
        va_start(args, fmt);
        (void)qr_vfail(&text, QRUN_ERROR_INPUT, fmt, args);
        va_end(args);
        run->status = qr_fail(run->err, QRUN_ERROR_INPUT, "%s: line %d: %s", run->what, run->line, text.message);
    }
    return qr_jinja_undefined();
}

bool qr_jinja_failed(const qr_jinja_run *run) { return run->status != QRUN_OK; }

bool qr_jinja_enter(qr_jinja_run *run) {
    run->depth++;
    if (run->depth > QR_JINJA_MAX_DEPTH) {
        (void)qr_jinja_error(run, "nested deeper than %d levels", (int)QR_JINJA_MAX_DEPTH);
    }
    return !qr_jinja_failed(run);
}

void qr_jinja_leave(qr_jinja_run *run) { run->depth--; }

bool qr_jinja_walk(qr_jinja_run *run, size_t n_bytes) {
    const size_t most = (size_t)QR_JINJA_MAX_STEPS * QR_JINJA_STEP_BYTES;
    if (n_bytes > most || run->n_walked > most - n_bytes) {
        (void)qr_jinja_error(run, "the template takes more than %d steps to render", (int)QR_JINJA_MAX_STEPS);
    } else {
        run->n_walked += n_bytes;
    }
    return !qr_jinja_failed(run);
}

bool qr_jinja_step(qr_jinja_run *run, size_t n_items) {
    size_t n_bytes;
    return qr_jinja_walk(run, qr_size_mul(n_items, QR_JINJA_STEP_BYTES, &n_bytes) ? n_bytes : SIZE_MAX);
}

static bool charge_memory(qr_jinja_run *run, size_t n_bytes) {
    if (qr_jinja_failed(run)) { return false; }
    if (n_bytes > QR_JINJA_MAX_BYTES || run->arena->n_bytes > QR_JINJA_MAX_BYTES - n_bytes) {
        (void)qr_jinja_error(run, "the template needs more than %d MiB to render", (int)(QR_JINJA_MAX_BYTES >> 20));
    }
    return qr_jinja_walk(run, 8 + n_bytes / 8);
}

static void fail_memory(qr_jinja_run *run, size_t n_bytes) {
    if (run->status == QRUN_OK) { run->status = qr_fail_memory(run->err, run->what, n_bytes); }
}

void *qr_jinja_take(qr_jinja_run *run, size_t n_bytes) {
    if (!charge_memory(run, n_bytes)) { return NULL; }
    void *block = qr_jinja_arena_take(run->arena, n_bytes);
    if (block == NULL) {
        fail_memory(run, n_bytes);
        return NULL;
    }
    memset(block, 0, n_bytes);
    return block;
}

bool qr_jinja_reserve(qr_jinja_run *run, void *array, size_t *capacity, size_t needed, size_t size) {
    if (qr_jinja_failed(run)) { return false; }
    if (needed <= *capacity) { return true; }
    size_t wanted = *capacity == 0 ? 4 : *capacity;
    while (wanted < needed) { wanted *= 2; }
    size_t n_bytes;
    if (!qr_size_mul(wanted, size, &n_bytes)) { n_bytes = SIZE_MAX; }
    if (!charge_memory(run, n_bytes)) { return false; }
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = qr_jinja_arena_grow(run->arena, old, *capacity * size, n_bytes);
    if (grown == NULL) {
        fail_memory(run, n_bytes);
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

/* --- values --- */

qr_jinja_value qr_jinja_absent(qr_jinja_run *run, qr_jinja_absence_reason reason, const char *owner,
                               qr_jinja_value key) {
    qr_jinja_absence *absence = qr_jinja_take(run, sizeof *absence);
    if (absence == NULL) { return qr_jinja_undefined(); }
    absence->reason = reason;
    absence->owner = owner;
    absence->key = key;
    return (qr_jinja_value){.type = QR_JINJA_UNDEFINED, .absence = absence};
}

static qr_jinja_string failed_string = {"", 0, 0, false};

qr_jinja_value qr_jinja_lend(qr_jinja_run *run, const char *data, size_t size) {
    qr_jinja_string *string = qr_jinja_take(run, sizeof *string);
    if (string == NULL) { return (qr_jinja_value){.type = QR_JINJA_STRING, .string = &failed_string}; }
    string->data = data;
    string->size = size;
    return (qr_jinja_value){.type = QR_JINJA_STRING, .string = string};
}

qr_jinja_value qr_jinja_text(qr_jinja_run *run, const char *text) { return qr_jinja_lend(run, text, strlen(text)); }

qr_jinja_value qr_jinja_copy(qr_jinja_run *run, const char *data, size_t size) {
    if (size == 0) { return qr_jinja_lend(run, "", 0); }
    char *copy = qr_jinja_take(run, size);
    if (copy == NULL) { return qr_jinja_text(run, ""); }
    memcpy(copy, data, size);
    return qr_jinja_lend(run, copy, size);
}

qr_jinja_value qr_jinja_with_safety(const qr_jinja_run *run, qr_jinja_value text, bool safe) {
    if (!qr_jinja_failed(run)) { text.string->safe = safe; } /* a failed run's string is shared */
    return text;
}

qr_jinja_list *qr_jinja_list_create(qr_jinja_run *run, size_t capacity) {
    static qr_jinja_list failed_list;
    qr_jinja_list *list = qr_jinja_take(run, sizeof *list);
    if (list == NULL) { return &failed_list; }
    if (capacity > 0) { (void)qr_jinja_reserve(run, &list->items, &list->capacity, capacity, sizeof *list->items); }
    return list;
}

void qr_jinja_list_append(qr_jinja_run *run, qr_jinja_list *list, qr_jinja_value item) {
    if (!qr_jinja_reserve(run, &list->items, &list->capacity, list->n_items + 1, sizeof *list->items)) { return; }
    list->items[list->n_items++] = item;
}

void qr_jinja_list_extend(qr_jinja_run *run, qr_jinja_list *list, const qr_jinja_value *items, size_t n_items) {
    for (size_t i = 0; i < n_items; i++) { qr_jinja_list_append(run, list, items[i]); }
}

qr_jinja_value qr_jinja_tuple(qr_jinja_run *run, const qr_jinja_value *items, size_t n_items) {
    qr_jinja_list *list = qr_jinja_list_create(run, n_items);
    qr_jinja_list_extend(run, list, items, n_items);
    return qr_jinja_from_list(QR_JINJA_TUPLE, list);
}

qr_jinja_value qr_jinja_pair(qr_jinja_run *run, qr_jinja_value first, qr_jinja_value second) {
    return qr_jinja_tuple(run, (qr_jinja_value[]){first, second}, 2);
}

/* --- dicts --- */

enum { SMALL_DICT = 8 };

qr_jinja_dict *qr_jinja_dict_create(qr_jinja_run *run) {
    static qr_jinja_dict failed_dict;
    qr_jinja_dict *dict = qr_jinja_take(run, sizeof *dict);
    return dict != NULL ? dict : &failed_dict;
}

static void index_entry(qr_jinja_dict *dict, size_t number) {
    size_t slot = (size_t)dict->entries[number].hash & (dict->n_slots - 1);
    while (dict->slots[slot] != 0) { slot = (slot + 1) & (dict->n_slots - 1); }
    dict->slots[slot] = (uint32_t)number + 1;
}

static bool index_all(qr_jinja_run *run, qr_jinja_dict *dict, size_t n_slots) {
    uint32_t *slots = qr_jinja_take(run, n_slots * sizeof *slots);
    if (slots == NULL) { return false; }
    dict->slots = slots;
    dict->n_slots = n_slots;
    for (size_t i = 0; i < dict->n_entries; i++) { index_entry(dict, i); }
    return true;
}

static qr_jinja_entry *find_entry(qr_jinja_run *run, const qr_jinja_dict *dict, qr_jinja_value key, uint64_t hash) {
    if (dict->n_slots == 0) {
        for (size_t i = 0; i < dict->n_entries; i++) {
            qr_jinja_entry *entry = &dict->entries[i];
            if (entry->hash == hash && qr_jinja_equal(run, entry->key, key)) { return entry; }
        }
        return NULL;
    }
    for (size_t slot = (size_t)hash & (dict->n_slots - 1); dict->slots[slot] != 0;
         slot = (slot + 1) & (dict->n_slots - 1)) {
        qr_jinja_entry *entry = &dict->entries[dict->slots[slot] - 1];
        if (entry->hash == hash && qr_jinja_equal(run, entry->key, key)) { return entry; }
        if (!qr_jinja_step(run, 1)) { return NULL; }
    }
    return NULL;
}

bool qr_jinja_dict_set(qr_jinja_run *run, qr_jinja_dict *dict, qr_jinja_value key, qr_jinja_value value) {
    const uint64_t hash = qr_jinja_hash(run, key);
    if (qr_jinja_failed(run)) { return false; }
    qr_jinja_entry *entry = find_entry(run, dict, key, hash);
    if (entry != NULL) {
        entry->value = value;
        return true;
    }
    if (!qr_jinja_reserve(run, &dict->entries, &dict->capacity, dict->n_entries + 1, sizeof *dict->entries)) {
        return false;
    }
    const size_t n = dict->n_entries + 1;
    if (n > SMALL_DICT && 2 * n > dict->n_slots && !index_all(run, dict, dict->n_slots == 0 ? 32 : dict->n_slots * 2)) {
        return false;
    }
    dict->entries[dict->n_entries++] = (qr_jinja_entry){.key = key, .value = value, .hash = hash};
    if (dict->n_slots > 0) { index_entry(dict, n - 1); }
    return true;
}

qr_jinja_value *qr_jinja_dict_find(qr_jinja_run *run, const qr_jinja_dict *dict, qr_jinja_value key) {
    const uint64_t hash = qr_jinja_hash(run, key);
    if (qr_jinja_failed(run)) { return NULL; }
    qr_jinja_entry *entry = find_entry(run, dict, key, hash);
    return entry != NULL ? &entry->value : NULL;
}

qr_jinja_value *qr_jinja_dict_find_text(qr_jinja_run *run, const qr_jinja_dict *dict, const char *key) {
    qr_jinja_string string = {.data = key, .size = strlen(key)};
    return qr_jinja_dict_find(run, dict, (qr_jinja_value){.type = QR_JINJA_STRING, .string = &string});
}

qr_jinja_list *qr_jinja_pairs(qr_jinja_run *run, const qr_jinja_dict *dict) {
    qr_jinja_list *pairs = qr_jinja_list_create(run, dict->n_entries);
    for (size_t i = 0; i < dict->n_entries && !qr_jinja_failed(run); i++) {
        qr_jinja_list_append(run, pairs, qr_jinja_pair(run, dict->entries[i].key, dict->entries[i].value));
    }
    return pairs;
}

/* --- text --- */

void qr_jinja_append(qr_jinja_builder *builder, const char *data, size_t size) {
    if (size == 0 || !qr_jinja_walk(builder->run, size)) { return; }
    size_t needed;
    if (!qr_size_add(builder->size, size, &needed)) { needed = SIZE_MAX; }
    if (needed > QR_JINJA_MAX_BYTES) {
        (void)qr_jinja_error(builder->run, "the text grows over %d MiB", (int)(QR_JINJA_MAX_BYTES >> 20));
        return;
    }
    if (!qr_jinja_reserve(builder->run, &builder->data, &builder->capacity, needed, 1)) { return; }
    memcpy(builder->data + builder->size, data, size);
    builder->size = needed;
}

void qr_jinja_append_text(qr_jinja_builder *builder, const char *text) { qr_jinja_append(builder, text, strlen(text)); }

void qr_jinja_append_times(qr_jinja_builder *builder, const char *data, size_t size, int64_t n) {
    for (int64_t i = 0; i < n && qr_jinja_step(builder->run, 1); i++) { qr_jinja_append(builder, data, size); }
}

void qr_jinja_append_code_point(qr_jinja_builder *builder, uint32_t code_point) {
    char bytes[4];
    qr_jinja_append(builder, bytes, qr_utf8_encode(code_point, bytes));
}

qr_jinja_value qr_jinja_built(qr_jinja_builder *builder) {
    const qr_jinja_value text = qr_jinja_lend(builder->run, builder->size > 0 ? builder->data : "", builder->size);
    *builder = (qr_jinja_builder){.run = builder->run};
    return text;
}

size_t qr_jinja_char_count(qr_jinja_run *run, const char *data, size_t size) {
    size_t n = 0;
    if (!qr_jinja_walk(run, size)) { return 0; }
    for (size_t i = 0; i < size; i++) { n += ((unsigned char)data[i] & 0xC0U) != 0x80U; }
    return n;
}

size_t qr_jinja_char_offset(qr_jinja_run *run, const char *data, size_t size, size_t index) {
    size_t i = 0;
    if (!qr_jinja_walk(run, index < size ? 4 * index : size)) { return 0; }
    while (i < size) {
        if (((unsigned char)data[i] & 0xC0U) != 0x80U) {
            if (index == 0) { break; }
            index--;
        }
        i++;
    }
    return i;
}
