/* What systemd, and others that speak its two small protocols, know of a service: sockets that it inherits
 * (sd_listen_fds) and what it says of itself (sd_notify). */
#ifndef QRUN_SERVE_SUPERVISOR_H
#define QRUN_SERVE_SUPERVISOR_H

/* The one listening socket that this process was started with; −1: none; −2: there are several. */
int supervisor_socket(void);

/* "READY=1", "STOPPING=1": sent to NOTIFY_SOCKET, where the environment names one. */
void supervisor_tell(const char *state);

#endif
