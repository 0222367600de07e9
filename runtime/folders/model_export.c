#include "runtime/folders/export.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "runtime/folders/folder_copy.h"

enum { NAME_BYTES = QR_STORED_NAME_BYTES + 8, CHUNK_FLOATS = 1 << 20 };

typedef struct export_job {
    const qr_parameters *parameters;
    qr_safetensors *source;             /* the old folder's tensors, where it has others than the model's; NULL: none */
    char (*names)[NAME_BYTES];          /* [n_named] */
    qr_safetensors_spec *specs;         /* [n]: the parameters first, then the layers' scalars, then those of `kept` */
    const qr_safetensors_tensor **kept; /* [n − n_named] */
    size_t n, n_named;
    float *values;   /* [CHUNK_FLOATS], or of the largest transposed matrix */
    void *converted; /* the same in the type of the file */
} export_job;

/* ---- What to write ----------------------------------------------------------------------------------------------- */

static void spec_parameter(export_job *job, int64_t i) {
    const qr_parameters *p = job->parameters;
    const qr_parameter *parameter = &p->list[i];
    (void)qr_family_tensor_name(p->model->family, p->model->prefix, parameter->role, parameter->layer,
                                parameter->kind == QR_PARAMETER_BIAS ? "bias" : "weight", job->names[i], NAME_BYTES);
    job->specs[i] = (qr_safetensors_spec){.name = job->names[i], .dtype = p->model->act_dtype};
    job->specs[i].n_dims = qr_parameter_file_dims(p->model, parameter, job->specs[i].dims);
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

/* What no training changes, and the old folder is not read for. */
static void spec_scalars(export_job *job) {
    const qr_parameters *p = job->parameters;
    job->n_named = (size_t)p->n;
    for (int64_t l = 0; job->source == NULL && p->model->layers[0].scalar.dim > 0 && l < p->model->shape.n_layers;
         l++) {
        char *name = job->names[job->n_named];
        (void)qr_family_tensor_name(p->model->family, p->model->prefix, QR_ROLE_LAYER_SCALAR, l, "", name, NAME_BYTES);
        job->specs[job->n_named++] =
            (qr_safetensors_spec){.name = name, .dtype = p->model->act_dtype, .n_dims = 1, .dims = {1}};
    }
}

static qrun_status list_tensors(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    if (p->model->config.is_multimodal && !p->model->random_weights) {
        QR_RETURN_IF_ERROR(qr_safetensors_open(p->model->folder, &job->source, err));
    }
    const size_t n_sources = job->source != NULL ? qr_safetensors_count(job->source) : 0;
    const size_t most_named = (size_t)(p->n + p->model->shape.n_layers), most = most_named + n_sources;
    job->names = qr_alloc_array(most_named, sizeof *job->names);
    job->specs = qr_alloc_array(most, sizeof *job->specs);
    job->kept = qr_alloc_array(n_sources, sizeof *job->kept);
    if (job->names == NULL || job->specs == NULL || job->kept == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *job->specs);
    }
    for (int64_t i = 0; i < p->n; i++) { spec_parameter(job, i); }
    spec_scalars(job);
    job->n = job->n_named;
    for (size_t i = 0; i < n_sources; i++) {
        const qr_safetensors_tensor *tensor = qr_safetensors_get(job->source, i);
        if (is_trained(job, tensor->name)) { continue; }
        job->kept[job->n - job->n_named] = tensor;
        job->specs[job->n++] = qr_tensor_spec(tensor);
    }
    return QRUN_OK;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Elements read at a time: of a transposed matrix all, because each read copies it whole. */
static int64_t chunk_floats(const qr_parameters *p, const qr_parameter *parameter) {
    return qr_parameter_is_transposed(p->model, parameter) ? parameter->rows * parameter->cols : CHUNK_FLOATS;
}

static qrun_status make_staging(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    int64_t n = CHUNK_FLOATS;
    for (int64_t i = 0; i < p->n; i++) { n = qr_max(n, chunk_floats(p, &p->list[i])); }
    job->values = qr_alloc_array((size_t)n, sizeof(float));
    job->converted = qr_alloc_array((size_t)n, qr_dtype_bytes(p->model->act_dtype));
    return job->values != NULL && job->converted != NULL
               ? QRUN_OK
               : qr_fail_memory(err, "a model's weights", (size_t)n * sizeof(float));
}

static qrun_status write_scalar(const export_job *job, int64_t layer, qr_safetensors_writer *writer, qr_error *err) {
    const qrun_model *model = job->parameters->model;
    qr_backend *backend = model->context->backend;
    float value;
    QR_RETURN_IF_ERROR(backend->copy_out(backend, &value, model->layers[layer].scalar.weight, sizeof value, err));
    qr_elements_from_f32(model->act_dtype, &value, 1, job->converted);
    return qr_safetensors_writer_write(writer, job->converted, qr_dtype_bytes(model->act_dtype), err);
}

static qrun_status write_tensor(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    const export_job *job = arg;
    const qr_parameters *p = job->parameters;
    if (i >= (size_t)p->n && i < job->n_named) { return write_scalar(job, (int64_t)i - p->n, writer, err); }
    if (i >= job->n_named) {
        const qr_safetensors_tensor *kept = job->kept[i - job->n_named];
        return qr_safetensors_writer_write(writer, kept->data, kept->n_bytes, err);
    }
    const qr_parameter *parameter = &p->list[i];
    const qr_dtype dtype = p->model->act_dtype;
    const int64_t n_floats = parameter->rows * parameter->cols, chunk = chunk_floats(p, parameter);
    for (int64_t first = 0; first < n_floats; first += chunk) {
        const int64_t n = qr_min(chunk, n_floats - first);
        QR_RETURN_IF_ERROR(qr_parameter_read(p, parameter, first, n, job->values, err));
        qr_elements_from_f32(dtype, job->values, n, job->converted);
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, job->converted, (size_t)n * qr_dtype_bytes(dtype), err));
    }
    return QRUN_OK;
}

/* ---- The folder -------------------------------------------------------------------------------------------------- */

qrun_status qr_model_export_check(const qrun_model *model, const char *folder, qr_error *err) {
    if (!qr_file_is_same(folder, model->folder)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_ARGUMENT,
                   "%s: is the folder of the model that is trained, which is never changed; choose another folder",
                   folder);
}

qrun_status qr_model_export(const qr_parameters *p, const char *folder, qr_error *err) {
    const qrun_model *model = p->model;
    export_job job = {.parameters = p};
    qr_config_changes changes = {.dtype = model->act_dtype, .unties_head = qr_model_has_own_head(model)};
    if (model->shape.vocab != model->config.vocab_size) { changes.vocab_size = model->shape.vocab; }
    qrun_status status = QRUN_OK;
    QR_TRY(qr_model_export_check(model, folder, err));
    QR_TRY(list_tensors(&job, err));
    QR_TRY(make_staging(&job, err));
    QR_TRY(qr_tensors_write(folder, job.specs, job.n, 0, write_tensor, &job, err));
    if (job.source != NULL) { QR_TRY(qr_safetensors_check(job.source, err)); }
    QR_TRY(qr_model_files_copy(model->folder, folder, err));
    QR_TRY(qr_config_copy(model->folder, folder, qr_config_apply, &changes, err));
out:
    qr_safetensors_close(job.source);
    qr_free(job.names);
    qr_free(job.specs);
    qr_free(job.kept);
    qr_free(job.values);
    qr_free(job.converted);
    return status;
}
