#include "loaders/adapter/adapter_writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/number.h"
#include "base/sizes.h"
#include "loaders/adapter/adapter.h"
#include "loaders/files/safetensors_writer.h"

static const char CONFIG_NAME[] = "adapter_config.json";
static const char TENSORS_STEM[] = "adapter_model";
enum { CHUNK_FLOATS = 1 << 20 };

/* ---- adapter_config.json ----------------------------------------------------------------------------------------- */

static void append_key(qr_buffer *json, const char *key) {
    qr_buffer_append_format(json, "%s\n  \"%s\": ", json->size > 1 ? "," : "", key);
}

static void append_part(qr_buffer *json, const char *key, const char *text, size_t n_bytes) {
    append_key(json, key);
    if (text == NULL) {
        qr_buffer_append_text(json, "null");
    } else {
        qr_buffer_append_json_string(json, text, n_bytes);
    }
}

static void append_text(qr_buffer *json, const char *key, const char *text) {
    append_part(json, key, text, text != NULL ? strlen(text) : 0);
}

static void append_bool(qr_buffer *json, const char *key, bool value) {
    append_key(json, key);
    qr_buffer_append_text(json, value ? "true" : "false");
}

/* As Python writes a float or, where it may, an int. */
static void append_number(qr_buffer *json, double value, bool may_be_int) {
    char text[32];
    if (may_be_int && value == floor(value) && fabs(value) < 1e15) {
        qr_buffer_append_format(json, "%" PRId64, (int64_t)value);
        return;
    }
    qr_number_format(value, text);
    qr_buffer_append_text(json, text);
}

static void append_names(qr_buffer *json, const char *key, const char *const *names, size_t n) {
    append_key(json, key);
    if (n == 0) { qr_buffer_append_text(json, "null"); }
    for (size_t i = 0; i < n; i++) {
        qr_buffer_append_text(json, i == 0 ? "[\n    " : ",\n    ");
        qr_buffer_append_json_string(json, names[i], strlen(names[i]));
    }
    if (n > 0) { qr_buffer_append_text(json, "\n  ]"); }
}

static int32_t rank_of(const qr_adapter_spec *spec, size_t i) {
    return spec->ranks != NULL ? spec->ranks[i] : spec->rank;
}

static double alpha_of(const qr_adapter_spec *spec, size_t i) {
    return spec->alphas != NULL ? spec->alphas[i] : spec->alpha;
}

/* The modules whose rank (or alpha) is their own; the key is left out where there is none. */
static void append_pattern(qr_buffer *json, const char *key, const qr_adapter_spec *spec, bool of_rank) {
    bool any = false;
    for (size_t i = 0; i < spec->n_factors; i++) {
        const char *module = spec->factors[i].module;
        const double value = of_rank ? (double)rank_of(spec, i) : alpha_of(spec, i);
        if (value == (of_rank ? (double)spec->rank : spec->alpha)) { continue; }
        if (!any) { append_key(json, key); }
        qr_buffer_append_text(json, any ? ",\n    " : "{\n    ");
        qr_buffer_append_json_string(json, module, strlen(module));
        qr_buffer_append_text(json, ": ");
        append_number(json, value, true);
        any = true;
    }
    if (any) { qr_buffer_append_text(json, "\n  }"); }
}

static void append_layers(qr_buffer *json, const qr_adapter_spec *spec) {
    if (spec->layers == NULL) { return; }
    append_key(json, "layers_to_transform");
    for (size_t i = 0; i < spec->n_layers; i++) {
        qr_buffer_append_format(json, "%s%lld", i > 0 ? ", " : "[", (long long)spec->layers[i]);
    }
    qr_buffer_append_text(json, spec->n_layers > 0 ? "]" : "[]");
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void append_config(qr_buffer *json, const qr_adapter_spec *spec, const char *const *targets,
                          const char *const *target_parameters) {
    const char *base = spec->base_model != NULL ? spec->base_model : "";
    const size_t base_bytes = spec->has_revision ? strcspn(base, "@") : strlen(base);
    qr_buffer_append_char(json, '{');
    append_pattern(json, "alpha_pattern", spec, false);
    append_part(json, "base_model_name_or_path", spec->base_model, base_bytes);
    append_text(json, "bias", "none");
    append_bool(json, "fan_in_fan_out", spec->fan_in_fan_out);
    append_bool(json, "inference_mode", true);
    append_bool(json, "init_lora_weights", true);
    append_layers(json, spec);
    append_key(json, "lora_alpha");
    append_number(json, spec->alpha, true);
    append_key(json, "lora_dropout");
    append_number(json, spec->dropout, false);
    append_names(json, "modules_to_save", spec->modules_to_save, spec->n_modules_to_save);
    append_text(json, "peft_type", "LORA");
    append_key(json, "r");
    append_number(json, (double)spec->rank, true);
    append_pattern(json, "rank_pattern", spec, true);
    if (spec->has_revision) { append_text(json, "revision", spec->base_model + base_bytes + 1); }
    append_names(json, "target_modules", targets, spec->n_targets);
    if (spec->n_target_parameters > 0) {
        append_names(json, "target_parameters", target_parameters, spec->n_target_parameters);
    }
    append_text(json, "task_type", "CAUSAL_LM");
    append_bool(json, "use_dora", spec->read_magnitude != NULL);
    append_bool(json, "use_rslora", spec->rslora);
    qr_buffer_append_text(json, "\n}");
}

static qrun_status make_config(const qr_adapter_spec *spec, qr_buffer *json, qr_error *err) {
    const size_t n = spec->n_targets, n_parameters = spec->n_target_parameters;
    const char **targets = qr_alloc_array(n + n_parameters, sizeof *targets);
    if (targets == NULL) { return qr_fail_memory(err, CONFIG_NAME, (n + n_parameters) * sizeof *targets); }
    for (size_t i = 0; i < n; i++) { targets[i] = spec->targets[i]; }
    for (size_t i = 0; i < n_parameters; i++) { targets[n + i] = spec->target_parameters[i]; }
    qsort(targets, n, sizeof *targets, compare_names);
    qsort(targets + n, n_parameters, sizeof *targets, compare_names);
    append_config(json, spec, targets, targets + n);
    qr_free(targets);
    return qr_buffer_ok(json) ? QRUN_OK : qr_fail_memory(err, CONFIG_NAME, json->size);
}

/* A configuration of another adapter goes before its tensors do. Whenever the writing ends, the folder has the adapter
 * that was there, or none, or this one. It never has the tensors of one under the configuration of the other. */
static qrun_status remove_other_config(const char *path, const qr_buffer *config, qr_error *err) {
    char *there = NULL;
    size_t n_bytes = 0;
    if (!qr_file_exists(path)) { return QRUN_OK; }
    const bool same = qr_file_read(path, config->size, &there, &n_bytes, NULL) == QRUN_OK && n_bytes == config->size &&
                      memcmp(there, config->data, n_bytes) == 0;
    qr_free(there);
    return same ? QRUN_OK : qr_file_remove(path, err);
}

/* ---- adapter_model.safetensors ----------------------------------------------------------------------------------- */

typedef enum tensor_part { PART_A, PART_B, PART_MAGNITUDE, PART_PARAMETER } tensor_part;

/* Where a tensor of the file comes from. */
typedef struct tensor_source {
    tensor_part part;
    size_t index; /* of the factor, or of the parameter */
} tensor_source;

typedef struct tensor_list {
    const qr_adapter_spec *spec;
    qr_safetensors_spec *tensors;
    tensor_source *sources; /* parallel to tensors */
    char **names;           /* owned, parallel to tensors */
    size_t n;
    float *values; /* [n_values]: room for the largest part of a factor */
    int64_t n_values;
} tensor_list;

static void tensor_list_free(tensor_list *list) {
    for (size_t i = 0; i < list->n; i++) { qr_free(list->names[i]); }
    qr_free(list->tensors);
    qr_free(list->sources);
    qr_free(list->names);
    qr_free(list->values);
}

static qrun_status add_tensor(tensor_list *list, tensor_part part, size_t index, const char *name, int n_dims,
                              const int64_t *dims, qr_error *err) {
    static const char *const suffixes[] = {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", ""};
    qr_buffer full = {0};
    qr_buffer_append_format(&full, "base_model.model.%s%s", name, suffixes[part]);
    char *text = qr_buffer_take(&full);
    if (text == NULL) { return qr_fail_memory(err, name, strlen(name)); }
    qr_safetensors_spec *tensor = &list->tensors[list->n];
    *tensor = (qr_safetensors_spec){.name = text, .dtype = QR_DTYPE_F32, .n_dims = n_dims};
    memcpy(tensor->dims, dims, (size_t)n_dims * sizeof *dims);
    list->sources[list->n] = (tensor_source){part, index};
    list->names[list->n++] = text;
    return QRUN_OK;
}

static qrun_status add_factor(tensor_list *list, size_t i, qr_error *err) {
    const qr_adapter_factor_spec *factor = &list->spec->factors[i];
    const int64_t n_stacked = qr_max(factor->n_stacked, 1), rank = rank_of(list->spec, i) * n_stacked;
    const int64_t a_dims[] = {rank, factor->in}, b_dims[] = {factor->out, rank};
    int64_t n_values;
    if (rank < 1 || !qr_count_mul(rank, qr_max(factor->in, factor->out), &n_values)) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: rank %lld cannot be written", factor->module, (long long)rank);
    }
    list->n_values = qr_max(list->n_values, n_values);
    QR_RETURN_IF_ERROR(add_tensor(list, PART_A, i, factor->module, 2, a_dims, err));
    QR_RETURN_IF_ERROR(add_tensor(list, PART_B, i, factor->module, 2, b_dims, err));
    if (list->spec->read_magnitude != NULL) {
        QR_RETURN_IF_ERROR(add_tensor(list, PART_MAGNITUDE, i, factor->module, 1, b_dims, err));
    }
    return QRUN_OK;
}

static qrun_status list_tensors(tensor_list *list, qr_error *err) {
    const qr_adapter_spec *spec = list->spec;
    const size_t most = spec->n_factors * 3 + spec->n_parameters;
    list->tensors = qr_alloc_array(most, sizeof *list->tensors);
    list->sources = qr_alloc_array(most, sizeof *list->sources);
    list->names = qr_alloc_array(most, sizeof *list->names);
    if (list->tensors == NULL || list->sources == NULL || list->names == NULL) {
        return qr_fail_memory(err, "the list of tensors", most * sizeof *list->tensors);
    }
    for (size_t i = 0; i < spec->n_factors; i++) { QR_RETURN_IF_ERROR(add_factor(list, i, err)); }
    for (size_t i = 0; i < spec->n_parameters; i++) {
        const qr_adapter_parameter_spec *parameter = &spec->parameters[i];
        QR_RETURN_IF_ERROR(
            add_tensor(list, PART_PARAMETER, i, parameter->name, parameter->n_dims, parameter->dims, err));
    }
    if (spec->read_parameter != NULL) { list->n_values = qr_max(list->n_values, CHUNK_FLOATS); }
    list->values = qr_alloc_array((size_t)list->n_values, sizeof *list->values);
    return list->values != NULL ? QRUN_OK
                                : qr_fail_memory(err, "an adapter", (size_t)list->n_values * sizeof *list->values);
}

/* The values of a tensor, in list->values or the caller's own. */
static qrun_status read_values(const tensor_list *list, const tensor_source *source, const float **values,
                               qr_error *err) {
    const qr_adapter_spec *spec = list->spec;
    *values = list->values;
    switch (source->part) {
        case PART_A:
        case PART_B: return spec->read(spec->user, source->index, source->part == PART_B, list->values, err);
        case PART_MAGNITUDE: return spec->read_magnitude(spec->user, source->index, list->values, err);
        case PART_PARAMETER: *values = spec->parameters[source->index].values; break;
    }
    return QRUN_OK;
}

static size_t n_bytes_of(const qr_safetensors_spec *tensor) {
    size_t n = sizeof(float);
    for (int d = 0; d < tensor->n_dims; d++) { n *= (size_t)tensor->dims[d]; } /* checked when the writer was made */
    return n;
}

static qrun_status write_streamed(const tensor_list *list, qr_safetensors_writer *writer, size_t i, size_t n_bytes,
                                  qr_error *err) {
    const qr_adapter_spec *spec = list->spec;
    const int64_t n_floats = (int64_t)(n_bytes / sizeof(float));
    for (int64_t first = 0; first < n_floats; first += CHUNK_FLOATS) {
        const int64_t n = qr_min(CHUNK_FLOATS, n_floats - first);
        QR_RETURN_IF_ERROR(spec->read_parameter(spec->user, i, first, n, list->values, err));
        QR_RETURN_IF_ERROR(qr_safetensors_writer_write(writer, list->values, (size_t)n * sizeof(float), err));
    }
    return QRUN_OK;
}

static qrun_status write_tensors(const char *folder, const qr_adapter_spec *spec, qr_error *err) {
    tensor_list list = {.spec = spec};
    qr_safetensors_writer *writer = NULL;
    qrun_status status;
    QR_TRY(list_tensors(&list, err));
    QR_TRY(qr_safetensors_writer_create(folder, TENSORS_STEM, list.tensors, list.n, 0, &writer, err));
    for (const qr_safetensors_spec *next; (next = qr_safetensors_writer_next(writer)) != NULL;) {
        const tensor_source *source = &list.sources[next - list.tensors];
        const float *values;
        if (source->part == PART_PARAMETER && spec->parameters[source->index].values == NULL) {
            QR_TRY(write_streamed(&list, writer, source->index, n_bytes_of(next), err));
            continue;
        }
        QR_TRY(read_values(&list, source, &values, err));
        QR_TRY(qr_safetensors_writer_write(writer, values, n_bytes_of(next), err));
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
out:
    qr_safetensors_writer_abort(writer);
    tensor_list_free(&list);
    return status;
}

/* ---- the folder -------------------------------------------------------------------------------------------------- */

qrun_status qr_adapter_write(const char *folder, const qr_adapter_spec *spec, qr_error *err) {
    qr_adapter *written = NULL;
    qr_buffer config = {0};
    char *path = qr_path_join(folder, CONFIG_NAME);
    qrun_status status;
    if (path == NULL) { QR_TRY(qr_fail_memory(err, "a path", strlen(folder))); }
    QR_TRY(make_config(spec, &config, err));
    QR_TRY(remove_other_config(path, &config, err));
    QR_TRY(write_tensors(folder, spec, err));
    QR_TRY(qr_file_write(path, config.data, config.size, err));
    QR_TRY(qr_adapter_open(folder, &written, err));
out:
    qr_adapter_close(written);
    qr_buffer_free(&config);
    qr_free(path);
    return status;
}
