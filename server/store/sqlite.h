// SQLite's connection and statement as owners that report Status.
#ifndef EPLB_SERVER_STORE_SQLITE_H_
#define EPLB_SERVER_STORE_SQLITE_H_

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"

namespace eplb::sqlite {

struct CloseConnection {
  void operator()(sqlite3* connection) const noexcept { (void)sqlite3_close_v2(connection); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const noexcept { (void)sqlite3_finalize(statement); }
};

// One execution of a statement; values are bound in order, columns read after Step() gave true.
class Statement {
 public:
  Statement& Bind(int64_t value);
  Statement& BindText(const std::string& value);
  Statement& BindBytes(const std::string& value);
  Statement& BindNull();
  // True with a row, false at the end. errors: those of Connection.
  absl::StatusOr<bool> Step();
  // Steps to the end. errors: as Step.
  absl::Status Run();

  int64_t Integer(int column) const;
  std::string Bytes(int column) const;  // text or blob
  int Kind(int column) const;           // SQLITE_INTEGER, ..
  int num_columns() const;
  const std::string& path() const { return path_; }

 private:
  friend class Connection;
  Statement(std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement, std::string path)
      : statement_(std::move(statement)), path_(std::move(path)) {}

  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement_;
  std::string path_;
  int bound_ = 0;
  int bind_result_ = SQLITE_OK;
};

// errors of every call, each naming the path: DataLoss for a damaged file or one that is not a
// database or does not have the tables that a statement names, Unavailable for anything else (no
// space, no permission, busy). threads: one at a time.
class Connection {
 public:
  static absl::StatusOr<Connection> Open(const std::string& path, bool read_only);
  // To read a file that nobody writes while it is open, and that has no write-ahead log.
  static absl::StatusOr<Connection> OpenImmutable(const std::string& path);
  absl::StatusOr<Statement> Prepare(std::string_view sql);
  // Several statements without values or rows.
  absl::Status Execute(const std::string& sql);
  // The first column of the first row, e.g. of a pragma.
  absl::StatusOr<std::string> FirstText(std::string_view sql);
  // Likewise; 0 without a row.
  absl::StatusOr<int64_t> FirstInteger(std::string_view sql);
  // False for a file that can only be read.
  bool CanWrite() const;

 private:
  Connection(std::unique_ptr<sqlite3, CloseConnection> connection, std::string path)
      : connection_(std::move(connection)), path_(std::move(path)) {}

  // `name`: what SQLite is given for `path`.
  static absl::StatusOr<Connection> OpenAs(const std::string& name, const std::string& path,
                                           int flags);

  std::unique_ptr<sqlite3, CloseConnection> connection_;
  std::string path_;
};

// One transaction of a connection.

// Taken back when it ends without a Commit that is OK. `connection` outlives it.
class Transaction {
 public:
  static absl::StatusOr<Transaction> Begin(Connection* connection) {
    EPLB_RETURN_IF_ERROR(connection->Execute("BEGIN IMMEDIATE"));
    return Transaction(connection);
  }
  Transaction(Transaction&& other) noexcept
      : connection_(std::exchange(other.connection_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction() {
    if (connection_ != nullptr) (void)connection_->Execute("ROLLBACK");
  }

  absl::Status Commit() {
    EPLB_RETURN_IF_ERROR(connection_->Execute("COMMIT"));
    connection_ = nullptr;
    return absl::OkStatus();
  }

 private:
  explicit Transaction(Connection* connection) : connection_(connection) {}
  Connection* connection_;
};

// Rows with a checksum, so that no damaged cell is ever taken for content.

struct Bytes {
  std::string bytes;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
// NULL, INTEGER, TEXT, BLOB: all that our tables have.
using Cell = std::variant<std::monostate, int64_t, std::string, Bytes>;
using Row = std::vector<Cell>;

// 63 bits of the SHA-256 over the cells' kinds, lengths and bytes.
int64_t ChecksumOf(std::span<const Cell> cells);

// The row with its checksum as one text of bytes, for a store without tables, and back.
std::string RowToBytes(const Row& row);
// errors: DataLoss, naming `what`, for bytes that RowToBytes did not write.
absl::StatusOr<Row> RowFromBytes(std::string_view bytes, const std::string& what);

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

#endif  // EPLB_SERVER_STORE_SQLITE_H_
