/* Limits of control groups, read from trees of files as the kernel has them: version 1 and 2, nested, in a container
 * and out of one. */
#include "check.h"

#include "runtime/engine/cgroup_memory.h"
#include "temporary.h"

enum { MIB = 1 << 20 };

static temporary_folder folder;
static char root[128];

/* A tree of its own for every case. */
static void begin(const char *name) {
    qr_error err = {0};
    snprintf(root, sizeof root, "%s/%s", folder.path, name);
    CHECK(qr_folder_create(root, &err) == QRUN_OK);
}

/* A file under root, with the folders on its way. */
static void put(const char *path, const char *text) {
    char full[512];
    qr_error err = {0};
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (access(full, F_OK) != 0) { CHECK(qr_folder_create(full, &err) == QRUN_OK); }
        *slash = '/';
    }
    CHECK_MSG(qr_file_write(full, text, strlen(text), &err) == QRUN_OK, "%s", err.message);
}

static void put_number(const char *group, const char *name, int64_t value) {
    char path[384], text[32];
    snprintf(path, sizeof path, "%s/%s", group, name);
    snprintf(text, sizeof text, "%lld\n", (long long)value);
    put(path, text);
}

static void put_stat(const char *group, const char *prefix, int64_t inactive, int64_t active) {
    char path[384], text[256];
    snprintf(path, sizeof path, "%s/memory.stat", group);
    snprintf(text, sizeof text, "anon 12\n%sactive_anon 5\n%sinactive_file %lld\n%sactive_file %lld\n", prefix, prefix,
             (long long)inactive, prefix, (long long)active);
    put(path, text);
}

static void expect(int64_t limit_bytes, int64_t available_bytes) {
    const qr_cgroup_memory memory = qr_cgroup_memory_now(root);
    CHECK_INT(memory.limit_bytes, limit_bytes);
    CHECK_INT(memory.available_bytes, available_bytes);
}

static void test_nothing_is_no_limit(void) {
    begin("nothing");
    expect(INT64_MAX, INT64_MAX);
    put("/proc/self/cgroup", "0::/\n");
    expect(INT64_MAX, INT64_MAX);
    put("/proc/self/cgroup", "nonsense\n::\n5\n");
    expect(INT64_MAX, INT64_MAX);
}

/* A container with a namespace of its own sees its group at the mount; cached pages of files can be had back. */
static void test_a_container_of_version_2(void) {
    begin("container2");
    put("/proc/self/cgroup", "0::/\n");
    put_number("/sys/fs/cgroup", "memory.max", 100 * MIB);
    put_number("/sys/fs/cgroup", "memory.current", 70 * MIB);
    expect(100 * MIB, 30 * MIB);
    put_stat("/sys/fs/cgroup", "", 20 * MIB, 10 * MIB);
    expect(100 * MIB, 60 * MIB);
    put_number("/sys/fs/cgroup", "memory.current", 140 * MIB);
    expect(100 * MIB, 0);
    put("/sys/fs/cgroup/memory.max", "max\n");
    expect(INT64_MAX, INT64_MAX);
}

/* The group may have no limit, and one around it a narrow one. */
static void test_groups_around_it_count(void) {
    begin("nested2");
    put("/proc/self/cgroup", "0::/user/session/run\n");
    put("/sys/fs/cgroup/user/session/run/memory.max", "max\n");
    put_number("/sys/fs/cgroup/user/session/run", "memory.current", 3 * MIB);
    put_number("/sys/fs/cgroup/user/session", "memory.max", 300 * MIB);
    put_number("/sys/fs/cgroup/user/session", "memory.current", 10 * MIB);
    put_number("/sys/fs/cgroup/user", "memory.max", 400 * MIB);
    put_number("/sys/fs/cgroup/user", "memory.current", 390 * MIB);
    expect(300 * MIB, 10 * MIB);
}

static void test_version_1(void) {
    begin("version1");
    put("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/jobs/7\n3:memory_other:/jobs/8\n0::/\n");
    put_number("/sys/fs/cgroup/memory/jobs/7", "memory.limit_in_bytes", 64 * MIB);
    put_number("/sys/fs/cgroup/memory/jobs/7", "memory.usage_in_bytes", 50 * MIB);
    put_stat("/sys/fs/cgroup/memory/jobs/7", "total_", 8 * MIB, 2 * MIB);
    put_number("/sys/fs/cgroup/memory/jobs/8", "memory.limit_in_bytes", MIB);
    put_number("/sys/fs/cgroup/memory/jobs/8", "memory.usage_in_bytes", 0);
    put_number("/sys/fs/cgroup/memory", "memory.limit_in_bytes", INT64_MAX - 4095);
    put_number("/sys/fs/cgroup/memory", "memory.usage_in_bytes", 900 * MIB);
    expect(64 * MIB, 24 * MIB);
}

/* Docker's with version 1: the path is the machine's, and the mount the container's. */
static void test_a_container_of_version_1(void) {
    begin("container1");
    put("/proc/self/cgroup", "4:memory:/docker/0123456789abcdef\n");
    put_number("/sys/fs/cgroup/memory", "memory.limit_in_bytes", 512 * MIB);
    put_number("/sys/fs/cgroup/memory", "memory.usage_in_bytes", 12 * MIB);
    expect(512 * MIB, 500 * MIB);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    folder = temporary_create();
    CHECK_RUN(test_nothing_is_no_limit);
    CHECK_RUN(test_a_container_of_version_2);
    CHECK_RUN(test_groups_around_it_count);
    CHECK_RUN(test_version_1);
    CHECK_RUN(test_a_container_of_version_1);
    temporary_remove(&folder);
    return check_end();
}
