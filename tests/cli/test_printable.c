/* The filter of everything that is printed to a terminal. */
#include "check.h"

#include "cli/terminal/printable.h"

/* The text as a terminal gets it. */
static const char *shown(const char *bytes, size_t n_bytes) {
    static char out[4096];
    size_t size = 0;
    printable filter = {{0}, 0};
    for (size_t i = 0; i < n_bytes; i++) { size += printable_take(&filter, (unsigned char)bytes[i], out + size); }
    out[size] = '\0';
    return out;
}

#define SHOWN(text) shown(text, sizeof(text) - 1)
#define R "\xEF\xBF\xBD"

static void test_text_is_unchanged(void) {
    CHECK_STR(SHOWN("a\tb\nc ~"), "a\tb\nc ~");
    CHECK_STR(SHOWN("\xC2\xA0\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xDF\xBF"),
              "\xC2\xA0\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xDF\xBF");
    CHECK_STR(SHOWN("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"), "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF");
}

static void test_controls_are_replaced(void) {
    CHECK_STR(SHOWN("\x1B[31mred\x1B]0;title\x07"), R "[31mred" R "]0;title" R);
    CHECK_STR(SHOWN("a\x7F"
                    "b\bc\x01"
                    "d\0e"),
              "a" R "b" R "c" R "d" R "e");
    CHECK_STR(SHOWN("one\r\ntwo\rthree"), "one\ntwothree");
    /* C1: CSI and OSC in one character each. */
    CHECK_STR(SHOWN("\xC2\x9B"
                    "31m\xC2\x9D"
                    "0;title\xC2\x9C\xC2\x80\xC2\x9F"),
              R "31m" R "0;title" R R R);
}

static void test_bytes_that_are_no_text_are_replaced(void) {
    CHECK_STR(SHOWN("\x9B"
                    "31m\x80\xFF"),
              R "31m" R R);
    CHECK_STR(SHOWN("\xC0\xAF\xE0\x80\xAF"), R R R R R);
    CHECK_STR(SHOWN("\xED\xA0\x80"), R R R);
    CHECK_STR(SHOWN("\xF4\x90\x80\x80\xF5"), R R R R R);
    CHECK_STR(SHOWN("\xE2\x82"
                    "a\xC3\x1B[0m"),
              R "a" R R "[0m");
    CHECK_STR(SHOWN("\xE2\x82\xC2\x9B"
                    "x"),
              R R "x");
}

/* Nothing that a terminal obeys comes out, whatever goes in. */
static void test_no_bytes_come_through(void) {
    uint32_t state = 1;
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[12];
        for (size_t i = 0; i < sizeof bytes; i++) {
            static const unsigned char likely[] = {0x1B, 0xC2, 0x9B, 0x9D, 0x80, 0xE2,
                                                   0xF0, 0x9F, 0xED, 'a',  '\n', '\r'};
            state = state * 1664525U + 1013904223U;
            bytes[i] = (state >> 24) % 2 == 0 ? (unsigned char)(state >> 8) : likely[(state >> 9) % sizeof likely];
        }
        const char *out = shown((const char *)bytes, sizeof bytes);
        for (const char *c = out; *c != '\0'; c++) {
            const unsigned char byte = (unsigned char)*c;
            if (byte == 0xC2U && (unsigned char)c[1] < 0xA0U) { CHECK(false); }
            if ((byte < 0x20U && byte != '\n' && byte != '\t') || byte == 0x7FU) { CHECK(false); }
        }
    }
}

static void test_messages_are_one_line(void) {
    char text[] = "a\nb\tc\x1B[0m\xC2\x9B"
                  "d\x9B\xC3\xA9\xC3";
    printable_line(text);
    CHECK_STR(text, "a?b?c?[0m?d?\xC3\xA9?");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_text_is_unchanged);
    CHECK_RUN(test_controls_are_replaced);
    CHECK_RUN(test_bytes_that_are_no_text_are_replaced);
    CHECK_RUN(test_no_bytes_come_through);
    CHECK_RUN(test_messages_are_one_line);
    return check_end();
}
