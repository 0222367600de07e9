/* What the engine does: for Prometheus, and for the page. */
#include "serve/endpoints.h"

static qrun_session_stats stats_of(const endpoints *e) {
    qrun_session_stats stats;
    serve_replicas_stats(e->completions->replicas, &stats);
    return stats;
}

/* How requests are dealt. */
static void write_replicas(const endpoints *e, serve_text *out) {
    static const char name[] = "qrun:replica_requests_total";
    replicas *r = e->completions->replicas;
    serve_text_add_format(out, "# HELP %s Requests that a replica got.\n# TYPE %s counter\n", name, name);
    for (int i = 0; i < r->n; i++) {
        serve_text_add_format(out, "%s{replica=\"%d\"} %lld\n", name, i,
                              (long long)placement_requests(&r->placement, i));
    }
}

/* Names are vLLM's where they mean the same. */
void metrics_write(const endpoints *e, serve_text *out) {
    const qrun_session_stats s = stats_of(e);
    const double prompt_tokens = (double)(s.prompt_tokens + s.cached_prompt_tokens);
    const double pages = s.pages_total > 0 ? (double)s.pages_total : 1;
    const struct {
        const char *name, *type, *help;
        double value;
    } metrics[] = {
        {"vllm:num_requests_running", "gauge", "Sequences that are computed.", s.n_running},
        {"vllm:num_requests_waiting", "gauge", "Sequences that wait for a slot or for pages.", s.n_waiting},
        {"vllm:kv_cache_usage_perc", "gauge", "Share of the K/V pages that are in use, from 0 to 1.",
         (double)s.pages_used / pages},
        {"qrun:kv_pages", "gauge", "K/V pages of the pool.", (double)s.pages_total},
        {"qrun:kv_pages_used", "gauge", "K/V pages in use.", (double)s.pages_used},
        {"qrun:kv_pages_shared", "gauge", "K/V pages in use by several sequences.", (double)s.pages_shared},
        {"qrun:kv_pages_cached", "gauge", "K/V pages of earlier prompts that may be used again.",
         (double)s.pages_cached},
        {"vllm:num_preemptions_total", "counter", "Sequences that were preempted.", (double)s.n_preemptions},
        {"vllm:prompt_tokens_total", "counter", "Prompt tokens, computed or found in the K/V cache.", prompt_tokens},
        {"qrun:prompt_tokens_computed_total", "counter", "Prompt tokens computed.", (double)s.prompt_tokens},
        {"vllm:generation_tokens_total", "counter", "Tokens generated.", (double)s.completion_tokens},
        {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked for in the K/V cache.", prompt_tokens},
        {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the K/V cache.",
         (double)s.cached_prompt_tokens},
        {"qrun:requests_finished_total", "counter", "Requests that are over.", (double)s.n_finished},
        {"qrun:requests_open", "gauge", "HTTP requests whose answer is on its way.", (double)e->completions->n_open},
        {"qrun:connections", "gauge", "Open connections.", (double)http_server_connections(e->http)},
        {"qrun:steps_total", "counter", "Steps computed.", (double)s.steps},
        {"qrun:step_seconds_total", "counter", "Time in steps.", s.step_seconds},
        {"qrun:planned_bytes", "gauge", "Memory of context, model and session by the plan.", (double)s.planned_bytes},
        {"qrun:peak_bytes", "gauge", "The most of it that was allocated.", (double)s.peak_bytes},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
        serve_text_add_format(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", metrics[i].name, metrics[i].help,
                              metrics[i].name, metrics[i].type, metrics[i].name, metrics[i].value);
    }
    if (e->completions->replicas->n > 1) { write_replicas(e, out); }
}

static void add(cJSON *object, const char *name, int64_t value) {
    cJSON_AddNumberToObject(object, name, (double)value);
}

/* Categories of all replicas together. */
static void add_plan(const replicas *r, cJSON *memory) {
    cJSON *plan = cJSON_AddObjectToObject(memory, "plan");
    for (int k = 0; k < r->n; k++) {
        int32_t n_entries;
        const qrun_plan_entry *entries = qrun_session_plan(r->each[k].of->session, &n_entries);
        for (int32_t i = 0; i < n_entries; i++) {
            cJSON *sum = cJSON_GetObjectItemCaseSensitive(plan, entries[i].category);
            if (sum != NULL) {
                cJSON_SetNumberValue(sum, sum->valuedouble + (double)entries[i].bytes);
            } else if (entries[i].bytes > 0) {
                add(plan, entries[i].category, entries[i].bytes);
            }
        }
    }
}

cJSON *metrics_live(const endpoints *e) {
    const qrun_session_stats s = stats_of(e);
    cJSON *root = cJSON_CreateObject();
    add(root, "running", s.n_running);
    add(root, "waiting", s.n_waiting);
    add(root, "open", e->completions->n_open);
    add(root, "connections", http_server_connections(e->http));
    add(root, "steps", s.steps);
    add(root, "prompt_tokens", s.prompt_tokens);
    add(root, "cached_prompt_tokens", s.cached_prompt_tokens);
    add(root, "completion_tokens", s.completion_tokens);
    cJSON *pages = cJSON_AddObjectToObject(root, "pages");
    add(pages, "total", s.pages_total);
    add(pages, "used", s.pages_used - s.pages_shared);
    add(pages, "shared", s.pages_shared);
    add(pages, "cached", s.pages_cached);
    add(pages, "free", s.pages_total - s.pages_used - s.pages_cached);
    add(pages, "tokens_each", s.page_tokens);
    cJSON *memory = cJSON_AddObjectToObject(root, "memory");
    add(memory, "planned_bytes", s.planned_bytes);
    add(memory, "peak_bytes", s.peak_bytes);
    add_plan(e->completions->replicas, memory);
    return root;
}
