/* libeplb for every language that can call C: what an MoE trainer embeds on every rank.
 *
 *   eplb_client* client;
 *   eplb_client_create(&client);
 *   eplb_client_connect(client, &options, all_gather, user);     collective, before weights exist
 *   ... allocate the local slots of eplb_client_placement() ...
 *   eplb_client_register_experts(client, tensors, num_tensors);  collective
 *   for (step = 0; ...; ++step) {
 *     forward, backward, optimizer
 *     eplb_client_record(client, layer, counts, num_experts);    for each MoE layer
 *     eplb_client_step_boundary(client, step, stream, &result);  may migrate and switch
 *   }
 *   eplb_client_close(client, "finished");
 *   eplb_client_destroy(client);
 *
 * Codes: functions return an eplb_code as int32_t; 0 is OK. The message of a failed call is in
 * eplb_client_message(client). Calls without a client, and calls whose comment refers to it, leave
 * theirs in eplb_last_message(). Messages and reasons are UTF-8 on one line without control
 * characters, even if they quote a peer, so they can be printed unchanged.
 *
 * Structs: the caller sets struct_size to sizeof in every struct that it passes, also in those that
 * the call fills in. Structs only grow at their end, so a program works with a newer library. With
 * an older library new fields read as zeros, and setting one is InvalidArgument.
 *
 * Strings: UTF-8, terminated by 0, copied by the call. NULL takes the default.
 *
 * Threads: one thread at a time per client, the training thread. Any thread may call
 * eplb_client_stats(). A call while another one runs in the client, also from a callback, is
 * FailedPrecondition; a callback may call placement, row_placement, device_tables, route_tokens,
 * split, count_for, route_from, transport, stats and run_id.
 *
 * Fork: in a child, every call on a client of the parent does nothing and returns OK; the first one
 * logs so on stderr. The parent's client is not affected. A child can make clients of its own
 * unless a client of the parent was connected to a daemon.
 *
 * Callbacks must return: no longjmp, no thread exit. A C++ exception becomes Internal.
 * EPLB_DISABLE=1 makes every call a no-op, on all ranks. eplb_plan.h has placements without a
 * daemon. */
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

/* Every addition raises this number. A change that breaks programs makes a new SOVERSION. */
#define EPLB_ABI_VERSION 8

/* Returns the EPLB_ABI_VERSION of the loaded library. A library whose number is at least
 * EPLB_ABI_VERSION has everything in this header. */
EPLB_API int32_t eplb_abi_version(void) EPLB_NOEXCEPT;
/* Returns the version of the loaded library, e.g. "0.1.0". */
EPLB_API const char* eplb_version(void) EPLB_NOEXCEPT;

/* Status codes, with the numbers of Abseil and gRPC. */
typedef enum eplb_code {
  EPLB_OK = 0,
  EPLB_CANCELLED = 1,
  EPLB_UNKNOWN = 2,
  EPLB_INVALID_ARGUMENT = 3, /* an argument is not valid */
  EPLB_DEADLINE_EXCEEDED = 4,
  EPLB_NOT_FOUND = 5,
  EPLB_ALREADY_EXISTS = 6,
  EPLB_PERMISSION_DENIED = 7,
  EPLB_RESOURCE_EXHAUSTED = 8,  /* not enough memory */
  EPLB_FAILED_PRECONDITION = 9, /* valid call at a wrong time; or the ranks differ */
  EPLB_ABORTED = 10,            /* ranks are missing: the run has ended, stop */
  EPLB_OUT_OF_RANGE = 11,
  EPLB_UNIMPLEMENTED = 12,
  EPLB_INTERNAL = 13,
  EPLB_UNAVAILABLE = 14,
  EPLB_DATA_LOSS = 15, /* ranks trained under different placements: stop */
  EPLB_UNAUTHENTICATED = 16
} eplb_code;

/* Returns the name of a code, e.g. "FailedPrecondition"; "Unknown" for other numbers. */
EPLB_API const char* eplb_code_name(int32_t code) EPLB_NOEXCEPT;
/* Returns the message of this thread's last failed call of any kind; "" if none failed. Valid until
 * the thread's next failed call. */
EPLB_API const char* eplb_last_message(void) EPLB_NOEXCEPT;
/* Adds `text` to the message of the call that runs the current callback. For a callback that is
 * about to return another code than OK. */
EPLB_API void eplb_callback_message(const char* text) EPLB_NOEXCEPT;

/* ---- a client: one per rank ---- */

typedef struct eplb_client eplb_client;

typedef enum eplb_role { EPLB_WEIGHT = 0, EPLB_STATE = 1, EPLB_DERIVED = 2 } eplb_role;
typedef enum eplb_state_placement {
  EPLB_STATE_WITH_PRIMARY = 0,
  EPLB_STATE_IN_EVERY_REPLICA = 1
} eplb_state_placement;

/* The table of options in client/python/README.md has meaning and default of each field. */
typedef struct eplb_client_options {
  size_t struct_size;
  const char* job;      /* 1..128 of [A-Za-z0-9._-]; default "default" */
  const char* run_id;   /* name of this run; default: EPLB_LAUNCH_ID, torchrun's or SLURM's */
  const char* endpoint; /* address of eplbd: HOST:PORT, unix:PATH or a list "A,B"; or the place
                           of that list: env:NAME, file:PATH, srv:NAME; default: no daemon */
  const char* tls_ca;   /* PEM files, all three or none; default EPLB_TLS_CA and so on */
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
  const char* reduce;            /* "rank" (default): each rank reports; "root": rank 0 */
  const char* transport;         /* "auto" (default), "host", "peer", "nccl" or "peer+nccl" */
  const char* bind_address;      /* numeric address for other ranks; default "127.0.0.1" */
  const char* initial_placement; /* "static", or a file that rank 0 reads ("./static" is a file);
                                    default: the daemon's; if there is none, static */
  const char* placements_path;   /* rank 0 writes placements.jsonl here; default: not written */
  const char* history_path;      /* this rank's log for the validator; default: not written */
  int64_t first_step;
  int64_t nccl_piece_bytes; /* 0 (default): chosen by the ranks' nodes */
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
  int32_t layers_per_chunk; /* 0 (default): 4, or as many more as fit into 256 MiB */
  int32_t state_placement;  /* eplb_state_placement; default: in every replica */
  int32_t nccl_max_ctas;
  int32_t nccl_channels_per_net_peer;
  int32_t nccl_traffic_class;
  int32_t nccl_warm_up_ranks;
  int32_t pipeline_parallel_size; /* stages with layers of their own; 0: 1 */
  int32_t expert_tensor_parallel; /* ranks that share every expert; 0: 1 */
  int32_t reserved;               /* 0 */
  int32_t require_daemon;         /* 1: connect fails on all ranks if no daemon answers */
  int32_t take_over;              /* 1: replace a run of this job even if its steps advance */
  const char* split; /* split of tokens among an expert's replicas: "equal" (default), "batch" */
  int32_t ahead;     /* 1: rows, which no step changes, move while the next steps run */
  int32_t reserved2; /* 0 */
} eplb_client_options;

/* Fills in the defaults. struct_size: sizeof(eplb_client_options). */
EPLB_API int32_t eplb_client_options_init(eplb_client_options* options,
                                          size_t struct_size) EPLB_NOEXCEPT;

/* Collects the answers that eplb_all_gather receives. */
typedef struct eplb_answers eplb_answers;
EPLB_API int32_t eplb_answers_add(eplb_answers* answers, const void* bytes,
                                  size_t num_bytes) EPLB_NOEXCEPT;

/* The one collective that a trainer must provide: sends `bytes` to all ranks, waits for theirs with
 * a deadline of its own, and adds world_size answers in rank order, including this rank's. Every
 * rank calls it the same number of times in the same order, inside connect and register_experts. */
typedef int32_t (*eplb_all_gather)(void* user, const void* bytes, size_t num_bytes,
                                   eplb_answers* answers);

EPLB_API int32_t eplb_client_create(eplb_client** client) EPLB_NOEXCEPT;
/* Frees the client. A client that is not closed is closed first, with a reason that is not
 * "finished". NULL is ignored. No other call may run. */
EPLB_API void eplb_client_destroy(eplb_client* client) EPLB_NOEXCEPT;
/* Returns the message of this client's last failed call, "" if none failed; eplb_last_message() for
 * NULL. Valid until the training thread's next call. */
EPLB_API const char* eplb_client_message(const eplb_client* client) EPLB_NOEXCEPT;

/* Runs on the training thread while a call on the client waits for other ranks or the daemon: after
 * a signal, and at least every 0.2 s. A code other than OK ends a wait for other ranks at once:
 * connect fails, and a vote is Aborted on all ranks. Rows that are under way arrive first. */
typedef int32_t (*eplb_wait)(void* user);
/* Sets the callback of waits; NULL, the default, for none. `user` must stay valid until close. */
EPLB_API int32_t eplb_client_on_wait(eplb_client* client, eplb_wait wait, void* user) EPLB_NOEXCEPT;
/* Connects the ranks and chooses the first placement. Collective. `all_gather` and `user` must stay
 * valid until close. After a failure it may be called again. A missing daemon is no error unless
 * require_daemon is set: then it is Unavailable on rank 0 and FailedPrecondition on the others.
 * errors: InvalidArgument naming the option; FailedPrecondition naming field and ranks if ranks
 * differ; DeadlineExceeded naming the missing ranks. */
EPLB_API int32_t eplb_client_connect(eplb_client* client, const eplb_client_options* options,
                                     eplb_all_gather all_gather, void* user) EPLB_NOEXCEPT;
/* Connects with the daemon at options->endpoint as the all-gather, for launchers without one. The
 * job needs a name other than "default". The run needs a name of its own, from run_id,
 * EPLB_LAUNCH_ID, torchrun or SLURM; it is free again 5 s after the last call of its start.
 * errors of an all-gather, on every rank: DeadlineExceeded after start_deadline_s, naming the
 * missing ranks; Unavailable within seconds if no daemon listens; FailedPrecondition, on all ranks
 * of both, if two runs that start have one name. */
EPLB_API int32_t eplb_client_connect_through_daemon(
    eplb_client* client, const eplb_client_options* options) EPLB_NOEXCEPT;

/* Computes a derived tensor again for the local slots that received rows, in rising order. Called
 * on the training thread inside step_boundary, when the placement is the new one. A code other than
 * OK ends the run. */
typedef int32_t (*eplb_rebuild)(void* user, int32_t layer, const int32_t* local_slots,
                                size_t num_local_slots);

/* One tensor of one layer: local slot i is the row_bytes bytes at base + i * row_stride. A derived
 * tensor has name, layer, role, rebuild and user; its other fields are 0. The memory must outlive
 * the client. docs/registering-tensors.md lists the tensors that a trainer registers. */
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
  void* user; /* first argument of rebuild */
} eplb_tensor;

/* Registers the tensors of the local slots. Collective, once. A pipeline stage registers the
 * tensors of its own layers, which may be none. */
EPLB_API int32_t eplb_client_register_experts(eplb_client* client, const eplb_tensor* tensors,
                                              size_t num_tensors) EPLB_NOEXCEPT;

/* Writes a digest of what the expert in a local slot computes for a fixed input. An expert's digest
 * is equal in every slot and on every rank of the EP group. */
typedef int32_t (*eplb_probe)(void* user, int32_t layer, int32_t local_slot, uint64_t* digest);

/* Finds per-expert tensors that were not registered: all experts move by one slot and back, and
 * `probe` must write one digest for each expert in all places. Collective, between two steps.
 * stream: see step_boundary. InvalidArgument names layer, expert, slots and rank. */
EPLB_API int32_t eplb_client_check_experts(eplb_client* client, eplb_probe probe, void* user,
                                           void* stream) EPLB_NOEXCEPT;

/* Moves every registered row to another placement, or back, for a checkpoint in the order of the
 * trainer's own code. The current placement stays, and the daemon gets no message. Collective,
 * between two steps. While the rows are elsewhere, record, record_split, step_boundary,
 * check_experts and the calls on rows of replicas are FailedPrecondition.
 * physical_to_logical_map: [num_layers, num_slots], equal on all ranks; an expert's lowest slot is
 * its primary. NULL with num_cells 0, or the current placement's map, moves the rows back.
 * stream: see step_boundary. errors before any row moves: InvalidArgument naming layer and slot,
 * FailedPrecondition if ranks differ, Unavailable. DataLoss for rows that fail later and Aborted
 * for a lost rank: every later call returns the same. */
EPLB_API int32_t eplb_client_carry(eplb_client* client, const int32_t* physical_to_logical_map,
                                   size_t num_cells, void* stream) EPLB_NOEXCEPT;

/* ---- replicas of experts in training: docs/replicas-in-training.md ----
 * Collective among the ranks of an EP group, on the training thread between two boundaries. A
 * failure after the first transfer is Aborted, and every later call returns the same. */

typedef enum eplb_gradient_type {
  EPLB_FLOAT32 = 0,
  EPLB_FLOAT64 = 1,
  EPLB_BFLOAT16 = 2, /* like float16: added as float32, each addition rounded once */
  EPLB_FLOAT16 = 3
} eplb_gradient_type;

/* Rows of a layer's local slots besides the registered tensors, in the same memory: local slot i is
 * the row_bytes bytes at base + i * row_stride. */
typedef struct eplb_replica_rows {
  size_t struct_size; /* equal in all rows of a call */
  const char* name;   /* for messages; may be NULL */
  void* base;
  int64_t row_bytes;
  int64_t row_stride;
  int32_t num_rows;
  int32_t layer;
  int32_t type;     /* eplb_gradient_type; ignored by broadcast_weights */
  int32_t reserved; /* 0 */
} eplb_replica_rows;

/* Adds the rows of the other replicas to each primary's row, in the order of replicas. With
 * state_placement IN_EVERY_REPLICA the others get the sum as well. stream: see step_boundary. */
EPLB_API int32_t eplb_client_reduce_gradients(eplb_client* client, const eplb_replica_rows* rows,
                                              size_t num_rows, void* stream) EPLB_NOEXCEPT;
/* Overwrites the rows of all other replicas by their primary's. */
EPLB_API int32_t eplb_client_broadcast_weights(eplb_client* client, const eplb_replica_rows* rows,
                                               size_t num_rows, void* stream) EPLB_NOEXCEPT;
/* Writes the sum of squares of each expert's rows at its primary, equal on all ranks of the EP
 * group; 0 in layers without rows. Pipeline stages and expert-tensor-parallel ranks hold other
 * parts of an expert; the caller adds theirs up. squares: [num_layers, num_experts]; num_squares:
 * their product. */
EPLB_API int32_t eplb_client_expert_squares(eplb_client* client, const eplb_replica_rows* rows,
                                            size_t num_rows, void* stream, double* squares,
                                            size_t num_squares) EPLB_NOEXCEPT;

/* Adds the tokens routed to each expert in the current step. counts: [num_experts]. InvalidArgument
 * for a layer that another pipeline stage registered. */
EPLB_API int32_t eplb_client_record(eplb_client* client, int32_t layer, const int64_t* counts,
                                    size_t num_experts) EPLB_NOEXCEPT;

/* Adds to the seconds that this rank's experts computed in the current step, without waits for
 * other ranks. The daemon finds slow GPUs by these times and ignores ranks that record none. */
EPLB_API int32_t eplb_client_record_step_time(eplb_client* client, double seconds) EPLB_NOEXCEPT;

/* With split "batch": records that a batch of the layer was routed by `quotas` [num_slots], the
 * tokens of each slot over all ranks of the EP group. Once a batch, alike on all ranks of the EP
 * group; step_boundary records those of route_from. FailedPrecondition with split "equal". */
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
  int64_t decided_first_step; /* switch: steps whose load the decision covers */
  int64_t decided_last_step;
  /* Reason of a switch, a dropped chunk or eplb_client_vote_no; "NOT_COUNTING: " and the layers
   * without tokens on this rank for two load windows; or "". Valid until the next boundary. */
  const char* reason;
  int32_t votes_next;       /* the next step boundary votes */
  int32_t window_ends_next; /* a load window ends with the next step */
} eplb_boundary;

/* Makes this rank vote no in its next vote, so that nothing moves there on any rank, for a trainer
 * with gradients that would not move. `reason`, a text, is that of the boundary of the vote. */
EPLB_API int32_t eplb_client_vote_no(eplb_client* client, const char* reason) EPLB_NOEXCEPT;

/* Ends an optimizer step, also a skipped one. Every rank calls it once a step; steps rise by one
 * from first_step. stream: the cudaStream_t of expert work, NULL on the host. result: may be NULL.
 * After Aborted and DataLoss every later call returns the same. */
EPLB_API int32_t eplb_client_step_boundary(eplb_client* client, int64_t step, void* stream,
                                           eplb_boundary* result) EPLB_NOEXCEPT;

/* The arrays keep their addresses until destroy. Their contents change only inside step_boundary
 * and check_experts. */
typedef struct eplb_placement {
  size_t struct_size;
  int64_t version;
  char digest[72]; /* 64 hexadecimal digits and a 0 */
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t first_local_slot; /* first slot of this rank's GPU */
  int32_t num_local_slots;
  int32_t max_replicas;                   /* num_slots - num_experts + 1 */
  const int32_t* physical_to_logical_map; /* [L, S] */
  const int32_t* logical_to_physical_map; /* [L, E, max_replicas], -1 padded, primary first */
  const int32_t* logical_replica_count;   /* [L, E] */
} eplb_placement;

/* Writes the current placement. FailedPrecondition before connect. This call and those up to stats
 * work until destroy. */
EPLB_API int32_t eplb_client_placement(const eplb_client* client,
                                       eplb_placement* placement) EPLB_NOEXCEPT;
/* Writes the placement of the registered rows: the current placement, unless eplb_client_carry
 * moved the rows, which also changes the arrays. Its version is that of the current placement. */
EPLB_API int32_t eplb_client_row_placement(const eplb_client* client,
                                           eplb_placement* placement) EPLB_NOEXCEPT;

/* The current placement for kernels, in the memory of the expert tensors. Addresses stay until
 * destroy, so a captured graph may read the tables; contents change on the stream of step_boundary.
 * All NULL before register_experts. Row l of `replicas` has the slots of expert e, primary first,
 * from first_replica[l, e] up to, but not including, first_replica[l, e + 1]. `candidates` has the
 * slots to which this GPU sends tokens in the same form. thresholds: 2^32 times the summed share of
 * an expert's candidates up to and including this one. */
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
 * All arrays of a call are in one memory, which decides where the work is done. Host memory: before
 * the call returns. GPU memory: in order with `stream`, a cudaStream_t, without a wait, also inside
 * a graph capture. Messages are in eplb_last_message(). */

typedef enum eplb_id_type { EPLB_INT32 = 0, EPLB_INT64 = 1 } eplb_id_type;

typedef struct eplb_choices {
  size_t struct_size;
  const void* expert_ids;    /* [num_tokens, top_k], ids of id_type, row after row */
  const uint8_t* is_padding; /* [num_tokens], not 0: skip the token; NULL: skip no token */
  int64_t* counters;   /* [num_experts + 1]: a choice adds 1 to its expert's counter, or to the last
                          one if its id is not in 0..num_experts-1 */
  int64_t num_tokens;  /* num_tokens * top_k is at most 2^31 */
  int32_t top_k;       /* at least 1 */
  int32_t num_experts; /* at least 1 */
  int32_t id_type;     /* eplb_id_type */
  int32_t reserved;    /* 0 */
} eplb_choices;

/* Adds the choices to the counters, which eplb_client_record takes once they are on the host.
 * errors: InvalidArgument naming the field, also for arrays in two memories; FailedPrecondition for
 * memory of a GPU that this library cannot use. cost: num_tokens * top_k. Threads: any, each with
 * counters of its own. */
EPLB_API int32_t eplb_count_tokens(const eplb_choices* choices, void* stream) EPLB_NOEXCEPT;

/* Writes the slot of each choice, by the device tables of a layer: a slot on this GPU if the expert
 * has a replica there, otherwise a replica drawn by the token's number. Equal numbers, ids and
 * placement give equal slots, on the host and on every GPU.
 * slots: [num_tokens, top_k] of id_type, -1 for padding and for ids out of range; it may be
 * expert_ids itself. first_token: number of token 0; ranks that use different numbers do not all
 * draw the same replica. If counters are not NULL, counts as eplb_count_tokens does.
 * errors: see eplb_count_tokens; also InvalidArgument for a layer or num_experts that the client
 * does not have, and FailedPrecondition before register_experts. Threads: any, while no other
 * thread is inside step_boundary or check_experts; a probe may call it. */
EPLB_API int32_t eplb_client_route_tokens(const eplb_client* client, int32_t layer,
                                          const eplb_choices* choices, int64_t first_token,
                                          void* slots, void* stream) EPLB_NOEXCEPT;

/* Writes the slot of each choice by a table of the caller, in one pass over host memory, without a
 * client. slot_of_expert: [num_experts + 1]; the last entry is written for padding. Ids out of
 * range stay: they may be a router's mark of no expert. slots: [num_tokens, top_k] of id_type; it
 * may be expert_ids itself. If counters are not NULL, counts as eplb_count_tokens does; with both
 * slot_of_expert and slots NULL it counts alone. Allocates nothing. errors: InvalidArgument naming
 * the field; nothing is written then. cost: num_tokens * top_k. Threads: any, each with counters of
 * its own. */
EPLB_API int32_t eplb_turn_tokens(const eplb_choices* choices, const int64_t* slot_of_expert,
                                  void* slots) EPLB_NOEXCEPT;
/* Does the same in memory of a GPU, in the order of a stream. It only launches; zero tokens load
 * the kernels, because a first launch may wait for all that the device runs. weight: [1] in that
 * memory, 0: nothing is counted; NULL: choices are counted. device: as CUDA numbers it. Memory is
 * not checked. errors: see above; FailedPrecondition, ResourceExhausted, Internal of the device. */
EPLB_API int32_t eplb_turn_tokens_on_gpu(const eplb_choices* choices, const int64_t* slot_of_expert,
                                         const int64_t* weight, void* slots, int32_t device,
                                         void* stream) EPLB_NOEXCEPT;

/* Writes the transport that carries the rows now; "" before register_experts. Valid until the next
 * call of this function. */
EPLB_API int32_t eplb_client_transport(const eplb_client* client,
                                       const char** transport) EPLB_NOEXCEPT;
/* Writes the id of this run. Valid until destroy. */
EPLB_API int32_t eplb_client_run_id(const eplb_client* client, const char** run_id) EPLB_NOEXCEPT;

typedef struct eplb_stats {
  size_t struct_size;
  int32_t connected;
  int32_t reserved;
  int64_t reconnects;
  int64_t reports_sent;
  int64_t refusals; /* by the daemon, e.g. because another process reports for this rank */
  int64_t dropped_steps;
  int64_t votes;
  int64_t commits;
  int64_t dropped_chunks;
  double disconnected_s;
  int64_t session_waits_over_1ms;
} eplb_stats;

EPLB_API int32_t eplb_client_stats(const eplb_client* client, eplb_stats* stats) EPLB_NOEXCEPT;

/* Ends the session with the daemon, within 2 s. reason: NULL or "finished" is the normal end; it
 * waits up to 3 s more for the other ranks if rows of replicas, or rows with `ahead`, moved after
 * the last vote. Every later call that acts is FailedPrecondition; closing again is OK. */
EPLB_API int32_t eplb_client_close(eplb_client* client, const char* reason) EPLB_NOEXCEPT;

/* ---- the exact split of a batch: docs/splitting-a-batch.md ----
 * Chooses how many of an expert's tokens each of its slots takes, so that the fullest GPU has the
 * fewest. Does not wait for other ranks. Equal counts give equal bits on every rank. */

/* Tokens of one layer in one batch, once per top-k choice: totals or by_gpu, the other is NULL. */
typedef struct eplb_batch {
  size_t struct_size;
  const int64_t* totals; /* [num_experts], sum over all ranks of the EP group */
  const int64_t* by_gpu; /* [num_gpus, num_experts], row-major, one row per rank of the group */
  const int64_t* before; /* with totals: sum over lower ranks of the group [num_experts]; or NULL */
  const int64_t* mine;   /* with before: tokens of this rank [num_experts] */
  int32_t num_experts;
  int32_t num_gpus; /* rows of by_gpu; 0 without it */
} eplb_batch;

/* The caller sets the first five fields; the call fills in the arrays and the other fields. The
 * load of a GPU is its tokens / its speed. */
typedef struct eplb_split {
  size_t struct_size;
  int64_t* quotas;     /* [num_slots]: tokens of a slot; an expert's quotas sum to its tokens */
  int64_t* own;        /* [num_slots]: this rank's part, by by_gpu, or before and mine; or NULL */
  int32_t* tight_gpus; /* [num_gpus], see num_tight_gpus; or NULL */
  int32_t num_slots;
  /* Proof of the peak: experts that only these GPUs hold have too many tokens for a lower one. */
  int32_t num_tight_gpus;
  int64_t version;     /* placement that was split */
  double peak;         /* load of the fullest GPU */
  double mean;         /* mean load of the usable GPUs */
  double balancedness; /* mean / peak, NaN without tokens */
  double equal_peak;   /* `peak` if replicas took equal shares */
} eplb_split;

typedef struct eplb_split_options {
  size_t struct_size;
  const double* gpu_speeds; /* [num_gpus], relative; 0 takes no tokens; NULL: all equal */
  double slack;             /* [0, 1], default 0: how far a GPU may exceed the least peak; a larger
                               slack moves fewer tokens away from equal shares */
  int32_t num_gpus;         /* length of gpu_speeds; 0 without it */
  int32_t reserved;         /* 0 */
} eplb_split_options;

/* Splits a batch under the current placement. From connect until destroy. On an error nothing is
 * written. errors: InvalidArgument naming the layer for numbers of experts, GPUs or slots that do
 * not fit; layer and expert for a negative count or a sum above 2^36; the GPU of speed 0 that holds
 * an expert. cost: some microseconds; the first split after a switch prepares the layer. Threads:
 * any, while no other thread is inside step_boundary or check_experts. Messages are in
 * eplb_last_message(). */
EPLB_API int32_t eplb_client_split(eplb_client* client, int32_t layer, const eplb_batch* batch,
                                   eplb_split* split) EPLB_NOEXCEPT;
/* Sets the options of later splits, equal on all ranks. InvalidArgument, and the options stay as
 * they were, for a speed that is neither 0 nor in [1e-3, 1e3], or a slack outside [0, 1]. Threads,
 * messages: see split. */
EPLB_API int32_t eplb_client_set_split_options(eplb_client* client,
                                               const eplb_split_options* options) EPLB_NOEXCEPT;
/* Writes the slot of each choice by split->own: an expert's choices, in the order of their index,
 * fill its slots, its primary first. slots, counters, padding: see route_tokens; all in host
 * memory. On an error nothing is written. errors: InvalidArgument naming an expert that has more or
 * fewer choices than its own quotas; FailedPrecondition after a switch, and for GPU memory.
 * Threads, messages: see split. */
EPLB_API int32_t eplb_client_route_split(const eplb_client* client, int32_t layer,
                                         const eplb_choices* choices, const eplb_split* split,
                                         void* slots) EPLB_NOEXCEPT;
/* Bounds of the batches that eplb_client_count_for and eplb_client_route_from take. */
typedef struct eplb_split_setup {
  size_t struct_size;
  int64_t max_tokens; /* most tokens of a batch on this rank; max_tokens * top_k is at most 2^31 */
  double deadline_s;  /* longest wait of a stream for a split [1e-6, 60]; 0: 0.001 */
  int32_t top_k;      /* choices of each token */
  /* Place of splits for tensors on a GPU, with equal bits. 0: a thread of the client. 1: a kernel,
   * for up to 128 GPUs and 2^24 choices; set_split_options holds from the next step_boundary. */
  int32_t split_on_gpu;
} eplb_split_setup;

/* Batches since eplb_client_prepare_split, and the newest split; of a kernel, the newest that was
 * read while its placement was current. */
typedef struct eplb_split_figures {
  size_t struct_size;
  int64_t batches; /* batches that route_from routed, on a GPU once the stream reached them */
  int64_t late;    /* batches that drew their slots because no split came by the deadline */
  int64_t refused; /* those that drew because split rejects the counts or a switch overtook them */
  int64_t version; /* placement of the newest split; this and what follows as in eplb_split */
  double peak;
  double mean;
  double balancedness;
  double equal_peak;
  int64_t drawn; /* choices that drew their slots, on a GPU before the newest batch */
} eplb_split_figures;

/* The next three split each batch in the order of a stream, without a wait of the caller:
 * count_for; an all-gather of the rows among the ranks of the EP group by the caller, on the same
 * stream; route_from. All arrays are in the memory of the registered tensors. In host memory the
 * calls compute. On a GPU they only launch, also inside a graph capture; a captured graph follows
 * later switches. The thread that splits ends with close.
 *
 * Allocates what the calls need, after register_experts, and frees what an earlier call allocated:
 * replay no graph of before. errors: InvalidArgument naming the field; ResourceExhausted. */
EPLB_API int32_t eplb_client_prepare_split(eplb_client* client,
                                           const eplb_split_setup* setup) EPLB_NOEXCEPT;
/* Writes this rank's choices of each expert to row [num_experts], and remembers the choices, whose
 * arrays must stay until the work of route_from is done. If counters are not NULL, counts as
 * eplb_count_tokens does. errors: InvalidArgument naming the argument, also for more tokens than
 * were prepared. Threads: one at a time, otherwise as split. Messages: eplb_last_message(). */
EPLB_API int32_t eplb_client_count_for(const eplb_client* client, int32_t layer,
                                       const eplb_choices* choices, int64_t* row,
                                       void* stream) EPLB_NOEXCEPT;
/* Writes the slots of the layer's choices of the last count_for, one for each call, as
 * eplb_client_split and eplb_client_route_split give them. gathered: [num_gpus, num_experts], the
 * rows of the EP group's ranks in their order. If the split is late or refused, each choice draws a
 * replica of its expert, each equally likely; none is lost, and ranks need not agree. slots: see
 * route_tokens. Threads, messages: see count_for. */
EPLB_API int32_t eplb_client_route_from(const eplb_client* client, int32_t layer,
                                        const int64_t* gathered, void* slots,
                                        void* stream) EPLB_NOEXCEPT;
/* Writes the figures. From connect until destroy, on any thread, but not during prepare_split. */
EPLB_API int32_t eplb_client_split_figures(const eplb_client* client,
                                           eplb_split_figures* figures) EPLB_NOEXCEPT;
/* Checks that all ranks of an EP group would split alike: compares layer, counts, options and
 * placement. Collective among all ranks, on the training thread, with the all-gather of connect.
 * counts: the totals, or by_gpu as one array. FailedPrecondition on all ranks, with one message,
 * naming the ranks that differ, or a rank whose layer or counts eplb_client_split rejects. */
EPLB_API int32_t eplb_client_check_counts(eplb_client* client, int32_t layer, const int64_t* counts,
                                          size_t num_counts) EPLB_NOEXCEPT;

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* EPLB_CLIENT_C_EPLB_H_ */
