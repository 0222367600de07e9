#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"

/* ---- The mark ---------------------------------------------------------------------------------------------------- */

static const char MARK_TEXT[] =
    "qrun is writing this folder, or was; when nobody writes it any more, qrun removes it.\n";

/* A descriptor of the folder, never of one that a symbolic link points to. −1 with errno set. */
static int open_own(const char *path) {
    char name[PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') { length--; } /* "link/" would be followed */
    if (length >= sizeof name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(name, path, length);
    name[length] = '\0';
    return open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Its text may end early: the program may have been killed before all of it was written. */
static bool has_mark(int folder) {
    struct stat info;
    char text[sizeof MARK_TEXT];
    const int mark = openat(folder, QR_FOLDER_MARK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (mark < 0) { return false; }
    const ssize_t n = fstat(mark, &info) == 0 && S_ISREG(info.st_mode) ? read(mark, text, sizeof text) : -1;
    close(mark);
    return n >= 0 && n < (ssize_t)sizeof MARK_TEXT && memcmp(text, MARK_TEXT, (size_t)n) == 0;
}

/* False with errno set. */
static bool put_mark(int folder) {
    const int mark = openat(folder, QR_FOLDER_MARK, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (mark < 0) { return errno == EEXIST && has_mark(folder); }
    const ssize_t n = write(mark, MARK_TEXT, sizeof MARK_TEXT - 1);
    const int code = n < 0 ? errno : ENOSPC;
    const bool whole = n == (ssize_t)sizeof MARK_TEXT - 1;
    close(mark);
    if (!whole) { (void)unlinkat(folder, QR_FOLDER_MARK, 0); }
    errno = code;
    return whole;
}

static bool take_mark(int folder) {
    return !has_mark(folder) || unlinkat(folder, QR_FOLDER_MARK, 0) == 0 || errno == ENOENT;
}

/* A descriptor of the folder `name` in the listed one if it carries the mark; −1 if not, or if it is no folder. */
static int open_marked_inside(DIR *listing, const char *name) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) { return -1; }
    const int inner = openat(dirfd(listing), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0 || has_mark(inner)) { return inner; }
    close(inner);
    return -1;
}

/* The listing of a folder, from a descriptor that stays the caller's. */
static DIR *list(int folder) {
    const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = own >= 0 ? fdopendir(own) : NULL;
    if (listing == NULL && own >= 0) { close(own); }
    return listing;
}

/* Takes the marks of the folders in it, then its own. */
static bool take_marks(int folder) {
    DIR *listing = list(folder);
    bool done = listing != NULL;
    for (const struct dirent *entry; done && (entry = readdir(listing)) != NULL;) {
        const int inner = open_marked_inside(listing, entry->d_name);
        if (inner < 0) { continue; }
        done = take_mark(inner);
        close(inner);
    }
    if (listing != NULL) { closedir(listing); }
    return done && take_mark(folder);
}

static bool is_link(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

/* After open_own has failed. */
static qrun_status fail_own(const char *path, const char *action, qr_error *err) {
    const int code = errno;
    if (is_link(path)) {
        return qr_fail(err, QRUN_ERROR_IO,
                       "%s: is a symbolic link, so what it points to is left alone; remove the link", path);
    }
    errno = code;
    return qr_file_fail_errno(err, path, action);
}

bool qr_folder_is_marked(const char *path) {
    const int folder = open_own(path);
    if (folder < 0) { return false; }
    const bool marked = has_mark(folder);
    close(folder);
    return marked;
}

qrun_status qr_folder_mark(const char *path, qr_error *err) {
    const int folder = open_own(path);
    if (folder < 0) { return fail_own(path, "write into the folder", err); }
    const qrun_status status = put_mark(folder) ? QRUN_OK : qr_file_fail_errno(err, path, "write into the folder");
    close(folder);
    return status;
}

qrun_status qr_folder_unmark(const char *path, qr_error *err) {
    const int folder = open_own(path);
    if (folder < 0) { return fail_own(path, "open the folder", err); }
    const qrun_status status =
        take_marks(folder) ? QRUN_OK : qr_file_fail_errno(err, path, "remove " QR_FOLDER_MARK " from");
    close(folder);
    return status;
}

/* ---- Removing ---------------------------------------------------------------------------------------------------- */

/* Removes every file but the mark. False with errno set. */
static bool remove_files(DIR *listing) {
    bool done = true;
    for (const struct dirent *entry; done && (entry = readdir(listing)) != NULL;) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, QR_FOLDER_MARK) == 0) { continue; }
        done = unlinkat(dirfd(listing), name, 0) == 0 || errno == ENOENT || errno == EISDIR;
    }
    return done;
}

/* Removes the marked folders in the listed one, which have files only. False with errno set. */
static bool remove_marked_inside(DIR *listing) {
    bool done = true;
    rewinddir(listing);
    for (const struct dirent *entry; done && (entry = readdir(listing)) != NULL;) {
        const int inner = open_marked_inside(listing, entry->d_name);
        DIR *inside = inner >= 0 ? list(inner) : NULL;
        if (inside != NULL) {
            done =
                remove_files(inside) && take_mark(inner) &&
                (unlinkat(dirfd(listing), entry->d_name, AT_REMOVEDIR) == 0 || errno == ENOTEMPTY || errno == EEXIST);
            closedir(inside);
        }
        if (inner >= 0) { close(inner); }
    }
    return done;
}

/* Empties the open folder of its files and of marked folders, its own mark last, so that a removal cut short can be
 * repeated. Closes it. */
static qrun_status empty_marked(int folder, const char *path, qr_error *err) {
    DIR *listing = fdopendir(folder);
    if (listing == NULL) {
        close(folder);
        return qr_file_fail_errno(err, path, "look into the folder");
    }
    const bool done = remove_files(listing) && remove_marked_inside(listing) && take_mark(folder);
    const qrun_status status = done ? QRUN_OK : qr_file_fail_errno(err, path, "remove what is in it");
    closedir(listing);
    return status;
}

qrun_status qr_folder_remove_marked(const char *path, qr_error *err) {
    const int folder = open_own(path);
    if (folder < 0) { return errno == ENOENT ? QRUN_OK : fail_own(path, "remove", err); }
    const bool marked = has_mark(folder);
    if (marked) {
        QR_RETURN_IF_ERROR(empty_marked(folder, path, err));
    } else {
        close(folder);
    }
    if (rmdir(path) == 0 || errno == ENOENT) { return QRUN_OK; }
    if (errno != ENOTEMPTY && errno != EEXIST) { return qr_file_fail_errno(err, path, "remove"); }
    if (marked) { return QRUN_OK; }
    return qr_fail(err, QRUN_ERROR_IO, "%s: was not made by qrun, or is complete; remove it yourself", path);
}

qrun_status qr_folder_retire(const char *path, qr_error *err) {
    QR_RETURN_IF_ERROR(qr_folder_mark(path, err));
    char *aside = qr_file_partial_path(path);
    if (aside == NULL) { return qr_fail_memory(err, path, strlen(path)); }
    const qrun_status status =
        rename(path, aside) == 0 ? qr_folder_remove_marked(aside, err) : qr_file_fail_errno(err, path, "remove");
    qr_free(aside);
    return status;
}

/* Whether the name is one that qr_file_partial_path gives. */
static bool is_partial(const char *name) {
    const char *suffix = NULL;
    for (const char *at = name; (at = strstr(at, QR_PARTIAL_SUFFIX)) != NULL; at++) { suffix = at; }
    return suffix != NULL && suffix != name && qr_file_partial_writer(suffix) > 0;
}

/* One entry of a folder that nobody writes; links and what else is not ours stay. */
static qrun_status clean_entry(const char *path, bool partial, qr_error *err) {
    struct stat info;
    if (lstat(path, &info) != 0) { return QRUN_OK; }
    if (S_ISDIR(info.st_mode) && qr_folder_is_marked(path)) {
        return partial ? qr_folder_remove_marked(path, err) : qr_folder_unmark(path, err);
    }
    if (!partial) { return QRUN_OK; }
    if (S_ISDIR(info.st_mode)) {
        (void)rmdir(path); /* killed before it had its mark, it is empty */
    } else if (S_ISREG(info.st_mode) && unlink(path) != 0 && errno != ENOENT) {
        return qr_file_fail_errno(err, path, "remove");
    }
    return QRUN_OK;
}

qrun_status qr_folder_remove_partials(const char *path, qr_error *err) {
    DIR *folder = opendir(path);
    if (folder == NULL) { return errno == ENOENT ? QRUN_OK : qr_file_fail_errno(err, path, "look into the folder"); }
    qrun_status status = QRUN_OK;
    for (const struct dirent *entry; status == QRUN_OK && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        char *left = qr_path_join(path, entry->d_name);
        status =
            left != NULL ? clean_entry(left, is_partial(entry->d_name), err) : qr_fail_memory(err, path, strlen(path));
        qr_free(left);
    }
    closedir(folder);
    return status;
}

/* ---- Making and locking ------------------------------------------------------------------------------------------ */

qrun_status qr_folder_create(const char *path, qr_error *err) {
    if (path[0] == '\0') { return qr_fail(err, QRUN_ERROR_ARGUMENT, "the name of a folder to make is empty"); }
    char *copy = qr_strdup(path);
    if (copy == NULL) { return qr_fail_memory(err, path, strlen(path)); }
    qrun_status status = QRUN_OK;
    for (char *end = copy;; end++) {
        if (*end != '/' && *end != '\0') { continue; }
        const char kept = *end;
        *end = '\0';
        if (end != copy && mkdir(copy, 0777) == 0) {
            status = qr_file_sync_parent(copy, err);
        } else if (end != copy && errno != EEXIST) {
            status = qr_file_fail_errno(err, copy, "create the folder");
        }
        *end = kept;
        if (kept == '\0' || status != QRUN_OK) { break; }
    }
    if (status == QRUN_OK && !qr_file_is_folder(path)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: exists and is not a folder", path);
    }
    qr_free(copy);
    return status;
}

qrun_status qr_folder_create_marked(const char *path, qr_error *err) {
    if (mkdir(path, 0777) != 0) { return qr_file_fail_errno(err, path, "create the folder"); }
    const qrun_status status = qr_folder_mark(path, err);
    if (status != QRUN_OK) { (void)rmdir(path); }
    return status;
}

qrun_status qr_folder_lock(const char *path, int *descriptor, qr_error *err) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0) { return qr_file_fail_errno(err, path, "open the folder"); }
    if (flock(*descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) { return QRUN_OK; }
    qr_folder_unlock(descriptor);
    return qr_fail(err, QRUN_ERROR_BUSY,
                   "%s: another run is using this folder; wait until it ends, or choose another folder", path);
}

void qr_folder_unlock(int *descriptor) {
    if (*descriptor >= 0) { close(*descriptor); }
    *descriptor = -1;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void folder_writer_free(qr_folder_writer *writer) {
    qr_folder_unlock(&writer->lock);
    qr_free(writer->path);
    qr_free(writer->partial_path);
    *writer = (qr_folder_writer){.lock = -1};
}

/* Whether what follows the folder's name says that this is the folder of a writer whose process is gone. */
static bool is_of_dead_writer(const char *rest) {
    const long writer = qr_file_partial_writer(rest);
    return writer > 0 && (writer == (long)getpid() || qr_process_is_gone(writer));
}

/* The process alone would not say it of one in another container, and the lock alone not on a file system without. */
static void remove_if_unheld(const char *folder) {
    int lock;
    if (!qr_file_is_folder(folder) || qr_folder_lock(folder, &lock, NULL) != QRUN_OK) { return; }
    (void)qr_folder_remove_marked(folder, NULL);
    qr_folder_unlock(&lock);
}

/* Removes what killed writers of this path left. What cannot be removed stays; that is no error. */
static void remove_left_over(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const size_t length = strlen(name);
    char *parent = slash != NULL ? qr_strndup(path, (size_t)(slash - path) + 1) : qr_strdup(".");
    DIR *listing = parent != NULL ? opendir(parent) : NULL;
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (strncmp(entry->d_name, name, length) != 0 || !is_of_dead_writer(entry->d_name + length)) { continue; }
        char *left = qr_path_join(parent, entry->d_name);
        if (left != NULL) { remove_if_unheld(left); }
        qr_free(left);
    }
    if (listing != NULL) { closedir(listing); }
    qr_free(parent);
}

qrun_status qr_folder_writer_open(qr_folder_writer *writer, const char *path, qr_error *err) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') { length--; }
    *writer = (qr_folder_writer){.path = qr_strndup(path, length), .lock = -1};
    if (writer->path != NULL) { writer->partial_path = qr_file_partial_path(writer->path); }
    qrun_status status = QRUN_OK;
    if (writer->partial_path == NULL) {
        status = qr_fail_memory(err, path, length);
    } else if (qr_file_exists(writer->path)) {
        status =
            qr_fail(err, QRUN_ERROR_ARGUMENT, "%s: already exists; choose another name or remove it", writer->path);
    } else {
        remove_left_over(writer->path);
        status = qr_folder_create_marked(writer->partial_path, err);
    }
    if (status != QRUN_OK) {
        folder_writer_free(writer);
        return status;
    }
    (void)qr_folder_lock(writer->partial_path, &writer->lock, NULL);
    return QRUN_OK;
}

void qr_folder_writer_abort(qr_folder_writer *writer) {
    if (writer->path == NULL) { return; }
    (void)qr_folder_remove_marked(writer->partial_path, NULL);
    folder_writer_free(writer);
}

/* The mark goes last: a folder that is killed before then is whole, and the mark in it is taken out later. */
qrun_status qr_folder_writer_commit(qr_folder_writer *writer, qr_error *err) {
    if (writer->path == NULL) { return QRUN_OK; }
    qrun_status status = QRUN_OK;
    if (!qr_file_sync_folder(writer->partial_path)) {
        status = qr_file_fail_errno(err, writer->path, "write");
    } else if (qr_file_exists(writer->path)) {
        status = qr_fail(err, QRUN_ERROR_IO, "%s: was created by another program in the meantime; choose another name",
                         writer->path);
    } else if (rename(writer->partial_path, writer->path) != 0) {
        status = qr_file_fail_errno(err, writer->path, "put in place");
    }
    if (status != QRUN_OK) {
        qr_folder_writer_abort(writer);
        return status;
    }
    status = qr_folder_unmark(writer->path, err);
    if (status == QRUN_OK && !qr_file_sync_folder(writer->path)) {
        status = qr_file_fail_errno(err, writer->path, "write");
    }
    if (status == QRUN_OK) { status = qr_file_sync_parent(writer->path, err); }
    folder_writer_free(writer);
    return status;
}
