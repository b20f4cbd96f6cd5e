// The table of placement formats, our own among them, and the shape that a file and flags make.
// threads: safe, no state.
#include "client/cli/formats/format_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/csv.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/npy.h"
#include "client/cli/formats/torch_file.h"
#include "client/cli/formats/zip_archive.h"
#include "proto/wire/placement_json.h"

namespace eplb {

namespace {

absl::StatusOr<std::optional<int32_t>> Merge(const char* flag, const std::optional<int32_t>& file,
                                             const std::optional<int32_t>& given) {
  if (file.has_value() && given.has_value() && *file != *given) {
    return InvalidInput("the file has ", *file, ", ", flag, " is ", *given);
  }
  return file.has_value() ? file : given;
}

// An id that cannot be one, whatever the number of experts, is named here: counted as the largest
// id it would only make the shape absurd.
absl::StatusOr<int32_t> CountExperts(const IndexMatrix& slots) {
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    if (slots.data()[i] < slots.cols()) continue;
    return InvalidInput("layer ", i / slots.cols(), " slot ", i % slots.cols(), " holds expert ",
                        slots.data()[i], ", but ", slots.cols(), " slots hold experts 0..",
                        slots.cols() - 1, " at most");
  }
  return slots.maxCoeff() + 1;
}

absl::StatusOr<PlacementParts> ParseEplb(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(wire::PlacementWithShares read, wire::PlacementWithSharesFromJson(bytes));
  const Topology& topology = read.placement.topology();
  return PlacementParts{.slots = read.placement.physical_to_logical_map(),
                        .ranks = read.placement.replica_rank(),
                        .num_experts = topology.num_experts(),
                        .frame = {.num_gpus = topology.num_gpus(),
                                  .num_nodes = topology.num_nodes(),
                                  .num_groups = topology.num_groups()},
                        .shares = std::move(read.replica_share)};
}

absl::StatusOr<std::string> WriteEplb(const Placement& placement, const WriteOptions& options) {
  return wire::PlacementToJson(placement, options.shares) + "\n";
}

template <absl::StatusOr<PlacementParts> (*Parse)(std::string_view)>
absl::StatusOr<PlacementParts> ParseFile(const std::string& path, std::string_view bytes) {
  return InFile(path, Parse(bytes));
}

bool Always(const WriteOptions& /*options*/) { return true; }
bool Never(const WriteOptions& /*options*/) { return false; }

constexpr PlacementFormat kFormats[] = {
    {.name = "eplb",
     .parse = &ParseFile<&ParseEplb>,
     .write = &WriteEplb,
     .holds_ranks = &Always,
     .holds_gpus = true,
     .holds_nodes_and_groups = true,
     .holds_unequal_gpus = true,
     .holds_unusable_slots = true,
     .holds_shares = true},
    {.name = "deepseek",
     .parse = &ParseDeepseekPlacement,
     .write = &WriteDeepseekPlacement,
     .holds_ranks = &DeepseekHoldsRanks,
     .holds_unequal_gpus = true,
     .holds_unusable_slots = true},
    {.name = "sglang",
     .parse = &ParseFile<&ParseSglangPlacement>,
     .write = &WriteSglangPlacement,
     .holds_ranks = &Never,
     .counts_model_layers = true},
    {.name = "trtllm",
     .parse = &ParseFile<&ParseTrtllmPlacement>,
     .write = &WriteTrtllmPlacement,
     .holds_ranks = &Never,
     .holds_layer_numbers = true},
    {.name = "vllm",
     .parse = &ParseVllmPlacement,
     .write = &WriteVllmPlacement,
     .holds_ranks = &Never},
    {.name = "ascend",
     .parse = &ParseFile<&ParseAscendPlacement>,
     .write = &WriteAscendPlacement,
     .holds_ranks = &Never,
     .holds_gpus = true,
     .holds_unequal_gpus = true},
};

// The name of the format that has such an object; empty: none.
std::string_view FormatOfObject(const wire::JsonValue& object) {
  const auto has = [&object](std::string_view key) { return object.Find(key) != nullptr; };
  if (has("format")) return "eplb";
  if (IsVllmRecord(object)) return "vllm";
  if (has("layer_list")) return "ascend";
  if (has("initial_global_assignments") || has("moe_config")) return "trtllm";
  // Ours without "format" is damaged, not a file of deepseek.
  if (!has("physical_to_logical_map") || has("num_gpus")) return {};
  return has("logical_to_physical_map") ? "deepseek" : "sglang";
}

std::string_view FormatName(const std::string& path, std::string_view bytes) {
  if (IsTorchFile(bytes)) return "sglang";
  if (bytes.starts_with(kNpyMagic) || bytes.starts_with(kZipMagic)) return "deepseek";
  const size_t start = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  if (bytes.substr(start).starts_with('{')) {
    // A file of vllm has a value on each line. Other files are one value.
    const std::vector<TextLine> lines = SplitLines(bytes);
    absl::StatusOr<wire::JsonValue> object = wire::ParseJson(lines.front().text);
    if (!object.ok()) object = wire::ParseJson(bytes);
    // The reader of our own files reports what is wrong with a text that is no JSON.
    return object.ok() ? FormatOfObject(*object) : "eplb";
  }
  if (LooksLikeCsv(bytes) || path.ends_with(".csv")) return "deepseek";
  return bytes.find("initial_global_assignments") != std::string_view::npos ? "trtllm"
                                                                            : std::string_view();
}

}  // namespace

absl::StatusOr<ShapeNumbers> MergeShapes(const ShapeNumbers& file, const ShapeNumbers& flags) {
  ShapeNumbers merged;
  EPLB_ASSIGN_OR_RETURN(merged.num_gpus, Merge("--gpus", file.num_gpus, flags.num_gpus));
  EPLB_ASSIGN_OR_RETURN(merged.num_nodes, Merge("--nodes", file.num_nodes, flags.num_nodes));
  EPLB_ASSIGN_OR_RETURN(merged.num_groups, Merge("--groups", file.num_groups, flags.num_groups));
  return merged;
}

absl::StatusOr<Placement> MakePlacement(const PlacementParts& parts, const ShapeNumbers& frame) {
  TopologyOptions options{.num_layers = static_cast<int32_t>(parts.slots.rows()),
                          .num_slots = static_cast<int32_t>(parts.slots.cols()),
                          .num_gpus = frame.num_gpus.value_or(1),
                          .num_nodes = frame.num_nodes.value_or(1),
                          .num_groups = frame.num_groups.value_or(1)};
  EPLB_ASSIGN_OR_RETURN(const int32_t experts, CountExperts(parts.slots));
  options.num_experts = parts.num_experts.value_or(experts);
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(options));
  if (parts.ranks.has_value()) {
    return Placement::FromSlotsAndRanks(topology, parts.slots, *parts.ranks);
  }
  return Placement::FromSlots(topology, parts.slots);
}

std::span<const PlacementFormat> PlacementFormats() { return kFormats; }

absl::StatusOr<PlacementFormat> FindPlacementFormat(std::string_view name) {
  std::vector<std::string> names;
  for (const PlacementFormat& format : kFormats) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  return InvalidInput("placement format is ", wire::JsonQuote(FirstCharacters(name, 80)),
                      ", expected one of ", absl::StrJoin(names, ", "));
}

absl::StatusOr<PlacementFormat> DetectPlacementFormat(const std::string& path,
                                                      std::string_view bytes) {
  const std::string_view name = FormatName(path, bytes);
  if (!name.empty()) return FindPlacementFormat(name);
  return InvalidInput(path,
                      ": is no placement; tried \"eplb.placement.v1\", deepseek's maps (.npy, "
                      ".npz, JSON, CSV), sglang's physical_to_logical_map, trtllm's YAML, vllm's "
                      "eplb_initial_mapping and ascend's layer_list");
}

absl::Status NameForeignPlacement(const std::string& path, const absl::Status& error) {
  const absl::StatusOr<std::string> bytes = ReadRegularFile(path);
  if (!bytes.ok()) return error;
  const absl::StatusOr<PlacementFormat> format = DetectPlacementFormat(path, *bytes);
  if (!format.ok() || format->name == "eplb") return error;
  const std::string name(format->name);
  return InvalidInput(path, ": is a placement of ", name, ", convert it: eplbctl convert --from ",
                      name, " ", path, " OUT.json");
}

}  // namespace eplb
