// Costs of the layers of a migration one by one, and how many of them fit into one boundary.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/decision/cost.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "server/core/state/state.h"

namespace eplb::core {

inline constexpr int kLeastMeasured = 3;

// The least that a boundary with so many bytes took, as chunks of as many bytes or fewer show:
// nothing is extrapolated. 0 before kLeastMeasured of them: one slow boundary must not stop all
// later ones.
double LeastPause(std::span<const MeasuredPause> measured, int64_t bytes);

// A layer that changes.
struct LayerMove {
  LayerPlacement next;
  int64_t transfers = 0;
  std::vector<int32_t> rows;   // staging rows by GPU
  int32_t staging_rows = 0;    // staging of the GPU that needs most
  int64_t incoming_bytes = 0;  // bytes into the GPU that receives most
  double link_seconds = 0;     // time of the busiest link, at the bandwidths of the costs
};

// Rising; only layers that differ. costs.expert says what an expert weighs.
// errors: those of PlanTransfers. cost: a PlanTransfers per changed layer.
absl::StatusOr<std::vector<LayerMove>> MovesOf(const Placement& incumbent,
                                               const Placement& candidate, const Costs& costs);

struct BoundaryLimits {
  int32_t layers_per_chunk = 1;
  int64_t rows_per_chunk = std::numeric_limits<int64_t>::max();  // staging of one GPU
  double max_pause_seconds = std::numeric_limits<double>::infinity();
  // A boundary takes fixed_seconds, and seconds_per_byte for each byte of its fullest rank, as
  // measured. seconds_per_byte is 0 if nothing was measured; kUnmeasuredSecondsPerByte and
  // kUnmeasuredSecondsPerRow then stand for both. They only make chunks shorter. If they left
  // layers out, one slow boundary could stop all later ones.
  double fixed_seconds = 0;
  double seconds_per_byte = 0;
  // Pauses of the newest chunks. A layer whose LeastPause is above max_pause_seconds is left out.
  std::vector<MeasuredPause> measured = {};
};

// A gigabit link. What the costs say of links may be far from what carries the rows, so the first
// chunks are as short as the slowest usual link needs them.
inline constexpr double kUnmeasuredSecondsPerByte = 1e-8;
inline constexpr double kUnmeasuredSecondsPerRow = 1e-3;

// The predicted pause of a boundary that switches these layers together: the larger of what the
// links need and of what earlier chunks took for as many bytes.
double PredictPause(std::span<const LayerMove> moves, const BoundaryLimits& limits);

// Largest number of parts of one layer. Where so many are too long for the pause they are longer.
inline constexpr size_t kMostParts = 64;

// Takes layers apart that would alone take longer than max_pause_seconds, as links and measured
// boundaries tell: into parts of a LayerPath that keep to it, one behind the other. Before anything
// was measured the first layer begins with a part that keeps to it at kUnmeasuredSecondsPerByte:
// the boundary that measures is a short one. moves: as MovesOf returns them.
// errors: those of PlanTransfers. cost: O(S) and a PlanTransfers of one layer for each part.
absl::StatusOr<std::vector<LayerMove>> SplitToFit(const Placement& incumbent,
                                                  std::vector<LayerMove> moves, const Costs& costs,
                                                  const BoundaryLimits& limits);

// Orders the layers by the fall of their peak load for each byte of their fullest GPU, so that
// those worth most are switched first. falls: [L], tokens. moves: the parts of a layer behind each
// other, also afterwards.
void OrderByValue(std::span<const double> falls, std::vector<LayerMove>& moves);

// Chunks of layers in the order of `moves`, as many in each as the limits allow, at least one; of a
// layer in parts one part. The layers of a chunk rise. moves: the parts of a layer behind each
// other.
std::vector<Chunk> CutIntoBoundaries(std::span<const LayerMove> moves,
                                     const BoundaryLimits& limits);

// Cuts the chunk into parts that keep to the limits, and completes the first one.
// before: current when the chunk is proposed. errors: as SplitToFit and Complete.
absl::StatusOr<std::vector<Chunk>> CutAgain(const Placement& before, const Chunk& chunk,
                                            const Costs& costs, const BoundaryLimits& limits);

// Appends `next` to `chunk`, which is not complete then. Returns false, without a change, if both
// exceed the limits together.
bool Join(const Chunk& next, const BoundaryLimits& limits, Chunk& chunk);

// Every change from one placement to another.
struct Cut {
  std::vector<Chunk> chunks;  // the first one is complete
  int64_t transfers = 0;      // a layer in parts has those of all parts
};

// Cuts the change into chunks, the layers worth most first. falls: as in OrderByValue, or empty: as
// they rise. staging_rows: of the rank that has least, for one layer. errors: FailedPrecondition if
// a layer needs more; those of SplitToFit and Complete.
absl::StatusOr<Cut> CutAll(const Placement& before, const Placement& target,
                           std::span<const double> falls, const Costs& costs,
                           const BoundaryLimits& limits, int64_t staging_rows);

// The placement that runs once all chunks are in force. before: without any of them.
// errors: those of Placement::WithLayers. cost: a copy of the maps.
absl::StatusOr<Placement> AfterAll(const Placement& before, const std::deque<Chunk>& chunks);

// Sets chunk.after and chunk.digest. before: current when the chunk is proposed.
// errors: those of Placement::WithLayers. cost: a copy of the maps, and their digest.
absl::Status Complete(const Placement& before, Chunk& chunk);

// Limits of a proposal by the staging of the ranks.

// Experts per layer that fit into the staging of the rank that has least.
int64_t LeastStagingRows(const Run& run);

// Experts, of all layers of a chunk together, that fit into the staging of the rank that has least.
// One that did not say for how many layers it has room has it for kUnsaidStagingLayers at most.
// REQUIRES: job.current.
inline constexpr int64_t kUnsaidStagingLayers = 4;  // the client library's least
int64_t RowsPerChunk(const Job& job);

}  // namespace eplb::core
