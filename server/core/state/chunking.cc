#include "server/core/state/chunking.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/layer_path.h"

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
  return *std::ranges::max_element(incoming);
}

absl::StatusOr<LayerMove> MoveOf(const Placement& incumbent, const Placement& candidate,
                                 LayerId layer, LayerPlacement next, const Costs& costs) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan,
                        PlanTransfers(incumbent, candidate, {&layer, 1}, costs.expert));
  return LayerMove{.next = std::move(next),
                   .transfers = static_cast<int64_t>(plan.transfers.size()),
                   .rows = RowsOf(plan, incumbent.topology()),
                   .staging_rows = plan.max_incoming_per_gpu_and_layer,
                   .incoming_bytes = MostIncoming(plan, incumbent.topology(), costs.expert),
                   .link_seconds = LinkSeconds(plan, incumbent.topology(), costs)};
}

// The GPUs and nodes of a job, with one layer.
Topology OneLayerOf(const Topology& topology) {
  return *Topology::Make({.num_layers = 1,
                          .num_experts = topology.num_experts(),
                          .num_slots = topology.num_slots(),
                          .num_gpus = topology.num_gpus(),
                          .num_nodes = topology.num_nodes(),
                          .num_groups = topology.num_groups()});
}

absl::StatusOr<Placement> PlacementOf(const Topology& one_layer, const LayerPlacement& layer) {
  const auto row = [](const std::vector<int32_t>& numbers) {
    return Eigen::Map<const IndexMatrix>(numbers.data(), 1, std::ssize(numbers));
  };
  return Placement::FromSlotsAndRanks(one_layer, row(layer.physical_to_logical),
                                      row(layer.replica_rank));
}

// Returns the measured time of a boundary with so many bytes.
double SecondsOf(int64_t bytes, const BoundaryLimits& limits) {
  return limits.fixed_seconds + static_cast<double>(bytes) * limits.seconds_per_byte;
}

// Returns the known pause that a layer alone would take.
double KnownPause(const LayerMove& move, const BoundaryLimits& limits) {
  return std::max({move.link_seconds, SecondsOf(move.incoming_bytes, limits),
                   LeastPause(limits.measured, move.incoming_bytes)});
}

// A layer that moves in parts.
struct PartialMove {
  LayerPath path;
  Placement now;  // this layer alone
  LayerMove whole;
};

absl::StatusOr<PartialMove> Begin(const LayerPlacement& from, LayerMove move,
                                  const Topology& topology) {
  LayerPath path(from, move.next, topology);
  EPLB_ASSIGN_OR_RETURN(Placement now, PlacementOf(OneLayerOf(topology), from));
  return PartialMove{std::move(path), std::move(now), std::move(move)};
}

// Rows per GPU that the pause allows if all rows are alike.
int64_t RowsInPause(const LayerMove& move, const BoundaryLimits& limits) {
  const double share = limits.max_pause_seconds / KnownPause(move, limits);
  const int64_t most = *std::ranges::max_element(move.rows);
  return std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(most)));
}

// The next part, of at most `rows` rows per GPU, and of fewer as long as its pause is too long.
absl::StatusOr<LayerMove> NextPart(int64_t rows, const Costs& costs, const BoundaryLimits& limits,
                                   PartialMove& move) {
  for (;; rows /= 2) {
    LayerPath path = move.path;
    LayerPlacement next = path.Take(rows);
    EPLB_ASSIGN_OR_RETURN(Placement after, PlacementOf(move.now.topology(), next));
    EPLB_ASSIGN_OR_RETURN(LayerMove part,
                          MoveOf(move.now, after, LayerId{0}, std::move(next), costs));
    if (rows > 1 && KnownPause(part, limits) > limits.max_pause_seconds) continue;
    move.path = std::move(path);
    move.now = std::move(after);
    return part;
  }
}

// A layer whose KnownPause is too long, in parts.
absl::StatusOr<std::vector<LayerMove>> PartsOf(const PartialMove& move, const Costs& costs,
                                               BoundaryLimits limits) {
  for (int64_t rows = RowsInPause(move.whole, limits);; rows *= 2) {
    PartialMove rest = move;
    std::vector<LayerMove> parts;
    while (!rest.path.done() && parts.size() <= kMostParts) {
      EPLB_ASSIGN_OR_RETURN(LayerMove part, NextPart(rows, costs, limits, rest));
      parts.push_back(std::move(part));
    }
    if (parts.size() <= kMostParts) return parts;
    limits.max_pause_seconds *= 2;
  }
}

// Begins the layer with a part that is short at kUnmeasuredSecondsPerByte.
absl::StatusOr<std::vector<LayerMove>> BeginShort(const LayerPlacement& from, LayerMove move,
                                                  const Topology& topology, const Costs& costs,
                                                  BoundaryLimits limits) {
  limits.seconds_per_byte = kUnmeasuredSecondsPerByte;
  if (KnownPause(move, limits) <= limits.max_pause_seconds) {
    return std::vector<LayerMove>{std::move(move)};
  }
  EPLB_ASSIGN_OR_RETURN(PartialMove partial, Begin(from, std::move(move), topology));
  EPLB_ASSIGN_OR_RETURN(LayerMove first,
                        NextPart(RowsInPause(partial.whole, limits), costs, limits, partial));
  if (partial.path.done()) return std::vector<LayerMove>{std::move(partial.whole)};
  LayerPlacement next = partial.whole.next;
  EPLB_ASSIGN_OR_RETURN(const Placement after, PlacementOf(partial.now.topology(), next));
  EPLB_ASSIGN_OR_RETURN(LayerMove rest,
                        MoveOf(partial.now, after, LayerId{0}, std::move(next), costs));
  return std::vector<LayerMove>{std::move(first), std::move(rest)};
}

}  // namespace

absl::StatusOr<std::vector<LayerMove>> MovesOf(const Placement& incumbent,
                                               const Placement& candidate, const Costs& costs) {
  std::vector<LayerMove> moves;
  for (int32_t index = 0; index < incumbent.topology().num_layers(); ++index) {
    const LayerId layer{index};
    LayerPlacement next = candidate.Layer(layer);
    if (next == incumbent.Layer(layer)) continue;
    EPLB_ASSIGN_OR_RETURN(LayerMove move,
                          MoveOf(incumbent, candidate, layer, std::move(next), costs));
    moves.push_back(std::move(move));
  }
  return moves;
}

absl::StatusOr<std::vector<LayerMove>> SplitToFit(const Placement& incumbent,
                                                  std::vector<LayerMove> moves, const Costs& costs,
                                                  const BoundaryLimits& limits) {
  const Topology& topology = incumbent.topology();
  std::vector<LayerMove> result;
  for (LayerMove& move : moves) {
    const LayerPlacement from = incumbent.Layer(move.next.layer);
    std::vector<LayerMove> parts;
    if (KnownPause(move, limits) > limits.max_pause_seconds) {
      EPLB_ASSIGN_OR_RETURN(const PartialMove partial, Begin(from, std::move(move), topology));
      EPLB_ASSIGN_OR_RETURN(parts, PartsOf(partial, costs, limits));
    } else if (limits.seconds_per_byte == 0 && result.empty()) {
      EPLB_ASSIGN_OR_RETURN(parts, BeginShort(from, std::move(move), topology, costs, limits));
    } else {
      parts.push_back(std::move(move));
    }
    std::move(parts.begin(), parts.end(), std::back_inserter(result));
  }
  return result;
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

double PredictPause(std::span<const LayerMove> moves, const BoundaryLimits& limits) {
  double by_links = 0;
  int64_t bytes = 0;
  int64_t rows = 0;
  for (const LayerMove& move : moves) {
    by_links += move.link_seconds;
    bytes += move.incoming_bytes;
    rows += move.staging_rows;
  }
  if (limits.seconds_per_byte > 0) return std::max(by_links, SecondsOf(bytes, limits));
  return std::max({by_links, static_cast<double>(bytes) * kUnmeasuredSecondsPerByte,
                   static_cast<double>(rows) * kUnmeasuredSecondsPerRow});
}

void OrderByValue(std::span<const double> falls, std::vector<LayerMove>& moves) {
  std::vector<double> bytes(falls.size());
  const auto layer_of = [](const LayerMove& move) {
    return static_cast<size_t>(move.next.layer.value);
  };
  for (const LayerMove& move : moves) {
    bytes[layer_of(move)] += static_cast<double>(move.incoming_bytes);
  }
  const auto key_of = [&](const LayerMove& move) {
    const size_t layer = layer_of(move);
    return std::pair(-falls[layer] / std::max(bytes[layer], 1.0), layer);
  };
  std::ranges::stable_sort(moves, {}, key_of);
}

std::vector<Chunk> CutIntoBoundaries(std::span<const LayerMove> moves,
                                     const BoundaryLimits& limits) {
  std::vector<Chunk> chunks;
  while (!moves.empty()) {
    size_t count = 1;
    std::vector<int64_t> rows(moves[0].rows.begin(), moves[0].rows.end());
    while (count < moves.size() && count < static_cast<size_t>(limits.layers_per_chunk) &&
           moves[count].next.layer != moves[count - 1].next.layer &&
           PredictPause(moves.first(count + 1), limits) <= limits.max_pause_seconds &&
           AddRows(moves[count].rows, limits.rows_per_chunk, rows)) {
      ++count;
    }
    Chunk& chunk = chunks.emplace_back();
    for (const LayerMove& move : moves.first(count)) {
      chunk.layers.Put(move.next);
      chunk.incoming_bytes += move.incoming_bytes;
      chunk.rows += move.staging_rows;
    }
    moves = moves.subspan(count);
  }
  return chunks;
}

bool Join(const Chunk& next, const BoundaryLimits& limits, Chunk& chunk) {
  const int64_t bytes = chunk.incoming_bytes + next.incoming_bytes;
  const int64_t rows = chunk.rows + next.rows;
  if (SecondsOf(bytes, limits) > limits.max_pause_seconds ||
      LeastPause(limits.measured, bytes) > limits.max_pause_seconds ||
      rows > limits.rows_per_chunk) {
    return false;
  }
  wire::LayerList layers = chunk.layers;
  for (const LayerPlacement& layer : std::as_const(next.layers)) layers.Put(layer);
  if (layers.size() > static_cast<size_t>(limits.layers_per_chunk)) return false;
  chunk = {.layers = std::move(layers), .incoming_bytes = bytes, .rows = rows};
  return true;
}

absl::StatusOr<std::vector<Chunk>> CutAgain(const Placement& before, const Chunk& chunk,
                                            const Costs& costs, const BoundaryLimits& limits) {
  EPLB_ASSIGN_OR_RETURN(const Placement after, before.WithLayers(chunk.layers));
  EPLB_ASSIGN_OR_RETURN(std::vector<LayerMove> moves, MovesOf(before, after, costs));
  EPLB_ASSIGN_OR_RETURN(moves, SplitToFit(before, std::move(moves), costs, limits));
  std::vector<Chunk> chunks = CutIntoBoundaries(moves, limits);
  if (!chunks.empty()) EPLB_RETURN_IF_ERROR(Complete(before, chunks.front()));
  return chunks;
}

absl::StatusOr<Cut> CutAll(const Placement& before, const Placement& target,
                           std::span<const double> falls, const Costs& costs,
                           const BoundaryLimits& limits, int64_t staging_rows) {
  EPLB_ASSIGN_OR_RETURN(std::vector<LayerMove> moves, MovesOf(before, target, costs));
  EPLB_ASSIGN_OR_RETURN(moves, SplitToFit(before, std::move(moves), costs, limits));
  Cut cut;
  for (const LayerMove& move : moves) {
    cut.transfers += move.transfers;
    if (move.staging_rows <= staging_rows) continue;
    return FailedPrecondition("layer ", move.next.layer.value, " needs ", move.staging_rows,
                              " rows of staging on one GPU, the ranks have ", staging_rows);
  }
  if (!falls.empty()) OrderByValue(falls, moves);
  cut.chunks = CutIntoBoundaries(moves, limits);
  if (!cut.chunks.empty()) EPLB_RETURN_IF_ERROR(Complete(before, cut.chunks.front()));
  return cut;
}

absl::StatusOr<Placement> AfterAll(const Placement& before, const std::deque<Chunk>& chunks) {
  wire::LayerList layers;
  for (const Chunk& chunk : chunks) {
    for (const LayerPlacement& layer : chunk.layers) layers.Put(layer);
  }
  return before.WithLayers(std::as_const(layers));
}

absl::Status Complete(const Placement& before, Chunk& chunk) {
  EPLB_ASSIGN_OR_RETURN(Placement after, before.WithLayers(std::as_const(chunk.layers)));
  chunk.digest = DigestOf(after);
  chunk.after = std::make_shared<const Placement>(std::move(after));
  return absl::OkStatus();
}

int64_t LeastStagingRows(const Run& run) {
  return std::ranges::min_element(
             run.ranks,
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
