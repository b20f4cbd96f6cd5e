// Tokens routed to each logical expert of each layer: the input of every decision.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "absl/status/statusor.h"

#include "placement/topology.h"

#include <Eigen/Core>

namespace eplb {

using LoadMatrix = Eigen::Array<int64_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RealMatrix = Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A checked load [layers, experts]: either exact token counts (int64) or estimates (double, e.g. an
// exponential average). Every cell is finite and >= 0, and no layer's sum overflows int64 (counts)
// or double (estimates).
class Load {
 public:
  // errors: InvalidArgument for an empty matrix, a negative or non-finite cell, a sum that
  // overflows; it names the cell.
  static absl::StatusOr<Load> FromCounts(LoadMatrix counts);
  static absl::StatusOr<Load> FromEstimates(RealMatrix estimates);

  int32_t num_layers() const;
  int32_t num_experts() const;
  bool is_counts() const { return std::holds_alternative<LoadMatrix>(cells_); }
  // REQUIRES: is_counts().
  const LoadMatrix& counts() const { return std::get<LoadMatrix>(cells_); }

  RealMatrix ToDouble() const;
  bool has_tokens() const;
  // Rounds each cell once, to nearest even; int64 counts go to float32 directly, never through
  // double. errors: InvalidArgument when a cell is above float32's range.
  absl::StatusOr<FloatMatrix> ToFloat() const;

  friend bool operator==(const Load& a, const Load& b);

 private:
  explicit Load(std::variant<LoadMatrix, RealMatrix> cells) : cells_(std::move(cells)) {}

  std::variant<LoadMatrix, RealMatrix> cells_;
};

// errors: InvalidArgument when the load has another number of layers or experts than the topology
// of `owner`, which the message names.
absl::Status CheckLoadFits(const Load& load, const Topology& topology,
                           const char* owner = "topology");

// errors: InvalidArgument for no window and for windows of different shapes, with their numbers.
absl::Status CheckSameShape(std::span<const Load* const> windows);

// Each layer scaled to a sum of 1; a layer without tokens stays 0. The order of the additions is
// the same on every machine.
RealMatrix NormalisedLayers(const Load& load);

// The loads of several windows as one: what is expected of the next.

// Without `decay` the sum of the windows, exact where all are counts; else an exponential average:
// estimate = decay * estimate + (1 - decay) * window, oldest first, decay in 0..1. A single window
// comes back as it is. windows: oldest first, not null.
// errors: InvalidArgument for no window, windows of different shapes, and a sum above 2^63-1,
// naming the cell. cost: O(windows * L * E). threads: safe, no state.
absl::StatusOr<Load> CombineLoads(std::span<const Load* const> windows,
                                  std::optional<double> decay);

// The number of steps that such a combination stands for. num_steps: of each window, at least one.
double CombineSteps(std::span<const double> num_steps, std::optional<double> decay);

}  // namespace eplb
