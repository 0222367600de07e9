#include "cli/report/generate_summary.h"

#include <stdio.h>

#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/text.h"

static double per_second(int64_t tokens, double seconds) { return seconds > 0 ? (double)tokens / seconds : 0; }

void report_for_people(const engine *e, const run_counts *counts) {
    qrun_session_stats s = QRUN_SESSION_STATS_INIT;
    if (qrun_session_get_stats(e->session, &s, NULL) != QRUN_OK) { return; }
    progress_clear();
    terminal_put_style(stderr, STYLE_DIM);
    fprintf(stderr, "answers    %lld", (long long)(counts->n_answered - counts->n_failed));
    if (counts->n_failed > 0) { fprintf(stderr, ", and %lld failed", (long long)counts->n_failed); }
    if (counts->n_resumed > 0) { fprintf(stderr, "; %lld from an earlier run", (long long)counts->n_resumed); }
    fprintf(stderr, "\nprompts    %lld tokens", (long long)s.prompt_tokens);
    if (s.cached_prompt_tokens > 0) {
        fprintf(stderr, ", %lld of them shared with earlier prompts", (long long)s.cached_prompt_tokens);
    }
    fprintf(stderr, "\ngenerated  %lld tokens in %.2f s: %.1f tokens/s\n", (long long)s.completion_tokens,
            counts->seconds, per_second(s.completion_tokens, counts->seconds));
    if (s.draft_tokens > 0) {
        fprintf(stderr, "drafts     %lld of %lld tokens were right, %.0f %%\n", (long long)s.accepted_draft_tokens,
                (long long)s.draft_tokens, 100.0 * (double)s.accepted_draft_tokens / (double)s.draft_tokens);
    }
    const gpu_text gpu = engine_gpu(e);
    if (gpu.text[0] != '\0') { fprintf(stderr, "device     %s\n", gpu.text); }
    fprintf(stderr, "weights    %s for %s, %s, loaded in %.2f s\n", size_text(e->info.weight_bytes).text,
            engine_parameters(&e->info).text, e->info.quant, e->info.load_seconds);
    fprintf(stderr, "K/V pages  at most %lld of %lld in use, of %lld tokens each\n", (long long)s.pages_peak,
            (long long)s.pages_total, (long long)s.page_tokens);
    fprintf(stderr, "memory     %s planned, %s reserved at most; the process had %s resident at most\n",
            size_text(s.planned_bytes).text, size_text(s.peak_bytes).text, size_text(peak_rss_bytes()).text);
    if (counts->memory_bytes > 0) {
        fprintf(stderr, "           of --memory %s\n", given_size_text(counts->memory_bytes).text);
    }
    if (s.replay_failure[0] != '\0') {
        fprintf(stderr, "steps      run without CUDA graphs: recording one failed (%s)\n", s.replay_failure);
    }
    terminal_put_style(stderr, STYLE_PLAIN);
}

void report_json(const engine *e, const run_counts *counts) {
    qrun_session_stats s = QRUN_SESSION_STATS_INIT;
    if (qrun_session_get_stats(e->session, &s, NULL) != QRUN_OK) { return; }
    progress_clear();
    fprintf(stderr,
            "{\"answered\":%lld,\"failed\":%lld,\"resumed\":%lld,\"prompt_tokens\":%lld,\"cached_prompt_tokens\":%lld,"
            "\"completion_tokens\":%lld,\"seconds\":%.6f,\"tokens_per_second\":%.3f,\"load_seconds\":%.6f,",
            (long long)counts->n_answered, (long long)counts->n_failed, (long long)counts->n_resumed,
            (long long)s.prompt_tokens, (long long)s.cached_prompt_tokens, (long long)s.completion_tokens,
            counts->seconds, per_second(s.completion_tokens, counts->seconds), e->info.load_seconds);
    fprintf(
        stderr,
        "\"draft_tokens\":%lld,\"accepted_draft_tokens\":%lld,"
        "\"steps\":%lld,\"replayed_steps\":%lld,\"ahead_steps\":%lld,\"step_seconds\":%.6f,\"prefill_seconds\":%.6f,"
        "\"preemptions\":%lld,"
        "\"page_tokens\":%lld,\"pages_total\":%lld,\"pages_peak\":%lld,\"weight_bytes\":%lld,\"planned_bytes\":%lld,"
        "\"peak_bytes\":%lld,\"peak_rss_bytes\":%lld}\n",
        (long long)s.draft_tokens, (long long)s.accepted_draft_tokens, (long long)s.steps, (long long)s.replayed_steps,
        (long long)s.ahead_steps, s.step_seconds, s.prefill_seconds, (long long)s.n_preemptions,
        (long long)s.page_tokens, (long long)s.pages_total, (long long)s.pages_peak, (long long)e->info.weight_bytes,
        (long long)s.planned_bytes, (long long)s.peak_bytes, (long long)peak_rss_bytes());
}
