// Reads and writes the JSON of SGLang's --init-expert-location.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/index_table.h"
#include "client/cli/formats/load_json.h"
#include "client/cli/formats/torch_file.h"

namespace eplb {
namespace {

constexpr char kPhysicalToLogical[] = "physical_to_logical_map";
constexpr char kLogicalCount[] = "logical_count";

// A recorder's map in a file of torch.save.
absl::StatusOr<PlacementParts> ParseTorchMap(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const TorchTensor slots, ReadTorchTensor(bytes, kPhysicalToLogical));
  if (slots.is_alone) {
    return InvalidInput("is a tensor alone, expected a dictionary with \"", kPhysicalToLogical,
                        "\"");
  }
  EPLB_ASSIGN_OR_RETURN(IndexTable table, IndexTableFromArray(slots.array, kPhysicalToLogical, 2));
  return PlacementParts{.slots = std::move(table.cells)};
}

}  // namespace

absl::StatusOr<PlacementParts> ParseSglangPlacement(std::string_view bytes) {
  if (IsTorchFile(bytes)) return ParseTorchMap(bytes);
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(bytes));
  const wire::JsonValue* slots = object.Find(kPhysicalToLogical);
  if (slots == nullptr || object.Find("format") != nullptr) {
    return InvalidInput(
        "is no placement of sglang, expected a JSON object with \"", kPhysicalToLogical,
        IsSglangLoad(object) ? "\"; its logical_count is a load, for `eplbctl plan --load`"
                             : "\" and without \"format\"");
  }
  EPLB_ASSIGN_OR_RETURN(IndexTable table, IndexTableFromJson(*slots, kPhysicalToLogical, 2));
  return PlacementParts{.slots = std::move(table.cells)};
}

absl::StatusOr<std::string> WriteSglangPlacement(const Placement& placement,
                                                 const WriteOptions& options) {
  constexpr Eigen::Index kMaxDenseRows = 1024;
  const IndexMatrix& moe = placement.physical_to_logical_map();
  if (!options.layers.empty() && options.layers.back() - moe.rows() >= kMaxDenseRows) {
    return InvalidInput("the last layer is ", options.layers.back(),
                        ", and sglang needs a row for ", "each dense layer before it: at most ",
                        kMaxDenseRows, " are written");
  }
  const IndexMatrix slots =
      options.layers.empty()
          ? moe
          : WithDenseRows(moe, placement.topology().num_experts(), options.layers);
  return absl::StrCat("{\"", kPhysicalToLogical, "\":", MatrixToJson(slots), "}\n");
}

bool IsSglangLoad(const wire::JsonValue& value) { return value.Find(kLogicalCount) != nullptr; }

absl::StatusOr<LoadFile> SglangLoad(const wire::JsonValue& value) {
  const wire::JsonValue* counts = value.is_array() ? &value : value.Find(kLogicalCount);
  if (counts == nullptr || value.Find("format") != nullptr) {
    return InvalidInput(
        value.Find(kPhysicalToLogical) == nullptr
            ? "is no load of sglang, "
            : "is a placement of sglang, for `eplbctl convert --from sglang`, and no load; ",
        "expected a JSON object with \"", kLogicalCount,
        "\" and without \"format\", or its array alone");
  }
  EPLB_ASSIGN_OR_RETURN(LoadFile file,
                        value.is_array()
                            ? LoadFileOf(StepsFromJson(*counts, ""), TableKind::kArray)
                            : LoadFileOf(StepsFromJson(*counts, kLogicalCount), TableKind::kNamed));
  file.counts_model_layers = true;
  return file;
}

}  // namespace eplb
