/* Opens a library of qrun at run time. It is the file that an environment variable names, else the one in the folder of
 * this library or program, else the one that the dynamic linker finds. It stays open. */
#ifndef QR_KERNELS_PLUGIN_OPEN_H
#define QR_KERNELS_PLUGIN_OPEN_H

#include "base/status.h"

typedef struct qr_plugin_file {
    const char *name;     /* "cuda", before messages */
    const char *file;     /* "libqrun_cuda.so" */
    const char *variable; /* QRUN_CUDA_LIBRARY */
    const char *absent;   /* why it may be missing, after "<file> was not found: " */
    const char *symbol;   /* the one that it exports, a function */
} qr_plugin_file;

typedef void (*qr_plugin_function)(void); /* to be cast to the symbol's own type */

/* *function: the symbol. QRUN_ERROR_UNSUPPORTED, with the reason, where there is none. */
qrun_status qr_plugin_open(const qr_plugin_file *plugin, qr_plugin_function *function, qr_error *err);

#endif
