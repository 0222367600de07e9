/* Whole files: read, hashed, replaced; and a folder for what is not kept. */
#ifndef QRUN_CLI_TERMINAL_FILES_H
#define QRUN_CLI_TERMINAL_FILES_H

#include "cli/terminal/text.h"

/* The whole of a file, or of stdin for "-". Returns 0 or an exit code, after telling the user; so
 * do the others. */
int file_read(text_buffer *t, const char *path);
/* The same, of what has to be a text: a file with zero bytes is refused. */
int file_read_text(text_buffer *t, const char *path);

/* FNV-1a, 64 bits, of bytes after those that `hash` stands for; begin with HASH_START. */
#define HASH_START 0xcbf29ce484222325ULL
uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t n_bytes);

/* Appends the folder that `path` is in: "." or up to the last slash. */
void folder_of(const char *path, text_buffer *folder);

/* Writes `content` to disk as `path`.partial, and then renames it. What was there before then stays. */
int replace_file(const char *path, const text_buffer *content);

/* Writes all of `content` at the descriptor's position; false with errno set. */
bool write_whole(int descriptor, const text_buffer *content);

/* Makes a folder under TMPDIR (else /tmp), for what is needed only while the program runs, and appends its path. */
int scratch_folder_make(text_buffer *path);
/* Removes it with all that is in it; what cannot be removed stays. */
void scratch_folder_remove(const char *path);

#endif
