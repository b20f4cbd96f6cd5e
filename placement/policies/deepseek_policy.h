// DeepSeek's expert-parallel load balancer, bit for bit: the baseline every other policy is
// measured against.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policies/deepseek_layer.h"
#include "placement/policy.h"

#include <Eigen/Core>

namespace eplb {

// Idea: replicate greedily the expert with most load per replica, then pack by falling load on the
// lightest GPU; with K expert groups on N nodes, K % N == 0, first pack groups on nodes and do the
// rest inside each node, else globally. Replicas of one expert may share a GPU.
// The answer is the reference's, with replicas in its order of creation (rank 0 is the primary).
// Solve errors: InvalidArgument for a load of another shape, a cell above float32's range, GPUs
// that are unusable or of different speeds, and what RebalanceExperts refuses, S % G != 0 among it.
// source: deepseek-ai/EPLB, eplb.py of 2025-03-24.  cost: O(L * S log S).
std::unique_ptr<Policy> MakeDeepseekPolicy(const PolicyOptions& options);

struct DeepseekShape {
  int32_t num_slots = 0;   // S
  int32_t num_groups = 1;  // K, expert groups
  int32_t num_nodes = 1;   // N
  int32_t num_gpus = 1;    // G
};

struct DeepseekMaps {
  IndexMatrix physical_to_logical;  // [L, S]
  IndexMatrix replica_rank;         // [L, S], in order of creation
  IndexMatrix counts;               // [L, E]
};

// `rebalance_experts` itself. weight: [L, E], any float32: negative, denormal, infinite and NaN
// cells follow the reference. errors: InvalidArgument, naming the numbers: an empty weight, a
// number below 1, L * S above 2^28, and what the reference asserts: S < E, S % G != 0 and, where K
// % N == 0, E % K != 0 or G % N != 0. K % N != 0 is no error: groups and nodes are then ignored.
// threads: safe, no state.
absl::StatusOr<DeepseekMaps> RebalanceExperts(const Eigen::Ref<const FloatMatrix>& weight,
                                              const DeepseekShape& shape, TieBreak tie_break);

}  // namespace eplb
