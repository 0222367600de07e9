#include "loaders/files/hub.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sizes.h"

/* ---- Ids --------------------------------------------------------------------------------------------------------- */

enum { ID_BYTES = 200, COMMIT_LEAST = 7, COMMIT_BYTES = 128 };

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

/* text[0, n_bytes) of letters, digits, '-', '_' and '.', in parts between at most n_slashes slashes; no part begins
 * with
 * '.' or '-', so none leads out of a folder. */
static bool is_path_of_names(const char *text, size_t n_bytes, int n_slashes) {
    for (size_t i = 0; i < n_bytes; i++) {
        const bool begins = i == 0 || text[i - 1] == '/';
        n_slashes -= text[i] == '/';
        if (!is_letter(text[i]) && strchr(begins ? "_" : "-_./", text[i]) == NULL) { return false; }
    }
    return n_bytes > 0 && n_bytes <= ID_BYTES && n_slashes >= 0 && text[n_bytes - 1] != '/';
}

bool qr_hub_is_id(const char *name) {
    enum { REVISION_SLASHES = 4 /* refs/pr/1 */ };
    const size_t length = strcspn(name, "@");
    return is_path_of_names(name, length, 1) &&
           (name[length] == '\0' || is_path_of_names(name + length + 1, strlen(name + length + 1), REVISION_SLASHES));
}

/* ---- Where the cache is ------------------------------------------------------------------------------------------ */

/* Appends the value of a variable, with a leading "~" replaced by HOME. False when it is unset or empty. */
static bool append_variable(const char *name, qr_buffer *path) {
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') { return false; }
    const char *home = getenv("HOME");
    if (home != NULL && value[0] == '~' && (value[1] == '/' || value[1] == '\0')) {
        qr_buffer_append_text(path, home);
        value++;
    }
    qr_buffer_append_text(path, value);
    return true;
}

/* The folder that huggingface_hub downloads to; NULL when memory is short or no variable says where. */
static char *cache_folder(void) {
    static const struct {
        const char *variable, *below;
    } variables[] = {
        {"HF_HUB_CACHE", ""},
        {"HUGGINGFACE_HUB_CACHE", ""},
        {"HF_HOME", "/hub"},
        {"XDG_CACHE_HOME", "/huggingface/hub"},
        {"HOME", "/.cache/huggingface/hub"},
    };
    qr_buffer path = {0};
    for (size_t i = 0; i < QR_COUNT_OF(variables); i++) {
        if (!append_variable(variables[i].variable, &path)) { continue; }
        qr_buffer_append_text(&path, variables[i].below);
        return qr_buffer_take(&path);
    }
    qr_buffer_append_text(&path, ".cache/huggingface/hub");
    return qr_buffer_take(&path);
}

/* The folder of a repository in the cache: "models", organisation and name, with two dashes between them. */
static char *repository_folder(const char *cache, const char *id) {
    static const char separator[] = {'-', '-', '\0'};
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/models%s", cache, separator);
    for (const char *c = id; *c != '\0' && *c != '@'; c++) {
        qr_buffer_append(&path, *c == '/' ? separator : c, *c == '/' ? 2 : 1);
    }
    return qr_buffer_take(&path);
}

/* Appends the command that downloads an id, with its revision as an option. */
static void append_download(const char *id, qr_buffer *out) {
    static const char option[] = {' ', '-', '-', 'r', 'e', 'v', 'i', 's', 'i', 'o', 'n', ' ', '\0'};
    const size_t length = strcspn(id, "@");
    qr_buffer_append_format(out, "hf download %.*s", (int)length, id);
    if (id[length] != '\0') { qr_buffer_append_format(out, "%s%s", option, id + length + 1); }
}

/* ---- Revisions --------------------------------------------------------------------------------------------------- */

static bool is_commit(const char *text) {
    const size_t length = strspn(text, "0123456789abcdefABCDEF");
    return length >= COMMIT_LEAST && text[length] == '\0';
}

/* The commit in a file of refs/, cut at its line end; it becomes a part of a path, so it must be one plain word. */
static qrun_status read_ref(const char *path, char **commit, qr_error *err) {
    size_t n_bytes;
    qrun_status status = qr_file_read(path, COMMIT_BYTES, commit, &n_bytes, err);
    if (status != QRUN_OK) { return status; }
    const size_t length = strspn(*commit, "0123456789abcdefABCDEF");
    if (length > 0 && length + strspn(*commit + length, " \r\n") == n_bytes) {
        (*commit)[length] = '\0';
        return QRUN_OK;
    }
    qr_free(*commit);
    *commit = NULL;
    return qr_fail(err, QRUN_ERROR_INPUT, "%s: does not hold a commit; download the model again", path);
}

/* The only snapshot whose commit begins so, or NULL. *others: appended to, names of all snapshots, for a message. */
static qrun_status find_snapshot(const char *repository, const char *begin, char **commit, qr_buffer *others,
                                 qr_error *err) {
    enum { MAX_SHOWN = 3 };
    char *path = qr_path_join(repository, "snapshots");
    if (path == NULL) { return qr_fail_memory(err, repository, strlen(repository)); }
    DIR *listing = opendir(path);
    int n = 0, n_found = 0;
    qr_free(path);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (!is_commit(entry->d_name)) { continue; }
        if (n++ < MAX_SHOWN) { qr_buffer_append_format(others, "%s%.12s", n > 1 ? ", " : "", entry->d_name); }
        if (!is_commit(begin) || strncmp(entry->d_name, begin, strlen(begin)) != 0) { continue; }
        n_found++;
        qr_free(*commit);
        *commit = qr_strdup(entry->d_name);
    }
    if (listing != NULL) { closedir(listing); }
    if (n_found == 1) { return *commit != NULL ? QRUN_OK : qr_fail_memory(err, repository, strlen(begin)); }
    qr_free(*commit);
    *commit = NULL;
    return QRUN_OK;
}

static qrun_status fail_revision(const char *id, const char *revision, const qr_buffer *others, qr_error *err) {
    qr_buffer command = {0};
    append_download(id, &command);
    const size_t length = strcspn(id, "@");
    const qrun_status status =
        qr_fail(err, QRUN_ERROR_NOT_FOUND, "\"%.*s\" is in the cache, but not its revision %s; get it with: %s%s%s%s",
                (int)length, id, revision, command.data != NULL ? command.data : "",
                others->size > 0 ? " (there are the commits " : "", others->size > 0 ? others->data : "",
                others->size > 0 ? ", as in NAME@COMMIT)" : "");
    qr_buffer_free(&command);
    return status;
}

/* The commit of an id's revision: refs/NAME, or the beginning of a commit that there is. */
static qrun_status find_commit(const char *repository, const char *id, char **commit, qr_error *err) {
    const char *at = strchr(id, '@'), *revision = at != NULL ? at + 1 : "main";
    qr_buffer ref = {0}, others = {0};
    qrun_status status;
    *commit = NULL;
    qr_buffer_append_format(&ref, "%s/refs/%s", repository, revision);
    if (!qr_buffer_ok(&ref)) { QR_TRY(qr_fail_memory(err, repository, ref.size)); }
    if (qr_file_exists(ref.data)) {
        QR_TRY(read_ref(ref.data, commit, err));
        goto out;
    }
    QR_TRY(find_snapshot(repository, revision, commit, &others, err));
    if (*commit == NULL) { QR_TRY(fail_revision(id, revision, &others, err)); }
out:
    qr_buffer_free(&ref);
    qr_buffer_free(&others);
    return status;
}

static qrun_status resolve_snapshot(const char *repository, const char *id, char **folder, qr_error *err) {
    char *commit;
    QR_RETURN_IF_ERROR(find_commit(repository, id, &commit, err));
    qr_buffer path = {0};
    qr_buffer_append_format(&path, "%s/snapshots/%s", repository, commit);
    qr_free(commit);
    *folder = qr_buffer_take(&path);
    if (*folder == NULL) { return qr_fail_memory(err, repository, strlen(repository)); }
    if (qr_file_is_folder(*folder)) { return QRUN_OK; }
    const qrun_status status = qr_fail(
        err, QRUN_ERROR_NOT_FOUND, "%s: is not there, though a revision names it; download the model again", *folder);
    qr_free(*folder);
    *folder = NULL;
    return status;
}

qrun_status qr_hub_resolve(const char *id, char **folder, qr_error *err) {
    char *cache = cache_folder();
    char *repository = cache != NULL ? repository_folder(cache, id) : NULL;
    qr_buffer command = {0};
    qrun_status status;
    *folder = NULL;
    append_download(id, &command);
    if (repository == NULL || !qr_buffer_ok(&command)) {
        status = qr_fail_memory(err, id, strlen(id));
    } else if (!qr_file_is_folder(repository)) {
        status = qr_fail(err, QRUN_ERROR_NOT_FOUND,
                         "\"%s\" is neither a folder nor in the cache %s; give a path, or get it with: %s", id, cache,
                         command.data);
    } else {
        status = resolve_snapshot(repository, id, folder, err);
    }
    qr_buffer_free(&command);
    qr_free(cache);
    qr_free(repository);
    return status;
}

/* ---- Names of snapshots ------------------------------------------------------------------------------------------ */

/* Appends its id and commit if the path is that of a snapshot in a cache. */
static bool append_name(const char *path, qr_buffer *name) {
    static const char kind[] = {'m', 'o', 'd', 'e', 'l', 's', '-', '-', '\0'}, snapshots[] = "/snapshots/";
    const char *commit = strrchr(path, '/');
    const size_t tail = sizeof snapshots - 1, length = commit != NULL ? (size_t)(commit + 1 - path) : 0;
    if (length <= tail || memcmp(path + length - tail, snapshots, tail) != 0 || !is_commit(commit + 1)) {
        return false;
    }
    const char *end = path + length - tail, *begin = end;
    while (begin > path && begin[-1] != '/') { begin--; }
    if ((size_t)(end - begin) < sizeof kind || memcmp(begin, kind, sizeof kind - 1) != 0) { return false; }
    for (const char *c = begin + sizeof kind - 1; c < end; c++) {
        const bool parts = c[0] == '-' && c + 1 < end && c[1] == '-';
        qr_buffer_append_char(name, parts ? '/' : *c);
        c += parts;
    }
    qr_buffer_append_format(name, "@%s", commit + 1);
    return true;
}

qrun_status qr_hub_name_of(const char *folder, char **name, qr_error *err) {
    char path[PATH_MAX];
    qr_buffer text = {0};
    *name = NULL;
    if (realpath(folder, path) == NULL || !append_name(path, &text)) { return QRUN_OK; }
    *name = qr_buffer_take(&text);
    return *name != NULL ? QRUN_OK : qr_fail_memory(err, folder, strlen(folder));
}

void qr_hub_append_command(const char *folder, qr_buffer *out) {
    char *name = NULL;
    if (qr_hub_name_of(folder, &name, NULL) != QRUN_OK || name == NULL) { return; }
    qr_buffer_append_text(out, "; complete the download with: ");
    append_download(name, out);
    qr_free(name);
}
