/* What is removed is never reached through a symbolic link. */
#include "check.h"

#include <unistd.h>

#include "temporary.h"

static const char *in(const temporary_folder *folder, const char *name) { return temporary_path(folder, name); }

/* A folder "home" with a file in it, and `link` pointing to it. */
static temporary_folder make_home(const char *link) {
    const temporary_folder folder = temporary_create();
    CHECK(mkdir(in(&folder, "home"), 0777) == 0);
    CHECK(qr_file_write(in(&folder, "home/file"), "kept", 4, NULL) == QRUN_OK);
    CHECK(symlink("home", in(&folder, link)) == 0);
    return folder;
}

static void check_kept(const temporary_folder *folder, const char *link) {
    struct stat info;
    CHECK(qr_file_exists(in(folder, "home/file")));
    CHECK(lstat(in(folder, link), &info) == 0 && S_ISLNK(info.st_mode));
    temporary_remove(folder);
}

static void test_remove_of_a_link_is_refused(void) {
    const temporary_folder folder = make_home("out");
    qr_error err = {0};
    CHECK(qr_folder_remove_flat(in(&folder, "out"), &err) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(err.message, "symbolic link") != NULL, "%s", err.message);
    check_kept(&folder, "out");
}

static void test_retiring_a_link_is_refused(void) {
    const temporary_folder folder = make_home("checkpoint-1");
    qr_error err = {0};
    CHECK(qr_folder_retire(in(&folder, "checkpoint-1"), &err) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(err.message, "symbolic link") != NULL, "%s", err.message);
    check_kept(&folder, "checkpoint-1");
}

static void test_partials_that_are_links_stay(void) {
    const temporary_folder folder = make_home("out.partial-999999999");
    CHECK(qr_folder_remove_partials(folder.path, NULL) == QRUN_OK);
    check_kept(&folder, "out.partial-999999999");
}

static void test_a_writer_leaves_links_of_its_name_alone(void) {
    const temporary_folder folder = make_home("out.partial-999999999");
    qr_folder_writer writer;
    CHECK(qr_folder_writer_open(&writer, in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(qr_folder_writer_commit(&writer, NULL) == QRUN_OK);
    check_kept(&folder, "out.partial-999999999");
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_remove_of_a_link_is_refused);
    CHECK_RUN(test_retiring_a_link_is_refused);
    CHECK_RUN(test_partials_that_are_links_stay);
    CHECK_RUN(test_a_writer_leaves_links_of_its_name_alone);
    return check_end();
}
