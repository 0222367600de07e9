/* The regular expressions in adapter_config.json, which name modules of a model. PEFT matches them with Python's re;
 * here PCRE2 does, whose syntax agrees for the patterns in use. A pattern that needs too many steps is refused, so a
 * hostile file cannot hang the reader. */
#ifndef QR_LOADERS_ADAPTER_MODULE_PATTERN_H
#define QR_LOADERS_ADAPTER_MODULE_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct qr_module_pattern qr_module_pattern;

/* How PEFT wraps what the file says. */
typedef enum qr_module_pattern_form {
    QR_PATTERN_WHOLE,      /* re.fullmatch(text): target_modules and exclude_modules as one string */
    QR_PATTERN_SUFFIX,     /* re.match(r"(.*\.)?(text)$"): keys of rank_pattern and alpha_pattern */
    QR_PATTERN_CONTAINER,  /* any part of the path ends in it: re.match(r".*text($|\..*)"): modules_to_save */
    QR_PATTERN_LAYER_INDEX /* re.match(r"(?:^|.*?\.)text\.(\d+)\."): layers_pattern; the digits are the layer */
} qr_module_pattern_form;

/* `text` NULL with QR_PATTERN_LAYER_INDEX means any name: re.match(r".*?\.[^.]*\.(\d+)\."). */
qrun_status qr_module_pattern_create(qr_module_pattern_form form, const char *text, const char *what,
                                     qr_module_pattern **pattern, qr_error *err);
void qr_module_pattern_destroy(qr_module_pattern *pattern); /* NULL is fine */

/* `layer` may be NULL; it gets the layer index, or -1 where there is none. Thread-safe. */
qrun_status qr_module_pattern_match(const qr_module_pattern *pattern, const char *module, bool *matches, int64_t *layer,
                                    qr_error *err);

#endif
