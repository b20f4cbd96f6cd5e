// SQLite's connection, statement and transaction as owners that report Status.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/checked_rows.h"

namespace eplb::sqlite {

struct CloseConnection {
  void operator()(sqlite3* connection) const noexcept { (void)sqlite3_close_v2(connection); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const noexcept { (void)sqlite3_finalize(statement); }
};

// One execution of a statement. Columns are read after Step() returned true.
class Statement {
 public:
  // Returns true with a row, and false at the end. errors: those of Connection.
  absl::StatusOr<bool> Step();

  int64_t Integer(int column) const;
  std::string Bytes(int column) const;  // text or blob
  Cell CellAt(int column) const;
  int num_columns() const;
  const std::string& path() const { return path_; }

 private:
  friend class Connection;
  Statement(std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement, std::string path)
      : statement_(std::move(statement)), path_(std::move(path)) {}
  void Bind(const Row& values);

  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement_;
  std::string path_;
  int bind_result_ = SQLITE_OK;
};

inline constexpr char kReadOnly[] = "BEGIN";
inline constexpr char kToWrite[] = "BEGIN IMMEDIATE";

// A database, open. errors of every call, each with the path: DataLoss for a damaged file, for a
// file that is no database, and for a database without the tables that a statement names;
// Unavailable for anything else (no space, no permission, busy). threads: one at a time.
class Connection {
 public:
  static absl::StatusOr<Connection> Open(const std::string& path, bool read_only);
  // Reads a file that no process writes while it is open, and that has no write-ahead log.
  static absl::StatusOr<Connection> OpenImmutable(const std::string& path);
  // values: of the question marks in `sql`, in order.
  absl::StatusOr<Statement> Prepare(std::string_view sql, const Row& values = {});
  // Runs one statement to its end.
  absl::Status Run(std::string_view sql, const Row& values = {});
  // Runs several statements without values or rows.
  absl::Status Execute(const std::string& sql);
  // Calls `body` in a transaction, begun by this statement: all of its changes last, or none.
  absl::Status Transact(const char* begin, const std::function<absl::Status()>& body);
  // Returns the first column of the first row, for example of a pragma; empty without a row.
  absl::StatusOr<std::string> FirstText(std::string_view sql);
  // Returns the first column of the first row; 0 without a row.
  absl::StatusOr<int64_t> FirstInteger(std::string_view sql, const Row& values = {});
  // False for a file that can only be read.
  bool CanWrite() const;

 private:
  Connection(std::unique_ptr<sqlite3, CloseConnection> connection, std::string path)
      : connection_(std::move(connection)), path_(std::move(path)) {}

  // name: what SQLite opens for `path`.
  static absl::StatusOr<Connection> OpenAs(const std::string& name, const std::string& path,
                                           int flags);

  std::unique_ptr<sqlite3, CloseConnection> connection_;
  std::string path_;
};

}  // namespace eplb::sqlite
