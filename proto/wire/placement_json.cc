// Writes placements as eplb.placement.v1, and reads them with every map checked.
#include "proto/wire/placement_json.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "base/status_macros.h"

#include <nlohmann/json.hpp>

namespace eplb::wire {

namespace {

constexpr std::string_view kFormat = "eplb.placement.v1";
constexpr std::string_view kIndexRange = "-1..2^31-1";

// Appends the fewest digits that are read back to the same bits.
template <class Number>
void AppendNumber(std::string& out, Number number) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
  out.append(digits, end);
}

void AppendKey(std::string& out, std::string_view key) {
  out += ",\"";
  out += key;
  out += "\":";
}

// A row of `count` numbers.
template <class Number>
void AppendRow(std::string& out, const Number* numbers, int64_t count) {
  out += '[';
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    AppendNumber(out, numbers[i]);
  }
  out += ']';
}

template <class Matrix>
void AppendMatrix(std::string& out, const Matrix& matrix) {
  out += '[';
  for (Eigen::Index row = 0; row < matrix.rows(); ++row) {
    if (row > 0) out += ',';
    AppendRow(out, &matrix(row, 0), matrix.cols());
  }
  out += ']';
}

// Appends [L, E * X] as [L][E][X].
void AppendNested(std::string& out, const IndexMatrix& matrix, int64_t inner) {
  for (Eigen::Index row = 0; row < matrix.rows(); ++row) {
    out += row > 0 ? ",[" : "[[";
    for (Eigen::Index col = 0; col < matrix.cols(); col += inner) {
      if (col > 0) out += ',';
      AppendRow(out, &matrix(row, col), inner);
    }
    out += ']';
  }
  out += ']';
}

std::string Text(std::string_view view) { return std::string(view); }

absl::StatusOr<int32_t> GetCount(const JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, GetInteger(object, key));
  if (number < 1 || number > std::numeric_limits<int32_t>::max()) {
    return InvalidInput(Text(key), " is ", number, ", expected 1..2^31-1");
  }
  return static_cast<int32_t>(number);
}

absl::StatusOr<Topology> ReadTopology(const JsonValue& object) {
  TopologyOptions options;
  EPLB_ASSIGN_OR_RETURN(options.num_layers, GetCount(object, "num_layers"));
  EPLB_ASSIGN_OR_RETURN(options.num_experts, GetCount(object, "num_logical_experts"));
  EPLB_ASSIGN_OR_RETURN(options.num_slots, GetCount(object, "num_slots"));
  EPLB_ASSIGN_OR_RETURN(options.num_gpus, GetCount(object, "num_gpus"));
  EPLB_ASSIGN_OR_RETURN(options.num_nodes, GetCount(object, "num_nodes"));
  EPLB_ASSIGN_OR_RETURN(options.num_groups, GetCount(object, "num_groups"));
  return Topology::Make(options);
}

absl::Status CheckIndices(std::string_view key, const JsonNumbers& numbers) {
  EPLB_RETURN_IF_ERROR(CheckIntegers(numbers, key, kIndexRange));
  for (size_t i = 0; i < numbers.integers.size(); ++i) {
    const int64_t number = numbers.integers[i];
    if (number >= -1 && number <= std::numeric_limits<int32_t>::max()) continue;
    return InvalidInput(Text(key), PlaceOf(numbers, static_cast<int64_t>(i)), " is ", number,
                        ", expected ", Text(kIndexRange));
  }
  return absl::OkStatus();
}

// Checks that each array at `depth` has `expected` entries.
absl::Status CheckEntries(std::string_view key, const JsonNumbers& numbers, size_t depth,
                          const std::pair<const char*, int64_t>& expected) {
  const std::vector<int64_t>& entries = numbers.children[depth];
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i] == expected.second) continue;
    const std::string where = depth == 0   ? ""
                              : depth == 1 ? absl::StrCat(" layer ", i)
                                           : absl::StrCat(" row ", i);
    return InvalidInput(Text(key), where, " has ", entries[i], " entries, expected ",
                        expected.second, " ", expected.first);
  }
  return absl::OkStatus();
}

using Axis = std::pair<const char*, int64_t>;  // "slots", and their number

// Reads nested arrays whose sizes are `axes`. errors: InvalidArgument, naming the place.
absl::StatusOr<const JsonNumbers*> ReadArrays(const JsonValue& object, std::string_view key,
                                              std::initializer_list<Axis> axes) {
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, GetNumbers(object, key, axes.size()));
  for (size_t depth = 0; depth < axes.size(); ++depth) {
    EPLB_RETURN_IF_ERROR(CheckEntries(key, *numbers, depth, axes.begin()[depth]));
  }
  return numbers;
}

absl::StatusOr<IndexMatrix> ReadMatrix(const JsonValue& object, std::string_view key,
                                       int64_t num_layers, Axis columns) {
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers,
                        ReadArrays(object, key, {{"layers", num_layers}, columns}));
  EPLB_RETURN_IF_ERROR(CheckIndices(key, *numbers));
  IndexMatrix matrix(num_layers, columns.second);
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    matrix.data()[i] = static_cast<int32_t>(numbers->integers[static_cast<size_t>(i)]);
  }
  return matrix;
}

// [L][E][X] flat, and its X.
struct ReplicaTable {
  const JsonNumbers* numbers;
  int64_t width;
};

absl::StatusOr<ReplicaTable> ReadReplicaTable(const JsonValue& object, const Topology& topology) {
  constexpr std::string_view kKey = "logical_to_physical_map";
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, GetNumbers(object, kKey, 3));
  const int64_t width = numbers->children[2].empty() ? 0 : numbers->children[2].front();
  EPLB_RETURN_IF_ERROR(ReadArrays(object, kKey,
                                  {{"layers", topology.num_layers()},
                                   {"experts", topology.num_experts()},
                                   {"replicas, as the first row", width}})
                           .status());
  EPLB_RETURN_IF_ERROR(CheckIndices(kKey, *numbers));
  return ReplicaTable{numbers, width};
}

// Returns the rank of each slot among its expert's replicas, by the order of an expert's entries.
// Checks only that indices are in range; FromSlotsAndRanks and CheckSameMaps find other errors.
absl::StatusOr<IndexMatrix> RanksOf(const ReplicaTable& table, const Topology& topology) {
  IndexMatrix ranks = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
  size_t next = 0;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      for (int64_t rank = 0; rank < table.width; ++rank) {
        const int64_t slot = table.numbers->integers[next++];
        if (slot >= topology.num_slots()) {
          return InvalidInput("logical_to_physical_map layer ", layer, " expert ", expert,
                              " names slot ", slot, ", expected at most ",
                              topology.num_slots() - 1);
        }
        if (slot >= 0) ranks(layer, slot) = static_cast<int32_t>(rank);
      }
    }
  }
  return ranks;
}

absl::Status CheckSameMaps(const Placement& placement, const ReplicaTable& table,
                           const IndexMatrix& counts) {
  const IndexMatrix replicas = placement.logical_to_physical_map();
  if (table.width != placement.max_replicas()) {
    return InvalidInput("logical_to_physical_map has ", table.width,
                        " entries an expert, the largest replica count is ",
                        placement.max_replicas());
  }
  for (Eigen::Index i = 0; i < replicas.size(); ++i) {
    const int64_t given = table.numbers->integers[static_cast<size_t>(i)];
    if (given == replicas.data()[i]) continue;
    const Eigen::Index column = i % replicas.cols();
    return InvalidInput("logical_to_physical_map layer ", i / replicas.cols(), " expert ",
                        column / table.width, " replica ", column % table.width, " is ", given,
                        ", physical_to_logical_map has ", replicas.data()[i]);
  }
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    const int32_t expected = placement.logical_replica_count().data()[i];
    if (counts.data()[i] == expected) continue;
    return InvalidInput("logical_replica_count layer ", i / counts.cols(), " expert ",
                        i % counts.cols(), " is ", counts.data()[i],
                        ", physical_to_logical_map holds it in ", expected, " slots");
  }
  return absl::OkStatus();
}

absl::Status CheckSlotsPerGpu(const JsonValue& object, const Topology& topology) {
  constexpr std::string_view kKey = "slots_per_gpu";
  if (object.Find(kKey) == nullptr) {
    if (topology.equal_slots_per_gpu()) return absl::OkStatus();
    return InvalidInput("slots_per_gpu is missing, and ", topology.num_slots(),
                        " slots are not a multiple of ", topology.num_gpus(), " GPUs");
  }
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers,
                        ReadArrays(object, kKey, {{"GPUs", topology.num_gpus()}}));
  EPLB_RETURN_IF_ERROR(CheckIndices(kKey, *numbers));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    const int64_t given = numbers->integers[static_cast<size_t>(gpu)];
    if (given == topology.SlotsOf(GpuId{gpu})) continue;
    return InvalidInput("slots_per_gpu of GPU ", gpu, " is ", given, ", expected ",
                        topology.SlotsOf(GpuId{gpu}));
  }
  return absl::OkStatus();
}

absl::Status CheckShares(const RealMatrix& shares, const Placement& placement) {
  const int32_t num_experts = placement.topology().num_experts();
  std::vector<double> sums;
  for (Eigen::Index layer = 0; layer < shares.rows(); ++layer) {
    sums.assign(static_cast<size_t>(num_experts), 0.0);
    for (Eigen::Index slot = 0; slot < shares.cols(); ++slot) {
      const int32_t expert = placement.physical_to_logical_map()(layer, slot);
      const double share = shares(layer, slot);
      const double most = expert < 0 ? 0 : 1;
      if (!(share >= 0 && share <= most)) {
        return InvalidInput("replica_share layer ", layer, " slot ", slot, " is ", share,
                            ", expected 0", expert < 0 ? ": it holds no expert" : "..1");
      }
      if (expert >= 0) sums[static_cast<size_t>(expert)] += share;
    }
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      const double sum = sums[static_cast<size_t>(expert)];
      if (std::abs(sum - 1) <= kShareTolerance) continue;
      return InvalidInput("replica_share layer ", layer, ": the shares of expert ", expert,
                          " sum to ", sum, ", expected 1");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RealMatrix>> ReadShares(const JsonValue& object,
                                                     const Placement& placement) {
  constexpr std::string_view kKey = "replica_share";
  if (object.Find(kKey) == nullptr) return std::nullopt;
  const Topology& topology = placement.topology();
  EPLB_ASSIGN_OR_RETURN(const JsonNumbers* numbers, ReadArrays(object, kKey,
                                                               {{"layers", topology.num_layers()},
                                                                {"slots", topology.num_slots()}}));
  RealMatrix shares(topology.num_layers(), topology.num_slots());
  for (Eigen::Index i = 0; i < shares.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    shares.data()[i] =
        numbers->all_integers() ? static_cast<double>(numbers->integers[at]) : numbers->reals[at];
  }
  EPLB_RETURN_IF_ERROR(CheckShares(shares, placement));
  return std::optional<RealMatrix>(std::move(shares));
}

}  // namespace

std::string PlacementToJson(const Placement& placement, const RealMatrix* replica_share) {
  const Topology& topology = placement.topology();
  std::string out = absl::StrCat("{\"format\":\"", Text(kFormat), "\"");
  const std::pair<std::string_view, int32_t> shape[] = {
      {"num_layers", topology.num_layers()}, {"num_logical_experts", topology.num_experts()},
      {"num_slots", topology.num_slots()},   {"num_gpus", topology.num_gpus()},
      {"num_nodes", topology.num_nodes()},   {"num_groups", topology.num_groups()}};
  for (const auto& [key, number] : shape) {
    AppendKey(out, key);
    AppendNumber(out, number);
  }
  AppendKey(out, "physical_to_logical_map");
  AppendMatrix(out, placement.physical_to_logical_map());
  AppendKey(out, "logical_to_physical_map");
  AppendNested(out, placement.logical_to_physical_map(), placement.max_replicas());
  AppendKey(out, "logical_replica_count");
  AppendMatrix(out, placement.logical_replica_count());
  if (replica_share != nullptr) {
    AppendKey(out, "replica_share");
    AppendMatrix(out, *replica_share);
  }
  if (!topology.equal_slots_per_gpu()) {
    std::vector<int32_t> slots(static_cast<size_t>(topology.num_gpus()));
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      slots[static_cast<size_t>(gpu)] = topology.SlotsOf(GpuId{gpu});
    }
    AppendKey(out, "slots_per_gpu");
    AppendRow(out, slots.data(), topology.num_gpus());
  }
  out += '}';
  return out;
}

nlohmann::ordered_json LayerToJson(const Placement& placement, LayerId layer) {
  const Topology& topology = placement.topology();
  std::vector<int32_t> gpus;
  gpus.reserve(static_cast<size_t>(topology.num_slots()));
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    gpus.push_back(topology.GpuOf(SlotId{slot}).value);
  }
  std::vector<int32_t> primaries;
  primaries.reserve(static_cast<size_t>(topology.num_experts()));
  for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
    primaries.push_back(placement.PrimaryOf(layer, ExpertId{expert}).value);
  }
  return {{"layer", layer.value},
          {"num_gpus", topology.num_gpus()},
          {"num_nodes", topology.num_nodes()},
          {"experts", placement.Layer(layer).physical_to_logical},
          {"gpus", gpus},
          {"primaries", primaries}};
}

absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue object, ParseJson(text));
  return PlacementWithSharesFromJson(object);
}

absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(const JsonValue& object) {
  if (!object.is_object()) {
    return InvalidInput("expected a JSON object of format eplb.placement.v1");
  }
  EPLB_ASSIGN_OR_RETURN(const std::string format, GetString(object, "format"));
  if (format != kFormat) {
    return InvalidInput("format is ", JsonQuote(format), ", expected \"", Text(kFormat), "\"");
  }
  EPLB_ASSIGN_OR_RETURN(const Topology topology, ReadTopology(object));
  EPLB_RETURN_IF_ERROR(CheckSlotsPerGpu(object, topology));
  EPLB_ASSIGN_OR_RETURN(const IndexMatrix slots,
                        ReadMatrix(object, "physical_to_logical_map", topology.num_layers(),
                                   {"slots", topology.num_slots()}));
  EPLB_ASSIGN_OR_RETURN(const IndexMatrix counts,
                        ReadMatrix(object, "logical_replica_count", topology.num_layers(),
                                   {"experts", topology.num_experts()}));
  EPLB_ASSIGN_OR_RETURN(const ReplicaTable table, ReadReplicaTable(object, topology));
  EPLB_ASSIGN_OR_RETURN(const IndexMatrix ranks, RanksOf(table, topology));
  EPLB_ASSIGN_OR_RETURN(Placement placement, Placement::FromSlotsAndRanks(topology, slots, ranks));
  EPLB_RETURN_IF_ERROR(CheckSameMaps(placement, table, counts));
  EPLB_ASSIGN_OR_RETURN(std::optional<RealMatrix> shares, ReadShares(object, placement));
  return PlacementWithShares{std::move(placement), std::move(shares)};
}

absl::StatusOr<Placement> PlacementFromJson(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(PlacementWithShares both, PlacementWithSharesFromJson(text));
  return std::move(both.placement);
}

absl::StatusOr<Placement> PlacementFromJson(const JsonValue& object) {
  EPLB_ASSIGN_OR_RETURN(PlacementWithShares both, PlacementWithSharesFromJson(object));
  return std::move(both.placement);
}

}  // namespace eplb::wire
