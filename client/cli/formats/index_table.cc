#include "client/cli/formats/index_table.h"

#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "client/cli/formats/npy.h"

namespace eplb {
namespace {

constexpr char kIndexRange[] = "-1..2^31-1";

std::string Named(std::string_view name) {
  return name.empty() ? std::string() : absl::StrCat(std::string(name), " ");
}

absl::Status OutOfRange(const std::string& place, int64_t entry, int64_t number) {
  return InvalidInput(place, "entry ", entry, " is ", number, ", expected ", kIndexRange);
}

bool InRange(int64_t number) {
  return number >= -1 && number <= std::numeric_limits<int32_t>::max();
}

// errors unless the arrays at each level are as long as their first.
absl::Status CheckRegular(const wire::JsonNumbers& numbers, std::string_view name) {
  for (size_t level = 1; level < numbers.children.size(); ++level) {
    const std::vector<int64_t>& sizes = numbers.children[level];
    for (size_t i = 1; i < sizes.size(); ++i) {
      if (sizes[i] == sizes[0]) continue;
      const auto columns = level == 1 ? 1 : static_cast<size_t>(numbers.children[1][0]);
      return InvalidInput(Named(name), "layer ", i / columns,
                          level == 1 ? "" : absl::StrCat(" expert ", i % columns), " has ",
                          sizes[i], " entries, ", level == 1 ? "layer 0" : "the first", " has ",
                          sizes[0]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<IndexTable> IndexTableFromJson(const wire::JsonValue& value, std::string_view name,
                                              size_t dimensions) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* numbers, wire::AsNumbers(value, name, dimensions));
  EPLB_RETURN_IF_ERROR(CheckRegular(*numbers, name));
  if (numbers->num_numbers() == 0) return InvalidInput(Named(name), "has no entries");
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*numbers, name, kIndexRange));
  const int64_t rows = dimensions == 1 ? 1 : numbers->children[0].front();
  IndexTable table{.cells = IndexMatrix(rows, std::ssize(numbers->integers) / rows),
                   .depth = dimensions == 3 ? numbers->children[2].front() : 1};
  for (Eigen::Index i = 0; i < table.cells.size(); ++i) {
    const int64_t number = numbers->integers[static_cast<size_t>(i)];
    if (!InRange(number)) {
      const auto row = dimensions == 1 ? "" : absl::StrCat("layer ", i / table.cells.cols(), " ");
      return OutOfRange(Named(name) + row, i % table.cells.cols(), number);
    }
    table.cells.data()[i] = static_cast<int32_t>(number);
  }
  return table;
}

absl::StatusOr<IndexTable> IndexTableFromArray(const absl::StatusOr<Array>& array,
                                               std::string_view name, size_t dimensions) {
  if (!array.ok()) return InvalidInput(Named(name), array.status().message());
  if (array->type->integer == nullptr) {
    return InvalidInput(
        Named(name), "has the dtype ",
        std::string(array->type->numpy.empty() ? array->type->torch : array->type->numpy),
        ", expected little-endian integers, int8..int64 or uint8..uint64");
  }
  if (array->shape.size() != dimensions) {
    return InvalidInput(Named(name), "has ", array->shape.size(), " dimensions, expected ",
                        dimensions);
  }
  const int64_t depth = dimensions == 3 ? array->shape[2] : 1;
  IndexTable table{.cells = IndexMatrix(array->shape[0], array->shape[1] * depth), .depth = depth};
  for (Eigen::Index row = 0; row < table.cells.rows(); ++row) {
    for (Eigen::Index entry = 0; entry < table.cells.cols(); ++entry) {
      const int64_t number = array->type->integer(array->At(row, entry / depth, entry % depth));
      if (!InRange(number)) {
        return OutOfRange(absl::StrCat(Named(name), "layer ", row, " "), entry, number);
      }
      table.cells(row, entry) = static_cast<int32_t>(number);
    }
  }
  return table;
}

absl::StatusOr<int32_t> NumberOfKey(const std::string& key, std::string_view name, int32_t most) {
  int32_t number = -1;
  if (absl::SimpleAtoi(key, &number) && number >= 0 && number <= most &&
      std::to_string(number) == key) {
    return number;
  }
  return InvalidInput(Named(name), "has the key ", wire::JsonQuote(FirstCharacters(key, 80)),
                      ", expected a number in 0..", most);
}

std::string IndexTableToNpy(const IndexMatrix& cells, const std::vector<int64_t>& shape) {
  std::string header = absl::StrCat("{'descr': '<i8', 'fortran_order': False, 'shape': (",
                                    absl::StrJoin(shape, ", "), "), }");
  // The numbers begin at a multiple of 64 bytes; 10 bytes and a newline come besides.
  constexpr size_t kPrefix = 10;
  header.append(63 - (kPrefix + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes(kNpyMagic);
  bytes +=
      {'\1', '\0', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  bytes += header;
  for (Eigen::Index i = 0; i < cells.size(); ++i) {
    const int64_t number = cells.data()[i];
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return bytes;
}

std::string MatrixToJson(const IndexMatrix& cells) {
  std::string json;
  for (Eigen::Index row = 0; row < cells.rows(); ++row) {
    absl::StrAppend(&json, row == 0 ? "[" : ",", RowToJson(cells, row));
  }
  return json + "]";
}

std::string RowToJson(const IndexMatrix& cells, Eigen::Index row) {
  const auto numbers = cells.row(row);
  return absl::StrCat("[", absl::StrJoin(numbers.begin(), numbers.end(), ","), "]");
}

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
  if (object.Find(kSlotCount) != nullptr) {
    EPLB_ASSIGN_OR_RETURN(num_slots, wire::GetInteger(object, kSlotCount));
  }
  for (const auto& [layer, row] : rows) {
    if (row.cols() != num_slots) {
      return InvalidInput(kKey, " layer ", layer, " has ", row.cols(), " entries, expected ",
                          num_slots, " slots");
    }
  }
  LayerAssignments result{.slots = IndexMatrix(std::ssize(rows), num_slots)};
  for (const auto& [layer, row] : rows) {
    result.slots.row(std::ssize(result.layers)) = row.row(0);
    result.layers.push_back(layer);
  }
  return result;
}

}  // namespace eplb
