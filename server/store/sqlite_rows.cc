// The statements on the table of rows.
#include "server/store/sqlite_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/store/keys.h"

namespace eplb::sqlite {

absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use) {
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, statement.Step());
    if (!more) return absl::OkStatus();
    const int checksum_column = statement.num_columns() - 1;
    Row row;
    for (int column = 0; column < checksum_column; ++column) {
      row.push_back(statement.CellAt(column));
    }
    const auto checked = std::span<const Cell>(row).subspan(first_checked);
    if (statement.CellAt(checksum_column) != Cell(ChecksumOf(checked))) {
      return DataLoss(statement.path(), ": a row of ", what, " does not fit its checksum");
    }
    EPLB_RETURN_IF_ERROR(use(row));
  }
}

absl::Status PutRow(Connection& connection, const std::string& key, const std::string& value) {
  Row row = {key, Bytes{value}};
  row.emplace_back(ChecksumOf(row));
  return connection.Run("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", row);
}

absl::Status ApplyBatch(Connection& connection, const Batch& batch) {
  for (const std::string& prefix : batch.deleted_prefixes) {
    EPLB_RETURN_IF_ERROR(connection.Run("DELETE FROM rows WHERE key >= ? AND key < ?",
                                        {prefix, EndOfPrefix(prefix)}));
  }
  for (const std::string& key : batch.deletes) {
    EPLB_RETURN_IF_ERROR(connection.Run("DELETE FROM rows WHERE key = ?", {key}));
  }
  for (const auto& [key, value] : batch.puts) {
    EPLB_RETURN_IF_ERROR(PutRow(connection, key, value));
  }
  return absl::OkStatus();
}

absl::Status CheckEveryRow(Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(
      Statement rows,
      connection.Prepare("SELECT * FROM rows WHERE (key < ? OR key >= ?) "
                         "AND (key < ? OR key >= ?)",
                         {std::string(kWindowKeys), EndOfPrefix(kWindowKeys),
                          std::string(kTypicalLoadKeys), EndOfPrefix(kTypicalLoadKeys)}));
  return ForEachRow(std::move(rows), "the store", 0, [](const Row&) { return absl::OkStatus(); });
}

KeyReader::Pairs ConnectionReader::Select(const std::string& sql, const Row& values,
                                          bool with_values) const {
  if (!status_.ok()) return {};
  absl::StatusOr<Statement> rows = connection_.Prepare(sql, values);
  Pairs pairs;
  if (!rows.ok()) {
    status_ = rows.status();
  } else if (with_values) {
    status_ = ForEachRow(*std::move(rows), "the store", 0, [&pairs](const Row& row) {
      pairs.emplace_back(std::get<std::string>(row[0]), std::get<Bytes>(row[1]).bytes);
      return absl::OkStatus();
    });
  } else {
    absl::StatusOr<bool> more;
    while ((more = rows->Step()).ok() && *more) pairs.emplace_back(rows->Bytes(0), "");
    status_ = more.status();
  }
  return status_.ok() ? pairs : Pairs();
}

std::optional<std::string> ConnectionReader::Get(const std::string& key) const {
  Pairs found = Select("SELECT * FROM rows WHERE key = ?", {key}, true);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front().second));
}

KeyReader::Pairs ConnectionReader::Find(const KeyRange& range) const {
  return Select(absl::StrCat("SELECT ", range.with_values ? "*" : "key",
                             " FROM rows WHERE key > ? AND key < ? ORDER BY key ",
                             range.reverse ? "DESC" : "ASC", " LIMIT ?"),
                {std::max(range.prefix, range.after), EndOfPrefix(range.prefix), range.limit},
                range.with_values);
}

int64_t ConnectionReader::Count(const std::string& prefix) const {
  if (!status_.ok()) return 0;
  const absl::StatusOr<int64_t> count = connection_.FirstInteger(
      "SELECT count(*) FROM rows WHERE key > ? AND key < ?", {prefix, EndOfPrefix(prefix)});
  status_ = count.status();
  return count.value_or(0);
}

}  // namespace eplb::sqlite
