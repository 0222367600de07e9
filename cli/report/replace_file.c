#include "cli/report/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/options/command.h"

bool write_whole(int descriptor, const text_buffer *content) {
    for (size_t done = 0; done < content->size;) {
        const ssize_t n = write(descriptor, content->data + done, content->size - done);
        if (n < 0 && errno == EINTR) { continue; }
        if (n < 0) { return false; }
        done += (size_t)n;
    }
    return true;
}

static bool write_through(const char *path, const text_buffer *content) {
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) { return false; }
    const bool written = write_whole(descriptor, content) && fsync(descriptor) == 0;
    const int error_number = errno;
    const bool closed = close(descriptor) == 0;
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
