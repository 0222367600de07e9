/* A shard gets its name when its last byte is written. The index comes last, because without it the shards are not a
 * model. */
#include "loaders/files/safetensors_writer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "base/units.h"
#include "base/utf8.h"
#include "loaders/files/safetensors.h"

enum { HEADER_ALIGNMENT = 8 };

typedef struct planned_tensor {
    const qr_safetensors_spec *spec;
    size_t n_bytes;
    size_t shard;
} planned_tensor;

struct qr_safetensors_writer {
    char *folder, *stem;
    planned_tensor *tensors; /* in the order they are written */
    size_t n_tensors;
    size_t n_shards;
    int64_t total_bytes;
    size_t next;          /* tensor being written */
    size_t next_bytes;    /* bytes of it that are written */
    size_t n_shards_done; /* shards with their final names */
    bool shard_open;
    qr_file_writer file;
};

/* Rising alignment, as the format's library orders its types. */
static int dtype_rank(qr_dtype dtype) {
    static const qr_dtype order[] = {QR_DTYPE_BOOL, QR_DTYPE_F4,      QR_DTYPE_F6_E2M3, QR_DTYPE_F6_E3M2, QR_DTYPE_U8,
                                     QR_DTYPE_I8,   QR_DTYPE_F8_E5M2, QR_DTYPE_F8_E4M3, QR_DTYPE_F8_E8M0, QR_DTYPE_I16,
                                     QR_DTYPE_U16,  QR_DTYPE_F16,     QR_DTYPE_BF16,    QR_DTYPE_I32,     QR_DTYPE_U32,
                                     QR_DTYPE_F32,  QR_DTYPE_C64,     QR_DTYPE_F64,     QR_DTYPE_I64,     QR_DTYPE_U64};
    _Static_assert(sizeof order / sizeof order[0] == QR_DTYPE_Q4_0, "a dtype is missing in the order");
    for (int i = 0; i < (int)QR_COUNT_OF(order); i++) {
        if (order[i] == dtype) { return i; }
    }
    return -1;
}

static int compare_planned(const void *a, const void *b) {
    const planned_tensor *x = a, *y = b;
    if (x->shard != y->shard) { return x->shard < y->shard ? -1 : 1; }
    const int rank_x = dtype_rank(x->spec->dtype), rank_y = dtype_rank(y->spec->dtype);
    return rank_x != rank_y ? rank_y - rank_x : strcmp(x->spec->name, y->spec->name);
}

static int compare_names(const void *a, const void *b) {
    const planned_tensor *x = a, *y = b;
    return strcmp(x->spec->name, y->spec->name);
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static qrun_status check_spec(const qr_safetensors_spec *spec, size_t *n_bytes, qr_error *err) {
    const size_t length = strlen(spec->name);
    if (length == 0 || qr_utf8_valid_prefix(spec->name, length) != length || strcmp(spec->name, "__metadata__") == 0) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "\"%s\" cannot be the name of a tensor", spec->name);
    }
    if ((unsigned)spec->dtype >= QR_DTYPE_COUNT || spec->n_dims < 0 || spec->n_dims > QR_MAX_DIMS ||
        !qr_safetensors_tensor_bytes(spec->dtype, spec->n_dims, spec->dims, n_bytes)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "tensor \"%s\" has a type or shape that cannot be written",
                       spec->name);
    }
    return QRUN_OK;
}

static qrun_status deal_to_shards(qr_safetensors_writer *w, const qr_safetensors_spec *specs, int64_t max_shard_bytes,
                                  qr_error *err) {
    int64_t shard_bytes = 0;
    w->n_shards = 1;
    for (size_t i = 0; i < w->n_tensors; i++) {
        planned_tensor *tensor = &w->tensors[i];
        *tensor = (planned_tensor){.spec = &specs[i]};
        QR_RETURN_IF_ERROR(check_spec(&specs[i], &tensor->n_bytes, err));
        const int64_t n_bytes = (int64_t)tensor->n_bytes;
        if (!qr_count_add(w->total_bytes, n_bytes, &w->total_bytes)) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "the tensors up to \"%s\" are too large together", specs[i].name);
        }
        if (max_shard_bytes > 0 && shard_bytes > 0 && n_bytes > max_shard_bytes - shard_bytes) {
            w->n_shards++;
            shard_bytes = 0;
        }
        tensor->shard = w->n_shards - 1;
        shard_bytes += n_bytes;
    }
    return QRUN_OK;
}

static qrun_status check_names(qr_safetensors_writer *w, qr_error *err) {
    qsort(w->tensors, w->n_tensors, sizeof *w->tensors, compare_names);
    for (size_t i = 1; i < w->n_tensors; i++) {
        if (compare_names(&w->tensors[i - 1], &w->tensors[i]) == 0) {
            return qr_fail(err, QRUN_ERROR_ARGUMENT, "tensor \"%s\" is declared twice", w->tensors[i].spec->name);
        }
    }
    return QRUN_OK;
}

static void shard_name(const qr_safetensors_writer *w, size_t shard, qr_buffer *name) {
    if (w->n_shards == 1) {
        qr_buffer_append_format(name, "%s.safetensors", w->stem);
    } else {
        qr_buffer_append_format(name, "%s-%05zu-of-%05zu.safetensors", w->stem, shard + 1, w->n_shards);
    }
}

static char *shard_path(const qr_safetensors_writer *w, size_t shard) {
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/", w->folder);
    shard_name(w, shard, &path);
    return qr_buffer_take(&path);
}

/* Every reader prefers the one file to the shards, so an old one would hide what is written here. */
static qrun_status check_no_single_file(const qr_safetensors_writer *w, qr_error *err) {
    if (w->n_shards == 1) { return QRUN_OK; }
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/%s.safetensors", w->folder, w->stem);
    qrun_status status = QRUN_OK;
    if (!qr_buffer_ok(&path)) {
        status = qr_fail_memory(err, w->folder, path.size);
    } else if (qr_file_exists(path.data)) {
        status = qr_fail(err, QRUN_ERROR_ARGUMENT,
                         "%s: exists already and would hide the shards written next to it; "
                         "move it away or choose another folder",
                         path.data);
    }
    qr_buffer_free(&path);
    return status;
}

/* ---- the files --------------------------------------------------------------------------------------------------- */

static void append_header(const qr_safetensors_writer *w, size_t first, size_t end, qr_buffer *json) {
    size_t offset = 0;
    qr_buffer_append_text(json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = first; i < end; i++) {
        const planned_tensor *tensor = &w->tensors[i];
        const qr_safetensors_spec *spec = tensor->spec;
        qr_buffer_append_char(json, ',');
        qr_buffer_append_json_string(json, spec->name, strlen(spec->name));
        qr_buffer_append_format(json, ":{\"dtype\":\"%s\",\"shape\":[", qr_dtype_name(spec->dtype));
        for (int d = 0; d < spec->n_dims; d++) {
            qr_buffer_append_format(json, "%s%lld", d > 0 ? "," : "", (long long)spec->dims[d]);
        }
        qr_buffer_append_format(json, "],\"data_offsets\":[%zu,%zu]}", offset, offset + tensor->n_bytes);
        offset += tensor->n_bytes;
    }
    qr_buffer_append_char(json, '}');
    while (qr_buffer_ok(json) && json->size % HEADER_ALIGNMENT != 0) { qr_buffer_append_char(json, ' '); }
}

/* Opens the shard that tensors[first] begins and writes its header. */
static qrun_status open_shard(qr_safetensors_writer *w, size_t first, qr_error *err) {
    const size_t shard = w->n_shards_done;
    size_t end = first;
    while (end < w->n_tensors && w->tensors[end].shard == shard) { end++; }
    qr_buffer json = {0};
    char *path = shard_path(w, shard);
    append_header(w, first, end, &json);
    qrun_status status;
    unsigned char length[8];
    for (int i = 0; i < 8; i++) { length[i] = (unsigned char)((uint64_t)json.size >> (8 * i)); }
    if (path == NULL || !qr_buffer_ok(&json)) { QR_TRY(qr_fail_memory(err, w->folder, json.size)); }
    if (json.size > QR_SAFETENSORS_MAX_HEADER_BYTES) {
        QR_TRY(qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: its header would have %zu bytes, more than readers allow", path,
                       json.size));
    }
    QR_TRY(qr_file_writer_open(&w->file, path, err));
    w->shard_open = true;
    QR_TRY(qr_file_writer_write(&w->file, length, sizeof length, err));
    QR_TRY(qr_file_writer_write(&w->file, json.data, json.size, err));
out:
    qr_buffer_free(&json);
    qr_free(path);
    return status;
}

static qrun_status close_shard(qr_safetensors_writer *w, qr_error *err) {
    w->shard_open = false;
    QR_RETURN_IF_ERROR(qr_file_writer_commit(&w->file, err));
    w->n_shards_done++;
    return QRUN_OK;
}

/* Passes tensors that are complete, closing and opening shards on the way; stops at one that needs bytes. */
static qrun_status advance(qr_safetensors_writer *w, qr_error *err) {
    while (w->next < w->n_tensors) {
        const planned_tensor *tensor = &w->tensors[w->next];
        if (w->shard_open && tensor->shard != w->n_shards_done) { QR_RETURN_IF_ERROR(close_shard(w, err)); }
        if (!w->shard_open) { QR_RETURN_IF_ERROR(open_shard(w, w->next, err)); }
        if (w->next_bytes < tensor->n_bytes) { return QRUN_OK; }
        w->next++;
        w->next_bytes = 0;
    }
    return QRUN_OK;
}

qrun_status qr_safetensors_writer_create(const char *folder, const char *stem, const qr_safetensors_spec *tensors,
                                         size_t n_tensors, int64_t max_shard_bytes, qr_safetensors_writer **writer,
                                         qr_error *err) {
    *writer = NULL;
    qr_safetensors_writer *w = qr_alloc_zeroed(sizeof *w);
    if (w == NULL) { return qr_fail_memory(err, folder, sizeof *w); }
    w->n_tensors = n_tensors;
    w->folder = qr_strdup(folder);
    w->stem = qr_strdup(stem);
    w->tensors = qr_alloc_array(n_tensors, sizeof *w->tensors);
    qrun_status status;
    if (w->folder == NULL || w->stem == NULL || w->tensors == NULL) {
        QR_TRY(qr_fail_memory(err, folder, n_tensors * sizeof *w->tensors));
    }
    QR_TRY(deal_to_shards(w, tensors, max_shard_bytes, err));
    QR_TRY(check_names(w, err));
    QR_TRY(check_no_single_file(w, err));
    qsort(w->tensors, n_tensors, sizeof *w->tensors, compare_planned);
    QR_TRY(n_tensors == 0 ? open_shard(w, 0, err) : advance(w, err));
out:
    if (status == QRUN_OK) {
        *writer = w;
    } else {
        qr_safetensors_writer_abort(w);
    }
    return status;
}

const qr_safetensors_spec *qr_safetensors_writer_next(const qr_safetensors_writer *w) {
    return w->next < w->n_tensors ? w->tensors[w->next].spec : NULL;
}

qrun_status qr_safetensors_writer_write(qr_safetensors_writer *w, const void *bytes, size_t n_bytes, qr_error *err) {
    if (w->next == w->n_tensors) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: every tensor is already complete", w->folder);
    }
    const planned_tensor *tensor = &w->tensors[w->next];
    if (n_bytes > tensor->n_bytes - w->next_bytes) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: %zu byte%s for tensor \"%s\", which has only %zu left", w->folder,
                       n_bytes, qr_plural((int64_t)n_bytes), tensor->spec->name, tensor->n_bytes - w->next_bytes);
    }
    QR_RETURN_IF_ERROR(qr_file_writer_write(&w->file, bytes, n_bytes, err));
    w->next_bytes += n_bytes;
    return advance(w, err);
}

/* What Hugging Face tools write: two spaces of indent, sorted keys. */
static qrun_status write_index(qr_safetensors_writer *w, qr_error *err) {
    qr_buffer json = {0}, path = {0}, name = {0};
    qr_buffer_append_format(&path, "%s/%s.safetensors.index.json", w->folder, w->stem);
    qr_buffer_append_format(&json, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
                            (long long)w->total_bytes);
    qsort(w->tensors, w->n_tensors, sizeof *w->tensors, compare_names);
    for (size_t i = 0; i < w->n_tensors; i++) {
        qr_buffer_append_text(&json, i > 0 ? ",\n    " : "\n    ");
        qr_buffer_append_json_string(&json, w->tensors[i].spec->name, strlen(w->tensors[i].spec->name));
        qr_buffer_clear(&name);
        shard_name(w, w->tensors[i].shard, &name);
        qr_buffer_append_text(&json, ": ");
        qr_buffer_append_json_string(&json, qr_buffer_ok(&name) ? name.data : "", name.size);
        json.failed |= name.failed;
    }
    qr_buffer_append_text(&json, "\n  }\n}\n");
    qrun_status status;
    if (qr_buffer_ok(&json) && qr_buffer_ok(&path)) {
        status = qr_file_write(path.data, json.data, json.size, err);
    } else {
        status = qr_fail_memory(err, w->folder, json.size);
    }
    qr_buffer_free(&json);
    qr_buffer_free(&path);
    qr_buffer_free(&name);
    return status;
}

static void writer_free(qr_safetensors_writer *w) {
    qr_free(w->folder);
    qr_free(w->stem);
    qr_free(w->tensors);
    qr_free(w);
}

qrun_status qr_safetensors_writer_commit(qr_safetensors_writer *w, qr_error *err) {
    qrun_status status;
    if (w->next < w->n_tensors) {
        QR_TRY(qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: tensor \"%s\" is not complete", w->folder,
                       w->tensors[w->next].spec->name));
    }
    QR_TRY(close_shard(w, err));
    if (w->n_shards > 1) { QR_TRY(write_index(w, err)); }
    writer_free(w);
    return QRUN_OK;
out:
    qr_safetensors_writer_abort(w);
    return status;
}

void qr_safetensors_writer_abort(qr_safetensors_writer *w) {
    if (w == NULL) { return; }
    if (w->shard_open) { qr_file_writer_abort(&w->file); }
    for (size_t i = 0; i < w->n_shards_done; i++) {
        char *path = shard_path(w, i);
        if (path != NULL) { unlink(path); }
        qr_free(path);
    }
    writer_free(w);
}
