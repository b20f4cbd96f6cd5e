// A policy computes a placement from a load. One file each under policies/, one row in registry.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/scenarios.h"
#include "placement/topology.h"

namespace eplb {

// How much work a search may do: a count of steps, never a time, so that the answer is the same on
// every machine.
enum class Effort { kFast, kDefault, kThorough };

constexpr int32_t ByEffort(Effort effort, int32_t fast, int32_t usual, int32_t thorough) {
  return effort == Effort::kFast ? fast : effort == Effort::kThorough ? thorough : usual;
}

// Order of two equal loads in `deepseek`. The reference leaves it open and replicas of one expert
// are always equal.
enum class TieBreak {
  kStable,  // the lower index: documented, the same everywhere
  kCompat,  // order of torch 1.13 on CPU: libstdc++'s std::sort over (value, index) pairs
};

// Options of all policies. A policy ignores those that it does not know.
struct PolicyOptions {
  TieBreak tie_break = TieBreak::kStable;
  // Absent: DefaultHierarchy of the topology, or in `deepseek` the reference's own rule. There
  // kNone ignores expert groups and nodes.
  std::optional<Hierarchy> hierarchy;
  Effort effort = Effort::kDefault;
  bool allow_duplicates = false;             // two replicas of an expert on one GPU where it helps
  std::optional<int32_t> max_moves_per_gpu;  // transfers into a GPU per layer; absent: the
                                             // policy's own rule
};

struct PolicyInput {
  const Load& load;          // [L, E]; not kept after the call
  const Topology& topology;  // same L and E
  const Placement* previous =
      nullptr;  // the current placement, or null; only some policies look at it
  const GpuSpeeds* speeds = nullptr;  // null: all usable and equally fast
  // How the job splits tokens among replicas; policies that do not look at it assume equal shares.
  SplitMode split = SplitMode::kEqual;
  // Windows before now, oldest first, each [L, E]; none: `load` is all that is known.
  std::span<const Load> recent = {};
  // Loads that the placement must serve, each: two or more (placement/scenarios.h); none: `load`
  // is the only one. With scenarios, `load` stands for them, as their mean or sum. Policies that
  // cannot aim at several loads refuse them.
  std::span<const Scenario> scenarios = {};
  ScenarioObjective objective = ScenarioObjective::kMean;
  // Set by another thread once no caller waits for the answer. Looked at where the search counts
  // its steps, so that little work follows; a search that is not abandoned does not depend on it.
  const std::atomic<bool>* abandoned = nullptr;
};

inline bool IsAbandoned(const std::atomic<bool>* abandoned) {
  return abandoned != nullptr && abandoned->load(std::memory_order_relaxed);
}
// Cancelled when the input's answer is not wanted any more.
absl::Status CheckWanted(const PolicyInput& input);
// errors: InvalidArgument when the load, a recent window or the previous placement has another
// shape than the topology; names the numbers.
absl::Status CheckShapes(const PolicyInput& input);
// errors: those of CheckScenarios, and InvalidArgument when the scenarios have another shape than
// the topology. OK without scenarios.
absl::Status CheckScenariosFit(const PolicyInput& input);

// Threads: safe, no state. Deterministic: equal input gives an equal placement on every machine.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // errors: InvalidArgument when the load does not fit the topology or the policy refuses the
  // shape; says which number. Cancelled when the input is abandoned.
  virtual absl::StatusOr<Placement> Solve(const PolicyInput& input) const = 0;
};

// Returns the policy's placement, aligned (placement/align.h) to `input.previous` if there is one.
// Speeds that are all equal are not given to the policy: some policies know none. errors: those of
// Solve.
absl::StatusOr<Placement> SolveAligned(const Policy& policy, const PolicyInput& input);

}  // namespace eplb
