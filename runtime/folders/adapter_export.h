/* The adapter of a run as PEFT reads it. */
#ifndef QR_RUNTIME_FOLDERS_ADAPTER_EXPORT_H
#define QR_RUNTIME_FOLDERS_ADAPTER_EXPORT_H

#include "runtime/model/parameters.h"

/* What adapter_config.json says of a run besides its parameters. */
typedef struct qr_adapter_export_options {
    double alpha, dropout;
    bool rslora;
} qr_adapter_export_options;

/* Writes adapter_config.json and adapter_model.safetensors into an existing folder; each file appears whole. */
qrun_status qr_adapter_export(const qr_parameters *parameters, const qr_adapter_export_options *options,
                              const char *folder, qr_error *err);

#endif
