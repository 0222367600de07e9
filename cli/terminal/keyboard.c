#include "cli/terminal/keyboard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"

typedef enum escape_state { ESCAPE_NONE, ESCAPE_BEGAN, ESCAPE_SEQUENCE } escape_state;

static struct {
    volatile sig_atomic_t open, brackets_paste, stopped;
    struct termios usual, raw;
    char input[4096]; /* read, and not yet part of a line */
    size_t at, end;
    escape_state escape;
} keyboard;

/* Safe in a signal handler, and past the filter of printable.h. */
static void put_paste_brackets(bool on) {
    static const char sequences[2][9] = {"\033[?2004l", "\033[?2004h"};
    if (write(STDOUT_FILENO, sequences[on], sizeof sequences[0] - 1) < 0) { return; /* the terminal is gone */ }
}

void keyboard_bracket_paste(bool on) {
    keyboard.brackets_paste = on;
    put_paste_brackets(on);
}

void keyboard_restore(void) {
    if (keyboard.open == 0) { return; }
    if (keyboard.brackets_paste != 0) { put_paste_brackets(false); }
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &keyboard.usual);
}

void keyboard_take(void) {
    if (keyboard.open != 0) { (void)tcsetattr(STDIN_FILENO, TCSANOW, &keyboard.raw); }
}

bool keyboard_was_stopped(void) {
    const bool stopped = keyboard.stopped != 0;
    keyboard.stopped = 0;
    return stopped;
}

/* ---- Signals that stop or end the program ------------------------------------------------------------------------ */

/* Ctrl-Z: the shell gets its terminal, and whoever comes back to us finds ours: raw, or as the line editor had it. */
static void on_stop(int number) {
    const int error_number = errno;
    struct termios ours = keyboard.raw;
    (void)number;
    (void)tcgetattr(STDIN_FILENO, &ours);
    keyboard_restore();
    (void)kill(getpid(), SIGSTOP);
    if (keyboard.open != 0) { (void)tcsetattr(STDIN_FILENO, TCSANOW, &ours); }
    if (keyboard.brackets_paste != 0) { put_paste_brackets(true); }
    keyboard.stopped = 1;
    errno = error_number;
}

/* The handler is gone when this one is called (SA_RESETHAND): raised again, the signal does what it usually does. */
static void on_fatal(int number) {
    keyboard_restore();
    (void)raise(number);
}

/* Handlers of others, such as a sanitizer's, stay. */
static void handle_where_usual(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    if (sigaction(number, NULL, &action) != 0 || action.sa_handler != SIG_DFL) { return; }
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

bool keyboard_open(void) {
    static const int fatal[] = {SIGQUIT, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    if (!terminal_is(stdin) || !terminal_is(stdout) || tcgetattr(STDIN_FILENO, &keyboard.usual) != 0) { return false; }
    keyboard.raw = keyboard.usual;
    keyboard.raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ECHOE | ECHOK | ECHONL);
    keyboard.raw.c_cc[VMIN] = 1;
    keyboard.raw.c_cc[VTIME] = 0;
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        handle_where_usual(fatal[i], on_fatal, (int)SA_RESETHAND);
    }
    handle_where_usual(SIGTSTP, on_stop, SA_RESTART);
    (void)atexit(keyboard_close);
    keyboard.open = 1;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &keyboard.raw) != 0) { keyboard.open = 0; }
    return keyboard.open != 0;
}

void keyboard_close(void) {
    keyboard_restore();
    keyboard.open = 0;
}

/* ---- Editing ----------------------------------------------------------------------------------------------------- */

static bool is_key(unsigned char byte, int which) {
    const cc_t key = keyboard.usual.c_cc[which];
    return key != (cc_t)_POSIX_VDISABLE && byte == key;
}

static void erase_character(text_buffer *line) {
    if (line->size == 0) { return; }
    do { line->size--; } while (line->size > 0 && ((unsigned char)line->data[line->size] & 0xC0U) == 0x80U);
    line->data[line->size] = '\0';
    terminal_erase_column(stdout);
}

static bool ends_in_blank(const text_buffer *line) {
    return line->size > 0 && (line->data[line->size - 1] == ' ' || line->data[line->size - 1] == '\t');
}

static void erase_word(text_buffer *line) {
    while (ends_in_blank(line)) { erase_character(line); }
    while (line->size > 0 && !ends_in_blank(line)) { erase_character(line); }
}

/* Cursor keys and their like send ESC and what belongs to it, none of which is text. */
static bool is_of_escape(unsigned char byte) {
    const escape_state was = keyboard.escape;
    if (was == ESCAPE_BEGAN) {
        keyboard.escape = byte == '[' || byte == 'O' ? ESCAPE_SEQUENCE : ESCAPE_NONE;
    } else if (was == ESCAPE_SEQUENCE) {
        keyboard.escape = byte >= 0x40U && byte <= 0x7EU ? ESCAPE_NONE : ESCAPE_SEQUENCE;
    } else if (byte == 0x1BU) {
        keyboard.escape = ESCAPE_BEGAN;
    }
    return was != ESCAPE_NONE || keyboard.escape != ESCAPE_NONE;
}

static void take_key(text_buffer *line, unsigned char byte) {
    const char c = (char)byte;
    if (is_of_escape(byte)) { return; }
    if (is_key(byte, VERASE) || byte == '\b' || byte == 0x7FU) {
        erase_character(line);
    } else if (is_key(byte, VWERASE)) {
        erase_word(line);
    } else if (is_key(byte, VKILL)) {
        while (line->size > 0) { erase_character(line); }
    } else if (byte >= 0x20U || byte == '\t') {
        text_append(line, &c, 1);
        putchar(byte == '\t' ? ' ' : byte);
    }
}

keyboard_event keyboard_read(text_buffer *line) {
    text_clear(line);
    text_append(line, "", 0);
    for (;;) {
        while (keyboard.at < keyboard.end) {
            const unsigned char byte = (unsigned char)keyboard.input[keyboard.at++];
            if (byte == '\n' || byte == '\r') {
                putchar('\n');
                return KEYBOARD_LINE;
            }
            if (is_key(byte, VEOF) && line->size == 0) { return KEYBOARD_END; }
            if (!is_key(byte, VEOF)) { take_key(line, byte); }
        }
        fflush(stdout);
        const ssize_t n = interrupted() ? -1 : read(STDIN_FILENO, keyboard.input, sizeof keyboard.input);
        keyboard.at = 0;
        keyboard.end = n > 0 ? (size_t)n : 0;
        if (n > 0) { continue; }
        keyboard.escape = ESCAPE_NONE;
        return interrupted() ? KEYBOARD_INTERRUPTED : KEYBOARD_END;
    }
}
