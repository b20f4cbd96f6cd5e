// Rows with a checksum, so that no damaged cell is ever taken for content.
#ifndef EPLB_SERVER_STORE_ROW_H_
#define EPLB_SERVER_STORE_ROW_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "server/store/sqlite.h"

namespace eplb::sqlite {

struct Bytes {
  std::string bytes;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
// NULL, INTEGER, REAL, TEXT, BLOB.
using Cell = std::variant<std::monostate, int64_t, double, std::string, Bytes>;
using Row = std::vector<Cell>;

// 63 bits of the SHA-256 over the cells' kinds, lengths and bytes.
int64_t ChecksumOf(std::span<const Cell> cells);

// A REAL that comes back as it was given: finite, and no negative zero.
Cell RealCell(double value);

// INSERT OR REPLACE of the cells and, as the last column, the checksum of those from
// `first_checked` on. The columns are those named, "a, b, c, checksum", or all of the table when
// `columns` is empty. errors: those of Connection.
absl::Status Insert(Connection& connection, std::string_view table, std::string_view columns,
                    const Row& row, size_t first_checked = 0);

// Calls `use` for every row of a query whose last column is such a checksum; every cell has the
// kind it was written with. errors: those of Connection and of `use`; DataLoss when a checksum does
// not fit, naming `what`.
absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use);

}  // namespace eplb::sqlite

#endif  // EPLB_SERVER_STORE_ROW_H_
