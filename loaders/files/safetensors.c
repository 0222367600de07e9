#include "loaders/files/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/file_map.h"
#include "base/sizes.h"
#include "base/units.h"
#include "loaders/files/hub.h"
#include "loaders/files/json.h"
#include "loaders/files/suffix.h"

enum { LENGTH_BYTES = 8 };
static const size_t MAX_INDEX_BYTES = 100000000;

typedef struct mapped_shard {
    char *path;
    qr_file_map map;
    qr_json *header; /* names and metadata are lent from it */
    const unsigned char *data;
    size_t data_bytes;
    size_t first_tensor;
} mapped_shard;

struct qr_safetensors {
    char *path; /* what was opened, for messages */
    mapped_shard *shards;
    size_t n_shards, shards_capacity;
    qr_safetensors_tensor *tensors;
    size_t n_tensors, tensors_capacity;
    const qr_safetensors_tensor **by_name; /* sorted; a hash table would let a hostile header choose collisions */
    char *names;                           /* of tensors that come from no header */
};

bool qr_safetensors_tensor_bytes(qr_dtype dtype, int n_dims, const int64_t *dims, size_t *n_bytes) {
    int64_t n_bits = qr_dtype_bits(dtype);
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] < 0 || !qr_count_mul(n_bits, dims[i], &n_bits)) { return false; }
    }
    *n_bytes = (size_t)n_bits / 8;
    return n_bits % 8 == 0 && !qr_dtype_is_blocks(dtype);
}

/* ---- one tensor of a header -------------------------------------------------------------------------------------- */

static bool as_count(const qr_json *value, int64_t *count) { return qr_json_as_int(value, 0, INT64_MAX, count); }

static qrun_status fail_tensor(const mapped_shard *s, const char *name, const char *problem, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%.200s\" %s", s->path, name, problem);
}

static qrun_status read_shape(const mapped_shard *s, const qr_json *shape, qr_safetensors_tensor *tensor,
                              qr_error *err) {
    if (!cJSON_IsArray(shape)) { return fail_tensor(s, tensor->name, "has no list \"shape\"", err); }
    for (const qr_json *item = qr_json_first(shape); item != NULL; item = item->next) {
        if (tensor->n_dims == QR_MAX_DIMS) { return fail_tensor(s, tensor->name, "has more than 8 dimensions", err); }
        if (!as_count(item, &tensor->dims[tensor->n_dims])) {
            return fail_tensor(s, tensor->name, "has a size in \"shape\" that is not a non-negative integer", err);
        }
        tensor->n_dims++;
    }
    return QRUN_OK;
}

/* Finds the tensor's bytes; check_coverage looks at the ranges of all tensors together. */
static qrun_status read_offsets(const mapped_shard *s, const qr_json *offsets, qr_safetensors_tensor *tensor,
                                qr_error *err) {
    const qr_json *first = cJSON_IsArray(offsets) ? qr_json_first(offsets) : NULL;
    const qr_json *second = first != NULL ? first->next : NULL;
    int64_t begin, end;
    if (second == NULL || second->next != NULL || !as_count(first, &begin) || !as_count(second, &end)) {
        return fail_tensor(s, tensor->name, "has no \"data_offsets\" of two non-negative integers", err);
    }
    if (begin > end || (uint64_t)end > s->data_bytes) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: tensor \"%.200s\" has data_offsets [%lld, %lld], outside the %zu byte%s of data; the file "
                       "is cut short or damaged, fetch it again",
                       s->path, tensor->name, (long long)begin, (long long)end, s->data_bytes,
                       qr_plural((int64_t)s->data_bytes));
    }
    if (!qr_safetensors_tensor_bytes(tensor->dtype, tensor->n_dims, tensor->dims, &tensor->n_bytes)) {
        return fail_tensor(s, tensor->name, "has a shape whose size overflows or does not fill whole bytes", err);
    }
    if (tensor->n_bytes != (size_t)(end - begin)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%.200s\" needs %zu byte%s by its shape and has %lld",
                       s->path, tensor->name, tensor->n_bytes, qr_plural((int64_t)tensor->n_bytes),
                       (long long)(end - begin));
    }
    tensor->data = s->data + begin;
    return QRUN_OK;
}

static qrun_status read_tensor(const mapped_shard *s, const qr_json *item, qr_safetensors_tensor *tensor,
                               qr_error *err) {
    tensor->name = item->string;
    if (!cJSON_IsObject(item)) { return fail_tensor(s, tensor->name, "is not described by an object", err); }
    const qr_json *dtype = qr_json_get(item, "dtype");
    if (!cJSON_IsString(dtype)) { return fail_tensor(s, tensor->name, "has no string \"dtype\"", err); }
    if (!qr_dtype_from_name(dtype->valuestring, strlen(dtype->valuestring), &tensor->dtype)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "%s: tensor \"%.200s\" has the unknown dtype \"%.40s\"", s->path,
                       tensor->name, dtype->valuestring);
    }
    QR_RETURN_IF_ERROR(read_shape(s, qr_json_get(item, "shape"), tensor, err));
    return read_offsets(s, qr_json_get(item, "data_offsets"), tensor, err);
}

/* ---- one shard --------------------------------------------------------------------------------------------------- */

static int compare_places(const void *a, const void *b) {
    const qr_safetensors_tensor *x = a, *y = b;
    if (x->data != y->data) { return x->data < y->data ? -1 : 1; }
    if (x->n_bytes != y->n_bytes) { return x->n_bytes < y->n_bytes ? -1 : 1; }
    return strcmp(x->name, y->name);
}

/* Tensors in the order of their bytes must follow each other without a gap and end where the file ends. */
static qrun_status check_coverage(const mapped_shard *s, const qr_safetensors_tensor *tensors, size_t n,
                                  qr_error *err) {
    const unsigned char *expected = s->data;
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].data != expected) {
            return fail_tensor(s, tensors[i].name,
                               tensors[i].data < expected ? "overlaps another tensor"
                                                          : "begins after bytes that belong to no tensor",
                               err);
        }
        expected += tensors[i].n_bytes;
    }
    const size_t left = s->data_bytes - (size_t)(expected - s->data);
    if (left == 0) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: no tensor covers the last %zu byte%s", s->path, left,
                   qr_plural((int64_t)left));
}

static qrun_status check_metadata(const mapped_shard *s, qr_error *err) {
    const qr_json *metadata = qr_json_get(s->header, "__metadata__");
    if (qr_json_is_null(metadata)) { return QRUN_OK; }
    bool is_string_map = cJSON_IsObject(metadata);
    for (const qr_json *item = qr_json_first(metadata); is_string_map && item != NULL; item = item->next) {
        is_string_map = cJSON_IsString(item);
    }
    if (is_string_map) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: \"__metadata__\" is not an object of strings", s->path);
}

/* From a copy: the parser relies on a text that does not change under it. */
static qrun_status parse_header(mapped_shard *s, size_t length, qr_error *err) {
    char *copy = qr_strndup((const char *)s->map.data + LENGTH_BYTES, length);
    if (copy == NULL) { return qr_fail_memory(err, s->path, length); }
    qrun_status status = qr_file_map_check(&s->map, s->path, err);
    if (status == QRUN_OK) {
        status = qr_json_parse(copy, length, "header", &s->header, err);
        if (status != QRUN_OK) { qr_error_prefix(err, s->path); }
    }
    qr_free(copy);
    return status;
}

static qrun_status read_header(mapped_shard *s, qr_error *err) {
    if (s->map.size < LENGTH_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: has %zu byte%s, too few for a safetensors file", s->path,
                       s->map.size, qr_plural((int64_t)s->map.size));
    }
    if (qr_file_is_lfs_pointer(s->map.data, s->map.size)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: " QR_LFS_POINTER_HELP, s->path);
    }
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) { length = length << 8 | s->map.data[i]; }
    if (length > QR_SAFETENSORS_MAX_HEADER_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT,
                       "%s: says that its header has %llu bytes, more than the %d allowed; is "
                       "this a safetensors file?",
                       s->path, (unsigned long long)length, QR_SAFETENSORS_MAX_HEADER_BYTES);
    }
    if (length > s->map.size - LENGTH_BYTES) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: ends inside its header; the file is cut short, fetch it again",
                       s->path);
    }
    s->data = s->map.data + LENGTH_BYTES + length;
    s->data_bytes = s->map.size - LENGTH_BYTES - (size_t)length;
    QR_RETURN_IF_ERROR(parse_header(s, (size_t)length, err));
    if (!cJSON_IsObject(s->header)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: its header is not a JSON object", s->path);
    }
    return check_metadata(s, err);
}

/* Maps a file and appends its tensors. Takes over `path`. */
static qrun_status add_shard(qr_safetensors *file, char *path, qr_error *err) {
    if (path == NULL ||
        !qr_array_reserve(&file->shards, &file->shards_capacity, file->n_shards + 1, sizeof(mapped_shard))) {
        qr_free(path);
        return qr_fail_memory(err, file->path, sizeof(mapped_shard));
    }
    mapped_shard *s = &file->shards[file->n_shards];
    *s = (mapped_shard){.path = path, .first_tensor = file->n_tensors};
    const int number = (int)file->n_shards++;
    QR_RETURN_IF_ERROR(qr_file_map_open(path, &s->map, err));
    QR_RETURN_IF_ERROR(read_header(s, err));
    for (const qr_json *item = qr_json_first(s->header); item != NULL; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0) { continue; }
        QR_RETURN_IF_ERROR(qr_array_grow(&file->tensors, &file->tensors_capacity, file->n_tensors + 1,
                                         sizeof *file->tensors, path, err));
        qr_safetensors_tensor *tensor = &file->tensors[file->n_tensors];
        *tensor = (qr_safetensors_tensor){.shard = number};
        QR_RETURN_IF_ERROR(read_tensor(s, item, tensor, err));
        file->n_tensors++;
    }
    const size_t n = file->n_tensors - s->first_tensor;
    if (n == 0) { return check_coverage(s, NULL, 0, err); }
    qr_safetensors_tensor *tensors = file->tensors + s->first_tensor;
    qsort(tensors, n, sizeof *tensors, compare_places);
    return check_coverage(s, tensors, n, err);
}

/* ---- all shards -------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    const qr_safetensors_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static qrun_status sort_names(qr_safetensors *file, qr_error *err) {
    file->by_name = qr_alloc_array(file->n_tensors, sizeof *file->by_name);
    if (file->by_name == NULL) { return qr_fail_memory(err, file->path, file->n_tensors * sizeof *file->by_name); }
    for (size_t i = 0; i < file->n_tensors; i++) { file->by_name[i] = &file->tensors[i]; }
    qsort(file->by_name, file->n_tensors, sizeof *file->by_name, compare_names);
    for (size_t i = 1; i < file->n_tensors; i++) {
        const qr_safetensors_tensor *a = file->by_name[i - 1], *b = file->by_name[i];
        if (strcmp(a->name, b->name) == 0) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%.200s\" occurs twice, also in %s",
                           file->shards[a->shard].path, a->name, file->shards[b->shard].path);
        }
    }
    return QRUN_OK;
}

/* A shard must be in the folder of its index, whatever the index says. */
static bool is_plain_file_name(const char *name) {
    return strlen(name) < 256 && strpbrk(name, "/\\") == NULL && qr_ends_with(name, ".safetensors");
}

/* The shards that an index names, each once. */
typedef struct shard_names {
    const char **list; /* lent from the index */
    size_t n, capacity;
} shard_names;

/* The number of a shard; names->n: it is not there yet. Tensors of one shard follow each other. */
static size_t shard_number(const shard_names *names, const char *name) {
    for (size_t i = names->n; i > 0; i--) {
        if (strcmp(names->list[i - 1], name) == 0) { return i - 1; }
    }
    return names->n;
}

static qrun_status list_shards(const qr_safetensors *file, const qr_json *map, shard_names *names, qr_error *err) {
    for (const qr_json *item = qr_json_first(map); item != NULL; item = item->next) {
        const char *name = item->valuestring;
        if (shard_number(names, name) < names->n) { continue; }
        if (!is_plain_file_name(name)) {
            return qr_fail(err, QRUN_ERROR_INPUT,
                           "%s: \"%.200s\" is not the name of a .safetensors file in the same folder", file->path,
                           name);
        }
        if (names->n == QR_SAFETENSORS_MAX_SHARDS) {
            return qr_fail(err, QRUN_ERROR_INPUT, "%s: names more than %d shards", file->path,
                           QR_SAFETENSORS_MAX_SHARDS);
        }
        QR_RETURN_IF_ERROR(
            qr_array_grow(&names->list, &names->capacity, names->n + 1, sizeof *names->list, "the shards", err));
        names->list[names->n++] = name;
    }
    return QRUN_OK;
}

/* Says all at once which shards a download did not bring, and how to get them. */
static qrun_status check_present(const shard_names *names, const char *folder, qr_error *err) {
    enum { MAX_SHOWN = 3 };
    qr_buffer missing = {0}, command = {0};
    size_t n_missing = 0;
    for (size_t i = 0; i < names->n; i++) {
        char *path = qr_path_join(folder, names->list[i]);
        if (path == NULL) {
            qr_buffer_free(&missing);
            return qr_fail_memory(err, folder, strlen(folder));
        }
        const bool is_missing = access(path, F_OK) != 0 && errno == ENOENT;
        qr_free(path);
        if (is_missing && n_missing++ < MAX_SHOWN) {
            qr_buffer_append_format(&missing, "%s%.80s", n_missing > 1 ? ", " : "", names->list[i]);
        }
    }
    qrun_status status = QRUN_OK;
    if (n_missing > 0) {
        qr_hub_append_command(folder, &command);
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND, "%s: %zu of its %zu files of weights %s missing: %s%s%s", folder,
                         n_missing, names->n, n_missing == 1 ? "is" : "are", missing.data != NULL ? missing.data : "",
                         n_missing > MAX_SHOWN ? " …" : "",
                         command.size > 0 ? command.data : "; put them there, or download the model again");
    }
    qr_buffer_free(&missing);
    qr_buffer_free(&command);
    return status;
}

static qrun_status weight_map_of(const qr_safetensors *file, const qr_json *index, const qr_json **map, qr_error *err) {
    *map = qr_json_get(index, "weight_map");
    if (!cJSON_IsObject(*map) || qr_json_first(*map) == NULL) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: has no \"weight_map\" with tensors", file->path);
    }
    for (const qr_json *item = qr_json_first(*map); item != NULL; item = item->next) {
        if (cJSON_IsString(item)) { continue; }
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: weight_map gives no file name for \"%.200s\"", file->path,
                       item->string);
    }
    return QRUN_OK;
}

static qrun_status open_shards(qr_safetensors *file, const char *folder, qr_error *err) {
    qr_json *index;
    qrun_status status = qr_json_read(file->path, MAX_INDEX_BYTES, &index, err);
    if (status != QRUN_OK) { return status; }
    const qr_json *map;
    shard_names names = {0};
    QR_TRY(weight_map_of(file, index, &map, err));
    QR_TRY(list_shards(file, map, &names, err));
    QR_TRY(check_present(&names, folder, err));
    for (size_t i = 0; i < names.n; i++) { QR_TRY(add_shard(file, qr_path_join(folder, names.list[i]), err)); }
    QR_TRY(sort_names(file, err));
    for (const qr_json *item = qr_json_first(map); item != NULL; item = item->next) {
        const qr_safetensors_tensor *tensor = qr_safetensors_find(file, item->string);
        if (tensor == NULL || (size_t)tensor->shard != shard_number(&names, item->valuestring)) {
            QR_TRY(qr_fail(err, QRUN_ERROR_INPUT, "%s: says that %s holds tensor \"%.200s\", and it does not",
                           file->path, item->valuestring, item->string));
        }
    }
out:
    qr_free(names.list);
    qr_json_free(index);
    return status;
}

static qrun_status open_single(qr_safetensors *file, qr_error *err) {
    QR_RETURN_IF_ERROR(add_shard(file, qr_strdup(file->path), err));
    return sort_names(file, err);
}

static qrun_status open_folder(qr_safetensors *file, const char *folder, qr_error *err) {
    file->path = qr_path_join(folder, "model.safetensors");
    if (file->path == NULL) { return qr_fail_memory(err, folder, strlen(folder)); }
    if (qr_file_exists(file->path)) { return open_single(file, err); }
    qr_free(file->path);
    file->path = qr_path_join(folder, "model.safetensors.index.json");
    if (file->path == NULL) { return qr_fail_memory(err, folder, strlen(folder)); }
    if (qr_file_exists(file->path)) { return open_shards(file, folder, err); }
    return qr_fail(
        err, QRUN_ERROR_NOT_FOUND,
        "%s: has neither model.safetensors nor model.safetensors.index.json; check that the download is whole", folder);
}

qrun_status qr_safetensors_open(const char *path, qr_safetensors **out, qr_error *err) {
    *out = NULL;
    qr_safetensors *file = qr_alloc_zeroed(sizeof *file);
    if (file == NULL) { return qr_fail_memory(err, path, sizeof *file); }
    qrun_status status;
    if (qr_file_is_folder(path)) {
        status = open_folder(file, path, err);
    } else {
        file->path = qr_strdup(path);
        status = file->path != NULL ? open_single(file, err) : qr_fail_memory(err, path, strlen(path));
    }
    if (status == QRUN_OK) {
        *out = file;
    } else {
        qr_safetensors_close(file);
    }
    return status;
}

qrun_status qr_safetensors_from_map(const char *path, qr_file_map *map, qr_safetensors_tensor *tensors,
                                    size_t n_tensors, char *names, qr_safetensors **out, qr_error *err) {
    *out = NULL;
    qrun_status status = QRUN_OK;
    qr_safetensors *file = qr_alloc_zeroed(sizeof *file);
    char *copy = qr_strdup(path);
    if (file == NULL || copy == NULL ||
        !qr_array_reserve(&file->shards, &file->shards_capacity, 1, sizeof *file->shards)) {
        qr_free(copy);
        qr_free(tensors);
        qr_free(names);
        qr_file_map_close(map);
        qr_free(file);
        return qr_fail_memory(err, path, sizeof *file);
    }
    file->shards[file->n_shards++] =
        (mapped_shard){.path = copy, .map = *map, .data = map->data, .data_bytes = map->size};
    *map = (qr_file_map){0};
    file->tensors = tensors;
    file->n_tensors = n_tensors;
    file->names = names;
    QR_TRY((file->path = qr_strdup(path)) != NULL ? QRUN_OK : qr_fail_memory(err, path, strlen(path)));
    qsort(tensors, n_tensors, sizeof *tensors, compare_places);
    QR_TRY(sort_names(file, err));
    *out = file;
out:
    if (status != QRUN_OK) { qr_safetensors_close(file); }
    return status;
}

qrun_status qr_safetensors_replace(qr_safetensors *file, qr_safetensors_tensor *tensors, size_t n_tensors, char *names,
                                   qr_error *err) {
    qr_free(file->by_name);
    qr_free(file->tensors);
    qr_free(file->names);
    file->by_name = NULL;
    file->tensors = tensors;
    file->n_tensors = file->tensors_capacity = n_tensors;
    file->names = names;
    return sort_names(file, err);
}

void qr_safetensors_close(qr_safetensors *file) {
    if (file == NULL) { return; }
    for (size_t i = 0; i < file->n_shards; i++) {
        qr_free(file->shards[i].path);
        qr_file_map_close(&file->shards[i].map);
        qr_json_free(file->shards[i].header);
    }
    qr_free(file->shards);
    qr_free(file->tensors);
    qr_free(file->by_name);
    qr_free(file->names);
    qr_free(file->path);
    qr_free(file);
}

/* ---- using it ---------------------------------------------------------------------------------------------------- */

size_t qr_safetensors_count(const qr_safetensors *file) { return file->n_tensors; }

const qr_safetensors_tensor *qr_safetensors_get(const qr_safetensors *file, size_t i) {
    return i < file->n_tensors ? &file->tensors[i] : NULL;
}

static int compare_with_name(const void *name, const void *tensor) {
    return strcmp(name, (*(const qr_safetensors_tensor *const *)tensor)->name);
}

const qr_safetensors_tensor *qr_safetensors_find(const qr_safetensors *file, const char *name) {
    if (file->n_tensors == 0) { return NULL; }
    const qr_safetensors_tensor **found =
        bsearch(name, file->by_name, file->n_tensors, sizeof *file->by_name, compare_with_name);
    return found != NULL ? *found : NULL;
}

static const char *describe_shape(qr_buffer *text, int n_dims, const int64_t *dims) {
    qr_buffer_append_char(text, '[');
    for (int i = 0; i < n_dims; i++) {
        if (i > 0) { qr_buffer_append_text(text, ", "); }
        if (dims[i] < 0) {
            qr_buffer_append_text(text, "any");
        } else {
            qr_buffer_append_format(text, "%lld", (long long)dims[i]);
        }
    }
    qr_buffer_append_char(text, ']');
    return qr_buffer_ok(text) ? text->data : "another shape";
}

static const char *describe_dtypes(qr_buffer *text, qr_dtype_set dtypes) {
    for (int i = 0; i < QR_DTYPE_COUNT; i++) {
        if ((dtypes & QR_DTYPE_BIT(i)) == 0) { continue; }
        qr_buffer_append_format(text, "%s%s", text->size > 0 ? " or " : "", qr_dtype_name((qr_dtype)i));
    }
    return qr_buffer_ok(text) && text->data != NULL ? text->data : "another type";
}

static bool shape_fits(const qr_safetensors_tensor *tensor, int n_dims, const int64_t *dims) {
    if (tensor->n_dims != n_dims) { return false; }
    for (int i = 0; i < n_dims; i++) {
        if (dims[i] >= 0 && dims[i] != tensor->dims[i]) { return false; }
    }
    return true;
}

qrun_status qr_safetensors_require(const qr_safetensors *file, const char *name, qr_dtype_set dtypes, int n_dims,
                                   const int64_t *dims, const qr_safetensors_tensor **tensor, qr_error *err) {
    *tensor = NULL;
    const qr_safetensors_tensor *found = qr_safetensors_find(file, name);
    if (found == NULL) { return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%s\" is missing", file->path, name); }
    const char *path = file->shards[found->shard].path;
    qrun_status status = QRUN_OK;
    qr_buffer actual = {0}, expected = {0};
    if (!shape_fits(found, n_dims, dims)) {
        status = qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%s\" has shape %s and should have %s", path, name,
                         describe_shape(&actual, found->n_dims, found->dims), describe_shape(&expected, n_dims, dims));
    } else if ((dtypes & QR_DTYPE_BIT(found->dtype)) == 0) {
        status = qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor \"%s\" is %s and should be %s", path, name,
                         qr_dtype_name(found->dtype), describe_dtypes(&expected, dtypes));
    } else {
        *tensor = found;
    }
    qr_buffer_free(&actual);
    qr_buffer_free(&expected);
    return status;
}

qrun_status qr_safetensors_finish(const qr_safetensors *file, const qr_safetensors_tensor *tensor, qr_error *err) {
    const mapped_shard *s = &file->shards[tensor->shard];
    qr_file_map_drop(&s->map, (size_t)(tensor->data - s->map.data), tensor->n_bytes);
    return qr_file_map_check(&s->map, s->path, err);
}

void qr_safetensors_want(const qr_safetensors *file, const qr_safetensors_tensor *tensor, const unsigned char *data,
                         size_t n_bytes) {
    const qr_file_map *map = &file->shards[tensor->shard].map;
    qr_file_map_want(map, (size_t)(data - map->data), n_bytes);
}

qrun_status qr_safetensors_check(const qr_safetensors *file, qr_error *err) {
    for (size_t i = 0; i < file->n_shards; i++) {
        QR_RETURN_IF_ERROR(qr_file_map_check(&file->shards[i].map, file->shards[i].path, err));
    }
    return QRUN_OK;
}

const char *qr_safetensors_metadata(const qr_safetensors *file, const char *key) {
    const qr_json *value = qr_json_get(qr_json_get(file->shards[0].header, "__metadata__"), key);
    return value != NULL ? value->valuestring : NULL;
}

const char *qr_safetensors_shard_path(const qr_safetensors *file, int shard) { return file->shards[shard].path; }
