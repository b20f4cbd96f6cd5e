#include "server/core/state/chunking.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace eplb::core {

namespace {

// A transfer or a local copy takes a row of staging on the GPU that it goes to.
std::vector<int32_t> RowsOf(const MigrationPlan& plan, const Topology& topology) {
  std::vector<int32_t> rows(static_cast<size_t>(topology.num_gpus()));
  for (const std::vector<Transfer>* part : {&plan.transfers, &plan.local}) {
    for (const Transfer& transfer : *part) ++rows[static_cast<size_t>(transfer.destination.value)];
  }
  return rows;
}

// Adds `more` to `rows` where no GPU then has more than `most`; false leaves them as they are.
bool AddRows(std::span<const int32_t> more, int64_t most, std::vector<int64_t>& rows) {
  for (size_t gpu = 0; gpu < rows.size(); ++gpu) {
    if (rows[gpu] + more[gpu] > most) return false;
  }
  for (size_t gpu = 0; gpu < rows.size(); ++gpu) rows[gpu] += more[gpu];
  return true;
}

int64_t MostIncoming(const MigrationPlan& plan, const Topology& topology,
                     const MigrationOptions& expert) {
  std::vector<int64_t> incoming(static_cast<size_t>(topology.num_gpus()));
  for (const Transfer& transfer : plan.transfers) {
    incoming[static_cast<size_t>(transfer.destination.value)] += BytesOf(transfer, expert);
  }
  return *std::max_element(incoming.begin(), incoming.end());
}

}  // namespace

absl::StatusOr<std::vector<LayerMove>> MovesOf(const Placement& incumbent,
                                               const Placement& candidate, const Costs& costs) {
  std::vector<LayerMove> moves;
  for (int32_t index = 0; index < incumbent.topology().num_layers(); ++index) {
    const LayerId layer{index};
    LayerPlacement next = candidate.Layer(layer);
    if (next == incumbent.Layer(layer)) continue;
    EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                          PlanTransfers(incumbent, candidate, {&layer, 1}, costs.expert));
    moves.push_back({.next = std::move(next),
                     .transfers = static_cast<int64_t>(plan.transfers.size()),
                     .rows = RowsOf(plan, incumbent.topology()),
                     .staging_rows = plan.max_incoming_per_gpu_and_layer,
                     .incoming_bytes = MostIncoming(plan, incumbent.topology(), costs.expert),
                     .link_seconds = LinkSeconds(plan, incumbent.topology(), costs)});
  }
  return moves;
}

double LeastPause(std::span<const MeasuredPause> measured, int64_t bytes) {
  int count = 0;
  double least = 0;
  for (const MeasuredPause& one : measured) {
    if (one.bytes > bytes) continue;
    least = count == 0 ? one.seconds : std::min(least, one.seconds);
    ++count;
  }
  return count < kLeastMeasured ? 0 : least;
}

double PredictPause(std::span<const LayerMove> moves, double seconds_per_byte) {
  double by_links = 0;
  double by_bytes = 0;
  for (const LayerMove& move : moves) {
    by_links += move.link_seconds;
    by_bytes += static_cast<double>(move.incoming_bytes) * seconds_per_byte;
  }
  return std::max(by_links, by_bytes);
}

std::vector<Chunk> CutIntoBoundaries(std::span<const LayerMove> moves,
                                     const BoundaryLimits& limits) {
  const double seconds_per_byte =
      limits.seconds_per_byte > 0 ? limits.seconds_per_byte : kUnmeasuredSecondsPerByte;
  std::vector<Chunk> chunks;
  while (!moves.empty()) {
    size_t count = 1;
    std::vector<int64_t> rows(moves[0].rows.begin(), moves[0].rows.end());
    while (count < moves.size() && count < static_cast<size_t>(limits.layers_per_chunk) &&
           PredictPause(moves.first(count + 1), seconds_per_byte) <= limits.max_pause_seconds &&
           AddRows(moves[count].rows, limits.rows_per_chunk, rows)) {
      ++count;
    }
    Chunk& chunk = chunks.emplace_back();
    for (const LayerMove& move : moves.first(count)) {
      chunk.layers.push_back(move.next);
      chunk.incoming_bytes += move.incoming_bytes;
    }
    moves = moves.subspan(count);
  }
  return chunks;
}

absl::Status Complete(const Placement& before, Chunk& chunk) {
  EPLB_ASSIGN_OR_RETURN(Placement after, before.WithLayers(std::as_const(chunk.layers)));
  chunk.digest = DigestOf(after);
  chunk.after = std::make_shared<const Placement>(std::move(after));
  return absl::OkStatus();
}

int64_t LeastStagingRows(const Run& run) {
  return std::min_element(
             run.ranks.begin(), run.ranks.end(),
             [](const Rank& a, const Rank& b) { return a.staging_rows < b.staging_rows; })
      ->staging_rows;
}

int64_t RowsPerChunk(const Job& job) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Rank& rank : job.current->ranks) {
    const int64_t layers = rank.staging_layers > 0 ? rank.staging_layers : kUnsaidStagingLayers;
    int64_t rows = 0;
    if (__builtin_mul_overflow(rank.staging_rows, layers, &rows)) continue;
    least = std::min(least, rows);
  }
  return least;
}

}  // namespace eplb::core
