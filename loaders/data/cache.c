#include "loaders/data/cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "base/sizes.h"

static const char MAGIC[8] = {'Q', 'R', 'D', 'A', 'T', 'A', '0', '3'};
static const char zeros[8];
enum { HEADER_BYTES = 16 };

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static qrun_status append(qr_cache_writer *writer, const void *bytes, size_t n_bytes, qr_error *err) {
    writer->hash = qr_hash_bytes(writer->hash, bytes, n_bytes);
    return qr_file_writer_write(&writer->file, bytes, n_bytes, err);
}

static qrun_status pad(qr_cache_writer *writer, size_t alignment, qr_error *err) {
    const size_t beyond = (size_t)writer->file.offset % alignment;
    return append(writer, zeros, beyond > 0 ? alignment - beyond : 0, err);
}

qrun_status qr_cache_writer_open(qr_cache_writer *writer, const char *path, uint64_t key, qr_error *err) {
    *writer = (qr_cache_writer){.hash = QR_HASH_START};
    QR_RETURN_IF_ERROR(qr_file_writer_open(&writer->file, path, err));
    QR_RETURN_IF_ERROR(append(writer, MAGIC, sizeof MAGIC, err));
    return append(writer, &key, sizeof key, err);
}

qrun_status qr_cache_writer_add(qr_cache_writer *writer, const qr_example *example, qr_error *err) {
    const size_t n = (size_t)example->n_tokens;
    QR_RETURN_IF_ERROR(qr_array_grow(&writer->entries, &writer->capacity, writer->n_entries + 1,
                                     sizeof *writer->entries, "the index of the data set", err));
    writer->entries[writer->n_entries++] = (qr_cache_entry){.offset = (uint64_t)writer->file.offset,
                                                            .line = example->line,
                                                            .n_tokens = (int32_t)example->n_tokens,
                                                            .n_targets = (int32_t)example->n_targets,
                                                            .n_chosen = (int32_t)example->n_chosen};
    QR_RETURN_IF_ERROR(append(writer, example->ids, n * sizeof *example->ids, err));
    QR_RETURN_IF_ERROR(append(writer, example->is_target, n, err));
    return pad(writer, sizeof *example->ids, err);
}

qrun_status qr_cache_writer_commit(qr_cache_writer *writer, const qr_dataset_info *info, qr_error *err) {
    qr_cache_footer footer;
    memset(&footer, 0, sizeof footer); /* its padding goes into the file */
    qrun_status status;
    QR_TRY(pad(writer, sizeof(uint64_t), err));
    footer.index_offset = (uint64_t)writer->file.offset;
    footer.info = *info;
    if (writer->n_entries > 0) {
        QR_TRY(append(writer, writer->entries, writer->n_entries * sizeof *writer->entries, err));
    }
    QR_TRY(append(writer, &footer, offsetof(qr_cache_footer, checksum), err));
    footer.checksum = writer->hash;
    QR_TRY(append(writer, &footer.checksum, sizeof footer.checksum, err));
    QR_TRY(qr_file_writer_commit(&writer->file, err));
out:
    qr_cache_writer_abort(writer);
    return status;
}

void qr_cache_writer_abort(qr_cache_writer *writer) {
    qr_file_writer_abort(&writer->file);
    qr_free(writer->entries);
    *writer = (qr_cache_writer){0};
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Nothing predicts the first token of a sequence, and a pair has a target in each. */
static bool check_mask(const qr_cache *cache, const qr_cache_entry *entry) {
    const unsigned char *is_target = cache->map.data + entry->offset + (size_t)entry->n_tokens * sizeof(int32_t);
    const int32_t n_chosen = entry->n_chosen;
    int32_t n_targets = 0, n_chosen_targets = 0;
    for (int32_t t = 0; t < entry->n_tokens; t++) {
        if (is_target[t] > 1) { return false; }
        n_targets += is_target[t];
        n_chosen_targets += t < n_chosen ? is_target[t] : 0;
    }
    const bool is_whole =
        n_chosen == 0 || (is_target[n_chosen] == 0 && n_chosen_targets > 0 && n_chosen_targets < n_targets);
    return is_target[0] == 0 && n_targets == entry->n_targets && is_whole;
}

static bool check_entries(const qr_cache *cache, uint64_t end) {
    const bool has_pairs = qr_dataset_format_is_preference((qr_dataset_format)cache->info.format);
    int64_t n_tokens = 0, n_targets = 0, longest = 0;
    for (int64_t i = 0; i < cache->info.n_examples; i++) {
        const qr_cache_entry *entry = &cache->entries[i];
        if (entry->n_tokens < 1 || entry->n_targets < 1 || entry->n_targets > entry->n_tokens) { return false; }
        if (entry->n_chosen < 0 || entry->n_chosen >= entry->n_tokens || (entry->n_chosen > 0) != has_pairs) {
            return false;
        }
        const uint64_t n_bytes = (uint64_t)entry->n_tokens * (sizeof(int32_t) + 1);
        if (entry->offset % sizeof(int32_t) != 0 || entry->offset < HEADER_BYTES || entry->offset > end ||
            n_bytes > end - entry->offset || !check_mask(cache, entry)) {
            return false;
        }
        n_tokens += entry->n_tokens;
        n_targets += entry->n_targets;
        longest = qr_max(longest, entry->n_tokens);
    }
    return n_tokens == cache->info.n_tokens && n_targets == cache->info.n_targets &&
           longest == cache->info.longest_tokens;
}

static bool check(qr_cache *cache, uint64_t key) {
    const qr_file_map *map = &cache->map;
    qr_cache_footer footer;
    if (map->size < HEADER_BYTES + sizeof footer || memcmp(map->data, MAGIC, sizeof MAGIC) != 0 ||
        memcmp(map->data + sizeof MAGIC, &key, sizeof key) != 0) {
        return false;
    }
    memcpy(&footer, map->data + map->size - sizeof footer, sizeof footer);
    const uint64_t n_hashed = map->size - sizeof footer.checksum, index_end = map->size - sizeof footer;
    if (qr_hash_bytes(QR_HASH_START, map->data, n_hashed) != footer.checksum) { return false; }
    if (footer.index_offset % sizeof(uint64_t) != 0 || footer.index_offset < HEADER_BYTES ||
        footer.index_offset > index_end || footer.info.n_examples < 1 || footer.info.format < 0 ||
        footer.info.format >= QR_DATASET_FORMAT_COUNT ||
        (index_end - footer.index_offset) / sizeof(qr_cache_entry) != (uint64_t)footer.info.n_examples ||
        (index_end - footer.index_offset) % sizeof(qr_cache_entry) != 0 ||
        memchr(footer.info.first_bad, 0, sizeof footer.info.first_bad) == NULL ||
        memchr(footer.info.unknown_members, 0, sizeof footer.info.unknown_members) == NULL) {
        return false;
    }
    cache->entries = (const void *)(map->data + footer.index_offset);
    cache->info = footer.info;
    return check_entries(cache, footer.index_offset);
}

qrun_status qr_cache_open(qr_cache *cache, const char *path, uint64_t key, qr_error *err) {
    *cache = (qr_cache){0};
    QR_RETURN_IF_ERROR(qr_file_map_open(path, &cache->map, err));
    cache->path = qr_strdup(path);
    if (cache->path == NULL) {
        qr_cache_close(cache);
        return qr_fail_memory(err, path, strlen(path));
    }
    if (check(cache, key)) { return QRUN_OK; }
    qr_cache_close(cache);
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: is not a whole file of tokenised data; remove it", path);
}

qrun_status qr_cache_check(const qr_cache *cache, qr_error *err) {
    return qr_file_map_check(&cache->map, cache->path, err);
}

void qr_cache_close(qr_cache *cache) {
    qr_free(cache->path);
    qr_file_map_close(&cache->map);
    *cache = (qr_cache){0};
}

qr_example qr_cache_get(const qr_cache *cache, int64_t i) {
    const qr_cache_entry *entry = &cache->entries[i];
    const unsigned char *ids = cache->map.data + entry->offset;
    return (qr_example){.ids = (const void *)ids,
                        .is_target = ids + (size_t)entry->n_tokens * sizeof(int32_t),
                        .n_tokens = entry->n_tokens,
                        .n_targets = entry->n_targets,
                        .n_chosen = entry->n_chosen,
                        .line = entry->line};
}
