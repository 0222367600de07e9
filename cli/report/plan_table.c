#include "cli/report/plan_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/api_names.h"

/* Of the device's memory, or of host memory apart from it. What is not known adds nothing. */
static int64_t total_bytes(const qrun_plan_entry *entries, int32_t n_entries, bool apart) {
    int64_t total = 0;
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].is_apart == apart && entries[i].bytes > 0) { total += entries[i].bytes; }
    }
    return total;
}

static void print_entry(const qrun_plan_entry *entry) {
    printf("  %-14s%12s\n", entry->category, entry->bytes < 0 ? "not known" : size_text(entry->bytes).text);
}

void plan_table_print(const qrun_plan_entry *entries, int32_t n_entries) {
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].bytes != 0 && !entries[i].is_apart) { print_entry(&entries[i]); }
    }
    printf("  %-14s%12s\n", "in all", size_text(total_bytes(entries, n_entries, false)).text);
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].bytes != 0 && entries[i].is_apart) { print_entry(&entries[i]); }
    }
}

void plan_table_print_budget(int64_t memory_bytes) {
    if (memory_bytes > 0) { printf("  %-14s%12s\n", "of --memory", given_size_text(memory_bytes).text); }
}

static void table_members(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out) {
    text_format(out, "\"total_bytes\":%lld,\"host_bytes\":%lld,\"entries\":[",
                (long long)total_bytes(entries, n_entries, false), (long long)total_bytes(entries, n_entries, true));
    for (int32_t i = 0; i < n_entries; i++) {
        text_puts(out, i > 0 ? ",{\"category\":" : "{\"category\":");
        text_json_string(out, entries[i].category, strlen(entries[i].category));
        if (entries[i].bytes < 0) {
            text_puts(out, ",\"bytes\":null}");
        } else {
            text_format(out, ",\"bytes\":%lld}", (long long)entries[i].bytes);
        }
    }
    text_puts(out, "]");
}

void plan_table_json(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out) {
    text_puts(out, "{");
    table_members(entries, n_entries, out);
    text_puts(out, "}");
}

/* ---- With a verdict ---------------------------------------------------------------------------------------------- */

static void put_verdict(const plan_report *report, text_buffer *out) {
    const qrun_plan_info *info = report->info;
    if (info->fits) {
        text_format(out, "fits: %s of %s", size_text(info->total_bytes).text, size_text(info->budget_bytes).text);
        return;
    }
    char *reason = api_names_copy(report->error->message);
    text_format(out, "does not fit: %s", reason);
    free(reason);
}

void plan_report_print(const plan_report *report) {
    const qrun_plan_info *info = report->info;
    text_buffer verdict = {0};
    plan_table_print(report->entries, report->n_entries);
    printf("\n");
    if (info->context_tokens > 0) {
        printf("  %-14s%12lld tokens\n", "context", (long long)info->context_tokens);
        printf("  %-14s%12lld tokens\n", "K/V pool", (long long)info->pool_tokens);
        printf("  %-14s%12lld at once\n", "sequences", (long long)info->max_sequences);
    }
    plan_table_print_budget(report->memory_bytes);
    printf("  %-14s%12s\n", "free memory", size_text(info->available_bytes).text);
    if (info->expert_note[0] != '\0') {
        printf("experts %s\n", api_names_to_options(info->expert_note, (char[API_NAMES_TEXT_BYTES]){0}));
    }
    put_verdict(report, &verdict);
    printf("%s\n", verdict.data);
    text_free(&verdict);
}

void plan_report_print_fit(const char *what, const qrun_fit_result *fitted) {
    if (fitted->largest == 0) {
        printf("largest %s: none fits; the smallest one takes:\n", what);
    } else if (fitted->largest == fitted->limit) {
        printf("largest %s: %lld, the most that is possible\n", what, (long long)fitted->largest);
    } else {
        printf("largest %s: %lld\n", what, (long long)fitted->largest);
    }
}

void plan_report_print_fit_json(const char *what, const qrun_fit_result *fitted) {
    printf("\"fit\":\"%s\",\"largest\":%lld,\"limit\":%lld,", what, (long long)fitted->largest,
           (long long)fitted->limit);
}

void plan_report_json(const plan_report *report, text_buffer *out) {
    const qrun_plan_info *info = report->info;
    text_buffer verdict = {0};
    table_members(report->entries, report->n_entries, out);
    if (info->context_tokens > 0) {
        text_format(out, ",\"context_tokens\":%lld,\"pool_tokens\":%lld,\"max_sequences\":%lld",
                    (long long)info->context_tokens, (long long)info->pool_tokens, (long long)info->max_sequences);
    }
    if (info->expert_note[0] != '\0') {
        text_puts(out, ",\"experts\":");
        text_json_string(out, info->expert_note, strlen(info->expert_note));
    }
    put_verdict(report, &verdict);
    text_format(out, ",\"available_bytes\":%lld,\"budget_bytes\":%lld,\"fits\":%s,\"verdict\":",
                (long long)info->available_bytes, (long long)info->budget_bytes, info->fits ? "true" : "false");
    text_json_string(out, verdict.data, verdict.size);
    text_free(&verdict);
}

int plan_report_code(const plan_report *report) { return report->info->fits ? EXIT_OK : EXIT_NO_FIT; }
