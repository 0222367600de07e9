#include "cli/report/profile_html.h"

#include <stdlib.h>
#include <string.h>

#include "cli/report/html.h"
#include "cli/report/memory_areas.h"
#include "cli/terminal/messages.h"

const char profile_style[] =
    ".areas{position:relative}.pan{overflow-x:auto;margin-left:5rem}.plot{position:relative;width:100%;height:400px}\n"
    ".plot svg{position:absolute;left:0;top:0;width:100%;height:400px}\n"
    ".zoom input{position:absolute;opacity:0}.zoom label{display:inline-block;padding:.1rem .6rem;margin-right:.3rem;"
    "border:1px solid var(--line);border-radius:.3rem;cursor:pointer}\n"
    ".zoom input:checked+label{background:var(--ink);color:var(--page)}"
    ".zoom input:focus-visible+label{outline:2px solid var(--a)}\n"
    "#zoom-4:checked~.areas .plot{width:400%}#zoom-16:checked~.areas .plot{width:1600%}"
    "#zoom-64:checked~.areas .plot{width:6400%}\n"
    ".areas .tick{position:absolute;left:0;width:4.6rem;text-align:right;font-size:11px;color:var(--soft);"
    "transform:translateY(-50%)}\n"
    ".plot .name{position:absolute;font-size:12px;color:var(--ink);background:var(--page);padding:0 .25rem;"
    "border-radius:.2rem;transform:translateY(-50%);white-space:nowrap;pointer-events:none}\n"
    ".plot .phase{position:absolute;top:0;height:16px;border-left:1px solid var(--soft);font-size:11px;"
    "color:var(--soft);padding-left:3px;overflow:hidden;white-space:nowrap;box-sizing:border-box;pointer-events:none}\n"
    ".area{stroke:var(--page);stroke-width:1;vector-effect:non-scaling-stroke}"
    ".area-line{fill:none;stroke:var(--ink);stroke-width:1;vector-effect:non-scaling-stroke;opacity:.55}\n"
    ".swatch{width:1.6rem;height:1rem;display:inline-block;vertical-align:middle;margin-right:.4rem}\n"
    ":root{--m0:#4477aa;--m1:#66ccee;--m2:#228833;--m3:#ccbb44;--m4:#ee6677;--m5:#aa3377;--m6:#bbbbbb;--m7:#ee8866;"
    "--m8:#44bb99;--m9:#99ddff}\n"
    "@media(prefers-color-scheme:dark){:root{--m0:#5b8fc7;--m1:#3f9fbe;--m2:#3a9a4c;--m3:#a99a2c;--m4:#d05568;"
    "--m5:#b85a93;--m6:#7d8794;--m7:#c96f4e;--m8:#2f9a7e;--m9:#5f9fc4}}\n"
    ".number{text-align:right;white-space:nowrap}.word{white-space:nowrap}\n";

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* Something with a size or a duration, of which the largest are shown. */
typedef struct entry {
    const void *of;
    int64_t index;
    double amount, count;
} entry;

static int larger_first(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->amount != y->amount) { return x->amount > y->amount ? -1 : 1; }
    return (x->index > y->index) - (x->index < y->index);
}

static void put_cell(text_buffer *out, const char *text) {
    text_puts(out, "<td>");
    html_text(out, text);
    text_puts(out, "</td>");
}

static void put_word(text_buffer *out, const char *word) { text_format(out, "<td class=\"word\">%s</td>", word); }

static void put_number(text_buffer *out, const char *text) { text_format(out, "<td class=\"number\">%s</td>", text); }

static void put_share(text_buffer *out, double part, double all) {
    text_format(out, "<td class=\"number\">%.1f%%</td></tr>\n", all > 0 ? 100 * part / all : 0.0);
}

static void put_composition(const profile *p, text_buffer *out) {
    const live_memory *m = &p->memory;
    const double all = (double)m->total[m->peak_event];
    text_puts(out, "<div><h2>At the peak</h2><table>\n");
    for (int r = m->n_rows - 1; r >= 0; r--) {
        const int64_t bytes = m->rows[r].bytes[m->peak_event];
        if (bytes == 0) { continue; }
        text_puts(out, "<tr><td>");
        memory_areas_swatch(m, r, out);
        html_text(out, m->rows[r].name);
        text_puts(out, "</td>");
        put_number(out, size_text(bytes).text);
        put_share(out, (double)bytes, all);
    }
    text_puts(out, "</table></div>\n");
}

enum { MOST_ROWS = 16 };

static void put_tensor(const qrun_timeline *t, const qrun_timeline_tensor *tensor, int32_t layer, double all,
                       text_buffer *out) {
    text_puts(out, "<tr>");
    put_cell(out, tensor->name);
    put_word(out, t->memory[tensor->category].category);
    text_puts(out, "<td class=\"number\">");
    if (layer >= 0) { text_format(out, "layer %d", (int)layer); }
    text_puts(out, "</td>");
    put_number(out, size_text(tensor->bytes).text);
    put_share(out, (double)tensor->bytes, all);
}

/* Of what is there at the peak: tensors that live then, and those that are held. */
static void put_largest(const profile *p, text_buffer *out) {
    const qrun_timeline *t = &p->timeline;
    const size_t most = (size_t)t->n_lives + (size_t)t->n_tensors + 1;
    entry *entries = allocate(most * sizeof *entries);
    size_t n = 0;
    for (int64_t i = 0; i < t->n_lives; i++) {
        const qrun_timeline_life *life = &t->lives[i];
        if (!life_covers(life, p->memory.peak_event)) { continue; }
        entries[n++] = (entry){.of = life, .index = i, .amount = (double)t->tensors[life->tensor].bytes};
    }
    for (int32_t i = 0; i < t->n_tensors; i++) {
        if (t->tensors[i].lives) { continue; }
        entries[n++] = (entry){.index = i, .amount = (double)t->tensors[i].bytes};
    }
    qsort(entries, n, sizeof *entries, larger_first);
    text_puts(out, "<div><h2>Largest tensors at the peak</h2><table>\n");
    for (size_t i = 0; i < n && i < MOST_ROWS; i++) {
        const qrun_timeline_life *life = entries[i].of;
        const qrun_timeline_tensor *tensor = &t->tensors[life != NULL ? life->tensor : (int32_t)entries[i].index];
        put_tensor(t, tensor, life != NULL ? life->layer : tensor->layer, (double)p->memory.total[p->memory.peak_event],
                   out);
    }
    text_puts(out, "</table></div>\n");
    free(entries);
}

static int32_t count_layers(const qrun_timeline *t) {
    int32_t n = 0;
    for (int64_t e = 0; e < t->n_events; e++) { n = t->events[e].layer >= n ? t->events[e].layer + 1 : n; }
    return n;
}

/* What each layer's forward pass leaves for its backward pass: at most, of all micro-batches. */
static void put_kept(const profile *p, text_buffer *out) {
    const qrun_timeline *t = &p->timeline;
    const int32_t n_layers = count_layers(t);
    int64_t *now = allocate(((size_t)t->n_events + 1) * sizeof *now), all = 0;
    text_buffer rows = {0};
    for (int32_t l = -1; l < n_layers; l++) {
        int64_t most = 0;
        memset(now, 0, ((size_t)t->n_events + 1) * sizeof *now);
        for (int64_t i = 0; i < t->n_lives; i++) {
            const qrun_timeline_life *life = &t->lives[i];
            if (!life->kept || life->layer != l) { continue; }
            now[life->first] += t->tensors[life->tensor].bytes;
            now[life->last + 1] -= t->tensors[life->tensor].bytes;
        }
        for (int64_t e = 1; e < t->n_events; e++) { now[e] += now[e - 1]; }
        for (int64_t e = 0; e < t->n_events; e++) { most = now[e] > most ? now[e] : most; }
        if (most == 0) { continue; }
        all += most;
        if (l < 0) {
            text_puts(&rows, "<tr><td>outside of layers</td>");
        } else {
            text_format(&rows, "<tr><td>layer %d</td>", (int)l);
        }
        put_number(&rows, size_text(most).text);
        text_puts(&rows, "</tr>\n");
    }
    free(now);
    if (all > 0) {
        text_puts(out, "<div><h2>Kept for the backward pass</h2><table>\n");
        text_append(out, rows.data, rows.size);
        text_puts(out, "</table></div>\n");
    }
    text_free(&rows);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static double seconds_of_all(const qrun_phases *p) {
    return p->data + p->forward + p->loss + p->backward + p->recompute + p->optimizer + p->prefill + p->decode +
           p->sample + p->copies + p->waiting + p->other;
}

static void put_phases(const profile *p, text_buffer *out) {
    const qrun_phases *s = &p->timeline.phases;
    const struct {
        const char *name;
        double seconds;
    } phases[] = {{"data", s->data},         {"forward", s->forward},     {"loss", s->loss},
                  {"backward", s->backward}, {"recompute", s->recompute}, {"optimizer", s->optimizer},
                  {"prefill", s->prefill},   {"decode", s->decode},       {"sample", s->sample},
                  {"copies", s->copies},     {"waiting", s->waiting},     {"other", s->other}};
    text_puts(out, "<div><h2>Time by phase</h2><table>\n");
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
        if (!(phases[i].seconds > 0)) { continue; }
        text_format(out, "<tr><td>%s</td><td class=\"number\">%.3f ms</td>", phases[i].name, 1e3 * phases[i].seconds);
        put_share(out, phases[i].seconds, seconds_of_all(s));
    }
    text_puts(out, "</table></div>\n");
}

static bool same_op(const qrun_timeline_event *a, const qrun_timeline_event *b) {
    return strcmp(a->name, b->name) == 0 && strcmp(a->spent_on, b->spent_on) == 0;
}

/* Ops by name and phase: few, so a list is searched. */
static void put_ops(const profile *p, text_buffer *out) {
    enum { MOST_KINDS = 256 };
    const qrun_timeline *t = &p->timeline;
    entry kinds[MOST_KINDS];
    size_t n = 0;
    double all = 0;
    for (int64_t e = 0; e < t->n_events; e++) {
        const qrun_timeline_event *event = &t->events[e];
        size_t k = 0;
        while (k < n && !same_op(kinds[k].of, event)) { k++; }
        if (k == MOST_KINDS) { k--; }
        if (k == n) { kinds[n++] = (entry){.of = event, .index = e}; }
        kinds[k].amount += event->seconds;
        kinds[k].count++;
        all += event->seconds;
    }
    qsort(kinds, n, sizeof *kinds, larger_first);
    text_puts(out, "<div><h2>Time by op</h2><table>\n");
    for (size_t i = 0; i < n && i < MOST_ROWS; i++) {
        const qrun_timeline_event *event = kinds[i].of;
        text_puts(out, "<tr>");
        put_word(out, event->name);
        put_word(out, event->spent_on);
        text_format(out, "<td class=\"number\">%.0f calls</td><td class=\"number\">%.3f ms</td>", kinds[i].count,
                    1e3 * kinds[i].amount);
        put_share(out, kinds[i].amount, all);
    }
    text_puts(out, "</table></div>\n");
}

/* ---- The section ------------------------------------------------------------------------------------------------- */

static void put_words(const profile *p, text_buffer *out) {
    const live_memory *m = &p->memory;
    const qrun_timeline_event *peak = &p->timeline.events[m->peak_event];
    text_format(out, "<p>At most %s are needed at once, of %s that are planned: at %s",
                size_text(m->total[m->peak_event]).text, size_text(m->planned_bytes).text, peak->name);
    if (peak->layer >= 0) { text_format(out, " in layer %d", (int)peak->layer); }
    text_format(out, ", %s. Sizes are those of the plan, whatever a batch uses of them.", peak->phase);
    if (p->timeline.n_dropped > 0) {
        text_format(out, " The first %lld events are shown; there were %lld more.", (long long)p->timeline.n_events,
                    (long long)p->timeline.n_dropped);
    }
    text_puts(out, "</p>\n");
}

void profile_html(const profile *p, text_buffer *out) {
    if (!p->taken || p->memory.peak_event < 0) { return; }
    text_puts(out, "<h2>Memory over time");
    if (p->step > 0) { text_format(out, ", in step %lld", (long long)p->step); }
    text_puts(out, "</h2>\n");
    put_words(p, out);
    memory_areas_html(&p->timeline, &p->memory, out);
    text_puts(out, "<div class=\"tables\">\n");
    put_composition(p, out);
    put_largest(p, out);
    put_kept(p, out);
    put_phases(p, out);
    put_ops(p, out);
    text_puts(out, "</div>\n");
}

int profile_write_page(const profile *p, const char *title) {
    text_buffer page = {0};
    if (!p->taken) { return EXIT_OK; }
    html_page_begin(&page, title, profile_style);
    profile_html(p, &page);
    text_puts(&page, "</body>\n</html>\n");
    return profile_write(p, "report.html", &page);
}
