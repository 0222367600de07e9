/* A PEFT LoRA adapter folder: adapter_config.json and adapter_model.safetensors, checked against each other. Which
 * modules the base model has is not known here; whoever applies the adapter checks in_features and out_features. */
#ifndef QR_LOADERS_ADAPTER_ADAPTER_H
#define QR_LOADERS_ADAPTER_ADAPTER_H

#include "base/status.h"
#include "loaders/adapter/adapter_config.h"
#include "loaders/files/safetensors.h"

/* LoRA on one module: y += scale · B(A(x)). Tensors are F32, F16 or BF16 and lent by the adapter. */
typedef struct qr_adapter_module {
    char *name;        /* path in the base model, "model.layers.0.self_attn.q_proj" */
    bool is_embedding; /* A and B are lora_embedding_A and _B: a row of A's transpose is looked up instead of A(x) */
    int64_t rank, in_features, out_features; /* of an embedding: in = vocabulary, out = hidden size */
    int64_t n_stacked; /* matrices of a parameter in target_parameters, such as the experts of a layer; else 1 */
    double alpha, scale;
    const qr_safetensors_tensor *a;         /* [n_stacked · rank, in_features] */
    const qr_safetensors_tensor *b;         /* [out_features, rank · n_stacked] */
    const qr_safetensors_tensor *magnitude; /* DoRA: [out_features]; NULL otherwise */
} qr_adapter_module;

/* A whole parameter that replaces the base model's. */
typedef struct qr_adapter_parameter {
    char *name; /* "lm_head.weight" */
    const qr_safetensors_tensor *tensor;
    bool is_base; /* what a LoRA of the adapter is added to: of an embedding or a head */
} qr_adapter_parameter;

typedef struct qr_adapter {
    qr_adapter_config config;
    qr_safetensors *file;
    qr_adapter_module *modules; /* sorted by name */
    size_t n_modules, modules_capacity;
    qr_adapter_parameter *parameters; /* sorted by name */
    size_t n_parameters, parameters_capacity;
} qr_adapter;

/* Reads a folder, or what an id names in the cache of the hub (files/hub.h). QRUN_ERROR_INPUT for tensors that are
 * incomplete, misshapen, unknown, or of modules that the config does not name; QRUN_ERROR_UNSUPPORTED for other kinds
 * of adapters, by name. */
qrun_status qr_adapter_open(const char *name_or_path, qr_adapter **adapter, qr_error *err);
void qr_adapter_close(qr_adapter *adapter); /* NULL is fine */

const qr_adapter_module *qr_adapter_find(const qr_adapter *adapter, const char *module); /* NULL when absent */

#endif
