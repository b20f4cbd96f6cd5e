#include "client/cli/formats/index_table.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/formats/npy.h"

namespace eplb {
namespace {

constexpr char kIndexRange[] = "-1..2^31-1";

std::string Named(std::string_view name) {
  return name.empty() ? std::string() : absl::StrCat(std::string(name), " ");
}

absl::Status OutOfRange(std::string_view name, int64_t row, int64_t entry, int64_t number) {
  return InvalidInput(Named(name), "layer ", row, " entry ", entry, " is ", number, ", expected ",
                      kIndexRange);
}

bool InRange(int64_t number) {
  return number >= -1 && number <= std::numeric_limits<int32_t>::max();
}

// errors unless the arrays at the second level, and at the third, are as long as their first.
absl::Status CheckRegular(const wire::JsonNumbers& numbers, std::string_view name) {
  const std::vector<int64_t>& rows = numbers.children[1];
  for (size_t row = 1; row < rows.size(); ++row) {
    if (rows[row] == rows[0]) continue;
    return InvalidInput(Named(name), "layer ", row, " has ", rows[row], " entries, layer 0 has ",
                        rows[0]);
  }
  if (numbers.children.size() < 3) return absl::OkStatus();
  const std::vector<int64_t>& inner = numbers.children[2];
  for (size_t i = 1; i < inner.size(); ++i) {
    if (inner[i] == inner[0]) continue;
    const auto columns = static_cast<size_t>(rows[0]);
    return InvalidInput(Named(name), "layer ", i / columns, " expert ", i % columns, " has ",
                        inner[i], " entries, the first has ", inner[0]);
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
  const int64_t depth = dimensions == 3 ? numbers->children[2].front() : 1;
  const auto rows = std::ssize(numbers->children[1]);
  IndexTable table{.cells = IndexMatrix(rows, numbers->children[1].front() * depth),
                   .depth = depth};
  for (Eigen::Index i = 0; i < table.cells.size(); ++i) {
    const int64_t number = numbers->integers[static_cast<size_t>(i)];
    if (!InRange(number)) {
      return OutOfRange(name, i / table.cells.cols(), i % table.cells.cols(), number);
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
      if (!InRange(number)) return OutOfRange(name, row, entry, number);
      table.cells(row, entry) = static_cast<int32_t>(number);
    }
  }
  return table;
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

}  // namespace eplb
