#include "client/files/formats/layer_assignments.h"

#include <limits>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

constexpr char kKey[] = "initial_global_assignments";
constexpr int32_t kMaxLayer = 1 << 20;

// "3"; "03", "+3" and "3.0" are other systems' habits that would make two names of one layer.
absl::StatusOr<int32_t> LayerOf(const std::string& key) {
  int32_t layer = -1;
  if (!absl::SimpleAtoi(key, &layer) || layer < 0 || layer > kMaxLayer ||
      std::to_string(layer) != key) {
    return absl::InvalidArgumentError(absl::StrCat(
        kKey, " has the key ", wire::JsonQuote(key.substr(0, 80)), ", expected a layer number"));
  }
  return layer;
}

// Before memory is taken: that a row is as long as num_slots claims.
absl::Status CheckRow(const wire::JsonValue& value, const std::string& name, int64_t num_slots) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::AsNumbers(value, name, 1));
  if (static_cast<int64_t>(numbers->num_numbers()) != num_slots) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", numbers->num_numbers(),
                                                   " entries, expected ", num_slots, " slots"));
  }
  if (!numbers->all_integers()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has a number that is not an integer"));
  }
  for (size_t slot = 0; slot < numbers->integers.size(); ++slot) {
    const int64_t expert = numbers->integers[slot];
    if (expert >= -1 && expert <= std::numeric_limits<int32_t>::max()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " slot ", slot, " is ", expert, ", expected an expert"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object,
                                                      int64_t num_slots) {
  const wire::JsonValue* assignments = object.Find(kKey);
  if (assignments == nullptr) return absl::InvalidArgumentError(absl::StrCat(kKey, " is missing"));
  if (!assignments->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kKey, " is ",
                                                   std::string(wire::KindName(assignments->kind)),
                                                   ", expected rows by layer number"));
  }
  std::map<int32_t, const wire::JsonValue*> rows;
  for (const wire::JsonMember& member : assignments->members) {
    EPLB_ASSIGN_OR_RETURN(const int32_t layer, LayerOf(member.key));
    EPLB_RETURN_IF_ERROR(CheckRow(member.value, absl::StrCat(kKey, " layer ", layer), num_slots));
    rows.emplace(layer, &member.value);
  }
  if (rows.empty()) return absl::InvalidArgumentError(absl::StrCat(kKey, " has no layers"));
  LayerAssignments result{.first_layer = rows.begin()->first,
                          .slots = IndexMatrix(static_cast<Eigen::Index>(rows.size()), num_slots)};
  Eigen::Index row = 0;
  for (const auto& [layer, value] : rows) {
    if (layer != result.first_layer + row) {
      return absl::InvalidArgumentError(absl::StrCat(kKey, ": layer ", result.first_layer + row,
                                                     " is missing, there are ", result.first_layer,
                                                     " and ", layer));
    }
    for (Eigen::Index slot = 0; slot < result.slots.cols(); ++slot) {
      result.slots(row, slot) =
          static_cast<int32_t>(value->numbers.integers[static_cast<size_t>(slot)]);
    }
    ++row;
  }
  return result;
}

}  // namespace eplb
