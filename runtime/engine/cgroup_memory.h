/* The memory limits of the control groups (cgroup v1 and v2) that the process is in, as containers have them. */
#ifndef QR_RUNTIME_ENGINE_CGROUP_MEMORY_H
#define QR_RUNTIME_ENGINE_CGROUP_MEMORY_H

#include <stdint.h>

typedef struct qr_cgroup_memory {
    int64_t limit_bytes;     /* the smallest of all groups around the process; INT64_MAX: there is none */
    int64_t available_bytes; /* the least that one of them has left, cached pages of files counted as free; likewise */
} qr_cgroup_memory;

/* root: of the file system, "" but in tests. What cannot be read sets no limit. */
qr_cgroup_memory qr_cgroup_memory_now(const char *root);

/* The integer after `key` in a small text file; −1 where there is none. */
int64_t qr_read_number(const char *path, const char *key);

#endif
