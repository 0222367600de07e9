/* The table of recorded steps: what is issued, recorded, replayed and dropped, over a backend that counts. */
#include "check.h"

#include "runtime/generate/replay.h"

struct qr_recording {
    int number;
    bool is_alive;
};

enum { MOST = 200 };

/* The backend, and what it was asked for. */
static struct {
    qr_backend base;
    struct qr_recording recordings[MOST];
    int n_made, n_alive, n_replays, last_replayed;
    bool is_recording, begin_fails, end_fails, replay_fails;
} fake;

static int n_issued, n_kept;
static bool issue_fails, issue_fails_while_recording;

static qrun_status begin(qr_backend *backend, qr_error *err) {
    (void)backend;
    CHECK(!fake.is_recording);
    if (fake.begin_fails) { return qr_fail(err, QRUN_ERROR_DEVICE, "no begin"); }
    fake.is_recording = true;
    return QRUN_OK;
}

static qrun_status end(qr_backend *backend, qr_recording **recording, qr_error *err) {
    (void)backend;
    CHECK(fake.is_recording);
    fake.is_recording = false;
    if (recording == NULL) { return QRUN_OK; }
    if (fake.end_fails) { return qr_fail(err, QRUN_ERROR_DEVICE, "no end"); }
    fake.recordings[fake.n_made] = (struct qr_recording){fake.n_made, true};
    *recording = &fake.recordings[fake.n_made++];
    fake.n_alive++;
    return QRUN_OK;
}

static qrun_status replay(qr_backend *backend, qr_recording *recording, qr_error *err) {
    (void)backend;
    CHECK(recording->is_alive && !fake.is_recording);
    if (fake.replay_fails) { return qr_fail(err, QRUN_ERROR_DEVICE, "no replay"); }
    fake.n_replays++;
    fake.last_replayed = recording->number;
    return QRUN_OK;
}

static void destroy(qr_backend *backend, qr_recording *recording) {
    (void)backend;
    CHECK(recording->is_alive);
    recording->is_alive = false;
    fake.n_alive--;
}

static qrun_status issue(void *arg, qr_error *err) {
    (void)arg;
    if (issue_fails || (issue_fails_while_recording && fake.is_recording)) {
        return qr_fail(err, QRUN_ERROR_DEVICE, "no op");
    }
    n_issued += !fake.is_recording;
    n_kept += fake.is_recording;
    return QRUN_OK;
}

static qr_replay fresh(void) {
    memset(&fake, 0, sizeof fake);
    n_issued = n_kept = 0;
    issue_fails = issue_fails_while_recording = false;
    fake.base.record_begin = begin, fake.base.record_end = end, fake.base.replay = replay,
    fake.base.recording_destroy = destroy;
    return (qr_replay){.backend = &fake.base};
}

static qrun_status step(qr_replay *r, int32_t n_rows, int32_t stride, int32_t adapters) {
    return qr_replay_step(r, &(qr_replay_key){n_rows, stride, adapters}, issue, NULL, NULL);
}

static void test_a_step_is_issued_once_and_replayed_then(void) {
    qr_replay r = fresh();
    for (int i = 0; i < 5; i++) { CHECK_INT(step(&r, 8, 4, 0), QRUN_OK); }
    CHECK_INT(n_issued, 1);
    CHECK_INT(n_kept, 1);
    CHECK_INT(fake.n_replays, 4);
    CHECK_INT(step(&r, 8, 4, 1), QRUN_OK); /* every part of the key counts */
    CHECK_INT(step(&r, 8, 8, 0), QRUN_OK);
    CHECK_INT(step(&r, 4, 4, 0), QRUN_OK);
    CHECK_INT(n_issued, 4);
    CHECK_INT(step(&r, 8, 8, 0), QRUN_OK);
    CHECK_INT(fake.last_replayed, 2);
    CHECK_INT(r.stats.n_recorded, 4);
    CHECK_INT(r.stats.n_replayed, 5);
    qr_replay_clear(&r);
    CHECK_INT(fake.n_alive, 0);
}

static void test_the_one_not_used_for_longest_makes_room(void) {
    qr_replay r = fresh();
    for (int32_t i = 0; i < QR_REPLAY_MOST; i++) { CHECK_INT(step(&r, i, 1, 0), QRUN_OK); }
    CHECK_INT(step(&r, 0, 1, 0), QRUN_OK); /* now 1 is the oldest */
    CHECK_INT(step(&r, 100, 1, 0), QRUN_OK);
    CHECK_INT(fake.n_alive, QR_REPLAY_MOST);
    CHECK_INT(r.stats.n_dropped, 1);
    CHECK(!fake.recordings[1].is_alive && fake.recordings[0].is_alive);
    const int issued = n_issued;
    CHECK_INT(step(&r, 0, 1, 0), QRUN_OK);
    CHECK_INT(step(&r, 100, 1, 0), QRUN_OK);
    CHECK_INT(n_issued, issued);
    CHECK_INT(step(&r, 1, 1, 0), QRUN_OK); /* recorded again, in place of 2 */
    CHECK_INT(n_issued, issued + 1);
    CHECK(!fake.recordings[2].is_alive);
    qr_replay_clear(&r);
    CHECK_INT(fake.n_alive, 0);
}

static void check_given_up(qr_replay *r, const char *reason, int issued) {
    CHECK_STR(r->stats.reason, reason);
    CHECK(!qr_replay_is_possible(r) && fake.n_alive == 0 && !fake.is_recording);
    CHECK_INT(n_issued, issued);
    fake.begin_fails = fake.end_fails = fake.replay_fails = issue_fails_while_recording = false;
    CHECK_INT(step(r, 8, 4, 0), QRUN_OK);
    CHECK_INT(n_issued, issued + 1);
    CHECK_INT(fake.n_replays, 0);
    qr_replay_clear(r);
}

static void test_what_fails_is_given_up_and_the_step_issued(void) {
    qr_replay r = fresh();
    fake.begin_fails = true;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    check_given_up(&r, "no begin", 1);
    r = fresh();
    fake.end_fails = true;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    check_given_up(&r, "no end", 1);
    r = fresh();
    issue_fails_while_recording = true;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    check_given_up(&r, "no op", 1);
    r = fresh();
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    CHECK_INT(step(&r, 4, 4, 0), QRUN_OK);
    fake.replay_fails = true;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    check_given_up(&r, "no replay", 3);
}

static void test_a_step_that_fails_is_not_recorded(void) {
    qr_replay r = fresh();
    issue_fails = true;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_ERROR_DEVICE);
    CHECK_STR(r.stats.reason, "");
    issue_fails = false;
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    CHECK_INT(step(&r, 8, 4, 0), QRUN_OK);
    CHECK_INT(fake.n_replays, 1);
    qr_replay_clear(&r);
}

static void test_a_backend_that_cannot_record_issues(void) {
    qr_replay r = fresh();
    fake.base.record_begin = NULL;
    CHECK(!qr_replay_is_possible(&r));
    for (int i = 0; i < 3; i++) { CHECK_INT(step(&r, 8, 4, 0), QRUN_OK); }
    CHECK_INT(n_issued, 3);
    CHECK_INT(r.stats.n_recorded + r.stats.n_replayed, 0);
}

int main(int argc, char **argv) {
    check_begin(argc, argv);
    CHECK_RUN(test_a_step_is_issued_once_and_replayed_then);
    CHECK_RUN(test_the_one_not_used_for_longest_makes_room);
    CHECK_RUN(test_what_fails_is_given_up_and_the_step_issued);
    CHECK_RUN(test_a_step_that_fails_is_not_recorded);
    CHECK_RUN(test_a_backend_that_cannot_record_issues);
    return check_end();
}
