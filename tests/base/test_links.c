/* Nothing is written, emptied or removed through a symbolic link, and no folder is emptied that is not ours. */
#include "check.h"

#include <unistd.h>

#include "base/file_map.h"
#include "base/sizes.h"
#include "temporary.h"

static const char *in(const temporary_folder *folder, const char *name) { return temporary_path(folder, name); }

/* The name that this process writes `name` under. */
static const char *partial(const temporary_folder *folder, const char *name) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s" QR_PARTIAL_SUFFIX "%ld", folder->path, name, (long)getpid());
    return path;
}

static bool is_link(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static void make_folder(const temporary_folder *folder, const char *name, bool marked) {
    char file[256];
    snprintf(file, sizeof file, "%s/file", name);
    CHECK(mkdir(in(folder, name), 0777) == 0);
    temporary_text(folder, file, "kept");
    CHECK(!marked || qr_folder_mark(in(folder, name), NULL) == QRUN_OK);
}

static void check_kept(const temporary_folder *folder, const char *name) {
    char file[256];
    snprintf(file, sizeof file, "%s/file", name);
    CHECK_MSG(qr_file_exists(in(folder, file)), "%s is gone", file);
}

/* ---- Folders through links --------------------------------------------------------------------------------------- */

/* A marked folder "home", and `link` pointing to it. */
static temporary_folder make_home(const char *link) {
    const temporary_folder folder = temporary_create();
    make_folder(&folder, "home", true);
    CHECK(symlink("home", in(&folder, link)) == 0);
    return folder;
}

static void check_home(const temporary_folder *folder, const char *link) {
    check_kept(folder, "home");
    CHECK(is_link(in(folder, link)));
    temporary_remove(folder);
}

static void test_remove_of_a_link_is_refused(void) {
    static const char *const names[] = {"out", "out/", "out//"};
    const temporary_folder folder = make_home("out");
    CHECK(!qr_folder_is_marked(in(&folder, "out")) && qr_folder_is_marked(in(&folder, "home")));
    for (size_t i = 0; i < QR_COUNT_OF(names); i++) {
        qr_error err = {0};
        CHECK(qr_folder_remove_marked(in(&folder, names[i]), &err) == QRUN_ERROR_IO);
        CHECK_MSG(strstr(err.message, "symbolic link") != NULL || i > 0, "%s", err.message);
    }
    check_home(&folder, "out");
}

static void test_retiring_a_link_is_refused(void) {
    const temporary_folder folder = make_home("checkpoint-1");
    qr_error err = {0};
    CHECK(qr_folder_retire(in(&folder, "checkpoint-1"), &err) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(err.message, "symbolic link") != NULL, "%s", err.message);
    check_home(&folder, "checkpoint-1");
}

static void test_partials_that_are_links_stay(void) {
    const temporary_folder folder = make_home("out" QR_PARTIAL_SUFFIX "999999999");
    CHECK(qr_folder_remove_partials(folder.path, NULL) == QRUN_OK);
    check_home(&folder, "out" QR_PARTIAL_SUFFIX "999999999");
}

static void test_a_writer_leaves_links_of_its_name_alone(void) {
    const temporary_folder folder = make_home("out" QR_PARTIAL_SUFFIX "999999999");
    qr_folder_writer writer;
    CHECK(qr_folder_writer_open(&writer, in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(qr_folder_writer_commit(&writer, NULL) == QRUN_OK);
    check_home(&folder, "out" QR_PARTIAL_SUFFIX "999999999");
}

static void test_a_mark_that_is_a_link_is_none(void) {
    const temporary_folder folder = temporary_create();
    make_folder(&folder, "ours", true);
    make_folder(&folder, "theirs", false);
    CHECK(symlink("../ours/" QR_FOLDER_MARK, in(&folder, "theirs/" QR_FOLDER_MARK)) == 0);
    CHECK(!qr_folder_is_marked(in(&folder, "theirs")));
    CHECK(qr_folder_mark(in(&folder, "theirs"), NULL) == QRUN_ERROR_IO);
    CHECK(qr_folder_remove_marked(in(&folder, "theirs"), NULL) == QRUN_ERROR_IO);
    check_kept(&folder, "theirs");
    temporary_remove(&folder);
}

/* ---- Folders of others ------------------------------------------------------------------------------------------- */

static void test_only_marked_folders_are_removed(void) {
    const temporary_folder folder = temporary_create();
    qr_error err = {0};
    make_folder(&folder, "theirs", false);
    make_folder(&folder, "ours", true);
    make_folder(&folder, "like", false);
    temporary_text(&folder, "like/" QR_FOLDER_MARK, "the name alone does not make it ours\n");
    CHECK(mkdir(in(&folder, "empty"), 0777) == 0); /* as a writer leaves it that is killed before it could mark it */
    CHECK(qr_folder_remove_marked(in(&folder, "theirs"), &err) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(err.message, "theirs: was not made by qrun") != NULL, "%s", err.message);
    CHECK(qr_folder_remove_marked(in(&folder, "like"), NULL) == QRUN_ERROR_IO);
    CHECK(qr_folder_remove_marked(in(&folder, "ours"), NULL) == QRUN_OK);
    CHECK(qr_folder_remove_marked(in(&folder, "empty"), NULL) == QRUN_OK);
    CHECK(qr_folder_remove_marked(in(&folder, "none"), NULL) == QRUN_OK);
    check_kept(&folder, "theirs");
    check_kept(&folder, "like");
    CHECK(!qr_file_exists(in(&folder, "ours")) && !qr_file_exists(in(&folder, "empty")));
    temporary_remove(&folder);
}

/* Killed between making the mark and writing its text, or on the way. */
static void test_a_mark_may_end_early(void) {
    const temporary_folder folder = temporary_create();
    static const char *const texts[] = {"", "qrun is", "qrun was"};
    for (size_t i = 0; i < QR_COUNT_OF(texts); i++) {
        make_folder(&folder, "ours", false);
        temporary_text(&folder, "ours/" QR_FOLDER_MARK, texts[i]);
        CHECK_INT(qr_folder_is_marked(in(&folder, "ours")), i < 2);
        CHECK_INT(qr_folder_mark(in(&folder, "ours"), NULL), i < 2 ? QRUN_OK : QRUN_ERROR_IO);
        CHECK_INT(qr_folder_remove_marked(in(&folder, "ours"), NULL), i < 2 ? QRUN_OK : QRUN_ERROR_IO);
    }
    temporary_remove(&folder);
}

static void test_a_marked_folder_with_folders_in_it_stays(void) {
    const temporary_folder folder = temporary_create();
    make_folder(&folder, "ours", true);
    make_folder(&folder, "ours/inner", false);
    make_folder(&folder, "home", true);
    CHECK(symlink("../home", in(&folder, "ours/link")) == 0);
    CHECK(qr_folder_remove_marked(in(&folder, "ours"), NULL) == QRUN_OK);
    CHECK(!qr_file_exists(in(&folder, "ours/file")));
    check_kept(&folder, "ours/inner");
    check_kept(&folder, "home");
    temporary_remove(&folder);
}

/* A written folder may have marked folders of files in it: they go with it, or appear with it. */
static void test_marked_folders_inside_share_its_end(void) {
    const temporary_folder folder = temporary_create();
    qr_folder_writer writer;
    for (int killed = 0; killed < 2; killed++) {
        REQUIRE(qr_folder_writer_open(&writer, in(&folder, "out"), NULL) == QRUN_OK);
        char *inner = qr_path_join(writer.partial_path, "inner"), *file = qr_path_join(inner, "file");
        REQUIRE(qr_folder_create_marked(inner, NULL) == QRUN_OK);
        CHECK(qr_file_write(file, "kept", 4, NULL) == QRUN_OK);
        if (killed == 0) {
            qr_folder_writer_abort(&writer);
            CHECK(!qr_file_exists(in(&folder, "out")) && !qr_file_exists(partial(&folder, "out")));
        } else {
            CHECK(qr_folder_writer_commit(&writer, NULL) == QRUN_OK);
        }
        qr_free(inner);
        qr_free(file);
    }
    check_kept(&folder, "out/inner");
    CHECK(!qr_folder_is_marked(in(&folder, "out")) && !qr_folder_is_marked(in(&folder, "out/inner")));
    /* Killed after the rename: both have their marks still. */
    CHECK(qr_folder_mark(in(&folder, "out/inner"), NULL) == QRUN_OK &&
          qr_folder_mark(in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(qr_folder_remove_partials(folder.path, NULL) == QRUN_OK);
    check_kept(&folder, "out/inner");
    CHECK(!qr_folder_is_marked(in(&folder, "out")) && !qr_folder_is_marked(in(&folder, "out/inner")));
    temporary_remove(&folder);
}

static void test_what_killed_runs_left_goes_and_the_rest_stays(void) {
    const temporary_folder folder = temporary_create();
    make_folder(&folder, "checkpoint-3" QR_PARTIAL_SUFFIX "999999999", true);
    make_folder(&folder, "checkpoint-4" QR_PARTIAL_SUFFIX "999999999", false);
    make_folder(&folder, "model.partial-2024", false);
    make_folder(&folder, "checkpoint-500", false);
    make_folder(&folder, "checkpoint-2", true); /* killed after the rename, before the mark was out */
    temporary_text(&folder, "adapter.safetensors" QR_PARTIAL_SUFFIX "999999999", "half");
    temporary_text(&folder, "notes.partial-2024", "theirs");
    temporary_text(&folder, QR_PARTIAL_SUFFIX "1", "no name before it");
    CHECK(qr_folder_remove_partials(folder.path, NULL) == QRUN_OK);
    CHECK(!qr_file_exists(in(&folder, "checkpoint-3" QR_PARTIAL_SUFFIX "999999999")));
    CHECK(!qr_file_exists(in(&folder, "adapter.safetensors" QR_PARTIAL_SUFFIX "999999999")));
    check_kept(&folder, "checkpoint-4" QR_PARTIAL_SUFFIX "999999999");
    check_kept(&folder, "model.partial-2024");
    check_kept(&folder, "checkpoint-500");
    check_kept(&folder, "checkpoint-2");
    CHECK(!qr_folder_is_marked(in(&folder, "checkpoint-2")));
    CHECK(qr_file_exists(in(&folder, "notes.partial-2024")) && qr_file_exists(in(&folder, QR_PARTIAL_SUFFIX "1")));
    temporary_remove(&folder);
}

static void test_a_folder_appears_without_the_mark(void) {
    const temporary_folder folder = temporary_create();
    qr_folder_writer writer;
    REQUIRE(qr_folder_writer_open(&writer, in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(qr_folder_is_marked(writer.partial_path));
    CHECK(qr_folder_writer_commit(&writer, NULL) == QRUN_OK);
    CHECK(qr_file_is_folder(in(&folder, "out")) && !qr_file_exists(in(&folder, "out/" QR_FOLDER_MARK)));
    CHECK(qr_folder_retire(in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(!qr_file_exists(in(&folder, "out")) && !qr_file_exists(partial(&folder, "out")));
    temporary_remove(&folder);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static void check_says(const char *path, const char *expected) {
    char *text = NULL;
    size_t n_bytes;
    CHECK(qr_file_read(path, 100, &text, &n_bytes, NULL) == QRUN_OK);
    CHECK_STR(text, expected);
    qr_free(text);
}

static void test_a_partial_file_is_never_opened_through_a_link(void) {
    const temporary_folder folder = temporary_create();
    qr_error err = {0};
    temporary_text(&folder, "victim", "kept");
    CHECK(symlink("victim", partial(&folder, "out")) == 0);
    CHECK(qr_file_write(in(&folder, "out"), "new", 3, &err) == QRUN_ERROR_IO);
    CHECK_MSG(strstr(err.message, "is in the way") != NULL, "%s", err.message);
    check_says(in(&folder, "victim"), "kept");
    CHECK(unlink(partial(&folder, "out")) == 0);
    CHECK(symlink("nothing", partial(&folder, "out")) == 0);
    CHECK(qr_file_write(in(&folder, "out"), "new", 3, NULL) == QRUN_ERROR_IO);
    CHECK(!qr_file_exists(in(&folder, "nothing")));
    temporary_remove(&folder);
}

static void test_a_partial_file_of_a_killed_program_makes_room(void) {
    const temporary_folder folder = temporary_create();
    FILE *left = fopen(partial(&folder, "out"), "w");
    REQUIRE(left != NULL);
    CHECK(fputs("much longer than what is written", left) >= 0 && fclose(left) == 0);
    CHECK(qr_file_write(in(&folder, "out"), "new", 3, NULL) == QRUN_OK);
    check_says(in(&folder, "out"), "new");
    temporary_remove(&folder);
}

/* Two threads, or programs that cannot see each other, one after the other at one file. */
static void test_a_file_that_is_being_written_is_refused(void) {
    const temporary_folder folder = temporary_create();
    qr_file_writer first, second;
    qr_error err = {0};
    REQUIRE(qr_file_writer_open(&first, in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(qr_file_writer_write(&first, "whole", 5, NULL) == QRUN_OK);
    CHECK_INT(qr_file_writer_open(&second, in(&folder, "out"), &err), QRUN_ERROR_BUSY);
    CHECK_MSG(strstr(err.message, "out: is being written at the moment") != NULL, "%s", err.message);
    CHECK(qr_file_writer_commit(&first, NULL) == QRUN_OK);
    check_says(in(&folder, "out"), "whole");
    CHECK(qr_file_writer_open(&second, in(&folder, "out"), NULL) == QRUN_OK);
    CHECK(!qr_file_exists(partial(&folder, "other")) && qr_file_exists(partial(&folder, "out")));
    qr_file_writer_abort(&second);
    CHECK(!qr_file_exists(partial(&folder, "out")));
    check_says(in(&folder, "out"), "whole");
    temporary_remove(&folder);
}

/* A link in the place of the result is replaced; what it pointed to stays. */
static void test_a_link_of_the_final_name_is_replaced(void) {
    const temporary_folder folder = temporary_create();
    temporary_text(&folder, "victim", "kept");
    CHECK(symlink("victim", in(&folder, "out")) == 0);
    CHECK(qr_file_write(in(&folder, "out"), "new", 3, NULL) == QRUN_OK);
    struct stat info;
    CHECK(!is_link(in(&folder, "out")) && stat(in(&folder, "victim"), &info) == 0 && info.st_size == 4);
    temporary_remove(&folder);
}

/* ---- What is no file --------------------------------------------------------------------------------------------- */

static void check_not_a_file(const char *path, const char *message) {
    qr_error errs[3] = {{0}, {0}, {0}};
    char *text = NULL;
    size_t n_bytes;
    qr_file_map map;
    alarm(10); /* a pipe without a writer would wait for one */
    CHECK(qr_file_read(path, 100, &text, &n_bytes, &errs[0]) != QRUN_OK && text == NULL);
    CHECK(qr_file_map_open(path, &map, &errs[1]) != QRUN_OK && map.data == NULL);
    CHECK(qr_file_copy(path, "/tmp/qrun-test-never-made", &errs[2]) != QRUN_OK);
    alarm(0);
    for (size_t i = 0; i < QR_COUNT_OF(errs); i++) {
        CHECK_MSG(strstr(errs[i].message, message) != NULL && strncmp(errs[i].message, path, strlen(path)) == 0,
                  "\"%s\" does not say \"%s\"", errs[i].message, message);
    }
}

static void test_only_files_are_read(void) {
    const temporary_folder folder = temporary_create();
    CHECK(mkfifo(in(&folder, "pipe"), 0666) == 0);
    CHECK(symlink("pipe", in(&folder, "link-to-pipe")) == 0);
    CHECK(symlink("nothing", in(&folder, "dangling")) == 0);
    check_not_a_file(in(&folder, "pipe"), "is a pipe, not a file");
    check_not_a_file(in(&folder, "link-to-pipe"), "is a pipe, not a file");
    check_not_a_file(folder.path, "is a folder, not a file");
    check_not_a_file("/dev/zero", "is a device, not a file");
    check_not_a_file(in(&folder, "dangling"), "symbolic link to a file that is not there");
    check_not_a_file(in(&folder, "absent"), "check the path");
    CHECK(qr_file_exists(in(&folder, "dangling")) && !qr_file_exists(in(&folder, "absent")));
    temporary_remove(&folder);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_remove_of_a_link_is_refused);
    CHECK_RUN(test_retiring_a_link_is_refused);
    CHECK_RUN(test_partials_that_are_links_stay);
    CHECK_RUN(test_a_writer_leaves_links_of_its_name_alone);
    CHECK_RUN(test_a_mark_that_is_a_link_is_none);
    CHECK_RUN(test_only_marked_folders_are_removed);
    CHECK_RUN(test_a_mark_may_end_early);
    CHECK_RUN(test_a_marked_folder_with_folders_in_it_stays);
    CHECK_RUN(test_marked_folders_inside_share_its_end);
    CHECK_RUN(test_what_killed_runs_left_goes_and_the_rest_stays);
    CHECK_RUN(test_a_folder_appears_without_the_mark);
    CHECK_RUN(test_a_partial_file_is_never_opened_through_a_link);
    CHECK_RUN(test_a_partial_file_of_a_killed_program_makes_room);
    CHECK_RUN(test_a_file_that_is_being_written_is_refused);
    CHECK_RUN(test_a_link_of_the_final_name_is_replaced);
    CHECK_RUN(test_only_files_are_read);
    return check_end();
}
