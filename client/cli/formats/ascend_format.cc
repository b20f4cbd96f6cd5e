// Reads and writes the expert map of vllm-ascend, MindIE and verl, and reads verl's record of a
// load.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/index_table.h"

namespace eplb {
namespace {

using wire::JsonValue;

// The entries of a list of objects, as many as `count_key` states if the object has it.
absl::StatusOr<const std::vector<JsonValue>*> GetObjects(const JsonValue& object, const char* key,
                                                         const char* count_key) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue* list, wire::GetMember(object, key));
  const auto entries = list->is_array() ? list->numbers.children.front().front() : -1;
  if (entries != std::ssize(list->objects) || entries < 1) {
    return InvalidInput(key, " is no list of objects");
  }
  if (object.Find(count_key) == nullptr) return &list->objects;
  EPLB_ASSIGN_OR_RETURN(const int64_t count, wire::GetInteger(object, count_key));
  if (entries != count) {
    return InvalidInput(count_key, " is ", count, ", ", key, " has ", entries, " entries");
  }
  return &list->objects;
}

// An object without an id has that of its place in the list.
absl::Status CheckId(const JsonValue& object, const char* key, size_t expected) {
  if (object.Find(key) == nullptr) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int64_t id, wire::GetInteger(object, key));
  if (id == static_cast<int64_t>(expected)) return absl::OkStatus();
  return InvalidInput(key, " is ", id, ", expected ", expected, ": ids rise from 0");
}

absl::Status ReadDevice(const JsonValue& device, size_t id, std::vector<int32_t>& row) {
  EPLB_RETURN_IF_ERROR(CheckId(device, "device_id", id));
  EPLB_ASSIGN_OR_RETURN(const JsonValue* experts, wire::GetMember(device, "device_expert"));
  EPLB_ASSIGN_OR_RETURN(const IndexTable slots, IndexTableFromJson(*experts, "device_expert", 1));
  row.insert(row.end(), slots.cells.data(), slots.cells.data() + slots.cells.size());
  return absl::OkStatus();
}

struct Layer {
  std::vector<int32_t> row;         // [S]
  std::vector<int64_t> per_device;  // slots of each
};

absl::StatusOr<Layer> ReadLayer(const JsonValue& object, size_t id) {
  EPLB_RETURN_IF_ERROR(CheckId(object, "layer_id", id));
  EPLB_ASSIGN_OR_RETURN(const std::vector<JsonValue>* devices,
                        GetObjects(object, "device_list", "device_count"));
  Layer layer;
  for (size_t device = 0; device < devices->size(); ++device) {
    const size_t before = layer.row.size();
    EPLB_RETURN_IF_ERROR(
        InFile(absl::StrCat("device ", device), ReadDevice((*devices)[device], device, layer.row)));
    layer.per_device.push_back(static_cast<int64_t>(layer.row.size() - before));
  }
  return layer;
}

// Slots are numbered device by device: which device holds one more is not ours to choose.
absl::Status CheckDevices(const std::vector<int64_t>& per_device, size_t num_slots) {
  const auto devices = std::ssize(per_device);
  const auto slots = static_cast<int64_t>(num_slots);
  for (int64_t device = 0; device < devices; ++device) {
    const int64_t expected = slots / devices + (device < slots % devices ? 1 : 0);
    const int64_t given = per_device[static_cast<size_t>(device)];
    if (given == expected) continue;
    return InvalidInput("device ", device, " holds ", given, " experts, expected ", expected,
                        " of ", slots, " on ", devices, " devices");
  }
  return absl::OkStatus();
}

constexpr char kAggregatedLoad[] = "aggregated_load";
constexpr int32_t kMaxAscendExpert = (1 << 12) - 1;

using ExpertLoads = std::map<int32_t, double>;  // by expert

absl::StatusOr<ExpertLoads> ReadExperts(const JsonValue& object, int32_t layer) {
  const std::string place = absl::StrCat(kAggregatedLoad, " layer ", layer);
  if (!object.is_object()) return InvalidInput(place, " is no object of loads by expert");
  ExpertLoads loads;
  for (const wire::JsonMember& member : object.members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t expert, NumberOfKey(member.key, place, kMaxAscendExpert));
    const JsonValue::Kind kind = member.value.kind;
    if (kind != JsonValue::Kind::kInteger && kind != JsonValue::Kind::kReal) {
      return InvalidInput(place, " expert ", expert, " is no number");
    }
    loads[expert] = member.value.real;
  }
  return loads;
}

// Exact counts if every number is whole and a double holds it exactly.
absl::StatusOr<Load> CountsOrEstimates(const RealMatrix& matrix) {
  constexpr double kLargestExact = 0x1p53;
  const bool counts = (matrix == matrix.round()).all() && matrix.maxCoeff() < kLargestExact;
  return counts ? Load::FromCounts(matrix.cast<int64_t>()) : Load::FromEstimates(matrix);
}

absl::Status NoAscendLoad() {
  return InvalidInput("is no load of ascend, expected {\"", kAggregatedLoad,
                      "\":{\"LAYER\":{\"EXPERT\":TOKENS}}}");
}

}  // namespace

absl::StatusOr<PlacementParts> ParseAscendPlacement(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue object, wire::ParseJson(bytes));
  EPLB_ASSIGN_OR_RETURN(const std::vector<JsonValue>* layers,
                        GetObjects(object, "layer_list", "moe_layer_count"));
  PlacementParts parts;
  std::vector<int64_t> per_device;
  for (size_t id = 0; id < layers->size(); ++id) {
    const std::string place = absl::StrCat("layer ", id);
    EPLB_ASSIGN_OR_RETURN(const Layer layer, InFile(place, ReadLayer((*layers)[id], id)));
    EPLB_RETURN_IF_ERROR(InFile(place, CheckDevices(layer.per_device, layer.row.size())));
    if (id == 0) {
      per_device = layer.per_device;
      parts.slots.resize(std::ssize(*layers), std::ssize(layer.row));
    } else if (layer.per_device != per_device) {
      return InvalidInput(place, ": has ", layer.row.size(), " slots on ", layer.per_device.size(),
                          " devices, layer 0 has ", parts.slots.cols(), " on ", per_device.size());
    }
    std::ranges::copy(layer.row, &parts.slots(static_cast<Eigen::Index>(id), 0));
  }
  parts.frame.num_gpus = static_cast<int32_t>(per_device.size());
  return parts;
}

absl::StatusOr<std::string> WriteAscendPlacement(const Placement& placement,
                                                 const WriteOptions& /*options*/) {
  const Topology& topology = placement.topology();
  const IndexMatrix& slots = placement.physical_to_logical_map();
  std::string json = absl::StrCat("{\"moe_layer_count\":", slots.rows(), ",\"layer_list\":[");
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    absl::StrAppend(&json, layer == 0 ? "" : ",", "{\"layer_id\":", layer,
                    ",\"device_count\":", topology.num_gpus(), ",\"device_list\":[");
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      const int32_t* first = &slots(layer, topology.FirstSlotOf(GpuId{gpu}).value);
      absl::StrAppend(&json, gpu == 0 ? "" : ",", "{\"device_id\":", gpu, ",\"device_expert\":[",
                      absl::StrJoin(first, first + topology.SlotsOf(GpuId{gpu}), ","), "]}");
    }
    json += "]}";
  }
  return json + "]}\n";
}

bool IsAscendLoad(const JsonValue& value) { return value.Find(kAggregatedLoad) != nullptr; }

absl::StatusOr<LoadFile> AscendLoad(const JsonValue& value) {
  const JsonValue* layers = value.Find(kAggregatedLoad);
  if (layers == nullptr || !layers->is_object()) return NoAscendLoad();
  std::map<int32_t, ExpertLoads> loads;
  size_t entries = 0;
  int32_t num_experts = 0;
  for (const wire::JsonMember& member : layers->members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t layer,
                          NumberOfKey(member.key, kAggregatedLoad, kMaxLayerNumber));
    EPLB_ASSIGN_OR_RETURN(ExpertLoads experts, ReadExperts(member.value, layer));
    if (!experts.empty()) num_experts = std::max(num_experts, experts.rbegin()->first + 1);
    entries += experts.size();
    loads.emplace(layer, std::move(experts));
  }
  if (entries == 0) return NoAscendLoad();
  RealMatrix matrix = RealMatrix::Zero(static_cast<Eigen::Index>(loads.size()), num_experts);
  LoadFile file;
  for (const auto& [layer, experts] : loads) {
    const auto row = static_cast<Eigen::Index>(file.layers.size());
    for (const auto& [expert, load] : experts) matrix(row, expert) = load;
    file.layers.push_back(layer);
  }
  if (entries < static_cast<size_t>(matrix.size())) {
    file.notes.push_back(
        absl::StrCat("an expert without an entry got no tokens, and the number of experts, ",
                     num_experts, ", is that of the largest id"));
  }
  EPLB_ASSIGN_OR_RETURN(Load load, CountsOrEstimates(matrix));
  file.windows.push_back({.load = std::move(load)});
  return file;
}

absl::StatusOr<LoadFile> ParseAscendLoad(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue value, InFile(path, wire::ParseJson(bytes)));
  return InFile(path, AscendLoad(value));
}

}  // namespace eplb
