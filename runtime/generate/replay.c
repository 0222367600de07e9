#include "runtime/generate/replay.h"

#include <stdio.h>

void qr_replay_refuse(qr_replay *replay, const char *reason) {
    (void)snprintf(replay->stats.reason, sizeof replay->stats.reason, "%s", reason);
}

bool qr_replay_is_timed(const qr_replay *replay) {
    return replay->backend->profile != NULL || replay->backend->timeline != NULL;
}

/* Not while ops are timed: those of a recording cannot be told apart. */
bool qr_replay_is_possible(const qr_replay *replay) {
    return replay->backend->record_begin != NULL && !qr_replay_is_timed(replay) && replay->stats.reason[0] == '\0';
}

static bool same_key(const qr_replay_key *a, const qr_replay_key *b) {
    return a->n_rows == b->n_rows && a->table_stride == b->table_stride && a->adapters == b->adapters;
}

static qr_replay_entry *find(qr_replay *replay, const qr_replay_key *key) {
    for (int i = 0; i < QR_REPLAY_MOST; i++) {
        qr_replay_entry *entry = &replay->entries[i];
        if (entry->recording != NULL && same_key(&entry->key, key)) { return entry; }
    }
    return NULL;
}

static void drop(qr_replay *replay, qr_replay_entry *entry) {
    if (entry->recording == NULL) { return; }
    replay->backend->recording_destroy(replay->backend, entry->recording);
    *entry = (qr_replay_entry){.recording = NULL};
}

void qr_replay_clear(qr_replay *replay) {
    for (int i = 0; i < QR_REPLAY_MOST; i++) { drop(replay, &replay->entries[i]); }
}

/* A free entry, or the least recently used one. */
static qr_replay_entry *make_room(qr_replay *replay) {
    qr_replay_entry *oldest = &replay->entries[0];
    for (int i = 0; i < QR_REPLAY_MOST; i++) {
        qr_replay_entry *entry = &replay->entries[i];
        if (entry->recording == NULL) { return entry; }
        if (entry->last_use < oldest->last_use) { oldest = entry; }
    }
    drop(replay, oldest);
    replay->stats.n_dropped++;
    return oldest;
}

/* From now on every step is issued op by op. */
static void give_up(qr_replay *replay, const qr_error *why) {
    (void)snprintf(replay->stats.reason, sizeof replay->stats.reason, "%.*s", QR_REPLAY_REASON_BYTES - 1,
                   why->message[0] != '\0' ? why->message : "recording failed");
    qr_replay_clear(replay);
}

static void record(qr_replay *replay, const qr_replay_key *key, qr_replay_issue issue, void *arg) {
    qr_error why = {0};
    qr_recording *recording = NULL;
    qrun_status status = replay->backend->record_begin(replay->backend, &why);
    if (status == QRUN_OK) {
        status = issue(arg, &why);
        const qrun_status ended =
            replay->backend->record_end(replay->backend, status == QRUN_OK ? &recording : NULL, &why);
        if (status == QRUN_OK) { status = ended; }
    }
    if (status != QRUN_OK) {
        give_up(replay, &why);
        return;
    }
    *make_room(replay) = (qr_replay_entry){.key = *key, .recording = recording, .last_use = replay->clock};
    replay->stats.n_recorded++;
}

qrun_status qr_replay_step(qr_replay *replay, const qr_replay_key *key, qr_replay_issue issue, void *arg,
                           qr_error *err) {
    replay->clock++;
    qr_replay_entry *entry = qr_replay_is_timed(replay) ? NULL : find(replay, key);
    if (entry != NULL) {
        qr_error why = {0};
        if (replay->backend->replay(replay->backend, entry->recording, &why) == QRUN_OK) {
            entry->last_use = replay->clock;
            replay->stats.n_replayed++;
            return QRUN_OK;
        }
        give_up(replay, &why);
    }
    const qrun_status status = issue(arg, err);
    if (status == QRUN_OK && qr_replay_is_possible(replay)) { record(replay, key, issue, arg); }
    return status;
}
