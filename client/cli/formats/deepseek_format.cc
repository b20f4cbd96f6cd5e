// Reads and writes the arrays of DeepSeek's EPLB.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/cli/formats/csv.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/index_table.h"
#include "client/cli/formats/load_doubts.h"
#include "client/cli/formats/load_json.h"
#include "client/cli/formats/npy.h"
#include "client/cli/formats/zip_archive.h"

namespace eplb {
namespace {

constexpr char kSlots[] = "physical_to_logical_map";
constexpr char kReplicas[] = "logical_to_physical_map";
constexpr char kCounts[] = "logical_replica_count";
constexpr char kArraySuffix[] = ".npy";  // ending of a member of an .npz

struct Maps {
  IndexTable slots;     // [L, S]
  IndexTable replicas;  // [L, E, X]
  IndexTable counts;    // [L, E]
};

std::string ReplicaName(Eigen::Index layer, int64_t expert, int64_t replica) {
  return absl::StrCat(kReplicas, " layer ", layer, " expert ", expert, " replica ", replica);
}

absl::Status CheckShapes(const Maps& maps) {
  const auto layers = maps.slots.cells.rows();
  const auto experts = maps.counts.cells.cols();
  if (maps.replicas.cells.rows() == layers && maps.counts.cells.rows() == layers &&
      maps.replicas.columns() == experts) {
    return absl::OkStatus();
  }
  return InvalidInput(kSlots, " has ", layers, " layers; ", kReplicas, " ",
                      maps.replicas.cells.rows(), " layers x ", maps.replicas.columns(),
                      " experts; ", kCounts, " ", maps.counts.cells.rows(), " layers x ", experts,
                      " experts: they must be the same");
}

// Enters the slots of one expert as its replicas 0, 1, ..; the entries after them must be -1.
absl::Status RankExpert(const Maps& maps, Eigen::Index layer, int64_t expert, IndexMatrix& ranks) {
  const int32_t count = maps.counts.cells(layer, expert);
  if (count < 1 || count > maps.replicas.depth) {
    return InvalidInput(kCounts, " layer ", layer, " expert ", expert, " is ", count,
                        ", expected 1..", maps.replicas.depth);
  }
  for (int64_t replica = 0; replica < maps.replicas.depth; ++replica) {
    const int32_t slot = maps.replicas.cells(layer, expert * maps.replicas.depth + replica);
    if (replica >= count && slot == -1) continue;
    if (replica >= count || slot < 0 || slot >= ranks.cols()) {
      return InvalidInput(
          ReplicaName(layer, expert, replica), " is ", slot, ", expected ",
          replica >= count ? "-1" : absl::StrCat("a slot in 0..", ranks.cols() - 1));
    }
    if (maps.slots.cells(layer, slot) != expert || ranks(layer, slot) != -1) {
      return InvalidInput(
          ReplicaName(layer, expert, replica), " is slot ", slot,
          ranks(layer, slot) != -1
              ? std::string(" a second time")
              : absl::StrCat(", where ", kSlots, " has expert ", maps.slots.cells(layer, slot)));
    }
    ranks(layer, slot) = static_cast<int32_t>(replica);
  }
  return absl::OkStatus();
}

absl::StatusOr<PlacementParts> PartsFromMaps(const Maps& maps) {
  EPLB_RETURN_IF_ERROR(CheckShapes(maps));
  const IndexMatrix& slots = maps.slots.cells;
  IndexMatrix ranks = IndexMatrix::Constant(slots.rows(), slots.cols(), -1);
  for (Eigen::Index layer = 0; layer < slots.rows(); ++layer) {
    for (int64_t expert = 0; expert < maps.counts.cells.cols(); ++expert) {
      EPLB_RETURN_IF_ERROR(RankExpert(maps, layer, expert, ranks));
    }
    for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
      if (slots(layer, slot) == -1) ranks(layer, slot) = 0;  // same as in Placement::FromSlots
      if (ranks(layer, slot) >= 0) continue;
      return InvalidInput(kSlots, " layer ", layer, " slot ", slot, " holds expert ",
                          slots(layer, slot), ", ", kReplicas, " leaves it out");
    }
  }
  return PlacementParts{.slots = slots,
                        .ranks = std::move(ranks),
                        .num_experts = static_cast<int32_t>(maps.counts.cells.cols())};
}

// read: returns a table by its name and its number of dimensions.
template <class Read>
absl::StatusOr<PlacementParts> FromThree(const Read& read) {
  Maps maps;
  EPLB_ASSIGN_OR_RETURN(maps.slots, read(kSlots, 2));
  EPLB_ASSIGN_OR_RETURN(maps.replicas, read(kReplicas, 3));
  EPLB_ASSIGN_OR_RETURN(maps.counts, read(kCounts, 2));
  return PartsFromMaps(maps);
}

// The arrays of numpy.savez, by the names of their members.
absl::StatusOr<ZipMembers> ReadNpz(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(ZipMembers members, ReadZip(bytes));
  for (const auto& [name, array] : members) {
    if (name.ends_with(kArraySuffix)) continue;
    return InvalidInput("member \"", Clipped(name, 80), "\": is no .npy");
  }
  return members;
}

absl::StatusOr<PlacementParts> FromNpz(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const ZipMembers members, ReadNpz(bytes));
  return FromThree([&members](const char* name, size_t dimensions) -> absl::StatusOr<IndexTable> {
    const auto found = members.find(absl::StrCat(name, kArraySuffix));
    if (found == members.end()) return InvalidInput(name, " is missing");
    return IndexTableFromArray(ParseNpy(found->second), name, dimensions);
  });
}

absl::StatusOr<PlacementParts> FromJson(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(text));
  if (object.Find("format") != nullptr) {
    return InvalidInput("has the key \"format\", which deepseek's maps do not have");
  }
  return FromThree([&object](const char* name, size_t dimensions) -> absl::StatusOr<IndexTable> {
    EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* value, wire::GetMember(object, name));
    return IndexTableFromJson(*value, name, dimensions);
  });
}

absl::StatusOr<PlacementParts> FromCsv(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const std::string json, CsvToJson(text));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue matrix, wire::ParseJson(json));
  EPLB_ASSIGN_OR_RETURN(IndexTable slots, IndexTableFromJson(matrix, "", 2));
  PlacementParts parts{.slots = std::move(slots.cells)};
  EPLB_ASSIGN_OR_RETURN(std::string doubt, DoubtsAboutMap(parts.slots));
  if (!doubt.empty()) parts.notes.push_back(std::move(doubt));
  return parts;
}

absl::StatusOr<PlacementParts> ParseDeepSeek(const std::string& path, std::string_view bytes) {
  if (bytes.starts_with(kNpyMagic)) {
    EPLB_ASSIGN_OR_RETURN(IndexTable slots, IndexTableFromArray(ParseNpy(bytes), "", 2));
    return PlacementParts{.slots = std::move(slots.cells)};
  }
  if (bytes.starts_with(kZipMagic)) return FromNpz(bytes);
  const size_t start = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  if (bytes.substr(start).starts_with('{')) return FromJson(bytes);
  if (LooksLikeCsv(bytes) || path.ends_with(".csv")) return FromCsv(bytes);
  return InvalidInput("is no placement of deepseek; tried .npy and CSV of ", kSlots,
                      ", .npz and a JSON object of ", kSlots, ", ", kReplicas, " and ", kCounts);
}

// [L, E * X] as [L][E][X].
std::string ReplicasToJson(const Placement& placement) {
  const IndexMatrix flat = placement.logical_to_physical_map();
  const int64_t width = placement.max_replicas();
  std::string json;
  for (Eigen::Index layer = 0; layer < flat.rows(); ++layer) {
    const Eigen::Map<const IndexMatrix> experts(&flat(layer, 0), flat.cols() / width, width);
    absl::StrAppend(&json, layer == 0 ? "[" : ",", MatrixToJson(experts));
  }
  return json + "]";
}

std::string TwoDimensionsToNpy(const IndexMatrix& matrix) {
  return IndexTableToNpy(matrix, {matrix.rows(), matrix.cols()});
}

std::string ToCsv(const IndexMatrix& matrix) {
  std::string text;
  for (Eigen::Index row = 0; row < matrix.rows(); ++row) {
    const auto numbers = matrix.row(row);
    absl::StrAppend(&text, absl::StrJoin(numbers.begin(), numbers.end(), ","), "\n");
  }
  return text;
}

// The array that is the load, of an archive of arrays.
absl::StatusOr<std::vector<LoadWindow>> LoadFromNpz(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const ZipMembers members, ReadNpz(bytes));
  const auto load = members.find("load.npy");
  const auto weight = members.find("weight.npy");
  if (members.size() > 1 && (load == members.end()) == (weight == members.end())) {
    return InvalidInput("has ", members.size(),
                        " arrays, expected one, or one named load or weight");
  }
  const auto& [member, array] = load != members.end()     ? *load
                                : weight != members.end() ? *weight
                                                          : *members.begin();
  const std::string name = member.substr(0, member.size() - std::strlen(kArraySuffix));
  if (NamesPlacement(name)) {
    return InvalidInput("holds ", wire::JsonQuote(name),
                        ", part of a placement; expected a load, tokens of each expert");
  }
  return InFile(wire::JsonQuote(FirstCharacters(name, 80)), ParseLoadNpy(array));
}

}  // namespace

absl::StatusOr<PlacementParts> ParseDeepseekPlacement(const std::string& path,
                                                      std::string_view bytes) {
  return InFile(path, ParseDeepSeek(path, bytes));
}

absl::StatusOr<std::string> WriteDeepseekPlacement(const Placement& placement,
                                                   const WriteOptions& options) {
  const IndexMatrix& slots = placement.physical_to_logical_map();
  if (options.path.ends_with(".npy")) return TwoDimensionsToNpy(slots);
  if (options.path.ends_with(".csv")) return ToCsv(slots);
  if (options.path.ends_with(".json")) {
    return absl::StrCat("{\"", kSlots, "\":", MatrixToJson(slots), ",\"", kReplicas,
                        "\":", ReplicasToJson(placement), ",\"", kCounts,
                        "\":", MatrixToJson(placement.logical_replica_count()), "}\n");
  }
  if (options.path.ends_with(".npz")) {
    const Topology& topology = placement.topology();
    std::vector<ZipMember> arrays = {
        {kSlots, TwoDimensionsToNpy(slots)},
        {kReplicas, IndexTableToNpy(
                        placement.logical_to_physical_map(),
                        {topology.num_layers(), topology.num_experts(), placement.max_replicas()})},
        {kCounts, TwoDimensionsToNpy(placement.logical_replica_count())}};
    for (ZipMember& array : arrays) array.name += kArraySuffix;
    return WriteZip(arrays);
  }
  return InvalidInput(
      options.path,
      ": a file of deepseek ends in .npy, .npz, .json or .csv, which chooses its form");
}

bool DeepseekHoldsRanks(const WriteOptions& options) {
  return options.path.ends_with(".npz") || options.path.ends_with(".json");
}

absl::StatusOr<LoadFile> ParseDeepseekLoad(const std::string& path, std::string_view bytes) {
  const size_t start = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  if (IsNpy(bytes)) return InFile(path, LoadFileOf(ParseLoadNpy(bytes), TableKind::kArray));
  if (bytes.starts_with(kZipMagic)) {
    return InFile(path, LoadFileOf(LoadFromNpz(bytes), TableKind::kArray));
  }
  if (bytes.substr(start).starts_with('[')) return ParseLoadJson(path, bytes);
  if (!LooksLikeCsv(bytes) && !path.ends_with(".csv")) {
    return InvalidInput(path, ": is no load of deepseek; tried .npy, .npz, JSON and CSV");
  }
  EPLB_ASSIGN_OR_RETURN(const std::string json, InFile(path, CsvToJson(bytes)));
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ParseLoadJson(path, json));
  file.table = TableKind::kCsv;
  return file;
}

}  // namespace eplb
