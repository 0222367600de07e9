/* Where a library of NVIDIA's may lie, beside the folders that the dynamic linker knows. */
#ifndef QR_KERNELS_CUDA_DEVICE_LIBRARY_SEARCH_H
#define QR_KERNELS_CUDA_DEVICE_LIBRARY_SEARCH_H

#include <stddef.h>

/* Calls try_path(path, arg) until it returns true, and returns whether it did, with:
 *   1. the name alone, for the dynamic linker: what the process has already opened, LD_LIBRARY_PATH, its cache;
 *   2. lib64 and lib of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda;
 *   3. the Python environments $VIRTUAL_ENV, $CONDA_PREFIX, and that of each python3 on $PATH: their lib, then, of each
 *      of their Pythons, nvidia/PART/lib in site-packages or dist-packages, which is where NVIDIA's wheels put it;
 *   4. the same below /usr and /usr/local.
 * Of 2 to 4 only files that exist. */
bool qr_library_search(const char *file, bool (*try_path)(const char *path, void *arg), void *arg);

#endif
