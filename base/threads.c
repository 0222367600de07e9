/* Workers spin for a short while before they sleep. A decode step runs a few hundred loops of 20…500 µs, and waking a
 * sleeping thread costs about 50 µs on a virtual machine. The calling thread waits only for workers that have joined
 * the loop: one that sleeps or was preempted by another process holds nobody up. */
#define _GNU_SOURCE
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/alloc.h"

enum { MAX_THREADS = 256, SPIN_ROUNDS = 20000, SHARES = 4 }; /* a worker takes a fourth of its share at once */

static const unsigned long long STATE_INSIDE = 0xFFFFULL; /* count of workers inside */
static const unsigned long long STATE_OPEN = 0x10000ULL;  /* workers may join */
static const unsigned long long STATE_LOOP = 0x20000ULL;  /* one loop further */

struct worker {
    struct qr_threads *pool;
    pthread_t thread;
    int index;
};

struct qr_threads {
    int n_threads;
    int n_started;
    struct worker workers[MAX_THREADS];
    pthread_mutex_t run_lock; /* one loop at a time */
    pthread_mutex_t sleep_lock;
    pthread_cond_t wake;
    atomic_int n_sleeping;
    atomic_bool stopping;
    /* The loop in progress. A worker reads fn, arg and n after it has joined; they change only while nobody can be in.
     */
    atomic_ullong
        state; /* workers inside, whether joining is possible, and the loop's number: see the constants above */
    qr_loop_fn fn;
    void *arg;
    int64_t n;
    atomic_llong next;
};

static unsigned int float_environment_enter(void) {
#if defined(__x86_64__)
    const unsigned int saved = _mm_getcsr();
    _mm_setcsr(0x1F80U);
    return saved;
#elif defined(__aarch64__)
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
    return (unsigned int)saved;
#else
    return 0;
#endif
}

static void float_environment_leave(unsigned int saved) {
#if defined(__x86_64__)
    _mm_setcsr(saved);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved) : "memory");
#else
    (void)saved;
#endif
}

static void pause_briefly(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* as long as a pause of x86; most cores ignore yield */
#endif
}

/* Takes a share of the indices that are left, so that a worker reads memory in one stretch and what it prefetches is
 * its own; the shares shrink to one index, so that all end together. (NF4-DQ, 8192 x 2048, one row of x, two threads:
 * 84 % of the read bandwidth with one index at a time, 98 % with shares.) */
static void take_indices(struct qr_threads *pool, int worker) {
    long long first = atomic_load_explicit(&pool->next, memory_order_relaxed);
    while (first < pool->n) {
        const long long end = first + 1 + (pool->n - first - 1) / ((long long)SHARES * pool->n_threads);
        if (!atomic_compare_exchange_weak_explicit(&pool->next, &first, end, memory_order_relaxed,
                                                   memory_order_relaxed)) {
            continue;
        }
        for (long long i = first; i < end; i++) { pool->fn(pool->arg, i, worker); }
        first = atomic_load_explicit(&pool->next, memory_order_relaxed);
    }
}

static bool is_news(unsigned long long state, unsigned long long seen) {
    return (state & STATE_OPEN) != 0 && state / STATE_LOOP != seen;
}

/* Returns when a loop other than number `seen` is open, or the pool stops. */
static void wait_for_loop(struct qr_threads *pool, unsigned long long seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (is_news(atomic_load_explicit(&pool->state, memory_order_relaxed), seen) || atomic_load(&pool->stopping)) {
            return;
        }
        pause_briefly();
    }
    pthread_mutex_lock(&pool->sleep_lock);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (!is_news(atomic_load(&pool->state), seen) && !atomic_load(&pool->stopping)) {
        pthread_cond_wait(&pool->wake, &pool->sleep_lock);
    }
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->sleep_lock);
}

/* Enters the open loop, if it still is; *seen becomes its number. */
static bool join_loop(struct qr_threads *pool, unsigned long long *seen) {
    unsigned long long state = atomic_load(&pool->state);
    while (is_news(state, *seen)) {
        if (atomic_compare_exchange_weak(&pool->state, &state, state + 1)) {
            *seen = state / STATE_LOOP;
            return true;
        }
    }
    return false;
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct qr_threads *pool = worker->pool;
    (void)float_environment_enter();
    unsigned long long seen = 0;
    for (;;) {
        wait_for_loop(pool, seen);
        if (atomic_load(&pool->stopping)) { return NULL; }
        if (!join_loop(pool, &seen)) { continue; }
        take_indices(pool, worker->index);
        atomic_fetch_sub_explicit(&pool->state, 1, memory_order_release);
    }
}

static int available_processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) { return CPU_COUNT(&set); }
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

qrun_status qr_threads_create(int n_threads, qr_threads **threads, qr_error *err) {
    *threads = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS) {
        return qr_fail(err, QRUN_ERROR_ARGUMENT, "`n_threads` must be 0 (all processors) to %d, not %d", MAX_THREADS,
                       n_threads);
    }
    if (n_threads == 0) { n_threads = available_processors(); }
    struct qr_threads *pool = qr_alloc_zeroed(sizeof *pool);
    if (pool == NULL) { return qr_fail_memory(err, "the thread pool", sizeof *pool); }
    pool->n_threads = n_threads < MAX_THREADS ? n_threads : MAX_THREADS;
    pthread_mutex_init(&pool->run_lock, NULL);
    pthread_mutex_init(&pool->sleep_lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (int i = 1; i < pool->n_threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) {
            qr_threads_destroy(pool);
            return qr_fail(err, QRUN_ERROR_MEMORY, "cannot start thread %d of %d; use fewer with `n_threads`", i + 1,
                           n_threads);
        }
        pool->n_started = i;
    }
    *threads = pool;
    return QRUN_OK;
}

static void wake_all(struct qr_threads *pool) {
    pthread_mutex_lock(&pool->sleep_lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->sleep_lock);
}

void qr_threads_destroy(qr_threads *pool) {
    if (pool == NULL) { return; }
    atomic_store(&pool->stopping, true);
    wake_all(pool);
    for (int i = 1; i <= pool->n_started; i++) { pthread_join(pool->workers[i].thread, NULL); }
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->sleep_lock);
    pthread_mutex_destroy(&pool->run_lock);
    qr_free(pool);
}

int qr_threads_count(const qr_threads *threads) { return threads == NULL ? 1 : threads->n_threads; }

static void run_alone(int64_t n, qr_loop_fn fn, void *arg) {
    for (int64_t i = 0; i < n; i++) { fn(arg, i, 0); }
}

static void run_together(struct qr_threads *pool, int64_t n, qr_loop_fn fn, void *arg) {
    pool->fn = fn;
    pool->arg = arg;
    pool->n = n;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_fetch_add(&pool->state, STATE_LOOP + STATE_OPEN);
    if (atomic_load(&pool->n_sleeping) > 0) { wake_all(pool); }
    take_indices(pool, 0);
    atomic_fetch_sub(&pool->state, STATE_OPEN);
    for (int spins = 0; (atomic_load_explicit(&pool->state, memory_order_acquire) & STATE_INSIDE) != 0; spins++) {
        if (spins < SPIN_ROUNDS) {
            pause_briefly();
        } else {
            sched_yield();
        }
    }
}

void qr_threads_run(qr_threads *pool, int64_t n, qr_loop_fn fn, void *arg) {
    const unsigned int saved = float_environment_enter();
    if (pool == NULL || pool->n_threads == 1 || n <= 1) {
        run_alone(n, fn, arg);
    } else {
        pthread_mutex_lock(&pool->run_lock);
        run_together(pool, n, fn, arg);
        pthread_mutex_unlock(&pool->run_lock);
    }
    float_environment_leave(saved);
}
