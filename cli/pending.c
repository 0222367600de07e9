/* Stands in for calls of qrun.h that the library does not have yet; see CMakeLists.txt. */
#include <stdio.h>

#include "qrun.h"

#if defined(QRUN_PENDING_qrun_folder_inspect) || defined(QRUN_PENDING_qrun_quantize_folder)
static qrun_status refuse(qrun_error *error) {
    error->status = QRUN_ERROR_UNSUPPORTED;
    snprintf(error->message, sizeof error->message, "this build of qrun cannot do that yet");
    return error->status;
}
#endif

#ifdef QRUN_PENDING_qrun_folder_inspect
qrun_status qrun_folder_inspect(qrun_context *context, const char *path, bool list_tensors, char **json,
                                qrun_error *error) {
    (void)context, (void)path, (void)list_tensors, (void)json;
    return refuse(error);
}
#endif

#ifdef QRUN_PENDING_qrun_quantize_folder
qrun_status qrun_quantize_folder(qrun_context *context, const qrun_quantize_params *params, qrun_error *error) {
    (void)context, (void)params;
    return refuse(error);
}
#endif
