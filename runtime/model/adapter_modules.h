/* Adapters with whole modules (PEFT's modules_to_save). Unlike LoRA they cannot be chosen row by row. While such an
 * adapter is open its modules replace the model's, no other adapter is open, and every request has to use it. */
#ifndef QR_RUNTIME_MODEL_ADAPTER_MODULES_H
#define QR_RUNTIME_MODEL_ADAPTER_MODULES_H

#include "runtime/model/adapter.h"

/* QRUN_ERROR_INPUT where an adapter's parameter has not this shape, the one in the model's files. */
qrun_status qr_adapter_check_parameter(const qr_adapter_parameter *parameter, int n_dims, const int64_t *dims,
                                       qr_error *err);

/* Loads the adapter's whole modules, if it has any, and lets the model use them. QRUN_ERROR_ARGUMENT where another
 * adapter is open and either has any; QRUN_ERROR_INPUT for a module that the model does not have in that shape. */
qrun_status qr_adapter_modules_load(qrun_adapter *made, const qr_adapter *adapter, const char *path, qr_error *err);

/* The model uses its own modules again. Fine where there are none. */
void qr_adapter_modules_release(qrun_adapter *adapter);

#endif
