/* The adapter of a run as PEFT reads it. */
#ifndef QR_RUNTIME_ADAPTER_EXPORT_H
#define QR_RUNTIME_ADAPTER_EXPORT_H

#include "runtime/trainer.h"

/* Writes adapter_config.json and adapter_model.safetensors into an existing folder; each file appears whole. */
qrun_status qr_adapter_export(qrun_trainer *trainer, const char *folder, qr_error *err);

#endif
