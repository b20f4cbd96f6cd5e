// Keys and values as the rows of one SQLite table, each with a checksum, so that a damaged cell is
// never taken for content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "server/store/checked_rows.h"
#include "server/store/key_values.h"
#include "server/store/sqlite.h"

namespace eplb::sqlite {

// Calls `use` with each row of a query whose last column is the checksum of the cells from
// `first_checked` on. The row is without it. errors: those of Connection and of `use`; DataLoss
// with `what` if a checksum does not fit.
absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use);

// Inserts or replaces a row. errors: those of Connection.
absl::Status PutRow(Connection& connection, const std::string& key, const std::string& value);
absl::Status ApplyBatch(Connection& connection, const Batch& batch);

// Checks every row but load windows and typical loads. errors: those of ForEachRow.
absl::Status CheckEveryRow(Connection& connection);

// Reads the table through `connection`, which outlives it. errors: those of Connection; DataLoss if
// a row does not fit its checksum.
class ConnectionReader : public KeyReader {
 public:
  explicit ConnectionReader(Connection* connection) : connection_(*connection) {}
  std::optional<std::string> Get(const std::string& key) const override;
  Pairs Find(const KeyRange& range) const override;
  int64_t Count(const std::string& prefix) const override;
  absl::Status status() const override { return status_; }

 private:
  // Returns the rows of a query, with or without values.
  Pairs Select(const std::string& sql, const Row& values, bool with_values) const;

  Connection& connection_;
  mutable absl::Status status_;
};

}  // namespace eplb::sqlite
