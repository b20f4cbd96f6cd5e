// Tables of indices in other systems' files, and the experts of layers in them, checked for shape
// and range. threads: safe, no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/arrays.h"
#include "client/cli/formats/layer_numbers.h"
#include "placement/placement.h"

namespace eplb {

// [rows, columns], or [rows, columns, depth] with the last two dimensions side by side; a table of
// one dimension is one row. No dimension is 0; every number is in -1..2^31-1.
struct IndexTable {
  IndexMatrix cells;  // [rows, columns * depth]
  int64_t depth = 1;

  int64_t columns() const { return cells.cols() / depth; }
};

// dimensions: 1 to 3; rows are called layers. name: precedes messages.
// errors: InvalidArgument, naming the row: no array of numbers of that many levels, ragged, empty,
// a number that is no integer or out of range.
absl::StatusOr<IndexTable> IndexTableFromJson(const wire::JsonValue& value, std::string_view name,
                                              size_t dimensions);

// Takes the integers of an array. errors: as above, or those of `array`, preceded by `name`.
absl::StatusOr<IndexTable> IndexTableFromArray(const absl::StatusOr<Array>& array,
                                               std::string_view name, size_t dimensions);

// A key of an object that is a number as JSON writes it: "03", "+3" and "3.0" would make two names
// of one layer. errors: InvalidArgument. name: of the object.
absl::StatusOr<int32_t> NumberOfKey(const std::string& key, std::string_view name, int32_t most);

// int64 in C order. REQUIRES: the shape has as many numbers as `cells`.
std::string IndexTableToNpy(const IndexMatrix& cells, const std::vector<int64_t>& shape);

// "[[1,2,3],[4,5,6]]".
std::string MatrixToJson(const IndexMatrix& cells);
// One row, "[1,2,3]".
std::string RowToJson(const IndexMatrix& cells, Eigen::Index row);

// {"3":[experts in slot order],"4":[..]}: how TensorRT-LLM and vLLM write a placement.
struct LayerAssignments {
  LayerNumbers layers = {};  // the keys, rising
  IndexMatrix slots;         // [layers, num_slots]
};

// The member initial_global_assignments of `object`, whose keys may be in any order and have gaps.
// The rows imply num_slots if `object` has none. errors: InvalidArgument, naming the layer: a key
// that is no layer number, a row of another length, an id out of range.
absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object);

}  // namespace eplb
