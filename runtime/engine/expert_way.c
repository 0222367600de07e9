#include "runtime/engine/expert_way.h"

#include "base/clock.h"
#include "base/number.h"
#include "base/sizes.h"

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

enum { LINK_BYTES = 64 << 20 };
static const double SHORTEST_COPY = 1e-9, PROCESSOR_SECONDS = 0.2;

/* By the shortest of a few copies. */
static qrun_status measure_link(qr_backend *backend, size_t n_bytes, double *bytes_per_second, qr_error *err) {
    enum { N_COPIES = 4 };
    void *host = NULL, *device = NULL;
    double best = 0;
    qrun_status status = QRUN_OK;
    QR_TRY(backend->memory_create(backend, QR_MEMORY_HOST, n_bytes, &host, err));
    QR_TRY(backend->memory_create(backend, QR_MEMORY_DEVICE, n_bytes, &device, err));
    for (int i = 0; i < N_COPIES; i++) {
        QR_TRY(backend->sync(backend, err));
        const double begin = qr_now_seconds();
        QR_TRY(backend->copy_in_async(backend, device, host, n_bytes, err));
        QR_TRY(backend->sync(backend, err));
        const double taken = qr_now_seconds() - begin;
        if (i == 0 || taken < best) { best = taken; }
    }
    *bytes_per_second = (double)n_bytes / (best > SHORTEST_COPY ? best : SHORTEST_COPY);
out:
    if (device != NULL) { backend->memory_destroy(backend, QR_MEMORY_DEVICE, device, n_bytes); }
    if (host != NULL) { backend->memory_destroy(backend, QR_MEMORY_HOST, host, n_bytes); }
    return status;
}

/* Under the compute lock. */
static qrun_status measure(qrun_context *context, const qr_expert_work *work, qr_error *err) {
    const int64_t n_bytes = qr_min(qr_min(work->all_bytes, work->other_bytes), LINK_BYTES);
    qr_backend *processor = context->processor;
    qr_backend_peaks peaks = {0};
    qr_expert_speeds measured;
    QR_RETURN_IF_ERROR(processor->measure_peaks(processor, PROCESSOR_SECONDS, &peaks, err));
    measured.host_bytes_per_second = peaks.read_bytes_per_second;
    measured.host_flops = peaks.bf16_flops;
    QR_RETURN_IF_ERROR(measure_link(context->backend, (size_t)n_bytes, &measured.link_bytes_per_second, err));
    context->expert_speeds = measured;
    return QRUN_OK;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

enum { PROMPT_TOKENS = 512, ANSWER_TOKENS = 128 };

/* How much faster the processor has to be. */
static const double MARGIN = 1.5;

static double larger(double a, double b) { return a > b ? a : b; }

static double seconds_computed(const qr_expert_work *work, const qr_expert_speeds *speeds) {
    const double read_all = (double)work->all_bytes / speeds->host_bytes_per_second;
    const double multiply = work->token_flops / speeds->host_flops;
    return larger(read_all, PROMPT_TOKENS * multiply) + ANSWER_TOKENS * larger(read_all * work->token_share, multiply);
}

static double seconds_fetched(const qr_expert_work *work, const qr_expert_speeds *speeds) {
    return (double)work->all_bytes / speeds->link_bytes_per_second * (1 + ANSWER_TOKENS * work->token_share);
}

void qr_expert_way_by_rule(const qr_expert_work *work, const qr_expert_speeds *speeds, qr_expert_way *way) {
    const double computed = seconds_computed(work, speeds), fetched = seconds_fetched(work, speeds);
    way->computed = MARGIN * computed < fetched;
    (void)qr_format(way->note, sizeof way->note,
                    "%s: a prompt of %d tokens and an answer of %d take %.3g s of fetching at %.3g GB/s, or on the "
                    "processor %.3g s at %.3g GB/s",
                    way->computed ? "on the processor" : "fetched", PROMPT_TOKENS, ANSWER_TOKENS, fetched,
                    speeds->link_bytes_per_second / 1e9, computed, speeds->host_bytes_per_second / 1e9);
}

static void fetch(qr_expert_way *way, const char *why) {
    way->computed = false;
    (void)qr_format(way->note, sizeof way->note, "fetched: %.*s", QR_EXPERT_NOTE_BYTES - 16, why);
}

/* A measurement that fails costs no more than what it would have found. */
static void choose_by_rule(qrun_context *context, const qr_expert_work *work, qr_expert_way *way) {
    qr_error why = {0};
    qrun_status status = QRUN_OK;
    qr_compute_lock(context);
    if (context->expert_speeds.link_bytes_per_second <= 0) { status = measure(context, work, &why); }
    const qr_expert_speeds speeds = context->expert_speeds;
    qr_compute_unlock(context);
    if (status == QRUN_OK) {
        qr_expert_way_by_rule(work, &speeds, way);
    } else {
        fetch(way, why.message);
    }
}

void qr_expert_way_choose(qrun_context *context, qrun_expert_compute asked, const qr_expert_work *work,
                          qr_expert_way *way) {
    *way = (qr_expert_way){.computed = asked == QRUN_EXPERT_COMPUTE_HOST};
    if (asked != QRUN_EXPERT_COMPUTE_AUTO) {
        (void)qr_format(way->note, sizeof way->note, "%s: as `expert_compute` says",
                        way->computed ? "on the processor" : "fetched");
    } else if (context->plans_for != NULL) {
        fetch(way, "which way is faster is measured on the device itself");
    } else {
        choose_by_rule(context, work, way);
    }
}
