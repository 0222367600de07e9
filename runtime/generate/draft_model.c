#include "runtime/generate/draft_model.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sizes.h"
#include "runtime/model/rope.h"

enum { STEP_TOKENS = 512, USUAL_TOKENS = 4096 };

/* The K/V of one sequence. Only tokens that are known to be right are committed; those that were drafted and computed
 * after them are looked at again when it is known which were right. */
typedef struct draft_slot {
    qr_kv_sequence kv;
    uint64_t request; /* 0: none yet */
    int32_t sample;
    int64_t last_run;
    int64_t n_computed; /* drafted tokens whose K/V follow the committed ones */
    int32_t computed[QR_DRAFT_ROWS];
} draft_slot;

struct qr_draft_model {
    qrun_model *model;
    qr_draft_sizes sizes;
    int64_t vocab; /* ids that both models have */
    qr_forward *forward;
    qr_kv_cache *cache;
    void *pages;
    size_t pages_bytes;
    draft_slot *slots;  /* [max_sequences] */
    qr_kv_copy *copies; /* [n_kv_groups] */
    int64_t n_runs;
};

/* A sequence in one run. */
typedef struct draft_item {
    qr_sequence *sequence;
    draft_slot *slot;
    int64_t n_wanted, n_drafted;
    int64_t first, n; /* tokens of the pass */
    bool wants_next, is_over;
} draft_item;

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

bool qr_draft_model_is_named(const char *speculate) {
    return speculate != NULL && speculate[0] != '\0' && strcmp(speculate, "ngram") != 0 &&
           strcmp(speculate, "off") != 0;
}

qrun_model_params qr_draft_model_params(const qrun_model *model, const char *path) {
    qrun_model_params params = QRUN_MODEL_PARAMS_INIT;
    params.path = path;
    params.dtype = model->act_dtype == QR_DTYPE_F32   ? QRUN_DTYPE_F32
                   : model->act_dtype == QR_DTYPE_F16 ? QRUN_DTYPE_F16
                                                      : QRUN_DTYPE_BF16;
    return params;
}

qr_draft_sizes qr_draft_model_size(const qrun_model *draft, int64_t max_sequences, int64_t sequence_tokens) {
    const int64_t s = qr_min(max_sequences, QR_DRAFT_SEQUENCES);
    const int64_t longest = qr_min(sequence_tokens, draft->shape.context_tokens);
    qr_draft_sizes sizes = {.forward = {.max_tokens = STEP_TOKENS,
                                        .max_sequences = s,
                                        .max_blocks = qr_ceil_div(longest, QR_KV_PAGE_TOKENS),
                                        .max_logit_rows = s,
                                        .n_rope_slots = s,
                                        .kv_format = qr_kv_format_of_model(draft)}};
    for (int32_t g = 0; g < draft->n_kv_groups; g++) {
        sizes.n_pages += s * qr_kv_group_pages(draft->kv_groups[g].window, qr_min(longest, USUAL_TOKENS), STEP_TOKENS);
    }
    return sizes;
}

qrun_status qr_draft_model_plan(qrun_model *draft, const qr_draft_sizes *sizes, qr_plan *plan, qr_error *err) {
    plan->entries[QR_PLAN_WEIGHTS].bytes += (int64_t)draft->weight_bytes;
    plan->entries[QR_PLAN_KV_PAGES].bytes += sizes->n_pages * (int64_t)qr_page_bytes(draft, sizes->forward.kv_format);
    return qr_forward_plan(draft, &sizes->forward, plan, err);
}

/* ---- Does it fit? ------------------------------------------------------------------------------------------------ */

static bool same_token(const qr_tokenizer *a, const qr_tokenizer *b, int32_t id) {
    size_t n_a, n_b;
    const char *text_a = qr_tokenizer_token(a, id, &n_a), *text_b = qr_tokenizer_token(b, id, &n_b);
    return text_a != NULL && text_b != NULL && n_a == n_b && memcmp(text_a, text_b, n_a) == 0;
}

qrun_status qr_draft_model_check(const qrun_model *model, const qrun_model *draft, qr_error *err) {
    const qr_tokenizer *a = model->tokenizer != NULL ? model->tokenizer->tokenizer : NULL;
    const qr_tokenizer *b = draft->tokenizer != NULL ? draft->tokenizer->tokenizer : NULL;
    if (!qr_model_can_take_back(draft)) {
        return qr_fail(err, QRUN_ERROR_UNSUPPORTED,
                       "%s: its recurrent layers cannot take drafts back; use another "
                       "model for `speculate`",
                       draft->folder);
    }
    bool same = (a == NULL) == (b == NULL) && (a != NULL || model->shape.vocab == draft->shape.vocab);
    int32_t n_tokens = 0;
    if (same && a != NULL) {
        n_tokens = qr_tokenizer_vocab_size(a);
        same = n_tokens == qr_tokenizer_vocab_size(b);
    }
    for (int32_t id = 0; id < n_tokens && same; id++) {
        size_t n_bytes;
        const bool unused = qr_tokenizer_token(a, id, &n_bytes) == NULL && qr_tokenizer_token(b, id, &n_bytes) == NULL;
        same = unused || same_token(a, b, id);
    }
    if (same) { return QRUN_OK; }
    return qr_fail(
        err, QRUN_ERROR_ARGUMENT,
        "%s: has another tokenizer than %s, so it cannot draft for it; give `speculate` a model with the same "
        "tokenizer, or use `speculate=ngram`",
        draft->folder, model->folder);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* That of the sequence, or the one that was not used for longest; NULL: all are in use in this run. */
static draft_slot *take_slot(qr_draft_model *d, const qr_sequence *sequence) {
    draft_slot *oldest = NULL;
    const uint64_t request = sequence->request->id;
    for (int64_t i = 0; i < d->sizes.forward.max_sequences; i++) {
        draft_slot *slot = &d->slots[i];
        if (slot->request == request && slot->sample == sequence->sample) { return slot; }
        if (slot->last_run < d->n_runs && (oldest == NULL || slot->last_run < oldest->last_run)) { oldest = slot; }
    }
    if (oldest == NULL) { return NULL; }
    qr_kv_sequence_release(d->cache, &oldest->kv);
    oldest->request = request;
    oldest->sample = sequence->sample;
    oldest->n_computed = 0;
    return oldest;
}

/* Commits the drafted tokens that were right. The last known token is computed again: its logits are wanted. */
static void commit_right(qr_draft_model *d, draft_slot *slot, const qr_sequence *sequence) {
    int64_t n = 0;
    const int64_t first = slot->kv.n_tokens;
    while (n < slot->n_computed && first + n + 1 < sequence->n_tokens &&
           slot->computed[n] == sequence->tokens[first + n]) {
        n++;
    }
    if (n > 0) { qr_kv_commit(d->cache, &slot->kv, sequence->tokens, n); }
    slot->n_computed = 0;
}

static bool knows_tokens(const qr_draft_model *d, const qr_sequence *sequence, int64_t first) {
    for (int64_t i = first; i < sequence->n_tokens; i++) {
        if (sequence->tokens[i] >= d->vocab) { return false; }
    }
    return true;
}

static bool begin_item(qr_draft_model *d, qr_sequence *sequence, draft_item *item) {
    const int64_t most = d->sizes.forward.max_blocks * QR_KV_PAGE_TOKENS;
    *item = (draft_item){.sequence = sequence, .n_wanted = sequence->drafts.n};
    sequence->drafts.n = 0;
    if (sequence->n_tokens + item->n_wanted > most) { return false; }
    draft_slot *slot = item->slot = take_slot(d, sequence);
    if (slot == NULL) { return false; }
    const bool is_new = slot->kv.n_tokens == 0;
    slot->last_run = d->n_runs;
    commit_right(d, slot, sequence);
    if (is_new) { (void)qr_kv_match_prefix(d->cache, &slot->kv, sequence->tokens, sequence->n_tokens); }
    if (!knows_tokens(d, sequence, is_new ? 0 : slot->kv.n_tokens)) { return false; }
    const bool has_lengths = qr_rope_short_tokens(&d->model->config) < INT64_MAX;
    if (!is_new && !has_lengths) { return true; }
    return qr_forward_set_rope(d->forward, slot - d->slots, sequence->n_tokens, sequence->n_tokens + item->n_wanted,
                               NULL) == QRUN_OK;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Copies the pages of others that an item is about to write. */
static bool copy_pages(qr_draft_model *d, int32_t n_copies) {
    return qr_forward_copy_pages(d->forward, d->copies, n_copies, NULL) == QRUN_OK;
}

/* Pages for an item's tokens of the pass. Slots that this run does not use make room for it. */
static bool reserve(qr_draft_model *d, const draft_item *item) {
    int32_t n_copies;
    qr_kv_sequence *kv = &item->slot->kv;
    const int64_t n = item->first + item->n - kv->n_tokens;
    if (qr_kv_reserve(d->cache, kv, n, d->copies, &n_copies)) { return copy_pages(d, n_copies); }
    for (int64_t i = 0; i < d->sizes.forward.max_sequences; i++) {
        draft_slot *slot = &d->slots[i];
        if (slot->last_run == d->n_runs) { continue; }
        qr_kv_sequence_release(d->cache, &slot->kv);
        slot->request = 0;
    }
    return qr_kv_reserve(d->cache, kv, n, d->copies, &n_copies) && copy_pages(d, n_copies);
}

static qr_batch_sizes measure_pass(const qr_draft_model *d, const draft_item *items, int64_t n_items, bool *is_decode) {
    qr_batch_sizes sizes = {.table_stride = 1};
    for (int64_t i = 0; i < n_items; i++) {
        const draft_item *item = &items[i];
        if (item->n == 0) { continue; }
        sizes.n_tokens += item->n;
        sizes.n_sequences++;
        sizes.n_rows += item->wants_next;
        sizes.table_stride = qr_max(sizes.table_stride, qr_ceil_div(item->first + item->n, QR_KV_PAGE_TOKENS));
    }
    sizes.n_samples = sizes.n_rows;
    *is_decode = sizes.n_tokens == sizes.n_rows && qr_forward_decode_sizes(d->forward, &sizes);
    return sizes;
}

static void fill_pass(const qr_draft_model *d, const draft_item *items, int64_t n_items, bool is_decode,
                      qr_batch *batch) {
    for (int64_t i = 0; i < n_items; i++) {
        const draft_item *item = &items[i];
        const qr_sequence *sequence = item->sequence;
        if (item->n == 0) { continue; }
        qr_batch_add(batch, &item->slot->kv, sequence->tokens, item->first, item->n, (int32_t)(item->slot - d->slots),
                     -1, item->wants_next);
        if (!item->wants_next) { continue; }
        qr_sample_params args =
            qr_sampling_op_args(&sequence->request->sampling, sequence->sample, item->first + item->n);
        args.row = (int32_t)batch->n_samples;
        batch->samples[batch->n_samples++] = args;
    }
    if (is_decode) { qr_batch_pad(batch); }
}

/* The next token of every item that wants one goes into its sequence, after those computed. */
static void take_next(const qr_draft_model *d, draft_item *items, int64_t n_items, const qr_sampled *sampled) {
    for (int64_t i = 0, row = 0; i < n_items; i++) {
        draft_item *item = &items[i];
        if (item->n == 0 || !item->wants_next) { continue; }
        const qr_sampled *next = &sampled[row++];
        item->is_over = next->is_finite == 0 || next->token < 0 || next->token >= d->vocab;
        if (item->is_over) { continue; }
        item->sequence->tokens[item->first + item->n] = next->token;
        item->is_over = ++item->n_drafted == item->n_wanted;
    }
}

static qrun_status run_pass(qr_draft_model *d, draft_item *items, int64_t n_items, qr_error *err) {
    bool is_decode;
    qr_batch *batch;
    const qr_sampled *sampled;
    for (int64_t i = 0; i < n_items; i++) {
        draft_item *item = &items[i];
        if (item->n == 0 || reserve(d, item)) { continue; }
        item->n = 0;
        item->is_over = true;
    }
    const qr_batch_sizes sizes = measure_pass(d, items, n_items, &is_decode);
    if (sizes.n_tokens == 0) { return QRUN_OK; }
    QR_RETURN_IF_ERROR(qr_forward_begin(d->forward, &sizes, &batch, err));
    fill_pass(d, items, n_items, is_decode, batch);
    QR_RETURN_IF_ERROR(is_decode ? qr_forward_decode(d->forward, err) : qr_forward_run(d->forward, err));
    if (sizes.n_rows == 0) { return QRUN_OK; }
    if (!is_decode) {
        QR_RETURN_IF_ERROR(qr_forward_head(d->forward, 0, sizes.n_rows, err));
        QR_RETURN_IF_ERROR(qr_forward_sample(d->forward, 0, sizes.n_rows, err));
    }
    QR_RETURN_IF_ERROR(qr_forward_sampled(d->forward, sizes.n_rows, &sampled, err));
    take_next(d, items, n_items, sampled);
    return QRUN_OK;
}

/* One pass over known tokens; the last of them gives the first draft. False when all are computed. */
static bool choose_known(const qr_draft_model *d, draft_item *items, int64_t n_items) {
    int64_t budget = d->sizes.forward.max_tokens;
    bool any = false;
    for (int64_t i = 0; i < n_items; i++) {
        draft_item *item = &items[i];
        item->first = item->slot->kv.n_tokens;
        item->n = item->is_over ? 0 : qr_min(item->sequence->n_tokens - item->first, budget);
        item->wants_next = item->n > 0 && item->first + item->n == item->sequence->n_tokens;
        budget -= item->n;
        any = any || item->n > 0;
    }
    return any;
}

static void commit_known(qr_draft_model *d, const draft_item *items, int64_t n_items) {
    for (int64_t i = 0; i < n_items; i++) {
        const draft_item *item = &items[i];
        if (item->n > 0) { qr_kv_commit(d->cache, &item->slot->kv, item->sequence->tokens, item->n); }
    }
}

/* The draft before, computed for the next one. */
static bool choose_drafted(draft_item *items, int64_t n_items) {
    bool any = false;
    for (int64_t i = 0; i < n_items; i++) {
        draft_item *item = &items[i];
        item->n = !item->is_over;
        item->first = item->sequence->n_tokens + item->n_drafted - 1;
        item->wants_next = !item->is_over;
        any = any || !item->is_over;
    }
    return any;
}

static void remember_drafted(const draft_item *items, int64_t n_items) {
    for (int64_t i = 0; i < n_items; i++) {
        const draft_item *item = &items[i];
        if (item->n == 0) { continue; }
        item->slot->computed[item->slot->n_computed++] = item->sequence->tokens[item->first];
    }
}

static qrun_status draft_all(qr_draft_model *d, draft_item *items, int64_t n_items, qr_error *err) {
    while (choose_known(d, items, n_items)) {
        QR_RETURN_IF_ERROR(run_pass(d, items, n_items, err));
        commit_known(d, items, n_items);
    }
    while (choose_drafted(items, n_items)) {
        QR_RETURN_IF_ERROR(run_pass(d, items, n_items, err));
        remember_drafted(items, n_items);
    }
    return QRUN_OK;
}

void qr_draft_model_run(qr_draft_model *d, qr_sequence *const *sequences, int64_t n) {
    draft_item items[QR_DRAFT_SEQUENCES];
    int64_t n_items = 0;
    qr_compute_lock(d->model->context);
    d->n_runs++;
    for (int64_t i = 0; i < n; i++) { n_items += begin_item(d, sequences[i], &items[n_items]); }
    const qrun_status status = draft_all(d, items, n_items, NULL);
    for (int64_t i = 0; i < n_items; i++) {
        if (status == QRUN_OK) {
            items[i].sequence->drafts.n = items[i].n_drafted;
        } else { /* what its pages hold is not known */
            qr_kv_sequence_release(d->cache, &items[i].slot->kv);
            items[i].slot->request = 0;
        }
    }
    qr_compute_unlock(d->model->context);
}

/* ---- Creation ---------------------------------------------------------------------------------------------------- */

static qrun_status make_cache(qr_draft_model *d, qr_error *err) {
    int32_t *windows = qr_alloc_array((size_t)d->model->n_kv_groups, sizeof *windows);
    if (windows == NULL) { return qr_fail_memory(err, "the K/V groups", 0); }
    for (int32_t g = 0; g < d->model->n_kv_groups; g++) { windows[g] = d->model->kv_groups[g].window; }
    const qr_kv_cache_options options = {.n_pages = (int32_t)d->sizes.n_pages,
                                         .n_groups = d->model->n_kv_groups,
                                         .windows = windows,
                                         .share_prefixes = true};
    const qrun_status status = qr_kv_cache_create(&options, &d->cache, err);
    qr_free(windows);
    return status;
}

static qrun_status make_slots(qr_draft_model *d, qr_error *err) {
    const size_t n = (size_t)d->sizes.forward.max_sequences;
    d->slots = qr_alloc_array_zeroed(n, sizeof *d->slots);
    d->copies = qr_alloc_array((size_t)d->model->n_kv_groups, sizeof *d->copies);
    if (d->slots == NULL || d->copies == NULL) { return qr_fail_memory(err, "the drafts", n * sizeof *d->slots); }
    for (size_t i = 0; i < n; i++) {
        QR_RETURN_IF_ERROR(qr_kv_sequence_create(d->cache, d->sizes.forward.max_blocks * QR_KV_PAGE_TOKENS,
                                                 (qr_kv_key){0}, &d->slots[i].kv, err));
    }
    return QRUN_OK;
}

qrun_status qr_draft_model_create(qrun_model *draft, const qr_draft_sizes *sizes, int64_t vocab,
                                  qr_draft_model **drafter, qr_error *err) {
    *drafter = NULL;
    qr_draft_model *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the draft model", sizeof *made); }
    *made = (qr_draft_model){.model = draft, .sizes = *sizes, .vocab = qr_min(vocab, draft->shape.vocab)};
    qr_backend *backend = draft->context->backend;
    const size_t n_bytes = (size_t)sizes->n_pages * qr_page_bytes(draft, sizes->forward.kv_format);
    qrun_status status;
    QR_TRY(make_cache(made, err));
    QR_TRY(make_slots(made, err));
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &made->pages, err));
    made->pages_bytes = n_bytes;
    QR_TRY(qr_forward_create(draft, &sizes->forward, made->pages, NULL, &made->forward, err));
    *drafter = made;
    return QRUN_OK;
out:
    qr_draft_model_destroy(made);
    return status;
}

void qr_draft_model_destroy(qr_draft_model *d) {
    if (d == NULL) { return; }
    qr_backend *backend = d->model->context->backend;
    qr_forward_destroy(d->forward);
    backend->memory_destroy(backend, QR_MEMORY_DEVICE, d->pages, d->pages_bytes);
    for (int64_t i = 0; d->slots != NULL && i < d->sizes.forward.max_sequences; i++) {
        qr_kv_sequence_destroy(d->cache, &d->slots[i].kv);
    }
    qr_kv_cache_destroy(d->cache);
    qr_free(d->slots);
    qr_free(d->copies);
    qr_free(d);
}
