/* libeplb for every language that can call C: what an MoE trainer embeds on every rank.
 *
 *   eplb_client* client;
 *   eplb_client_create(&client);
 *   eplb_client_connect(client, &options, all-gather, user);         collective; before weights
 * exist
 *   ... allocate local slots as eplb_client_placement() says ...
 *   eplb_client_register_experts(client, tensors, num_tensors);    collective
 *   for (step = 0; ...; ++step) {
 *     forward, backward, optimizer; eplb_client_record(client, layer, counts, num_experts);
 *     eplb_client_step_boundary(client, step, stream, &result);    may migrate and switch
 *   }
 *   eplb_client_close(client, "finished");
 *   eplb_client_destroy(client);
 *
 * Codes: functions return an eplb_code as int32_t; 0 is OK. What went wrong is a sentence in
 * eplb_client_message(client), or, where there is no client, in eplb_last_message(). Messages
 * and reasons are UTF-8 on one line without control characters, also where they quote a peer, so
 * that they can be printed as they are.
 * Structs: the caller sets struct_size, to sizeof, in every struct that it passes, also in those
 * that are filled. Structs only ever grow at their end, so a program works with a newer library;
 * with an older one it gets zeros, and InvalidArgument where it asks for what that does not know.
 * Strings: in UTF-8, ended by 0, copied by the call; NULL takes the default.
 * Threads: one thread at a time per client, the training thread; eplb_client_stats() from any. A
 * call while another one is under way in the client, also from a callback, is FailedPrecondition;
 * callbacks may call placement, row_placement, device_tables, route_tokens, split, transport,
 * stats, run_id. fork: in a child every call on a client of its parent does nothing and returns OK,
 * which is said once on stderr; the parent's client is not touched. Clients that the child makes
 * work if no client of the parent spoke to a daemon, and else are refused. Callbacks must return:
 * no longjmp, no thread that ends. An exception of C++ becomes Internal. EPLB_DISABLE=1 makes every
 * call a no-op on all ranks. Placements without a daemon: eplb_plan.h. */
#ifndef EPLB_CLIENT_C_EPLB_H_
#define EPLB_CLIENT_C_EPLB_H_

/* NOLINTBEGIN(readability-identifier-naming): names of C, with a prefix for a namespace */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EPLB_API __attribute__((visibility("default")))
#else
#define EPLB_API
#endif

#ifdef __cplusplus
#define EPLB_NOEXCEPT noexcept
extern "C" {
#else
#define EPLB_NOEXCEPT
#endif

/* Raised by every addition. A change that breaks programs makes another SOVERSION instead. */
#define EPLB_ABI_VERSION 4

/* Of the library that is running: it knows all that is in this header if it is not below
 * EPLB_ABI_VERSION. */
EPLB_API int32_t eplb_abi_version(void) EPLB_NOEXCEPT;
/* Such as "0.1.0". */
EPLB_API const char* eplb_version(void) EPLB_NOEXCEPT;

/* The numbers of Abseil and gRPC. */
typedef enum eplb_code {
  EPLB_OK = 0,
  EPLB_CANCELLED = 1,
  EPLB_UNKNOWN = 2,
  EPLB_INVALID_ARGUMENT = 3, /* what was passed */
  EPLB_DEADLINE_EXCEEDED = 4,
  EPLB_NOT_FOUND = 5,
  EPLB_ALREADY_EXISTS = 6,
  EPLB_PERMISSION_DENIED = 7,
  EPLB_RESOURCE_EXHAUSTED = 8,  /* memory */
  EPLB_FAILED_PRECONDITION = 9, /* right call, wrong time; or the ranks differ */
  EPLB_ABORTED = 10,            /* ranks are missing: the run_id is over, stop */
  EPLB_OUT_OF_RANGE = 11,
  EPLB_UNIMPLEMENTED = 12,
  EPLB_INTERNAL = 13,
  EPLB_UNAVAILABLE = 14,
  EPLB_DATA_LOSS = 15, /* ranks trained under different placements: stop */
  EPLB_UNAUTHENTICATED = 16
} eplb_code;

/* "FailedPrecondition"; "Unknown" for a number that is none. */
EPLB_API const char* eplb_code_name(int32_t code) EPLB_NOEXCEPT;
/* Of this thread's last call that failed, whatever it was about; "" if none did. Valid until
 * the thread's next call that fails. */
EPLB_API const char* eplb_last_message(void) EPLB_NOEXCEPT;
/* For a callback that is about to return another code than OK: `text` goes into the message of the
 * call that it is part of. */
EPLB_API void eplb_callback_message(const char* text) EPLB_NOEXCEPT;

/* ---- a client: one per rank ---- */

typedef struct eplb_client eplb_client;

typedef enum eplb_role { EPLB_WEIGHT = 0, EPLB_STATE = 1, EPLB_DERIVED = 2 } eplb_role;
typedef enum eplb_state_placement {
  EPLB_STATE_WITH_PRIMARY = 0,
  EPLB_STATE_IN_EVERY_REPLICA = 1
} eplb_state_placement;

/* See eplb::ClientOptions in client/client.h for what each means. */
typedef struct eplb_client_options {
  size_t struct_size;
  const char* job;      /* 1..128 of [A-Za-z0-9._-]; default "default" */
  const char* run_id;   /* this run; default: EPLB_LAUNCH_ID, torchrun's or SLURM's */
  const char* endpoint; /* of eplbd, HOST:PORT or unix:PATH, or "A,B", or where that is found:
                           env:NAME, file:PATH, srv:NAME; default: no daemon */
  const char* tls_ca;   /* PEM files: all three or none; default EPLB_TLS_CA and so on */
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
  const char* reduce;            /* who reports: "rank" (default) or "root" */
  const char* transport;         /* "auto" (default), "host", "peer", "nccl" or "peer+nccl" */
  const char* bind_address;      /* numeric address that other ranks reach; default "127.0.0.1" */
  const char* initial_placement; /* "static", or a file that rank 0 reads ("./static" is a file);
                                    default: the daemon's, else static */
  const char* placements_path;   /* rank 0 writes placements.jsonl here; default: not written */
  const char* history_path;      /* this rank's log for the validator; default: not written */
  int64_t first_step;
  int64_t nccl_piece_bytes; /* 0, the default: by the ranks' nodes */
  double start_deadline_s;
  double vote_deadline_s;
  double transfer_deadline_s;
  int32_t rank;
  int32_t world_size; /* a multiple of pipeline_parallel_size * num_gpus * expert_tensor_parallel */
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_nodes;
  int32_t num_groups;
  int32_t vote_every;
  int32_t report_every;
  int32_t report_max_steps;
  int32_t layers_per_chunk;
  int32_t state_placement; /* eplb_state_placement; default: in every replica */
  int32_t nccl_max_ctas;
  int32_t nccl_channels_per_net_peer;
  int32_t nccl_traffic_class;
  int32_t nccl_warm_up_ranks;
  int32_t pipeline_parallel_size; /* each registers and records layers of its own; 0: 1 */
  int32_t expert_tensor_parallel; /* ranks that share every expert, the first counts; 0: 1 */
  int32_t reserved;               /* 0 */
  int32_t require_daemon;         /* 1: connect fails on all ranks when no daemon answers; 0: not */
  int32_t take_over; /* 1: replace a run of this job although its steps advance; 0: not */
  const char* split; /* of an expert's tokens among its replicas: "equal" (default) or "batch" */
  int32_t ahead;     /* 1: rows, which no step changes, move while the next steps run; 0: not */
  int32_t reserved2; /* 0 */
} eplb_client_options;

/* Fills in the defaults. struct_size: sizeof(eplb_client_options). */
EPLB_API int32_t eplb_client_options_init(eplb_client_options* options,
                                          size_t struct_size) EPLB_NOEXCEPT;

/* Collects what eplb_all_gather got. */
typedef struct eplb_answers eplb_answers;
EPLB_API int32_t eplb_answers_add(eplb_answers* answers, const void* bytes,
                                  size_t num_bytes) EPLB_NOEXCEPT;

/* The one collective that a trainer must bring: gives `bytes` to all ranks, waits for theirs with a
 * deadline of its own, and adds world_size answers in rank order, this rank's own among them.
 * Called the same number of times in the same order on every rank, inside connect and
 * register_experts. */
typedef int32_t (*eplb_all_gather)(void* user, const void* bytes, size_t num_bytes,
                                   eplb_answers* answers);

EPLB_API int32_t eplb_client_create(eplb_client** client) EPLB_NOEXCEPT;
/* Closes it if it is not, as failed. NULL is fine. No other call may be under way. */
EPLB_API void eplb_client_destroy(eplb_client* client) EPLB_NOEXCEPT;
/* Of this client's last call that failed, "" if none did; eplb_last_message() for NULL. Valid until
 * the next call of the training thread. */
EPLB_API const char* eplb_client_message(const eplb_client* client) EPLB_NOEXCEPT;

/* Collective. InvalidArgument for options, naming the field; FailedPrecondition when ranks differ,
 * naming field and ranks; DeadlineExceeded naming the ranks that did not come. No daemon is no
 * error, but with require_daemon: then Unavailable on rank 0, FailedPrecondition on the others.
 * `all-gather` and `user` must stay good until close. After a failure it may be called again.
 */
EPLB_API int32_t eplb_client_connect(eplb_client* client, const eplb_client_options* options,
                                     eplb_all_gather all_gather, void* user) EPLB_NOEXCEPT;
/* The same with the daemon at options->endpoint as the all-gather, for launchers without one. The
 * job needs a name other than "default", and the run one of its own: run, EPLB_LAUNCH_ID,
 * torchrun's or SLURM's. Each all-gather fails on every rank after start_deadline_s, naming the
 * ranks that did not come, and within seconds, with Unavailable, where nobody listens. A run whose
 * name is that of another one that is starting is FailedPrecondition on all ranks of both; a name
 * is free again 5 s after the last call of its start. */
EPLB_API int32_t eplb_client_connect_through_daemon(
    eplb_client* client, const eplb_client_options* options) EPLB_NOEXCEPT;

/* Computes a derived tensor again for the local slots that received rows, rising. On the training
 * thread inside step_boundary; the new placement is there. Not OK ends the run. */
typedef int32_t (*eplb_rebuild)(void* user, int32_t layer, const int32_t* local_slots,
                                size_t num_local_slots);

/* One tensor of one layer: local slot i is the row_bytes bytes at base + i * row_stride. A derived
 * one has name, layer, role, rebuild and user; all else is 0. docs/registering-tensors.md says
 * which tensors a trainer registers. The memory must outlive the client. */
typedef struct eplb_tensor {
  size_t struct_size; /* equal in all tensors of a call */
  const char* name;   /* distinct in a call */
  void* base;
  int64_t row_bytes;
  int64_t row_stride;
  int32_t num_rows;
  int32_t layer;
  int32_t role;     /* eplb_role */
  int32_t reserved; /* 0 */
  eplb_rebuild rebuild;
  void* user; /* of rebuild */
} eplb_tensor;

/* Collective, once. A pipeline stage gives the tensors of its own layers, perhaps none. */
EPLB_API int32_t eplb_client_register_experts(eplb_client* client, const eplb_tensor* tensors,
                                              size_t num_tensors) EPLB_NOEXCEPT;

/* Writes a digest of what the expert in a local slot computes for a fixed input: for an expert the
 * same in every slot and on every rank of the EP group. */
typedef int32_t (*eplb_probe)(void* user, int32_t layer, int32_t local_slot, uint64_t* digest);

/* Finds per-expert tensors that were not registered: all experts move by one slot and back, and
 * `probe` must say the same of each in all places. Collective, between two steps. stream: as for
 * step_boundary. InvalidArgument names layer, expert, slots and rank. */
EPLB_API int32_t eplb_client_check_experts(eplb_client* client, eplb_probe probe, void* user,
                                           void* stream) EPLB_NOEXCEPT;

/* Moves every registered row to another placement, or back, for a checkpoint in the order that the
 * trainer's own code knows; the placement in force stays, and the daemon learns nothing.
 * Collective, between two steps. physical_to_logical_map: [num_layers, num_slots], equal on all
 * ranks, where an expert's lowest slot is its primary; NULL with num_cells 0, or that of the
 * placement in force: back. stream: as for step_boundary. While the rows are elsewhere, record,
 * record_split, step_boundary, check_experts and the calls on rows of replicas are
 * FailedPrecondition. InvalidArgument naming layer and slot, FailedPrecondition where ranks differ,
 * Unavailable: nothing was moved. DataLoss for rows that fail half-way, Aborted for a rank that is
 * gone: every later call returns the same. See eplb::Client::Carry. */
EPLB_API int32_t eplb_client_carry(eplb_client* client, const int32_t* physical_to_logical_map,
                                   size_t num_cells, void* stream) EPLB_NOEXCEPT;

/* ---- experts in several slots, in training: see client/client.h and docs/replicas-in-training.md
 * Collective among the ranks of an EP group, on the training thread between two boundaries. A
 * failure half-way is Aborted, and every later call returns the same. */

typedef enum eplb_gradient_type {
  EPLB_FLOAT32 = 0,
  EPLB_FLOAT64 = 1,
  EPLB_BFLOAT16 = 2, /* this and float16: added as float32, each addition rounded once */
  EPLB_FLOAT16 = 3
} eplb_gradient_type;

/* Rows of the local slots of a layer besides the registered tensors, in the same memory: local slot
 * i is the row_bytes bytes at base + i * row_stride. */
typedef struct eplb_replica_rows {
  size_t struct_size; /* equal in all rows of a call */
  const char* name;   /* for messages; may be NULL */
  void* base;
  int64_t row_bytes;
  int64_t row_stride;
  int32_t num_rows;
  int32_t layer;
  int32_t type;     /* eplb_gradient_type; broadcast_weights does not look at it */
  int32_t reserved; /* 0 */
} eplb_replica_rows;

/* Adds to each primary's row those of the other replicas, in the order of replicas; with
 * state_placement IN_EVERY_REPLICA the others get the sum as well. stream: as for step_boundary. */
EPLB_API int32_t eplb_client_reduce_gradients(eplb_client* client, const eplb_replica_rows* rows,
                                              size_t num_rows, void* stream) EPLB_NOEXCEPT;
/* Overwrites the rows of all other replicas by their primary's. */
EPLB_API int32_t eplb_client_broadcast_weights(eplb_client* client, const eplb_replica_rows* rows,
                                               size_t num_rows, void* stream) EPLB_NOEXCEPT;
/* The sum of squares of each expert's rows at its primary, equal on all ranks of the EP group; 0 in
 * layers that are left out. Pipeline stages and expert-tensor-parallel ranks hold other parts: add
 * theirs up. squares: [num_layers, num_experts]; num_squares: their product. */
EPLB_API int32_t eplb_client_expert_squares(eplb_client* client, const eplb_replica_rows* rows,
                                            size_t num_rows, void* stream, double* squares,
                                            size_t num_squares) EPLB_NOEXCEPT;

/* Adds tokens routed to each expert in the current step. counts: [num_experts]. InvalidArgument for
 * a layer that another pipeline stage registered. */
EPLB_API int32_t eplb_client_record(eplb_client* client, int32_t layer, const int64_t* counts,
                                    size_t num_experts) EPLB_NOEXCEPT;

/* Adds to the time that this rank's experts computed in the current step, in seconds, without waits
 * for other ranks: from it the daemon finds slow GPUs. Without calls this rank is left out. */
EPLB_API int32_t eplb_client_record_step_time(eplb_client* client, double seconds) EPLB_NOEXCEPT;

/* With split "batch": a batch of the layer was routed by `quotas` [num_slots], the tokens of each
 * slot, those of all ranks of the EP group together. Once a batch, alike on all ranks of the EP
 * group. FailedPrecondition with split "equal". */
EPLB_API int32_t eplb_client_record_split(eplb_client* client, int32_t layer, const int64_t* quotas,
                                          size_t num_slots) EPLB_NOEXCEPT;

typedef struct eplb_boundary {
  size_t struct_size;
  int32_t voted;
  int32_t switched; /* the next forward runs under `version` */
  int64_t version;
  int64_t sent_bytes;
  int64_t received_bytes;
  double pause_s;             /* time spent in the call */
  int64_t decided_first_step; /* of a switch: the steps whose load the daemon decided on */
  int64_t decided_last_step;
  /* of a switch or a dropped chunk; or "NOT_COUNTING: " and what this rank has counted no tokens of
   * for two load windows; else "". Valid until the next one. */
  const char* reason;
} eplb_boundary;

/* Once per optimizer step, also a skipped one, on every rank; steps rise by one from first_step.
 * stream: the cudaStream_t of expert work, NULL on the host. result: may be NULL. After Aborted and
 * DataLoss every later call returns the same. */
EPLB_API int32_t eplb_client_step_boundary(eplb_client* client, int64_t step, void* stream,
                                           eplb_boundary* result) EPLB_NOEXCEPT;

/* The arrays keep their addresses until destroy; what is in them changes only inside step_boundary
 * and check_experts. */
typedef struct eplb_placement {
  size_t struct_size;
  int64_t version;
  char digest[72]; /* 64 hexadecimal digits and a 0 */
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t first_local_slot; /* of this rank's GPU */
  int32_t num_local_slots;
  int32_t max_replicas;                   /* num_slots - num_experts + 1 */
  const int32_t* physical_to_logical_map; /* [L, S] */
  const int32_t* logical_to_physical_map; /* [L, E, max_replicas], -1 padded, primary first */
  const int32_t* logical_replica_count;   /* [L, E] */
} eplb_placement;

/* FailedPrecondition before connect. This and what follows up to stats work until destroy. */
EPLB_API int32_t eplb_client_placement(const eplb_client* client,
                                       eplb_placement* placement) EPLB_NOEXCEPT;
/* Where the registered rows are: the placement in force, unless eplb_client_carry moved them, which
 * also changes what is in the arrays. Its version is that of the placement in force. */
EPLB_API int32_t eplb_client_row_placement(const eplb_client* client,
                                           eplb_placement* placement) EPLB_NOEXCEPT;

/* The same for kernels, in the memory where the expert tensors lie; see eplb::DeviceTables. All
 * NULL before register_experts. */
typedef struct eplb_device_tables {
  size_t struct_size;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t reserved;
  const int32_t* physical_to_logical_map; /* [L, S] */
  const int32_t* logical_replica_count;   /* [L, E] */
  const int32_t* replicas;                /* [L, S] */
  const int32_t* first_replica;           /* [L, E + 1] */
  const int32_t* candidates;              /* [L, S] */
  const int32_t* first_candidate;         /* [L, E + 1] */
  const uint32_t* thresholds;             /* [L, S] */
} eplb_device_tables;

EPLB_API int32_t eplb_client_device_tables(const eplb_client* client,
                                           eplb_device_tables* tables) EPLB_NOEXCEPT;

/* ---- the router's choices, counted and sent to slots: docs/counting-on-the-gpu.md ----
 * Where the arrays lie, there the work is done: on the host before the call returns; on a GPU in
 * order with `stream`, a cudaStream_t, without a wait, also inside a graph capture. All arrays of a
 * call lie in one memory. Messages are in eplb_last_message(). */

typedef enum eplb_id_type { EPLB_INT32 = 0, EPLB_INT64 = 1 } eplb_id_type;

typedef struct eplb_choices {
  size_t struct_size;
  const void* expert_ids;    /* [num_tokens, top_k] of id_type, row after row */
  const uint8_t* is_padding; /* [num_tokens], not 0: the token is left out; NULL: none is */
  int64_t* counters;   /* [num_experts + 1]: a choice adds 1 to its expert's, to the last one if its
                          id is not in 0..num_experts-1 */
  int64_t num_tokens;  /* num_tokens * top_k is at most 2^31 */
  int32_t top_k;       /* at least 1 */
  int32_t num_experts; /* at least 1 */
  int32_t id_type;     /* eplb_id_type */
  int32_t reserved;    /* 0 */
} eplb_choices;

/* Adds to the counters, which eplb_client_record takes once they are on the host. InvalidArgument
 * naming the field, also for arrays in two memories; FailedPrecondition for memory of a GPU that
 * this library cannot use. cost: num_tokens * top_k. Threads: any, with counters of its own. */
EPLB_API int32_t eplb_count_tokens(const eplb_choices* choices, void* stream) EPLB_NOEXCEPT;

/* Writes the slot of each choice, by the device tables of a layer: on this GPU where the expert has
 * a replica there, else on one that the token's number draws. slots: [num_tokens, top_k] of
 * id_type, -1 for padding and for ids out of range; it may be expert_ids itself. first_token: the
 * number of token 0; ranks that number their tokens apart do not all draw the same replica. Equal
 * numbers, ids and placement give equal slots, on the host and on every GPU. Counts as
 * eplb_count_tokens where counters are not NULL. Errors are the same; also InvalidArgument for a
 * layer or num_experts that the client does not have, and FailedPrecondition before
 * register_experts. Threads: any, while no step_boundary or check_experts of another one is under
 * way; a probe may call it. */
EPLB_API int32_t eplb_client_route_tokens(const eplb_client* client, int32_t layer,
                                          const eplb_choices* choices, int64_t first_token,
                                          void* slots, void* stream) EPLB_NOEXCEPT;

/* What carries the rows now; "" before register_experts. Valid until this is asked again. */
EPLB_API int32_t eplb_client_transport(const eplb_client* client,
                                       const char** transport) EPLB_NOEXCEPT;
/* Valid until destroy. */
EPLB_API int32_t eplb_client_run_id(const eplb_client* client, const char** run_id) EPLB_NOEXCEPT;

typedef struct eplb_stats {
  size_t struct_size;
  int32_t connected;
  int32_t reserved;
  int64_t reconnects;
  int64_t reports_sent;
  int64_t refusals; /* by the daemon, e.g. because another process speaks for this rank */
  int64_t dropped_steps;
  int64_t votes;
  int64_t commits;
  int64_t dropped_chunks;
  double disconnected_s;
  int64_t session_waits_over_1ms;
} eplb_stats;

EPLB_API int32_t eplb_client_stats(const eplb_client* client, eplb_stats* stats) EPLB_NOEXCEPT;

/* Says goodbye to the daemon, within 2 s. reason: NULL or "finished" is the normal end, which waits
 * up to 3 s more for the other ranks if rows moved after the last vote, of replicas or with
 * `ahead`. Every later call that acts is FailedPrecondition; closing again is OK. */
EPLB_API int32_t eplb_client_close(eplb_client* client, const char* reason) EPLB_NOEXCEPT;

/* ---- the exact split of a batch: docs/splitting-a-batch.md ----
 * How many of an expert's tokens each of its slots takes, so that the fullest GPU has the fewest.
 * No rank is waited for: equal counts give equal quotas on every rank, to the bit. */

/* The tokens of one layer in one batch, once per top-k choice. Either totals or by_gpu; the other
 * is NULL. */
typedef struct eplb_batch {
  size_t struct_size;
  const int64_t* totals; /* [num_experts], of all ranks of the EP group */
  const int64_t* by_gpu; /* [num_gpus, num_experts], row by row, of each rank of the EP group */
  const int64_t* before; /* with totals: of the EP group's lower ranks [num_experts]; may be NULL */
  const int64_t* mine;   /* with before: of this rank [num_experts] */
  int32_t num_experts;
  int32_t num_gpus; /* rows of by_gpu; without it 0 */
} eplb_batch;

/* The first five fields are the caller's, the call fills in the arrays and the rest. A GPU's load
 * is its tokens / its speed. */
typedef struct eplb_split {
  size_t struct_size;
  int64_t* quotas; /* [num_slots]: tokens that a slot takes; an expert's sum to its tokens */
  int64_t* own;    /* [num_slots]: of them this rank's, by by_gpu, or before and mine; or NULL */
  int32_t* tight_gpus; /* [num_gpus], see num_tight_gpus; or NULL */
  int32_t num_slots;
  /* The proof: the experts that only these GPUs hold have too many tokens for a lower peak. */
  int32_t num_tight_gpus;
  int64_t version;     /* of the placement */
  double peak;         /* load of the fullest GPU */
  double mean;         /* over the usable GPUs */
  double balancedness; /* mean / peak, NaN without tokens */
  double equal_peak;   /* of equal shares: what `peak` is without the split */
} eplb_split;

typedef struct eplb_split_options {
  size_t struct_size;
  const double* gpu_speeds; /* [num_gpus], relative, 0: takes no tokens; NULL: all equal */
  double slack;             /* 0..1: how far above the least peak a GPU may be, so that fewer tokens
                               leave the slots of equal shares; default 0 */
  int32_t num_gpus;         /* of gpu_speeds; without it 0 */
  int32_t reserved;         /* 0 */
} eplb_split_options;

/* Under the placement in force. On an error nothing is written. InvalidArgument naming the layer:
 * numbers of experts, GPUs or slots that do not fit; layer and expert: a negative count, a sum
 * above 2^36; the GPU: one of speed 0 that holds an expert. cost: some microseconds; the first
 * split of a layer that a switch changed prepares it. From connect until destroy. Threads: any,
 * while no step_boundary or check_experts of another one is under way. Messages are in
 * eplb_last_message(). */
EPLB_API int32_t eplb_client_split(eplb_client* client, int32_t layer, const eplb_batch* batch,
                                   eplb_split* split) EPLB_NOEXCEPT;
/* Of the splits that follow; equal on all ranks. InvalidArgument, and they stay as they were, for
 * speeds outside 1e-3..1e3 that are not 0, and a slack outside 0..1. Threads, messages: as split.
 */
EPLB_API int32_t eplb_client_set_split_options(eplb_client* client,
                                               const eplb_split_options* options) EPLB_NOEXCEPT;
/* Writes the slot of each choice by split->own: an expert's choices, in the order of their index,
 * fill its slots, its primary first. slots, counters, padding: as route_tokens; all in host memory.
 * InvalidArgument naming the expert whose choices are not as many as its own quotas;
 * FailedPrecondition after a switch, and for GPU memory. On an error nothing is written. Threads,
 * messages: as split. */
EPLB_API int32_t eplb_client_route_split(const eplb_client* client, int32_t layer,
                                         const eplb_choices* choices, const eplb_split* split,
                                         void* slots) EPLB_NOEXCEPT;
/* Whether all ranks of an EP group would split alike: layer, counts, options and placement.
 * Collective among all ranks, on the training thread, with the all-gather of connect. counts: the
 * totals, or by_gpu as one array. FailedPrecondition on all ranks, with one message, naming the
 * ranks that differ, or one whose layer or counts eplb_client_split refuses. */
EPLB_API int32_t eplb_client_check_counts(eplb_client* client, int32_t layer, const int64_t* counts,
                                          size_t num_counts) EPLB_NOEXCEPT;

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* EPLB_CLIENT_C_EPLB_H_ */
