/* Layers that are not held on the device: their matrices come through stages there, forwards and back; norms, biases,
 * tables and the head stay.
 *
 * Offloaded parameters have two stages, layer l stage l mod 2. Where the device has memory of its own, they come from
 * host memory: each layer as it lies in its stage, copied while the layer before computes. On a processor they come
 * from a folder that stores its matrices in the format they are held in. They are read from the map when the layer is
 * due, while the pages of the next one are asked for. Those of a trainable model are in host memory there too: they
 * change with every update. Of a model that is split among ranks (split.h), a rank streams its own rows.
 *
 * Parameters in shards (ZeRO 3) have one stage, and room in host memory for the layer that is on its way to it. Each
 * rank holds a part of every layer's bytes as they lie in the stage, in host memory. Where the ranks' devices are
 * linked and nothing of the layers is trained, both are in device memory. A layer is gathered from all ranks while the
 * one before computes. So all ranks use layers in the same order, pass by pass.
 *
 * The bytes in a stage are those that would be resident, so results are the same to the bit. Who computes a layer calls
 * qr_layer_stream_use first; the context's compute lock guards the stages. */
#ifndef QR_RUNTIME_MODEL_LAYER_STREAM_H
#define QR_RUNTIME_MODEL_LAYER_STREAM_H

#include "runtime/model/modules.h"

typedef struct qr_layer_stream qr_layer_stream;

/* Layers that have still to be written, held or staged: those from `first` on, each before it is used next. So the
 * processor updates a layer of all weights while the device computes the one before (runtime/train). */
typedef struct qr_late_layers {
    qrun_status (*write)(void *user, int64_t l, qr_error *err);
    void *user;
    int64_t first; /* L: none is left */
} qr_late_layers;

/* What layers in shards are gathered from, of a model that is trained whole: this rank has no part of their bytes, but
 * makes it when it is asked for (whole_shards.h). */
typedef struct qr_layer_source {
    const void *user;
    size_t (*find_part)(const void *user, int64_t l, int32_t rank); /* where its part of what is gathered begins;
                                                                     * rank n_ranks: where all of it ends */
    qrun_status (*read_part)(const void *user, int64_t l, unsigned char *layer, qr_error *err);
    qrun_status (*deliver)(const void *user, int64_t l, const unsigned char *layer, qr_error *err); /* to the stage */
} qr_layer_source;

/* Decides what params ask for, of a described model: places its weights anew, and makes model->stream where they are to
 * be offloaded; AUTO: where they do not fit otherwise. */
qrun_status qr_layer_stream_describe(qrun_model *model, const qrun_model_params *params, const qr_safetensors *source,
                                     qr_error *err);
/* Of a described model: cuts its layers into parts of n_ranks ranks, and places its weights anew. ranks: those that
 * will be asked, with this one's number; NULL: a plan alone, of rank 0. A model that is cut already is cut anew. */
qrun_status qr_layer_stream_shard(qrun_model *model, qr_collectives *ranks, int32_t n_ranks, qr_error *err);
bool qr_layer_stream_is_sharded(const qrun_model *model);
/* Of a trainable model: for plans, where `backend` is not the model's. NULL: there is none any more. */
void qr_layer_stream_set_source(qrun_model *model, const qr_backend *backend, const qr_layer_source *source);
/* Host memory that may be used while no pass runs, *n_bytes of it: a group of rows of every table in F32 at least. */
unsigned char *qr_layer_stream_room(const qrun_model *model, size_t *n_bytes);
/* Plans from now on are of that rank. */
void qr_layer_stream_plan_rank(qrun_model *model, int32_t rank);
/* Makes host memory, or notes where in `source` the matrices lie; it then stays open with the model: *source becomes
 * NULL. Needs the weights' memory. */
qrun_status qr_layer_stream_create(qrun_model *model, qr_safetensors **source, qr_error *err);
void qr_layer_stream_destroy(qrun_model *model); /* fine without a stream */

/* Whether the module's matrix comes through the stages. */
bool qr_layer_stream_has(const qrun_model *model, const qr_module *module);
/* While loading: whether such a matrix is to be written into its stage now, and the copy of it in host memory after. */
bool qr_layer_stream_is_loaded(const qrun_model *model);
/* Of a trainable model whose layers are offloaded: takes layer l's stage, whose matrices are written there anew, each
 * of them kept after. Nothing without a stream. */
qrun_status qr_layer_stream_rewrite(const qrun_model *model, qr_backend *backend, int64_t l, qr_error *err);
/* In bytes: what of layer l is kept in host memory, of all that is staged. */
size_t qr_layer_stream_kept_bytes(const qrun_model *model, int64_t l);
qrun_status qr_layer_stream_keep(qrun_model *model, int64_t l, const qr_weight *matrix, qr_error *err);

/* Host memory that the stream takes; 0: it takes none. */
size_t qr_layer_stream_host_bytes(const qrun_model *model);
/* Device memory that it takes besides its stages: of shards that ranks send from device to device. */
size_t qr_layer_stream_device_bytes(const qrun_model *model);
/* What all layers take that the stages hold in turn. */
size_t qr_layer_stream_bytes(const qrun_model *model);

/* A pass begins. Of shards, all layers are gathered anew: the same number in every pass. */
void qr_layer_stream_begin(const qrun_model *model, qr_backend *backend);
/* Before the ops of layer l are issued on `backend`, the model's or one that plans for it: its matrices are in their
 * stage. Those of `next`, −1 for none, are on their way to the other stage then, unless it is late. */
qrun_status qr_layer_stream_use(const qrun_model *model, qr_backend *backend, int64_t l, int64_t next, qr_error *err);
/* What that does first, with a stream or without: writes the late layers up to l. Of a plan nothing. */
qrun_status qr_layer_stream_write_late(const qrun_model *model, const qr_backend *backend, int64_t l, qr_error *err);
/* The same for one of its matrices alone. */
qrun_status qr_layer_stream_use_linear(const qrun_model *model, qr_backend *backend, const qr_linear_layer *linear,
                                       qr_error *err);
/* A plan begins: its stages are empty, and nothing has been gathered. */
void qr_layer_stream_plan_begin(const qrun_model *model);
/* What the plan's passes have gathered so far: bytes of whole layers, and those that this rank sends for it. */
typedef struct qr_gathered {
    int64_t bytes, sent_bytes;
} qr_gathered;
qr_gathered qr_layer_stream_planned(const qrun_model *model);

#endif
