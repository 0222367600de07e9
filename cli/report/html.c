#include "cli/report/html.h"

#include <stdarg.h>

static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--page:#fff;--a:#1f6feb;--b:#d9480f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e3e8ef;--soft:#9aa6b5;--line:#333d4a;--page:#12161c;--a:#6cb0ff;"
    "--b:#ff9a5c}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1360px;margin:2rem auto;"
    "padding:0 1rem}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:1.5rem 0 .3rem}p{color:var(--soft);margin:.2rem 0 1rem}\n"
    ".charts,.tables{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem 2rem}\n"
    "figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;display:block}\n"
    ".grid{stroke:var(--line);fill:none}.axis{fill:var(--soft);font-size:11px}\n"
    ".line{fill:none;stroke-width:1.6;stroke-linejoin:round}\n"
    ".column{fill:transparent}.column:hover{fill:var(--line);opacity:.35}\n"
    ".main{stroke:var(--a);color:var(--a)}.faint{stroke:var(--a);color:var(--a);opacity:.35}"
    ".eval{stroke:var(--b);color:var(--b)}.dot{fill:currentColor}\n"
    ".key{font-weight:400;font-size:.85rem;margin-left:.8rem}\n"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.15rem .6rem .15rem 0;"
    "border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}td{white-space:pre-wrap}\n"
    "th{font-weight:400;color:var(--soft);white-space:nowrap}.sample{margin-bottom:1rem}.sample th{width:5rem}\n";

void html_text(text_buffer *out, const char *s) {
    for (; *s != '\0'; s++) {
        switch (*s) {
            case '&': text_puts(out, "&amp;"); break;
            case '<': text_puts(out, "&lt;"); break;
            case '>': text_puts(out, "&gt;"); break;
            case '"': text_puts(out, "&quot;"); break;
            default: text_append(out, (unsigned char)*s < 0x20U && *s != '\n' ? " " : s, 1); break;
        }
    }
}

void html_row(text_buffer *out, const char *name, const char *format, ...) {
    text_buffer value = {0};
    va_list arguments;
    va_start(arguments, format);
    text_format_list(&value, format, arguments);
    va_end(arguments);
    html_row_text(out, name, value.data != NULL ? value.data : "");
    text_free(&value);
}

void html_row_text(text_buffer *out, const char *name, const char *value) {
    text_puts(out, "<tr><th>");
    html_text(out, name);
    text_puts(out, "</th><td>");
    html_text(out, value);
    text_puts(out, "</td></tr>\n");
}

void html_page_begin(text_buffer *out, const char *title, const char *more_style) {
    text_puts(out, "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">"
                   "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    html_text(out, title);
    text_puts(out, "</title>\n<style>\n");
    text_puts(out, style);
    text_puts(out, more_style);
    text_puts(out, "</style></head>\n<body>\n<h1>");
    html_text(out, title);
    text_puts(out, "</h1>\n");
}
