// Rows with a checksum, so that a damaged cell is never taken for content.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb::sqlite {

struct Bytes {
  std::string bytes;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
// NULL, INTEGER, TEXT or BLOB. The store has no other kind.
using Cell = std::variant<std::monostate, int64_t, std::string, Bytes>;
using Row = std::vector<Cell>;

// Returns 63 bits of the SHA-256 over the cells' kinds, lengths and bytes.
int64_t ChecksumOf(std::span<const Cell> cells);

// Returns the row with its checksum as bytes.
std::string RowToBytes(const Row& row);
// errors: DataLoss with `what`, for bytes that RowToBytes did not write.
absl::StatusOr<Row> RowFromBytes(std::string_view bytes, const std::string& what);

}  // namespace eplb::sqlite
