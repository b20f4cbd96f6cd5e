// Matrices written as CSV: a row a line, numbers between commas, no heading.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FORMATS_TABLES_H_
#define EPLB_CLIENT_FORMATS_TABLES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/formats/load_window.h"
#include "placement/placement.h"

namespace eplb {

// Whether the first line that is not blank is two or more cells between commas, and the first cell
// a number.
bool LooksLikeCsv(std::string_view text);

// The same matrix as JSON, line for line, so that one reader checks both. Numbers are written as
// JSON writes them, e.g. 12, -3, 1.5e+03; spaces around them and blank lines are skipped. errors:
// InvalidArgument naming line and column: a cell that is no such number (NaN and infinity are
// none).
absl::StatusOr<std::string> CsvToJson(std::string_view text);

// Tables of indices in other systems' files: JSON arrays and .npy, checked for shape and range.
// threads: safe, no state.

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

// {"3":[experts in slot order],"4":[..]}: how TensorRT-LLM and vLLM write a placement.
// threads: safe, no state.

struct LayerAssignments {
  int32_t first_layer = 0;  // the smallest key
  IndexMatrix slots;        // [layers, num_slots], rows in rising order of their keys
};

// The member initial_global_assignments of `object`, in any order of keys.
// errors: InvalidArgument, naming the layer: a key that is no layer number, a layer missing between
// others, a row of another length, an id out of range.
absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object,
                                                      int64_t num_slots);

// Files with a row for every layer of the model, as SGLang's: the rows of dense layers come first,
// and EPLB's MoE layer 0 is row `first_layer`.
// threads: safe, no state.

inline constexpr int32_t kMaxFirstLayer = 1 << 20;

// Puts `first_layer` rows in front that hold the experts in order, 0..S-1 mod num_experts: what
// SGLang gives to a dense layer.
IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts, int32_t first_layer);

// Takes the rows of dense layers away. Without `first_layer` nothing is taken, and the note, unless
// empty, names the rows that look like those of dense layers: experts in order in a map, no tokens
// in any window of a load. A file whose rows all look so gets no note: nothing tells them apart.
// With it, the note names rows taken away that look like MoE layers.
// returns: the note. errors: InvalidArgument when no row would be left.
absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          IndexMatrix& slots);
absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          std::vector<LoadWindow>& windows);

}  // namespace eplb

#endif  // EPLB_CLIENT_FORMATS_TABLES_H_
