/* Folders: made, locked, written as a whole, removed.
 *
 * Nothing is emptied that is not ours, and nothing is reached through a symbolic link. A folder that is being written
 * or removed carries a mark, the file QR_FOLDER_MARK, from its first moment to its last; what has no mark stays. */
#ifndef QR_BASE_FOLDER_H
#define QR_BASE_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

/* ---- The mark ---------------------------------------------------------------------------------------------------- */

#define QR_FOLDER_MARK ".qrun-partial"

/* Whether the folder itself, not one that a link points to, carries the mark with our text. */
bool qr_folder_is_marked(const char *path);

/* Puts the mark into a folder, or takes it out, also of the folders in it; it may be there, or missing, already. */
qrun_status qr_folder_mark(const char *path, qr_error *err);
qrun_status qr_folder_unmark(const char *path, qr_error *err);

/* Removes a marked folder, the files in it, and the marked folders in it with their files; its mark goes last. If it
 * contains other folders, they and it stay. A folder without the mark is QRUN_ERROR_IO, unless it is empty; so is a
 * link. No folder at path is fine. */
qrun_status qr_folder_remove_marked(const char *path, qr_error *err);

/* Removes a complete folder that the caller knows as ours by what is in it: marks it, renames it as one that is being
 * written, and removes that. Killed on the way, it leaves a whole folder or one that qr_folder_remove_partials finds.
 */
qrun_status qr_folder_retire(const char *path, qr_error *err);

/* Removes what writers of killed programs left in the folder: files of a partial name, folders of a partial name with
 * the mark. Takes the mark out of other folders there, whose writer was killed after it had renamed them. Whoever calls
 * it must know that no other program is writing there (qr_folder_lock). No folder at path is fine. */
qrun_status qr_folder_remove_partials(const char *path, qr_error *err);

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

/* A folder that is written under the name "<path>.qrun-partial-<pid>", with the mark in it. The caller puts files into
 * partial_path, and folders of files that it makes with qr_folder_create_marked. commit fsyncs it, renames it to path
 * and takes the marks out; it aborts when it fails. abort removes the folder with what is in it. path must not exist
 * and its parent must. open removes what killed writers of the same path left. commit and abort are no-ops on a zeroed
 * writer. */
typedef struct qr_folder_writer {
    char *path, *partial_path;
    int lock; /* on partial_path, while it is written; −1: none */
} qr_folder_writer;

qrun_status qr_folder_writer_open(qr_folder_writer *writer, const char *path, qr_error *err);
qrun_status qr_folder_writer_commit(qr_folder_writer *writer, qr_error *err);
void qr_folder_writer_abort(qr_folder_writer *writer);

/* ---- Making and locking ------------------------------------------------------------------------------------------ */

/* Makes the folder and its parents where they are missing. */
qrun_status qr_folder_create(const char *path, qr_error *err);
/* Makes a folder that carries the mark. */
qrun_status qr_folder_create_marked(const char *path, qr_error *err);

/* Locks the folder, in this process and others, until qr_folder_unlock or the end of the process; QRUN_ERROR_BUSY when
 * it is locked. The descriptor is the caller's to keep (−1: none, fine to unlock). On a file system without locks it
 * always succeeds. */
qrun_status qr_folder_lock(const char *path, int *descriptor, qr_error *err);
void qr_folder_unlock(int *descriptor);

#endif
