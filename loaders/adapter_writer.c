#include "loaders/adapter_writer.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/sizes.h"
#include "loaders/safetensors_writer.h"

/* ---- adapter_config.json ------------------------------------------------------------------------------------------------ */

static void add_targets(qr_buffer *text, const qr_adapter_spec *spec) {
    qr_buffer_append_text(text, "  \"target_modules\": [");
    for (size_t i = 0; i < spec->n_targets; i++) {
        qr_buffer_append_text(text, i > 0 ? ",\n    " : "\n    ");
        qr_buffer_append_json_string(text, spec->targets[i], strlen(spec->targets[i]));
    }
    qr_buffer_append_text(text, "\n  ],\n");
}

static const char *json_bool(bool value) { return value ? "true" : "false"; }

static qrun_status write_config(const char *folder, const qr_adapter_spec *spec, qr_error *err) {
    qr_buffer text = {0};
    qr_buffer_append_text(&text, "{\n  \"base_model_name_or_path\": ");
    qr_buffer_append_json_string(&text, spec->base_model, strlen(spec->base_model));
    qr_buffer_append_format(&text, ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n",
                            json_bool(spec->fan_in_fan_out));
    qr_buffer_append_format(&text, "  \"init_lora_weights\": true,\n  \"lora_alpha\": %.9g,\n  \"lora_dropout\": 0.0,\n",
                            spec->alpha);
    qr_buffer_append_format(&text, "  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n  \"r\": %d,\n", spec->rank);
    add_targets(&text, spec);
    qr_buffer_append_format(&text, "  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": %s\n}\n",
                            json_bool(spec->rslora));
    char *path = qr_path_join(folder, "adapter_config.json");
    qrun_status status = path != NULL && qr_buffer_ok(&text) ? qr_file_write(path, text.data, text.size, err)
                                                             : qr_fail_memory(err, "adapter_config.json", text.size);
    qr_free(path);
    qr_buffer_free(&text);
    return status;
}

/* ---- adapter_model.safetensors -------------------------------------------------------------------------------------------- */

typedef struct factor_list {
    const qr_adapter_spec *spec;
    qr_safetensors_spec *tensors; /* [2 · n_factors]: A and B of each */
    char **names;
    float *values; /* the largest factor */
} factor_list;

static void free_list(factor_list *list) {
    for (size_t i = 0; list->names != NULL && i < 2 * list->spec->n_factors; i++) { qr_free(list->names[i]); }
    qr_free(list->names);
    qr_free(list->tensors);
    qr_free(list->values);
}

static char *tensor_name(const char *module, bool is_b) {
    qr_buffer name = {0};
    qr_buffer_append_format(&name, "base_model.model.%s.lora_%c.weight", module, is_b ? 'B' : 'A');
    return qr_buffer_take(&name);
}

static qrun_status make_list(factor_list *list, qr_error *err) {
    const qr_adapter_spec *spec = list->spec;
    int64_t most = 1;
    list->tensors = qr_alloc_array_zeroed(2 * spec->n_factors, sizeof *list->tensors);
    list->names = qr_alloc_array_zeroed(2 * spec->n_factors, sizeof *list->names);
    if (list->tensors == NULL || list->names == NULL) { return qr_fail_memory(err, "an adapter", spec->n_factors * 200); }
    for (size_t i = 0; i < 2 * spec->n_factors; i++) {
        const qr_adapter_factor_spec *factor = &spec->factors[i / 2];
        const bool is_b = i % 2 == 1;
        list->names[i] = tensor_name(factor->module, is_b);
        if (list->names[i] == NULL) { return qr_fail_memory(err, "an adapter", strlen(factor->module)); }
        list->tensors[i] = (qr_safetensors_spec){list->names[i], QR_DTYPE_F32, 2,
                                                 {is_b ? factor->out : spec->rank, is_b ? spec->rank : factor->in}};
        most = qr_max(most, spec->rank * qr_max(factor->in, factor->out));
    }
    list->values = qr_alloc_array((size_t)most, sizeof *list->values);
    return list->values != NULL ? QRUN_OK : qr_fail_memory(err, "an adapter", (unsigned long long)most * sizeof(float));
}

qrun_status qr_adapter_write(const char *folder, const qr_adapter_spec *spec, qr_error *err) {
    factor_list list = {.spec = spec};
    qr_safetensors_writer *writer = NULL;
    qrun_status status = QRUN_OK;
    QR_TRY(make_list(&list, err));
    QR_TRY(qr_safetensors_writer_create(folder, "adapter_model", list.tensors, 2 * spec->n_factors, 0, &writer, err));
    for (const qr_safetensors_spec *tensor; (tensor = qr_safetensors_writer_next(writer)) != NULL;) {
        const size_t i = (size_t)(tensor - list.tensors);
        QR_TRY(spec->read(spec->user, i / 2, i % 2 == 1, list.values, err));
        QR_TRY(qr_safetensors_writer_write(writer, list.values,
                                           (size_t)(tensor->dims[0] * tensor->dims[1]) * sizeof(float), err));
    }
    status = qr_safetensors_writer_commit(writer, err);
    writer = NULL;
    if (status == QRUN_OK) { status = write_config(folder, spec, err); }
out:
    qr_safetensors_writer_abort(writer);
    free_list(&list);
    return status;
}
