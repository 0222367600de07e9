#include "plan_table.h"

#include <stdio.h>
#include <string.h>

static int64_t total_bytes(const qrun_plan_entry *entries, int32_t n_entries) {
    int64_t total = 0;
    for (int32_t i = 0; i < n_entries; i++) { total += entries[i].bytes; }
    return total;
}

void plan_table_print(const qrun_plan_entry *entries, int32_t n_entries) {
    char size[SIZE_TEXT_BYTES];
    for (int32_t i = 0; i < n_entries; i++) {
        if (entries[i].bytes == 0) { continue; }
        printf("  %-14s%12s\n", entries[i].category, size_text(entries[i].bytes, size));
    }
    printf("  %-14s%12s\n", "in all", size_text(total_bytes(entries, n_entries), size));
}

void plan_table_json(const qrun_plan_entry *entries, int32_t n_entries, text_buffer *out) {
    text_format(out, "{\"total_bytes\":%lld,\"entries\":[", (long long)total_bytes(entries, n_entries));
    for (int32_t i = 0; i < n_entries; i++) {
        text_puts(out, i > 0 ? ",{\"category\":" : "{\"category\":");
        text_json_string(out, entries[i].category, strlen(entries[i].category));
        text_format(out, ",\"bytes\":%lld}", (long long)entries[i].bytes);
    }
    text_puts(out, "]}");
}
