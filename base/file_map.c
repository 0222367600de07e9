#include "base/file_map.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

/* ---- The handler ------------------------------------------------------------------------------------------------- */

/* One map. The list is under `lock`, which a handler takes too: it runs inside a read of a map, and nobody who holds
 * the lock reads one. */
struct qr_map_guard {
    uintptr_t begin, end; /* whole pages */
    atomic_bool is_cut;   /* a read of it failed, and zeros are in the place of what could not be read */
    dev_t device;         /* these two: which file it is */
    ino_t inode;
    struct qr_map_guard *next;
};

static atomic_flag lock = ATOMIC_FLAG_INIT;
static qr_map_guard *guards;
static bool is_installed;
static struct sigaction before; /* the host's */
static uintptr_t page_bytes;

static void take_lock(void) {
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {}
}

static void release_lock(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

/* Puts zeros from the page of the address to the end of its map. False when no map has that address. Async-signal-safe:
 * memory of the kernel, atomics and a system call. */
static bool fill_rest(uintptr_t address) {
    bool filled = false;
    take_lock();
    for (qr_map_guard *guard = guards; guard != NULL; guard = guard->next) {
        if (address < guard->begin || address >= guard->end) { continue; }
        const uintptr_t page = address / page_bytes * page_bytes;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
        filled = mmap((void *)page, guard->end - page, PROT_READ, flags, -1, 0) != MAP_FAILED;
        atomic_store(&guard->is_cut, true);
        break;
    }
    release_lock();
    return filled;
}

/* What would have happened without this file. */
static void pass_on(int number, siginfo_t *info, void *context) {
    take_lock();
    const struct sigaction host = before;
    release_lock();
    if ((host.sa_flags & SA_SIGINFO) != 0) {
        host.sa_sigaction(number, info, context);
    } else if (host.sa_handler != SIG_DFL && host.sa_handler != SIG_IGN) {
        host.sa_handler(number);
    } else {
        (void)sigaction(SIGBUS, &host, NULL); /* the access is repeated and ends the process */
        if (info->si_code <= 0) { (void)raise(number); }
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    const int code = errno;
    if (info->si_code != BUS_ADRERR || !fill_rest((uintptr_t)info->si_addr)) { pass_on(number, info, context); }
    errno = code;
}

/* These with the lock held. A handler that the host has installed over ours since then is left alone, and ours with it:
 * the host's may call it. */
static bool is_default_now(void) {
    struct sigaction now;
    return sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
           (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
}

static bool install(void) {
    if (is_installed && !is_default_now()) { return true; }
    struct sigaction own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    (void)sigemptyset(&own.sa_mask);
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    is_installed = sigaction(SIGBUS, &own, &before) == 0;
    return is_installed;
}

static void restore(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) != 0) { return; }
    if ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_bus_error) { return; }
    is_installed = sigaction(SIGBUS, &before, NULL) != 0;
}

static bool add_guard(qr_map_guard *guard) {
    take_lock();
    const bool added = install();
    if (added) {
        guard->next = guards;
        guards = guard;
    }
    release_lock();
    return added;
}

static void remove_guard(qr_map_guard *guard) {
    take_lock();
    qr_map_guard **link = &guards;
    while (*link != guard) { link = &(*link)->next; }
    *link = guard->next;
    if (guards == NULL && is_installed) { restore(); }
    release_lock();
    qr_free(guard);
}

/* ---- Maps -------------------------------------------------------------------------------------------------------- */

/* Maps the open file, which is not empty. */
static qrun_status map_guarded(const char *path, int descriptor, const struct stat *info, qr_file_map *map,
                               qr_error *err) {
    const size_t size = (size_t)info->st_size, page = (size_t)sysconf(_SC_PAGESIZE);
    qr_map_guard *guard = qr_alloc_zeroed(sizeof *guard);
    if (guard == NULL) { return qr_fail_memory(err, path, sizeof *guard); }
    void *data = mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (data != MAP_FAILED) {
        guard->begin = (uintptr_t)data;
        guard->end = guard->begin + (size + page - 1) / page * page;
        guard->device = info->st_dev;
        guard->inode = info->st_ino;
        if (add_guard(guard)) {
            *map = (qr_file_map){data, size, guard};
            return QRUN_OK;
        }
        munmap(data, size);
    }
    qr_free(guard);
    return qr_file_fail_errno(err, path, "map");
}

qrun_status qr_file_map_open(const char *path, qr_file_map *map, qr_error *err) {
    int descriptor;
    struct stat info;
    *map = (qr_file_map){0};
    QR_RETURN_IF_ERROR(qr_file_open_regular(path, &descriptor, &info, err));
    const qrun_status status = info.st_size > 0 ? map_guarded(path, descriptor, &info, map, err) : QRUN_OK;
    close(descriptor);
    return status;
}

qrun_status qr_file_map_descriptor(int descriptor, const char *path, qr_file_map *map, qr_error *err) {
    struct stat info;
    *map = (qr_file_map){0};
    if (fstat(descriptor, &info) != 0) { return qr_file_fail_errno(err, path, "read its size"); }
    return info.st_size > 0 ? map_guarded(path, descriptor, &info, map, err) : QRUN_OK;
}

void qr_file_map_close(qr_file_map *map) {
    if (map->guard != NULL) {
        remove_guard(map->guard);
        munmap((void *)(uintptr_t)map->data, map->size);
    }
    *map = (qr_file_map){0};
}

/* What was cut off the last page that is left reads as zeros without a signal, so the size counts too. A file that was
 * replaced by another of its name is whole: the map keeps the old one. */
static bool is_shorter_now(const qr_file_map *map, const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && info.st_dev == map->guard->device && info.st_ino == map->guard->inode &&
           info.st_size < (off_t)map->size;
}

qrun_status qr_file_map_check(const qr_file_map *map, const char *path, qr_error *err) {
    if (map->guard == NULL) { return QRUN_OK; }
    if (!atomic_load(&map->guard->is_cut) && !is_shorter_now(map, path)) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_IO,
                   "%s: cannot be read to its end: it was cut short while it was read, or its disk fails; see that "
                   "nothing writes to it, and try again",
                   path);
}

void qr_file_map_want(const qr_file_map *map, size_t offset, size_t size) {
    if (map->data == NULL || offset >= map->size) { return; }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    const size_t end = size < map->size - offset ? offset + size : map->size;
    madvise((void *)((uintptr_t)map->data + first), end - first, MADV_WILLNEED);
}

void qr_file_map_drop(const qr_file_map *map, size_t offset, size_t size) {
    if (map->data == NULL || offset >= map->size) { return; }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t end = size < map->size - offset ? offset + size : map->size;
    const size_t first = (offset + page - 1) / page * page;
    const size_t last = end / page * page;
    if (last > first) { madvise((void *)((uintptr_t)map->data + first), last - first, MADV_DONTNEED); }
}
