#include "cli/report/chart.h"

#include <math.h>

#include "cli/report/html.h"

enum { WIDTH = 640, HEIGHT = 220, LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 34, TICKS = 5 };

typedef struct range {
    double low, high;
} range;

typedef struct frame {
    range x, y;
} frame;

static void widen(range *r, double value) {
    if (!isfinite(value)) { return; }
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

/* The distance of ticks: 1, 2 or 5 times a power of ten, about `n` of them in the range. */
static double tick_distance(range r, int n) {
    const double rough = (r.high - r.low) / n;
    const double power = pow(10, floor(log10(rough)));
    const double digit = rough / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

/* False where no point of the chart has a value. */
static bool find_frame(const chart *c, frame *f) {
    *f = (frame){{INFINITY, -INFINITY}, {INFINITY, -INFINITY}};
    for (int s = 0; s < c->n_series; s++) {
        for (int64_t i = 0; i < c->series[s].n; i++) {
            if (!isfinite(c->series[s].y[i])) { continue; }
            widen(&f->x, c->series[s].x[i]);
            widen(&f->y, c->series[s].y[i]);
        }
    }
    if (!(f->y.low <= f->y.high)) { return false; }
    if (c->from_zero) { widen(&f->y, 0); }
    if (f->x.low == f->x.high) { f->x.high += 1; }
    if (f->y.high - f->y.low <= 1e-9 * fabs(f->y.high)) { f->y.high += f->y.high != 0 ? 0.5 * fabs(f->y.high) : 1; }
    const double distance = tick_distance(f->y, TICKS);
    f->y.low = distance * floor(f->y.low / distance);
    f->y.high = distance * ceil(f->y.high / distance);
    return true;
}

static double place_x(const frame *f, double x) {
    return LEFT + (x - f->x.low) / (f->x.high - f->x.low) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const frame *f, double y) {
    return HEIGHT - BOTTOM - (y - f->y.low) / (f->y.high - f->y.low) * (HEIGHT - TOP - BOTTOM);
}

static void put_axes(const frame *f, text_buffer *out) {
    const double y_distance = tick_distance(f->y, TICKS);
    for (int i = 0; f->y.low + i * y_distance <= f->y.high + 0.01 * y_distance; i++) {
        const double value = fabs(f->y.low + i * y_distance) < 1e-6 * y_distance ? 0 : f->y.low + i * y_distance;
        const double at = place_y(f, value);
        text_format(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, at, WIDTH - RIGHT);
        text_format(out, "<text class=\"axis\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", LEFT - 6, at + 4,
                    value);
    }
    const double x_distance = fmax(1, tick_distance(f->x, 2 * TICKS));
    for (double x = x_distance * ceil(f->x.low / x_distance); x <= f->x.high; x += x_distance) {
        text_format(out, "<text class=\"axis\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                    place_x(f, x), HEIGHT - BOTTOM + 16, x);
    }
    text_format(out, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"end\">step</text>\n", WIDTH - RIGHT,
                HEIGHT - 4);
}

static void put_line(const chart_series *s, const frame *f, text_buffer *out) {
    const int64_t stretch = (s->n + CHART_POINTS_MAX - 1) / CHART_POINTS_MAX;
    bool drawing = false;
    text_format(out, "<path class=\"line %s\" d=\"", s->style);
    for (int64_t begin = 0; begin < s->n; begin += stretch) {
        double x_sum = 0, y_sum = 0;
        int64_t count = 0;
        for (int64_t i = begin; i < begin + stretch && i < s->n; i++) {
            if (!isfinite(s->y[i])) { continue; }
            x_sum += s->x[i];
            y_sum += s->y[i];
            count++;
        }
        if (count > 0) {
            text_format(out, "%c%.1f %.1f", drawing ? 'L' : 'M', place_x(f, x_sum / (double)count),
                        place_y(f, y_sum / (double)count));
        }
        drawing = count > 0;
    }
    text_puts(out, "\"/>\n");
}

static void put_dots(const chart_series *s, const frame *f, text_buffer *out) {
    for (int64_t i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i])) { continue; }
        text_format(out, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", s->style,
                    place_x(f, s->x[i]), place_y(f, s->y[i]));
    }
}

/* The last value of a series between two steps, with its name. */
static void put_value(const chart_series *s, double from, double limit, text_buffer *out) {
    int64_t found = -1;
    for (int64_t low = 0, high = s->n; low < high;) { /* the last one before `limit` */
        const int64_t middle = low + (high - low) / 2;
        if (s->x[middle] < limit) {
            found = middle;
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (found < 0 || s->x[found] < from || !isfinite(s->y[found])) { return; }
    text_puts(out, "\n");
    if (s->name != NULL) {
        html_text(out, s->name);
        text_puts(out, ": ");
    }
    text_format(out, "%.6g", s->y[found]);
}

/* Values under the pointer: a column for each stretch of the longest series, with what all series have there. */
static void put_columns(const chart *c, const frame *f, text_buffer *out) {
    const chart_series *longest = &c->series[0];
    for (int s = 1; s < c->n_series; s++) {
        if (c->series[s].n > longest->n) { longest = &c->series[s]; }
    }
    const int64_t stretch = (longest->n + CHART_COLUMNS_MAX - 1) / CHART_COLUMNS_MAX;
    double left = LEFT;
    for (int64_t i = 0; i < longest->n; i += stretch) {
        const int64_t end = i + stretch < longest->n ? i + stretch : longest->n;
        const double x = longest->x[end - 1], limit = end < longest->n ? (x + longest->x[end]) / 2 : INFINITY;
        const double from = i > 0 ? (longest->x[i - 1] + longest->x[i]) / 2 : -INFINITY;
        const double right = isfinite(limit) ? place_x(f, limit) : WIDTH - RIGHT;
        text_format(out, "<rect class=\"column\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"><title>step %.10g",
                    left, TOP, fmax(right - left, 0), HEIGHT - TOP - BOTTOM, x);
        for (int s = 0; s < c->n_series; s++) { put_value(&c->series[s], from, limit, out); }
        text_puts(out, "</title></rect>\n");
        left = right;
    }
}

static void put_legend(const chart *c, text_buffer *out) {
    for (int s = 0; s < c->n_series; s++) {
        if (c->series[s].name == NULL || c->series[s].n == 0) { continue; }
        text_format(out, " <span class=\"key %s\">", c->series[s].style);
        html_text(out, c->series[s].name);
        text_puts(out, "</span>");
    }
}

void chart_svg(const chart *c, text_buffer *out) {
    frame f;
    if (!find_frame(c, &f)) { return; }
    text_puts(out, "<figure><figcaption>");
    html_text(out, c->title);
    put_legend(c, out);
    text_format(out, "</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    html_text(out, c->title);
    text_puts(out, "\">\n");
    put_axes(&f, out);
    for (int s = 0; s < c->n_series; s++) {
        put_line(&c->series[s], &f, out);
        if (c->series[s].dots || c->series[s].n == 1) { put_dots(&c->series[s], &f, out); }
    }
    put_columns(c, &f, out);
    text_puts(out, "</svg></figure>\n");
}
