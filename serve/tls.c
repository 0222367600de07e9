#include "serve/tls.h"

#include <stdio.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

static void fail(qrun_error *error, const char *what, const char *file) {
    const unsigned long first = ERR_peek_error(), last = ERR_peek_last_error();
    const bool is_of_system = first != 0 && ERR_SYSTEM_ERROR(first);
    const bool is_no_pem = ERR_GET_LIB(first) == ERR_LIB_PEM || ERR_GET_REASON(last) == ERR_R_PEM_LIB;
    const char *why = is_of_system ? strerror(ERR_GET_REASON(first))
                      : is_no_pem  ? "the file has none in PEM"
                      : last != 0  ? ERR_reason_error_string(last)
                                   : NULL;
    error->status = is_of_system ? QRUN_ERROR_IO : QRUN_ERROR_INPUT;
    (void)snprintf(error->message, sizeof error->message, "%s %s: %s", what, file, why != NULL ? why : "not readable");
    ERR_clear_error();
}

static bool load(SSL_CTX *tls, const char *certificate, const char *key, qrun_error *error) {
    if (SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) != 1 ||
        SSL_CTX_use_certificate_chain_file(tls, certificate) != 1) {
        fail(error, "the certificate", certificate);
        return false;
    }
    if (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(tls) != 1) {
        fail(error, "the key", key);
        return false;
    }
    (void)SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS); /* idle connections hold little */
    return true;
}

SSL_CTX *tls_open(const char *certificate, const char *key, qrun_error *error) {
    ERR_clear_error();
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (tls == NULL) {
        fail(error, "TLS for", certificate);
        return NULL;
    }
    if (load(tls, certificate, key, error)) { return tls; }
    SSL_CTX_free(tls);
    return NULL;
}

void tls_close(SSL_CTX *tls) { SSL_CTX_free(tls); }
