/* Models whose shape is known by name: what their config.json says of it, so that a plan needs no file. */
#ifndef QR_LOADERS_CONFIG_KNOWN_MODELS_H
#define QR_LOADERS_CONFIG_KNOWN_MODELS_H

#include "loaders/config/model_config.h"

/* Their names, from 0 on; NULL after the last. */
const char *qr_known_model_name(int32_t index);
bool qr_known_model_is(const char *name);

/* As qr_model_config_read of a folder. The name is one of them. */
qrun_status qr_known_model_read(const char *name, qr_model_config *config, qr_error *err);

#endif
