#include "cli/report/plan_table.h"

#include <stdio.h>
#include <string.h>

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

void plan_table_json(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out) {
    text_format(out, "{\"total_bytes\":%lld,\"host_bytes\":%lld,\"entries\":[",
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
    text_puts(out, "]}");
}
