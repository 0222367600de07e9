/* A run that begins from an adapter: options that are not given are the adapter's, and training starts from its
 * values. */
#ifndef QR_RUNTIME_TRAIN_INITIAL_ADAPTER_H
#define QR_RUNTIME_TRAIN_INITIAL_ADAPTER_H

#include "loaders/adapter/adapter.h"
#include "runtime/pass/lora_parameters.h"

/* Opens the folder and copies rank, alpha, rsLoRA and DoRA into options and, where *targets is NULL, allocates the
 * list of its targets (qr_free); *parameters and *layers likewise, the latter staying NULL where it means all.
 * QRUN_ERROR_INPUT where a given rank, alpha (0: not given) or variant is not the adapter's; QRUN_ERROR_UNSUPPORTED for
 * ranks that differ between layers and for modules trained whole. */
qrun_status qr_initial_adapter_open(const char *folder, const qr_lora_options *given, qr_adapter **adapter,
                                    qr_lora_options *options, char **targets, char **parameters, char **layers,
                                    qr_error *err);

/* Copies the values into parameters whose arenas exist. QRUN_ERROR_INPUT when the adapter does not adapt exactly these
 * layers, as one for another model. */
qrun_status qr_initial_adapter_load(const qr_adapter *adapter, qr_parameters *parameters, qr_error *err);

/* Of all its values, for the fingerprint of a run. */
uint64_t qr_initial_adapter_hash(const qr_adapter *adapter);

#endif
