/* Data that are not JSON Lines in a file: tables, plain text, folders, compressed data, pipes, other names. */
#include "dataset_check.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/threads.h"

typedef struct fixture {
    temporary_folder folder;
    example_model model;
    qr_dataset_options options;
} fixture;

static fixture fixture_open(void) {
    fixture f = {.folder = temporary_create(), .model = example_model_open()};
    f.options = dataset_options(&f.folder, NULL, 64);
    return f;
}

static void fixture_close(fixture *f) {
    example_model_close(&f->model);
    temporary_remove(&f->folder);
}

/* Every example, each on a line; or why there is none. */
static void show(const fixture *f, const qr_dataset_options *options, qr_buffer *shown) {
    qr_dataset *dataset = NULL;
    qr_error err = {0};
    if (qr_dataset_open(options, f->model.tokenizer, f->model.chat_template, &dataset, &err) != QRUN_OK) {
        qr_buffer_append_text(shown, err.message);
        return;
    }
    for (int64_t i = 0; i < qr_dataset_count(dataset); i++) {
        CHECK(qr_dataset_show(dataset, i, "[", "]", shown, NULL) == QRUN_OK);
        qr_buffer_append_char(shown, '\n');
    }
    qr_dataset_close(dataset);
}

static void expect_file(fixture *f, const char *name, const char *text, const char *expected) {
    qr_buffer shown = {0};
    qr_dataset_options options = f->options;
    options.path = temporary_text(&f->folder, name, text);
    show(f, &options, &shown);
    CHECK_STR(shown.data != NULL ? shown.data : "", expected);
    qr_buffer_free(&shown);
}

/* ---- Names decide where nobody says ------------------------------------------------------------------------------ */

static void test_form_by_name(void) {
    CHECK_INT(qr_file_form_of("a/b.csv"), QR_FORM_CSV);
    CHECK_INT(qr_file_form_of("b.csv.gz"), QR_FORM_CSV);
    CHECK_INT(qr_file_form_of("b.tsv.zst"), QR_FORM_TSV);
    CHECK_INT(qr_file_form_of("notes.txt"), QR_FORM_TEXT);
    CHECK_INT(qr_file_form_of("README.md.gz"), QR_FORM_TEXT);
    CHECK_INT(qr_file_form_of("a.jsonl"), QR_FORM_JSON);
    CHECK_INT(qr_file_form_of("-"), QR_FORM_JSON);
    CHECK_INT(qr_file_form_of(".csv"), QR_FORM_JSON);
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

static void test_tables(void) {
    fixture f = fixture_open();
    expect_file(&f, "a.csv", "prompt,completion\n\"a, \"\"b\"\"\n\",c\r\nd,\"\"\"e\"\"\"\n",
                "<|bos|>a, \"b\"\n[c<|eos|>]\n<|bos|>d[\"e\"<|eos|>]\n");
    expect_file(&f, "b.csv", "prompt,completion\na,b", "<|bos|>a[b<|eos|>]\n");
    expect_file(&f, "c.tsv", "text\tid\n a \"b\" \t\n", "<|bos|>[ a \"b\" <|eos|>]\n");
    expect_file(&f, "d.csv", ",text,\n,a,\n", "<|bos|>[a<|eos|>]\n");
    fixture_close(&f);
}

static void test_bad_tables(void) {
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"text,text\na,b\n", "/t.csv:1: the header has two columns \"text\""},
        {"text,b\na\n", "/t.csv:2: the header has 2 columns, and this record has fewer"},
        {"text,b\na,b,c\n", "/t.csv:2: the header has 2 columns, and this record has more"},
        {"text,b\n\"a\"x,c\n", "/t.csv:2: field 1 has text after its closing quote"},
        {"text,b\n\n\"a,c\n", "/t.csv:3: a quoted field that begins in this record is not closed"},
        {"text\n\xFF\n", "/t.csv:2: byte 0xff is not valid UTF-8 here"},
        {"text\n", "/t.csv: holds no examples"},
        {"txt\na\n", "/t.csv:2: has no known format: its members are \"txt\""},
    };
    fixture f = fixture_open();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        qr_buffer shown = {0};
        f.options.path = temporary_text(&f.folder, "t.csv", cases[i].text);
        show(&f, &f.options, &shown);
        CHECK_MSG(shown.data != NULL && strstr(shown.data, cases[i].why) != NULL, "%s", shown.data);
        qr_buffer_free(&shown);
    }
    fixture_close(&f);
}

/* ---- Plain text -------------------------------------------------------------------------------------------------- */

static void test_plain_text(void) {
    fixture f = fixture_open();
    expect_file(&f, "a.txt", "One\r\n\r\ntwo.\n", "<|bos|>[One\n\ntwo.\n<|eos|>]\n");
    f.options.form = QR_FORM_PARAGRAPHS;
    expect_file(&f, "a", "\n\nOne\r\nline\n \t\ntwo.  \n\n\n", "<|bos|>[One\nline<|eos|>]\n<|bos|>[two.<|eos|>]\n");
    f.options.seq_len = 3;
    expect_file(&f, "b", "a b a b a\n", "<|bos|>[a b]\n");
    fixture_close(&f);
}

/* Rows are full but for the last, hold every token of the text in order, and do not depend on threads. */
static void test_rows_of_a_text(void) {
    fixture f = fixture_open();
    qr_buffer text = {0}, first = {0}, second = {0};
    qr_dataset *dataset = NULL;
    while (text.size < 200000) {
        qr_buffer_append_format(&text, "Line %zu of it.%s\n", text.size, text.size % 5 == 0 ? "\n" : "");
    }
    f.options.path = temporary_text(&f.folder, "long.txt", text.data);
    REQUIRE(qr_dataset_open(&f.options, f.model.tokenizer, NULL, &dataset, NULL) == QRUN_OK);
    const qr_dataset_info *info = qr_dataset_get_info(dataset);
    CHECK(info->n_examples > 100 && info->longest_tokens == 64);
    CHECK_INT((info->n_tokens + 63) / 64, info->n_examples);
    CHECK_INT(info->n_targets, info->n_tokens - info->n_examples);
    CHECK_INT(info->n_truncated, 0);
    int64_t line = 1;
    for (int64_t i = 0; i < info->n_examples; i++) {
        const qr_example row = qr_dataset_get(dataset, i);
        CHECK(row.line >= line && (row.n_tokens == 64 || i + 1 == info->n_examples));
        line = row.line;
        CHECK(qr_dataset_show(dataset, i, "", "", &first, NULL) == QRUN_OK);
    }
    qr_buffer_append_format(&second, "<|bos|>%s<|eos|>", text.data);
    CHECK_STR(first.data, second.data);
    qr_dataset_close(dataset);
    qr_buffer_clear(&first);
    qr_buffer_clear(&second);
    show(&f, &f.options, &first);
    char other[128];
    (void)snprintf(other, sizeof other, "%s/other", f.folder.path);
    f.options.cache_folder = other;
    REQUIRE(qr_threads_create(3, &f.options.threads, NULL) == QRUN_OK);
    show(&f, &f.options, &second);
    CHECK_STR(first.data, second.data);
    qr_threads_destroy(f.options.threads);
    qr_buffer_free(&text);
    qr_buffer_free(&first);
    qr_buffer_free(&second);
    fixture_close(&f);
}

static void test_folders(void) {
    fixture f = fixture_open();
    char folder[128], deeper[160];
    qr_buffer shown = {0};
    (void)snprintf(folder, sizeof folder, "%s/texts", f.folder.path);
    (void)snprintf(deeper, sizeof deeper, "%s/deeper", folder);
    REQUIRE(mkdir(folder, 0700) == 0 && mkdir(deeper, 0700) == 0);
    (void)temporary_text(&f.folder, "texts/b.txt", "two");
    (void)temporary_text(&f.folder, "texts/a.txt", "one");
    (void)temporary_text(&f.folder, "texts/.c.txt", "hidden");
    (void)temporary_text(&f.folder, "texts/deeper/z.txt", "three");
    char loop[192];
    (void)snprintf(loop, sizeof loop, "%s/loop", deeper);
    REQUIRE(symlink(folder, loop) == 0);
    f.options.path = folder;
    show(&f, &f.options, &shown);
    CHECK(strstr(shown.data, "is a folder; say what its files are") != NULL);
    qr_buffer_clear(&shown);
    f.options.form = QR_FORM_PARAGRAPHS;
    show(&f, &f.options, &shown);
    CHECK_STR(shown.data, "<|bos|>[one<|eos|>]\n<|bos|>[two<|eos|>]\n<|bos|>[three<|eos|>]\n");
    qr_buffer_clear(&shown);
    f.options.form = QR_FORM_TEXT;
    show(&f, &f.options, &shown);
    CHECK_STR(shown.data, "<|bos|>[one<|eos|>]<|bos|>[two<|eos|>]<|bos|>[three<|eos|>]\n");
    qr_buffer_free(&shown);
    fixture_close(&f);
}

/* ---- Pipes ------------------------------------------------------------------------------------------------------- */

static void *write_slowly(void *path) {
    static const char text[] = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
    const int pipe = open(path, O_WRONLY);
    for (size_t i = 0; i < sizeof text - 1; i++) { CHECK(write(pipe, &text[i], 1) == 1); }
    close(pipe);
    return NULL;
}

static void test_a_pipe(void) {
    fixture f = fixture_open();
    char path[128];
    pthread_t writer;
    qr_buffer shown = {0};
    (void)snprintf(path, sizeof path, "%s/pipe", f.folder.path);
    REQUIRE(mkfifo(path, 0600) == 0);
    REQUIRE(pthread_create(&writer, NULL, write_slowly, path) == 0);
    f.options.path = path;
    show(&f, &f.options, &shown);
    CHECK_STR(shown.data, "<|bos|>[a<|eos|>]\n<|bos|>[b<|eos|>]\n");
    CHECK(pthread_join(writer, NULL) == 0);
    qr_buffer_free(&shown);
    fixture_close(&f);
}

static bool give_up(void *user, int64_t done, int64_t total) {
    (void)done, (void)total;
    return --*(int *)user > 0;
}

/* A pipe that nobody writes to is waited for until the caller has enough. */
static void test_a_pipe_without_a_writer(void) {
    fixture f = fixture_open();
    char path[128];
    int n_left = 3;
    qr_dataset *dataset;
    (void)snprintf(path, sizeof path, "%s/pipe", f.folder.path);
    REQUIRE(mkfifo(path, 0600) == 0);
    f.options.path = path;
    f.options.progress = give_up;
    f.options.progress_user = &n_left;
    CHECK_INT(qr_dataset_open(&f.options, f.model.tokenizer, NULL, &dataset, NULL), QRUN_ERROR_CANCELLED);
    CHECK_INT(n_left, 0);
    fixture_close(&f);
}

static void test_devices_are_refused(void) {
    fixture f = fixture_open();
    qr_buffer shown = {0};
    f.options.path = "/dev/zero";
    show(&f, &f.options, &shown);
    CHECK_STR(shown.data, "/dev/zero: is a device, not a file or a pipe");
    qr_buffer_free(&shown);
    fixture_close(&f);
}

/* ---- Short memory ------------------------------------------------------------------------------------------------ */

static void remove_caches(const char *folder) {
    DIR *listing = opendir(folder);
    if (listing == NULL) { return; }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

static qrun_status attempt(void *context, qr_error *err) {
    const fixture *f = context;
    qr_dataset *dataset;
    const qrun_status status = qr_dataset_open(&f->options, f->model.tokenizer, f->model.chat_template, &dataset, err);
    qr_dataset_close(dataset);
    remove_caches(f->options.cache_folder);
    return status;
}

static void test_failing_allocations(void) {
    static const struct {
        const char *name, *text, *columns;
    } cases[] = {
        {"a.csv", "a,b\n\"x \"\"y\",z\n", "prompt=a,completion=b"},
        {"a.txt", "One text\n", NULL},
        {"a.jsonl",
         "{\"prompt\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"completion\":[{\"role\":\"assistant\",\"content\":"
         "\"Oh\"}]}",
         NULL},
        {"b.jsonl", "{\"input\":\"a\",\"output\":\"b\"}", NULL},
    };
    fixture f = fixture_open();
    for (size_t i = 0; i < QR_COUNT_OF(cases); i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s", temporary_text(&f.folder, cases[i].name, cases[i].text));
        f.options.path = path;
        f.options.columns = cases[i].columns;
        check_failing_allocations(attempt, &f, true);
    }
    f.options.path = QRUN_SOURCE_DIR "/tests/fuzz/seeds/unpack/members.gz";
    check_failing_allocations(attempt, &f, true);
    fixture_close(&f);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_form_by_name);
    CHECK_RUN(test_tables);
    CHECK_RUN(test_bad_tables);
    CHECK_RUN(test_plain_text);
    CHECK_RUN(test_rows_of_a_text);
    CHECK_RUN(test_folders);
    CHECK_RUN(test_a_pipe);
    CHECK_RUN(test_a_pipe_without_a_writer);
    CHECK_RUN(test_devices_are_refused);
    CHECK_RUN(test_failing_allocations);
    return check_end();
}
