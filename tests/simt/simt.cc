/* Fibers, scheduling and collectives of simt.h. */
#include "simt.h"

#include "early_launch.h"
#include "shared_limit.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <sys/mman.h>

extern "C" {
#include "base/half.h"
}

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {

state now;

namespace {

#if defined(__SANITIZE_ADDRESS__)
enum { STACK_BYTES = 256 << 10, PAGE_BYTES = 4096 };
#else
enum { STACK_BYTES = 64 << 10, PAGE_BYTES = 4096 };
#endif

enum { NAMED_BARRIERS = 16 };

[[noreturn]] void fail(const char *message);

/* --- Stacks, and switching between them --- */

#if defined(__x86_64__)
/* Saves what the calling convention says a function keeps, leaves the stack's address in *from and continues at `to`.
 * (swapcontext would make a system call each time.) */
extern "C" void simt_switch_stack(void **from, void *to);
__asm__(".text\n"
        ".globl simt_switch_stack\n"
        ".type simt_switch_stack, @function\n"
        "simt_switch_stack:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size simt_switch_stack, .-simt_switch_stack\n"
        ".section .note.GNU-stack,\"\",@progbits\n"
        ".text\n");

typedef void *context;

void switch_context(context *from, context *to) { simt_switch_stack(from, *to); }

/* As if entry had been called: six registers, its address, and a return address that nobody uses. */
void prepare_context(context *at, unsigned char *stack, void (*entry)()) {
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES);
    for (int i = 1; i <= 8; i++) { top[-i] = nullptr; }
    top[-2] = reinterpret_cast<void *>(entry);
    *at = top - 8;
}
#else
typedef ucontext_t context;

void switch_context(context *from, context *to) { swapcontext(from, to); }

void prepare_context(context *at, unsigned char *stack, void (*entry)()) {
    getcontext(at);
    at->uc_stack.ss_sp = stack;
    at->uc_stack.ss_size = STACK_BYTES;
    at->uc_link = nullptr;
    makecontext(at, entry, 0);
}
#endif

struct pending_copy {
    void *dst;
    const void *src;
    size_t size, n_bytes;
    bool is_read; /* issued before await_previous: what there was then */
    unsigned char bytes[16];
};

struct fiber {
    place where;
    unsigned block; /* of the cluster */
    context at;
    unsigned char *stack;
    void *fake_stack;                              /* AddressSanitizer's */
    std::vector<std::vector<pending_copy>> groups; /* of cp.async; the last one is open */
};

enum { WGMMA_ROWS = 16, WGMMA_COLUMNS = 256, WGMMA_STEP = 16 }; /* of a warp's share of a product, at most */

/* A product of wgmma that nobody has waited for, with what it read when it was issued. */
struct pending_wgmma {
    const uint32_t *a_at[WARP]; /* of a from registers */
    uint32_t a[WARP][4];
    const unsigned char *a_tile, *tile; /* a_tile: of this warp's rows; nullptr: a is in registers */
    unsigned step, n_columns;
    bool is_bf16;
    uint16_t a_there[WGMMA_STEP][WGMMA_COLUMNS], b[WGMMA_STEP][WGMMA_COLUMNS];
};

/* Of a warp. What is under way adds to one d. */
struct wgmma_state {
    std::vector<std::vector<pending_wgmma>> groups; /* the last one is open */
    bool fenced, under_way;
    unsigned n_issued, n_columns;
    float *d[WARP];
    float sums[WGMMA_ROWS][WGMMA_COLUMNS];
};

struct warp {
    uint32_t ready, waiting, waiting_for_cluster, finished; /* lanes */
    wgmma_state products;
    unsigned generation, n_brought;
    const char *what;
    alignas(16) unsigned char slots[2][WARP * SLOT_BYTES];
};

/* A barrier by number: how many threads meet at it, how many have come, and which of them wait. */
struct named_barrier {
    unsigned n_threads, n_there;
    uint32_t waiting[MAX_THREADS / WARP];
};

struct bulk_copy {
    void *dst;
    const void *src;
    size_t n_bytes;
};

/* A barrier in shared memory: the phase it is in. */
struct phase_state {
    unsigned n_threads, n_there, phase;
    size_t announced, under_way; /* bytes */
    std::vector<bulk_copy> copies;
    uint32_t waiting[MAX_THREADS / WARP];
};

enum { MAX_CLUSTER = 8 };

/* A block of the cluster that runs. */
struct block_state {
    uint3 index;
    unsigned char *shared;
    named_barrier barriers[NAMED_BARRIERS];
    unsigned n_at_barrier;
};

struct machine {
    fiber fibers[MAX_THREADS];
    warp warps[MAX_THREADS / WARP];
    block_state blocks[MAX_CLUSTER];
    std::map<const void *, phase_state> phase_barriers;
    size_t shared_bytes;
    unsigned n_blocks, block_threads; /* of the cluster, and of each */
    unsigned n_threads, n_warps;      /* of all of them */
    unsigned n_at_cluster_barrier, n_finished, n_awaited;
    fiber *running;
    context outside;
    void *outside_fake_stack;
    const void *outside_stack;
    size_t outside_stack_bytes;
    const std::function<void()> *body;
    const char *kernel;
    uint64_t random;
    unsigned n_limited; /* threads that wait for a phase and would trap */
    bool has_trapped, loses_arrivals;
    bool before_wait; /* the block runs up to await_previous, where its threads meet */
    wgmma_sums wgmma_sums_are;
    size_t shared_limit = 99U << 10; /* what every supported GPU has */
    std::set<std::string> launched;
    std::mutex lock;
};

machine the;

[[noreturn]] void fail(const char *message) {
    fprintf(stderr, "simt: %s: block (%u, %u, %u): %s\n", the.kernel, now.block.x, now.block.y, now.block.z, message);
    abort();
}

uint32_t random_below(uint32_t n) {
    the.random = the.random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(((the.random >> 32) * n) >> 32);
}

/* --- Switching, announced to AddressSanitizer --- */

#if defined(__SANITIZE_ADDRESS__)
void leave(void **fake_stack, const void *stack, size_t n_bytes) {
    __sanitizer_start_switch_fiber(fake_stack, stack, n_bytes);
}
void arrive(void *fake_stack, const void **stack, size_t *n_bytes) {
    __sanitizer_finish_switch_fiber(fake_stack, stack, n_bytes);
}
/* The last fiber on this stack never returned from its first functions, whose frames stay poisoned. */
void forget_frames(const fiber *f) { __asan_unpoison_memory_region(f->stack + STACK_BYTES - 8192, 8192); }
void forget_stack(const fiber *f) { __asan_unpoison_memory_region(f->stack, STACK_BYTES); }
#else
void leave(void **, const void *, size_t) {}
void arrive(void *, const void **, size_t *) {}
void forget_frames(const fiber *) {}
void forget_stack(const fiber *) {}
#endif

void go_to(fiber *next) {
    the.running = next;
    now.here = &next->where;
    now.block = the.blocks[next->block].index;
    now.shared = the.blocks[next->block].shared;
}

void switch_to(fiber *next) {
    fiber *self = the.running;
    if (next == self) { return; }
    go_to(next);
    leave(&self->fake_stack, next->stack, STACK_BYTES);
    switch_context(&self->at, &next->at);
    arrive(self->fake_stack, nullptr, nullptr);
}

/* A lane of this warp that can run, searched from a lane on. */
fiber *lane_from(unsigned warp_index, unsigned lane) {
    const uint32_t ready = the.warps[warp_index].ready;
    const uint32_t behind = ready >> lane << lane;
    return &the.fibers[warp_index * WARP + static_cast<unsigned>(__builtin_ctz(behind != 0 ? behind : ready))];
}

/* Back to launch, for good. */
[[noreturn]] void end_kernel() {
    fiber *self = the.running;
    the.running = nullptr;
    leave(nullptr, the.outside_stack, the.outside_stack_bytes);
    switch_context(&self->at, &the.outside);
    fail("a thread that had ended runs again");
}

/* A thread that can run, of a random warp. */
fiber *choose_any() {
    const unsigned start = random_below(the.n_warps);
    for (unsigned i = 0; i < the.n_warps; i++) {
        const unsigned w = (start + i) % the.n_warps;
        if (the.warps[w].ready != 0) { return lane_from(w, random_below(WARP)); }
    }
    if (the.n_limited > 0 && !the.before_wait) {
        the.has_trapped = true;
        end_kernel();
    }
    fail("every thread waits: a barrier or a collective that not all threads reach");
}

/* The next thread to run: of the same warp while it has one, else of a random warp. */
fiber *choose(unsigned warp_index, unsigned lane) {
    return the.warps[warp_index].ready != 0 ? lane_from(warp_index, lane) : choose_any();
}

/* When all threads that have not ended are there. */
void open_cluster_barrier() {
    if (the.n_at_cluster_barrier == 0 || the.n_at_cluster_barrier + the.n_finished < the.n_threads) { return; }
    the.n_at_cluster_barrier = 0;
    for (unsigned i = 0; i < the.n_warps; i++) {
        the.warps[i].ready |= the.warps[i].waiting_for_cluster;
        the.warps[i].waiting_for_cluster = 0;
    }
}

void finish_thread() {
    fiber *self = the.running;
    warp &w = the.warps[self->where.warp];
    for (const auto &group : self->groups) {
        if (!group.empty()) { fail("a thread ends with copies under way"); }
    }
    w.ready &= ~(1U << self->where.lane);
    w.finished |= 1U << self->where.lane;
    the.n_finished++;
    open_cluster_barrier();
    if (the.n_finished == the.n_threads) { end_kernel(); }
    switch_to(choose(self->where.warp, self->where.lane));
    fail("a thread that had ended runs again");
}

void fiber_main() {
    arrive(nullptr, the.outside_stack == nullptr ? &the.outside_stack : nullptr,
           the.outside_stack == nullptr ? &the.outside_stack_bytes : nullptr);
    (*the.body)();
    finish_thread();
}

unsigned char *make_stack() {
    void *mapped = mmap(nullptr, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapped == MAP_FAILED) { fail("no memory for a stack"); }
    mprotect(mapped, PAGE_BYTES, PROT_NONE);
    return static_cast<unsigned char *>(mapped) + PAGE_BYTES;
}

void prepare_threads(dim3 block) {
    for (unsigned i = 0; i < the.n_threads; i++) {
        fiber &f = the.fibers[i];
        if (f.stack == nullptr) { f.stack = make_stack(); }
        const unsigned thread = i % the.block_threads;
        f.where = {{thread % block.x, thread / block.x % block.y, thread / block.x / block.y}, i / WARP, i % WARP};
        f.block = i / the.block_threads;
        f.fake_stack = nullptr;
        f.groups.clear();
        forget_frames(&f);
        prepare_context(&f.at, f.stack, fiber_main);
    }
    for (unsigned i = 0; i < the.n_warps; i++) {
        warp &w = the.warps[i];
        w.ready = ~0U;
        w.waiting = w.waiting_for_cluster = w.finished = 0;
        w.generation = w.n_brought = 0;
        w.products.groups.clear();
        w.products.fenced = w.products.under_way = false;
        w.products.n_issued = 0;
    }
    for (block_state &one : the.blocks) {
        memset(one.barriers, 0, sizeof one.barriers);
        one.n_at_barrier = 0;
    }
    the.phase_barriers.clear();
    the.n_at_cluster_barrier = the.n_finished = the.n_limited = 0;
}

void run_block() {
    go_to(lane_from(random_below(the.n_warps), random_below(WARP)));
    the.outside_stack = nullptr;
    leave(&the.outside_fake_stack, the.running->stack, STACK_BYTES);
    switch_context(&the.outside, &the.running->at);
    arrive(the.outside_fake_stack, nullptr, nullptr);
}

void check_warpgroups() {
    for (unsigned i = 0; i < the.n_warps; i++) {
        const wgmma_state &products = the.warps[i].products;
        if (products.under_way) { fail("a warp ends with products of a warpgroup under way"); }
        if (products.n_issued != the.warps[i / 4 * 4].products.n_issued ||
            (products.n_issued > 0 && the.block_threads / WARP % 4 != 0)) {
            fail("the warps of a warpgroup did not issue the same products");
        }
    }
    for (const block_state &one : the.blocks) {
        for (const named_barrier &barrier : one.barriers) {
            if (barrier.n_there != 0) { fail("a block ends with threads at a barrier by number"); }
        }
    }
    for (const auto &one : the.phase_barriers) {
        if (!one.second.copies.empty()) { fail("a block ends with bulk copies under way"); }
        if (one.second.n_there != 0) { fail("a block ends inside a phase of a barrier in shared memory"); }
    }
}

/* An odd number that has no factor in common with n, for a walk that meets every block once. */
uint64_t stride_for(uint64_t n) {
    uint64_t stride = random_below(1U << 20) | 1U;
    for (;; stride += 2) {
        uint64_t a = n, b = stride % n;
        if (n == 1) { return 1; }
        while (b != 0) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) { return stride % n; }
    }
}

/* "(kernel<arguments>)" and "kernel" are the same kernel. */
void remember_launch(const char *name) {
    const size_t begin = strspn(name, "(");
    the.launched.insert(std::string(name + begin, strcspn(name + begin, "<)")));
}

/* A line for each launch in the file that QRUN_SIMT_LAUNCHES names, for bench/cuda_static.py: kernel, blocks, threads,
 * shared memory. */
void write_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes) {
    static const char *const path = getenv("QRUN_SIMT_LAUNCHES");
    if (path == nullptr) { return; }
    FILE *file = fopen(path, "a");
    if (file == nullptr) { return; }
    const size_t begin = strspn(name, "(");
    fprintf(file, "%.*s %u %u %u %u %zu\n", static_cast<int>(strcspn(name + begin, "<)")), name + begin, grid.x, grid.y,
            grid.z, block.x * block.y * block.z, shared_bytes);
    (void)fclose(file);
}

/* In a cluster at the same place modulo what kernels align it to. */
unsigned char *make_shared(size_t n_bytes, unsigned cluster) {
    enum { ALIGNMENT = 1024 };
    void *memory = nullptr;
    if (cluster == 1) { return static_cast<unsigned char *>(malloc(n_bytes > 0 ? n_bytes : 1)); }
    if (posix_memalign(&memory, ALIGNMENT, n_bytes > 0 ? n_bytes : 1) != 0) { fail("no memory for a block"); }
    return static_cast<unsigned char *>(memory);
}

} // namespace

void set_wgmma_sums(wgmma_sums sums) { the.wgmma_sums_are = sums; }

void set_lost_arrivals(bool lost) { the.loses_arrivals = lost; }

void set_shared_limit(size_t n_bytes) { the.shared_limit = n_bytes; }

void set_seed(uint64_t seed) { the.random = seed * 0x9E3779B97F4A7C15U + 1; }

bool was_launched(const char *kernel, size_t length) { return the.launched.count(std::string(kernel, length)) > 0; }

void await_previous() {
    the.n_awaited++;
    if (!the.before_wait) { return; }
    if (the.n_awaited == the.n_threads) {
        if (!early_restore()) { fail("writes to memory before it awaits the kernels before it"); }
        the.before_wait = false;
    }
    block_barrier();
}

bool launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, bool early, unsigned cluster,
            const std::function<void()> &body) {
    std::lock_guard<std::mutex> guard(the.lock);
    the.kernel = name;
    remember_launch(name);
    write_launch(name, grid, block, shared_bytes);
    const bool held_up = early_before_launch(early);
    the.block_threads = block.x * block.y * block.z;
    if (the.block_threads == 0 || the.block_threads > MAX_THREADS || the.block_threads % WARP != 0) {
        fail("a block has 32 to 1024 threads, in whole warps");
    }
    the.n_blocks = cluster;
    the.n_threads = cluster * the.block_threads;
    if (cluster == 0 || cluster > MAX_CLUSTER || the.n_threads > MAX_THREADS) { fail("too many threads in a cluster"); }
    if (grid.x % cluster != 0) { fail("a grid that is not of whole clusters"); }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535) { fail("an impossible grid"); }
    if (shared_bytes > the.shared_limit) { fail("more shared memory than this GPU has for a block"); }
    the.n_warps = the.n_threads / WARP;
    the.body = &body;
    now.grid_size = grid;
    now.block_size = block;
    the.shared_bytes = shared_bytes;
    for (unsigned b = 0; b < cluster; b++) { the.blocks[b].shared = make_shared(shared_bytes, cluster); }
    const unsigned n_x = grid.x / cluster;
    const uint64_t n_clusters = uint64_t{n_x} * grid.y * grid.z, stride = stride_for(n_clusters);
    uint64_t at = random_below(static_cast<uint32_t>(n_clusters < UINT32_MAX ? n_clusters : UINT32_MAX));
    the.has_trapped = false;
    for (uint64_t i = 0; i < n_clusters && !the.has_trapped; i++, at = (at + stride) % n_clusters) {
        for (unsigned b = 0; b < cluster; b++) {
            the.blocks[b].index = {static_cast<unsigned>(at % n_x) * cluster + b,
                                   static_cast<unsigned>(at / n_x % grid.y), static_cast<unsigned>(at / n_x / grid.y)};
            memset(the.blocks[b].shared, 0xFF, shared_bytes);
        }
        prepare_threads(block);
        the.n_awaited = 0;
        the.before_wait = i == 0 && held_up;
        if (the.before_wait) { early_poison(); }
        run_block();
        if (the.has_trapped) { continue; }
        if (the.n_awaited != (early ? the.n_threads : 0)) {
            fail(early ? "launched early, but not every thread awaits the kernel before it"
                       : "awaits the kernel before it, but is not launched early");
        }
        check_warpgroups();
    }
    for (unsigned i = 0; the.has_trapped && i < the.n_threads; i++) { forget_stack(&the.fibers[i]); }
    for (unsigned b = 0; b < cluster; b++) { free(the.blocks[b].shared); }
    now.shared = nullptr;
    return !the.has_trapped;
}

/* --- Barriers and collectives --- */

void block_barrier() {
    fiber *self = the.running;
    warp &w = the.warps[self->where.warp];
    const uint32_t bit = 1U << self->where.lane;
    w.ready &= ~bit;
    w.waiting |= bit;
    block_state &block = the.blocks[self->block];
    if (++block.n_at_barrier == the.block_threads) {
        const unsigned n_warps = the.block_threads / WARP, first = self->block * n_warps;
        block.n_at_barrier = 0;
        for (unsigned i = first; i < first + n_warps; i++) {
            the.warps[i].ready = the.warps[i].waiting;
            the.warps[i].waiting = 0;
        }
        switch_to(lane_from(first + random_below(n_warps), random_below(WARP)));
        return;
    }
    switch_to(choose(self->where.warp, self->where.lane));
}

namespace {

/* Whether this thread is the last one, which lets all others go on. */
bool come_to(named_barrier &barrier, unsigned n_threads) {
    if (n_threads == 0 || n_threads % WARP != 0 || n_threads > the.block_threads) {
        fail("a barrier by number is for whole warps of the block");
    }
    if (barrier.n_there == 0) { barrier.n_threads = n_threads; }
    if (barrier.n_threads != n_threads) { fail("threads at one barrier expect different numbers of them"); }
    if (++barrier.n_there < n_threads) { return false; }
    for (unsigned i = 0; i < the.n_warps; i++) { the.warps[i].ready |= barrier.waiting[i]; }
    memset(&barrier, 0, sizeof barrier);
    return true;
}

named_barrier &barrier_of(unsigned number) {
    if (number == 0 || number >= NAMED_BARRIERS) { fail("barriers by number are 1 to 15"); }
    return the.blocks[the.running->block].barriers[number];
}

} // namespace

void barrier_sync(unsigned number, unsigned n_threads) {
    const place &where = the.running->where;
    named_barrier &barrier = barrier_of(number);
    if (!come_to(barrier, n_threads)) {
        const uint32_t bit = 1U << where.lane;
        the.warps[where.warp].ready &= ~bit;
        barrier.waiting[where.warp] |= bit;
    }
    /* Anyone else may run first. */
    switch_to(choose(where.warp, where.lane));
}

void barrier_arrive(unsigned number, unsigned n_threads) { come_to(barrier_of(number), n_threads); }

const unsigned char *exchange(const char *what, const void *bytes, size_t n_bytes, completion complete) {
    fiber *self = the.running;
    warp &w = the.warps[self->where.warp];
    unsigned char *slots = w.slots[w.generation % 2];
    unsigned char *mine = slots + self->where.lane * SLOT_BYTES;
    if (n_bytes == sizeof(float)) { // nearly always: no call
        memcpy(mine, bytes, sizeof(float));
    } else if (n_bytes > 0) {
        memcpy(mine, bytes, n_bytes);
    }
    if (w.n_brought == 0) { w.what = what; }
    if (w.what != what && strcmp(w.what, what) != 0) { fail("the lanes of a warp are in different collectives"); }
    if (++w.n_brought == WARP) {
        if (complete != nullptr) { complete(slots); }
        w.n_brought = 0;
        w.generation++;
        w.ready = ~0U;
        return slots;
    }
    w.ready &= ~(1U << self->where.lane);
    switch_to(choose(self->where.warp, self->where.lane));
    return slots;
}

/* --- The matrix product --- */

namespace {

struct mma_operands {
    uint32_t a[4], b[2];
};

/* Fragment layouts of m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): group g = lane / 4, t = lane % 4;
 * a[0] is row g, a[1] row g + 8, columns 2t and 2t + 1; a[2] and a[3] the same rows, columns + 8; b[0] is column g,
 * rows 2t and 2t + 1; b[1] rows + 8; d[0], d[1] are row g, columns 2t and 2t + 1; d[2], d[3] row g + 8. */
template <float (*to_float)(uint16_t)> void multiply(unsigned char *slots) {
    float a[16][16], b[16][8];
    const lanes<mma_operands> all = {slots};
    for (unsigned lane = 0; lane < WARP; lane++) {
        const mma_operands one = all[lane];
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = g + i % 2 * 8, col = 2 * t + i / 2 * 8;
            a[row][col] = to_float(static_cast<uint16_t>(one.a[i]));
            a[row][col + 1] = to_float(static_cast<uint16_t>(one.a[i] >> 16));
        }
        for (unsigned i = 0; i < 2; i++) {
            b[2 * t + i * 8][g] = to_float(static_cast<uint16_t>(one.b[i]));
            b[2 * t + i * 8 + 1][g] = to_float(static_cast<uint16_t>(one.b[i] >> 16));
        }
    }
    double sums[16][8] = {};
    for (unsigned row = 0; row < 16; row++) {
        for (unsigned k = 0; k < 16; k++) {
            for (unsigned col = 0; col < 8; col++) { sums[row][col] += double{a[row][k]} * double{b[k][col]}; }
        }
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        const double mine[4] = {sums[g][2 * t], sums[g][2 * t + 1], sums[g + 8][2 * t], sums[g + 8][2 * t + 1]};
        memcpy(slots + lane * SLOT_BYTES, mine, sizeof mine);
    }
}

template <float (*to_float)(uint16_t)>
void mma(const char *what, float d[4], const uint32_t a[4], const uint32_t b[2]) {
    mma_operands mine;
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    double sums[4];
    const unsigned lane = the.running->where.lane;
    memcpy(sums, exchange(what, &mine, sizeof mine, multiply<to_float>) + lane * SLOT_BYTES, sizeof sums);
    for (int i = 0; i < 4; i++) { d[i] = static_cast<float>(double{d[i]} + sums[i]); }
}

float from_bf16(uint16_t bits) { return qr_bf16_to_f32(bits); }
float from_f16(uint16_t bits) { return qr_f16_to_f32(bits); }

} // namespace

void mma_bf16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma<from_bf16>("mma bf16", d, a, b); }
void mma_f16_16x8x16(float d[4], const uint32_t a[4], const uint32_t b[2]) { mma<from_f16>("mma f16", d, a, b); }

/* --- The matrix product of a warpgroup: each warp's share by itself. The last lane to come does it all. --- */

namespace {

struct wgmma_operands {
    float *d;
    const uint32_t *a;
    const unsigned char *a_tile, *tile;
    unsigned step, n_columns;
    bool is_bf16;
};

/* Rows of 128 bytes in pieces of 16; piece p of row r is stored at p ^ (r mod 8). */
void read_tile(const unsigned char *tile, unsigned n_rows, unsigned step, uint16_t b[WGMMA_STEP][WGMMA_COLUMNS]) {
    for (unsigned row = 0; row < n_rows; row++) {
        for (unsigned k = 0; k < WGMMA_STEP; k++) {
            const unsigned piece = step * 2 + k / 8;
            memcpy(&b[k][row], tile + row * 128 + (piece ^ row % 8) * 16 + k % 8 * 2, sizeof b[k][row]);
        }
    }
}

/* The lane, its index in d and the position in a warp's sums. */
template <typename F> void for_each_result(unsigned n_columns, F apply) {
    for (unsigned lane = 0; lane < WARP; lane++) {
        for (unsigned i = 0; i < WGMMA_ROWS * n_columns / WARP; i++) {
            apply(lane, i, lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2);
        }
    }
}

void issue_product(unsigned char *slots) {
    const lanes<wgmma_operands> all = {slots};
    wgmma_state &products = the.warps[the.running->where.warp].products;
    if (!products.fenced) { fail("a product of a warpgroup without the fence before it"); }
    pending_wgmma product = {};
    product.a_tile = all[0].a_tile, product.tile = all[0].tile;
    product.step = all[0].step, product.n_columns = all[0].n_columns, product.is_bf16 = all[0].is_bf16;
    if (reinterpret_cast<uintptr_t>(product.tile) % 1024 != 0 ||
        reinterpret_cast<uintptr_t>(product.a_tile) % 1024 != 0) {
        fail("a tile that is not aligned to 1,024 bytes");
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        const wgmma_operands mine = all[lane];
        if (mine.tile != product.tile || mine.a_tile != product.a_tile || mine.step != product.step) {
            fail("lanes of a warp multiply other tiles");
        }
        if (products.under_way && products.d[lane] != mine.d) { fail("products under way add to two d"); }
        products.d[lane] = mine.d;
        product.a_at[lane] = mine.a;
        if (mine.a != nullptr) { memcpy(product.a[lane], mine.a, sizeof product.a[lane]); }
    }
    if (product.a_tile != nullptr) { /* this warp's sixteen of its 64 rows */
        product.a_tile += the.running->where.warp % 4 * WGMMA_ROWS * 128;
        read_tile(product.a_tile, WGMMA_ROWS, product.step, product.a_there);
    }
    read_tile(product.tile, product.n_columns, product.step, product.b);
    if (products.under_way && products.n_columns != product.n_columns) { fail("products under way differ in size"); }
    products.n_columns = product.n_columns;
    if (!products.under_way) {
        for_each_result(product.n_columns, [&](unsigned lane, unsigned i, unsigned row, unsigned col) {
            products.sums[row][col] = products.d[lane][i];
            products.d[lane][i] = NAN;
        });
    }
    products.under_way = true;
    products.n_issued++;
    if (products.groups.empty()) { products.groups.emplace_back(); }
    products.groups.back().push_back(product);
}

/* What a tile was when a product was issued, it must be when it ends. */
void check_tile(const unsigned char *tile, unsigned n_rows, unsigned step,
                const uint16_t was[WGMMA_STEP][WGMMA_COLUMNS]) {
    static uint16_t now_there[WGMMA_STEP][WGMMA_COLUMNS];
    read_tile(tile, n_rows, step, now_there);
    for (unsigned k = 0; k < WGMMA_STEP; k++) {
        if (memcmp(now_there[k], was[k], n_rows * sizeof was[k][0]) != 0) {
            fail("a tile changed while a product could read it");
        }
    }
}

/* As m16n8k16 has them. */
void unpack_left(const pending_wgmma &product, uint16_t a[WGMMA_ROWS][WGMMA_STEP]) {
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (memcmp(product.a_at[lane], product.a[lane], sizeof product.a[lane]) != 0) {
            fail("registers of a product changed while it could read them");
        }
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
            a[row][k] = static_cast<uint16_t>(product.a[lane][i]);
            a[row][k + 1] = static_cast<uint16_t>(product.a[lane][i] >> 16);
        }
    }
}

void finish_product(const pending_wgmma &product, float sums[WGMMA_ROWS][WGMMA_COLUMNS]) {
    const auto number = [&](uint16_t bits) { return double{product.is_bf16 ? from_bf16(bits) : from_f16(bits)}; };
    const unsigned n_columns = product.n_columns;
    uint16_t left[WGMMA_ROWS][WGMMA_STEP];
    static double b[WGMMA_STEP][WGMMA_COLUMNS];
    check_tile(product.tile, n_columns, product.step, product.b);
    if (product.a_tile != nullptr) {
        check_tile(product.a_tile, WGMMA_ROWS, product.step, product.a_there);
        for (unsigned i = 0; i < WGMMA_ROWS * WGMMA_STEP; i++) {
            left[i / 16][i % 16] = product.a_there[i % 16][i / 16];
        }
    } else {
        unpack_left(product, left);
    }
    for (unsigned k = 0; k < WGMMA_STEP; k++) {
        for (unsigned col = 0; col < n_columns; col++) { b[k][col] = number(product.b[k][col]); }
    }
    for (unsigned row = 0; row < WGMMA_ROWS; row++) {
        double sum[WGMMA_COLUMNS] = {};
        for (unsigned k = 0; k < WGMMA_STEP; k++) {
            const double a = number(left[row][k]);
            for (unsigned col = 0; col < n_columns; col++) { sum[col] += a * b[k][col]; }
        }
        for (unsigned col = 0; col < n_columns; col++) {
            if (the.wgmma_sums_are == WGMMA_ROUNDS) { sum[col] = double{static_cast<float>(sum[col])}; }
            const bool wrong = the.wgmma_sums_are == WGMMA_WRONG ||
                               (the.wgmma_sums_are == WGMMA_WIDE_WRONG && n_columns == WGMMA_COLUMNS);
            if (wrong && row == 3 && col == 65) { sum[col] *= 1.5; }
            sums[row][col] = static_cast<float>(double{sums[row][col]} + sum[col]);
        }
    }
}

void finish_groups(unsigned char *slots) {
    const size_t n_pending = lanes<unsigned>{slots}[0];
    wgmma_state &products = the.warps[the.running->where.warp].products;
    while (products.groups.size() > n_pending + 1) { /* the last is open */
        for (const pending_wgmma &product : products.groups.front()) { finish_product(product, products.sums); }
        products.groups.erase(products.groups.begin());
    }
    for (const auto &group : products.groups) {
        if (!group.empty()) { return; }
    }
    if (!products.under_way) { return; }
    products.under_way = false;
    for_each_result(products.n_columns, [&](unsigned lane, unsigned i, unsigned row, unsigned col) {
        products.d[lane][i] = products.sums[row][col];
    });
}

} // namespace

void wgmma_64x128x16(float *d, const uint32_t *a, const void *tile, unsigned step, bool is_bf16) {
    const wgmma_operands mine = {d, a, nullptr, static_cast<const unsigned char *>(tile), step, 128, is_bf16};
    exchange("wgmma", &mine, sizeof mine, issue_product);
}

void wgmma_64x256x16(float *d, const void *a_tile, const void *tile, unsigned step, bool is_bf16) {
    const wgmma_operands mine = {
        d,   nullptr, static_cast<const unsigned char *>(a_tile), static_cast<const unsigned char *>(tile), step,
        256, is_bf16};
    exchange("wgmma", &mine, sizeof mine, issue_product);
}

void wgmma_begin() {
    exchange("wgmma.fence", nullptr, 0,
             [](unsigned char *) { the.warps[the.running->where.warp].products.fenced = true; });
}

void wgmma_end() {
    exchange("wgmma.commit_group", nullptr, 0, [](unsigned char *) {
        wgmma_state &products = the.warps[the.running->where.warp].products;
        products.fenced = false;
        if (products.groups.empty()) { products.groups.emplace_back(); }
        products.groups.emplace_back();
    });
}

void wgmma_wait(unsigned n_pending) { exchange("wgmma.wait_group", &n_pending, sizeof n_pending, finish_groups); }

/* --- Matrices from shared memory. The last lane to come reads all rows: on the GPU it is one instruction. --- */

namespace {

template <bool transposed> void gather_matrices(unsigned char *slots) {
    const lanes<const unsigned char *> rows = {slots};
    uint16_t matrices[4][8][8];
    for (unsigned lane = 0; lane < WARP; lane++) { memcpy(matrices[lane / 8][lane % 8], rows[lane], 16); }
    for (unsigned lane = 0; lane < WARP; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        uint32_t r[4];
        for (unsigned i = 0; i < 4; i++) {
            const auto &m = matrices[i];
            const uint16_t low = transposed ? m[2 * t][g] : m[g][2 * t];
            const uint16_t high = transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];
            r[i] = static_cast<uint32_t>(high) << 16 | low;
        }
        memcpy(slots + lane * SLOT_BYTES, r, sizeof r);
    }
}

} // namespace

void load_matrices(uint32_t r[4], const void *row, bool transposed) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) { fail("a row of a matrix that is not aligned to 16 bytes"); }
    const unsigned char *slots = transposed ? exchange("ldmatrix.trans", &row, sizeof row, gather_matrices<true>)
                                            : exchange("ldmatrix", &row, sizeof row, gather_matrices<false>);
    memcpy(r, slots + the.running->where.lane * SLOT_BYTES, 4 * sizeof *r);
}

/* --- Asynchronous copies --- */

void copy_async(void *dst, const void *src, size_t size, size_t n_bytes) {
    auto &groups = the.running->groups;
    if (reinterpret_cast<uintptr_t>(dst) % size != 0 || (n_bytes > 0 && reinterpret_cast<uintptr_t>(src) % size != 0)) {
        fail("an asynchronous copy that is not aligned to its size");
    }
    if (groups.empty()) { groups.emplace_back(); }
    groups.back().push_back({dst, src, size, n_bytes, the.before_wait, {}});
    if (the.before_wait && n_bytes > 0) { memcpy(groups.back().back().bytes, src, n_bytes); }
}

void copy_async_commit() {
    auto &groups = the.running->groups;
    if (groups.empty()) { groups.emplace_back(); }
    groups.emplace_back();
}

void copy_async_wait(unsigned n_pending) {
    auto &groups = the.running->groups; /* the last is not committed */
    while (groups.size() > size_t{n_pending} + 1) {
        for (const pending_copy &copy : groups.front()) {
            memset(copy.dst, 0, copy.size);
            const void *src = copy.is_read ? copy.bytes : copy.src;
            if (copy.n_bytes > 0) { memcpy(copy.dst, src, copy.n_bytes); }
        }
        groups.erase(groups.begin());
    }
}

void cluster_barrier() {
    const place &where = the.running->where;
    const uint32_t bit = 1U << where.lane;
    the.warps[where.warp].ready &= ~bit;
    the.warps[where.warp].waiting_for_cluster |= bit;
    the.n_at_cluster_barrier++;
    open_cluster_barrier();
    switch_to(choose_any());
}

/* --- Barriers in shared memory, and the copies that complete them --- */

namespace {

/* Of any block of the cluster. */
bool is_shared(const void *memory, size_t n_bytes) {
    const unsigned char *first = static_cast<const unsigned char *>(memory);
    for (unsigned b = 0; b < the.n_blocks; b++) {
        const unsigned char *shared = the.blocks[b].shared;
        if (first >= shared && first + n_bytes <= shared + the.shared_bytes) { return true; }
    }
    return false;
}

phase_state &phases_of(const void *barrier) {
    const auto found = the.phase_barriers.find(barrier);
    if (found == the.phase_barriers.end()) { fail("a barrier in shared memory that was not created"); }
    return found->second;
}

/* Everyone has arrived, and all that was announced is under way. */
bool may_end(const phase_state &phases) {
    return phases.n_there == phases.n_threads && phases.under_way == phases.announced;
}

void wake(phase_state &phases) {
    for (unsigned i = 0; i < the.n_warps; i++) { the.warps[i].ready |= phases.waiting[i]; }
    memset(phases.waiting, 0, sizeof phases.waiting);
}

void end_phase(phase_state &phases) {
    for (const bulk_copy &copy : phases.copies) { memcpy(copy.dst, copy.src, copy.n_bytes); }
    phases.copies.clear();
    phases.n_there = 0, phases.announced = phases.under_way = 0;
    phases.phase++;
    wake(phases);
}

/* Another block's copies may be ahead of who announces them. */
void check_bytes(const phase_state &phases) {
    if (phases.n_there == phases.n_threads && phases.under_way > phases.announced) {
        fail("a bulk copy of more bytes than its barrier was told");
    }
}

/* Without copies a phase ends at once; else somebody who waits ends it. */
void look_after(phase_state &phases) {
    if (!may_end(phases)) { return; }
    if (phases.copies.empty()) {
        end_phase(phases);
    } else {
        wake(phases);
    }
}

} // namespace

void *in_block(const void *shared, unsigned block) {
    if (block >= the.n_blocks) { fail("a block that the cluster does not have"); }
    const unsigned n_warps = the.block_threads / WARP;
    bool has_ended = true;
    for (unsigned i = 0; i < n_warps; i++) { has_ended = has_ended && the.warps[block * n_warps + i].finished == ~0U; }
    if (has_ended) { fail("shared memory of a block that has ended"); }
    return the.blocks[block].shared + (static_cast<const unsigned char *>(shared) - now.shared);
}

void phase_barrier_create(const void *barrier, unsigned n_threads) {
    if (!is_shared(barrier, 8) || reinterpret_cast<uintptr_t>(barrier) % 8 != 0) {
        fail("a barrier with phases that is not 8 aligned bytes of shared memory");
    }
    if (n_threads == 0 || n_threads > the.n_threads) { fail("a barrier in shared memory for an impossible number"); }
    phase_state phases = {};
    phases.n_threads = n_threads;
    if (!the.phase_barriers.emplace(barrier, phases).second) { fail("a barrier in shared memory is created twice"); }
}

void phase_barrier_arrive(const void *barrier, size_t n_bytes) {
    if (n_bytes > 0 && the.loses_arrivals) { return; }
    phase_state &phases = phases_of(barrier);
    if (phases.n_there == phases.n_threads) { fail("more threads arrive than a barrier in shared memory is for"); }
    phases.n_there++;
    phases.announced += n_bytes;
    check_bytes(phases);
    look_after(phases);
    if (random_below(4) == 0) { switch_to(choose_any()); }
}

void phase_barrier_wait(const void *barrier, unsigned parity) {
    const place &where = the.running->where;
    phase_state &phases = phases_of(barrier);
    while (phases.phase % 2 == parity) {
        if (may_end(phases)) {
            end_phase(phases);
        } else {
            const uint32_t bit = 1U << where.lane;
            the.warps[where.warp].ready &= ~bit;
            phases.waiting[where.warp] |= bit;
        }
        switch_to(choose_any()); /* anyone else may run first */
    }
}

void phase_barrier_wait_or_trap(const void *barrier, unsigned parity) {
    the.n_limited++;
    phase_barrier_wait(barrier, parity);
    the.n_limited--;
}

void copy_bulk(void *dst, const void *src, size_t n_bytes, const void *barrier) {
    phase_state &phases = phases_of(barrier);
    if (reinterpret_cast<uintptr_t>(dst) % 16 != 0 || reinterpret_cast<uintptr_t>(src) % 16 != 0 || n_bytes % 16 != 0 ||
        n_bytes == 0) {
        fail("a bulk copy that is not of aligned pieces of 16 bytes");
    }
    if (!is_shared(dst, n_bytes)) { fail("a bulk copy to what is not shared memory"); }
    if (the.before_wait) { fail("a bulk copy before the kernels ahead are awaited"); }
    phases.under_way += n_bytes;
    check_bytes(phases);
    memset(dst, 0xFF, n_bytes);
    phases.copies.push_back({dst, src, n_bytes});
    look_after(phases);
}

} // namespace simt
