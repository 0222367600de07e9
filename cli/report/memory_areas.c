#include "cli/report/memory_areas.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/html.h"
#include "cli/terminal/messages.h"

/* In units of the SVG, which is WIDTH wide however far it is stretched and as high in pixels. */
enum { WIDTH = 1000, HEIGHT = 400, TOP = 18, COLUMNS_MAX = 1000, TICKS = 5, N_STYLES = 10 };

/* Lines of a texture lie flat: stretching the picture sideways leaves them as they are. */
static const struct {
    int distance, thickness;
} textures[N_STYLES] = {{0, 0}, {4, 1}, {8, 1}, {6, 3}, {12, 2}, {3, 1}, {10, 5}, {16, 1}, {5, 2}, {20, 8}};

static int style_of(int row) { return row % N_STYLES; }

/* ---- Columns ----------------------------------------------------------------------------------------------------- */

/* The events that are drawn: of those in one column the one with the most memory, so that no peak is lost. */
typedef struct columns {
    int64_t event[COLUMNS_MAX];
    double x[COLUMNS_MAX + 1]; /* where each begins; the last: where the picture ends */
    int n;
} columns;

static double end_of(const qrun_timeline *t) {
    double end = 0;
    for (int64_t e = 0; e < t->n_events; e++) { end = fmax(end, t->events[e].begin + t->events[e].seconds); }
    return end > 0 ? end : 1;
}

static void choose_columns(const qrun_timeline *t, const live_memory *m, columns *c) {
    const double end = end_of(t);
    int last = -1;
    c->n = 0;
    for (int64_t e = 0; e < t->n_events; e++) {
        const double x = fmin(fmax(t->events[e].begin / end, 0), 1) * WIDTH;
        const int column = (int)fmin(x * COLUMNS_MAX / WIDTH, COLUMNS_MAX - 1);
        if (column > last) {
            c->event[c->n] = e;
            c->x[c->n++] = x;
            last = column;
        } else if (m->total[e] > m->total[c->event[c->n - 1]]) {
            c->event[c->n - 1] = e;
        }
    }
    c->x[0] = 0;
    c->x[c->n] = WIDTH;
}

/* ---- Areas ------------------------------------------------------------------------------------------------------- */

typedef struct picture {
    const live_memory *m;
    columns c;
    double high; /* bytes at the top */
} picture;

static double place_y(const picture *p, double bytes) { return HEIGHT - bytes / p->high * (HEIGHT - TOP); }

/* Of the rows below `row`, at a column. */
static int64_t below(const picture *p, int row, int column) {
    int64_t bytes = 0;
    for (int r = 0; r < row; r++) { bytes += p->m->rows[r].bytes[p->c.event[column]]; }
    return bytes;
}

/* A staircase from left to right, or back. */
static void put_stairs(const picture *p, int row, bool back, text_buffer *out) {
    double last = NAN;
    for (int i = 0; i < p->c.n; i++) {
        const int column = back ? p->c.n - 1 - i : i;
        const double y = place_y(p, (double)below(p, row, column));
        const double begin = back ? p->c.x[column + 1] : p->c.x[column];
        if (y == last) { continue; }
        text_format(out, "%s%.1f%s%.1f", i == 0 ? (back ? "L" : "M") : "H", begin, i == 0 ? " " : "V", y);
        last = y;
    }
    text_format(out, "H%.1f", back ? 0.0 : (double)WIDTH);
}

static bool is_empty(const picture *p, int row) {
    for (int column = 0; column < p->c.n; column++) {
        if (p->m->rows[row].bytes[p->c.event[column]] > 0) { return false; }
    }
    return true;
}

static void put_areas(const picture *p, text_buffer *out) {
    for (int row = 0; row < p->m->n_rows; row++) {
        if (is_empty(p, row)) { continue; }
        text_format(out, "<path class=\"area\" fill=\"url(#texture-%d)\" d=\"", style_of(row));
        put_stairs(p, row + 1, false, out);
        put_stairs(p, row, true, out);
        text_puts(out, "Z\"><title>");
        html_text(out, p->m->rows[row].name);
        text_puts(out, "</title></path>\n<path class=\"area-line\" d=\"");
        put_stairs(p, row + 1, false, out);
        text_puts(out, "\"/>\n");
    }
}

static void put_textures(text_buffer *out) {
    text_puts(out, "<defs>\n");
    for (int s = 0; s < N_STYLES; s++) {
        const int distance = textures[s].distance > 0 ? textures[s].distance : 8;
        text_format(out,
                    "<pattern id=\"texture-%d\" width=\"8\" height=\"%d\" patternUnits=\"userSpaceOnUse\">"
                    "<rect width=\"8\" height=\"%d\" fill=\"var(--m%d)\"/>",
                    s, distance, distance, s);
        if (textures[s].thickness > 0) {
            text_format(out, "<rect width=\"8\" height=\"%d\" fill=\"var(--page)\" opacity=\".55\"/>",
                        textures[s].thickness);
        }
        text_puts(out, "</pattern>\n");
    }
    text_puts(out, "</defs>\n");
}

void memory_areas_swatch(const live_memory *memory, int row, text_buffer *out) {
    (void)memory;
    text_format(out,
                "<svg class=\"swatch\" viewBox=\"0 0 26 16\"><rect width=\"26\" height=\"16\" "
                "fill=\"url(#texture-%d)\" stroke=\"var(--soft)\"/></svg>",
                style_of(row));
}

/* ---- Names, phases, sizes ---------------------------------------------------------------------------------------- */

/* Each where its row is highest, if there is room for it. */
static void put_names(const picture *p, text_buffer *out) {
    enum { LINE = 18 };
    double last_y = -LINE, shift = 0;
    for (int row = 0; row < p->m->n_rows; row++) {
        int best = 0;
        for (int column = 0; column < p->c.n; column++) {
            const int64_t *bytes = p->m->rows[row].bytes;
            if (bytes[p->c.event[column]] > bytes[p->c.event[best]]) { best = column; }
        }
        const double upper = place_y(p, (double)below(p, row + 1, best));
        const double lower = place_y(p, (double)below(p, row, best));
        if (lower - upper < LINE) { continue; }
        shift = fabs((upper + lower) / 2 - last_y) < LINE ? shift + 0.09 : 0; /* beside what it would cover */
        last_y = (upper + lower) / 2;
        text_format(out, "<span class=\"name\" style=\"left:%.2f%%;top:%.0fpx\">",
                    100 * fmin(p->c.x[best] / WIDTH + shift, .85), (upper + lower) / 2);
        html_text(out, p->m->rows[row].name);
        text_puts(out, "</span>\n");
    }
}

/* What narrows to nothing gets no name: the trace has it. */
static void put_phases(const qrun_timeline *t, text_buffer *out) {
    const double end = end_of(t);
    for (int64_t i = 0, next; i < t->n_events; i = next) {
        const char *phase = t->events[i].phase;
        for (next = i + 1; next < t->n_events && strcmp(t->events[next].phase, phase) == 0; next++) {}
        const double begin = t->events[i].begin / end;
        const double width = (next < t->n_events ? t->events[next].begin / end : 1) - begin;
        if (width < 0.004) { continue; }
        text_format(out, "<span class=\"phase\" style=\"left:%.3f%%;width:%.3f%%\">%s</span>\n", 100 * begin,
                    100 * width, phase);
    }
}

static void put_ticks(const picture *p, text_buffer *out) {
    for (int i = 0; i <= TICKS; i++) {
        const double bytes = p->high * i / TICKS;
        text_format(out, "<span class=\"tick\" style=\"top:%.0fpx\">%s</span>\n", place_y(p, bytes),
                    size_text((int64_t)bytes).text);
    }
}

/* Under the pointer, what there is at an event. */
static void put_columns(const picture *p, const qrun_timeline *t, text_buffer *out) {
    enum { SHOWN_MAX = 250 };
    const int distance = (p->c.n + SHOWN_MAX - 1) / SHOWN_MAX;
    for (int first = 0; first < p->c.n; first += distance) {
        int shown = first;
        const int end = first + distance < p->c.n ? first + distance : p->c.n;
        for (int i = first; i < end; i++) {
            if (p->m->total[p->c.event[i]] > p->m->total[p->c.event[shown]]) { shown = i; }
        }
        const int64_t event = p->c.event[shown];
        const qrun_timeline_event *e = &t->events[event];
        text_format(out, "<rect class=\"column\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>%.3f ms: %s",
                    p->c.x[first], TOP, p->c.x[end] - p->c.x[first], HEIGHT - TOP, 1e3 * e->begin, e->name);
        if (e->layer >= 0) { text_format(out, ", layer %d", (int)e->layer); }
        text_format(out, ", %s\n%s in all", e->phase, size_text(p->m->total[event]).text);
        for (int r = p->m->n_rows - 1; r >= 0; r--) {
            const int64_t bytes = p->m->rows[r].bytes[event];
            if (bytes > 0) { text_format(out, "\n%s %s", p->m->rows[r].name, size_text(bytes).text); }
        }
        text_puts(out, "</title></rect>\n");
    }
}

static void put_zoom(text_buffer *out) {
    static const int factors[] = {1, 4, 16, 64};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        text_format(out, "<input type=\"radio\" name=\"zoom\" id=\"zoom-%d\"%s><label for=\"zoom-%d\">%d×</label>\n",
                    factors[i], i == 0 ? " checked" : "", factors[i], factors[i]);
    }
}

void memory_areas_html(const qrun_timeline *timeline, const live_memory *memory, text_buffer *out) {
    if (timeline->n_events == 0) { return; }
    picture *p = allocate(sizeof *p);
    *p = (picture){.m = memory, .high = (double)memory->total[memory->peak_event]};
    if (p->high <= 0) { p->high = 1; }
    choose_columns(timeline, memory, &p->c);
    text_puts(out, "<div class=\"zoom\">\n");
    put_zoom(out);
    text_puts(out, "<div class=\"areas\">\n");
    put_ticks(p, out);
    text_puts(out, "<div class=\"pan\" tabindex=\"0\"><div class=\"plot\">\n");
    text_format(out,
                "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" "
                "aria-label=\"Live memory by category over time\">\n",
                WIDTH, HEIGHT);
    put_textures(out);
    put_areas(p, out);
    put_columns(p, timeline, out);
    text_puts(out, "</svg>\n");
    put_names(p, out);
    put_phases(timeline, out);
    text_puts(out, "</div></div></div></div>\n");
    free(p);
}
