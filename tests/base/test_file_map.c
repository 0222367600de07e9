/* Mapped files that end while they are read: zeros and an error instead of SIGBUS, and the host's own handling of
 * SIGBUS as it was. */
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_map.h"
#include "temporary.h"

enum { PAGES = 40, N_READERS = 4 };

static size_t file_bytes(void) { return (size_t)PAGES * (size_t)sysconf(_SC_PAGESIZE); }

static const char *make_file(const temporary_folder *folder, const char *name) {
    char *bytes = malloc(file_bytes());
    memset(bytes, 7, file_bytes());
    const char *path = temporary_write(folder, name, bytes, file_bytes());
    free(bytes);
    return path;
}

static size_t sum(const qr_file_map *map) {
    size_t total = 0;
    for (size_t i = 0; i < map->size; i++) { total += ((const volatile unsigned char *)map->data)[i]; }
    return total;
}

static void check_is_cut(const qr_file_map *map, const char *path) {
    qr_error err = {0};
    CHECK_INT(qr_file_map_check(map, path, &err), QRUN_ERROR_IO);
    CHECK_MSG(strncmp(err.message, path, strlen(path)) == 0 && strstr(err.message, "cut short") != NULL, "%s",
              err.message);
}

static void test_a_file_cut_short_reads_as_zeros(void) {
    const size_t kept[] = {0, 1, 4096, file_bytes() - 1, file_bytes() - 4096};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const temporary_folder folder = temporary_create();
        const char *path = make_file(&folder, "file");
        qr_file_map map;
        REQUIRE(qr_file_map_open(path, &map, NULL) == QRUN_OK);
        CHECK_INT(sum(&map), 7 * file_bytes());
        CHECK_INT(qr_file_map_check(&map, path, NULL), QRUN_OK);
        CHECK(truncate(path, (off_t)kept[i]) == 0);
        CHECK_INT(sum(&map), 7 * kept[i]);
        check_is_cut(&map, path);
        qr_file_map_drop(&map, 0, map.size);
        CHECK_INT(sum(&map), 7 * kept[i]);
        check_is_cut(&map, path);
        qr_file_map_close(&map);
        temporary_remove(&folder);
    }
}

/* What the process has mapped, in bytes. */
static size_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%lu", &pages) != 1) { abort(); }
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void test_no_room_for_a_map(void) {
    const size_t most = (size_t)256 << 20;
    const temporary_folder folder = temporary_create();
    const char *path = make_file(&folder, "file");
    struct rlimit before, limit;
    qr_error err = {0};
    qr_file_map map;
    REQUIRE(truncate(path, (off_t)(4 * most)) == 0 && getrlimit(RLIMIT_AS, &before) == 0);
    limit = before;
    limit.rlim_cur = mapped_bytes() + most;
    REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
    CHECK_INT(qr_file_map_open(path, &map, &err), QRUN_ERROR_MEMORY);
    REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK_MSG(strstr(err.message, "ulimit -v") != NULL, "%s", err.message);
    temporary_remove(&folder);
}

/* It grows again before anybody looks: what was read in between is wrong all the same. */
static void test_a_file_that_was_short_for_a_while(void) {
    const temporary_folder folder = temporary_create();
    const char *path = make_file(&folder, "file");
    qr_file_map map;
    REQUIRE(qr_file_map_open(path, &map, NULL) == QRUN_OK);
    CHECK(truncate(path, 0) == 0);
    CHECK_INT(sum(&map), 0);
    CHECK(truncate(path, (off_t)file_bytes()) == 0);
    check_is_cut(&map, path);
    qr_file_map_close(&map);
    temporary_remove(&folder);
}

static void test_a_file_replaced_by_another_is_whole(void) {
    const temporary_folder folder = temporary_create();
    const char *path = make_file(&folder, "file");
    qr_file_map map;
    REQUIRE(qr_file_map_open(path, &map, NULL) == QRUN_OK);
    temporary_text(&folder, "file", "short"); /* written aside and renamed */
    CHECK_INT(sum(&map), 7 * file_bytes());
    CHECK_INT(qr_file_map_check(&map, path, NULL), QRUN_OK);
    CHECK(unlink(path) == 0);
    CHECK_INT(qr_file_map_check(&map, path, NULL), QRUN_OK);
    qr_file_map_close(&map);
    temporary_remove(&folder);
}

static void *read_map(void *arg) {
    for (int i = 0; i < 5; i++) { CHECK_INT(sum(arg), 0); }
    return NULL;
}

static void test_many_threads_read_a_cut_file(void) {
    const temporary_folder folder = temporary_create();
    qr_file_map maps[N_READERS];
    pthread_t threads[2 * N_READERS];
    const char *path = make_file(&folder, "file");
    for (int i = 0; i < N_READERS; i++) { REQUIRE(qr_file_map_open(path, &maps[i], NULL) == QRUN_OK); }
    CHECK(truncate(path, 0) == 0);
    for (int i = 0; i < 2 * N_READERS; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, read_map, &maps[i % N_READERS]) == 0);
    }
    for (int i = 0; i < 2 * N_READERS; i++) { pthread_join(threads[i], NULL); }
    for (int i = 0; i < N_READERS; i++) {
        check_is_cut(&maps[i], path);
        qr_file_map_close(&maps[i]);
    }
    temporary_remove(&folder);
}

/* ---- The host's handling of SIGBUS ------------------------------------------------------------------------------- */

static sigjmp_buf host_return;
static volatile sig_atomic_t n_host_signals;

static void host_handler(int number) {
    (void)number;
    n_host_signals++;
    siglongjmp(host_return, 1);
}

static void *host_handler_now(void) {
    struct sigaction now;
    CHECK(sigaction(SIGBUS, NULL, &now) == 0);
    return (void *)(uintptr_t)now.sa_handler;
}

/* Reads a map of the host's own past the end of its file. */
static void read_own_map(const temporary_folder *folder) {
    const char *path = make_file(folder, "own");
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    volatile char *own = mmap(NULL, file_bytes(), PROT_READ, MAP_SHARED, fileno(file), 0);
    fclose(file);
    REQUIRE(own != MAP_FAILED);
    CHECK(truncate(path, 0) == 0);
    if (sigsetjmp(host_return, 1) == 0) {
        (void)own[0];
        CHECK(!"a read past the end of a file raises SIGBUS");
    }
    munmap((void *)(uintptr_t)own, file_bytes());
}

static void test_the_hosts_handler_gets_its_own(void) {
    const temporary_folder folder = temporary_create();
    struct sigaction host = {.sa_handler = host_handler}, before;
    CHECK(sigaction(SIGBUS, &host, &before) == 0);
    qr_file_map map, second;
    const char *path = make_file(&folder, "file");
    REQUIRE(qr_file_map_open(path, &map, NULL) == QRUN_OK);
    REQUIRE(qr_file_map_open(path, &second, NULL) == QRUN_OK);
    n_host_signals = 0;
    read_own_map(&folder);
    CHECK_INT(n_host_signals, 1);
    if (sigsetjmp(host_return, 1) == 0) { raise(SIGBUS); }
    CHECK_INT(n_host_signals, 2);
    CHECK(truncate(temporary_path(&folder, "file"), 0) == 0);
    CHECK_INT(sum(&map), 0);
    CHECK_INT(n_host_signals, 2);
    qr_file_map_close(&map);
    qr_file_map_close(&second);
    CHECK(host_handler_now() == (void *)(uintptr_t)host_handler);
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
    temporary_remove(&folder);
}

static void test_a_handler_installed_meanwhile_stays(void) {
    const temporary_folder folder = temporary_create();
    struct sigaction host = {.sa_handler = host_handler}, before;
    qr_file_map map;
    REQUIRE(qr_file_map_open(make_file(&folder, "file"), &map, NULL) == QRUN_OK);
    CHECK(sigaction(SIGBUS, &host, &before) == 0);
    qr_file_map_close(&map);
    CHECK(host_handler_now() == (void *)(uintptr_t)host_handler);
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
    REQUIRE(qr_file_map_open(make_file(&folder, "again"), &map, NULL) == QRUN_OK);
    CHECK(truncate(temporary_path(&folder, "again"), 0) == 0);
    CHECK_INT(sum(&map), 0);
    qr_file_map_close(&map);
    temporary_remove(&folder);
}

/* With no handler of the host's, its own mistakes end the process as they always did. */
static void test_other_bus_errors_end_the_process(void) {
    const temporary_folder folder = temporary_create();
    for (int sent = 0; sent <= 1; sent++) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            qr_file_map map;
            alarm(20);
            if (freopen("/dev/null", "w", stderr) == NULL) { _exit(0); }
            if (qr_file_map_open(make_file(&folder, "file"), &map, NULL) != QRUN_OK) { _exit(0); }
            if (sent == 1) { raise(SIGBUS); }
            const char *path = make_file(&folder, "own");
            FILE *file = fopen(path, "r");
            volatile char *own = mmap(NULL, file_bytes(), PROT_READ, MAP_SHARED, fileno(file), 0);
            if (truncate(path, 0) != 0) { _exit(0); }
            (void)own[0];
            _exit(0);
        }
        int status = 0;
        REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
        const bool ended = WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0; /* ASan exits */
        CHECK_MSG(ended, "status 0x%x", (unsigned)status);
    }
    temporary_remove(&folder);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_a_file_cut_short_reads_as_zeros);
    CHECK_RUN(test_no_room_for_a_map);
    CHECK_RUN(test_a_file_that_was_short_for_a_while);
    CHECK_RUN(test_a_file_replaced_by_another_is_whole);
    CHECK_RUN(test_many_threads_read_a_cut_file);
    CHECK_RUN(test_the_hosts_handler_gets_its_own);
    CHECK_RUN(test_a_handler_installed_meanwhile_stays);
    CHECK_RUN(test_other_bus_errors_end_the_process);
    return check_end();
}
