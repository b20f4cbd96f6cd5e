// Tables of indices in other systems' files, as CSV, JSON arrays and .npy.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_TABLES_H_
#define EPLB_CLIENT_CLI_FORMATS_TABLES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "placement/placement.h"

namespace eplb {

// CSV: one row per line, numbers between commas, no heading.

// True if the first line that is not blank is two or more cells between commas, and the first cell
// a number.
bool LooksLikeCsv(std::string_view text);

// The same matrix as JSON, line for line, so that one reader checks both. Numbers are written as
// JSON writes them, e.g. 12, -3, 1.5e+03; spaces around them and blank lines are skipped. errors:
// InvalidArgument naming line and column: a cell that is no such number (NaN and infinity are
// none).
absl::StatusOr<std::string> CsvToJson(std::string_view text);

// Tables checked for shape and range.

// [rows, columns], or [rows, columns, depth] with the last two dimensions side by side. No
// dimension is 0; every number is in -1..2^31-1.
struct IndexTable {
  IndexMatrix cells;  // [rows, columns * depth]
  int64_t depth = 1;

  int64_t columns() const { return cells.cols() / depth; }
};

// `dimensions` is 2 or 3; rows are called layers. `name` stands before messages.
// errors: InvalidArgument, naming the row: no array of numbers of that many levels, ragged, empty,
// a number that is no integer or out of range.
absl::StatusOr<IndexTable> IndexTableFromJson(const wire::JsonValue& value, std::string_view name,
                                              size_t dimensions);

// Reads int8..int64 and uint8..uint64, little endian, C or Fortran order. errors: as above, or the
// bytes are no such .npy. Nothing is allocated from a size that the bytes do not bear out.
absl::StatusOr<IndexTable> IndexTableFromNpy(std::string_view bytes, std::string_view name,
                                             size_t dimensions);

// int64 in C order. REQUIRES: the shape has as many numbers as `cells`.
std::string IndexTableToNpy(const IndexMatrix& cells, const std::vector<int64_t>& shape);

// A row as "[1,2,3]".
std::string RowToJson(const IndexMatrix& cells, Eigen::Index row);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_TABLES_H_
