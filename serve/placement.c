#include "serve/placement.h"

#include <string.h>

enum { LEAST_TEXT_BYTES = 256, LEAST_IDS = 64 };

/* ---- Beginnings -------------------------------------------------------------------------------------------------- */

/* FNV-1a. Whoever forges a hash chooses a replica, and nothing else. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n_bytes) {
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < n_bytes; i++) { hash = (hash ^ byte[i]) * 0x100000001B3ull; }
    return hash;
}

static uint64_t hash_json(uint64_t hash, const cJSON *json) {
    char *printed = json != NULL ? cJSON_PrintUnformatted(json) : NULL;
    if (printed != NULL) { hash = hash_bytes(hash, printed, strlen(printed) + 1); }
    cJSON_free(printed);
    return hash;
}

/* Of more than fit the last ones stay: a conversation continues at its end. */
static void add(beginnings *b, uint64_t hash) {
    if (b->n == PLACEMENT_BEGINNINGS_MAX) {
        memmove(b->hashes, b->hashes + 1, sizeof b->hashes - sizeof b->hashes[0]);
        b->n--;
    }
    b->hashes[b->n++] = hash;
}

static void add_text(beginnings *b, uint64_t hash, const char *text) {
    const size_t n_bytes = strlen(text);
    size_t done = 0;
    for (size_t end = LEAST_TEXT_BYTES; end <= n_bytes; end *= 2) {
        hash = hash_bytes(hash, text + done, end - done);
        add(b, hash);
        done = end;
        if (end > n_bytes / 2) { return; }
    }
}

static void add_ids(beginnings *b, uint64_t hash, const cJSON *ids) {
    int64_t n = 0, end = LEAST_IDS;
    for (const cJSON *id = ids->child; id != NULL; id = id->next) {
        hash = hash_bytes(hash, &id->valueint, sizeof id->valueint);
        if (++n < end) { continue; }
        add(b, hash);
        end *= 2;
    }
}

void beginnings_of(const cJSON *prompt, const cJSON *tools, const char *adapter, beginnings *b) {
    uint64_t hash = hash_json(hash_bytes(0xCBF29CE484222325ull, adapter, strlen(adapter) + 1), tools);
    b->n = 0;
    if (cJSON_IsString(prompt)) {
        add_text(b, hash, prompt->valuestring);
    } else if (cJSON_IsArray(prompt) && cJSON_IsNumber(prompt->child)) {
        add_ids(b, hash, prompt);
    } else if (cJSON_IsArray(prompt)) {
        for (const cJSON *message = prompt->child; message != NULL; message = message->next) {
            hash = hash_json(hash, message);
            add(b, hash);
        }
    }
}

/* ---- The choice -------------------------------------------------------------------------------------------------- */

void placement_open(placement *p, int n_replicas) {
    *p = (placement){.n_replicas = n_replicas};
    pthread_mutex_init(&p->lock, NULL);
}

void placement_close(placement *p) { pthread_mutex_destroy(&p->lock); }

static bool is_idler(const placement *p, unsigned a, unsigned b) {
    return p->n_open[a] < p->n_open[b] || (p->n_open[a] == p->n_open[b] && p->n_requests[a] < p->n_requests[b]);
}

/* Of those whose bits are set: the fewest open samples, then the fewest requests so far, then the first. None is set:
 * of all. */
static unsigned idlest(const placement *p, uint64_t among) {
    unsigned best = 0;
    bool found = false;
    for (unsigned i = 0; i < (unsigned)p->n_replicas; i++) {
        if (among != 0 && (among >> i & 1) == 0) { continue; }
        if (!found || is_idler(p, i, best)) { best = i; }
        found = true;
    }
    return best;
}

static size_t slot_of(uint64_t hash) { return (size_t)((hash ^ hash >> 32) % PLACEMENT_MARKS); }

/* Who has read the longest beginning that any has. 0: nobody. */
static uint64_t holders_of(const placement *p, const beginnings *b) {
    for (int i = b->n; i-- > 0;) {
        const size_t slot = slot_of(b->hashes[i]);
        if (p->marks[slot].hash == b->hashes[i] && p->marks[slot].holders != 0) { return p->marks[slot].holders; }
    }
    return 0;
}

static void remember(placement *p, const beginnings *b, unsigned replica) {
    for (int i = 0; i < b->n; i++) {
        const size_t slot = slot_of(b->hashes[i]);
        if (p->marks[slot].hash != b->hashes[i]) { p->marks[slot].holders = 0; }
        p->marks[slot].hash = b->hashes[i];
        p->marks[slot].holders |= 1ull << replica;
    }
}

int placement_choose(placement *p, const beginnings *b, int64_t n_samples) {
    pthread_mutex_lock(&p->lock);
    const unsigned least = idlest(p, 0), holder = idlest(p, holders_of(p, b));
    const unsigned chosen = p->n_open[holder] <= p->n_open[least] + PLACEMENT_AHEAD ? holder : least;
    p->n_open[chosen] += n_samples;
    p->n_requests[chosen]++;
    remember(p, b, chosen);
    pthread_mutex_unlock(&p->lock);
    return (int)chosen;
}

void placement_end(placement *p, int replica, int64_t n_samples) {
    pthread_mutex_lock(&p->lock);
    p->n_open[replica] -= n_samples;
    pthread_mutex_unlock(&p->lock);
}

int64_t placement_requests(placement *p, int replica) {
    pthread_mutex_lock(&p->lock);
    const int64_t n = p->n_requests[replica];
    pthread_mutex_unlock(&p->lock);
    return n;
}
