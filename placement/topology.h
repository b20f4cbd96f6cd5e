// Fixed frame of a job: its slots, GPUs, nodes and expert groups.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/ids.h"

namespace eplb {

struct TopologyOptions {
  int32_t num_layers = 0;
  int32_t num_experts = 0;  // E, logical experts per layer
  int32_t num_slots = 0;    // S, physical experts per layer
  int32_t num_gpus = 1;     // G, size of the expert-parallel group
  int32_t num_nodes = 1;    // N, NVLink domains; G % N == 0
  int32_t num_groups = 1;   // K, the router's expert groups
};

// A checked shape. Slots are numbered GPU by GPU; with S % G != 0 the first S % G GPUs hold one
// slot more. Threads: immutable.
class Topology {
 public:
  // errors: InvalidArgument, naming the number: any of them < 1 or above 2^20, L * S above 2^28, S
  // < E, S < G, G % N != 0. E % K is left to the policies: the reference's global branch never
  // looks at it.
  static absl::StatusOr<Topology> Make(const TopologyOptions& options);

  int32_t num_layers() const { return options_.num_layers; }
  int32_t num_experts() const { return options_.num_experts; }
  int32_t num_slots() const { return options_.num_slots; }
  int32_t num_gpus() const { return options_.num_gpus; }
  int32_t num_nodes() const { return options_.num_nodes; }
  int32_t num_groups() const { return options_.num_groups; }
  bool equal_slots_per_gpu() const { return options_.num_slots % options_.num_gpus == 0; }
  // Slots of the GPU that holds most.
  int32_t max_slots_per_gpu() const;

  int32_t SlotsOf(GpuId gpu) const;
  SlotId FirstSlotOf(GpuId gpu) const;
  GpuId GpuOf(SlotId slot) const;
  NodeId NodeOf(GpuId gpu) const;

  friend bool operator==(const Topology& a, const Topology& b);

 private:
  explicit Topology(const TopologyOptions& options) : options_(options) {}

  TopologyOptions options_;
};

// Returns the least number of slots that is at least `least` and gives every GPU as many.
constexpr int64_t EqualSlots(int64_t least, int64_t num_gpus) {
  return (least + num_gpus - 1) / num_gpus * num_gpus;
}

// errors: InvalidArgument, naming the first number that differs and both values; `first` and
// `second` say whose shapes they are, e.g. "previous" and "next".
absl::Status CheckSameTopology(const char* first, const Topology& a, const char* second,
                               const Topology& b);

// How strongly a placement is tied to nodes and expert groups.

enum class Hierarchy {
  kStrict,  // every replica of an expert is on the node of its expert group; K / N groups a node
  kSoft,    // primaries stay on the node of their expert group, other replicas may be anywhere
  kNone,    // neither nodes nor expert groups are looked at
};

// Strict when K % N == 0 and both are above 1, else none.
Hierarchy DefaultHierarchy(const Topology& topology);

// errors: InvalidArgument, naming the numbers, when `hierarchy` is not kNone and K % N or E % K is
// not 0.
absl::Status CheckHierarchy(const Topology& topology, Hierarchy hierarchy);

}  // namespace eplb
