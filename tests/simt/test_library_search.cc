/* Where NVIDIA's libraries are looked for (kernels/cuda/device/library_search.h): in what order, and that a path which
 * leads nowhere is no path. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "kernels/cuda/device/library_search.h"

extern "C" {
#include "check.h"
}

static std::string root;
static const char file[] = "libqrunTestOnly.so.13";

static void make_file(const std::string &path) {
    for (size_t at = root.size(); (at = path.find('/', at + 1)) != std::string::npos;) {
        mkdir(path.substr(0, at).c_str(), 0700);
    }
    FILE *made = fopen(path.c_str(), "w");
    CHECK_MSG(made != NULL, "%s", path.c_str());
    if (made != NULL) { fclose(made); }
    chmod(path.c_str(), 0700);
}

struct visit {
    std::vector<std::string> paths;
    size_t stop_after;
};

static bool note(const char *path, void *arg) {
    visit *v = static_cast<visit *>(arg);
    v->paths.push_back(path);
    return v->paths.size() == v->stop_after;
}

static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH"};

/* Checks what is tried: folders below root, a blank between them. */
static void expect(size_t stop_after, const char *expected) {
    visit v = {{}, stop_after};
    std::string all;
    CHECK(qr_library_search(file, note, &v) == (stop_after > 0));
    for (const std::string &path : v.paths) {
        const bool below = path.compare(0, root.size(), root) == 0;
        all +=
            (all.empty() ? "" : " ") + (below ? path.substr(root.size() + 1, path.rfind('/') - root.size() - 1) : path);
    }
    CHECK_STR(all.c_str(), expected);
}

static void test_the_order(void) {
    for (const char *folder :
         {"toolkit/lib64", "other/lib", "venv/lib/python3.12/site-packages/nvidia/cublas/lib", "conda/lib",
          "conda/lib/python3.11/site-packages/nvidia/cu13/lib", "third/lib/python3.13/site-packages/nvidia/cu13/lib"}) {
        make_file(root + "/" + folder + "/" + file);
    }
    make_file(root + "/third/bin/python3");
    make_file(root + "/fourth/lib/" + file); /* without a python3 */
    const std::string path = "/nowhere/bin:" + root + "/fourth/bin::" + root + "/third/bin";
    const std::string values[] = {root + "/toolkit", root + "/other", root + "/venv", root + "/conda", path};
    for (size_t i = 0; i < 5; i++) { CHECK(setenv(variables[i], values[i].c_str(), 1) == 0); }
    const char all[] = "libqrunTestOnly.so.13 toolkit/lib64 other/lib "
                       "venv/lib/python3.12/site-packages/nvidia/cublas/lib conda/lib "
                       "conda/lib/python3.11/site-packages/nvidia/cu13/lib "
                       "third/lib/python3.13/site-packages/nvidia/cu13/lib";
    expect(0, all);
    expect(2, "libqrunTestOnly.so.13 toolkit/lib64"); /* no further than needed */
}

/* Unset, empty, relative, too long, and full of what glob takes for a pattern. */
static void test_what_the_environment_may_hold(void) {
    const std::string values[] = {"", "relative", "/" + std::string(5000, 'x'), root + "/[", "::/bin:bin:" + root};
    for (size_t i = 0; i < 5; i++) { CHECK(setenv(variables[i], values[i].c_str(), 1) == 0); }
    expect(0, file);
    for (const char *name : variables) { CHECK(unsetenv(name) == 0); }
    expect(0, file);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/qrun-search.XXXXXX";
    check_begin(argc, argv);
    const char *made = mkdtemp(folder);
    CHECK(made != NULL);
    if (made == NULL) { return check_end(); }
    root = made;
    CHECK_RUN(test_the_order);
    CHECK_RUN(test_what_the_environment_may_hold);
    const std::string remove = "rm -rf '" + root + "'";
    CHECK_INT(system(remove.c_str()), 0);
    return check_end();
}
