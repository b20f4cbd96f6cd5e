// Reads and writes the YAML of TensorRT-LLM's load balancer.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/index_table.h"
#include "client/cli/formats/yaml_json.h"

namespace eplb {
namespace {

constexpr char kNumSlots[] = "num_slots";
constexpr char kUpdates[] = "layer_updates_per_iter";
constexpr char kAssignments[] = "initial_global_assignments";
constexpr char kMoe[] = "moe_config";
constexpr char kBalancer[] = "load_balancer";

// Returns the balancer, which the options of the LLM API hold below moe_config.load_balancer, or
// name its file.
absl::StatusOr<const wire::JsonValue*> FindBalancer(const wire::JsonValue& object) {
  if (object.Find(kAssignments) != nullptr || object.Find(kMoe) == nullptr) return &object;
  const wire::JsonValue* balancer = object.Find(kMoe)->Find(kBalancer);
  if (balancer == nullptr) {
    return InvalidInput("has neither ", kAssignments, " nor ", kMoe, ".", kBalancer);
  }
  if (balancer->is_object()) return balancer;
  if (balancer->kind == wire::JsonValue::Kind::kString) {
    return InvalidInput(kMoe, ".", kBalancer, " names the file ",
                        wire::JsonQuote(FirstCharacters(balancer->text, 200)),
                        ", expected that file itself");
  }
  return InvalidInput(kMoe, ".", kBalancer, " is ", std::string(wire::KindName(balancer->kind)),
                      ", expected the keys of a balancer");
}

absl::StatusOr<PlacementParts> PartsOf(const wire::JsonValue& object) {
  int64_t updates = 0;
  if (object.Find(kUpdates) != nullptr) {
    EPLB_ASSIGN_OR_RETURN(updates, wire::GetInteger(object, kUpdates));
  }
  if (updates < 0) return InvalidInput(kUpdates, " is ", updates, ", expected >= 0");
  EPLB_ASSIGN_OR_RETURN(LayerAssignments assignments, ReadLayerAssignments(object));
  PlacementParts parts{.slots = std::move(assignments.slots),
                       .layers = std::move(assignments.layers)};
  if (updates != 0) parts.notes.push_back(absl::StrCat(kUpdates, " ", updates, " is dropped"));
  return parts;
}

}  // namespace

absl::StatusOr<PlacementParts> ParseTrtllmPlacement(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const std::string json, YamlToJson(bytes));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(json));
  if (!object.is_object()) {
    return InvalidInput(
        "is no placement of trtllm, expected YAML with num_slots, layer_updates_per_iter and "
        "initial_global_assignments");
  }
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* balancer, FindBalancer(object));
  return PartsOf(*balancer);
}

absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options) {
  if (options.layers.empty()) {
    return InvalidInput(
        "trtllm needs --first-layer or --layers: its rows carry the model's layer numbers, and the "
        "source does not contain that of the first MoE layer (3 for DeepSeek-V3, 0 without dense "
        "layers)");
  }
  const IndexMatrix& slots = placement.physical_to_logical_map();
  std::string yaml =
      absl::StrCat(kNumSlots, ": ", slots.cols(), "\n", kUpdates, ": 0\n", kAssignments, ":\n");
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    const auto row = slots.row(layer);
    absl::StrAppend(&yaml, "  ", options.layers[static_cast<size_t>(layer)], ": [",
                    absl::StrJoin(row.begin(), row.end(), ", "), "]\n");
  }
  return yaml;
}

}  // namespace eplb
