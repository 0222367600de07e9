#define _XOPEN_SOURCE 700 /* nftw */
#include "cli/commands/scratch_folder.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/command.h"

int scratch_folder_make(text_buffer *path) {
    const char *parent = getenv("TMPDIR");
    text_format(path, "%s/qrun.XXXXXX", parent != NULL && *parent != '\0' ? parent : "/tmp");
    if (mkdtemp(path->data) != NULL) { return EXIT_OK; }
    return complain(EXIT_FILE, "cannot create '%s': %s; TMPDIR names another place", path->data, strerror(errno));
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place) {
    (void)info, (void)type, (void)place;
    (void)remove(path);
    return 0;
}

void scratch_folder_remove(const char *path) {
    enum { OPEN_FOLDERS = 8 };
    (void)nftw(path, remove_one, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}
