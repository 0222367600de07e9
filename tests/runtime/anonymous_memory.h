/* The process's anonymous memory as the kernel counts it (RssAnon), now and at its highest while something runs. */
#ifndef QR_TESTS_ANONYMOUS_MEMORY_H
#define QR_TESTS_ANONYMOUS_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* Bytes; negative where the kernel does not say. */
static inline int64_t anonymous_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long long kib = -1;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1) { break; }
    }
    if (file != NULL) { fclose(file); }
    return kib * 1024;
}

/* Begin with {0}. A thread of its own looks every 0.3 ms until `stop`. */
typedef struct anonymous_watch {
    atomic_bool stop;
    atomic_llong peak;
} anonymous_watch;

static inline void *anonymous_watch_run(void *arg) {
    anonymous_watch *watch = arg;
    const struct timespec pause = {0, 300000};
    while (!atomic_load(&watch->stop)) {
        const int64_t now = anonymous_bytes();
        if (now > atomic_load(&watch->peak)) { atomic_store(&watch->peak, now); }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

#endif
