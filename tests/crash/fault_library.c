/* Loaded before a program (LD_PRELOAD), counts its calls that change files and makes one of them go wrong:
 *     QRUN_FAULT_AT=N     the N-th call, from 1
 *     QRUN_FAULT=…        kill: the process ends before it, as by kill -9; torn: after half of the bytes of a write;
 *                         enospc: it fails, and so does all that takes space from then on; eio: it fails, once;
 *                         nomem: it succeeds, and an allocation after it fails, once
 *     QRUN_FAULT_SKIP=N   nomem: so many allocations succeed first
 *     QRUN_FAULT_TRACE=F  every call, as a line "N call path", is appended to F before it is made
 * Standard streams are left alone. The C library's own streams write without calls that can be seen from here: programs
 * tested with this write their files by write(2). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef enum fault_kind { FAULT_NONE, FAULT_KILL, FAULT_TORN, FAULT_ENOSPC, FAULT_EIO, FAULT_NOMEM } fault_kind;

static atomic_long n_calls;
static atomic_bool full;             /* the disk, from an ENOSPC on */
static atomic_long until_allocation; /* the one that fails is the last of them; 0: none does */

/* ---- What is asked for ------------------------------------------------------------------------------------------- */

static fault_kind asked_kind(void) {
    static const char *const names[] = {"", "kill", "torn", "enospc", "eio", "nomem"};
    const char *text = getenv("QRUN_FAULT");
    for (int i = 1; text != NULL && i <= FAULT_NOMEM; i++) {
        if (strcmp(text, names[i]) == 0) { return (fault_kind)i; }
    }
    return FAULT_NONE;
}

static long asked_number(const char *name) {
    const char *text = getenv(name);
    return text != NULL ? atol(text) : 0;
}

/* By system calls: neither counted nor buffered. */
static void trace(long number, const char *call, const char *path) {
    const char *file = getenv("QRUN_FAULT_TRACE");
    char line[4200];
    if (file == NULL) { return; }
    const int length = snprintf(line, sizeof line, "%ld %s %s\n", number, call, path);
    const long descriptor = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor < 0) { abort(); }
    if (syscall(SYS_write, descriptor, line, (size_t)length) != length) { abort(); }
    (void)syscall(SYS_close, descriptor);
}

static _Noreturn void die(void) {
    (void)kill(getpid(), SIGKILL);
    for (;;) { pause(); }
}

/* Counts a call; 0: it goes on, otherwise the errno it fails with. `torn` (may be NULL) is set where half of it is to
 * happen. */
static int meet(const char *call, const char *path, bool takes_space, bool *torn) {
    const long number = atomic_fetch_add(&n_calls, 1) + 1;
    trace(number, call, path);
    if (number != asked_number("QRUN_FAULT_AT")) { return takes_space && atomic_load(&full) ? ENOSPC : 0; }
    switch (asked_kind()) {
        case FAULT_KILL: die();
        case FAULT_TORN:
            if (torn == NULL) { die(); }
            *torn = true;
            return 0;
        case FAULT_ENOSPC: atomic_store(&full, true); return ENOSPC;
        case FAULT_EIO: return EIO;
        case FAULT_NOMEM: atomic_store(&until_allocation, asked_number("QRUN_FAULT_SKIP") + 1); return 0;
        case FAULT_NONE: break;
    }
    return 0;
}

static int meet_descriptor(const char *call, int descriptor, bool takes_space, bool *torn) {
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    return meet(call, path, takes_space, torn);
}

#define FAIL_WITH(code)                \
    do {                               \
        const int fault_code = (code); \
        if (fault_code != 0) {         \
            errno = fault_code;        \
            return -1;                 \
        }                              \
    } while (0)

/* The function of the same name behind this library. */
#define NEXT(result, name, ...)         \
    static result (*next)(__VA_ARGS__); \
    if (next == NULL) { *(void **)&next = dlsym(RTLD_NEXT, name); }

/* ---- The calls --------------------------------------------------------------------------------------------------- */

int open(const char *path, int flags, ...) {
    NEXT(int, "open", const char *, int, ...)
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if ((flags & O_CREAT) != 0) { FAIL_WITH(meet("create", path, true, NULL)); }
    return next(path, flags, mode);
}

ssize_t write(int descriptor, const void *bytes, size_t n_bytes) {
    NEXT(ssize_t, "write", int, const void *, size_t)
    bool torn = false;
    if (descriptor <= STDERR_FILENO) { return next(descriptor, bytes, n_bytes); }
    FAIL_WITH(meet_descriptor("write", descriptor, n_bytes > 0, &torn));
    if (!torn) { return next(descriptor, bytes, n_bytes); }
    if (next(descriptor, bytes, n_bytes / 2) < 0) { abort(); }
    die();
}

int fsync(int descriptor) {
    NEXT(int, "fsync", int)
    FAIL_WITH(meet_descriptor("fsync", descriptor, false, NULL));
    return next(descriptor);
}

int ftruncate(int descriptor, off_t size) {
    NEXT(int, "ftruncate", int, off_t)
    FAIL_WITH(meet_descriptor("ftruncate", descriptor, false, NULL));
    return next(descriptor, size);
}

int rename(const char *from, const char *to) {
    NEXT(int, "rename", const char *, const char *)
    FAIL_WITH(meet("rename", to, false, NULL));
    return next(from, to);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(int, "mkdir", const char *, mode_t)
    FAIL_WITH(meet("mkdir", path, true, NULL));
    return next(path, mode);
}

int rmdir(const char *path) {
    NEXT(int, "rmdir", const char *)
    FAIL_WITH(meet("rmdir", path, false, NULL));
    return next(path);
}

int unlink(const char *path) {
    NEXT(int, "unlink", const char *)
    FAIL_WITH(meet("unlink", path, false, NULL));
    return next(path);
}

int unlinkat(int folder, const char *name, int flags) {
    NEXT(int, "unlinkat", int, const char *, int)
    FAIL_WITH(meet("unlinkat", name, false, NULL));
    return next(folder, name, flags);
}

/* ---- Allocations ------------------------------------------------------------------------------------------------- */

#ifdef FAILS_ALLOCATIONS /* a sanitizer's allocator must come first */

/* glibc's own, without looking them up: that would allocate. */
extern void *libc_malloc(size_t size) __asm__("__libc_malloc");
extern void *libc_calloc(size_t count, size_t size) __asm__("__libc_calloc");
extern void *libc_realloc(void *block, size_t size) __asm__("__libc_realloc");

static bool fails_now(void) {
    if (atomic_load_explicit(&until_allocation, memory_order_relaxed) <= 0) { return false; }
    const bool fails = atomic_fetch_sub(&until_allocation, 1) == 1;
    if (fails) { errno = ENOMEM; }
    return fails;
}

void *malloc(size_t size) { return fails_now() ? NULL : libc_malloc(size); }

void *calloc(size_t count, size_t size) { return fails_now() ? NULL : libc_calloc(count, size); }

void *realloc(void *block, size_t size) { return fails_now() ? NULL : libc_realloc(block, size); }

#endif
