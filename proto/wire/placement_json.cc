// Writes placements as eplb.placement.v1, and reads them with every map checked.
#include "proto/wire/placement_json.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "proto/wire/placement_rules.h"

#include <nlohmann/json.hpp>

namespace eplb::wire {

namespace {

constexpr std::string_view kFormat = "eplb.placement.v1";

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

// The rest of the reader is for an object that keeps all rules of placement_rules.h.

int32_t NumberOf(const JsonValue& object, std::string_view key) {
  return static_cast<int32_t>(object.Find(key)->integer);
}

const JsonNumbers& NumbersOf(const JsonValue& object, std::string_view key) {
  return object.Find(key)->numbers;
}

absl::StatusOr<Topology> TopologyOf(const JsonValue& object) {
  return Topology::Make({.num_layers = NumberOf(object, "num_layers"),
                         .num_experts = NumberOf(object, "num_logical_experts"),
                         .num_slots = NumberOf(object, "num_slots"),
                         .num_gpus = NumberOf(object, "num_gpus"),
                         .num_nodes = NumberOf(object, "num_nodes"),
                         .num_groups = NumberOf(object, "num_groups")});
}

// The rank of each slot among its expert's replicas, by the order of an expert's entries.
IndexMatrix RanksOf(const JsonNumbers& table, const Topology& topology) {
  IndexMatrix ranks = IndexMatrix::Constant(topology.num_layers(), topology.num_slots(), -1);
  const int64_t width = table.children[2].front();
  const int64_t row = topology.num_experts() * width;
  for (size_t i = 0; i < table.integers.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (table.integers[i] < 0) continue;
    ranks(at / row, table.integers[i]) = static_cast<int32_t>(at % width);
  }
  return ranks;
}

// A matrix [L, S] of the file.
template <class Matrix>
Matrix MatrixOf(const JsonNumbers& numbers, const Topology& topology) {
  Matrix matrix(topology.num_layers(), topology.num_slots());
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    const auto at = static_cast<size_t>(i);
    matrix.data()[i] = numbers.all_integers()
                           ? static_cast<typename Matrix::Scalar>(numbers.integers[at])
                           : static_cast<typename Matrix::Scalar>(numbers.reals[at]);
  }
  return matrix;
}

}  // namespace

std::string PlacementToJson(const Placement& placement, const RealMatrix* replica_share) {
  const Topology& topology = placement.topology();
  std::string out = absl::StrCat("{\"format\":\"", std::string(kFormat), "\"");
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
    return InvalidInput("format is ", JsonQuote(format), ", expected \"", std::string(kFormat),
                        "\"");
  }
  const Findings findings = CheckPlacement(object);
  if (!findings.broken.empty()) return InvalidInput(findings.broken.front());
  EPLB_ASSIGN_OR_RETURN(const Topology topology, TopologyOf(object));
  const auto slots = MatrixOf<IndexMatrix>(NumbersOf(object, "physical_to_logical_map"), topology);
  const IndexMatrix ranks = RanksOf(NumbersOf(object, "logical_to_physical_map"), topology);
  EPLB_ASSIGN_OR_RETURN(Placement placement, Placement::FromSlotsAndRanks(topology, slots, ranks));
  std::optional<RealMatrix> shares;
  if (object.Find("replica_share") != nullptr) {
    shares = MatrixOf<RealMatrix>(NumbersOf(object, "replica_share"), topology);
  }
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
