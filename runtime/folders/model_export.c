#include "runtime/folders/export.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/half.h"
#include "base/sizes.h"
#include "loaders/source/model_source.h"
#include "runtime/folders/folder_copy.h"
#include "runtime/model/model_tensors.h"

enum { NAME_BYTES = QR_STORED_NAME_BYTES + 8, CHUNK_FLOATS = 1 << 20 };

/* A tensor of the new folder that is trained: one parameter, or several. */
typedef struct export_output {
    int64_t first;     /* parameter, of the first expert */
    int64_t n_parts;   /* parameters that follow each other, of each expert */
    int64_t n_experts; /* so many times, the parameters of an expert apart; 1: it is no stack */
    bool is_wide;      /* [n_experts, cols, n_parts · rows], the rows of all parts one after the other, as the next */
    bool in_turn;      /* or in turn */
} export_output;

/* A vector of a layer that no training changes. */
typedef struct export_buffer {
    qr_tensor_role role;
    int64_t layer;
} export_buffer;

typedef struct export_job {
    const qr_parameters *parameters;
    qr_safetensors *source;             /* the old folder's tensors; NULL: there are none */
    bool keeps_others;                  /* it has others than the model's */
    char (*names)[NAME_BYTES];          /* [n_named] */
    export_output *outputs;             /* [n_outputs] */
    qr_safetensors_spec *specs;         /* [n]: the outputs first, then the buffers, then those of `kept` */
    const qr_safetensors_tensor **kept; /* [n − n_named] */
    size_t n, n_outputs, n_named;
    export_buffer *buffers; /* [n_named − n_outputs] */
    float *values;          /* of the outputs' pieces */
    void *converted;        /* the same in the type of the file */
} export_job;

/* ---- What to write ----------------------------------------------------------------------------------------------- */

static qr_safetensors_spec *add_output(export_job *job, const export_output *output) {
    qr_safetensors_spec *spec = &job->specs[job->n_outputs];
    *spec = (qr_safetensors_spec){.name = job->names[job->n_outputs], .dtype = job->parameters->model->act_dtype};
    job->outputs[job->n_outputs++] = *output;
    return spec;
}

/* What files call the matrix of an expert that is in no stack. */
static void write_expert_name(const qrun_model *model, const qr_parameter *parameter, char name[NAME_BYTES]) {
    qr_family_write_name(model->prefix, model->family->modules[parameter->role], parameter->layer, parameter->expert,
                         name, NAME_BYTES);
    qr_family_name_in_files(model->family, name, NAME_BYTES);
    const size_t length = strlen(name);
    (void)snprintf(name + length, NAME_BYTES - length, ".weight");
}

/* A parameter by itself. A bias of gate, whose elements are in turn with those of up in files, is one with that. */
static void add_parameter(export_job *job, int64_t i) {
    const qr_parameters *p = job->parameters;
    const qr_parameter *parameter = &p->list[i];
    const bool in_turn = qr_vector_step(p->model, parameter->role) > 1;
    char *name = job->names[job->n_outputs];
    if (in_turn && parameter->role == QR_ROLE_EXPERT_UP_BIAS) { return; }
    if (parameter->kind == QR_PARAMETER_MATRIX && qr_role_is_expert(parameter->role)) {
        write_expert_name(p->model, parameter, name);
    } else {
        (void)qr_family_tensor_name(p->model->family, p->model->prefix, parameter->role, parameter->layer,
                                    parameter->kind == QR_PARAMETER_BIAS ? "bias" : "weight", name, NAME_BYTES);
    }
    const export_output output = {
        .first = i, .n_parts = in_turn ? 2 : 1, .n_experts = 1, .is_wide = in_turn, .in_turn = in_turn};
    qr_safetensors_spec *spec = add_output(job, &output);
    spec->n_dims = qr_parameter_file_dims(p->model, parameter, spec->dims);
    if (in_turn) { spec->dims[1] *= output.n_parts; }
}

static const char *stack_of(const qr_family *family, qr_tensor_role role) {
    return role == QR_ROLE_EXPERT_OUT ? family->stacked_out : family->stacked_gate_up;
}

/* Whether matrices of a role are written as a stack of all experts: as the old folder has them, or as published ones
 * do. */
static bool is_stacked(const export_job *job, const qr_parameter *parameter, char name[NAME_BYTES]) {
    const qrun_model *model = job->parameters->model;
    const char *stack = stack_of(model->family, parameter->role);
    if (parameter->kind != QR_PARAMETER_MATRIX || !qr_role_is_expert(parameter->role) || stack == NULL) {
        return false;
    }
    qr_family_write_name(model->prefix, stack, parameter->layer, 0, name, NAME_BYTES);
    qr_family_name_in_files(model->family, name, NAME_BYTES);
    return job->source != NULL ? qr_stored_has_stack(job->source, name) : model->family->writes_stacks;
}

/* Whether the old folder has the stack with columns for rows; where both fit, it has not. */
static bool is_wide_in_source(const export_job *job, const char *name, int64_t rows) {
    const qr_safetensors_tensor *tensor = job->source != NULL ? qr_safetensors_find(job->source, name) : NULL;
    return job->parameters->model->family->stacks_may_be_wide && tensor != NULL && tensor->dims[1] != rows;
}

/* A stack of a layer, from its first parameter on. */
static void add_stack(export_job *job, int64_t i) {
    const qrun_model *model = job->parameters->model;
    const qr_parameter *parameter = &job->parameters->list[i];
    const int64_t n_parts = parameter->role == QR_ROLE_EXPERT_OUT ? 1 : qr_family_experts_in(model->family);
    const int64_t rows = n_parts * parameter->rows;
    const bool in_turn = model->family->stacks_in_turn;
    const export_output output = {.first = i,
                                  .n_parts = n_parts,
                                  .n_experts = model->shape.n_experts,
                                  .is_wide = in_turn || is_wide_in_source(job, job->names[job->n_outputs], rows),
                                  .in_turn = in_turn};
    qr_safetensors_spec *spec = add_output(job, &output);
    spec->n_dims = 3;
    spec->dims[0] = output.n_experts;
    spec->dims[1] = output.is_wide ? parameter->cols : rows;
    spec->dims[2] = output.is_wide ? rows : parameter->cols;
}

static void list_outputs(export_job *job) {
    const qr_parameters *p = job->parameters;
    for (int64_t i = 0; i < p->n; i++) {
        const qr_parameter *parameter = &p->list[i];
        if (!is_stacked(job, parameter, job->names[job->n_outputs])) {
            add_parameter(job, i);
        } else if (parameter->expert == 0 && parameter->role != QR_ROLE_EXPERT_UP) {
            add_stack(job, i);
        }
    }
}

static bool is_trained(const export_job *job, const char *name) {
    char head[NAME_BYTES];
    const qr_parameters *p = job->parameters;
    qr_family_module_name(p->model->family, p->model->prefix, QR_ROLE_HEAD, 0, head, sizeof head);
    if (strncmp(name, head, strlen(head)) == 0) { return true; } /* a stale copy of a tied embedding */
    for (size_t i = 0; i < job->n_outputs; i++) {
        if (strcmp(name, job->names[i]) == 0) { return true; }
    }
    return false;
}

/* transformers keeps what experts are chosen by in F32, whatever the model is in. */
static qr_dtype buffer_dtype(const qrun_model *model, qr_tensor_role role) {
    return role == QR_ROLE_CHOICE_BIAS ? QR_DTYPE_F32 : model->act_dtype;
}

/* What no training changes, of each layer. */
static const qr_tensor_role buffer_roles[] = {QR_ROLE_LAYER_SCALAR, QR_ROLE_CHOICE_BIAS, QR_ROLE_XIELU_BETA,
                                              QR_ROLE_XIELU_EPS};

/* The old folder is not read for it. */
static void spec_buffer(export_job *job, qr_tensor_role role, int64_t layer) {
    const qrun_model *model = job->parameters->model;
    const qr_norm *buffer = qr_norm_of_layer(&model->layers[layer], role);
    if (buffer->dim == 0) { return; }
    char *name = job->names[job->n_named];
    (void)qr_family_tensor_name(model->family, model->prefix, role, layer, "", name, NAME_BYTES);
    job->buffers[job->n_named - job->n_outputs] = (export_buffer){role, layer};
    qr_safetensors_spec *spec = &job->specs[job->n_named++];
    *spec = (qr_safetensors_spec){.name = name, .dtype = buffer_dtype(model, role), .n_dims = 1, .dims = {buffer->dim}};
    if (qr_role_is_constant(role)) { spec->n_dims = 0; }
    if (role == QR_ROLE_CHOICE_BIAS && model->family->choice_bias_is_row) {
        spec->n_dims = 2;
        spec->dims[0] = 1, spec->dims[1] = buffer->dim;
    }
}

static void spec_buffers(export_job *job) {
    job->n_named = job->n_outputs;
    for (int64_t l = 0; !job->keeps_others && l < job->parameters->model->shape.n_layers; l++) {
        for (size_t i = 0; i < QR_COUNT_OF(buffer_roles); i++) { spec_buffer(job, buffer_roles[i], l); }
    }
}

/* For what it has besides the model, and for how it has experts. */
static qrun_status open_source(export_job *job, qr_error *err) {
    const qrun_model *model = job->parameters->model;
    job->keeps_others = model->config.is_multimodal && !model->random_weights;
    const bool has_experts = model->shape.n_experts > 0 && !model->random_weights;
    if (!job->keeps_others && !has_experts) { return QRUN_OK; }
    return qr_source_open_tensors(model->folder, &job->source, err);
}

static qrun_status list_tensors(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    QR_RETURN_IF_ERROR(open_source(job, err));
    const size_t n_sources = job->keeps_others ? qr_safetensors_count(job->source) : 0;
    const size_t n_buffers = QR_COUNT_OF(buffer_roles) * (size_t)p->model->shape.n_layers;
    const size_t most_named = (size_t)p->n + n_buffers, most = most_named + n_sources;
    job->names = qr_alloc_array(most_named, sizeof *job->names);
    job->outputs = qr_alloc_array(most_named, sizeof *job->outputs);
    job->buffers = qr_alloc_array(most_named, sizeof *job->buffers);
    job->specs = qr_alloc_array(most, sizeof *job->specs);
    job->kept = qr_alloc_array(n_sources, sizeof *job->kept);
    if (job->names == NULL || job->outputs == NULL || job->buffers == NULL || job->specs == NULL || job->kept == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *job->specs);
    }
    list_outputs(job);
    spec_buffers(job);
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

/* Room for a piece. What is wide takes the matrices of an expert and a row of what becomes of them. */
static int64_t staging_floats(const qr_parameters *p, const export_output *output) {
    const qr_parameter *parameter = &p->list[output->first];
    if (!output->is_wide) { return chunk_floats(p, parameter); }
    return output->n_parts * parameter->rows * (parameter->cols + 1);
}

static qrun_status make_staging(export_job *job, qr_error *err) {
    const qr_parameters *p = job->parameters;
    int64_t n = CHUNK_FLOATS;
    for (size_t i = 0; i < job->n_outputs; i++) { n = qr_max(n, staging_floats(p, &job->outputs[i])); }
    job->values = qr_alloc_array((size_t)n, sizeof(float));
    job->converted = qr_alloc_array((size_t)n, qr_dtype_bytes(p->model->act_dtype));
    return job->values != NULL && job->converted != NULL
               ? QRUN_OK
               : qr_fail_memory(err, "a model's weights", (size_t)n * sizeof(float));
}

static qrun_status write_floats(const export_job *job, const float *values, int64_t n, qr_safetensors_writer *writer,
                                qr_error *err) {
    const qr_dtype dtype = job->parameters->model->act_dtype;
    qr_elements_from_f32(dtype, values, n, job->converted);
    return qr_safetensors_writer_write(writer, job->converted, (size_t)n * qr_dtype_bytes(dtype), err);
}

static qrun_status write_buffer(const export_job *job, const export_buffer *buffer, qr_safetensors_writer *writer,
                                qr_error *err) {
    enum { PIECE = 256 };
    const qrun_model *model = job->parameters->model;
    const qr_norm *vector = qr_norm_of_layer(&model->layers[buffer->layer], buffer->role);
    const qr_dtype dtype = buffer_dtype(model, buffer->role);
    qr_backend *backend = model->context->backend;
    float values[PIECE], converted[PIECE];
    for (int64_t i = 0; i < vector->dim; i += PIECE) {
        const int64_t n = qr_min(PIECE, vector->dim - i);
        QR_RETURN_IF_ERROR(backend->copy_out(backend, values, vector->weight + i, (size_t)n * sizeof *values, err));
        qr_elements_from_f32(dtype, values, n, converted);
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, converted, (size_t)n * qr_dtype_bytes(dtype), err));
    }
    return QRUN_OK;
}

static qrun_status write_parameter(const export_job *job, int64_t i, qr_safetensors_writer *writer, qr_error *err) {
    const qr_parameters *p = job->parameters;
    const qr_parameter *parameter = &p->list[i];
    const int64_t n_floats = parameter->rows * parameter->cols, chunk = chunk_floats(p, parameter);
    for (int64_t first = 0; first < n_floats; first += chunk) {
        const int64_t n = qr_min(chunk, n_floats - first);
        QR_RETURN_IF_ERROR(qr_parameter_read(p, parameter, first, n, job->values, err));
        QR_RETURN_IF_ERROR(write_floats(job, job->values, n, writer, err));
    }
    return QRUN_OK;
}

/* Parameters from `first` on, as [cols, n_parts · rows]. */
static qrun_status write_wide(const export_job *job, const export_output *output, int64_t first,
                              qr_safetensors_writer *writer, qr_error *err) {
    const qr_parameters *p = job->parameters;
    const int64_t n_parts = output->n_parts;
    const int64_t rows = p->list[first].rows, cols = p->list[first].cols, n = rows * cols;
    float *row = job->values + n_parts * n;
    for (int64_t part = 0; part < n_parts; part++) {
        QR_RETURN_IF_ERROR(qr_parameter_read(p, &p->list[first + part], 0, n, job->values + part * n, err));
    }
    for (int64_t c = 0; c < cols; c++) {
        for (int64_t i = 0; i < n_parts * rows; i++) {
            const int64_t part = output->in_turn ? i % n_parts : i / rows, r = output->in_turn ? i / n_parts : i % rows;
            row[i] = job->values[part * n + r * cols + c];
        }
        QR_RETURN_IF_ERROR(write_floats(job, row, n_parts * rows, writer, err));
    }
    return QRUN_OK;
}

static qrun_status write_output(const export_job *job, const export_output *output, qr_safetensors_writer *writer,
                                qr_error *err) {
    const int64_t n_matrices = qr_family_experts_in(job->parameters->model->family) + 1; /* of an expert */
    for (int64_t e = 0; e < output->n_experts; e++) {
        const int64_t first = output->first + e * n_matrices;
        if (output->is_wide) {
            QR_RETURN_IF_ERROR(write_wide(job, output, first, writer, err));
            continue;
        }
        for (int64_t part = 0; part < output->n_parts; part++) {
            QR_RETURN_IF_ERROR(write_parameter(job, first + part, writer, err));
        }
    }
    return QRUN_OK;
}

static qrun_status write_tensor(void *arg, size_t i, qr_safetensors_writer *writer, qr_error *err) {
    const export_job *job = arg;
    if (i < job->n_outputs) { return write_output(job, &job->outputs[i], writer, err); }
    if (i < job->n_named) { return write_buffer(job, &job->buffers[i - job->n_outputs], writer, err); }
    const qr_safetensors_tensor *kept = job->kept[i - job->n_named];
    return qr_safetensors_writer_write(writer, kept->data, kept->n_bytes, err);
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
    qr_free(job.outputs);
    qr_free(job.buffers);
    qr_free(job.specs);
    qr_free(job.kept);
    qr_free(job.values);
    qr_free(job.converted);
    return status;
}
