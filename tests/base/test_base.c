/* The foundations: messages, sizes, memory counting, UTF-8, 16-bit floats, random numbers, files, threads. */
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/digest.h"
#include "base/dtype.h"
#include "base/file.h"
#include "base/file_map.h"
#include "base/folder.h"
#include "base/half.h"
#include "base/keyed_hash.h"
#include "base/number.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/status.h"
#include "base/threads.h"
#include "base/units.h"
#include "base/utf8.h"
#include "locales.h"

static void test_first_message_wins(void) {
    qr_error err = {0};
    CHECK_INT(qr_fail(&err, QRUN_ERROR_INPUT, "line %d:\ttab", 3), QRUN_ERROR_INPUT);
    qr_fail(&err, QRUN_ERROR_IO, "later");
    CHECK_STR(err.message, "line 3:?tab");
    qr_error_prefix(&err, "file.json");
    CHECK_STR(err.message, "file.json: line 3:?tab");
    CHECK_INT(err.status, QRUN_ERROR_INPUT);
    CHECK_INT(qr_fail(NULL, QRUN_ERROR_IO, "no context"), QRUN_ERROR_IO);
}

static void test_message_has_no_controls(void) {
    qr_error err = {0};
    qr_fail(&err, QRUN_ERROR_INPUT, "a%sb%sc%sd%se", "\x1B[31m\x7F",
            "\xC2\x9B"
            "31m\xC2\x9D",
            "\x9B\xFF\xC2", "\xC2\xA0\xE2\x82\xAC");
    CHECK_STR(err.message, "a?[31m?b?31m?c???d\xC2\xA0\xE2\x82\xAC"
                           "e");
}

static void test_long_message_is_cut_at_a_character(void) {
    char text[3001];
    for (int i = 0; i < 3000; i += 3) { memcpy(text + i, "\xE2\x82\xAC", 3); }
    text[3000] = '\0';
    qr_error err = {0};
    qr_fail(&err, QRUN_ERROR_INPUT, "%s", text);
    const size_t length = strlen(err.message);
    CHECK(length > 1000);
    CHECK_INT(qr_utf8_valid_prefix(err.message, length), length);
}

static void test_checked_sizes(void) {
    size_t size;
    CHECK(qr_size_mul(1U << 20, 1U << 20, &size) && size == (size_t)1 << 40);
    CHECK(!qr_size_mul(SIZE_MAX / 2, 3, &size));
    CHECK(!qr_size_add(SIZE_MAX, 1, &size));
    CHECK(!qr_size_align(SIZE_MAX - 3, 64, &size));
    int64_t count;
    CHECK(!qr_count_mul(INT64_MAX / 2, 3, &count));
    CHECK_INT(qr_round_up(172, 64), 192);
}

static void test_allocations_are_counted_and_can_fail(void) {
    qr_alloc_stats before, after;
    qr_alloc_get_stats(&before);
    char *a = qr_alloc(100);
    a = qr_realloc(a, 300);
    qr_alloc_get_stats(&after);
    CHECK_INT(after.bytes_held - before.bytes_held, 300);
    qr_alloc_fail_at(2);
    void *b = qr_alloc(1), *c = qr_alloc(1), *d = qr_alloc(1);
    CHECK(b != NULL && c == NULL && d != NULL);
    qr_alloc_fail_at(0);
    qr_free(a), qr_free(b), qr_free(d);
    qr_alloc_get_stats(&after);
    CHECK_INT(after.bytes_held, before.bytes_held);
    CHECK_INT(after.n_held, before.n_held);
    CHECK(qr_alloc_array(SIZE_MAX / 4, 8) == NULL);
}

static void test_buffer_writes_json_strings(void) {
    qr_buffer buffer = {0};
    qr_buffer_append_json_string(&buffer, "a\"\n\x01\xC3\xA9\xFF", 7);
    CHECK_STR(buffer.data, "\"a\\\"\\n\\u0001\xC3\xA9\xEF\xBF\xBD\"");
    qr_buffer_free(&buffer);
}

static void test_utf8(void) {
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char bytes[4];
        const size_t length = qr_utf8_encode(c, bytes);
        if (c >= 0xD800 && c < 0xE000) {
            CHECK_INT(length, 0);
            continue;
        }
        uint32_t back;
        if (qr_utf8_decode(bytes, length, &back) != length || back != c) {
            CHECK_MSG(false, "U+%04X does not round-trip", (unsigned)c);
            break;
        }
        for (size_t n = 1; n < length; n++) {
            if (!qr_utf8_is_incomplete(bytes, n)) { CHECK_MSG(false, "prefix %zu of U+%04X", n, (unsigned)c); }
        }
    }
    CHECK_INT(qr_utf8_sequence_length("\xC0\x80", 2), 0);
    CHECK_INT(qr_utf8_sequence_length("\xED\xA0\x80", 3), 0);
    CHECK_INT(qr_utf8_sequence_length("\xF4\x90\x80\x80", 4), 0);
    CHECK(!qr_utf8_is_incomplete("\xE0\x80", 2));
    CHECK_INT(qr_utf8_valid_prefix("ab\xFFzz", 5), 2);
}

static bool is_umlaut(uint32_t c) { return c == 0xE4U || c == 0xF6U; }

static void test_spans_of_characters(void) {
    static const char text[] = "\xC3\xA4\xC3\xB6"
                               "ab\xC3\xB6";
    CHECK_INT(qr_utf8_last(text, 8), 6);
    CHECK_INT(qr_utf8_last(text, 6), 5);
    CHECK_INT(qr_utf8_span(text, 8, is_umlaut), 4);
    CHECK_INT(qr_utf8_trim(text, 8, is_umlaut), 6);
    CHECK_INT(qr_utf8_span(text, 4, is_umlaut), 4);
    CHECK_INT(qr_utf8_trim(text, 4, is_umlaut), 0);
    CHECK_INT(qr_utf8_span("", 0, is_umlaut), 0);
    CHECK_INT(qr_utf8_trim("\xB6", 1, is_umlaut), 1); /* not UTF-8 */
}

static void test_hex_digits_and_plurals(void) {
    for (int c = 0; c < 256; c++) {
        const char *digits = "0123456789abcdef", *capitals = "0123456789ABCDEF";
        const char *found = c == 0 ? NULL : strchr(digits, c) != NULL ? strchr(digits, c) : strchr(capitals, c);
        const int expected = found == NULL ? -1 : (int)(found - (strchr(digits, c) != NULL ? digits : capitals));
        CHECK_INT(qr_hex_digit((char)c), expected);
    }
    CHECK_STR(qr_plural(0), "s");
    CHECK_STR(qr_plural(1), "");
    CHECK_STR(qr_plural(2), "s");
}

/* Everything that can hold a number, in locales with another decimal point. */
static void check_points(void) {
    char text[QR_NUMBER_BYTES], *end;
    qr_error err = {0};
    qr_buffer out = {0};
    qr_number_format(0.1, text);
    CHECK_STR(text, "0.1");
    qr_number_format(1.5e-7, text);
    CHECK_STR(text, "1.5e-07");
    qr_number_format_digits(2.0 / 3, 9, text);
    CHECK_STR(text, "0.666666667");
    CHECK_INT(qr_format(text, sizeof text, "%.2f%s", 1234.5, "!"), 8);
    CHECK_STR(text, "1234.50!");
    CHECK(qr_number_parse("2.5x", &end) == 2.5 && strcmp(end, "x") == 0);
    CHECK(qr_number_parse("2,5", &end) == 2 && strcmp(end, ",5") == 0);
    qr_buffer_append_format(&out, "%g|%.1e", 0.5, 12.0);
    CHECK_STR(out.data, "0.5|1.2e+01");
    qr_fail(&err, QRUN_ERROR_INPUT, "not %g", -0.25);
    CHECK_STR(err.message, "not -0.25");
    CHECK_STR(qr_format_bytes(INT64_C(3) << 29).text, "1.50 GiB");
    qr_buffer_free(&out);
}

static void test_numbers_do_not_follow_the_locale(void) {
    static const char *const names[] = {"de_DE", "ps_AF"};
    check_points();
    for (size_t i = 0; i < QR_COUNT_OF(names) && locales_begin(names[i]); i++) {
        char text[16];
        snprintf(text, sizeof text, "%.1f", 0.5);
        CHECK_STR(text, i == 0 ? "0,5"
                               : "0\xD9\xAB"
                                 "5");
        check_points();
        snprintf(text, sizeof text, "%.1f", 0.5);
        CHECK_MSG(text[1] != '.', "the host program's locale has changed");
        locales_end();
    }
}

static void test_half_precision(void) {
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float wide = qr_f16_to_f32((qr_f16)h);
        if (isnan(wide)) {
            CHECK(isnan(qr_f16_to_f32(qr_f32_to_f16(wide))));
        } else if (qr_f32_to_f16(wide) != h) {
            CHECK_MSG(false, "binary16 %04x does not round-trip", (unsigned)h);
        }
        const float bf = qr_bf16_to_f32((qr_bf16)h);
        if (!isnan(bf) && qr_f32_to_bf16(bf) != h) { CHECK_MSG(false, "bf16 %04x does not round-trip", (unsigned)h); }
    }
    CHECK_INT(qr_f32_to_f16(65519.0F), 0x7BFF);
    CHECK_INT(qr_f32_to_f16(65520.0F), 0x7C00);
    CHECK_INT(qr_f32_to_f16(0x1p-25F), 0);   /* half of the smallest: ties to even */
    CHECK_INT(qr_f32_to_f16(0x1.8p-24F), 2); /* ties to even */
    CHECK_INT(qr_f32_to_bf16(qr_f32_from_bits(0x3F808000U)), 0x3F80);
    CHECK_INT(qr_f32_to_bf16(qr_f32_from_bits(0x3F818000U)), 0x3F82);
}

/* Every value of 16 bits at each place of rows that fill eight bytes or do not, at an odd address. */
static void test_what_is_not_finite_is_found(void) {
    unsigned char row[1 + 9 * 4] = {0};
    for (uint32_t h = 0; h < 0x10000; h++) {
        const int at = (int)(h % 9);
        const uint16_t half = (uint16_t)h;
        memcpy(row + 1 + at * 2, &half, sizeof half);
        CHECK(qr_elements_are_finite(QR_DTYPE_F16, row + 1, 9) == (isfinite(qr_f16_to_f32(half)) != 0));
        CHECK(qr_elements_are_finite(QR_DTYPE_BF16, row + 1, 9) == (isfinite(qr_bf16_to_f32(half)) != 0));
        CHECK(qr_elements_are_finite(QR_DTYPE_BF16, row + 1, at));
        memset(row, 0, sizeof row);
        const uint32_t bits = h << 16 | 0xFFFFU;
        memcpy(row + 1 + at * 4, &bits, sizeof bits);
        CHECK(qr_elements_are_finite(QR_DTYPE_F32, row + 1, 9) == (isfinite(qr_f32_from_bits(bits)) != 0));
        memset(row, 0, sizeof row);
    }
}

static void test_philox_known_answers(void) { /* from the authors' known-answer file (Random123 kat_vectors) */
    uint32_t out[4];
    qr_philox(0, (uint32_t[4]){0, 0, 0, 0}, out);
    CHECK(out[0] == 0x6627e8d5U && out[1] == 0xe169c58dU && out[2] == 0xbc57ac4cU && out[3] == 0x9b00dbd8U);
    qr_philox(UINT64_MAX, (uint32_t[4]){UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}, out);
    CHECK(out[0] == 0x408f276dU && out[1] == 0x41c83b0eU && out[2] == 0xa20bc7c6U && out[3] == 0x6d5451fdU);
}

/* Of FIPS 180-4's examples, and of a million times "a"; in pieces of all lengths. */
static void test_digests(void) {
    static const struct {
        const char *text, *digest;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char text[QR_DIGEST_TEXT_BYTES];
    qr_digest_state state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        qr_digest_begin(&state);
        qr_digest_add(&state, known[i].text, strlen(known[i].text));
        const qr_digest digest = qr_digest_end(&state);
        qr_digest_text(&digest, text);
        CHECK_STR(text, known[i].digest);
    }
    static const char letters[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    qr_digest_begin(&state);
    for (size_t left = 1000000, n = 0; left > 0; left -= n) {
        n = (n + 7) % (sizeof letters - 1);
        n = n < left ? n : left;
        qr_digest_add(&state, letters, n);
    }
    const qr_digest digest = qr_digest_end(&state);
    qr_digest_text(&digest, text);
    CHECK_STR(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* SipHash-1-3 of 00, 01 … under the key 00 … 0f, from the vectors of its authors' program with those rounds. */
static void test_keyed_hashes(void) {
    const qr_hash_key key = {UINT64_C(0x0706050403020100), UINT64_C(0x0F0E0D0C0B0A0908)}, other = {1, 2};
    unsigned char bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++) { bytes[i] = (unsigned char)i; }
    CHECK(qr_hash_keyed(&key, bytes, 0) == UINT64_C(0xABAC0158050FC4DC));
    CHECK(qr_hash_keyed(&key, bytes, 1) == UINT64_C(0xC9F49BF37D57CA93));
    CHECK(qr_hash_keyed(&key, bytes, 63) == UINT64_C(0x9D199062B7BBB3A8));
    CHECK(qr_hash_keyed(&key, bytes, 8) != qr_hash_keyed(&other, bytes, 8));
    CHECK(qr_hash_keyed_word(&key, 5) != qr_hash_keyed_word(&other, 5));
    CHECK(qr_hash_keyed_word(&key, 5) != qr_hash_keyed_word(&key, 6));
    const qr_hash_key drawn = qr_hash_key_of_process(), again = qr_hash_key_of_process();
    CHECK(drawn.k0 == again.k0 && drawn.k1 == again.k1 && (drawn.k0 | drawn.k1) != 0);
}

static void test_random_numbers_have_the_right_moments(void) {
    double sum = 0, square = 0, uniform = 0;
    const int n = 100000;
    for (int i = 0; i < n; i++) {
        const double z = qr_random_normal(7, 1, (uint64_t)i);
        sum += z, square += z * z;
        uniform += qr_random_uniform(7, 2, (uint64_t)i);
    }
    CHECK(fabs(sum / n) < 0.02 && fabs(square / n - 1) < 0.02 && fabs(uniform / n - 0.5) < 0.01);
}

static void test_dtype_names(void) {
    qr_dtype dtype;
    CHECK(qr_dtype_from_name("BF16", 4, &dtype) && dtype == QR_DTYPE_BF16 && qr_dtype_bytes(dtype) == 2);
    CHECK(!qr_dtype_from_name("BF1", 3, &dtype));
    CHECK(!qr_dtype_from_name("bf16", 4, &dtype));
}

static void test_files_appear_whole_or_not_at_all(void) {
    char folder[] = "/tmp/qrun-test-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    char path[256];
    snprintf(path, sizeof path, "%s/a/b", folder);
    qr_error err = {0};
    REQUIRE(qr_folder_create(path, &err) == QRUN_OK);
    snprintf(path, sizeof path, "%s/a/b/out.txt", folder);
    qr_file_writer writer;
    REQUIRE(qr_file_writer_open(&writer, path, &err) == QRUN_OK);
    CHECK(qr_file_writer_write(&writer, "hello", 5, &err) == QRUN_OK);
    CHECK(!qr_file_exists(path));
    qr_file_writer_abort(&writer);
    CHECK(!qr_file_exists(path));
    CHECK(qr_file_write(path, "hello", 5, &err) == QRUN_OK);
    qr_file_map map;
    REQUIRE(qr_file_map_open(path, &map, &err) == QRUN_OK);
    CHECK(map.size == 5 && memcmp(map.data, "hello", 5) == 0);
    qr_file_map_close(&map);
    char *data;
    size_t size;
    CHECK(qr_file_read(path, 4, &data, &size, &err) == QRUN_ERROR_INPUT && data == NULL);
    qr_error_clear(&err);
    CHECK(qr_file_map_open("/nonexistent/x", &map, &err) == QRUN_ERROR_NOT_FOUND);
    unlink(path);
    snprintf(path, sizeof path, "%s/a/b", folder);
    rmdir(path);
    snprintf(path, sizeof path, "%s/a", folder);
    rmdir(path);
    rmdir(folder);
}

static void test_a_full_disk_is_an_error(void) {
    qr_error err = {0};
    qr_file_writer writer = {0};
    if (access("/dev/full", W_OK) != 0) {
        check_skip("/dev/full is not writable here");
        return;
    }
    /* A writer on /dev/full itself: its partial file cannot be made in /dev by everyone, so write through it. */
    FILE *full = fopen("/dev/full", "w");
    REQUIRE(full != NULL);
    char folder[] = "/tmp/qrun-test-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    char path[256];
    snprintf(path, sizeof path, "%s/out", folder);
    REQUIRE(qr_file_writer_open(&writer, path, &err) == QRUN_OK);
    REQUIRE(dup2(fileno(full), writer.descriptor) >= 0);
    CHECK(qr_file_writer_write(&writer, "x", 1, &err) == QRUN_OK);
    CHECK(qr_file_writer_commit(&writer, &err) == QRUN_ERROR_IO);
    CHECK(strstr(err.message, "No space left") != NULL);
    CHECK(!qr_file_exists(path));
    fclose(full);
    CHECK(rmdir(folder) == 0);
}

static void test_sizes_for_people(void) {
    CHECK_STR(qr_format_bytes(0).text, "0 B");
    CHECK_STR(qr_format_bytes(719).text, "719 B");
    CHECK_STR(qr_format_bytes(1606144).text, "1.53 MiB");
    CHECK_STR(qr_format_bytes(INT64_C(45097156608)).text, "42.0 GiB");
    CHECK_STR(qr_format_bytes(1048575).text, "1.00 MiB");
    CHECK_STR(qr_format_bytes(INT64_MAX).text, "8.00 EiB");
}

struct loop {
    atomic_int seen[1000];
    int n_workers;
};

static void count_index(void *arg, int64_t index, int worker) {
    struct loop *loop = arg;
    atomic_fetch_add(&loop->seen[index], 1);
    CHECK(worker >= 0 && worker < loop->n_workers);
}

static void test_loops_run_every_index_once(void) {
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        qr_threads *threads;
        qr_error err = {0};
        REQUIRE(qr_threads_create(n_threads, &threads, &err) == QRUN_OK);
        static struct loop loop;
        for (int round = 0; round < 200; round++) {
            memset(&loop, 0, sizeof loop);
            loop.n_workers = n_threads;
            const int n = round * 5 + 1 <= 1000 ? round * 5 + 1 : 1000;
            qr_threads_run(threads, n, count_index, &loop);
            for (int i = 0; i < 1000; i++) {
                if (atomic_load(&loop.seen[i]) != (i < n)) { CHECK_MSG(false, "index %d of %d", i, n); }
            }
        }
        qr_threads_destroy(threads);
    }
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_first_message_wins);
    CHECK_RUN(test_message_has_no_controls);
    CHECK_RUN(test_long_message_is_cut_at_a_character);
    CHECK_RUN(test_checked_sizes);
    CHECK_RUN(test_allocations_are_counted_and_can_fail);
    CHECK_RUN(test_buffer_writes_json_strings);
    CHECK_RUN(test_utf8);
    CHECK_RUN(test_spans_of_characters);
    CHECK_RUN(test_hex_digits_and_plurals);
    CHECK_RUN(test_numbers_do_not_follow_the_locale);
    CHECK_RUN(test_half_precision);
    CHECK_RUN(test_what_is_not_finite_is_found);
    CHECK_RUN(test_philox_known_answers);
    CHECK_RUN(test_digests);
    CHECK_RUN(test_keyed_hashes);
    CHECK_RUN(test_random_numbers_have_the_right_moments);
    CHECK_RUN(test_dtype_names);
    CHECK_RUN(test_files_appear_whole_or_not_at_all);
    CHECK_RUN(test_a_full_disk_is_an_error);
    CHECK_RUN(test_sizes_for_people);
    CHECK_RUN(test_loops_run_every_index_once);
    return check_end();
}
