/* The input is a table, separated by commas or tabs. What is accepted has as many members as the header has names, all
 * of them texts, and written again in quotes it reads the same. */
#include "base/buffer.h"
#include "fuzz.h"
#include "loaders/data/source.h"

static void put_field(qr_buffer *out, const char *text) {
    qr_buffer_append_char(out, '"');
    for (; *text != '\0'; text++) {
        if (*text == '"') { qr_buffer_append_char(out, '"'); }
        qr_buffer_append_char(out, *text);
    }
    qr_buffer_append_char(out, '"');
}

/* The record in quotes, column by column; one without a name is empty. */
static void put_record(const qr_csv_header *header, const qr_json *root, qr_buffer *out) {
    for (size_t i = 0; i < header->n_names; i++) {
        const qr_json *member = qr_json_get(root, header->names[i]);
        if (i > 0) { qr_buffer_append_char(out, header->separator); }
        put_field(out, header->names[i][0] != '\0' ? member->valuestring : "");
    }
}

static void check_record(const qr_csv_header *header, const qr_json *root) {
    qr_buffer text = {0}, first = {0}, second = {0};
    qr_json *again = NULL;
    size_t n_named = 0, n_bytes;
    int64_t n_lines;
    for (size_t i = 0; i < header->n_names; i++) {
        n_named += header->names[i][0] != '\0';
        FUZZ_CHECK(header->names[i][0] == '\0' || cJSON_IsString(qr_json_get(root, header->names[i])));
    }
    FUZZ_CHECK(qr_json_count(root) == n_named);
    put_record(header, root, &text);
    FUZZ_CHECK(qr_buffer_ok(&text));
    FUZZ_CHECK(qr_csv_find_end(text.data, text.size, header->separator, &n_bytes, &n_lines) && n_bytes == text.size);
    FUZZ_CHECK(qr_csv_record_parse(header, text.data, text.size, &again, NULL) == QRUN_OK);
    qr_json_append(&first, root);
    qr_json_append(&second, again);
    FUZZ_CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
    qr_json_free(again);
    qr_buffer_free(&text);
    qr_buffer_free(&first);
    qr_buffer_free(&second);
}

static void check_table(const uint8_t *data, size_t size, qr_file_form form) {
    qr_dataset_source source = {.form = form};
    qr_error err = {0};
    bool found = qr_dataset_source_open_text(&source, "data", (const char *)data, size, &err) == QRUN_OK;
    FUZZ_CHECK(found == (err.message[0] == '\0'));
    for (qr_dataset_piece piece; found && qr_dataset_source_next(&source, &piece, &found, NULL) == QRUN_OK && found;) {
        qr_json *root = NULL;
        FUZZ_CHECK(piece.n_bytes <= size && piece.line >= 1);
        if (qr_dataset_piece_parse(&source, &piece, &root, NULL) == QRUN_OK) { check_record(&source.header, root); }
        qr_json_free(root);
    }
    qr_dataset_source_close(&source);
}

/* Pieces of plain text are the whole text, in order, but for empty lines and blanks at ends. */
static void check_text(const uint8_t *data, size_t size, qr_file_form form) {
    qr_dataset_source source = {.form = form};
    bool found = qr_dataset_source_open_text(&source, "data", (const char *)data, size, NULL) == QRUN_OK;
    const char *least = source.text;
    size_t n_bytes = 0;
    for (qr_dataset_piece piece; found && qr_dataset_source_next(&source, &piece, &found, NULL) == QRUN_OK && found;) {
        qr_buffer text = {0};
        FUZZ_CHECK(piece.n_bytes > 0 && piece.text >= least && piece.text + piece.n_bytes <= source.text + size);
        least = piece.text + piece.n_bytes;
        n_bytes += piece.n_bytes;
        if (qr_dataset_piece_text(&source, &piece, &text, NULL) == QRUN_OK) {
            FUZZ_CHECK(text.size <= piece.n_bytes && (text.size == 0 || memchr(text.data, 0, text.size) == NULL));
        }
        qr_buffer_free(&text);
    }
    if (form == QR_FORM_TEXT && n_bytes > 0) { FUZZ_CHECK(n_bytes + 3 >= size && least == source.text + size); }
    qr_dataset_source_close(&source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_table(data, size, QR_FORM_CSV);
    check_table(data, size, QR_FORM_TSV);
    check_text(data, size, QR_FORM_TEXT);
    check_text(data, size, QR_FORM_PARAGRAPHS);
    return 0;
}
