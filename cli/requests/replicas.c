#define _GNU_SOURCE /* memmem */
#include "cli/requests/replicas.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/options/command.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/messages.h"
#include "cli/terminal/progress.h"

enum {
    MOST_LINE_BYTES = 128 << 20,
    MOST_WAITING_BYTES = 1 << 16,
    READ_BYTES = 1 << 16,
    BEAT_MS = 200,
    MOST_BEATS = 500 /* tenths of one, that others wait for the first to speak */
};

/* ---- Processes --------------------------------------------------------------------------------------------------- */

/* Becomes a replica. The first speaks for all: what one cannot do, none can. */
static void become_replica(int number, pid_t parent, int descriptor) {
    const int nothing = number > 0 ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDERR_FILENO;
    (void)setpgid(0, 0); /* Ctrl-C is the other process's to answer */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || dup2(descriptor, STDIN_FILENO) < 0 ||
        dup2(descriptor, STDOUT_FILENO) < 0 || (nothing != STDERR_FILENO && dup2(nothing, STDERR_FILENO) < 0)) {
        _exit(EXIT_ENGINE);
    }
}

int replicas_start(replicas *r, int n, int *number) {
    const pid_t own = getpid();
    *number = -1;
    for (int i = 0; i < n; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
            return complain(EXIT_ENGINE, "cannot start replica %d: %s", i, strerror(errno));
        }
        const pid_t child = fork();
        if (child == 0) {
            become_replica(i, own, ends[1]);
            *number = i;
            return EXIT_OK;
        }
        (void)close(ends[1]);
        if (child < 0) {
            (void)close(ends[0]);
            return complain(EXIT_ENGINE, "cannot start replica %d: %s", i, strerror(errno));
        }
        r->each[r->n++] = (replica){.process = child, .to = ends[0], .from = ends[0]};
    }
    return EXIT_OK;
}

static void free_replica(replica *one) {
    for (int64_t i = 0; i < one->n_dealt; i++) { free(one->dealt[i].id); }
    free(one->dealt);
    text_free(&one->out);
    text_free(&one->in);
}

void replicas_end(replicas *r) {
    for (int i = 0; i < r->n; i++) {
        replica *one = &r->each[i];
        if (one->from >= 0) { (void)close(one->from); }
        if (one->process > 0) {
            (void)kill(one->process, SIGKILL);
            (void)waitpid(one->process, NULL, 0);
        }
        free_replica(one);
    }
    r->n = 0;
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/* What a line with an error says; NULL: it has an answer, which ends in an object or an array. */
static const char *error_of(const char *line, size_t n_bytes) {
    static const char key[] = ",\"error\":\"";
    const char *error = NULL, *end = line + n_bytes, *at = line;
    if (n_bytes < 2 || memcmp(end - 2, "\"}", 2) != 0) { return NULL; }
    while ((at = memmem(at, (size_t)(end - at), key, sizeof key - 1)) != NULL) { error = at += sizeof key - 1; }
    return error;
}

/* A line of a replica, {"index":7…, as an answer to the request that it has under that number. */
static bool take_line(replica *one, job *j, const char *line, size_t n_bytes) {
    static const char begin[] = "{\"index\":";
    char *rest;
    if (n_bytes < sizeof begin || memcmp(line, begin, sizeof begin - 1) != 0) { return false; }
    const long long own = strtoll(line + sizeof begin - 1, &rest, 10);
    if (own < 0 || own >= one->n_dealt || rest > line + n_bytes) { return false; }
    const dealt_request *request = &one->dealt[own];
    const size_t n_rest = n_bytes - (size_t)(rest - line);
    const char *error = error_of(rest, n_rest);
    if (error != NULL) {
        const int n_error = (int)(line + n_bytes - error) - 2; /* without the quote and the brace */
        if (j->n_failed == 0) { snprintf(j->first_failure, sizeof j->first_failure, "%.*s", n_error, error); }
        j->n_failed++;
    }
    text_format(&j->lines, "%s%lld%s", begin, (long long)request->index, request->id != NULL ? request->id : "");
    text_append(&j->lines, rest, n_rest);
    text_puts(&j->lines, "\n");
    return true;
}

/* Whole groups of lines: an empty line ends what answers a request. False: it is none. */
static bool take_answers(replica *one, job *j) {
    size_t done = 0;
    const char *end;
    while (one->in.size > done && (end = memmem(one->in.data + done, one->in.size - done, "\n\n", 2)) != NULL) {
        const char *line = one->in.data + done;
        text_clear(&j->lines);
        while (line <= end) {
            const char *newline = memchr(line, '\n', (size_t)(end + 1 - line));
            if (!take_line(one, j, line, (size_t)(newline - line))) { return false; }
            line = newline + 1;
        }
        j->n_answered++;
        j->n_in_flight--;
        one->n_open--;
        if (j->stop_code == EXIT_OK) { j->stop_code = answer_file_write(j->output, &j->lines); }
        done = (size_t)(end + 2 - one->in.data);
    }
    if (done > 0) {
        memmove(one->in.data, one->in.data + done, one->in.size - done + 1);
        one->in.size -= done;
    }
    return true;
}

/* The exit code with which a replica says that it failed; EXIT_OK: it was killed, or has not ended. */
static int failure_of(replica *one, int options) {
    int status = 0;
    if (one->process <= 0 || waitpid(one->process, &status, options) != one->process) { return EXIT_OK; }
    one->process = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_OK;
}

/* It has ended before it had answered all. The first one says why, unless it was killed; another that failed may be
 * ahead of it. */
static int complain_lost(replicas *r, int number) {
    int code = failure_of(&r->each[number], 0);
    if (code != EXIT_OK && number > 0) {
        code = EXIT_OK;
        for (int beat = 0; beat < MOST_BEATS && r->each[0].process > 0 && code == EXIT_OK && !interrupted(); beat++) {
            code = failure_of(&r->each[0], WNOHANG);
            if (code == EXIT_OK) { (void)poll(NULL, 0, BEAT_MS / 10); }
        }
    }
    if (code != EXIT_OK) { return code; }
    return complain(EXIT_ENGINE, "replica %d ended without a word; was it killed, or out of memory?", number);
}

static int receive(replicas *r, int number, job *j) {
    replica *one = &r->each[number];
    char bytes[READ_BYTES];
    const ssize_t n = recv(one->from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) { return EXIT_OK; }
    if (n > 0) {
        text_append(&one->in, bytes, (size_t)n);
        if (take_answers(one, j)) { return j->stop_code; }
        return complain(EXIT_ENGINE, "replica %d says what is no answer", number);
    }
    (void)close(one->from);
    one->from = one->to = -1;
    return one->n_open > 0 || !j->all_read ? complain_lost(r, number) : EXIT_OK;
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static size_t waiting_bytes(const replica *one) { return one->out.size - one->out_done; }

/* With the fewest open requests; NULL: each has enough. */
static replica *choose(replicas *r) {
    replica *chosen = NULL;
    for (int i = 0; i < r->n; i++) {
        replica *one = &r->each[i];
        if (one->n_open >= r->most_open || waiting_bytes(one) > MOST_WAITING_BYTES) { continue; }
        if (chosen == NULL || one->n_open < chosen->n_open) { chosen = one; }
    }
    return chosen;
}

/* Line for line, so that each replica counts lines as they are in the file: what another has is an empty one. */
static void deal(replica *to, const job *j) {
    const line_reader *reader = &j->requests->reader;
    to->dealt = reallocate_for_more(to->dealt, to->n_dealt, &to->capacity, sizeof *to->dealt);
    dealt_request *request = &to->dealt[to->n_dealt++];
    *request = (dealt_request){.index = j->requests->index};
    if (j->requests->id.size > 0) {
        request->id = allocate(j->requests->id.size + 1);
        memcpy(request->id, j->requests->id.data, j->requests->id.size);
    }
    to->n_open++;
    text_append(&to->out, reader->line.data, reader->line.size);
}

/* What no model could read is refused here. */
static int refuse_line(job *j) {
    const line_reader *reader = &j->requests->reader;
    text_buffer why = {0};
    char what[48];
    snprintf(what, sizeof what, "line %lld", (long long)reader->line_number);
    request_text_too_long(what, reader->max_bytes, &why);
    text_clear(&j->lines);
    text_format(&j->lines, "{\"index\":%lld%s,\"error\":", (long long)j->requests->index,
                j->requests->id.data != NULL ? j->requests->id.data : "");
    text_json_string(&j->lines, why.data, why.size);
    text_puts(&j->lines, "}\n");
    if (j->n_failed == 0) { snprintf(j->first_failure, sizeof j->first_failure, "%s", why.data); }
    j->n_failed++;
    j->n_answered++;
    text_free(&why);
    return answer_file_write(j->output, &j->lines);
}

static void pass_lines(replicas *r, int64_t from, int64_t to) {
    for (int i = 0; i < r->n; i++) {
        for (int64_t line = from; line < to; line++) { text_puts(&r->each[i].out, "\n"); }
    }
}

/* Deals what the replicas take now. */
static void feed(replicas *r, job *j, int64_t *line_number) {
    bool read_failed;
    replica *to;
    while (!j->all_read && j->stop_code == EXIT_OK && !interrupted() && (to = choose(r)) != NULL) {
        if (!request_file_next(j->requests, &read_failed)) {
            j->all_read = !interrupted();
            if (read_failed) { j->stop_code = EXIT_FILE; }
            return;
        }
        if (answer_file_has(j->output, j->requests->index)) {
            j->n_resumed++;
            continue;
        }
        if (j->requests->reader.too_long) {
            j->stop_code = refuse_line(j);
            continue;
        }
        pass_lines(r, *line_number, j->requests->reader.line_number - 1); /* those that nobody gets */
        deal(to, j);
        pass_lines(r, 0, 1);
        *line_number = j->requests->reader.line_number;
        j->n_in_flight++;
    }
}

static void send_some(replica *one, bool all_read) {
    if (one->to < 0) { return; }
    while (waiting_bytes(one) > 0) {
        const ssize_t n = send(one->to, one->out.data + one->out_done, waiting_bytes(one), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n <= 0) { return; } /* later; or it has ended, which reading finds out */
        one->out_done += (size_t)n;
    }
    text_clear(&one->out);
    one->out_done = 0;
    if (!all_read) { return; }
    (void)shutdown(one->to, SHUT_WR);
    one->to = -1;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static int exchange(replicas *r, job *j) {
    struct pollfd polled[REPLICAS_MAX];
    for (int i = 0; i < r->n; i++) {
        const replica *one = &r->each[i];
        const bool sends = one->to >= 0 && waiting_bytes(one) > 0;
        polled[i] = (struct pollfd){.fd = one->from, .events = (short)(POLLIN | (sends ? POLLOUT : 0))};
    }
    (void)poll(polled, (nfds_t)r->n, BEAT_MS);
    for (int i = 0; i < r->n && j->stop_code == EXIT_OK; i++) {
        if (polled[i].fd >= 0 && (polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            j->stop_code = receive(r, i, j);
        }
    }
    for (int i = 0; i < r->n; i++) { send_some(&r->each[i], j->all_read); }
    return j->stop_code;
}

static void show_progress(const job *j) {
    char of_total[32] = "";
    const int64_t total = j->requests->n_requests, done = j->n_answered + j->n_resumed;
    if (!progress_due()) { return; }
    if (total >= 0) { snprintf(of_total, sizeof of_total, "/%lld", (long long)total); }
    progress_draw((double)done, (double)(total > 0 ? total : 0), "%lld%s  %lld running or waiting%s", (long long)done,
                  of_total, (long long)j->n_in_flight, j->n_failed > 0 ? "  (some failed)" : "");
}

int replicas_run(replicas *r, job *j) {
    int64_t line_number = 0;
    j->begin_seconds = clock_seconds();
    j->requests->reader.max_bytes = MOST_LINE_BYTES;
    while (j->stop_code == EXIT_OK && !interrupted() && !(j->all_read && j->n_in_flight == 0)) {
        feed(r, j, &line_number);
        if (exchange(r, j) != EXIT_OK) { break; }
        show_progress(j);
    }
    progress_clear();
    if (j->stop_code != EXIT_OK) { return j->stop_code; }
    return j->all_read && j->n_in_flight == 0 ? EXIT_OK : EXIT_INTERRUPTED;
}
