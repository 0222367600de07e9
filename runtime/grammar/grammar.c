#include "runtime/grammar/grammar.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/grammar/schema.h"

/* ---- Grammars ---------------------------------------------------------------------------------------------------- */

/* To a schema 1.0 and 1 are the same: both become digits, as an answer writes them. */
static void settle_numbers(qr_json *value) {
    static const double largest_exact = 9007199254740992.0; /* 2^53 */
    const double number = value->valuedouble;
    if (cJSON_IsNumber(value) && number == nearbyint(number) && fabs(number) <= largest_exact) {
        value->type &= ~QR_JSON_FLOAT;
        value->valuedouble = number == 0 ? 0 : number; /* no "-0" */
    }
    for (qr_json *item = value->child; item != NULL; item = item->next) { settle_numbers(item); }
}

static qrun_status parse_schema(const char *schema, size_t n_bytes, qr_json **root, qr_error *err) {
    *root = NULL;
    if (n_bytes > QR_GRAMMAR_MAX_SCHEMA_BYTES) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED, "the schema has %zu bytes, and may have %d", n_bytes,
                       QR_GRAMMAR_MAX_SCHEMA_BYTES);
    }
    QR_RETURN_IF_ERROR(qr_json_parse_line(schema, n_bytes, "the schema", root, err));
    settle_numbers(*root);
    return QRUN_OK;
}

static qrun_status allocate(qr_grammar **grammar, qr_error *err) {
    qr_grammar *made = *grammar = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "a grammar", sizeof *made); }
    pthread_mutex_init(&made->lock, NULL);
    atomic_init(&made->n_users, 1);
    return QRUN_OK;
}

qrun_status qr_grammar_create(const char *schema, size_t n_bytes, qr_grammar **grammar, qr_error *err) {
    qr_grammar *made = NULL;
    qr_json *root;
    *grammar = NULL;
    qrun_status status;
    QR_TRY(parse_schema(schema, n_bytes, &root, err));
    QR_TRY(allocate(&made, err));
    QR_TRY(qr_schema_compile(root, &made->automaton, err));
    *grammar = made;
out:
    qr_json_free(root);
    if (status != QRUN_OK) { qr_grammar_destroy(made); }
    return status;
}

/* ---- Grammars of forms ------------------------------------------------------------------------------------------- */

/* Bytes of the special token whose name is the longest at the beginning of a text; 0: there is none. */
static size_t special_bytes(const qr_tokenizer *tokenizer, const char *text) {
    enum { MOST_BYTES = 64 };
    for (size_t n = strnlen(text, MOST_BYTES); n > 1; n--) {
        const int32_t id = qr_tokenizer_id(tokenizer, text, n);
        if (id >= 0 && qr_tokenizer_is_special(tokenizer, id)) { return n; }
    }
    return 0;
}

/* A text as the bytes of tokens (token_trie.h). *made is the caller's. */
static qrun_status mark_specials(const qr_tokenizer *tokenizer, const char *text, char **made, qr_error *err) {
    qr_buffer out = {0};
    while (*text != '\0') {
        const size_t n = special_bytes(tokenizer, text);
        if (n > 0) { qr_buffer_append_char(&out, (char)QR_SPECIAL_MARK); }
        qr_buffer_append(&out, text, n > 0 ? n : 1);
        text += n > 0 ? n : 1;
    }
    qr_buffer_append_char(&out, '\0');
    *made = qr_buffer_take(&out);
    return *made != NULL ? QRUN_OK : qr_fail_memory(err, "a grammar", 0);
}

typedef struct form_parts {
    qr_json *root;
    char *before, *after;
    char *before_name, *after_name, *after_value; /* of tags; else NULL */
} form_parts;

static qrun_status read_form(const qr_tokenizer *tokenizer, const qr_grammar_form *form, form_parts *parts,
                             qr_schema_form *read, qr_error *err) {
    const qrun_status status = parse_schema(form->schema, strlen(form->schema), &parts->root, err);
    if (status != QRUN_OK) {
        qr_error_prefix(err, form->name);
        return status;
    }
    QR_RETURN_IF_ERROR(mark_specials(tokenizer, form->before, &parts->before, err));
    QR_RETURN_IF_ERROR(mark_specials(tokenizer, form->after, &parts->after, err));
    *read = (qr_schema_form){.name = form->name,
                             .before = parts->before,
                             .after = parts->after,
                             .root = parts->root,
                             .is_tagged = form->is_tagged};
    if (!form->is_tagged) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(mark_specials(tokenizer, form->tags.before_name, &parts->before_name, err));
    QR_RETURN_IF_ERROR(mark_specials(tokenizer, form->tags.after_name, &parts->after_name, err));
    QR_RETURN_IF_ERROR(mark_specials(tokenizer, form->tags.after_value, &parts->after_value, err));
    read->tags = (qr_schema_tags){parts->before_name, parts->after_name, parts->after_value};
    return QRUN_OK;
}

qrun_status qr_grammar_create_forms(const qr_tokenizer *tokenizer, const qr_grammar_form *forms, size_t n_forms,
                                    qr_grammar **grammar, qr_error *err) {
    qr_grammar *made = NULL;
    form_parts *parts = qr_alloc_array_zeroed(n_forms, sizeof *parts);
    qr_schema_form *read = qr_alloc_array(n_forms, sizeof *read);
    qrun_status status;
    *grammar = NULL;
    if (parts == NULL || read == NULL) { QR_TRY(qr_fail_memory(err, "a grammar", n_forms * sizeof *read)); }
    for (size_t i = 0; i < n_forms; i++) { QR_TRY(read_form(tokenizer, &forms[i], &parts[i], &read[i], err)); }
    QR_TRY(allocate(&made, err));
    QR_TRY(qr_schema_compile_forms(read, n_forms, &made->automaton, err));
    *grammar = made;
out:
    for (size_t i = 0; parts != NULL && i < n_forms; i++) {
        qr_json_free(parts[i].root);
        qr_free(parts[i].before);
        qr_free(parts[i].after);
        qr_free(parts[i].before_name);
        qr_free(parts[i].after_name);
        qr_free(parts[i].after_value);
    }
    qr_free(parts);
    qr_free(read);
    if (status != QRUN_OK) { qr_grammar_destroy(made); }
    return status;
}

qr_grammar *qr_grammar_share(qr_grammar *grammar) {
    (void)atomic_fetch_add(&grammar->n_users, 1);
    return grammar;
}

void qr_grammar_destroy(qr_grammar *grammar) {
    if (grammar == NULL || atomic_fetch_sub(&grammar->n_users, 1) > 1) { return; }
    qr_automaton_free(&grammar->automaton);
    qr_free(grammar->masks);
    pthread_mutex_destroy(&grammar->lock);
    qr_free(grammar);
}

int64_t qr_grammar_bytes(const qr_grammar *grammar) { return (int64_t)sizeof *grammar + grammar->automaton.n_bytes; }

qrun_status qr_grammar_start(qr_grammar *grammar, int64_t vocab, qr_error *err) {
    const size_t words = (size_t)qr_ceil_div(vocab, 32), n = QR_GRAMMAR_MASKS * words;
    pthread_mutex_lock(&grammar->lock);
    if (grammar->masks == NULL) {
        grammar->masks = qr_alloc_array(n, sizeof *grammar->masks);
        for (size_t i = 0; i < QR_GRAMMAR_MASKS && grammar->masks != NULL; i++) {
            grammar->kept[i].mask = grammar->masks + i * words;
        }
    }
    const bool has_masks = grammar->masks != NULL;
    pthread_mutex_unlock(&grammar->lock);
    return has_masks ? QRUN_OK : qr_fail_memory(err, "a grammar's masks", n * sizeof *grammar->masks);
}

/* ---- Rooms ------------------------------------------------------------------------------------------------------- */

static qrun_status make_worker(qr_grammar_worker *worker, int64_t mask_words, qr_error *err) {
    worker->sets = qr_alloc_array(QR_TOKEN_MAX_BYTES + 1, sizeof *worker->sets);
    worker->mask = qr_alloc_array((size_t)mask_words, sizeof *worker->mask);
    if (worker->sets == NULL || worker->mask == NULL) { return qr_fail_memory(err, "a grammar's scratch", 0); }
    QR_RETURN_IF_ERROR(qr_match_place_create(&worker->place, err));
    return qr_match_arena_create(&worker->arena, err);
}

qrun_status qr_grammar_room_create(const qr_tokenizer *tokenizer, int64_t vocab, int n_workers, qr_grammar_room **room,
                                   qr_error *err) {
    qrun_status status;
    *room = NULL;
    qr_grammar_room *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "a grammar's room", sizeof *made); }
    QR_TRY(qr_token_trie_create(tokenizer, vocab, &made->trie, err));
    made->workers = qr_alloc_array_zeroed((size_t)n_workers, sizeof *made->workers);
    if (made->workers == NULL) { QR_TRY(qr_fail_memory(err, "a grammar's room", 0)); }
    for (; made->n_workers < n_workers; made->n_workers++) {
        QR_TRY(make_worker(&made->workers[made->n_workers], made->trie.mask_words, err));
    }
    *room = made;
out:
    if (status != QRUN_OK) {
        made->n_workers = made->workers != NULL ? n_workers : 0;
        qr_grammar_room_destroy(made);
    }
    return status;
}

void qr_grammar_room_destroy(qr_grammar_room *room) {
    if (room == NULL) { return; }
    for (int i = 0; i < room->n_workers; i++) {
        qr_match_arena_free(&room->workers[i].arena);
        qr_match_place_free(&room->workers[i].place);
        qr_free(room->workers[i].sets);
        qr_free(room->workers[i].mask);
    }
    qr_free(room->workers);
    qr_token_trie_free(&room->trie);
    qr_free(room);
}

/* ---- Places ------------------------------------------------------------------------------------------------------ */

bool qr_grammar_begin(const qr_grammar *grammar, qr_grammar_worker *worker, qr_match_place *place) {
    const qr_match_set set = qr_match_start(&worker->arena, &grammar->automaton);
    return qr_match_keep(&worker->arena, &set, place);
}

/* The set after a token; those before stay in the arena. */
static qr_grammar_result pass_token(const qr_grammar_room *room, qr_match_arena *arena, int32_t token,
                                    qr_match_set *set) {
    size_t n_bytes;
    const char *bytes = qr_token_trie_bytes(&room->trie, token, &n_bytes);
    for (size_t i = 0; i < n_bytes; i++) {
        *set = qr_match_step(arena, set, (uint8_t)bytes[i]);
        if (arena->overflow) { return QR_GRAMMAR_TOO_MUCH; }
        if (set->begin == set->end && (i + 1 < n_bytes || !set->is_complete)) { return QR_GRAMMAR_MISMATCH; }
    }
    return n_bytes > 0 ? QR_GRAMMAR_OK : QR_GRAMMAR_MISMATCH;
}

qr_grammar_result qr_grammar_advance(const qr_grammar *grammar, const qr_grammar_room *room, qr_grammar_worker *worker,
                                     int32_t token, qr_match_place *place) {
    qr_match_arena *arena = &worker->arena;
    qr_match_set set = qr_match_restore(arena, &grammar->automaton, place);
    const qr_grammar_result result = pass_token(room, arena, token, &set);
    if (result != QR_GRAMMAR_OK) { return result; }
    return qr_match_keep(arena, &set, place) ? QR_GRAMMAR_OK : QR_GRAMMAR_TOO_MUCH;
}

bool qr_grammar_is_over(const qr_match_place *place) { return place->is_complete && place->n_configs == 0; }

/* ---- Masks ------------------------------------------------------------------------------------------------------- */

static void allow(const qr_token_trie *trie, int32_t token, uint32_t *mask) {
    for (; token >= 0; token = trie->next_same[token]) { mask[token / 32] |= 1U << (token % 32); }
}

/* The tokens of a part that keep the text the beginning of an answer. */
static void walk(const qr_token_trie *trie, const qr_trie_part *part, qr_grammar_worker *worker) {
    qr_match_arena *arena = &worker->arena;
    for (int32_t i = 0; i < part->n_nodes && !arena->overflow;) {
        const qr_trie_node *node = &part->nodes[i];
        const qr_match_set *before = &worker->sets[node->depth - 1];
        qr_match_return(arena, before);
        const qr_match_set after = qr_match_step(arena, before, node->byte);
        worker->sets[node->depth] = after;
        if (after.begin < after.end || after.is_complete) { allow(trie, node->token, worker->mask); }
        i = after.begin < after.end ? i + 1 : node->end;
    }
}

/* The tokens of the plain part, by their lengths where that is all that counts. */
static void allow_plain(const qr_token_trie *trie, qr_grammar_worker *worker) {
    const size_t n_bytes = (size_t)trie->mask_words * sizeof *worker->mask;
    bool no_more;
    int64_t room = qr_match_plain_room(&worker->arena, &worker->sets[0], &no_more);
    room = qr_min(room, QR_PLAIN_TOKEN_CHARACTERS);
    memcpy(worker->mask, trie->plain_masks + room * trie->mask_words, n_bytes);
    if (room < QR_PLAIN_TOKEN_CHARACTERS && !no_more) { walk(trie, &trie->plain, worker); }
}

static bool find_kept(qr_grammar *grammar, const uint64_t key[2], qr_grammar_worker *worker, size_t n_bytes) {
    bool found = false;
    pthread_mutex_lock(&grammar->lock);
    for (int i = 0; i < QR_GRAMMAR_MASKS && !found; i++) {
        const qr_kept_mask *kept = &grammar->kept[i];
        found = kept->is_set && kept->key[0] == key[0] && kept->key[1] == key[1];
        if (found) { memcpy(worker->mask, kept->mask, n_bytes); }
    }
    pthread_mutex_unlock(&grammar->lock);
    return found;
}

static void keep(qr_grammar *grammar, const uint64_t key[2], const qr_grammar_worker *worker, size_t n_bytes) {
    pthread_mutex_lock(&grammar->lock);
    qr_kept_mask *kept = &grammar->kept[grammar->next];
    grammar->next = (grammar->next + 1) % QR_GRAMMAR_MASKS;
    kept->is_set = true;
    memcpy(kept->key, key, sizeof kept->key);
    memcpy(kept->mask, worker->mask, n_bytes);
    pthread_mutex_unlock(&grammar->lock);
}

static void set_ends(const qr_grammar_ends *ends, int64_t vocab, bool allowed, uint32_t *mask) {
    for (int list = 0; list < 2; list++) {
        for (int64_t i = 0; i < ends->n[list]; i++) {
            const int32_t id = ends->ids[list][i];
            if (id < 0 || id >= vocab) { continue; }
            const uint32_t bit = 1U << (id % 32);
            mask[id / 32] = allowed ? mask[id / 32] | bit : mask[id / 32] & ~bit;
        }
    }
}

qr_grammar_result qr_grammar_mask(qr_grammar *grammar, const qr_grammar_room *room, qr_grammar_worker *worker,
                                  const qr_match_place *place, const int32_t *drafts, int64_t n_drafts,
                                  const qr_grammar_ends *ends, const uint32_t **mask) {
    const qr_token_trie *trie = &room->trie;
    const size_t n_bytes = (size_t)trie->mask_words * sizeof *worker->mask;
    qr_match_arena *arena = &worker->arena;
    uint64_t key[2];
    qr_match_set set = qr_match_restore(arena, &grammar->automaton, place);
    for (int64_t i = 0; i < n_drafts; i++) {
        const qr_grammar_result result = pass_token(room, arena, drafts[i], &set);
        if (result != QR_GRAMMAR_OK) { return result; }
        if (!qr_match_keep(arena, &set, &worker->place)) { return QR_GRAMMAR_TOO_MUCH; }
        set = qr_match_restore(arena, &grammar->automaton, &worker->place);
    }
    qr_match_set_key(arena, &set, key);
    if (!find_kept(grammar, key, worker, n_bytes)) {
        worker->sets[0] = set;
        allow_plain(trie, worker);
        walk(trie, &trie->other, worker);
        if (arena->overflow) { return QR_GRAMMAR_TOO_MUCH; }
        keep(grammar, key, worker, n_bytes);
    }
    set_ends(ends, trie->vocab, set.is_complete, worker->mask);
    *mask = worker->mask;
    return QR_GRAMMAR_OK;
}
