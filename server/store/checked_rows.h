// Rows with a checksum, so that a damaged cell is never taken for content.
#ifndef EPLB_SERVER_STORE_CHECKED_ROWS_H_
#define EPLB_SERVER_STORE_CHECKED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "server/store/sqlite.h"

namespace eplb::sqlite {

// Returns 63 bits of the SHA-256 over the cells' kinds, lengths and bytes.
int64_t ChecksumOf(std::span<const Cell> cells);

// Returns the row with its checksum as bytes, for a store without tables.
std::string RowToBytes(const Row& row);
// errors: DataLoss with `what`, for bytes that RowToBytes did not write.
absl::StatusOr<Row> RowFromBytes(std::string_view bytes, const std::string& what);

// Inserts or replaces a row: the cells, then the checksum of the cells from `first_checked` on.
// columns: "a, b, c, checksum"; empty: all columns of the table. errors: those of Connection.
absl::Status Insert(Connection& connection, std::string_view table, std::string_view columns,
                    const Row& row, size_t first_checked = 0);

// Calls `use` with each row of a query whose last column is the checksum. The row is without it.
// errors: those of Connection and of `use`; DataLoss with `what` if a checksum does not fit.
absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use);

// Returns what `decode`, which returns a StatusOr, makes of each row of the query. errors: as
// ForEachRow.
template <class Decode>
auto Collect(Statement statement, const std::string& what, size_t first_checked, Decode decode)
    -> absl::StatusOr<std::vector<typename std::invoke_result_t<Decode, const Row&>::value_type>> {
  std::vector<typename std::invoke_result_t<Decode, const Row&>::value_type> values;
  EPLB_RETURN_IF_ERROR(
      ForEachRow(std::move(statement), what, first_checked, [&](const Row& row) -> absl::Status {
        EPLB_ASSIGN_OR_RETURN(auto value, decode(row));
        values.push_back(std::move(value));
        return absl::OkStatus();
      }));
  return values;
}

}  // namespace eplb::sqlite

#endif  // EPLB_SERVER_STORE_CHECKED_ROWS_H_
