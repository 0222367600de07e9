#include "runtime/engine/machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The integer after `key` in a small text file such as /sys/fs/cgroup/memory.max; −1 where there is none. */
static int64_t read_number(const char *path, const char *key) {
    FILE *file = fopen(path, "r");
    if (file == NULL) { return -1; }
    char line[256];
    int64_t value = -1;
    while (value < 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0) { continue; }
        long long number;
        if (sscanf(line + strlen(key), "%lld", &number) == 1) { value = number; }
    }
    fclose(file);
    return value;
}

static int64_t smaller_limit(int64_t machine, int64_t container) {
    return container >= 0 && container < machine ? container : machine;
}

void qr_machine_memory(int64_t *total, int64_t *available) {
    *total = read_number("/proc/meminfo", "MemTotal:") * 1024;
    *available = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    if (*total <= 0) { *total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }
    if (*available <= 0) { *available = *total; }
    const int64_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    const int64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    *total = smaller_limit(*total, limit);
    if (limit >= 0 && used >= 0) { *available = smaller_limit(*available, limit > used ? limit - used : 0); }
}
