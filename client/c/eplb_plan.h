/* Placements without a client, for every language that can call C. Only eplb_ask_plan and
 * eplb_settle_plan need a daemon. The rules of eplb.h for codes, structs and strings apply;
 * messages are in eplb_last_message(). */
#ifndef EPLB_CLIENT_C_EPLB_PLAN_H_
#define EPLB_CLIENT_C_EPLB_PLAN_H_

#include "eplb.h" /* in the folder of this file, in the tree and when installed */

/* NOLINTBEGIN(readability-identifier-naming): names of C, with a prefix for a namespace */

#ifdef __cplusplus
extern "C" {
#endif

/* A planned placement: get its sizes, then copy its maps. Threads: several may read it. */
typedef struct eplb_plan eplb_plan;

typedef enum eplb_tie_break { EPLB_TIES_STABLE = 0, EPLB_TIES_COMPAT = 1 } eplb_tie_break;
typedef enum eplb_hierarchy {
  EPLB_HIERARCHY_DEFAULT = 0, /* strict if num_groups % num_nodes == 0 and both exceed 1 */
  EPLB_HIERARCHY_STRICT = 1,
  EPLB_HIERARCHY_SOFT = 2,
  EPLB_HIERARCHY_NONE = 3
} eplb_hierarchy;
typedef enum eplb_effort {
  EPLB_EFFORT_DEFAULT = 0,
  EPLB_EFFORT_FAST = 1,
  EPLB_EFFORT_THOROUGH = 2
} eplb_effort;
/* Figure of a layer that a placement for several loads minimizes. */
typedef enum eplb_objective {
  EPLB_OBJECTIVE_MEAN = 0, /* weighted mean over the loads of largest / mean GPU load */
  EPLB_OBJECTIVE_WORST = 1 /* the largest of these */
} eplb_objective;

typedef struct eplb_rebalance_options {
  size_t struct_size;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_replicas; /* slots */
  int32_t num_groups;
  int32_t num_nodes;
  int32_t num_gpus;
  int32_t tie_break; /* eplb_tie_break; the reference does not define the order */
  int32_t reserved;  /* 0 */
} eplb_rebalance_options;

/* Plans as DeepSeek's rebalance_experts does, bit for bit. weight: [num_layers, num_experts].
 * InvalidArgument for input that the reference's assertions reject. */
EPLB_API int32_t eplb_rebalance_experts(const eplb_rebalance_options* options, const float* weight,
                                        eplb_plan** plan) EPLB_NOEXCEPT;

typedef struct eplb_plan_options {
  size_t struct_size;
  const char* policy;               /* "balanced" (default), "deepseek", "incremental", "flow";
                                       "auto" needs a running job and is rejected */
  const int64_t* previous;          /* physical_to_logical_map [L, S]; NULL: none */
  const int64_t* previous_replicas; /* its logical_to_physical_map [L, E, X]; NULL: an
                                       expert's lowest slot is its primary */
  const double* gpu_speeds;         /* [num_gpus], 0: holds no expert; NULL: all equal */
  int32_t previous_max_replicas;    /* X */
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_nodes;
  int32_t num_groups;
  int32_t tie_break;         /* eplb_tie_break, for "deepseek" */
  int32_t hierarchy;         /* eplb_hierarchy */
  int32_t effort;            /* eplb_effort; counts steps, never time */
  int32_t allow_duplicates;  /* 1: two replicas of an expert on one GPU if it helps */
  int32_t max_moves_per_gpu; /* for "incremental", per layer; -1: its own rule */
} eplb_plan_options;

/* Fills in the defaults. struct_size: sizeof(eplb_plan_options). */
EPLB_API int32_t eplb_plan_options_init(eplb_plan_options* options,
                                        size_t struct_size) EPLB_NOEXCEPT;
/* Plans a policy's placement for token counts [L, E]. A previous placement aligns the new one, so
 * that an expert that stays on a GPU keeps its slot; "incremental" needs one. num_groups must
 * divide num_experts, except for "deepseek", whose reference reads groups only in its hierarchical
 * form. */
EPLB_API int32_t eplb_plan_from_counts(const eplb_plan_options* options, const int64_t* counts,
                                       eplb_plan** plan) EPLB_NOEXCEPT;
/* Plans a placement for estimated loads [L, E], such as an average. */
EPLB_API int32_t eplb_plan_from_estimates(const eplb_plan_options* options, const double* load,
                                          eplb_plan** plan) EPLB_NOEXCEPT;
/* Plans one placement for several estimated loads [num_loads, L, E], such as those of prefill and
 * decode; each layer of a load counts as if scaled to the same sum. A layer is at least as balanced
 * under any mixture of such scaled loads as under the worst of them. num_loads: 1..64; one load is
 * planned as in eplb_plan_from_estimates. weights: [num_loads], 1e-9..1e9; NULL: all 1. objective:
 * eplb_objective. "deepseek" rejects two or more loads. */
EPLB_API int32_t eplb_plan_from_scenarios(const eplb_plan_options* options, int32_t num_loads,
                                          const double* loads, const double* weights,
                                          int32_t objective, eplb_plan** plan) EPLB_NOEXCEPT;

typedef struct eplb_plan_sizes {
  size_t struct_size;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t max_replicas; /* the largest replica count of any layer and expert */
} eplb_plan_sizes;

EPLB_API int32_t eplb_plan_get_sizes(const eplb_plan* plan, eplb_plan_sizes* sizes) EPLB_NOEXCEPT;
/* Copies the maps into the caller's arrays; NULL skips one. physical_to_logical_map: [L, S].
 * logical_to_physical_map: [L, E, max_replicas], padded with -1, primary first. logical_count:
 * [L, E]. */
EPLB_API int32_t eplb_plan_copy_maps(const eplb_plan* plan, int64_t* physical_to_logical_map,
                                     int64_t* logical_to_physical_map,
                                     int64_t* logical_count) EPLB_NOEXCEPT;
/* Copies figures under the load that was planned for, [L] each; NULL skips one. balancedness: mean
 * / max GPU load, 1 is best, NaN for a layer without load; max_gpu_load: that maximum. With two or
 * more loads the figures are those of their mean, each layer of a load scaled to a sum of 1.
 * FailedPrecondition if the load was not valid (negative, not finite). */
EPLB_API int32_t eplb_plan_copy_figures(const eplb_plan* plan, double* balancedness,
                                        double* max_gpu_load) EPLB_NOEXCEPT;
/* Copies the balancedness under each load of eplb_plan_from_scenarios, [num_loads, L].
 * FailedPrecondition for a plan that was made otherwise. */
EPLB_API int32_t eplb_plan_copy_scenario_figures(const eplb_plan* plan,
                                                 double* balancedness) EPLB_NOEXCEPT;
EPLB_API void eplb_plan_destroy(eplb_plan* plan) EPLB_NOEXCEPT;

/* Makes a plan of an existing placement: `previous`, and `previous_replicas` if given, of the shape
 * in the options; other options are ignored. The plan has no figures. */
EPLB_API int32_t eplb_plan_from_maps(const eplb_plan_options* options,
                                     eplb_plan** plan) EPLB_NOEXCEPT;

/* Exact splits of batches under a plan's placement, without a client; see eplb_client_split in
 * eplb.h. options: NULL takes the defaults. The plan may be destroyed first. Threads: any; calls
 * are serialized. */
typedef struct eplb_splitter eplb_splitter;
EPLB_API int32_t eplb_splitter_create(const eplb_plan* plan, const eplb_split_options* options,
                                      eplb_splitter** splitter) EPLB_NOEXCEPT;
/* gpu: the GPU whose part of the quotas goes into split->own; ignored if that is NULL. version is
 * 0. */
EPLB_API int32_t eplb_splitter_split(eplb_splitter* splitter, int32_t layer,
                                     const eplb_batch* batch, int32_t gpu,
                                     eplb_split* split) EPLB_NOEXCEPT;
EPLB_API void eplb_splitter_destroy(eplb_splitter* splitter) EPLB_NOEXCEPT;

typedef struct eplb_replay_options {
  size_t struct_size;
  const char* policy; /* "auto" (default), or one of eplb_plan_options */
  const char* split; /* "equal" (default): a token's replica by its number; "batch": exact splits */
  double min_gain;   /* least decrease of the peak GPU load, 0..1 */
  double token_ns;   /* time of a token on the fullest GPU */
  int64_t expert_bytes;    /* bytes of a move; 0: moves take no time */
  int64_t steps_of_window; /* steps of each window; a decision takes effect some steps later */
  int64_t every;           /* windows between decisions */
  int64_t history;         /* windows that a decision looks at, except for "auto" */
  int32_t num_windows;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_nodes;
  int32_t num_groups;
  int32_t reserved; /* 0 */
} eplb_replay_options;

/* Figures of what balancing would have saved. Means are over windows with tokens, NaN if none has
 * any. Seconds are those of the fullest GPUs, at token_ns. */
typedef struct eplb_replay_figures {
  size_t struct_size;
  double balancedness_without_eplb; /* one slot per expert, in order */
  double balancedness;
  double seconds_without_eplb;
  double seconds_saved;
  double seconds_spent; /* on migrations */
  int64_t rebalances;
  int64_t transfers;
  int64_t bytes;
} eplb_replay_figures;

/* Fills in the defaults, which are those of `eplbctl replay` and of the daemon. */
EPLB_API int32_t eplb_replay_options_init(eplb_replay_options* options,
                                          size_t struct_size) EPLB_NOEXCEPT;
/* Decides on recorded windows as the daemon would have, each time on what came before, and applies
 * decisions as soon as it would. counts: [num_windows, num_layers, num_experts], oldest first.
 * errors: InvalidArgument naming the option or the window. cost: that of the policy, for each
 * decision. */
EPLB_API int32_t eplb_replay(const eplb_replay_options* options, const int64_t* counts,
                             eplb_replay_figures* figures) EPLB_NOEXCEPT;

/* A question of a serving engine to the daemon: where its experts should be. One process asks for
 * all GPUs of the engine. */
typedef struct eplb_plan_question {
  size_t struct_size;
  const char* endpoint; /* endpoint and the four tls_..: of eplb_client_options. If one daemon of a
                           list stands by, is gone or has not answered in half of the remaining
                           time, the next one is asked */
  const char* tls_ca;
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
  const char* job;             /* one model, or its layers of one pipeline stage */
  const char* run_id;          /* one life of the engine in one shape */
  const char* replaces_run_id; /* run that ended when the engine changed its shape; NULL: none */
  const char* engine;          /* name and version, for operators */
  const int64_t* counts;       /* [L, E], tokens since the last question */
  const int64_t* current;      /* physical_to_logical_map [L, S] of the placement that runs */
  int64_t number;              /* number of the question, from 1, rising within a run */
  int64_t expert_bytes;        /* weights of one expert of one layer; 0: moves have no price */
  double timeout_s;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_nodes;
  int32_t num_groups;
} eplb_plan_question;

typedef struct eplb_plan_answer {
  size_t struct_size;
  int64_t version;    /* version of the placement that runs if the answer is taken */
  int32_t changes;    /* 0: the current placement stays */
  int32_t reserved;   /* 0 */
  char reason[520];   /* one sentence */
  char endpoint[264]; /* daemon that answered */
} eplb_plan_answer;

/* Asks the daemon. physical_to_logical_map: [L, S], receives the placement to move to if the answer
 * changes it. Threads: any; a later question of a run ends the one before with Aborted. errors:
 * InvalidArgument naming a field, Unavailable, DeadlineExceeded, and those of the daemon; each
 * names the daemon. */
EPLB_API int32_t eplb_ask_plan(const eplb_plan_question* question, int64_t* physical_to_logical_map,
                               eplb_plan_answer* answer) EPLB_NOEXCEPT;
/* Reports what became of an answer that changes the placement, to the daemon that gave it.
 * question: as asked, with its own timeout_s. taken: 1 if the engine moves to the answer's
 * placement on all ranks, 0 if it does so on none. reason: why it was not taken; NULL: none. */
EPLB_API int32_t eplb_settle_plan(const eplb_plan_question* question,
                                  const eplb_plan_answer* answer, int32_t taken,
                                  const char* reason) EPLB_NOEXCEPT;

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* EPLB_CLIENT_C_EPLB_PLAN_H_ */
