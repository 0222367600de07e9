#define _GNU_SOURCE /* CPUs of this process */
#include "cli/options/local_ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/terminal/files.h"
#include "cli/terminal/messages.h"

enum { PATIENCE = 500, PAUSE_NANOSECONDS = 10000000 }; /* 5 s */

static void set_number(const char *name, int value) {
    char text[16];
    (void)snprintf(text, sizeof text, "%d", value);
    (void)setenv(name, text, 1);
}

static bool is_free(int port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = descriptor >= 0 && bind(descriptor, (const struct sockaddr *)&address, sizeof address) == 0;
    if (descriptor >= 0) { (void)close(descriptor); }
    return free;
}

/* One that nobody listens on now, below those that connections get from the system. Programs that start at once begin
 * to look at different ones. 0: there is none. */
static int free_port(void) {
    enum { FIRST_PORT = 29000, N_PORTS = 3700 };
    const int begin = (int)(getpid() % N_PORTS);
    for (int i = 0; i < N_PORTS; i++) {
        const int port = FIRST_PORT + (begin + i) % N_PORTS;
        if (is_free(port)) { return port; }
    }
    return 0;
}

/* The words of this command, which point into `text`; NULL after the last. */
static char **read_words(text_buffer *text) {
    size_t n = 0;
    if (file_read(text, "/proc/self/cmdline") != EXIT_OK || text->size == 0) { return NULL; }
    for (size_t i = 0; i < text->size; i++) { n += text->data[i] == '\0'; }
    char **words = allocate((n + 2) * sizeof *words);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        words[i] = text->data + at;
        at += strlen(words[i]) + 1;
    }
    return words;
}

/* In a process of its own, which has no terminal: Ctrl-C is rank 0's to answer. */
static void become_rank(int rank, pid_t parent, char **words) {
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    (void)setpgid(0, 0);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent && nothing >= 0 && dup2(nothing, 0) == 0 &&
        dup2(nothing, 1) == 1) {
        (void)execv("/proc/self/exe", words);
    }
    _exit(127);
}

int local_ranks_start(local_ranks *ranks, int n_ranks) {
    text_buffer text = {0};
    const pid_t own = getpid();
    const int port = free_port();
    if (n_ranks - 1 > LOCAL_RANKS_MAX) {
        return complain(EXIT_USAGE, "at most %d ranks are started here; launch more with mpirun or torchrun",
                        LOCAL_RANKS_MAX + 1);
    }
    char **words = read_words(&text);
    if (words == NULL || port == 0) {
        text_free(&text);
        return complain(EXIT_ENGINE, "cannot start further ranks: %s", strerror(errno));
    }
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    (void)unsetenv("TORCHELASTIC_RUN_ID");
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    set_number("WORLD_SIZE", n_ranks);
    set_number("LOCAL_WORLD_SIZE", n_ranks);
    set_number("RANK", 0);
    set_number("LOCAL_RANK", 0);
    int code = EXIT_OK;
    for (int rank = 1; rank < n_ranks && code == EXIT_OK; rank++) {
        const pid_t child = fork();
        if (child == 0) { become_rank(rank, own, words); }
        if (child < 0) { code = complain(EXIT_ENGINE, "cannot start rank %d: %s", rank, strerror(errno)); }
        if (child > 0) { ranks->processes[ranks->n++] = child; }
    }
    free(words);
    text_free(&text);
    return code;
}

void local_ranks_end(local_ranks *ranks) {
    const struct timespec pause = {.tv_nsec = PAUSE_NANOSECONDS};
    for (int i = 0, tries = 0; i < ranks->n; i++) {
        while (waitpid(ranks->processes[i], NULL, WNOHANG) == 0) {
            if (tries++ >= PATIENCE) { (void)kill(ranks->processes[i], SIGKILL); }
            (void)nanosleep(&pause, NULL);
        }
    }
    ranks->n = 0;
}

int local_threads(long n) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (n <= 1 || sched_getaffinity(0, sizeof cpus, &cpus) != 0) { return 0; }
    const long each = CPU_COUNT(&cpus) / n;
    return each > 0 ? (int)each : 1;
}

int local_ranks_threads(void) {
    const char *text = getenv("LOCAL_WORLD_SIZE");
    return local_threads(text != NULL ? strtol(text, NULL, 10) : 0);
}
