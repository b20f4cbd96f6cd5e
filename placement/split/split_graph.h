// A placement prepared for splits: experts, parts and slots as tables of integers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/split/split_solver.h"
#include "placement/split/split_tables.h"

namespace eplb {

struct BatchSplitOptions {
  // Null: all usable and equally fast. Rounded to 24 bits of the fastest GPU's speed.
  const GpuSpeeds* speeds = nullptr;
  // Part of the least maximum [0, 1] by which a GPU may exceed it, so that fewer tokens leave the
  // slots of equal shares. Rounded to 20 bits.
  double slack = 0;
  // Fraction of the least maximum by which the search may end above it [0, 1]. 0 finds the least
  // maximum. A small tolerance saves most of the moves of a hard batch. Rounded to 20 bits.
  double tolerance = 0;
};

// Returns the speeds as integers relative to the fastest one. All equal speeds are exactly 1, so
// that a peak is a number of tokens. 0 stays 0.
std::vector<int64_t> SplitSpeeds(std::span<const double> speeds);

// Builds the tables of layers, one after the other. Keeps its scratch memory.
// Threads: one at a time.
class SplitLayerBuilder {
 public:
  // gpu_of_slot: [S].
  SplitLayerBuilder(std::vector<int32_t> gpu_of_slot, int32_t num_gpus);
  explicit SplitLayerBuilder(const Topology& topology);

  // Forgets the previous layer.
  void Start();
  // Adds the next expert by id. slots: at least one; equal shares that do not divide give one token
  // more to the first of them.
  void Add(std::span<const int32_t> slots);
  // Appends the layer's tables to `tables`. Without `with_inner` the list of inner experts is
  // empty: it shortens the flow of a split, but finding it costs more than one split saves.
  SplitLayerTables AppendTo(std::vector<int32_t>& tables, bool with_inner);
  // Returns the layer without inner experts, valid until the next call. speeds: [G], outlives it.
  SplitLayer Finish(std::span<const int64_t> speeds);

 private:
  void NumberParts();
  void FindInner();
  void FindShared();

  std::vector<int32_t> gpu_of_slot_;
  std::vector<int32_t> part_on_gpu_;  // [G], part of the expert that is being added; -1: none
  std::vector<int32_t> next_;         // [G]
  std::vector<int32_t> num_found_;    // [num_replicated]
  // Tables of SplitLayer.
  std::vector<int32_t> fixed_expert_, fixed_gpu_, expert_, num_replicas_, first_of_expert_,
      expert_part_, expert_gpu_, expert_slots_, slots_before_, expert_of_, outer_expert_,
      inner_expert_, first_on_gpu_, ring_first_, ring_size_, part_place_, slot_source_,
      shared_slot_, shared_among_, shared_place_, first_slot_, replica_slot_;
  std::vector<int32_t> place_;  // [S], index among the expert's slots on the GPU
  // The layer that Finish returned.
  std::vector<int32_t> tables_;
  SplitLayerTables sizes_;
};

// errors: as SplitGraph::Make.
absl::Status CheckSplittable(const Placement& placement, const BatchSplitOptions& options);

// The tables of a placement: the part of a split that a batch does not change.
// Threads: immutable.
class SplitGraph {
 public:
  static constexpr int32_t kMaxGpus = SplitSolver::kMaxGpus;

  // errors: InvalidArgument for more than kMaxGpus GPUs, speeds of another number of GPUs, an
  // expert on an unusable GPU, and a slack or tolerance outside [0, 1]. cost: O(L * (E + S * S /
  // G)), memory of about 50 bytes a slot.
  static absl::StatusOr<SplitGraph> Make(const Placement& placement,
                                         const BatchSplitOptions& options = {});

  int32_t num_layers() const { return shape_.num_layers; }
  int32_t num_experts() const { return shape_.num_experts; }
  int32_t num_slots() const { return shape_.num_slots; }
  int32_t num_gpus() const { return shape_.num_gpus; }
  const SplitMargins& margins() const { return margins_; }
  std::span<const int64_t> speeds() const { return speeds_; }
  // Views of the graph, which outlives them.
  SplitTables Tables() const;
  SplitLayer Layer(LayerId layer) const { return Tables().Layer(layer.value); }

 private:
  SplitShape shape_;
  SplitMargins margins_;
  std::vector<int64_t> speeds_;  // [G]
  std::vector<SplitLayerTables> layers_;
  std::vector<int32_t> tables_;
};

}  // namespace eplb
