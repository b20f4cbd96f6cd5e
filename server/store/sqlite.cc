// The SQLite calls behind Connection and Statement, and their errors as Status.
#include "server/store/sqlite.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/status_macros.h"

namespace eplb::sqlite {

namespace {

constexpr int kBusyTimeoutMs = 2000;

// Returns true for an error of a network file system without locks or without shared maps.
bool NeedsLocalDisk(int result) {
  for (const int one : {SQLITE_IOERR_LOCK, SQLITE_IOERR_RDLOCK, SQLITE_IOERR_UNLOCK,
                        SQLITE_IOERR_CHECKRESERVEDLOCK, SQLITE_IOERR_SHMOPEN, SQLITE_IOERR_SHMSIZE,
                        SQLITE_IOERR_SHMLOCK, SQLITE_IOERR_SHMMAP, SQLITE_PROTOCOL}) {
    if (result == one) return true;
  }
  return false;
}

absl::Status ErrorOf(sqlite3* connection, int result, const std::string& path) {
  std::string text = absl::StrCat(
      path, ": ", connection != nullptr ? sqlite3_errmsg(connection) : sqlite3_errstr(result));
  if (NeedsLocalDisk(result)) {
    text += ": SQLite can neither lock nor map its files there; put the store on a local disk";
  }
  const int primary = result & 0xff;  // the rest of a result is its extension
  // The statements are fixed, so SQLITE_ERROR means that the file does not fit them.
  for (const int damage : {SQLITE_CORRUPT, SQLITE_NOTADB, SQLITE_FORMAT, SQLITE_ERROR}) {
    if (primary == damage) return absl::DataLossError(text);
  }
  return absl::UnavailableError(text);
}

}  // namespace

void Statement::Bind(const Row& values) {
  sqlite3_stmt* const statement = statement_.get();
  for (size_t i = 0; i < values.size(); ++i) {
    const int index = static_cast<int>(i) + 1;
    int result = SQLITE_OK;
    if (const auto* integer = std::get_if<int64_t>(&values[i])) {
      result = sqlite3_bind_int64(statement, index, *integer);
    } else if (const auto* text = std::get_if<std::string>(&values[i])) {
      result = sqlite3_bind_text64(statement, index, text->data(), text->size(), SQLITE_TRANSIENT,
                                   SQLITE_UTF8);
    } else if (const auto* blob = std::get_if<sqlite::Bytes>(&values[i])) {
      result = sqlite3_bind_blob64(statement, index, blob->bytes.data(), blob->bytes.size(),
                                   SQLITE_TRANSIENT);
    } else {
      result = sqlite3_bind_null(statement, index);
    }
    if (bind_result_ == SQLITE_OK) bind_result_ = result;
  }
}

absl::StatusOr<bool> Statement::Step() {
  sqlite3* connection = sqlite3_db_handle(statement_.get());
  if (bind_result_ != SQLITE_OK) return ErrorOf(connection, bind_result_, path_);
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return ErrorOf(connection, result, path_);
}

int64_t Statement::Integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

Cell Statement::CellAt(int column) const {
  switch (sqlite3_column_type(statement_.get(), column)) {
    case SQLITE_INTEGER:
      return Integer(column);
    case SQLITE_TEXT:
      return Bytes(column);
    case SQLITE_BLOB:
      return sqlite::Bytes{Bytes(column)};
    default:
      return std::monostate();
  }
}

int Statement::num_columns() const { return sqlite3_column_count(statement_.get()); }

std::string Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  if (data == nullptr || size <= 0) return "";
  return {static_cast<const char*>(data), static_cast<size_t>(size)};
}

absl::StatusOr<Connection> Connection::OpenAs(const std::string& name, const std::string& path,
                                              int flags) {
  sqlite3* raw = nullptr;
  const int result = sqlite3_open_v2(name.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<sqlite3, CloseConnection> connection(raw);
  if (result != SQLITE_OK) return ErrorOf(raw, result, path);
  (void)sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  (void)sqlite3_extended_result_codes(raw, 1);
  return Connection(std::move(connection), path);
}

absl::StatusOr<Connection> Connection::Open(const std::string& path, bool read_only) {
  return OpenAs(path, path,
                read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
}

absl::StatusOr<Connection> Connection::OpenImmutable(const std::string& path) {
  // These three characters have a meaning of their own in a URI.
  const std::string escaped = absl::StrReplaceAll(path, {{"%", "%25"}, {"?", "%3f"}, {"#", "%23"}});
  return OpenAs(absl::StrCat("file:", escaped, "?immutable=1"), path,
                SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
}

absl::StatusOr<Statement> Connection::Prepare(std::string_view sql, const Row& values) {
  sqlite3_stmt* raw = nullptr;
  const int result = sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                        &raw, nullptr);
  Statement statement(std::unique_ptr<sqlite3_stmt, FinalizeStatement>(raw), path_);
  if (result != SQLITE_OK) return ErrorOf(connection_.get(), result, path_);
  statement.Bind(values);
  return statement;
}

absl::Status Connection::Run(std::string_view sql, const Row& values) {
  EPLB_ASSIGN_OR_RETURN(Statement statement, Prepare(sql, values));
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, statement.Step());
    if (!more) return absl::OkStatus();
  }
}

absl::Status Connection::Execute(const std::string& sql) {
  const int result = sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return result == SQLITE_OK ? absl::OkStatus() : ErrorOf(connection_.get(), result, path_);
}

absl::Status Connection::Transact(const char* begin, const std::function<absl::Status()>& body) {
  EPLB_RETURN_IF_ERROR(Execute(begin));
  absl::Status status = body();
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) (void)Execute("ROLLBACK");
  return status;
}

absl::StatusOr<std::string> Connection::FirstText(std::string_view sql) {
  EPLB_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  EPLB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Bytes(0) : std::string();
}

absl::StatusOr<int64_t> Connection::FirstInteger(std::string_view sql, const Row& values) {
  EPLB_ASSIGN_OR_RETURN(Statement statement, Prepare(sql, values));
  EPLB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Integer(0) : 0;
}

bool Connection::CanWrite() const { return sqlite3_db_readonly(connection_.get(), "main") == 0; }

}  // namespace eplb::sqlite
