#include "loaders/files/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"
#include "base/units.h"
#include "base/utf8.h"

enum { MAX_VALUES = 1 << 16, MAX_TENSORS = 1 << 17, MAX_NAME_BYTES = 255, MAX_DIMS = 4, MAX_ALIGNMENT = 1 << 16 };
static const char MAGIC[4] = {'G', 'G', 'U', 'F'};

/* A value of the metadata. */
typedef struct entry {
    qr_gguf_text key;
    qr_gguf_type type, item_type; /* item_type: of a list */
    uint64_t n_items;             /* of a list */
    const unsigned char *data;    /* the value, or the first item */
    size_t n_bytes;
} entry;

struct qr_gguf {
    char *path;
    qr_file_map map;
    entry *entries; /* sorted by key */
    size_t n_entries, entries_capacity;
    qr_gguf_tensor *tensors;
    size_t n_tensors, tensors_capacity;
};

static const struct {
    const char *name;
    size_t bytes;
} types[QR_GGUF_TYPE_COUNT] = {
#define QR_X(suffix, name, bytes) {name, bytes},
    QR_GGUF_TYPES(QR_X)
#undef QR_X
};

/* ---- Tensor types ------------------------------------------------------------------------------------------------ */

static const struct {
    uint32_t number;
    qr_dtype dtype;
} tensor_types[] = {
    {0, QR_DTYPE_F32},     {1, QR_DTYPE_F16},   {2, QR_DTYPE_Q4_0},   {3, QR_DTYPE_Q4_1},  {6, QR_DTYPE_Q5_0},
    {7, QR_DTYPE_Q5_1},    {8, QR_DTYPE_Q8_0},  {12, QR_DTYPE_Q4_K},  {13, QR_DTYPE_Q5_K}, {14, QR_DTYPE_Q6_K},
    {20, QR_DTYPE_IQ4_NL}, {30, QR_DTYPE_BF16}, {39, QR_DTYPE_MXFP4},
};

bool qr_gguf_dtype(uint32_t number, qr_dtype *dtype) {
    for (size_t i = 0; i < QR_COUNT_OF(tensor_types); i++) {
        if (tensor_types[i].number != number) { continue; }
        *dtype = tensor_types[i].dtype;
        return true;
    }
    return false;
}

uint32_t qr_gguf_dtype_number(qr_dtype dtype) {
    size_t i = 0;
    while (i + 1 < QR_COUNT_OF(tensor_types) && tensor_types[i].dtype != dtype) { i++; }
    return tensor_types[i].number;
}

/* What users meet that is not read. */
static const char *unread_type_name(uint32_t number) {
    static const char *const names[] = {
        [10] = "Q2_K",    [11] = "Q3_K",  [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS",
        [18] = "IQ3_XXS", [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS",
        [24] = "I8",      [25] = "I16",   [26] = "I32",   [27] = "I64",     [28] = "F64",
        [29] = "IQ1_M",   [34] = "TQ1_0", [35] = "TQ2_0", [40] = "NVFP4",
    };
    return number < QR_COUNT_OF(names) ? names[number] : NULL;
}

/* ---- Reading forwards -------------------------------------------------------------------------------------------- */

/* Every read is checked against the end of the map, and a length is read once. */
typedef struct cursor {
    const qr_gguf *file;
    const unsigned char *at, *end;
    const char *where; /* for messages */
    qr_error *err;
} cursor;

static qrun_status fail_end(const cursor *c) {
    return qr_fail(c->err, QRUN_ERROR_INPUT, "%s: ends inside %s; the file is cut short, fetch it again", c->file->path,
                   c->where);
}

static qrun_status take(cursor *c, uint64_t n, const unsigned char **bytes) {
    *bytes = c->at;
    if (n > (uint64_t)(c->end - c->at)) { return fail_end(c); }
    c->at += n;
    return QRUN_OK;
}

static uint64_t little_endian(const unsigned char *bytes, size_t n) {
    uint64_t value = 0;
    for (size_t i = n; i > 0; i--) { value = value << 8 | bytes[i - 1]; }
    return value;
}

static qrun_status take_number(cursor *c, size_t n_bytes, uint64_t *value) {
    const unsigned char *bytes;
    *value = 0;
    QR_RETURN_IF_ERROR(take(c, n_bytes, &bytes));
    *value = little_endian(bytes, n_bytes);
    return QRUN_OK;
}

static qrun_status take_text(cursor *c, qr_gguf_text *text) {
    uint64_t n;
    const unsigned char *bytes;
    QR_RETURN_IF_ERROR(take_number(c, 8, &n));
    QR_RETURN_IF_ERROR(take(c, n, &bytes));
    *text = (qr_gguf_text){(const char *)bytes, (size_t)n};
    return QRUN_OK;
}

static bool is_name(qr_gguf_text text) {
    return text.n > 0 && text.n <= MAX_NAME_BYTES && qr_utf8_valid_prefix(text.bytes, text.n) == text.n &&
           memchr(text.bytes, 0, text.n) == NULL;
}

static qrun_status take_name(cursor *c, const char *what, qr_gguf_text *name) {
    QR_RETURN_IF_ERROR(take_text(c, name));
    if (is_name(*name)) { return QRUN_OK; }
    return qr_fail(c->err, QRUN_ERROR_INPUT, "%s: %s is not 1 to %d bytes of UTF-8", c->file->path, what,
                   MAX_NAME_BYTES);
}

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

static qrun_status fail_entry(const qr_gguf *file, qr_gguf_text key, const char *problem, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: %.*s %s", file->path, (int)key.n, key.bytes, problem);
}

static qrun_status take_type(cursor *c, qr_gguf_text key, qr_gguf_type *type) {
    uint64_t number;
    QR_RETURN_IF_ERROR(take_number(c, 4, &number));
    if (number >= QR_GGUF_TYPE_COUNT) { return fail_entry(c->file, key, "has a type that is none of GGUF's", c->err); }
    *type = (qr_gguf_type)number;
    return QRUN_OK;
}

/* Of an item of a list: a text begins with its length. */
static size_t least_bytes(qr_gguf_type type) { return type == QR_GGUF_STRING ? 8 : types[type].bytes; }

static qrun_status take_list(cursor *c, entry *e) {
    QR_RETURN_IF_ERROR(take_type(c, e->key, &e->item_type));
    if (e->item_type == QR_GGUF_ARRAY) { return fail_entry(c->file, e->key, "is a list of lists", c->err); }
    QR_RETURN_IF_ERROR(take_number(c, 8, &e->n_items));
    if (e->n_items > (uint64_t)(c->end - c->at) / least_bytes(e->item_type)) { return fail_end(c); }
    if (e->item_type != QR_GGUF_STRING) { return take(c, e->n_items * types[e->item_type].bytes, &e->data); }
    e->data = c->at;
    for (uint64_t i = 0; i < e->n_items; i++) {
        qr_gguf_text text;
        QR_RETURN_IF_ERROR(take_text(c, &text));
    }
    return QRUN_OK;
}

static qrun_status take_entry(cursor *c, entry *e) {
    QR_RETURN_IF_ERROR(take_name(c, "a key of the metadata", &e->key));
    QR_RETURN_IF_ERROR(take_type(c, e->key, &e->type));
    if (e->type == QR_GGUF_ARRAY) {
        QR_RETURN_IF_ERROR(take_list(c, e));
    } else if (e->type == QR_GGUF_STRING) {
        qr_gguf_text text;
        QR_RETURN_IF_ERROR(take_text(c, &text));
        e->data = (const unsigned char *)text.bytes;
        e->n_bytes = text.n;
        return QRUN_OK;
    } else {
        QR_RETURN_IF_ERROR(take(c, types[e->type].bytes, &e->data));
    }
    e->n_bytes = (size_t)(c->at - e->data);
    return QRUN_OK;
}

static int compare_texts(qr_gguf_text a, qr_gguf_text b) {
    const int order = memcmp(a.bytes, b.bytes, a.n < b.n ? a.n : b.n);
    return order != 0 ? order : a.n < b.n ? -1 : a.n > b.n;
}

static int compare_entries(const void *a, const void *b) {
    return compare_texts(((const entry *)a)->key, ((const entry *)b)->key);
}

static qrun_status read_metadata(cursor *c, qr_gguf *file, uint64_t n) {
    c->where = "its metadata";
    if (n > MAX_VALUES) {
        return qr_fail(c->err, QRUN_ERROR_INPUT,
                       "%s: says that it has %llu values of metadata, more than the %d allowed", file->path,
                       (unsigned long long)n, MAX_VALUES);
    }
    for (uint64_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(qr_array_grow(&file->entries, &file->entries_capacity, file->n_entries + 1,
                                         sizeof *file->entries, file->path, c->err));
        entry *e = &file->entries[file->n_entries];
        *e = (entry){0};
        QR_RETURN_IF_ERROR(take_entry(c, e));
        file->n_entries++;
    }
    if (n > 0) { qsort(file->entries, file->n_entries, sizeof *file->entries, compare_entries); }
    for (size_t i = 1; i < file->n_entries; i++) {
        if (compare_entries(&file->entries[i - 1], &file->entries[i]) == 0) {
            return fail_entry(file, file->entries[i].key, "occurs twice", c->err);
        }
    }
    return QRUN_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

static qrun_status fail_tensor(const qr_gguf *file, qr_gguf_text name, const char *problem, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: tensor %.*s %s", file->path, (int)name.n, name.bytes, problem);
}

static qrun_status take_dims(cursor *c, qr_gguf_tensor *tensor) {
    uint64_t n_dims, size;
    QR_RETURN_IF_ERROR(take_number(c, 4, &n_dims));
    if (n_dims > MAX_DIMS) { return fail_tensor(c->file, tensor->name, "has more than 4 dimensions", c->err); }
    tensor->n_dims = (int)n_dims;
    for (int i = 0; i < tensor->n_dims; i++) {
        QR_RETURN_IF_ERROR(take_number(c, 8, &size));
        if (size == 0 || size > INT64_MAX) {
            return fail_tensor(c->file, tensor->name, "has a dimension of no positive size", c->err);
        }
        tensor->dims[tensor->n_dims - 1 - i] = (int64_t)size;
    }
    return QRUN_OK;
}

static qrun_status take_dtype(cursor *c, qr_gguf_tensor *tensor) {
    uint64_t number;
    QR_RETURN_IF_ERROR(take_number(c, 4, &number));
    if (qr_gguf_dtype((uint32_t)number, &tensor->dtype)) { return QRUN_OK; }
    const char *name = unread_type_name((uint32_t)number);
    return qr_fail(c->err, QRUN_ERROR_UNSUPPORTED,
                   "%s: tensor %.*s is %s (type %u), which is not read; take a file in Q4_K_M, Q5_K_M, Q6_K, Q8_0, F16 "
                   "or BF16",
                   c->file->path, (int)tensor->name.n, tensor->name.bytes, name != NULL ? name : "of an unknown type",
                   (unsigned)number);
}

/* Sets n_bytes; data is set when it is known where the data begins. */
static qrun_status measure(const cursor *c, qr_gguf_tensor *tensor) {
    int64_t n = 1, n_bytes;
    for (int i = 0; i < tensor->n_dims; i++) {
        if (!qr_count_mul(n, tensor->dims[i], &n)) {
            return fail_tensor(c->file, tensor->name, "has a shape whose size overflows", c->err);
        }
    }
    const bool is_blocks = qr_dtype_is_blocks(tensor->dtype);
    const int64_t unit = is_blocks ? qr_dtype_block_elements(tensor->dtype) : 1;
    const int64_t unit_bytes = is_blocks ? qr_dtype_block_bytes(tensor->dtype) : (int64_t)qr_dtype_bytes(tensor->dtype);
    if (is_blocks && (tensor->n_dims == 0 || tensor->dims[tensor->n_dims - 1] % unit != 0)) {
        return fail_tensor(c->file, tensor->name, "has rows that do not fill whole blocks", c->err);
    }
    if (!qr_count_mul(n / unit, unit_bytes, &n_bytes)) {
        return fail_tensor(c->file, tensor->name, "has a shape whose size overflows", c->err);
    }
    tensor->n_bytes = (size_t)n_bytes;
    return QRUN_OK;
}

static int compare_places(const void *a, const void *b) {
    const qr_gguf_tensor *x = *(const qr_gguf_tensor *const *)a, *y = *(const qr_gguf_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static qrun_status check_overlap(const qr_gguf *file, qr_error *err) {
    if (file->n_tensors == 0) { return QRUN_OK; }
    const qr_gguf_tensor **places = qr_alloc_array(file->n_tensors, sizeof *places);
    if (places == NULL) { return qr_fail_memory(err, file->path, file->n_tensors * sizeof *places); }
    for (size_t i = 0; i < file->n_tensors; i++) { places[i] = &file->tensors[i]; }
    qsort(places, file->n_tensors, sizeof *places, compare_places);
    qrun_status status = QRUN_OK;
    for (size_t i = 1; i < file->n_tensors && status == QRUN_OK; i++) {
        if (places[i]->data < places[i - 1]->data + places[i - 1]->n_bytes) {
            status = fail_tensor(file, places[i]->name, "overlaps another tensor", err);
        }
    }
    qr_free(places);
    return status;
}

/* The data begin at the next multiple of the alignment. `offsets` are those of the tensors within them. */
static qrun_status place_tensors(const cursor *c, qr_gguf *file, const uint64_t *offsets) {
    int64_t alignment = 32;
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, "general.alignment", 1, MAX_ALIGNMENT, &alignment, c->err));
    if ((alignment & (alignment - 1)) != 0) {
        return qr_fail(c->err, QRUN_ERROR_INPUT, "%s: general.alignment is %lld, no power of two", file->path,
                       (long long)alignment);
    }
    size_t begin;
    if (!qr_size_align((size_t)(c->at - file->map.data), (size_t)alignment, &begin) || begin > file->map.size) {
        begin = file->map.size; /* nothing but padding is missing where there are no data */
    }
    const uint64_t n_data = file->map.size - begin;
    for (size_t i = 0; i < file->n_tensors; i++) {
        qr_gguf_tensor *tensor = &file->tensors[i];
        if (offsets[i] % (uint64_t)alignment != 0) {
            return fail_tensor(file, tensor->name, "begins at an offset that is not aligned", c->err);
        }
        if (offsets[i] > n_data || tensor->n_bytes > n_data - offsets[i]) {
            return fail_tensor(file, tensor->name, "lies outside the file; it is cut short, fetch it again", c->err);
        }
        tensor->data = file->map.data + begin + offsets[i];
    }
    return check_overlap(file, c->err);
}

static qrun_status read_tensors(cursor *c, qr_gguf *file, uint64_t n) {
    c->where = "its list of tensors";
    if (n > MAX_TENSORS) {
        return qr_fail(c->err, QRUN_ERROR_INPUT, "%s: says that it has %llu tensors, more than the %d allowed",
                       file->path, (unsigned long long)n, MAX_TENSORS);
    }
    uint64_t *offsets = NULL;
    size_t capacity = 0;
    qrun_status status = QRUN_OK;
    for (uint64_t i = 0; i < n; i++) {
        QR_TRY(qr_array_grow(&file->tensors, &file->tensors_capacity, file->n_tensors + 1, sizeof *file->tensors,
                             file->path, c->err));
        QR_TRY(qr_array_grow(&offsets, &capacity, file->n_tensors + 1, sizeof *offsets, file->path, c->err));
        qr_gguf_tensor *tensor = &file->tensors[file->n_tensors];
        *tensor = (qr_gguf_tensor){0};
        QR_TRY(take_name(c, "the name of a tensor", &tensor->name));
        QR_TRY(take_dims(c, tensor));
        QR_TRY(take_dtype(c, tensor));
        QR_TRY(take_number(c, 8, &offsets[file->n_tensors]));
        QR_TRY(measure(c, tensor));
        file->n_tensors++;
    }
    QR_TRY(place_tensors(c, file, offsets));
out:
    qr_free(offsets);
    return status;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

bool qr_gguf_recognise(const char *path) {
    int descriptor;
    struct stat info;
    char magic[sizeof MAGIC];
    if (qr_file_is_folder(path) || qr_file_open_regular(path, &descriptor, &info, NULL) != QRUN_OK) { return false; }
    const bool found =
        read(descriptor, magic, sizeof magic) == (ssize_t)sizeof magic && memcmp(magic, MAGIC, sizeof magic) == 0;
    close(descriptor);
    return found;
}

static qrun_status check_version(const cursor *c, uint64_t version) {
    if (version == 2 || version == 3) { return QRUN_OK; }
    if ((version & 0xFFFF) == 0) {
        return qr_fail(c->err, QRUN_ERROR_UNSUPPORTED, "%s: is a big-endian GGUF file; little-endian ones are read",
                       c->file->path);
    }
    return qr_fail(c->err, QRUN_ERROR_UNSUPPORTED, "%s: is GGUF version %llu; 2 and 3 are read", c->file->path,
                   (unsigned long long)version);
}

static qrun_status refuse_part(const qr_gguf *file, qr_error *err) {
    int64_t n_parts = 1;
    QR_RETURN_IF_ERROR(qr_gguf_get_int(file, "split.count", 0, INT32_MAX, &n_parts, err));
    if (n_parts <= 1) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                   "%s: is one of %lld parts; join them with llama-gguf-split of llama.cpp", file->path,
                   (long long)n_parts);
}

static qrun_status read_all(qr_gguf *file, qr_error *err) {
    cursor c = {.file = file,
                .at = file->map.data,
                .end = file->map.size > 0 ? file->map.data + file->map.size : file->map.data,
                .where = "its first bytes",
                .err = err};
    const unsigned char *magic;
    uint64_t version, n_tensors, n_values;
    if (file->map.size < sizeof MAGIC || memcmp(file->map.data, MAGIC, sizeof MAGIC) != 0) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: does not begin as a GGUF file does", file->path);
    }
    QR_RETURN_IF_ERROR(take(&c, sizeof MAGIC, &magic));
    QR_RETURN_IF_ERROR(take_number(&c, 4, &version));
    QR_RETURN_IF_ERROR(check_version(&c, version));
    QR_RETURN_IF_ERROR(take_number(&c, 8, &n_tensors));
    QR_RETURN_IF_ERROR(take_number(&c, 8, &n_values));
    QR_RETURN_IF_ERROR(read_metadata(&c, file, n_values));
    QR_RETURN_IF_ERROR(refuse_part(file, err));
    QR_RETURN_IF_ERROR(read_tensors(&c, file, n_tensors));
    return qr_gguf_check(file, err);
}

qrun_status qr_gguf_open(const char *path, qr_gguf **out, qr_error *err) {
    *out = NULL;
    qr_gguf *file = qr_alloc_zeroed(sizeof *file);
    if (file == NULL) { return qr_fail_memory(err, path, sizeof *file); }
    qrun_status status = QRUN_OK;
    file->path = qr_strdup(path);
    QR_TRY(file->path != NULL ? QRUN_OK : qr_fail_memory(err, path, strlen(path)));
    QR_TRY(qr_file_map_open(path, &file->map, err));
    QR_TRY(read_all(file, err));
    *out = file;
    return QRUN_OK;
out:
    qr_gguf_close(file);
    return status;
}

void qr_gguf_close(qr_gguf *file) {
    if (file == NULL) { return; }
    qr_file_map_close(&file->map);
    qr_free(file->entries);
    qr_free(file->tensors);
    qr_free(file->path);
    qr_free(file);
}

const char *qr_gguf_path(const qr_gguf *file) { return file->path; }

size_t qr_gguf_tensor_count(const qr_gguf *file) { return file->n_tensors; }

const qr_gguf_tensor *qr_gguf_get_tensor(const qr_gguf *file, size_t i) {
    return i < file->n_tensors ? &file->tensors[i] : NULL;
}

const qr_gguf_tensor *qr_gguf_find_tensor(const qr_gguf *file, const char *name) {
    for (size_t i = 0; i < file->n_tensors; i++) {
        if (qr_gguf_text_is(file->tensors[i].name, name)) { return &file->tensors[i]; }
    }
    return NULL;
}

qr_file_map qr_gguf_take_map(qr_gguf *file) {
    const qr_file_map map = file->map;
    file->map = (qr_file_map){0};
    return map;
}

qrun_status qr_gguf_check(const qr_gguf *file, qr_error *err) { return qr_file_map_check(&file->map, file->path, err); }

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static const entry *find(const qr_gguf *file, const char *key) {
    if (file->n_entries == 0) { return NULL; }
    const entry wanted = {.key = {key, strlen(key)}};
    return bsearch(&wanted, file->entries, file->n_entries, sizeof *file->entries, compare_entries);
}

static qrun_status fail_type(const qr_gguf *file, const entry *e, const char *expected, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: %.*s is %s %s, and should be %s", file->path, (int)e->key.n,
                   e->key.bytes, e->type == QR_GGUF_I8 || e->type == QR_GGUF_I16 ? "an" : "a",
                   e->type == QR_GGUF_ARRAY ? "list" : types[e->type].name, expected);
}

/* False where the type is no integer, or the value is too large. */
static bool as_int(qr_gguf_type type, const unsigned char *data, int64_t *value) {
    const uint64_t bits = type < QR_GGUF_TYPE_COUNT ? little_endian(data, types[type].bytes) : 0;
    switch (type) {
        case QR_GGUF_U8:
        case QR_GGUF_U16:
        case QR_GGUF_U32: *value = (int64_t)bits; return true;
        case QR_GGUF_I8: *value = (int64_t)bits - (int64_t)((bits & 0x80) << 1); return true;
        case QR_GGUF_I16: *value = (int64_t)bits - (int64_t)((bits & 0x8000) << 1); return true;
        case QR_GGUF_I32: *value = (int64_t)bits - (int64_t)((bits & 0x80000000) << 1); return true;
        case QR_GGUF_BOOL: *value = bits != 0; return true;
        case QR_GGUF_U64:
        case QR_GGUF_I64: memcpy(value, &bits, sizeof bits); return type == QR_GGUF_I64 || *value >= 0;
        default: return false;
    }
}

static bool as_double(qr_gguf_type type, const unsigned char *data, double *value) {
    const uint64_t bits = little_endian(data, types[type].bytes);
    if (type == QR_GGUF_F32) {
        const uint32_t narrow = (uint32_t)bits;
        float single;
        memcpy(&single, &narrow, sizeof single);
        *value = (double)single;
        return true;
    }
    if (type == QR_GGUF_F64) {
        memcpy(value, &bits, sizeof bits);
        return true;
    }
    int64_t integer;
    if (!as_int(type, data, &integer)) { return false; }
    *value = (double)integer;
    return true;
}

bool qr_gguf_has(const qr_gguf *file, const char *key) { return find(file, key) != NULL; }

bool qr_gguf_is_list(const qr_gguf *file, const char *key) {
    const entry *e = find(file, key);
    return e != NULL && e->type == QR_GGUF_ARRAY;
}

qrun_status qr_gguf_get_int(const qr_gguf *file, const char *key, int64_t low, int64_t high, int64_t *value,
                            qr_error *err) {
    const entry *e = find(file, key);
    int64_t found;
    if (e == NULL) { return QRUN_OK; }
    if (!as_int(e->type, e->data, &found)) { return fail_type(file, e, "an integer", err); }
    if (found < low || found > high) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s is %lld, outside %lld to %lld", file->path, key, (long long)found,
                       (long long)low, (long long)high);
    }
    *value = found;
    return QRUN_OK;
}

qrun_status qr_gguf_get_double(const qr_gguf *file, const char *key, double low, double high, double *value,
                               qr_error *err) {
    const entry *e = find(file, key);
    double found;
    if (e == NULL) { return QRUN_OK; }
    if (e->type == QR_GGUF_STRING || e->type == QR_GGUF_ARRAY || !as_double(e->type, e->data, &found)) {
        return fail_type(file, e, "a number", err);
    }
    if (!(found >= low && found <= high)) {
        return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s is %g, outside %g to %g", file->path, key, found, low, high);
    }
    *value = found;
    return QRUN_OK;
}

qrun_status qr_gguf_get_bool(const qr_gguf *file, const char *key, bool *value, qr_error *err) {
    const entry *e = find(file, key);
    if (e == NULL) { return QRUN_OK; }
    if (e->type != QR_GGUF_BOOL) { return fail_type(file, e, "true or false", err); }
    *value = e->data[0] != 0;
    return QRUN_OK;
}

qrun_status qr_gguf_get_text(const qr_gguf *file, const char *key, qr_gguf_text *value, qr_error *err) {
    const entry *e = find(file, key);
    if (e == NULL) { return QRUN_OK; }
    if (e->type != QR_GGUF_STRING) { return fail_type(file, e, "a text", err); }
    *value = (qr_gguf_text){(const char *)e->data, e->n_bytes};
    return QRUN_OK;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* What a caller takes as an item. */
typedef struct item_kind {
    bool (*has)(qr_gguf_type type);
    const char *plural; /* for messages */
    size_t bytes;       /* of a value */
} item_kind;

static bool is_text(qr_gguf_type type) { return type == QR_GGUF_STRING; }
static bool is_number(qr_gguf_type type) { return type != QR_GGUF_STRING && type != QR_GGUF_ARRAY; }
static bool is_integer(qr_gguf_type type) { return is_number(type) && type != QR_GGUF_F32 && type != QR_GGUF_F64; }

static qrun_status fail_items(const qr_gguf *file, const char *key, const item_kind *kind, void *values, size_t *n,
                              qr_error *err) {
    qr_free(values);
    *n = 0;
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s should be a list of %s", file->path, key, kind->plural);
}

/* *e is NULL where there is none; *values then too. Items of another kind take no memory. */
static qrun_status make_list(const qr_gguf *file, const char *key, const item_kind *kind, const entry **e,
                             void **values, size_t *n, qr_error *err) {
    *e = find(file, key);
    *values = NULL;
    *n = 0;
    if (*e == NULL) { return QRUN_OK; }
    if ((*e)->type != QR_GGUF_ARRAY) { return fail_type(file, *e, "a list", err); }
    if (!kind->has((*e)->item_type)) { return fail_items(file, key, kind, NULL, n, err); }
    *values = qr_alloc_array((size_t)(*e)->n_items, kind->bytes);
    if (*values == NULL) { return qr_fail_memory(err, key, (size_t)(*e)->n_items * kind->bytes); }
    *n = (size_t)(*e)->n_items;
    return QRUN_OK;
}

qrun_status qr_gguf_get_texts(const qr_gguf *file, const char *key, qr_gguf_text **values, size_t *n, qr_error *err) {
    static const item_kind kind = {is_text, "texts", sizeof **values};
    const entry *e;
    void *made;
    *values = NULL;
    QR_RETURN_IF_ERROR(make_list(file, key, &kind, &e, &made, n, err));
    qr_gguf_text *texts = made;
    cursor c = {.file = file, .where = key, .err = err};
    if (e != NULL) { c.at = e->data, c.end = e->data + e->n_bytes; }
    for (size_t i = 0; i < *n; i++) {
        const qrun_status status = take_text(&c, &texts[i]); /* the lengths may have changed since they were checked */
        if (status == QRUN_OK) { continue; }
        qr_free(texts);
        *n = 0;
        return status;
    }
    *values = texts;
    return QRUN_OK;
}

qrun_status qr_gguf_get_ints(const qr_gguf *file, const char *key, int64_t **values, size_t *n, qr_error *err) {
    static const item_kind kind = {is_integer, "integers", sizeof **values};
    const entry *e;
    void *made;
    *values = NULL;
    QR_RETURN_IF_ERROR(make_list(file, key, &kind, &e, &made, n, err));
    int64_t *ints = made;
    for (size_t i = 0; i < *n; i++) {
        if (!as_int(e->item_type, e->data + i * types[e->item_type].bytes, &ints[i])) {
            return fail_items(file, key, &kind, made, n, err);
        }
    }
    *values = ints;
    return QRUN_OK;
}

qrun_status qr_gguf_get_floats(const qr_gguf *file, const char *key, float **values, size_t *n, qr_error *err) {
    static const item_kind kind = {is_number, "numbers", sizeof **values};
    const entry *e;
    void *made;
    *values = NULL;
    QR_RETURN_IF_ERROR(make_list(file, key, &kind, &e, &made, n, err));
    float *floats = made;
    for (size_t i = 0; i < *n; i++) {
        double value = 0;
        if (!as_double(e->item_type, e->data + i * types[e->item_type].bytes, &value) || isnan(value)) {
            return fail_items(file, key, &kind, made, n, err);
        }
        floats[i] = (float)value;
    }
    *values = floats;
    return QRUN_OK;
}

qrun_status qr_gguf_fail_missing(const qr_gguf *file, const char *key, qr_error *err) {
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: %s is missing", file->path, key);
}
