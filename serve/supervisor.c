#include "serve/supervisor.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_DESCRIPTOR = 3 };

int supervisor_socket(void) {
    const char *process = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (process == NULL || count == NULL || strtol(process, NULL, 10) != (long)getpid()) { return -1; }
    const long n = strtol(count, NULL, 10);
    if (n <= 0) { return -1; }
    if (n > 1) { return -2; }
    (void)fcntl(FIRST_DESCRIPTOR, F_SETFD, FD_CLOEXEC);
    return FIRST_DESCRIPTOR;
}

void supervisor_tell(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t n = path != NULL ? strlen(path) : 0;
    if (n < 2 || n >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) { return; }
    memcpy(address.sun_path, path, n);
    if (path[0] == '@') { address.sun_path[0] = '\0'; } /* a name without a file */
    const int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) { return; }
    const socklen_t n_address = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    (void)sendto(descriptor, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address, n_address);
    close(descriptor);
}
