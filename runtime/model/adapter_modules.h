/* Adapters that bring whole modules (PEFT's modules_to_save). Unlike LoRA they cannot be chosen row by row: while such
 * an adapter is open its modules stand in the place of the model's, it is the only one that is open, and every request
 * has to use it. */
#ifndef QR_RUNTIME_MODEL_ADAPTER_MODULES_H
#define QR_RUNTIME_MODEL_ADAPTER_MODULES_H

#include "loaders/adapter/adapter.h"
#include "runtime/model/adapter.h"

/* Loads the adapter's whole modules, if it has any, and lets the model use them. QRUN_ERROR_ARGUMENT where another
 * adapter is open and either has any; QRUN_ERROR_INPUT for a module that the model does not have in that shape. */
qrun_status qr_adapter_modules_load(qrun_adapter *made, const qr_adapter *adapter, const char *path, qr_error *err);

/* Gives the model its own modules back. Fine where there are none. */
void qr_adapter_modules_release(qrun_adapter *adapter);

#endif
