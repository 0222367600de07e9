#include "runtime/engine/cgroup_memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/sizes.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 64 };

int64_t qr_read_number(const char *path, const char *key) {
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

/* What the versions call the same things. Of a group, those below it are part in all of them. */
typedef struct version {
    const char *limit, *used, *inactive, *active; /* the last two: lines of memory.stat */
} version;

static const version first = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                              "total_active_file "};
static const version second = {"memory.max", "memory.current", "inactive_file ", "active_file "};

static int64_t number_of_group(const char *group, const char *name, const char *key) {
    char path[PATH_BYTES + NAME_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", group, name);
    return qr_read_number(path, key);
}

static void take_group(const version *v, const char *group, qr_cgroup_memory *memory) {
    const int64_t limit = number_of_group(group, v->limit, ""), used = number_of_group(group, v->used, "");
    if (limit < 0 || used < 0) { return; }
    const int64_t inactive = qr_max(number_of_group(group, "memory.stat", v->inactive), 0);
    const int64_t active = qr_max(number_of_group(group, "memory.stat", v->active), 0);
    const int64_t held = qr_max(used - inactive - active, 0);
    memory->limit_bytes = qr_min(memory->limit_bytes, limit);
    memory->available_bytes = qr_min(memory->available_bytes, qr_max(limit - held, 0));
}

/* The group and all around it, up to the mount. In a container the mount may be the container's group, and the path
 * the machine's: what is not there is passed over. */
static void take_groups(const version *v, const char *mount, const char *group, qr_cgroup_memory *memory) {
    char path[PATH_BYTES];
    const size_t root_bytes = strlen(mount), group_bytes = strlen(group);
    if (root_bytes + group_bytes >= sizeof path) { return; }
    memcpy(path, mount, root_bytes);
    memcpy(path + root_bytes, group, group_bytes + 1);
    for (char *slash; (slash = strrchr(path + root_bytes, '/')) != NULL; *slash = '\0') {
        if (slash[1] != '\0') { take_group(v, path, memory); }
    }
    take_group(v, path, memory);
}

/* Whether the list "cpu,memory" has the memory. */
static bool has_memory(const char *controllers, size_t n_bytes) {
    for (size_t at = 0; at < n_bytes; at++) {
        const size_t n = strcspn(controllers + at, ",:");
        if (n == strlen("memory") && memcmp(controllers + at, "memory", n) == 0) { return true; }
        at += n;
    }
    return false;
}

/* A line of /proc/self/cgroup: "4:memory:/path", or "0::/path" of version 2. */
static void take_line(const char *root, char *line, qr_cgroup_memory *memory) {
    static const char *const unified[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char mount[PATH_BYTES];
    char *controllers = strchr(line, ':'), *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL) { return; }
    group[1 + strcspn(group + 1, "\n")] = '\0';
    if (has_memory(controllers + 1, (size_t)(group - controllers - 1))) {
        (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
        take_groups(&first, mount, group + 1, memory);
    }
    for (size_t i = 0; group == controllers + 1 && i < QR_COUNT_OF(unified); i++) {
        (void)snprintf(mount, sizeof mount, "%s%s", root, unified[i]);
        take_groups(&second, mount, group + 1, memory);
    }
}

qr_cgroup_memory qr_cgroup_memory_now(const char *root) {
    qr_cgroup_memory memory = {INT64_MAX, INT64_MAX};
    char path[PATH_BYTES], line[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) { take_line(root, line, &memory); }
    if (file != NULL) { fclose(file); }
    return memory;
}
