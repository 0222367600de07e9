/* Which page of the K/V pool holds what: block tables, reference counts, prefix sharing, copy-on-write, and the release
 * of pages, also of those outside a sliding window. Accounting only: the session owns the pages' memory.
 *
 * A page holds QR_KV_PAGE_TOKENS tokens of one layer group. All groups take from one pool. A sequence has one block
 * table per group; entry b of group g is the page of positions [16 b, 16 b + 16), or −1: not yet written, or outside
 * the group's window and released.
 *
 * Full pages become shareable: a tree of nodes, one per 16 tokens under their predecessors, remembers which page of
 * each group holds them. Nodes are found by hash and compared by content (their own 16 tokens and the identity of their
 * parent), so two different prefixes are never confused. Pages that no sequence uses stay in the tree until they are
 * needed, and are then reused in order of last use.
 *
 * With a keeper, pages are copied elsewhere before they are reused, and come back for a prefix that needs them.
 *
 * Where layers carry a state along a sequence (needs_snapshots), pages are of no use without the state after them. A
 * snapshot is such a state, kept by the session, of which this knows the number. It belongs to a node: to that of a
 * full page, or to a leaf that remembers a page of which the first tokens are written. A sequence that continues from a
 * leaf writes into a copy of that page. A snapshot goes when a page of its node is needed, or when there are too few,
 * the one not used for longest first.
 *
 * Not thread-safe. After creation nothing is allocated. */
#ifndef QR_RUNTIME_CACHE_KV_CACHE_H
#define QR_RUNTIME_CACHE_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "kernels/ops.h"

typedef struct qr_kv_cache qr_kv_cache;

/* What K/V values depend on besides the tokens: sequences share only under equal keys. */
typedef struct qr_kv_key {
    int64_t adapter;    /* qr_adapter_identity */
    int64_t rope_class; /* qr_rope_length_class */
    uint64_t content;   /* qr_adapter_content, which follows from the identity; a keeper's digests go by it */
} qr_kv_key;

/* Which page, wherever it lies: of a layer group, and of a block of tokens after those before it. */
typedef struct qr_kv_page_name {
    qr_digest block; /* of the key, and of all tokens up to the block's last */
    int32_t group;
    const int32_t *tokens; /* [QR_KV_PAGE_TOKENS] of the block, lent */
} qr_kv_page_name;

/* A further place for pages (page_store.h). */
typedef struct qr_kv_keeper {
    void *arg;
    qr_digest (*root)(void *arg, qr_kv_key key); /* what the digests of a key's blocks begin with */
    bool (*has)(void *arg, const qr_kv_page_name *name);
    /* Copies it into a page of the pool; false: it turned out not to be usable, and `has` no longer says that it is. */
    bool (*bring)(void *arg, const qr_kv_page_name *name, int32_t page);
    /* Takes a copy of a page of the pool, which is about to be reused; lasting: for later sessions too. */
    void (*keep)(void *arg, const qr_kv_page_name *name, int32_t page, bool lasting);
} qr_kv_keeper;

typedef struct qr_kv_cache_options {
    int32_t n_pages;
    int32_t n_groups;
    const int32_t *windows; /* [n_groups] tokens a position sees, itself included; 0: all */
    bool share_prefixes;
    const qr_kv_keeper *keeper; /* lent; NULL: none. Only with share_prefixes and without needs_snapshots */
    bool needs_snapshots;       /* a prefix is shared only where there is a snapshot of the state after it */
    int32_t n_snapshots;        /* held at most */
} qr_kv_cache_options;

/* Owned by the caller. Made by qr_kv_sequence_create, and empty (no pages) until matched or reserved. */
typedef struct qr_kv_sequence {
    int32_t *tables;      /* [n_groups][n_blocks] */
    int32_t *first_block; /* [n_groups]: blocks before it are released */
    int32_t n_blocks;     /* capacity of a table */
    int64_t n_tokens;     /* whose K/V are written */
    int32_t tail;         /* node of the last full page; QR_KV_ROOT or QR_KV_UNSHARED */
    qr_kv_key key;        /* may be changed while the sequence is empty */
    int32_t snapshot;     /* after a match: of the state after n_tokens; QR_KV_NO_SNAPSHOT where nothing matched */
} qr_kv_sequence;

enum { QR_KV_ROOT = -1, QR_KV_UNSHARED = -2, QR_KV_NO_SNAPSHOT = -1 };

/* A whole page to be copied before the next write: dst is the sequence's own copy of the shared page src. */
typedef struct qr_kv_copy {
    int32_t src, dst;
} qr_kv_copy;

qrun_status qr_kv_cache_create(const qr_kv_cache_options *options, qr_kv_cache **cache, qr_error *err);
void qr_kv_cache_destroy(qr_kv_cache *cache); /* NULL is fine; sequences are not touched */

/* Tables for up to max_tokens. */
qrun_status qr_kv_sequence_create(const qr_kv_cache *cache, int64_t max_tokens, qr_kv_key key, qr_kv_sequence *sequence,
                                  qr_error *err);
/* Releases pages and tables. Fine for a zeroed sequence. */
void qr_kv_sequence_destroy(qr_kv_cache *cache, qr_kv_sequence *sequence);

/* For an empty sequence: shares the longest run of whole pages that hold tokens[0, n) from the beginning, always
 * leaving at least one token to compute: where they hold all, the last, which is written into a copy of its page. What
 * the keeper has of them comes back first, if the pool has room. With needs_snapshots: of pages up to a snapshot, the
 * last of which may be partly written. Returns the tokens found, n_tokens from now on. */
int64_t qr_kv_match_prefix(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n);

/* Makes the pages for the next n_new tokens present and writable. False, and nothing changed, when the pool has too
 * few, also with the last page written in place that the tree remembers. copies [n_groups] receives the *n_copies
 * pages to copy first. */
bool qr_kv_reserve(qr_kv_cache *cache, qr_kv_sequence *sequence, int64_t n_new, qr_kv_copy *copies, int32_t *n_copies);

/* The next n_new tokens are written. tokens [n_tokens + n_new] is the whole sequence: pages that became full can be
 * shared from now on, pages outside a window are released. */
void qr_kv_commit(qr_kv_cache *cache, qr_kv_sequence *sequence, const int32_t *tokens, int64_t n_new);

/* A snapshot of the state after the sequence's n_tokens of `tokens`: its number, under which the caller keeps a copy of
 * the state from now on; or QR_KV_NO_SNAPSHOT, where there is one already or none can be held. */
int32_t qr_kv_snapshot_take(qr_kv_cache *cache, const qr_kv_sequence *sequence, const int32_t *tokens);

/* Of all snapshots: the copies were lost. */
void qr_kv_snapshots_forget(qr_kv_cache *cache);

/* dst (created, empty, with room for src's tokens) takes src's key and becomes a second owner of all of its pages. */
void qr_kv_fork(qr_kv_cache *cache, const qr_kv_sequence *src, qr_kv_sequence *dst);

/* Gives all full pages to the keeper, lasting; they stay where they are. */
void qr_kv_keep_all(qr_kv_cache *cache);

/* Releases all pages and forgets the tokens; keeps the tables' memory. */
void qr_kv_sequence_release(qr_kv_cache *cache, qr_kv_sequence *sequence);

/* Pages that a sequence alone holds at most while it grows to n_tokens, in steps of at most step_tokens. */
int64_t qr_kv_group_pages(int32_t window, int64_t n_tokens, int64_t step_tokens); /* of one group */
int64_t qr_kv_pages_needed(const qr_kv_cache *cache, int64_t n_tokens, int64_t step_tokens);

int32_t qr_kv_table_entry(const qr_kv_sequence *sequence, int32_t group, int64_t block);

typedef struct qr_kv_stats {
    int32_t n_pages, n_free, n_cached, n_used; /* free + cached + used = pages */
    int32_t n_shared;                          /* of those used: by several sequences */
    int32_t peak_used;
    int64_t n_brought_tokens; /* of prefixes that came back from the keeper, so far */
} qr_kv_stats;
void qr_kv_get_stats(const qr_kv_cache *cache, qr_kv_stats *stats);

#endif
