/* A run that begins from an adapter instead of from nothing: its shape fills in what the options leave open, its values
 * become the first ones. */
#ifndef QR_RUNTIME_TRAIN_INITIAL_ADAPTER_H
#define QR_RUNTIME_TRAIN_INITIAL_ADAPTER_H

#include "loaders/adapter/adapter.h"
#include "runtime/train/lora_parameters.h"

/* Opens the folder and takes rank, alpha, rsLoRA, DoRA and, where targets is NULL, the targets from it into options
 * (*targets is then made, qr_free). QRUN_ERROR_INPUT where rank or alpha (0: not given) or a variant that was asked for
 * is another than the adapter's; QRUN_ERROR_UNSUPPORTED for ranks that differ between layers and for whole modules. */
qrun_status qr_initial_adapter_open(const char *folder, const qr_lora_options *given, qr_adapter **adapter,
                                    qr_lora_options *options, char **targets, qr_error *err);

/* Copies the values into parameters whose arenas exist. QRUN_ERROR_INPUT when the adapter is not of just these layers,
 * as one for another model. */
qrun_status qr_initial_adapter_load(const qr_adapter *adapter, qr_parameters *parameters, qr_error *err);

/* Of all its values: what a checkpoint must agree with. */
uint64_t qr_initial_adapter_hash(const qr_adapter *adapter);

#endif
