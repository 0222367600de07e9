#include "replace_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

static bool write_through(const char *path, const text_buffer *content) {
    FILE *stream = fopen(path, "wb");
    if (stream == NULL) { return false; }
    const bool written = fwrite(content->data, 1, content->size, stream) == content->size && fflush(stream) == 0 &&
                         fsync(fileno(stream)) == 0;
    const int error_number = errno;
    const bool closed = fclose(stream) == 0;
    if (!written) { errno = error_number; }
    return written && closed;
}

int replace_file(const char *path, const text_buffer *content) {
    text_buffer aside = {0};
    int code = EXIT_OK;
    text_format(&aside, "%s.partial", path);
    if (!write_through(aside.data, content) || rename(aside.data, path) != 0) {
        code = complain(EXIT_FILE, "cannot write '%s': %s", path, strerror(errno));
        unlink(aside.data);
    }
    text_free(&aside);
    return code;
}
