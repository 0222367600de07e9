#include "cli/report/html.h"

#include <stdarg.h>

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
