#include "client/cli/formats/layer_assignments.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/formats/index_table.h"

namespace eplb {

absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object) {
  constexpr char kKey[] = "initial_global_assignments";
  constexpr char kSlotCount[] = "num_slots";
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* assignments, wire::GetMember(object, kKey));
  std::map<int32_t, IndexMatrix> rows;
  for (const wire::JsonMember& member : assignments->members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t layer, NumberOfKey(member.key, kKey, kMaxLayerNumber));
    EPLB_ASSIGN_OR_RETURN(
        IndexTable row, IndexTableFromJson(member.value, absl::StrCat(kKey, " layer ", layer), 1));
    rows.emplace(layer, std::move(row.cells));
  }
  if (rows.empty()) return InvalidInput(kKey, " has no layers, expected rows by layer number");
  int64_t num_slots = rows.begin()->second.cols();
  LayerAssignments result{.slots = IndexMatrix(std::ssize(rows), num_slots)};
  if (object.Find(kSlotCount) != nullptr) {
    EPLB_ASSIGN_OR_RETURN(num_slots, wire::GetInteger(object, kSlotCount));
  }
  for (const auto& [layer, row] : rows) {
    if (row.cols() != num_slots) {
      return InvalidInput(kKey, " layer ", layer, " has ", row.cols(), " entries, expected ",
                          num_slots, " slots");
    }
    result.slots.row(std::ssize(result.layers)) = row.row(0);
    result.layers.push_back(layer);
  }
  return result;
}

}  // namespace eplb
