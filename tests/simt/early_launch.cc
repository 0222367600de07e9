#include "early_launch.h"

#include <stdint.h>
#include <string.h>

#include <map>
#include <mutex>
#include <vector>

namespace simt {

namespace {

/* Bytes of memory that may be copied for each launch, on average. */
#ifdef __SANITIZE_ADDRESS__
enum { BYTES_PER_LAUNCH = 32 << 10 };
#else
enum { BYTES_PER_LAUNCH = 256 << 10 };
#endif
enum { POISON = 0xFF, CHUNK = 4096 };

struct region {
    size_t n_bytes;
    std::vector<unsigned char> before, now; /* `before` the kernels ahead; empty: not looked at */

    /* A whole word at a time, so that what is poisoned is NaN. */
    bool was_written(size_t i) const {
        const size_t word = i / 4 * 4, length = n_bytes - word < 4 ? n_bytes - word : 4;
        return memcmp(&before[word], &now[word], length) != 0;
    }

    /* Calls body(from, to) for runs of bytes, whole words, and whether any of them was written. */
    template <typename F> void for_each_chunk(const F &body) const {
        for (size_t from = 0; from < n_bytes; from += CHUNK) {
            const size_t to = from + CHUNK < n_bytes ? from + CHUNK : n_bytes;
            body(from, to, memcmp(&before[from], &now[from], to - from) != 0);
        }
    }
};

std::mutex lock;
std::map<unsigned char *, region> regions;
size_t n_bytes_in_all;
bool is_watched, others_write;
uint64_t random_state = 1;

bool chance_of_one_in(size_t n) {
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return n <= 1 || (random_state >> 33) % n == 0;
}

void watch() {
    is_watched = chance_of_one_in(n_bytes_in_all / BYTES_PER_LAUNCH) && !others_write;
    for (auto &one : regions) {
        if (is_watched) {
            one.second.before.assign(one.first, one.first + one.second.n_bytes);
        } else {
            one.second.before.clear();
        }
    }
}

} // namespace

void early_add_memory(void *memory, size_t n_bytes) {
    const std::lock_guard<std::mutex> held(lock);
    regions[static_cast<unsigned char *>(memory)] = {n_bytes, {}, {}};
    n_bytes_in_all += n_bytes;
}

void early_remove_memory(void *memory) {
    const std::lock_guard<std::mutex> held(lock);
    const auto found = regions.find(static_cast<unsigned char *>(memory));
    if (found == regions.end()) { return; }
    n_bytes_in_all -= found->second.n_bytes;
    regions.erase(found);
}

bool early_before_launch(bool early) {
    const std::lock_guard<std::mutex> held(lock);
    if (early && is_watched) { return true; }
    watch();
    return false;
}

void early_poison() {
    const std::lock_guard<std::mutex> held(lock);
    for (auto &one : regions) {
        region &r = one.second;
        if (r.before.empty()) { continue; }
        r.now.assign(one.first, one.first + r.n_bytes);
        r.for_each_chunk([&](size_t from, size_t to, bool was_written) {
            for (size_t i = from; i < to && was_written; i++) {
                if (r.was_written(i)) { one.first[i] = POISON; }
            }
        });
    }
}

bool early_restore() {
    const std::lock_guard<std::mutex> held(lock);
    bool is_untouched = true;
    for (auto &one : regions) {
        region &r = one.second;
        if (r.before.empty()) { continue; }
        r.for_each_chunk([&](size_t from, size_t to, bool was_written) {
            if (!was_written) { is_untouched = is_untouched && memcmp(one.first + from, &r.now[from], to - from) == 0; }
            for (size_t i = from; i < to && was_written; i++) {
                const unsigned char expected = r.was_written(i) ? static_cast<unsigned char>(POISON) : r.now[i];
                is_untouched = is_untouched && one.first[i] == expected;
            }
        });
        if (r.n_bytes > 0) { memcpy(one.first, r.now.data(), r.n_bytes); }
    }
    return is_untouched;
}

void early_order_all() {
    const std::lock_guard<std::mutex> held(lock);
    is_watched = false;
}

void early_others_write(bool write) {
    const std::lock_guard<std::mutex> held(lock);
    is_watched = false;
    others_write = write;
}

} // namespace simt
