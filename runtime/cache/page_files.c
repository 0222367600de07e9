#include "runtime/cache/page_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/random.h"

static const char MAGIC[8] = {'Q', 'R', 'U', 'N', '-', 'K', 'V', '1'};
static const char SUFFIX[] = ".qrun-kv";

/* What a file begins with; the page follows. Numbers are those of the machine, which is little-endian. */
typedef struct file_header {
    char magic[8];
    qr_digest block;
    int32_t group, reserved;
    int64_t page_bytes;
    int32_t tokens[QR_KV_PAGE_TOKENS];
    uint64_t sum; /* of all before it, and of the page */
} file_header;

_Static_assert(sizeof(file_header) == 128, "the header has no padding");

enum { NAME_BYTES = QR_DIGEST_TEXT_BYTES + 32, PARTIAL_BYTES = NAME_BYTES + 48 };

struct qr_page_files {
    char *path;
    int folder;
    int64_t max_bytes, held_bytes; /* held: by all files of ours, as far as is known */
    size_t page_bytes;
    bool stopped; /* writing has failed */
    char note[QR_PAGE_NOTE_BYTES];
};

/* ---- Notes ------------------------------------------------------------------------------------------------------- */

QR_PRINTF(2, 3) static void note(qr_page_files *files, const char *format, ...) {
    if (files->note[0] != '\0') { return; }
    qr_error line = {0};
    va_list args;
    va_start(args, format);
    (void)qr_vfail(&line, QRUN_ERROR_IO, format, args);
    va_end(args);
    (void)snprintf(files->note, sizeof files->note, "%.*s", QR_PAGE_NOTE_BYTES - 1, line.message);
}

const char *qr_page_files_note(const qr_page_files *files) { return files->note; }

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void name_file(const qr_kv_page_name *name, char out[NAME_BYTES]) {
    char digest[QR_DIGEST_TEXT_BYTES];
    qr_digest_text(&name->block, digest);
    (void)snprintf(out, NAME_BYTES, "%s-%d%s", digest, (int)name->group, SUFFIX);
}

/* The bytes of a name of ours at the beginning of `name`; 0: it does not begin with one. */
static size_t own_name_bytes(const char *name) {
    const size_t n_digest = QR_DIGEST_TEXT_BYTES - 1;
    if (strspn(name, "0123456789abcdef") != n_digest || name[n_digest] != '-') { return 0; }
    const size_t n_group = strspn(name + n_digest + 1, "0123456789");
    const size_t n = n_digest + 1 + n_group;
    if (n_group == 0 || n_group > 10 || strncmp(name + n, SUFFIX, sizeof SUFFIX - 1) != 0) { return 0; }
    return n + sizeof SUFFIX - 1;
}

static bool is_own_name(const char *name) {
    const size_t n = own_name_bytes(name);
    return n > 0 && name[n] == '\0';
}

/* A name under which a program that does not run any more was writing. */
static bool is_abandoned_partial(const char *name) {
    const size_t n = own_name_bytes(name);
    return n > 0 && qr_process_is_gone(qr_file_partial_writer(name + n));
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static void fill_header(const qr_page_files *files, const qr_kv_page_name *name, const void *page,
                        file_header *header) {
    memset(header, 0, sizeof *header);
    memcpy(header->magic, MAGIC, sizeof MAGIC);
    header->block = name->block;
    header->group = name->group;
    header->page_bytes = (int64_t)files->page_bytes;
    memcpy(header->tokens, name->tokens, sizeof header->tokens);
    header->sum = qr_hash_words(QR_HASH_START, header, offsetof(file_header, sum));
    header->sum = qr_hash_words(header->sum, page, files->page_bytes);
}

/* False, with what was read, at an error or the end of the file. */
static bool read_whole(int file, void *memory, size_t n_bytes, size_t *n_read) {
    for (*n_read = 0; *n_read < n_bytes;) {
        const ssize_t n = read(file, (char *)memory + *n_read, n_bytes - *n_read);
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return false; }
        *n_read += (size_t)n;
    }
    return true;
}

/* Never follows a link, and never waits. */
static int open_file(const qr_page_files *files, const char *name, struct stat *info) {
    const int file = openat(files->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) { return -1; }
    if (fstat(file, info) == 0 && S_ISREG(info->st_mode)) { return file; }
    close(file);
    errno = EINVAL;
    return -1;
}

/* Whether a file begins as ours do, as far as it goes. */
static bool begins_as_ours(const file_header *header, size_t n_read) {
    return memcmp(header->magic, MAGIC, n_read < sizeof MAGIC ? n_read : sizeof MAGIC) == 0;
}

static bool is_our_file(const qr_page_files *files, const char *name) {
    struct stat info;
    file_header header = {.group = 0};
    size_t n_read = 0;
    const int file = open_file(files, name, &info);
    if (file < 0) { return false; }
    (void)read_whole(file, header.magic, sizeof header.magic, &n_read);
    close(file);
    return begins_as_ours(&header, n_read);
}

static void remove_damaged(qr_page_files *files, const char *name, int64_t n_bytes) {
    note(files, "%s/%s: is damaged; it is not used, and was removed", files->path, name);
    if (unlinkat(files->folder, name, 0) == 0) { files->held_bytes -= n_bytes; }
}

bool qr_page_files_have(const qr_page_files *files, const qr_kv_page_name *name) {
    char file_name[NAME_BYTES];
    struct stat info;
    name_file(name, file_name);
    return fstatat(files->folder, file_name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

bool qr_page_files_read(qr_page_files *files, const qr_kv_page_name *name, void *memory) {
    char file_name[NAME_BYTES];
    struct stat info;
    file_header header = {.group = 0}, expected;
    size_t n_header = 0, n_page = 0;
    unsigned char more;
    name_file(name, file_name);
    const int file = open_file(files, file_name, &info);
    if (file < 0) {
        if (errno != ENOENT) { note(files, "%s/%s: cannot be read; it is not used", files->path, file_name); }
        return false;
    }
    const bool whole = read_whole(file, &header, sizeof header, &n_header) &&
                       read_whole(file, memory, files->page_bytes, &n_page) && read(file, &more, 1) == 0;
    if (whole) { (void)futimens(file, NULL); } /* used now */
    close(file);
    fill_header(files, name, memory, &expected);
    if (whole && memcmp(&header, &expected, sizeof header) == 0) { return true; }
    if (begins_as_ours(&header, n_header)) {
        remove_damaged(files, file_name, info.st_size);
    } else {
        note(files, "%s/%s: is not qrun's; it is not used", files->path, file_name);
    }
    return false;
}

void qr_page_files_drop(qr_page_files *files, const qr_kv_page_name *name, const char *why) {
    char file_name[NAME_BYTES];
    struct stat info;
    name_file(name, file_name);
    if (fstatat(files->folder, file_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !is_our_file(files, file_name)) {
        return;
    }
    note(files, "%s/%s: %s; it is not used, and was removed", files->path, file_name, why);
    if (unlinkat(files->folder, file_name, 0) == 0) { files->held_bytes -= info.st_size; }
}

/* ---- The folder's size ------------------------------------------------------------------------------------------- */

typedef struct aged_file {
    struct timespec used;
    int64_t n_bytes;
    char name[NAME_BYTES];
} aged_file;

enum { MOST_AT_ONCE = 64 };

static bool is_older(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

/* Keeps the MOST_AT_ONCE oldest files, oldest first. */
static void keep_oldest(aged_file *oldest, int *n, const char *name, const struct stat *info) {
    int at = *n;
    if (at == MOST_AT_ONCE && !is_older(&info->st_mtim, &oldest[at - 1].used)) { return; }
    at = at < MOST_AT_ONCE ? (*n)++ : at - 1;
    for (; at > 0 && is_older(&info->st_mtim, &oldest[at - 1].used); at--) { oldest[at] = oldest[at - 1]; }
    oldest[at].used = info->st_mtim;
    oldest[at].n_bytes = info->st_size;
    memcpy(oldest[at].name, name, strlen(name) + 1); /* a name of ours fits */
}

/* One walk over the folder: the bytes of our files, and the oldest of them. Removes what killed programs left. */
static int64_t survey(const qr_page_files *files, aged_file *oldest, int *n) {
    int64_t total = 0;
    struct stat info;
    *n = 0;
    const int copy = openat(files->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *walk = copy >= 0 ? fdopendir(copy) : NULL;
    if (walk == NULL && copy >= 0) { close(copy); }
    for (const struct dirent *entry; walk != NULL && (entry = readdir(walk)) != NULL;) {
        if (is_abandoned_partial(entry->d_name)) { (void)unlinkat(files->folder, entry->d_name, 0); }
        if (!is_own_name(entry->d_name)) { continue; }
        if (fstatat(files->folder, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) {
            continue;
        }
        total += info.st_size;
        keep_oldest(oldest, n, entry->d_name, &info);
    }
    if (walk != NULL) { closedir(walk); }
    return total;
}

/* Removes files until `room` more bytes fit; false when they cannot. Other programs may remove the same ones. */
static bool make_room(qr_page_files *files, int64_t room) {
    aged_file oldest[MOST_AT_ONCE];
    int n;
    if (room > files->max_bytes) { return false; }
    if (files->held_bytes + room <= files->max_bytes) { return true; }
    for (bool removed = true; removed;) {
        removed = false;
        files->held_bytes = survey(files, oldest, &n);
        for (int i = 0; i < n && files->held_bytes + room > files->max_bytes; i++) {
            if (!is_our_file(files, oldest[i].name) || unlinkat(files->folder, oldest[i].name, 0) != 0) { continue; }
            files->held_bytes -= oldest[i].n_bytes;
            removed = true;
        }
        if (files->held_bytes + room <= files->max_bytes) { return true; }
    }
    return false;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static bool write_whole(int file, const void *memory, size_t n_bytes) {
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = write(file, (const char *)memory + done, n_bytes - done);
        if (n < 0 && errno == EINTR) { continue; }
        if (n <= 0) { return false; }
        done += (size_t)n;
    }
    return true;
}

static void stop_writing(qr_page_files *files, const char *action) {
    files->stopped = true;
    note(files, "%s: cannot %s: %s; no more K/V pages are kept there", files->path, action, strerror(errno));
}

void qr_page_files_write(qr_page_files *files, const qr_kv_page_name *name, const void *memory) {
    char file_name[NAME_BYTES], partial[PARTIAL_BYTES];
    file_header header;
    const int64_t n_bytes = (int64_t)(sizeof header + files->page_bytes);
    if (files->stopped || qr_page_files_have(files, name) || !make_room(files, n_bytes)) { return; }
    name_file(name, file_name);
    (void)snprintf(partial, sizeof partial, "%s" QR_PARTIAL_SUFFIX "%ld", file_name, (long)getpid());
    fill_header(files, name, memory, &header);
    const int file = qr_file_create_partial(files->folder, partial, 0600);
    if (file < 0) {
        if (errno != EBUSY) { stop_writing(files, "write"); } /* another session writes it just now */
        return;
    }
    const bool written = write_whole(file, &header, sizeof header) && write_whole(file, memory, files->page_bytes);
    if (!written) { stop_writing(files, "write"); }
    if (written && renameat(files->folder, partial, files->folder, file_name) == 0) {
        files->held_bytes += n_bytes;
    } else {
        (void)unlinkat(files->folder, partial, 0);
    }
    close(file); /* which has held the name; what it may say, the page's sum says when it is read */
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

qrun_status qr_page_files_open(const char *folder, int64_t max_bytes, size_t page_bytes, qr_page_files **files,
                               qr_error *err) {
    *files = NULL;
    qr_page_files *made = qr_alloc_zeroed(sizeof *made);
    if (made == NULL) { return qr_fail_memory(err, "the folder of kept K/V pages", sizeof *made); }
    *made = (qr_page_files){.folder = -1, .max_bytes = max_bytes, .page_bytes = page_bytes};
    qrun_status status;
    QR_TRY(qr_folder_create(folder, err));
    made->path = qr_strdup(folder);
    if (made->path == NULL) { QR_TRY(qr_fail_memory(err, "the folder of kept K/V pages", strlen(folder))); }
    made->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (made->folder < 0) { QR_TRY(qr_file_fail_errno(err, folder, "open")); }
    aged_file oldest[MOST_AT_ONCE];
    int n;
    made->held_bytes = survey(made, oldest, &n);
    (void)make_room(made, 0);
    *files = made;
    return QRUN_OK;
out:
    qr_page_files_close(made);
    return status;
}

void qr_page_files_close(qr_page_files *files) {
    if (files == NULL) { return; }
    if (files->folder >= 0) { close(files->folder); }
    qr_free(files->path);
    qr_free(files);
}
