/* Whole files: read, hashed, replaced; and a folder for what is not kept.
 *
 * A path that the user gives may be a pipe, as "<(command)" makes one, and is read to its end. It may be a link: what
 * it leads to is read, or written. A name that the program makes itself (FILE.partial, metrics.jsonl in the output
 * folder) is a regular file and no link, or refused: somebody else could have put it there. */
#ifndef QRUN_CLI_TERMINAL_FILES_H
#define QRUN_CLI_TERMINAL_FILES_H

#include "cli/terminal/text.h"

/* The whole of a file, or of stdin for "-". Returns 0 or an exit code, after telling the user; so
 * do the others. */
int file_read(text_buffer *t, const char *path);
/* The same, of what has to be a text: a file with zero bytes is refused. */
int file_read_text(text_buffer *t, const char *path);
/* The same, of at most max_bytes; a longer file is refused without being read whole. */
int file_read_short_text(text_buffer *t, const char *path, size_t max_bytes);

/* The same of a file that the program has written under a name of its own. */
int file_read_own(text_buffer *t, const char *path);

/* Opens a file under a name of the program's own, without waiting and through no link; `flags` as for open. −1 with
 * errno set, which own_problem puts into words: ELOOP for a link, EEXIST for what is no regular file. */
int open_own(const char *path, int flags);
const char *own_problem(int error_number);
/* Makes a new file of that name, for writing. One that is there already, left by a killed program, makes room. */
int create_own(const char *path);

/* FNV-1a, 64 bits, of bytes after those that `hash` stands for; begin with HASH_START. */
#define HASH_START 0xcbf29ce484222325ULL
uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes);

/* Appends the folder that `path` is in: "." or up to the last slash. */
void folder_of(const char *path, text_buffer *folder);

/* Appends where a file that the user names is written: `path`, or what it leads to where it is a link, whether that is
 * there or not. A link that leads in a circle stays as it is. */
void output_target(const char *path, text_buffer *target);

/* Writes `content` to disk beside the file that `path` leads to, as NAME.qrun-partial-PID, and then renames it. What
 * was there before then stays. A device or a pipe is written to directly. */
int replace_file(const char *path, const text_buffer *content);
/* The same of a file under a name of the program's own: a link of that name is replaced, not followed. */
int replace_own_file(const char *path, const text_buffer *content);

/* Writes all of `content` at the descriptor's position; false with errno set. */
bool write_whole(int descriptor, const text_buffer *content);

/* Makes a folder under TMPDIR (else /tmp), for what is needed only while the program runs, and appends its path. */
int scratch_folder_make(text_buffer *path);
/* Removes it with all that is in it; what cannot be removed stays. */
void scratch_folder_remove(const char *path);

#endif
