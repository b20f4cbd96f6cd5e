// The transfers that turn one placement into another: who sends which expert to whom, in which
// round. A plan names layers, experts, GPUs and slots and never an address; every rank computes it
// and gets the same hash.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/digest.h"
#include "placement/ids.h"
#include "placement/placement.h"

namespace eplb {

// Place of an expert's optimizer state: in the primary's slot alone, or beside the weights of every
// replica.
enum class StateResidency { kWithPrimary, kEveryReplica };

struct MigrationOptions {
  int64_t weight_bytes = 0;  // bytes of one expert of one layer, role weight
  int64_t state_bytes = 0;   // bytes of one expert of one layer, role state; 0: none is planned
  StateResidency state_residency = StateResidency::kEveryReplica;
};

// One (layer, expert, destination GPU): weights, state or both of an expert go into one or more
// slots of that GPU. With source == destination it is a local copy between slots of one GPU, has no
// round (-1) and costs no link.
struct Transfer {
  LayerId layer;
  ExpertId expert;
  GpuId source;
  GpuId destination;
  SlotId source_slot;  // holds the expert in the current placement
  // Slots of `destination` that receive the weights, rising; may be empty.
  std::vector<SlotId> weight_slots;
  // Slots of `destination` that receive the state, rising; may be empty.
  std::vector<SlotId> state_slots;
  int32_t round = -1;

  bool is_local() const { return source == destination; }
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

struct MigrationPlan {
  // Between GPUs: by round, then source, then destination, layer, expert.
  std::vector<Transfer> transfers;
  std::vector<Transfer> local;  // inside a GPU: by GPU, then layer, then expert
  // Bytes between GPUs: each transfer counts its weights and its state once.
  int64_t link_bytes = 0;
  int64_t cross_node_transfers = 0;  // source and destination on different nodes
  // Rows of staging that the fullest GPU needs in one layer: its transfers and local copies. Never
  // above its number of slots.
  int32_t max_incoming_per_gpu_and_layer = 0;
  // SHA-256 over the digests of both placements (and so the shape), layers, options, transfers and
  // local copies: equal on all ranks for equal input, and only then.
  Digest hash;
};

// The plan from `current` to `target` over `layers` (rising; all layers when empty).
// Source: the destination GPU itself when it holds the expert; else a GPU of the destination's
//   node, then the one with the fewest sends queued, then the lowest; on it the lowest slot. State
//   always comes from the old primary under kWithPrimary, and then the weights too.
// A slot that keeps its expert is never touched, except that a change of primary moves state.
// Copies read the current placement: rows go through staging, so no order among them matters.
// Rounds by edge colouring of the bipartite multigraph (edge_colouring.h), so their number is the
//   maximum degree.
// errors: InvalidArgument when topologies differ, a layer is out of range or not above the one
//   before it, bytes are negative or their sum is above 2^63-1; ResourceExhausted as ColourEdges.
// cost: O(T * (G + rounds)) for T transfers, plus O(L * S) and the digests.
// threads: safe, no state.
absl::StatusOr<MigrationPlan> PlanMigration(const Placement& current, const Placement& target,
                                            std::span<const LayerId> layers,
                                            const MigrationOptions& options);

// The same but for rounds and hash, which are zero, and with the transfers by layer and
// destination: what prices need. cost: O(S) for each of `layers`, plus O(T * replicas).
absl::StatusOr<MigrationPlan> PlanTransfers(const Placement& current, const Placement& target,
                                            std::span<const LayerId> layers,
                                            const MigrationOptions& options);

// Changes between two placements, summed over layers.
struct MoveSummary {
  int64_t transfers = 0;      // (layer, expert, GPU) where that GPU did not hold the expert before
  int64_t slots_changed = 0;  // slots whose expert differs
  int64_t max_per_gpu = 0;    // most transfers into one GPU in one layer
  std::vector<int32_t> layer_max_per_gpu = {};  // [layers]
  int64_t cross_node = 0;                       // transfers with no source on the node
};

// errors: InvalidArgument when topologies differ.
absl::StatusOr<MoveSummary> SummariseMoves(const Placement& previous, const Placement& next);

}  // namespace eplb
