/* Ranks of this machine that the program starts itself: the same command again, as torchrun would start it. They end
 * with the program. */
#ifndef QRUN_CLI_OPTIONS_LOCAL_RANKS_H
#define QRUN_CLI_OPTIONS_LOCAL_RANKS_H

#include <sys/types.h>

enum { LOCAL_RANKS_MAX = 64 };

typedef struct local_ranks {
    pid_t processes[LOCAL_RANKS_MAX];
    int n;
} local_ranks;

/* Starts ranks 1 to n_ranks − 1, and makes this process rank 0 by the same variables. Returns 0 or an exit code. */
int local_ranks_start(local_ranks *ranks, int n_ranks);
/* Waits until they have ended, which they do soon after rank 0 has closed its context; one that hangs is killed. */
void local_ranks_end(local_ranks *ranks);
/* Threads for each of n processes: the CPUs of this one, dealt to them. 0: all. */
int local_threads(long n);
/* The same for the ranks of this machine. */
int local_ranks_threads(void);

#endif
