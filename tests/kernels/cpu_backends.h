/* The backends of a test that runs once for every instruction set of this machine. */
#ifndef QR_TESTS_CPU_BACKENDS_H
#define QR_TESTS_CPU_BACKENDS_H

#include "check.h"
#include "kernels/backend.h"

static qr_threads *pool;    /* four threads, more than there may be CPUs */
static qr_backend *backend; /* of the instruction set being tested, with the pool */
static qr_backend *lonely;  /* the same, single-threaded */
static const char *isa_name;

/* Runs `tests` for an instruction set; false when a backend could not be made. */
static inline bool run_for_isa(const char *isa, void (*tests)(void), qr_error *err) {
    backend = lonely = NULL;
    const bool ok = qr_backend_cpu_create(isa, pool, &backend, err) == QRUN_OK &&
                    qr_backend_cpu_create(isa, NULL, &lonely, err) == QRUN_OK;
    if (ok) {
        printf("instruction set %s\n", isa);
        isa_name = isa;
        tests();
    }
    qr_backend_destroy(backend);
    qr_backend_destroy(lonely);
    return ok;
}

/* The same for each of this machine; then `on_tiles`, unless it is NULL, for emulated tiles where they run. */
static inline bool run_for_every_isa(void (*tests)(void), void (*on_tiles)(void)) {
    qr_error err = {0}, refused = {0};
    bool ok = qr_threads_create(4, &pool, &err) == QRUN_OK;
    for (const char *const *isa = qr_backend_cpu_isas(); ok && *isa != NULL; isa++) {
        ok = run_for_isa(*isa, tests, &err);
    }
    if (ok && on_tiles != NULL && !run_for_isa("amx-bf16-emulated", on_tiles, &refused)) {
        printf("emulated tiles left out: %s\n", refused.message);
    }
    qr_threads_destroy(pool);
    if (!ok) { printf("%s\n", err.message); }
    return ok;
}

#endif
