#include "cli/options/nearest.h"

#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 32 };

/* Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours cost one each. */
static int edit_distance(const char *a, int a_length, const char *b, int b_length) {
    int rows[WORD_MAX + 1][WORD_MAX + 1];
    for (int i = 0; i <= a_length; i++) { rows[i][0] = i; }
    for (int j = 0; j <= b_length; j++) { rows[0][j] = j; }
    for (int i = 1; i <= a_length; i++) {
        for (int j = 1; j <= b_length; j++) {
            int least = rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (rows[i - 1][j] + 1 < least) { least = rows[i - 1][j] + 1; }
            if (rows[i][j - 1] + 1 < least) { least = rows[i][j - 1] + 1; }
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && rows[i - 2][j - 2] + 1 < least) { least = rows[i - 2][j - 2] + 1; }
            rows[i][j] = least;
        }
    }
    return rows[a_length][b_length];
}

void nearest_offer(nearest *search, const char *candidate) {
    const size_t wanted_length = strlen(search->wanted), length = strlen(candidate);
    if (wanted_length < 2 || wanted_length > WORD_MAX || length > WORD_MAX) { return; }
    const bool is_prefix = wanted_length >= 3 && strncmp(candidate, search->wanted, wanted_length) == 0;
    const int distance = is_prefix ? 1 : edit_distance(search->wanted, (int)wanted_length, candidate, (int)length);
    const int allowed = wanted_length <= 3 ? 1 : wanted_length <= 7 ? 2 : 3;
    if (distance <= allowed && distance < search->distance) {
        search->distance = distance;
        search->best = candidate;
    }
}
