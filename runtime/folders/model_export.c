#include "runtime/folders/model_export.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/files/json_edit.h"
#include "loaders/files/safetensors_writer.h"
#include "runtime/folders/folder_copy.h"

enum { NAME_BYTES = QR_STORED_NAME_BYTES + 8, CHUNK_FLOATS = 1 << 20, MAX_CONFIG_BYTES = 1 << 24 };

typedef struct export_job {
    const qr_parameters *parameters;
    qr_safetensors *source;             /* the old folder's tensors, where it has others than the model's; NULL: none */
    char (*names)[NAME_BYTES];          /* [parameters->n] */
    qr_safetensors_spec *specs;         /* [n]: the parameters first, then those of `kept` */
    const qr_safetensors_tensor **kept; /* [n − parameters->n] */
    size_t n;
    float *values;   /* [CHUNK_FLOATS], or of the largest transposed matrix */
    void *converted; /* [CHUNK_FLOATS] in the type of the file */
} export_job;

/* ---- What to write ----------------------------------------------------------------------------------------------- */

static void spec_parameter(export_job *job, int64_t i) {
    const qr_parameters *p = job->parameters;
    const qr_parameter *parameter = &p->list[i];
    char module[QR_STORED_NAME_BYTES];
    qr_family_module_name(p->model->family, p->model->prefix, parameter->role, parameter->layer, module, sizeof module);
    (void)snprintf(job->names[i], NAME_BYTES, "%s.%s", module,
                   parameter->kind == QR_PARAMETER_BIAS ? "bias" : "weight");
    qr_safetensors_spec *spec = &job->specs[i];
    *spec = (qr_safetensors_spec){
        .name = job->names[i], .dtype = p->model->act_dtype, .n_dims = 1, .dims = {parameter->cols}};
    if (parameter->kind != QR_PARAMETER_MATRIX) { return; }
    spec->n_dims = 2;
    const bool transposed = qr_parameter_is_transposed(p->model, parameter);
    spec->dims[0] = transposed ? parameter->cols : parameter->rows;
    spec->dims[1] = transposed ? parameter->rows : parameter->cols;
}

static bool is_trained(const export_job *job, const char *name) {
    char head[NAME_BYTES];
    const qr_parameters *p = job->parameters;
    qr_family_module_name(p->model->family, p->model->prefix, QR_ROLE_HEAD, 0, head, sizeof head);
    if (strncmp(name, head, strlen(head)) == 0) { return true; } /* a stale copy of a tied embedding */
    for (int64_t i = 0; i < p->n; i++) {
        if (strcmp(name, job->names[i]) == 0) { return true; }
    }
    return false;
}

static qrun_status list_tensors(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    if (p->model->config.is_multimodal && !p->model->random_weights) {
        QR_RETURN_IF_ERROR(qr_safetensors_open(p->model->folder, &job->source, err));
    }
    const size_t n_sources = job->source != NULL ? qr_safetensors_count(job->source) : 0;
    const size_t most = (size_t)p->n + n_sources;
    job->names = qr_alloc_array((size_t)p->n, sizeof *job->names);
    job->specs = qr_alloc_array(most, sizeof *job->specs);
    job->kept = qr_alloc_array(n_sources + 1, sizeof *job->kept);
    if (job->names == NULL || job->specs == NULL || job->kept == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *job->specs);
    }
    for (int64_t i = 0; i < p->n; i++) { spec_parameter(job, i); }
    job->n = (size_t)p->n;
    for (size_t i = 0; i < n_sources; i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(job->source, i);
        if (is_trained(job, tensor->name)) { continue; }
        job->kept[job->n - (size_t)p->n] = tensor;
        qr_safetensors_spec *spec = &job->specs[job->n++];
        *spec = (qr_safetensors_spec){.name = tensor->name, .dtype = tensor->dtype, .n_dims = tensor->n_dims};
        memcpy(spec->dims, tensor->dims, sizeof spec->dims);
    }
    return QRUN_OK;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

static qrun_status make_staging(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    int64_t n = CHUNK_FLOATS;
    for (int64_t i = 0; i < p->n; i++) {
        if (qr_parameter_is_transposed(p->model, &p->list[i])) { n = qr_max(n, p->list[i].rows * p->list[i].cols); }
    }
    job->values = qr_alloc_array((size_t)n, sizeof(float));
    job->converted = qr_alloc_array((size_t)qr_max(CHUNK_FLOATS, 1), sizeof(float));
    return job->values != NULL && job->converted != NULL ? QRUN_OK
                                                         : qr_fail_memory(err, "a model's weights", (size_t)n * 4);
}

static qrun_status read_floats(const export_job *job, int64_t offset, int64_t n, float *values, qr_error *err) {
    qr_backend *backend = job->parameters->model->context->backend;
    return backend->copy_out(backend, values, job->parameters->values + offset, (size_t)n * sizeof *values, err);
}

static qrun_status write_floats(export_job *job, qr_safetensors_writer *writer, const float *values, int64_t n,
                                qr_error *err) {
    const qr_dtype dtype = job->parameters->model->act_dtype;
    qr_elements_from_f32(dtype, values, n, job->converted);
    return qr_safetensors_writer_write(writer, job->converted, (size_t)n * qr_dtype_bytes(dtype), err);
}

/* Conv1D: the file has the columns of the master as rows. */
static qrun_status write_transposed(export_job *job, const qr_parameter *parameter, qr_safetensors_writer *writer,
                                    qr_error *err) {
    const int64_t rows = parameter->rows, cols = parameter->cols;
    float *column = qr_alloc_array((size_t)rows, sizeof *column);
    qrun_status status = column != NULL ? read_floats(job, parameter->offset, rows * cols, job->values, err)
                                        : qr_fail_memory(err, "a model's weights", (size_t)rows * sizeof *column);
    for (int64_t c = 0; c < cols && status == QRUN_OK; c++) {
        for (int64_t r = 0; r < rows; r++) { column[r] = job->values[r * cols + c]; }
        for (int64_t first = 0; first < rows && status == QRUN_OK; first += CHUNK_FLOATS) {
            status = write_floats(job, writer, column + first, qr_min(CHUNK_FLOATS, rows - first), err);
        }
    }
    qr_free(column);
    return status;
}

static qrun_status write_parameter(export_job *job, const qr_parameter *parameter, qr_safetensors_writer *writer,
                                   qr_error *err) {
    if (qr_parameter_is_transposed(job->parameters->model, parameter)) {
        return write_transposed(job, parameter, writer, err);
    }
    const int64_t n_floats = parameter->rows * parameter->cols;
    qrun_status status = QRUN_OK;
    for (int64_t first = 0; first < n_floats && status == QRUN_OK; first += CHUNK_FLOATS) {
        const int64_t n = qr_min(CHUNK_FLOATS, n_floats - first);
        status = read_floats(job, parameter->offset + first, n, job->values, err);
        if (status == QRUN_OK) { status = write_floats(job, writer, job->values, n, err); }
    }
    return status;
}

static qrun_status write_weights(export_job *job, const char *folder, qr_error *err) {
    const qr_parameters *p = job->parameters;
    qr_safetensors_writer *writer = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(list_tensors(job, err));
    QR_TRY(make_staging(job, err));
    QR_TRY(qr_safetensors_writer_create(folder, "model", job->specs, job->n, QR_SAFETENSORS_SHARD_BYTES, &writer, err));
    for (const qr_safetensors_spec *spec; (spec = qr_safetensors_writer_next(writer)) != NULL;) {
        const size_t i = (size_t)(spec - job->specs);
        if (i < (size_t)p->n) {
            QR_TRY(write_parameter(job, &p->list[i], writer, err));
        } else {
            const qr_safetensors_tensor *kept = job->kept[i - (size_t)p->n];
            QR_TRY(qr_safetensors_writer_write(writer, kept->data, kept->n_bytes, err));
        }
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
out:
    qr_safetensors_writer_abort(writer);
    return status;
}

/* ---- config.json ------------------------------------------------------------------------------------------------- */

/* The vocabulary's size, which a checkpoint with a picture encoder has in the part that is about text. */
static qrun_status set_vocab(const qrun_model *model, const char *from, qr_buffer *config, qr_error *err) {
    char size[24];
    size_t begin, end;
    qr_buffer part = {0}, edited = {0};
    qrun_status status = QRUN_OK;
    char *part_text = NULL;
    const char *key = "vocab_size", *value = size;
    (void)snprintf(size, sizeof size, "%lld", (long long)model->shape.vocab);
    QR_TRY(qr_json_edit_find(config->data, config->size, from, "text_config", &begin, &end, err));
    if (end > begin) {
        QR_TRY(qr_json_edit_set(config->data + begin, end - begin, from, key, size, &part, err));
        key = "text_config";
        value = part_text = qr_buffer_take(&part);
    }
    if (value == NULL) { QR_TRY(qr_fail_memory(err, from, config->size)); }
    QR_TRY(qr_json_edit_set(config->data, config->size, from, key, value, &edited, err));
    const qr_buffer old = *config;
    *config = edited;
    edited = old;
out:
    qr_free(part_text);
    qr_buffer_free(&part);
    qr_buffer_free(&edited);
    return status;
}

/* The old one, with the type that the weights now have, under the name that it calls it by, and the rows of the tables.
 */
static qrun_status write_config(const qrun_model *model, const char *folder, qr_error *err) {
    static const char *const types[] = {"\"float32\"", "\"float16\"", "\"bfloat16\""};
    const char *type = types[model->act_dtype == QR_DTYPE_F32 ? 0 : model->act_dtype == QR_DTYPE_F16 ? 1 : 2];
    char *from = qr_path_join(model->folder, "config.json"), *to = qr_path_join(folder, "config.json");
    char *text = NULL;
    size_t n_bytes, begin, end;
    qr_buffer config = {0};
    qrun_status status = QRUN_OK;
    if (from == NULL || to == NULL) { QR_TRY(qr_fail_memory(err, "config.json", strlen(folder))); }
    QR_TRY(qr_file_read(from, MAX_CONFIG_BYTES, &text, &n_bytes, err));
    QR_TRY(qr_json_edit_find(text, n_bytes, from, "dtype", &begin, &end, err));
    QR_TRY(qr_json_edit_set(text, n_bytes, from, end > begin ? "dtype" : "torch_dtype", type, &config, err));
    if (model->shape.vocab != model->config.vocab_size) { QR_TRY(set_vocab(model, from, &config, err)); }
    QR_TRY(qr_file_write(to, config.data, config.size, err));
out:
    qr_buffer_free(&config);
    qr_free(text);
    qr_free(from);
    qr_free(to);
    return status;
}

static bool is_same_folder(const char *a, const char *b) {
    struct stat stat_a, stat_b;
    return stat(a, &stat_a) == 0 && stat(b, &stat_b) == 0 && stat_a.st_dev == stat_b.st_dev &&
           stat_a.st_ino == stat_b.st_ino;
}

qrun_status qr_model_export_check(const qrun_model *model, const char *folder, qr_error *err) {
    if (!is_same_folder(folder, model->folder)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is the model that is trained, which stays as it is; give another folder for the new one",
                   folder);
}

qrun_status qr_model_export(const qr_parameters *p, const char *folder, qr_error *err) {
    export_job job = {.parameters = p};
    qrun_status status = QRUN_OK;
    QR_TRY(qr_model_export_check(p->model, folder, err));
    QR_TRY(write_weights(&job, folder, err));
    QR_TRY(qr_model_files_copy(p->model->folder, folder, err));
    QR_TRY(write_config(p->model, folder, err));
out:
    qr_safetensors_close(job.source);
    qr_free(job.names);
    qr_free(job.specs);
    qr_free(job.kept);
    qr_free(job.values);
    qr_free(job.converted);
    return status;
}
