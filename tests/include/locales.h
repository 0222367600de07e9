/* For tests in another locale: one of the machine's, or one made for the test where `localedef` can. */
#ifndef QR_TESTS_LOCALES_H
#define QR_TESTS_LOCALES_H

#include <locale.h>

#include "check.h"
#include "temporary.h"

static temporary_folder locales_made;

/* "de_DE": 1,5. "ps_AF": its decimal point has two bytes. Begins it for the whole process; false, and the case is
 * skipped, where there is none. */
static inline bool locales_begin(const char *name) {
    char full[32], command[256];
    snprintf(full, sizeof full, "%s.UTF-8", name);
    if (setlocale(LC_ALL, full) != NULL) { return true; }
    locales_made = temporary_create();
    snprintf(command, sizeof command, "localedef -i %s -f UTF-8 --no-archive %s/%s >/dev/null 2>&1", name,
             locales_made.path, full);
    const bool made = system(command) == 0 && setenv("LOCPATH", locales_made.path, 1) == 0;
    if (made && setlocale(LC_ALL, full) != NULL) { return true; }
    temporary_remove(&locales_made);
    check_skip("this machine has no such locale, and localedef cannot make it");
    return false;
}

static inline void locales_end(void) {
    setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
    if (locales_made.path[0] != '\0') { temporary_remove(&locales_made); }
    locales_made.path[0] = '\0';
}

#endif
