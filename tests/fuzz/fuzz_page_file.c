/* The input is a file of a kept K/V page. What is accepted is, byte for byte, what writing that page gives; what is not
 * is gone if it began as ours do, and stays otherwise. */
#include "fuzz.h"
#include "runtime/cache/page_files.h"

enum { PAGE_BYTES = 96, MAX_FILE_BYTES = 4096 };

static size_t read_file(const char *path, unsigned char *bytes) {
    const int file = open(path, O_RDONLY);
    if (file < 0) { return 0; }
    const ssize_t n = read(file, bytes, MAX_FILE_BYTES);
    close(file);
    FUZZ_CHECK(n >= 0);
    return (size_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int32_t tokens[QR_KV_PAGE_TOKENS];
    static const char file_name[] = "0102000000000000000000000000000000000000000000000000000000000000-3.qrun-kv";
    const qr_kv_page_name name = {.block = {{1, 2}}, .group = 3, .tokens = tokens};
    unsigned char page[PAGE_BYTES], again[MAX_FILE_BYTES];
    qr_page_files *files = NULL;
    qr_error err = {0};
    if (size > MAX_FILE_BYTES) { return 0; }
    for (int32_t i = 0; i < QR_KV_PAGE_TOKENS; i++) { tokens[i] = 7 * i; }
    const char *path = fuzz_file(file_name, data, size);
    FUZZ_CHECK(qr_page_files_open(fuzz_folder(), 1 << 20, PAGE_BYTES, &files, &err) == QRUN_OK);
    FUZZ_CHECK(qr_page_files_have(files, &name));
    const bool accepted = qr_page_files_read(files, &name, page);
    FUZZ_CHECK(accepted == (qr_page_files_note(files)[0] == '\0'));
    if (accepted) {
        FUZZ_CHECK(unlink(path) == 0);
        qr_page_files_write(files, &name, page);
        FUZZ_CHECK(read_file(path, again) == size && memcmp(again, data, size) == 0);
    } else {
        const bool is_ours = memcmp("QRUN-KV1", data, size < 8 ? size : 8) == 0;
        FUZZ_CHECK(qr_page_files_have(files, &name) == !is_ours);
    }
    qr_page_files_close(files);
    fuzz_file_remove(file_name);
    return 0;
}
