#include "client/cli/formats/layer_assignments.h"

#include <limits>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr char kKey[] = "initial_global_assignments";
constexpr char kSlotCount[] = "num_slots";
constexpr char kExpertRange[] = "-1..2^31-1";

// "3"; "03", "+3" and "3.0" are other systems' habits that would make two names of one layer.
absl::StatusOr<int32_t> LayerOf(const std::string& key) {
  int32_t layer = -1;
  if (!absl::SimpleAtoi(key, &layer) || layer < 0 || layer > kMaxLayerNumber ||
      std::to_string(layer) != key) {
    return InvalidInput(kKey, " has the key ", wire::JsonQuote(FirstCharacters(key, 80)),
                        ", expected a layer number");
  }
  return layer;
}

// Before memory is taken: that a row is as long as num_slots claims.
absl::Status CheckRow(const wire::JsonValue& value, const std::string& name, int64_t num_slots) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::AsNumbers(value, name, 1));
  if (static_cast<int64_t>(numbers->num_numbers()) != num_slots) {
    return InvalidInput(name, " has ", numbers->num_numbers(), " entries, expected ", num_slots,
                        " slots");
  }
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*numbers, name, kExpertRange));
  for (size_t slot = 0; slot < numbers->integers.size(); ++slot) {
    const int64_t expert = numbers->integers[slot];
    if (expert >= -1 && expert <= std::numeric_limits<int32_t>::max()) continue;
    return InvalidInput(name, " slot ", slot, " is ", expert, ", expected an expert");
  }
  return absl::OkStatus();
}

using RowsByLayer = std::map<int32_t, const wire::JsonValue*>;

absl::StatusOr<RowsByLayer> ReadRows(const wire::JsonValue& object) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue* assignments, wire::GetMember(object, kKey));
  if (!assignments->is_object()) {
    return InvalidInput(kKey, " is ", std::string(wire::KindName(assignments->kind)),
                        ", expected rows by layer number");
  }
  RowsByLayer rows;
  for (const wire::JsonMember& member : assignments->members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t layer, LayerOf(member.key));
    rows.emplace(layer, &member.value);
  }
  if (rows.empty()) return InvalidInput(kKey, " has no layers");
  return rows;
}

// The number of slots: num_slots, or the length of the first row.
absl::StatusOr<int64_t> NumSlots(const wire::JsonValue& object, const RowsByLayer& rows) {
  const auto& [layer, row] = *rows.begin();
  if (object.Find(kSlotCount) == nullptr) {
    EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers,
                          wire::AsNumbers(*row, absl::StrCat(kKey, " layer ", layer), 1));
    if (numbers->num_numbers() > 0) return static_cast<int64_t>(numbers->num_numbers());
    return InvalidInput(kKey, " layer ", layer, " has no entries");
  }
  EPLB_ASSIGN_OR_RETURN(const int64_t slots, wire::GetInteger(object, kSlotCount));
  if (slots >= 1) return slots;
  return InvalidInput(kSlotCount, " is ", slots, ", expected >= 1");
}

}  // namespace

absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object) {
  EPLB_ASSIGN_OR_RETURN(const RowsByLayer rows, ReadRows(object));
  EPLB_ASSIGN_OR_RETURN(const int64_t num_slots, NumSlots(object, rows));
  for (const auto& [layer, value] : rows) {
    EPLB_RETURN_IF_ERROR(CheckRow(*value, absl::StrCat(kKey, " layer ", layer), num_slots));
  }
  LayerAssignments result{.slots = IndexMatrix(static_cast<Eigen::Index>(rows.size()), num_slots)};
  for (const auto& [layer, value] : rows) {
    const auto row = static_cast<Eigen::Index>(result.layers.size());
    for (Eigen::Index slot = 0; slot < num_slots; ++slot) {
      result.slots(row, slot) =
          static_cast<int32_t>(value->numbers.integers[static_cast<size_t>(slot)]);
    }
    result.layers.push_back(layer);
  }
  return result;
}

}  // namespace eplb
