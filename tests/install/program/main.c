/* What a program of somebody else does first: opens a context and asks what it runs on. Prints the library's version.
 */
#include <qrun.h>
#include <stdio.h>
#include <string.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

int main(void) {
    qrun_error error = QRUN_ERROR_INIT;
    qrun_context *context = NULL;
    qrun_device_info info = QRUN_DEVICE_INFO_INIT;
    if (strcmp(qrun_version(), VERSION(QRUN_VERSION_MAJOR, QRUN_VERSION_MINOR, QRUN_VERSION_PATCH)) != 0) {
        fprintf(stderr, "header and library are of different versions\n");
        return 1;
    }
    if (qrun_context_create(NULL, &context, &error) != QRUN_OK ||
        qrun_context_device_info(context, &info, &error) != QRUN_OK || info.n_threads < 1) {
        fprintf(stderr, "%s: %s\n", qrun_status_name(error.status), error.message);
        return 1;
    }
    qrun_context_destroy(context);
    printf("%s\n", qrun_version());
    return 0;
}
