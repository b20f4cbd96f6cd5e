/* Placements without a daemon and without a client, for every language that can call C. What eplb.h
 * says of codes, structs and strings holds here; messages are in eplb_last_message(). */
#ifndef EPLB_CLIENT_C_EPLB_PLAN_H_
#define EPLB_CLIENT_C_EPLB_PLAN_H_

#include "eplb.h" /* beside this file, in the tree and where both are installed */

/* NOLINTBEGIN(readability-identifier-naming): names of C, with a prefix for a namespace */

#ifdef __cplusplus
extern "C" {
#endif

/* An answer: ask its sizes, then copy its maps. Threads: safe to read from several. */
typedef struct eplb_plan eplb_plan;

typedef enum eplb_tie_break { EPLB_TIES_STABLE = 0, EPLB_TIES_COMPAT = 1 } eplb_tie_break;
typedef enum eplb_hierarchy {
  EPLB_HIERARCHY_DEFAULT = 0, /* strict where num_groups % num_nodes == 0 and both are above 1 */
  EPLB_HIERARCHY_STRICT = 1,
  EPLB_HIERARCHY_SOFT = 2,
  EPLB_HIERARCHY_NONE = 3
} eplb_hierarchy;
typedef enum eplb_effort {
  EPLB_EFFORT_DEFAULT = 0,
  EPLB_EFFORT_FAST = 1,
  EPLB_EFFORT_THOROUGH = 2
} eplb_effort;

typedef struct eplb_rebalance_options {
  size_t struct_size;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_replicas; /* slots */
  int32_t num_groups;
  int32_t num_nodes;
  int32_t num_gpus;
  int32_t tie_break; /* eplb_tie_break; the reference leaves it open */
  int32_t reserved;  /* 0 */
} eplb_rebalance_options;

/* DeepSeek's rebalance_experts, bit for bit. weight: [num_layers, num_experts]. InvalidArgument for
 * what the reference asserts. */
EPLB_API int32_t eplb_rebalance_experts(const eplb_rebalance_options* options, const float* weight,
                                        eplb_plan** plan) EPLB_NOEXCEPT;

typedef struct eplb_plan_options {
  size_t struct_size;
  const char* policy;               /* "balanced" (default), "deepseek", "incremental", "flow";
                                       "auto" needs a running job and is refused */
  const int64_t* previous;          /* physical_to_logical_map [L, S]; NULL: none */
  const int64_t* previous_replicas; /* its logical_to_physical_map [L, E, X]; NULL: an
                                       expert's lowest slot is its primary */
  const double* gpu_speeds;         /* [num_gpus], 0: holds nothing; NULL: all equal */
  int32_t previous_max_replicas;    /* X */
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t num_gpus;
  int32_t num_nodes;
  int32_t num_groups;
  int32_t tie_break;         /* eplb_tie_break, of "deepseek" */
  int32_t hierarchy;         /* eplb_hierarchy */
  int32_t effort;            /* eplb_effort; a count of steps, never a time */
  int32_t allow_duplicates;  /* 1: two replicas of an expert on one GPU where it helps */
  int32_t max_moves_per_gpu; /* of "incremental", per layer; -1: its own rule */
} eplb_plan_options;

/* Fills in the defaults. struct_size: sizeof(eplb_plan_options). */
EPLB_API int32_t eplb_plan_options_init(eplb_plan_options* options,
                                        size_t struct_size) EPLB_NOEXCEPT;
/* A policy's placement for token counts [L, E]: aligned to the previous one if there is one, so
 * that an expert that stays on a GPU keeps its slot; "incremental" needs one. num_groups divides
 * num_experts but for "deepseek", whose reference reads groups in its hierarchical form alone. */
EPLB_API int32_t eplb_plan_from_counts(const eplb_plan_options* options, const int64_t* counts,
                                       eplb_plan** plan) EPLB_NOEXCEPT;
/* The same for estimates, such as an average. */
EPLB_API int32_t eplb_plan_from_estimates(const eplb_plan_options* options, const double* load,
                                          eplb_plan** plan) EPLB_NOEXCEPT;

typedef struct eplb_plan_sizes {
  size_t struct_size;
  int32_t num_layers;
  int32_t num_experts;
  int32_t num_slots;
  int32_t max_replicas; /* the largest replica count of any layer and expert */
} eplb_plan_sizes;

EPLB_API int32_t eplb_plan_get_sizes(const eplb_plan* plan, eplb_plan_sizes* sizes) EPLB_NOEXCEPT;
/* Into the caller's arrays; one that is NULL is left out. physical_to_logical_map [L, S];
 * logical_to_physical_map [L, E, max_replicas], -1 padded, primary first; logical_count [L, E]. */
EPLB_API int32_t eplb_plan_copy_maps(const eplb_plan* plan, int64_t* physical_to_logical_map,
                                     int64_t* logical_to_physical_map,
                                     int64_t* logical_count) EPLB_NOEXCEPT;
/* [L] each: mean / max GPU load under the load that was planned for, 1 is best, NaN for a layer
 * without load; that max; one that is NULL is left out. FailedPrecondition where that load was no
 * load (negative, not finite). */
EPLB_API int32_t eplb_plan_copy_figures(const eplb_plan* plan, double* balancedness,
                                        double* max_gpu_load) EPLB_NOEXCEPT;
EPLB_API void eplb_plan_destroy(eplb_plan* plan) EPLB_NOEXCEPT;

/* A placement that exists already: `previous`, and `previous_replicas` if given, of the shape in
 * the options; the rest is not looked at. The plan has no figures. */
EPLB_API int32_t eplb_plan_from_maps(const eplb_plan_options* options,
                                     eplb_plan** plan) EPLB_NOEXCEPT;

/* Exact splits of batches under a plan's placement, without a client; eplb.h's eplb_client_split
 * has the words. options: NULL: the defaults. The plan may go before the
 * splitter does. Threads: safe; calls run one after the other. */
typedef struct eplb_splitter eplb_splitter;
EPLB_API int32_t eplb_splitter_create(const eplb_plan* plan, const eplb_split_options* options,
                                      eplb_splitter** splitter) EPLB_NOEXCEPT;
/* gpu: whose own quotas are asked for; without split->own it is not looked at. version is 0. */
EPLB_API int32_t eplb_splitter_split(eplb_splitter* splitter, int32_t layer,
                                     const eplb_batch* batch, int32_t gpu,
                                     eplb_split* split) EPLB_NOEXCEPT;
EPLB_API void eplb_splitter_destroy(eplb_splitter* splitter) EPLB_NOEXCEPT;

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#endif /* EPLB_CLIENT_C_EPLB_PLAN_H_ */
