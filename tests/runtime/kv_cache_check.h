/* The page accounting checked as a whole. */
#ifndef TESTS_RUNTIME_KV_CACHE_CHECK_H
#define TESTS_RUNTIME_KV_CACHE_CHECK_H

#include "runtime/cache/kv_cache.h"

/* Every count agrees with every list; `sequences` are all that exist. False with the reason in err. */
bool kv_cache_check(const qr_kv_cache *cache, const qr_kv_sequence *const *sequences, int32_t n_sequences,
                    qr_error *err);

#endif
