/* The page accounting: cases by hand, and long random schedules against a naive model. The model remembers for every
 * slot of every page what was written there: a hash of the whole prefix, the key and the group. So a page given to the
 * wrong sequence, a copy left out or a stale page taken for a shared one shows as a wrong value. */
#include "check.h"

#include "base/random.h"
#include "base/sizes.h"
#include "kv_cache_check.h"
#include "runtime/cache/kv_cache_internal.h"

enum { MAX_SNAPSHOTS = 8 };
enum { PAGE = QR_KV_PAGE_TOKENS, MAX_GROUPS = 3, MAX_PAGES = 128, MAX_SEQUENCES = 12, MAX_TOKENS = 640, MAX_KEPT = 90 };

/* ---- The naive model --------------------------------------------------------------------------------------------- */

typedef struct modelled_sequence {
    bool exists;
    qr_kv_sequence kv;
    int32_t tokens[MAX_TOKENS];
} modelled_sequence;

/* A page that left the pool. */
typedef struct kept_page {
    bool exists;
    qr_digest block;
    int32_t group, tokens[PAGE];
    uint64_t content[PAGE];
} kept_page;

typedef struct fixture {
    qr_kv_cache *cache;
    int32_t n_pages, n_groups, windows[MAX_GROUPS], n_snapshots;
    uint64_t states[MAX_SNAPSHOTS]; /* what each is of: a hash of its whole prefix */
    uint64_t content[MAX_PAGES][PAGE];
    modelled_sequence sequences[MAX_SEQUENCES];
    uint64_t seed, n_draws;
    qr_kv_keeper keeper;
    kept_page kept[MAX_KEPT]; /* one that is new takes the place of any */
    int64_t n_brought, n_unusable;
} fixture;

static uint32_t draw(fixture *f, uint32_t below) {
    return (uint32_t)(qr_random_uniform(f->seed, 0, f->n_draws++) * below);
}

static void begin_with(fixture *f, int32_t n_pages, int32_t n_groups, const int32_t *windows, bool share,
                       int32_t n_snapshots) {
    memset(f, 0, sizeof *f);
    f->n_snapshots = n_snapshots;
    f->n_pages = n_pages;
    f->n_groups = n_groups;
    memcpy(f->windows, windows, (size_t)n_groups * sizeof *windows);
    const qr_kv_cache_options options = {.n_pages = n_pages,
                                         .n_groups = n_groups,
                                         .windows = windows,
                                         .share_prefixes = share,
                                         .needs_snapshots = n_snapshots > 0,
                                         .n_snapshots = n_snapshots};
    qr_error err = {0};
    CHECK_MSG(qr_kv_cache_create(&options, &f->cache, &err) == QRUN_OK, "%s", err.message);
}

static void begin(fixture *f, int32_t n_pages, int32_t n_groups, const int32_t *windows, bool share) {
    begin_with(f, n_pages, n_groups, windows, share, 0);
}

/* ---- A keeper ---------------------------------------------------------------------------------------------------- */

static qr_digest root_of(void *arg, qr_kv_key key) {
    (void)arg;
    qr_digest_state state;
    qr_digest_begin(&state);
    qr_digest_add(&state, &key, sizeof key);
    return qr_digest_end(&state);
}

static kept_page *find_kept(fixture *f, const qr_kv_page_name *name) {
    for (int i = 0; i < MAX_KEPT; i++) {
        kept_page *kept = &f->kept[i];
        if (!kept->exists || kept->group != name->group) { continue; }
        if (memcmp(&kept->block, &name->block, sizeof kept->block) != 0) { continue; }
        CHECK(memcmp(kept->tokens, name->tokens, sizeof kept->tokens) == 0);
        return kept;
    }
    return NULL;
}

static bool has_kept(void *arg, const qr_kv_page_name *name) { return find_kept(arg, name) != NULL; }

/* Now and then one turns out not to be usable. */
static bool bring_kept(void *arg, const qr_kv_page_name *name, int32_t page) {
    fixture *f = arg;
    kept_page *kept = find_kept(f, name);
    CHECK(page >= 0 && page < f->n_pages);
    if (kept == NULL) { return false; } /* it made room for a page that left the pool meanwhile */
    if (draw(f, 16) == 0) {
        kept->exists = false;
        f->n_unusable++;
        return false;
    }
    memcpy(f->content[page], kept->content, sizeof kept->content);
    f->n_brought++;
    return true;
}

static void keep_page(void *arg, const qr_kv_page_name *name, int32_t page, bool lasting) {
    fixture *f = arg;
    (void)lasting;
    if (find_kept(f, name) != NULL) { return; }
    kept_page *kept = &f->kept[draw(f, MAX_KEPT)];
    *kept = (kept_page){.exists = true, .block = name->block, .group = name->group};
    memcpy(kept->tokens, name->tokens, sizeof kept->tokens);
    memcpy(kept->content, f->content[page], sizeof kept->content);
}

static void begin_with_keeper(fixture *f, int32_t n_pages, int32_t n_groups, const int32_t *windows) {
    begin(f, n_pages, n_groups, windows, true);
    qr_kv_cache_destroy(f->cache);
    f->keeper = (qr_kv_keeper){f, root_of, has_kept, bring_kept, keep_page};
    const qr_kv_cache_options options = {
        .n_pages = n_pages, .n_groups = n_groups, .windows = windows, .share_prefixes = true, .keeper = &f->keeper};
    CHECK(qr_kv_cache_create(&options, &f->cache, NULL) == QRUN_OK);
}

static bool check_accounts(const fixture *f) {
    const qr_kv_sequence *all[MAX_SEQUENCES];
    int32_t n = 0;
    for (int i = 0; i < MAX_SEQUENCES; i++) {
        if (f->sequences[i].exists) { all[n++] = &f->sequences[i].kv; }
    }
    qr_error err = {0};
    const bool whole = kv_cache_check(f->cache, all, n, &err);
    CHECK_MSG(whole, "%s", err.message);
    return whole;
}

static qr_kv_stats stats_of(const fixture *f) {
    qr_kv_stats stats;
    qr_kv_get_stats(f->cache, &stats);
    CHECK_INT(stats.n_free + stats.n_cached + stats.n_used, f->n_pages);
    return stats;
}

static void end(fixture *f) {
    for (int i = 0; i < MAX_SEQUENCES; i++) {
        if (f->sequences[i].exists) { qr_kv_sequence_destroy(f->cache, &f->sequences[i].kv); }
        f->sequences[i].exists = false;
    }
    CHECK_INT(stats_of(f).n_used, 0);
    check_accounts(f);
    qr_kv_cache_destroy(f->cache);
}

static modelled_sequence *make(fixture *f, int i, qr_kv_key key) {
    modelled_sequence *s = &f->sequences[i];
    qr_error err = {0};
    CHECK(qr_kv_sequence_create(f->cache, MAX_TOKENS, key, &s->kv, &err) == QRUN_OK);
    s->exists = true;
    return s;
}

static void drop(fixture *f, modelled_sequence *s) {
    qr_kv_sequence_destroy(f->cache, &s->kv);
    s->exists = false;
}

/* What position `last` of a group holds: everything that decides it. */
static uint64_t value_at(const modelled_sequence *s, int32_t group, int64_t last) {
    uint64_t hash = qr_hash_bytes(QR_HASH_START, &s->kv.key, sizeof s->kv.key);
    hash = qr_hash_bytes(hash, &group, sizeof group);
    return qr_hash_bytes(hash, s->tokens, (uint64_t)(last + 1) * sizeof *s->tokens);
}

/* Everything that the next token sees is where the table says. */
static bool check_visible(const fixture *f, const modelled_sequence *s) {
    for (int32_t g = 0; g < f->n_groups; g++) {
        const int64_t window = f->windows[g];
        const int64_t first = window == 0 ? 0 : qr_max(0, s->kv.n_tokens - window + 1);
        for (int64_t p = first; p < s->kv.n_tokens; p++) {
            const int32_t page = qr_kv_table_entry(&s->kv, g, p / PAGE);
            if (page < 0 || page >= f->n_pages || f->content[page][p % PAGE] != value_at(s, g, p)) {
                CHECK_MSG(false, "group %d, position %lld of %lld: page %d does not hold it", g, (long long)p,
                          (long long)s->kv.n_tokens, page);
                return false;
            }
        }
    }
    return true;
}

static bool reserve(fixture *f, modelled_sequence *s, int64_t n) {
    qr_kv_copy copies[MAX_GROUPS];
    int32_t n_copies;
    if (!qr_kv_reserve(f->cache, &s->kv, n, copies, &n_copies)) { return false; }
    CHECK(n_copies <= f->n_groups);
    for (int32_t i = 0; i < n_copies; i++) {
        memcpy(f->content[copies[i].dst], f->content[copies[i].src], sizeof f->content[0]);
    }
    return true;
}

static void write_and_commit(fixture *f, modelled_sequence *s, int64_t n) {
    for (int32_t g = 0; g < f->n_groups; g++) {
        for (int64_t p = s->kv.n_tokens; p < s->kv.n_tokens + n; p++) {
            const int32_t page = qr_kv_table_entry(&s->kv, g, p / PAGE);
            CHECK(page >= 0 && page < f->n_pages);
            if (page >= 0) { f->content[page][p % PAGE] = value_at(s, g, p); }
        }
    }
    qr_kv_commit(f->cache, &s->kv, s->tokens, n);
}

static void feed(fixture *f, modelled_sequence *s, int64_t n) {
    CHECK(reserve(f, s, n));
    write_and_commit(f, s, n);
    check_visible(f, s);
}

static void feed_in_pages(fixture *f, modelled_sequence *s, int64_t n) {
    for (int64_t done = 0; done < n; done += PAGE) { feed(f, s, qr_min(PAGE, n - done)); }
}

static void count_up(modelled_sequence *s, int32_t from) {
    for (int32_t i = 0; i < MAX_TOKENS; i++) { s->tokens[i] = from + i; }
}

static const qr_kv_key BASE = {0};

/* The state after all of a sequence's tokens. */
static uint64_t state_of(const modelled_sequence *s) { return value_at(s, -1, s->kv.n_tokens - 1); }

static bool keep(fixture *f, const modelled_sequence *s) {
    const int32_t snapshot = qr_kv_snapshot_take(f->cache, &s->kv, s->tokens);
    CHECK(snapshot < f->n_snapshots);
    if (snapshot != QR_KV_NO_SNAPSHOT) { f->states[snapshot] = state_of(s); }
    return snapshot != QR_KV_NO_SNAPSHOT;
}

/* Of tokens [0, n): with snapshots, the one found is of exactly the tokens that matched. */
static int64_t match(fixture *f, modelled_sequence *s, int64_t n) {
    const int64_t found = qr_kv_match_prefix(f->cache, &s->kv, s->tokens, n);
    CHECK(found < n && found == s->kv.n_tokens);
    if (f->n_snapshots == 0 || found == 0) {
        CHECK((found % PAGE == 0 || (found == n - 1 && n % PAGE == 0)) && s->kv.snapshot == QR_KV_NO_SNAPSHOT);
    } else {
        CHECK(s->kv.snapshot >= 0 && s->kv.snapshot < f->n_snapshots);
        CHECK_MSG(f->states[s->kv.snapshot] == state_of(s), "the snapshot is of other tokens than the %lld that match",
                  (long long)found);
    }
    return found;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static void test_match_takes_whole_pages_and_leaves_a_token(void) {
    fixture f;
    begin(&f, 16, 1, (int32_t[]){0}, true);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE);
    count_up(a, 0), count_up(b, 0);
    feed(&f, a, 50);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 50), 48);
    check_visible(&f, b);
    for (int64_t block = 0; block < 3; block++) {
        CHECK_INT(qr_kv_table_entry(&b->kv, 0, block), qr_kv_table_entry(&a->kv, 0, block));
    }
    CHECK_INT(stats_of(&f).n_used, 4);
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 48), 47); /* one token is always left to compute */
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 17), 16);
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 16), 15);
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 1), 0);
    b->tokens[20] = 9999;
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 50), 16);
    qr_kv_sequence_release(f.cache, &b->kv);
    b->tokens[0] = 9999;
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 50), 0);
    end(&f);
}

/* The last token of a prompt that is there whole is written into a copy, while there is a page for it: whoever shares
 * the page, and the tree, keep theirs. */
static void test_the_last_page_is_copied_before_it_is_written(void) {
    for (int32_t n_groups = 1; n_groups <= 2; n_groups++) {
        static fixture f;
        begin(&f, 6 * n_groups, n_groups, (int32_t[]){0, 24}, true);
        modelled_sequence *s[3];
        for (int i = 0; i < 3; i++) { s[i] = make(&f, i, BASE), count_up(s[i], 0); }
        feed_in_pages(&f, s[0], 48);
        for (int i = 1; i < 3; i++) {
            CHECK_INT(match(&f, s[i], 48), 47);
            check_visible(&f, s[i]);
            feed(&f, s[i], 1);
            CHECK(qr_kv_table_entry(&s[i]->kv, 0, 2) != qr_kv_table_entry(&s[0]->kv, 0, 2));
            CHECK_INT(qr_kv_table_entry(&s[i]->kv, 0, 1), qr_kv_table_entry(&s[0]->kv, 0, 1));
        }
        feed(&f, s[0], 1);
        check_accounts(&f);
        for (int i = 0; i < 2; i++) { drop(&f, s[i]); }
        qr_kv_sequence_release(f.cache, &s[2]->kv);
        CHECK_INT(match(&f, s[2], 48), 47); /* nobody else: the tree's page is copied nevertheless */
        const int32_t known = qr_kv_table_entry(&s[2]->kv, 0, 2);
        feed(&f, s[2], 1);
        CHECK(qr_kv_table_entry(&s[2]->kv, 0, 2) != known && f.cache->pages[known].node >= 0);
        end(&f);
    }
}

/* A pool that is full of one prompt: its last page is written in place, and is known again afterwards. A step that
 * fails before that makes the prefix shorter, and no more. */
static void test_the_last_page_is_written_in_place_in_a_full_pool(void) {
    static fixture f;
    begin(&f, 3, 1, (int32_t[]){0}, true);
    modelled_sequence *a = make(&f, 0, BASE);
    count_up(a, 0);
    feed(&f, a, 48);
    qr_kv_sequence_release(f.cache, &a->kv);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(match(&f, a, 48), 47);
        feed(&f, a, 1);
        check_accounts(&f);
        qr_kv_sequence_release(f.cache, &a->kv);
    }
    CHECK_INT(match(&f, a, 48), 47);
    CHECK(reserve(&f, a, 1));
    qr_kv_sequence_release(f.cache, &a->kv);
    CHECK_INT(match(&f, a, 48), 32);
    check_visible(&f, a);
    end(&f);
}

static void test_released_pages_stay_until_they_are_needed(void) {
    fixture f;
    begin(&f, 8, 1, (int32_t[]){0}, true);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE), *c = make(&f, 2, BASE);
    count_up(a, 0), count_up(b, 1000), count_up(c, 0);
    feed(&f, a, 64);
    qr_kv_sequence_release(f.cache, &a->kv);
    CHECK_INT(stats_of(&f).n_cached, 4);
    CHECK_INT(stats_of(&f).n_used, 0);
    feed(&f, b, 64); /* from the free pages first */
    CHECK_INT(stats_of(&f).n_cached, 4);
    feed(&f, b, 2 * PAGE); /* takes two of the four: the end of a's prefix */
    CHECK_INT(qr_kv_match_prefix(f.cache, &c->kv, c->tokens, 65), 32);
    check_visible(&f, c);
    CHECK(!reserve(&f, c, PAGE));
    drop(&f, b);
    feed(&f, c, 33);
    end(&f);
}

static void test_least_recently_used_goes_first(void) {
    fixture f;
    begin(&f, 4, 1, (int32_t[]){0}, true);
    modelled_sequence *a = make(&f, 0, BASE);
    for (int32_t i = 0; i < 4; i++) { /* four prefixes of a page each, released in order */
        count_up(a, 1000 * i);
        feed(&f, a, PAGE);
        qr_kv_sequence_release(f.cache, &a->kv);
    }
    count_up(a, 0); /* the first is used again, so the second is now the oldest */
    CHECK_INT(qr_kv_match_prefix(f.cache, &a->kv, a->tokens, PAGE + 1), PAGE);
    qr_kv_sequence_release(f.cache, &a->kv);
    count_up(a, 9000);
    feed(&f, a, 1);
    modelled_sequence *b = make(&f, 1, BASE);
    for (int32_t i = 0; i < 4; i++) {
        count_up(b, 1000 * i);
        CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, PAGE + 1), i == 1 ? 0 : PAGE);
        qr_kv_sequence_release(f.cache, &b->kv);
    }
    end(&f);
}

static void test_fork_copies_only_the_page_that_is_written(void) {
    fixture f;
    begin(&f, 16, 2, (int32_t[]){0, 24}, true);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE), *c = make(&f, 2, BASE);
    count_up(a, 0), count_up(b, 0), count_up(c, 0);
    feed(&f, a, 40);
    const int32_t used = stats_of(&f).n_used;
    qr_kv_fork(f.cache, &a->kv, &b->kv);
    qr_kv_fork(f.cache, &a->kv, &c->kv);
    CHECK_INT(stats_of(&f).n_used, used);
    b->tokens[40] = 777, c->tokens[40] = 778;
    feed(&f, b, 1);
    CHECK_INT(stats_of(&f).n_used, used + 2); /* one page per group */
    feed(&f, c, 1);
    CHECK_INT(stats_of(&f).n_used, used + 4);
    feed(&f, a, 1); /* the last owner writes in place */
    CHECK_INT(stats_of(&f).n_used, used + 4);
    check_visible(&f, b), check_visible(&f, c);
    check_accounts(&f);
    feed(&f, b, 30), feed(&f, a, 1), feed(&f, c, 9);
    check_visible(&f, a), check_visible(&f, b), check_visible(&f, c);
    end(&f);
}

static void test_fork_at_a_page_border_copies_nothing(void) {
    fixture f;
    begin(&f, 8, 1, (int32_t[]){0}, true);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE);
    count_up(a, 0), count_up(b, 0);
    feed(&f, a, 32);
    qr_kv_fork(f.cache, &a->kv, &b->kv);
    qr_kv_copy copies[1];
    int32_t n_copies;
    CHECK(qr_kv_reserve(f.cache, &b->kv, 1, copies, &n_copies));
    CHECK_INT(n_copies, 0);
    CHECK(qr_kv_table_entry(&b->kv, 0, 2) != qr_kv_table_entry(&a->kv, 0, 2));
    end(&f);
}

static void test_windows_give_pages_back(void) {
    fixture f;
    begin(&f, 64, 2, (int32_t[]){0, 20}, true);
    modelled_sequence *a = make(&f, 0, BASE);
    count_up(a, 0);
    for (int64_t n = 0; n < 300; n++) {
        feed(&f, a, 1);
        const int64_t visible = qr_min(n + 1, 19); /* positions n − 18 … n, seen by the next token */
        const int64_t first = n + 1 - visible;
        CHECK_INT(stats_of(&f).n_used, (n / PAGE + 1) + (n / PAGE - first / PAGE + 1));
    }
    CHECK_INT(qr_kv_table_entry(&a->kv, 1, 0), -1);
    end(&f);
}

static void test_a_prefix_needs_only_what_the_window_sees(void) {
    fixture f;
    begin(&f, 8, 2, (int32_t[]){0, 20}, true);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE), *c = make(&f, 2, BASE);
    count_up(a, 0), count_up(b, 5000), count_up(c, 0);
    feed_in_pages(&f, a, 64); /* all 8 pages; of the window's, blocks 0 and 1 have fallen out, but are remembered */
    CHECK_INT(stats_of(&f).n_used, 6);
    feed(&f, b, 1); /* takes those two */
    CHECK_INT(stats_of(&f).n_used, 8);
    CHECK_INT(qr_kv_match_prefix(f.cache, &c->kv, c->tokens, 65), 64);
    check_visible(&f, c);
    CHECK_INT(qr_kv_table_entry(&c->kv, 1, 1), -1);
    qr_kv_sequence_release(f.cache, &c->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &c->kv, c->tokens, 64), 63);
    check_visible(&f, c);
    qr_kv_sequence_release(f.cache, &c->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &c->kv, c->tokens, 63), 0); /* 48 would need block 1 of the window */
    check_accounts(&f);
    end(&f);
}

static void test_adapters_and_rope_classes_do_not_share(void) {
    fixture f;
    begin(&f, 32, 1, (int32_t[]){0}, true);
    const qr_kv_key keys[] = {{0}, {.adapter = 1}, {.rope_class = 1}, {.adapter = 1, .rope_class = 1}};
    for (int i = 0; i < 4; i++) {
        modelled_sequence *s = make(&f, i, keys[i]);
        count_up(s, 0);
        CHECK_INT(qr_kv_match_prefix(f.cache, &s->kv, s->tokens, 40), 0);
        feed(&f, s, 40);
    }
    for (int i = 0; i < 4; i++) {
        modelled_sequence *s = make(&f, 4 + i, keys[i]);
        count_up(s, 0);
        CHECK_INT(qr_kv_match_prefix(f.cache, &s->kv, s->tokens, 40), 32);
        check_visible(&f, s);
    }
    end(&f);
}

/* Many keys over the same tokens: some meet in a bucket of the table, and only the comparison tells them apart. */
static void test_keys_are_compared_and_not_only_hashed(void) {
    for (int of_rope = 0; of_rope < 2; of_rope++) {
        fixture f;
        begin(&f, 60, 1, (int32_t[]){0}, true);
        for (int64_t i = 0; i < 600; i++) {
            modelled_sequence *s = make(&f, 0, of_rope ? (qr_kv_key){.rope_class = i} : (qr_kv_key){.adapter = i});
            count_up(s, 0);
            CHECK_INT(qr_kv_match_prefix(f.cache, &s->kv, s->tokens, 40), 0);
            if (s->kv.n_tokens == 0) { feed(&f, s, PAGE); }
            drop(&f, s);
        }
        end(&f);
    }
}

/* Blocks of tokens that all met in one bucket of a hash without a key, as FNV-1a: whoever sends prompts could choose
 * them. */
static void test_blocks_that_collide(void) {
    enum { N_BLOCKS = 100, N_BUCKETS = 128, MOST_IN_A_BUCKET = 16 };
    fixture f;
    begin(&f, N_BLOCKS + 1, 1, (int32_t[]){0}, true);
    REQUIRE(f.cache->bucket_mask + 1 >= N_BUCKETS);
    for (int32_t n = 0, from = 0; n < N_BLOCKS; from++) {
        const int32_t parent = QR_KV_ROOT;
        int32_t tokens[PAGE];
        for (int32_t i = 0; i < PAGE; i++) { tokens[i] = from + i; }
        uint64_t hash = qr_hash_bytes(QR_HASH_START, &parent, sizeof parent);
        hash = qr_hash_bytes(hash, &BASE.adapter, sizeof BASE.adapter);
        hash = qr_hash_bytes(hash, &BASE.rope_class, sizeof BASE.rope_class);
        hash = qr_hash_bytes(hash, tokens, sizeof tokens);
        if ((qr_hash_mix(hash) & f.cache->bucket_mask) != 0) { continue; }
        modelled_sequence *s = make(&f, 0, BASE);
        count_up(s, from);
        feed(&f, s, PAGE);
        drop(&f, s);
        n++;
    }
    for (uint32_t b = 0; b <= f.cache->bucket_mask; b++) {
        int n = 0;
        for (int32_t node = f.cache->buckets[b]; node != QR_KV_NONE; node = f.cache->nodes[node].next) { n++; }
        CHECK_MSG(n < MOST_IN_A_BUCKET, "%d blocks in bucket %u", n, (unsigned)b);
    }
    end(&f);
}

static void test_sharing_can_be_off(void) {
    fixture f;
    begin(&f, 8, 1, (int32_t[]){0}, false);
    modelled_sequence *a = make(&f, 0, BASE), *b = make(&f, 1, BASE);
    count_up(a, 0), count_up(b, 0);
    feed(&f, a, 40);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 40), 0);
    qr_kv_fork(f.cache, &a->kv, &b->kv);
    feed(&f, b, 20), feed(&f, a, 20);
    drop(&f, a);
    check_visible(&f, b);
    drop(&f, b);
    CHECK_INT(stats_of(&f).n_free, 8);
    end(&f);
}

/* A window over all layers needs few pages for a long sequence, whose chain of nodes then runs out. */
static void test_nodes_can_run_out(void) {
    fixture f;
    begin(&f, 8, 1, (int32_t[]){8}, true);
    for (int32_t i = 0; i < 4; i++) { /* each chain has 39 nodes; 76 exist */
        modelled_sequence *s = make(&f, i, BASE);
        count_up(s, 1000 * i);
        feed_in_pages(&f, s, MAX_TOKENS - PAGE);
        check_accounts(&f);
    }
    modelled_sequence *again = make(&f, 5, BASE);
    count_up(again, 0);
    CHECK_INT(qr_kv_match_prefix(f.cache, &again->kv, again->tokens, MAX_TOKENS), MAX_TOKENS - PAGE);
    check_visible(&f, &f.sequences[5]);
    for (int32_t i = 0; i < 4; i++) { drop(&f, &f.sequences[i]); }
    check_accounts(&f);
    end(&f);
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

static const int32_t NO_WINDOWS[MAX_GROUPS] = {0};

/* A sequence of n counted tokens, computed, kept and released. */
static void compute_and_keep(fixture *f, int32_t from, int64_t n) {
    modelled_sequence *s = make(f, 0, BASE);
    count_up(s, from);
    feed_in_pages(f, s, n);
    CHECK(keep(f, s));
    drop(f, s);
}

static int64_t match_again(fixture *f, int32_t from, int64_t n, int64_t n_more) {
    modelled_sequence *s = make(f, 1, BASE);
    count_up(s, from);
    const int64_t found = match(f, s, n);
    if (n_more > 0) { feed(f, s, n_more); }
    check_visible(f, s);
    drop(f, s);
    return found;
}

/* Inside a page and at its border; what continues from a leaf leaves it as it is, for the next. */
static void test_a_snapshot_is_where_its_tokens_end(void) {
    static fixture f;
    static const int64_t ends[] = {1, 15, 16, 17, 37, 48};
    for (int32_t n_groups = 1; n_groups <= 2; n_groups++) {
        for (size_t i = 0; i < QR_COUNT_OF(ends); i++) {
            begin_with(&f, 40, n_groups, NO_WINDOWS, true, 2);
            compute_and_keep(&f, 100, ends[i]);
            CHECK_INT(match_again(&f, 100, ends[i], 0), 0); /* a token is left to compute, and there is none before */
            CHECK_INT(match_again(&f, 100, ends[i] + 1, 30), ends[i]);
            CHECK_INT(match_again(&f, 100, 200, 50), ends[i]);
            CHECK_INT(match_again(&f, 101, 200, 0), 0);
            end(&f);
        }
    }
}

/* The pages are there, but what continues from them needs the state. */
static void test_pages_without_a_snapshot_are_not_shared(void) {
    static fixture f;
    begin_with(&f, 40, 1, NO_WINDOWS, true, 1);
    modelled_sequence *s = make(&f, 0, BASE);
    count_up(s, 100);
    feed_in_pages(&f, s, 64);
    CHECK_INT(match_again(&f, 100, 100, 0), 0);
    CHECK(keep(&f, s));
    CHECK_MSG(!keep(&f, s), "there is a snapshot already");
    feed_in_pages(&f, s, 32);
    CHECK_INT(match_again(&f, 100, 200, 0), 64);
    CHECK(keep(&f, s)); /* the only one, so the first goes */
    CHECK_INT(match_again(&f, 100, 90, 0), 0);
    CHECK_INT(match_again(&f, 100, 200, 0), 96);
    qr_kv_snapshots_forget(f.cache);
    CHECK_INT(match_again(&f, 100, 200, 0), 0);
    drop(&f, s);
    end(&f);
}

static void test_the_snapshot_used_least_recently_goes_first(void) {
    static fixture f;
    begin_with(&f, 60, 1, NO_WINDOWS, true, 2);
    compute_and_keep(&f, 1000, 20);
    compute_and_keep(&f, 2000, 32);
    CHECK_INT(match_again(&f, 1000, 100, 0), 20);
    compute_and_keep(&f, 3000, 5);
    CHECK_INT(match_again(&f, 2000, 100, 0), 0);
    CHECK_INT(match_again(&f, 1000, 100, 0), 20);
    CHECK_INT(match_again(&f, 3000, 100, 0), 5);
    end(&f);
}

/* A snapshot and its pages live and die together; a pool that is full takes the page it needs, and none in vain. */
static void test_a_snapshot_goes_with_its_pages(void) {
    static fixture f;
    begin_with(&f, 4, 1, NO_WINDOWS, true, 3);
    compute_and_keep(&f, 1000, 20);
    modelled_sequence *s = make(&f, 2, BASE);
    count_up(s, 5000);
    feed_in_pages(&f, s, 64);
    check_accounts(&f);
    drop(&f, s);
    CHECK_INT(match_again(&f, 1000, 100, 0), 0);
    s = make(&f, 2, BASE); /* alone in the pool, with a snapshot inside its last page: it is written in place */
    count_up(s, 7000);
    feed_in_pages(&f, s, 50);
    CHECK(keep(&f, s));
    feed(&f, s, 14);
    drop(&f, s);
    CHECK_INT(match_again(&f, 7000, 100, 0), 0);
    end(&f);
}

static void test_pages_needed_is_enough(void) {
    for (int32_t window = 0; window <= 70; window += 7) {
        for (int64_t step = 1; step <= 60; step += 13) {
            fixture f;
            begin(&f, 100, 2, (int32_t[]){0, window}, true);
            const int64_t n_tokens = 333;
            modelled_sequence *s = make(&f, 0, BASE);
            count_up(s, 0);
            feed(&f, s, 5);
            for (int64_t done = 5; done < n_tokens; done += step) { feed(&f, s, qr_min(step, n_tokens - done)); }
            CHECK(stats_of(&f).peak_used <= qr_kv_pages_needed(f.cache, n_tokens, step));
            end(&f);
        }
    }
}

/* ---- Random schedules -------------------------------------------------------------------------------------------- */

/* Prompts from a small family, so that prefixes meet and part at all places. */
static void draw_tokens(fixture *f, modelled_sequence *s, int64_t from) {
    const int32_t family = (int32_t)draw(f, 3);
    const int64_t parts_at = draw(f, MAX_TOKENS);
    for (int64_t i = from; i < MAX_TOKENS; i++) { s->tokens[i] = i < parts_at ? family : (int32_t)draw(f, 2); }
}

static int64_t count_missing(const fixture *f, const modelled_sequence *s, int64_t n) {
    int64_t missing = 0;
    for (int32_t g = 0; g < f->n_groups; g++) {
        for (int64_t b = s->kv.n_tokens / PAGE; b * PAGE < s->kv.n_tokens + n; b++) {
            const int32_t page = qr_kv_table_entry(&s->kv, g, b);
            int owners = 0;
            for (int i = 0; i < MAX_SEQUENCES; i++) {
                owners += page >= 0 && f->sequences[i].exists && qr_kv_table_entry(&f->sequences[i].kv, g, b) == page;
            }
            missing += page < 0 || owners > 1;
        }
    }
    return missing;
}

static void advance(fixture *f, modelled_sequence *s) {
    int64_t n = draw(f, 4) == 0 ? 1 + draw(f, 70) : 1 + draw(f, 5);
    n = qr_min(n, MAX_TOKENS - s->kv.n_tokens);
    if (n <= 0) { return; }
    const qr_kv_stats before = stats_of(f);
    const int64_t missing = count_missing(f, s, n);
    static int32_t tables[MAX_GROUPS * MAX_TOKENS / PAGE];
    memcpy(tables, s->kv.tables, (size_t)(f->n_groups * s->kv.n_blocks) * sizeof *tables);
    const bool done = reserve(f, s, n);
    CHECK_INT(done, missing <= before.n_free + before.n_cached);
    if (!done) {
        const qr_kv_stats after = stats_of(f);
        CHECK(memcmp(tables, s->kv.tables, (size_t)(f->n_groups * s->kv.n_blocks) * sizeof *tables) == 0);
        CHECK(memcmp(&before, &after, sizeof before) == 0);
        if (draw(f, 2) == 0) { qr_kv_sequence_release(f->cache, &s->kv); } /* preempted */
    } else if (draw(f, 16) > 0) {
        write_and_commit(f, s, n);
    } else if (draw(f, 2) == 0) {
        qr_kv_sequence_release(f->cache, &s->kv); /* the step failed; else it is tried again with another length */
    }
}

static void act(fixture *f) {
    modelled_sequence *s = &f->sequences[draw(f, MAX_SEQUENCES)];
    if (!s->exists) {
        const qr_kv_key key = {.adapter = draw(f, 4) == 0, .rope_class = draw(f, 8) == 0};
        make(f, (int)(s - f->sequences), key);
        draw_tokens(f, s, 0);
        return;
    }
    const uint32_t choice = draw(f, 32);
    if (choice == 0) {
        drop(f, s);
    } else if (choice == 1) {
        qr_kv_sequence_release(f->cache, &s->kv);
    } else if (choice < 4 && s->kv.n_tokens > 0) {
        modelled_sequence *other = &f->sequences[draw(f, MAX_SEQUENCES)];
        if (other->exists) { return; }
        make(f, (int)(other - f->sequences), s->kv.key);
        memcpy(other->tokens, s->tokens, sizeof other->tokens);
        qr_kv_fork(f->cache, &s->kv, &other->kv);
        if (draw(f, 2) == 0) { draw_tokens(f, other, other->kv.n_tokens); }
    } else if (s->kv.n_tokens == 0 && qr_kv_table_entry(&s->kv, 0, 0) < 0 && draw(f, 4) > 0) {
        const int64_t n = 1 + draw(f, MAX_TOKENS);
        (void)match(f, s, draw(f, 2) == 0 ? n : qr_round_up(n, PAGE));
    } else if (choice < 8 && f->n_snapshots > 0 && s->kv.n_tokens > 0) {
        (void)keep(f, s);
    } else {
        advance(f, s);
    }
}

static bool run_schedule(uint64_t seed, int n_operations, bool with_keeper) {
    static fixture f;
    static const int32_t windows[][MAX_GROUPS] = {{0, 0, 0}, {0, 24, 0}, {8, 0, 100}, {33, 16, 1}};
    const int32_t n_groups = 1 + (int32_t)(seed % MAX_GROUPS);
    if (with_keeper) {
        begin_with_keeper(&f, 20 + (int32_t)(seed * 37 % 60), n_groups, windows[seed / 3 % 4]);
    } else {
        begin_with(&f, 20 + (int32_t)(seed * 37 % 100), n_groups, windows[seed / 3 % 4], seed % 7 != 6,
                   seed % 2 == 0 ? 0 : 1 + (int32_t)(seed % MAX_SNAPSHOTS));
    }
    f.seed = seed;
    bool good = true;
    int64_t n_matched = 0;
    for (int i = 0; i < n_operations && good; i++) {
        act(&f);
        good = check_accounts(&f);
        for (int s = 0; s < MAX_SEQUENCES && good; s++) {
            if (f.sequences[s].exists && (i % 8 == 0)) { good = check_visible(&f, &f.sequences[s]); }
            n_matched += f.sequences[s].exists && f.sequences[s].kv.n_tokens > 0;
        }
        good = good && check_state.n_failures_in_case == 0;
    }
    CHECK(n_matched > 0);
    CHECK_MSG(!with_keeper || f.n_brought > 0, "seed %llu: nothing came back", (unsigned long long)seed);
    if (with_keeper && draw(&f, 2) == 0) { qr_kv_keep_all(f.cache); }
    CHECK_MSG(good, "seed %llu", (unsigned long long)seed);
    end(&f);
    return good;
}

static void test_random_schedules(void) {
    const int n_seeds = check_repeats(24, 8);
    for (int seed = 1; seed <= n_seeds; seed++) {
        if (!run_schedule((uint64_t)seed, 1500, false)) { return; }
    }
    printf("  seeds 1 to %d, 1500 operations each\n", n_seeds);
}

/* With what left the pool coming back, some of it unusable: never a page in the wrong place. */
static void test_random_schedules_with_a_keeper(void) {
    const int n_seeds = check_repeats(24, 8);
    for (int seed = 1; seed <= n_seeds; seed++) {
        if (!run_schedule((uint64_t)seed, 1500, true)) { return; }
    }
    printf("  seeds 1 to %d, 1500 operations each\n", n_seeds);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_match_takes_whole_pages_and_leaves_a_token);
    CHECK_RUN(test_the_last_page_is_copied_before_it_is_written);
    CHECK_RUN(test_the_last_page_is_written_in_place_in_a_full_pool);
    CHECK_RUN(test_released_pages_stay_until_they_are_needed);
    CHECK_RUN(test_least_recently_used_goes_first);
    CHECK_RUN(test_fork_copies_only_the_page_that_is_written);
    CHECK_RUN(test_fork_at_a_page_border_copies_nothing);
    CHECK_RUN(test_windows_give_pages_back);
    CHECK_RUN(test_a_prefix_needs_only_what_the_window_sees);
    CHECK_RUN(test_adapters_and_rope_classes_do_not_share);
    CHECK_RUN(test_keys_are_compared_and_not_only_hashed);
    CHECK_RUN(test_blocks_that_collide);
    CHECK_RUN(test_sharing_can_be_off);
    CHECK_RUN(test_nodes_can_run_out);
    CHECK_RUN(test_a_snapshot_is_where_its_tokens_end);
    CHECK_RUN(test_pages_without_a_snapshot_are_not_shared);
    CHECK_RUN(test_the_snapshot_used_least_recently_goes_first);
    CHECK_RUN(test_a_snapshot_goes_with_its_pages);
    CHECK_RUN(test_pages_needed_is_enough);
    CHECK_RUN(test_random_schedules);
    CHECK_RUN(test_random_schedules_with_a_keeper);
    return check_end();
}
