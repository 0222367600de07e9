/* The page accounting: cases by hand, and long random schedules against a naive model. The model remembers for every
 * slot of every page what was written there (a hash of the whole prefix, the key and the group), so a page given to the
 * wrong sequence, a copy left out or a stale page taken for a shared one shows as a wrong value. */
#include "check.h"

#include "base/random.h"
#include "base/sizes.h"
#include "kv_cache_check.h"

enum { PAGE = QR_KV_PAGE_TOKENS, MAX_GROUPS = 3, MAX_PAGES = 128, MAX_SEQUENCES = 12, MAX_TOKENS = 640 };

/* ---- The naive model --------------------------------------------------------------------------------------------- */

typedef struct modelled_sequence {
    bool exists;
    qr_kv_sequence kv;
    int32_t tokens[MAX_TOKENS];
} modelled_sequence;

typedef struct fixture {
    qr_kv_cache *cache;
    int32_t n_pages, n_groups, windows[MAX_GROUPS];
    uint64_t content[MAX_PAGES][PAGE];
    modelled_sequence sequences[MAX_SEQUENCES];
    uint64_t seed, n_draws;
} fixture;

static uint32_t draw(fixture *f, uint32_t below) {
    return (uint32_t)(qr_random_uniform(f->seed, 0, f->n_draws++) * below);
}

static void begin(fixture *f, int32_t n_pages, int32_t n_groups, const int32_t *windows, bool share) {
    memset(f, 0, sizeof *f);
    f->n_pages = n_pages;
    f->n_groups = n_groups;
    memcpy(f->windows, windows, (size_t)n_groups * sizeof *windows);
    const qr_kv_cache_options options = {n_pages, n_groups, windows, share};
    qr_error err = {0};
    CHECK_MSG(qr_kv_cache_create(&options, &f->cache, &err) == QRUN_OK, "%s", err.message);
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

static const qr_kv_key BASE = {0, 0};

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
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 48), 32); /* one token is always left to compute */
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 17), 16);
    qr_kv_sequence_release(f.cache, &b->kv);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 16), 0);
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 1), 0);
    b->tokens[20] = 9999;
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 50), 16);
    qr_kv_sequence_release(f.cache, &b->kv);
    b->tokens[0] = 9999;
    CHECK_INT(qr_kv_match_prefix(f.cache, &b->kv, b->tokens, 50), 0);
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
    CHECK_INT(qr_kv_match_prefix(f.cache, &c->kv, c->tokens, 64), 0); /* 48 would need block 1 of the window */
    check_accounts(&f);
    end(&f);
}

static void test_adapters_and_rope_classes_do_not_share(void) {
    fixture f;
    begin(&f, 32, 1, (int32_t[]){0}, true);
    const qr_kv_key keys[] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}};
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
            modelled_sequence *s = make(&f, 0, of_rope ? (qr_kv_key){0, i} : (qr_kv_key){i, 0});
            count_up(s, 0);
            CHECK_INT(qr_kv_match_prefix(f.cache, &s->kv, s->tokens, 40), 0);
            if (s->kv.n_tokens == 0) { feed(&f, s, PAGE); }
            drop(&f, s);
        }
        end(&f);
    }
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
        const qr_kv_key key = {draw(f, 4) == 0, draw(f, 8) == 0};
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
        const int64_t found = qr_kv_match_prefix(f->cache, &s->kv, s->tokens, n);
        CHECK(found < n && found % PAGE == 0 && found == s->kv.n_tokens);
    } else {
        advance(f, s);
    }
}

static bool run_schedule(uint64_t seed, int n_operations) {
    static fixture f;
    static const int32_t windows[][MAX_GROUPS] = {{0, 0, 0}, {0, 24, 0}, {8, 0, 100}, {33, 16, 1}};
    const int32_t n_groups = 1 + (int32_t)(seed % MAX_GROUPS);
    begin(&f, 20 + (int32_t)(seed * 37 % 100), n_groups, windows[seed / 3 % 4], seed % 7 != 6);
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
    CHECK_MSG(good, "seed %llu", (unsigned long long)seed);
    end(&f);
    return good;
}

static void test_random_schedules(void) {
    for (uint64_t seed = 1; seed <= 24; seed++) {
        if (!run_schedule(seed, 1500)) { return; }
    }
    printf("  seeds 1 to 24, 1500 operations each\n");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_match_takes_whole_pages_and_leaves_a_token);
    CHECK_RUN(test_released_pages_stay_until_they_are_needed);
    CHECK_RUN(test_least_recently_used_goes_first);
    CHECK_RUN(test_fork_copies_only_the_page_that_is_written);
    CHECK_RUN(test_fork_at_a_page_border_copies_nothing);
    CHECK_RUN(test_windows_give_pages_back);
    CHECK_RUN(test_a_prefix_needs_only_what_the_window_sees);
    CHECK_RUN(test_adapters_and_rope_classes_do_not_share);
    CHECK_RUN(test_keys_are_compared_and_not_only_hashed);
    CHECK_RUN(test_sharing_can_be_off);
    CHECK_RUN(test_nodes_can_run_out);
    CHECK_RUN(test_pages_needed_is_enough);
    CHECK_RUN(test_random_schedules);
    return check_end();
}
