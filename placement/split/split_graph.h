// A placement as splits of batches need it: experts, parts and slots as tables of integers.
#ifndef EPLB_PLACEMENT_SPLIT_SPLIT_GRAPH_H_
#define EPLB_PLACEMENT_SPLIT_SPLIT_GRAPH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/split/split_tables.h"

namespace eplb {

struct BatchSplitOptions {
  // Null: all usable and equally fast. Taken to 24 bits of the fastest one's.
  const GpuSpeeds* speeds = nullptr;
  // Part of the least maximum by which a GPU may be above it, 0..1, so that fewer tokens leave the
  // slots of equal shares. Taken to 20 bits.
  double slack = 0;
};

// A placement, prepared for splits: what a batch does not change.
// Threads: immutable.
class SplitGraph {
 public:
  static constexpr int32_t kMaxGpus = 1024;

  // errors: InvalidArgument for more than kMaxGpus GPUs, speeds of another number of GPUs, an
  // expert on an unusable GPU, and a slack outside 0..1. cost: O(L * (E + S * S / G)), memory of
  // about 50 bytes a slot.
  static absl::StatusOr<SplitGraph> Make(const Placement& placement,
                                         const BatchSplitOptions& options = {});

  int32_t num_layers() const { return static_cast<int32_t>(layers_.size()); }
  int32_t num_experts() const { return num_experts_; }
  int32_t num_slots() const { return num_slots_; }
  int32_t num_gpus() const { return static_cast<int32_t>(speeds_.size()); }
  int32_t num_nodes() const { return num_nodes_; }
  int64_t slack() const { return slack_; }  // in kSplitSlackUnit
  std::span<const int64_t> speeds() const { return speeds_; }
  // Views of the graph, which outlives them.
  SplitTables Tables() const;
  SplitLayer Layer(LayerId layer) const { return Tables().Layer(layer.value); }
  int32_t max_parts() const { return max_parts_; }            // of a layer
  int32_t max_replicated() const { return max_replicated_; }  // of a layer

 private:
  void AddLayer(const Placement& placement, LayerId layer);

  int32_t num_experts_ = 0;
  int32_t num_slots_ = 0;
  int32_t num_nodes_ = 1;
  int32_t max_parts_ = 0;
  int32_t max_replicated_ = 0;
  int64_t slack_ = 0;
  bool equal_speeds_ = true;
  std::vector<int64_t> speeds_;  // [G]
  std::vector<SplitLayerTables> layers_;
  std::vector<int32_t> tables_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_SPLIT_GRAPH_H_
