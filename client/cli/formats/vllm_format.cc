// Reads and writes the JSON lines that open pull requests of vLLM propose.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/index_table.h"
#include "client/cli/formats/load_json.h"

namespace eplb {
namespace {

using wire::JsonValue;

constexpr char kLoadMeta[] = "eplb_load_meta";
constexpr char kStats[] = "eplb_load_stats";
constexpr char kMapping[] = "eplb_initial_mapping";
constexpr char kRanks[] = "num_ranks";
constexpr char kRedundant[] = "num_redundant_experts";

// The record that describes the job. What its other records imply may be missing.
struct LoadMeta {
  std::optional<int32_t> num_layers;
  std::optional<int32_t> num_redundant;
  ShapeNumbers frame;
};

// Leaves `count` empty if the record does not have the key.
absl::Status ReadCount(const JsonValue& record, const char* key, int32_t least,
                       std::optional<int32_t>& count) {
  if (record.Find(key) == nullptr) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int64_t number, wire::GetInteger(record, key));
  if (number < least || number > std::numeric_limits<int32_t>::max()) {
    return InvalidInput(key, " is ", number, ", expected ", least, "..2^31-1");
  }
  count = static_cast<int32_t>(number);
  return absl::OkStatus();
}

absl::StatusOr<LoadMeta> ReadLoadMeta(const JsonValue& record) {
  LoadMeta meta;
  EPLB_RETURN_IF_ERROR(ReadCount(record, "num_layers", 1, meta.num_layers));
  EPLB_RETURN_IF_ERROR(ReadCount(record, kRedundant, 0, meta.num_redundant));
  EPLB_RETURN_IF_ERROR(ReadCount(record, kRanks, 1, meta.frame.num_gpus));
  EPLB_RETURN_IF_ERROR(ReadCount(record, "num_nodes", 1, meta.frame.num_nodes));
  EPLB_RETURN_IF_ERROR(ReadCount(record, "num_groups", 1, meta.frame.num_groups));
  return meta;
}

// Numbers that a map implies and a record may state.
struct MapShape {
  int64_t layers = 0;
  int64_t slots = 0;
  int64_t experts = 0;
  std::optional<int32_t> ranks = {};  // stated beside the map

  explicit MapShape(const IndexMatrix& map)
      : layers(map.rows()), slots(map.cols()), experts(int64_t{map.maxCoeff()} + 1) {}
};

// `stated` redundant experts and ranks; where: the record that states them.
absl::Status CheckStated(const std::optional<int32_t>& redundant,
                         const std::optional<int32_t>& ranks, const MapShape& map,
                         const char* where) {
  if (redundant.has_value() && map.slots - map.experts != *redundant) {
    return InvalidInput(where, " has ", kRedundant, " ", *redundant, ", but the map holds ",
                        map.experts, " experts in ", map.slots, " slots");
  }
  if (ranks.has_value() && map.slots % *ranks != 0) {
    return InvalidInput(where, " has ", kRanks, " ", *ranks, ", which do not divide the ",
                        map.slots, " slots of the map");
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacementParts> ReadMapping(const JsonValue& record) {
  std::optional<int32_t> redundant;
  EPLB_RETURN_IF_ERROR(ReadCount(record, kRedundant, 0, redundant));
  EPLB_ASSIGN_OR_RETURN(LayerAssignments assignments, ReadLayerAssignments(record));
  const LayerNumbers& layers = assignments.layers;
  if (layers != Consecutive(0, std::ssize(layers))) {
    return InvalidInput("initial_global_assignments has layers ", LayerNumbersText(layers),
                        ", vllm counts MoE layers from 0");
  }
  const MapShape map(assignments.slots);
  PlacementParts parts{.slots = std::move(assignments.slots)};
  if (map.experts > map.slots) return parts;  // MakePlacement reports the id and its place
  EPLB_RETURN_IF_ERROR(CheckStated(redundant, std::nullopt, map, kMapping));
  parts.num_experts = static_cast<int32_t>(map.experts);
  return parts;
}

// The loads of slots and what they hold, from one record.
struct SlotLoads {
  int64_t step = 0;
  Load load;         // [layers, slots]
  IndexTable slots;  // [layers, slots]
};

absl::StatusOr<SlotLoads> ReadStats(const JsonValue& record) {
  EPLB_ASSIGN_OR_RETURN(const int64_t step, wire::GetInteger(record, "step"));
  if (step < 0) return InvalidInput("step is ", step);
  EPLB_ASSIGN_OR_RETURN(const JsonValue* cells, wire::GetMember(record, "expert_load"));
  EPLB_ASSIGN_OR_RETURN(const JsonValue* map, wire::GetMember(record, "p2l_map"));
  EPLB_ASSIGN_OR_RETURN(Load load, LoadFromJson(*cells, "expert_load of slots"));
  EPLB_ASSIGN_OR_RETURN(IndexTable slots, IndexTableFromJson(*map, "p2l_map", 2));
  if (load.num_layers() != slots.cells.rows() || load.num_experts() != slots.cells.cols()) {
    return InvalidInput("expert_load has ", load.num_layers(), " layers x ", load.num_experts(),
                        " slots, p2l_map has ", slots.cells.rows(), " x ", slots.cells.cols());
  }
  return SlotLoads{step, std::move(load), std::move(slots)};
}

// Every expert must be in a slot of every layer, else its load is unknown.
absl::StatusOr<int32_t> CountSlotExperts(const SlotLoads& stats) {
  const IndexMatrix& slots = stats.slots.cells;
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    const int32_t expert = slots.data()[i];
    if (expert >= 0 && expert < slots.cols()) continue;
    return InvalidInput("p2l_map layer ", i / slots.cols(), " slot ", i % slots.cols(), " is ",
                        expert, ", expected 0..", slots.cols() - 1);
  }
  const int32_t experts = slots.maxCoeff() + 1;
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    std::vector<bool> held(static_cast<size_t>(experts));
    for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
      held[static_cast<size_t>(slots(layer, slot))] = true;
    }
    const auto missing = std::ranges::find(held, false) - held.begin();
    if (missing < experts) {
      return InvalidInput("p2l_map layer ", layer, ": expert ", missing, " is in no slot");
    }
  }
  return experts;
}

// A layer's sum over slots did not overflow, so a sum over some of them does not either.
template <class Matrix>
Matrix SumOverReplicas(const Matrix& load, const IndexMatrix& slots, int32_t num_experts) {
  Matrix sum = Matrix::Zero(load.rows(), num_experts);
  for (Eigen::Index layer = 0; layer < load.rows(); ++layer) {
    for (Eigen::Index slot = 0; slot < load.cols(); ++slot) {
      sum(layer, slots(layer, slot)) += load(layer, slot);
    }
  }
  return sum;
}

// shape: what the record's map shows.
absl::StatusOr<LoadWindow> WindowOf(const JsonValue& record, std::optional<MapShape>& shape) {
  EPLB_ASSIGN_OR_RETURN(const SlotLoads stats, ReadStats(record));
  EPLB_ASSIGN_OR_RETURN(const int32_t experts, CountSlotExperts(stats));
  shape.emplace(stats.slots.cells);
  EPLB_RETURN_IF_ERROR(ReadCount(record, kRanks, 1, shape->ranks));
  EPLB_RETURN_IF_ERROR(CheckStated(std::nullopt, shape->ranks, *shape, kStats));
  const IndexMatrix& slots = stats.slots.cells;
  EPLB_ASSIGN_OR_RETURN(
      Load load, stats.load.is_counts()
                     ? Load::FromCounts(SumOverReplicas(stats.load.counts(), slots, experts))
                     : Load::FromEstimates(SumOverReplicas(stats.load.ToDouble(), slots, experts)));
  return LoadWindow{stats.step, stats.step, std::move(load)};
}

// The records of a file. Only the first of each kind counts, but every load does.
// Records of other types are skipped, as vLLM itself does: its benchmarks write into the same file.
struct Records {
  std::optional<LoadMeta> meta;
  std::optional<PlacementParts> mapping;
  std::vector<LoadWindow> windows;
  std::optional<MapShape> first_map;       // map of windows.front()
  std::map<std::string, int64_t> skipped;  // records by type
};

// "skipped records of other types: 2 \"session_metadata\""; empty when there are none.
std::string SkippedText(const Records& records) {
  constexpr size_t kMaxShown = 8;
  std::vector<std::string> types;
  for (const auto& [type, count] : records.skipped) {
    if (types.size() == kMaxShown) {
      absl::StrAppend(&types.back(), " and ", records.skipped.size() - kMaxShown, " more");
      break;
    }
    types.push_back(absl::StrCat(count, " ", wire::JsonQuote(FirstCharacters(type, 80))));
  }
  return types.empty()
             ? ""
             : absl::StrCat("skipped records of other types: ", absl::StrJoin(types, ", "));
}

// A file without what was looked for, and what it has instead.
absl::Status Missing(const std::string& path, const char* type, const Records& records) {
  std::string what = absl::StrCat(path, ": has no ", type);
  if (!records.skipped.empty()) {
    absl::StrAppend(&what, "; ", SkippedText(records), "; tried ", kLoadMeta, ", ", kStats, " and ",
                    kMapping);
  }
  return InvalidInput(what);
}

absl::Status Take(const JsonValue& record, Records& records) {
  if (!IsVllmRecord(record)) {
    return InvalidInput("is no record of vllm, expected an object with \"record_type\"");
  }
  EPLB_ASSIGN_OR_RETURN(const std::string type, wire::GetString(record, "record_type"));
  if (type != kLoadMeta && type != kStats && type != kMapping) {
    ++records.skipped[type];
    return absl::OkStatus();
  }
  EPLB_ASSIGN_OR_RETURN(const int64_t version, wire::GetInteger(record, "version"));
  if (version != 1) return InvalidInput("version is ", version, ", expected 1");
  if ((type == kLoadMeta && records.meta.has_value()) ||
      (type == kMapping && records.mapping.has_value())) {
    return InvalidInput("is a second ", type);
  }
  if (type == kLoadMeta) {
    EPLB_ASSIGN_OR_RETURN(records.meta, ReadLoadMeta(record));
    return absl::OkStatus();
  }
  if (type == kMapping) {
    EPLB_ASSIGN_OR_RETURN(records.mapping, ReadMapping(record));
    return absl::OkStatus();
  }
  std::optional<MapShape> map;
  EPLB_ASSIGN_OR_RETURN(LoadWindow window, WindowOf(record, map));
  if (!records.first_map.has_value()) records.first_map = map;
  if (!records.windows.empty()) {
    EPLB_RETURN_IF_ERROR(CheckFollows(records.windows.back(), window));
  }
  records.windows.push_back(std::move(window));
  return absl::OkStatus();
}

absl::StatusOr<Records> ReadRecords(const std::string& path, std::string_view bytes) {
  Records records;
  const std::vector<TextLine> lines = SplitLines(bytes);
  if (lines.empty()) return InvalidInput(path, ": is empty");
  for (const TextLine& line : lines) {
    const absl::StatusOr<JsonValue> record = wire::ParseJson(line.text);
    const size_t before = records.windows.size();
    EPLB_RETURN_IF_ERROR(
        InLine(path, line.number, record.ok() ? Take(*record, records) : record.status()));
    if (records.windows.size() > before) records.windows.back().line = line.number;
  }
  return records;
}

absl::Status CheckMeta(const LoadMeta& meta, const MapShape& map) {
  if (meta.num_layers.has_value() && *meta.num_layers != map.layers) {
    return InvalidInput(kLoadMeta, " has ", *meta.num_layers, " layers, there are ", map.layers);
  }
  return CheckStated(meta.num_redundant, meta.frame.num_gpus, map, kLoadMeta);
}

// A job may be scaled between its start, which the metadata describes, and its first record.
bool IsRescaled(const LoadMeta& meta, const MapShape& map) {
  return meta.frame.num_gpus.has_value() && map.ranks.has_value() &&
         *meta.frame.num_gpus != *map.ranks;
}

}  // namespace

bool IsVllmRecord(const JsonValue& value) { return value.Find("record_type") != nullptr; }

absl::StatusOr<PlacementParts> ParseVllmPlacement(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(Records records, ReadRecords(path, bytes));
  if (!records.mapping.has_value()) return Missing(path, kMapping, records);
  PlacementParts parts = *std::move(records.mapping);
  if (!records.skipped.empty()) parts.notes.push_back(SkippedText(records));
  if (!records.meta.has_value()) return parts;
  EPLB_RETURN_IF_ERROR(InFile(path, CheckMeta(*records.meta, MapShape(parts.slots))));
  parts.frame = records.meta->frame;
  return parts;
}

absl::StatusOr<std::string> WriteVllmPlacement(const Placement& placement,
                                               const WriteOptions& /*options*/) {
  const IndexMatrix& slots = placement.physical_to_logical_map();
  std::string json =
      absl::StrCat("{\"record_type\":\"", kMapping, "\",\"version\":1,\"num_redundant_experts\":",
                   slots.cols() - placement.topology().num_experts(),
                   ",\"num_slots\":", slots.cols(), ",\"initial_global_assignments\":{");
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    absl::StrAppend(&json, layer == 0 ? "\"" : ",\"", layer, "\":", RowToJson(slots, layer));
  }
  return json + "}}\n";
}

absl::StatusOr<LoadFile> ParseVllmLoad(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(Records records, ReadRecords(path, bytes));
  if (records.windows.empty()) return Missing(path, kStats, records);
  LoadFile file{.windows = std::move(records.windows), .has_steps = true};
  if (records.meta.has_value() && IsRescaled(*records.meta, *records.first_map)) {
    file.notes.push_back(absl::StrCat(kLoadMeta, " has ", kRanks, " ",
                                      *records.meta->frame.num_gpus, ", the first record has ",
                                      *records.first_map->ranks));
  } else if (records.meta.has_value()) {
    EPLB_RETURN_IF_ERROR(InFile(path, CheckMeta(*records.meta, *records.first_map)));
  }
  if (!records.skipped.empty()) file.notes.push_back(SkippedText(records));
  return file;
}

}  // namespace eplb
