/* What the two kinds of GGUF files that are written share. */
#ifndef QR_RUNTIME_FOLDERS_GGUF_EXPORT_H
#define QR_RUNTIME_FOLDERS_GGUF_EXPORT_H

#include "base/dtype.h"
#include "base/status.h"

/* The type of tensors; AUTO: Q8_0. */
qr_dtype qr_gguf_type_dtype(qrun_gguf_type type);

/* Writes an adapter alone, for a model of params->path; the parameters are checked. */
qrun_status qr_gguf_export_lora(qrun_context *context, const qrun_export_params *params, qrun_export_result *result,
                                qr_error *err);

#endif
