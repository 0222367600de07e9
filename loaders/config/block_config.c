#include "loaders/config/block_config.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "base/units.h"

enum { MOST_BLOCKS = 1 << 12 };

/* In a list, in a list of an older file, and in a pattern. */
static const struct {
    const char *name, *older;
    char letter;
} kinds[] = {[QR_BLOCK_SPACE] = {"linear_attention", "mamba", 'M'},
             [QR_BLOCK_ATTENTION] = {"full_attention", "attention", '*'},
             [QR_BLOCK_MLP] = {"mlp", "mlp", '-'},
             [QR_BLOCK_EXPERTS] = {"moe", "moe", 'E'}};

typedef struct source {
    const char *what;
    qr_block **blocks;
    int64_t *n_blocks;
    qr_error *err;
} source;

static qrun_status make_room(const source *s, size_t n) {
    if (n < 1 || n > MOST_BLOCKS) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: has %zu blocks, and a model has from 1 to %d", s->what, n,
                       MOST_BLOCKS);
    }
    *s->n_blocks = (int64_t)n;
    *s->blocks = qr_alloc_array(n, sizeof **s->blocks);
    return *s->blocks != NULL ? QRUN_OK : qr_fail_memory(s->err, s->what, n * sizeof **s->blocks);
}

static qrun_status read_list(const source *s, const char *key, const qr_json *list) {
    size_t n = 0;
    if (!cJSON_IsArray(list)) {
        return qr_fail(s->err, QRUN_ERROR_INPUT, "%s: \"%s\" should be a list of blocks", s->what, key);
    }
    QR_RETURN_IF_ERROR(make_room(s, qr_json_count(list)));
    for (const qr_json *item = qr_json_first(list); item != NULL; item = item->next, n++) {
        const char *type = cJSON_IsString(item) ? item->valuestring : "?";
        size_t kind = 0;
        while (kind < QR_COUNT_OF(kinds) && strcmp(type, kinds[kind].name) != 0 &&
               strcmp(type, kinds[kind].older) != 0) {
            kind++;
        }
        if (kind == QR_COUNT_OF(kinds)) {
            return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" has a block \"%.60s\", which is not supported",
                           s->what, key, type);
        }
        (*s->blocks)[n] = (qr_block)kind;
    }
    return QRUN_OK;
}

static qrun_status read_pattern(const source *s, const char *key, const char *pattern) {
    const size_t length = strlen(pattern);
    QR_RETURN_IF_ERROR(make_room(s, length));
    for (size_t n = 0; n < length; n++) {
        size_t kind = 0;
        while (kind < QR_COUNT_OF(kinds) && pattern[n] != kinds[kind].letter) { kind++; }
        if (kind == QR_COUNT_OF(kinds)) {
            return qr_fail(s->err, QRUN_ERROR_UNSUPPORTED, "%s: \"%s\" has a block that is none of M, *, - and E",
                           s->what, key);
        }
        (*s->blocks)[n] = (qr_block)kind;
    }
    return QRUN_OK;
}

static qrun_status read_blocks(const source *s, const qr_json *json) {
    static const char *const lists[] = {"layers_block_type", "layer_types"};
    static const char PATTERN[] = "hybrid_override_pattern";
    const char *pattern = "ME*-";
    for (size_t i = 0; i < QR_COUNT_OF(lists); i++) {
        const qr_json *list = qr_json_get(json, lists[i]);
        if (!qr_json_is_null(list)) { return read_list(s, lists[i], list); }
    }
    QR_RETURN_IF_ERROR(qr_json_get_string(json, PATTERN, &pattern, s->what, s->err));
    return read_pattern(s, PATTERN, pattern);
}

bool qr_blocks_have(const qr_block *blocks, int64_t n_blocks, qr_block kind) {
    for (int64_t i = 0; i < n_blocks; i++) {
        if (blocks[i] == kind) { return true; }
    }
    return false;
}

qrun_status qr_blocks_read(const qr_json *json, const char *what, qr_block **blocks, int64_t *n_blocks, qr_error *err) {
    const source s = {.what = what, .blocks = blocks, .n_blocks = n_blocks, .err = err};
    *blocks = NULL;
    *n_blocks = 0;
    QR_RETURN_IF_ERROR(read_blocks(&s, json));
    int64_t n_layers = *n_blocks;
    QR_RETURN_IF_ERROR(qr_json_get_int(json, "num_hidden_layers", 1, MOST_BLOCKS, &n_layers, what, err));
    if (n_layers != *n_blocks) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: lists %lld block%s, but \"num_hidden_layers\" is %lld", what,
                       (long long)*n_blocks, qr_plural(*n_blocks), (long long)n_layers);
    }
    if (qr_blocks_have(*blocks, *n_blocks, QR_BLOCK_ATTENTION)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: no block is \"%s\", and a model needs at least one", what,
                   kinds[QR_BLOCK_ATTENTION].name);
}
