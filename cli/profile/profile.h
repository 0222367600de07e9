/* --profile DIR: what a run does over time, written into a folder in the forms that other programs read. trace.json is
 * for Perfetto, memory.pickle for torch.cuda._memory_viz, and events.out.tfevents.… for TensorBoard. */
#ifndef QRUN_CLI_PROFILE_PROFILE_H
#define QRUN_CLI_PROFILE_PROFILE_H

#include "cli/options/engine.h"
#include "cli/profile/event_file.h"
#include "cli/profile/live_memory.h"
#include "cli/terminal/text.h"

/* The step of a run that is shown: by then memory is warm. Of a shorter run, the last. */
enum { PROFILE_STEP = 3 };

/* Zero-initialise. */
typedef struct profile {
    const char *folder; /* NULL: nothing is profiled, and the calls do nothing */
    qrun_context *context;
    text_buffer events_path;
    int events;             /* descriptor, while there is a folder */
    bool taken;             /* the next two are there */
    qrun_timeline timeline; /* lent by the context until profile_end */
    live_memory memory;
    int64_t step; /* that they are of; 0: of no step */
} profile;

/* Makes the folder, if it is not there, and begins the timeline: after the model is opened, before the trainer or the
 * session is created. folder NULL: nothing. Returns 0 or an exit code, after telling the user; so does the next. */
int profile_begin(profile *p, const char *folder, const engine *e);
/* After a step, or after all that a session did: takes the timeline and writes the files. */
int profile_take(profile *p, int64_t step);
/* Appends scalars of a step to the file for TensorBoard. */
int profile_scalars(const profile *p, int64_t step, const event_scalar *scalars, int n_scalars);
/* Writes a file into the folder, and frees the content. */
int profile_write(const profile *p, const char *name, text_buffer *content);
/* Of steps first to last, whether this is the one to take. */
bool profile_is_due(const profile *p, int64_t step, int64_t first, int64_t last);
void profile_end(profile *p);

#endif
