#include "client/files/formats/trtllm_format.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/files/formats/layer_assignments.h"
#include "client/files/formats/yaml_json.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/json_value.h"

namespace eplb {
namespace {

constexpr char kNumSlots[] = "num_slots";
constexpr char kUpdates[] = "layer_updates_per_iter";
constexpr char kMoe[] = "moe_config";
constexpr char kBalancer[] = "load_balancer";

// The options of the LLM API hold the balancer below moe_config.load_balancer, or name its file.
absl::StatusOr<const wire::JsonValue*> FindBalancer(const wire::JsonValue& object) {
  if (object.Find(kNumSlots) != nullptr || object.Find(kMoe) == nullptr) return &object;
  const wire::JsonValue* balancer = object.Find(kMoe)->Find(kBalancer);
  if (balancer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("has neither ", kNumSlots, " nor ", kMoe, ".", kBalancer));
  }
  if (balancer->is_object()) return balancer;
  if (balancer->kind == wire::JsonValue::Kind::kString) {
    return absl::InvalidArgumentError(absl::StrCat(kMoe, ".", kBalancer, " names the file ",
                                                   wire::JsonQuote(balancer->text.substr(0, 200)),
                                                   ", expected that file itself"));
  }
  return absl::InvalidArgumentError(absl::StrCat(kMoe, ".", kBalancer, " is ",
                                                 std::string(wire::KindName(balancer->kind)),
                                                 ", expected the keys of a balancer"));
}

absl::StatusOr<PlacementParts> PartsOf(const wire::JsonValue& object) {
  EPLB_ASSIGN_OR_RETURN(const int64_t num_slots, wire::GetInteger(object, kNumSlots));
  int64_t updates = 0;
  if (object.Find(kUpdates) != nullptr) {
    EPLB_ASSIGN_OR_RETURN(updates, wire::GetInteger(object, kUpdates));
  }
  if (num_slots < 1 || updates < 0) {
    return absl::InvalidArgumentError(absl::StrCat(kNumSlots, " is ", num_slots, " and ", kUpdates,
                                                   " ", updates, ", expected >= 1 and >= 0"));
  }
  EPLB_ASSIGN_OR_RETURN(LayerAssignments assignments, ReadLayerAssignments(object, num_slots));
  PlacementParts parts{.slots = std::move(assignments.slots),
                       .ranks = {},
                       .num_experts = {},
                       .frame = {.first_layer = assignments.first_layer},
                       .shares = {},
                       .notes = {}};
  if (updates != 0) parts.notes.push_back(absl::StrCat(kUpdates, " ", updates, " is dropped"));
  return parts;
}

absl::StatusOr<PlacementParts> ParseTrtllm(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const std::string json, YamlToJson(bytes));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(json));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        "is no placement of trtllm, expected YAML with num_slots, layer_updates_per_iter and "
        "initial_global_assignments");
  }
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* balancer, FindBalancer(object));
  return PartsOf(*balancer);
}

}  // namespace

absl::StatusOr<PlacementParts> ParseTrtllmPlacement(const std::string& path,
                                                    std::string_view bytes) {
  absl::StatusOr<PlacementParts> parts = ParseTrtllm(bytes);
  if (!parts.ok()) return InFile(path, parts.status());
  return parts;
}

absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options) {
  if (!options.first_layer.has_value()) {
    return absl::InvalidArgumentError(
        "trtllm needs --first-layer: its rows carry the model's layer numbers, and the source does "
        "not say that of the first MoE layer (3 for DeepSeek-V3, 0 without dense layers)");
  }
  const IndexMatrix& slots = placement.physical_to_logical_map();
  std::string yaml = absl::StrCat(kNumSlots, ": ", slots.cols(), "\n", kUpdates,
                                  ": 0\ninitial_global_assignments:\n");
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    const auto row = slots.row(layer);
    absl::StrAppend(&yaml, "  ", *options.first_layer + layer, ": [",
                    absl::StrJoin(row.begin(), row.end(), ", "), "]\n");
  }
  return yaml;
}

}  // namespace eplb
