#include "cli/terminal/line_editor.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"

enum { HISTORY_LINES = 1000, INPUT_BYTES = 4096, WAIT_MILLISECONDS = 250 };

static struct {
    EditLine *edit;
    HistoryW *history;
    FILE *screen; /* past the filter of printable.h: libedit shows control characters as ^X itself */
    locale_t utf8;
    const char *const *words;
    text_buffer prompt;
    wchar_t *shown_prompt;
    char input[INPUT_BYTES]; /* read, and not yet part of a line */
    size_t at, end;
    keyboard_event event; /* why reading ended before a line was complete */
    volatile sig_atomic_t resized;
} editor;

/* ---- UTF-8 and wide characters ----------------------------------------------------------------------------------- */

static wchar_t decode(const char *bytes, size_t length) {
    const unsigned char *s = (const unsigned char *)bytes;
    if (length == 1) { return (wchar_t)s[0]; }
    unsigned value = s[0] & (length == 2 ? 0x1FU : length == 3 ? 0x0FU : 0x07U);
    for (size_t i = 1; i < length; i++) { value = value << 6 | (s[i] & 0x3FU); }
    return (wchar_t)value;
}

static void append_wide(text_buffer *t, wchar_t wide) {
    const unsigned c = (unsigned)wide;
    char bytes[4];
    size_t length = c < 0x80U ? 1 : c < 0x800U ? 2 : c < 0x10000U ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) { bytes[i] = (char)(0x80U | (c >> (6 * (length - 1 - i)) & 0x3FU)); }
    static const unsigned leads[] = {0, 0, 0xC0U, 0xE0U, 0xF0U};
    bytes[0] = (char)(leads[length] | c >> (6 * (length - 1)));
    text_append(t, bytes, length);
}

/* A new wide text; what is no UTF-8 becomes U+FFFD. */
static wchar_t *widen(const char *text) {
    const size_t n_bytes = strlen(text);
    wchar_t *wide = allocate((n_bytes + 1) * sizeof *wide);
    for (size_t at = 0, n = 0, length; at<n_bytes; at += length> 0 ? length : 1) {
        length = text_character_bytes(text + at, n_bytes - at);
        wide[n++] = length > 0 ? decode(text + at, length) : (wchar_t)0xFFFD;
    }
    return wide;
}

/* ---- Input ------------------------------------------------------------------------------------------------------- */

static void on_resize(int number) {
    (void)number;
    editor.resized = 1;
}

static void redraw_where_needed(void) {
    if (editor.resized == 0 && !keyboard_was_stopped()) { return; }
    editor.resized = 0;
    el_resize(editor.edit);
    (void)el_wset(editor.edit, EL_REFRESH);
}

/* False at the end of the input, and when a signal asks for something: editor.event says which. */
static bool read_more(void) {
    if (editor.at > 0) {
        memmove(editor.input, editor.input + editor.at, editor.end - editor.at);
        editor.end -= editor.at;
        editor.at = 0;
    }
    /* A signal that comes just before the wait is seen after it. */
    for (struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN}; !interrupted();) {
        redraw_where_needed();
        const int n_ready = poll(&input, 1, WAIT_MILLISECONDS);
        if (n_ready == 0 || (n_ready < 0 && errno == EINTR)) { continue; }
        const ssize_t n = read(STDIN_FILENO, editor.input + editor.end, sizeof editor.input - editor.end);
        if (n <= 0) { break; }
        editor.end += (size_t)n;
        return true;
    }
    editor.event = interrupted() ? KEYBOARD_INTERRUPTED : KEYBOARD_END;
    return false;
}

/* One character, for libedit: 1, or −1 where there is no more. */
static int next_character(EditLine *edit, wchar_t *character) {
    (void)edit;
    for (;;) {
        const char *bytes = editor.input + editor.at;
        const size_t n_bytes = editor.end - editor.at;
        const size_t length = n_bytes > 0 ? text_character_bytes(bytes, n_bytes) : 0;
        if (length > 0) {
            editor.at += length;
            *character = decode(bytes, length);
            return 1;
        }
        if (n_bytes > 0 && !(n_bytes < 4 && text_character_begins(bytes, n_bytes))) {
            editor.at++;
            *character = 0xFFFD;
            return 1;
        }
        if (!read_more()) { return -1; }
    }
}

/* ---- Keys of our own --------------------------------------------------------------------------------------------- */

/* Reads up to the mark at the end of what is pasted. */
static void read_paste(EditLine *edit, text_buffer *pasted) {
    static const char mark[] = "\033[201~";
    const size_t mark_bytes = sizeof mark - 1;
    text_append(pasted, "", 0);
    for (wchar_t c; el_wgetc(edit, &c) == 1;) {
        append_wide(pasted, c);
        if (pasted->size < mark_bytes) { continue; }
        char *end = pasted->data + pasted->size - mark_bytes;
        if (memcmp(end, mark, mark_bytes) == 0) {
            *end = '\0';
            return;
        }
    }
}

/* Leaves out control characters, in place. A terminal ends the lines of what is pasted by "\r". */
static size_t clean_paste(wchar_t *text) {
    size_t n = 0;
    for (const wchar_t *c = text; *c != L'\0'; c++) {
        if (*c == L'\r' || *c == L'\n') {
            text[n++] = L'\n';
        } else if ((*c >= 0x20 && *c != 0x7F) || *c == L'\t') {
            text[n++] = *c;
        }
    }
    text[n] = L'\0';
    return n;
}

/* What a terminal sends between ESC [ 2 0 0 ~ and ESC [ 2 0 1 ~. Its line breaks do not end the message. */
static unsigned char insert_paste(EditLine *edit, wint_t key) {
    text_buffer pasted = {0};
    (void)key;
    read_paste(edit, &pasted);
    wchar_t *wide = widen(pasted.data);
    size_t n = clean_paste(wide);
    if (n > 0 && el_winsertstr(edit, wide) != 0) { n = 0; }
    free(wide);
    text_free(&pasted);
    return n > 0 ? CC_REFRESH : CC_ERROR;
}

static unsigned char insert_newline(EditLine *edit, wint_t key) {
    (void)key;
    return el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/* The rest of the one word that begins like the line. */
static unsigned char complete(EditLine *edit, wint_t key) {
    const LineInfoW *line = el_wline(edit);
    text_buffer typed = {0};
    const char *found = NULL;
    bool is_one = true;
    (void)key;
    text_append(&typed, "", 0);
    for (const wchar_t *c = line->buffer; c < line->cursor; c++) { append_wide(&typed, *c); }
    for (const char *const *word = editor.words; *word != NULL && typed.size > 0; word++) {
        if (strncmp(*word, typed.data, typed.size) != 0) { continue; }
        is_one = found == NULL;
        found = *word;
    }
    unsigned char result = CC_ERROR;
    if (found != NULL && is_one && line->cursor == line->lastchar) {
        wchar_t *rest = widen(found + typed.size);
        if (el_winsertstr(edit, rest) == 0 && el_winsertstr(edit, L" ") == 0) { result = CC_REFRESH; }
        free(rest);
    }
    text_free(&typed);
    return result;
}

static wchar_t *prompt_of(EditLine *edit) {
    (void)edit;
    return editor.shown_prompt;
}

static void bind_keys(EditLine *edit) {
    (void)el_wset(edit, EL_ADDFN, L"qrun-paste", L"insert pasted text", insert_paste);
    (void)el_wset(edit, EL_ADDFN, L"qrun-newline", L"insert a line break", insert_newline);
    (void)el_wset(edit, EL_ADDFN, L"qrun-complete", L"complete a command", complete);
    (void)el_wset(edit, EL_BIND, L"\033[200~", L"qrun-paste", NULL);
    (void)el_wset(edit, EL_BIND, L"\033\r", L"qrun-newline", NULL);
    (void)el_wset(edit, EL_BIND, L"\033\n", L"qrun-newline", NULL);
    (void)el_wset(edit, EL_BIND, L"\t", L"qrun-complete", NULL);
    (void)el_wset(edit, EL_BIND, L"^R", L"em-inc-search-prev", NULL);
}

/* ---- Opening, reading, closing ----------------------------------------------------------------------------------- */

static bool make_editor(void) {
    HistEventW event;
    const int descriptor = dup(STDOUT_FILENO);
    editor.screen = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (editor.screen == NULL) { return false; }
    editor.edit = el_init("qrun", stdin, editor.screen, stderr);
    editor.history = history_winit();
    if (editor.edit == NULL || editor.history == NULL) { return false; }
    (void)history_w(editor.history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history_w(editor.history, &event, H_SETUNIQUE, 1);
    (void)el_wset(editor.edit, EL_EDITOR, L"emacs");
    (void)el_wset(editor.edit, EL_GETCFN, next_character);
    (void)el_wset(editor.edit, EL_HIST, history_w, editor.history);
    (void)el_wset(editor.edit, EL_PROMPT_ESC, prompt_of, L'\1');
    bind_keys(editor.edit);
    (void)el_source(editor.edit, NULL); /* ~/.editrc */
    return true;
}

bool line_editor_open(const char *const *words) {
    if (!terminal_is(stdin) || !terminal_redraws(stdout)) { return false; }
    editor.words = words;
    editor.utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (editor.utf8 == (locale_t)0) { return false; }
    const locale_t usual = uselocale(editor.utf8);
    const bool made = make_editor();
    (void)uselocale(usual);
    keyboard_take(); /* making it took the terminal for a moment */
    if (!made) { line_editor_close(); }
    struct sigaction resize;
    memset(&resize, 0, sizeof resize);
    resize.sa_handler = on_resize;
    sigemptyset(&resize.sa_mask);
    if (made) { (void)sigaction(SIGWINCH, &resize, NULL); }
    if (made) { keyboard_bracket_paste(true); } /* to the end: while an answer is written, people type and paste too */
    return made;
}

void line_editor_close(void) {
    if (editor.edit != NULL) { keyboard_bracket_paste(false); }
    if (editor.history != NULL) { history_wend(editor.history); }
    if (editor.edit != NULL) { el_end(editor.edit); }
    if (editor.screen != NULL) { (void)fclose(editor.screen); }
    if (editor.utf8 != (locale_t)0) { freelocale(editor.utf8); }
    free(editor.shown_prompt);
    text_free(&editor.prompt);
    memset(&editor, 0, sizeof editor);
}

/* The blank that ends it comes after the sequence: libedit leaves out one at the very end. */
static void set_prompt(const char *prompt) {
    text_clear(&editor.prompt);
    text_format(&editor.prompt, terminal_colours(stdout) ? "\1\033[1m\1%s\1\033[0m\1 " : "%s ", prompt);
    free(editor.shown_prompt);
    editor.shown_prompt = widen(editor.prompt.data);
}

keyboard_event line_editor_read(const char *prompt, text_buffer *line) {
    int n_characters = 0;
    text_clear(line);
    text_append(line, "", 0);
    set_prompt(prompt);
    fflush(stdout);
    editor.event = KEYBOARD_LINE;
    const locale_t usual = uselocale(editor.utf8);
    const wchar_t *typed = interrupted() ? NULL : el_wgets(editor.edit, &n_characters);
    (void)uselocale(usual);
    keyboard_take();
    if (interrupted()) { return KEYBOARD_INTERRUPTED; }
    if (typed == NULL || n_characters <= 0) { return KEYBOARD_END; }
    if (typed[n_characters - 1] == L'\n') { n_characters--; }
    for (int i = 0; i < n_characters; i++) { append_wide(line, typed[i]); }
    return editor.event;
}

void line_editor_remember(const char *line) {
    HistEventW event;
    if (editor.history == NULL) { return; }
    wchar_t *wide = widen(line);
    (void)history_w(editor.history, &event, H_ENTER, wide);
    free(wide);
}
