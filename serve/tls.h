/* TLS for the server, by OpenSSL: 1.2 and newer. */
#ifndef QRUN_SERVE_TLS_H
#define QRUN_SERVE_TLS_H

#include "qrun.h"

struct ssl_ctx_st;

/* From PEM files: a certificate with its chain, and its key. NULL with a message: a file cannot be read, or the key is
 * not the certificate's. */
struct ssl_ctx_st *tls_open(const char *certificate, const char *key, qrun_error *error);
void tls_close(struct ssl_ctx_st *tls); /* NULL is fine */

#endif
