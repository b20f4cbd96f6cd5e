#include "server/store/sqlite.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/status_macros.h"
#include "placement/digest.h"

namespace eplb::sqlite {

namespace {

constexpr int kBusyTimeoutMs = 2000;

// True for what a network file system without locks or without shared maps answers.
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
  // SQLITE_ERROR: our statements are fixed, so it is the file that does not fit them.
  for (const int damage : {SQLITE_CORRUPT, SQLITE_NOTADB, SQLITE_FORMAT, SQLITE_ERROR}) {
    if (primary == damage) return absl::DataLossError(text);
  }
  return absl::UnavailableError(text);
}

}  // namespace

Statement& Statement::Bind(int64_t value) {
  const int result = sqlite3_bind_int64(statement_.get(), ++bound_, value);
  if (bind_result_ == SQLITE_OK) bind_result_ = result;
  return *this;
}

Statement& Statement::BindText(const std::string& value) {
  const int result = sqlite3_bind_text64(statement_.get(), ++bound_, value.data(), value.size(),
                                         SQLITE_TRANSIENT, SQLITE_UTF8);
  if (bind_result_ == SQLITE_OK) bind_result_ = result;
  return *this;
}

Statement& Statement::BindBytes(const std::string& value) {
  const int result =
      sqlite3_bind_blob64(statement_.get(), ++bound_, value.data(), value.size(), SQLITE_TRANSIENT);
  if (bind_result_ == SQLITE_OK) bind_result_ = result;
  return *this;
}

Statement& Statement::BindNull() {
  const int result = sqlite3_bind_null(statement_.get(), ++bound_);
  if (bind_result_ == SQLITE_OK) bind_result_ = result;
  return *this;
}

absl::StatusOr<bool> Statement::Step() {
  sqlite3* connection = sqlite3_db_handle(statement_.get());
  if (bind_result_ != SQLITE_OK) return ErrorOf(connection, bind_result_, path_);
  const int result = sqlite3_step(statement_.get());
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return ErrorOf(connection, result, path_);
}

absl::Status Statement::Run() {
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) return absl::OkStatus();
  }
}

int64_t Statement::Integer(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

int Statement::Kind(int column) const { return sqlite3_column_type(statement_.get(), column); }

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
  // In a URI these three begin something else.
  const std::string escaped = absl::StrReplaceAll(path, {{"%", "%25"}, {"?", "%3f"}, {"#", "%23"}});
  return OpenAs(absl::StrCat("file:", escaped, "?immutable=1"), path,
                SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
}

absl::StatusOr<Statement> Connection::Prepare(std::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int result = sqlite3_prepare_v2(connection_.get(), sql.data(), static_cast<int>(sql.size()),
                                        &raw, nullptr);
  std::unique_ptr<sqlite3_stmt, FinalizeStatement> statement(raw);
  if (result != SQLITE_OK) return ErrorOf(connection_.get(), result, path_);
  return Statement(std::move(statement), path_);
}

absl::Status Connection::Execute(const std::string& sql) {
  const int result = sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return result == SQLITE_OK ? absl::OkStatus() : ErrorOf(connection_.get(), result, path_);
}

absl::StatusOr<std::string> Connection::FirstText(std::string_view sql) {
  EPLB_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  EPLB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Bytes(0) : std::string();
}

absl::StatusOr<int64_t> Connection::FirstInteger(std::string_view sql) {
  EPLB_ASSIGN_OR_RETURN(Statement statement, Prepare(sql));
  EPLB_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Integer(0) : 0;
}

bool Connection::CanWrite() const { return sqlite3_db_readonly(connection_.get(), "main") == 0; }

namespace {

void Append(uint64_t number, std::string* out) {
  for (uint32_t shift = 0; shift < 64; shift += 8) {
    out->push_back(static_cast<char>((number >> shift) & 0xffU));
  }
}

void AppendText(const std::string& text, std::string* out) {
  Append(text.size(), out);
  out->append(text);
}

void Append(const Cell& cell, std::string* out) {
  out->push_back(static_cast<char>(cell.index()));
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    Append(static_cast<uint64_t>(*integer), out);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    AppendText(*text, out);
  } else if (const auto* bytes = std::get_if<Bytes>(&cell)) {
    AppendText(bytes->bytes, out);
  }
}

constexpr size_t kNumberBytes = 8;

std::optional<uint64_t> TakeNumber(std::string_view* bytes) {
  if (bytes->size() < kNumberBytes) return std::nullopt;
  uint64_t number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    number |= uint64_t{static_cast<uint8_t>((*bytes)[i])} << (8 * i);
  }
  bytes->remove_prefix(kNumberBytes);
  return number;
}

std::optional<std::string> TakeText(std::string_view* bytes) {
  const std::optional<uint64_t> size = TakeNumber(bytes);
  if (!size || *size > bytes->size()) return std::nullopt;
  std::string text(bytes->substr(0, *size));
  bytes->remove_prefix(*size);
  return text;
}

// REQUIRES: bytes are left.
std::optional<Cell> TakeCell(std::string_view* bytes) {
  const auto kind = static_cast<size_t>(static_cast<unsigned char>(bytes->front()));
  bytes->remove_prefix(1);
  if (kind == Cell().index()) return Cell();
  if (kind == Cell(int64_t{}).index()) {
    const std::optional<uint64_t> number = TakeNumber(bytes);
    if (!number) return std::nullopt;
    return Cell(static_cast<int64_t>(*number));
  }
  std::optional<std::string> text = TakeText(bytes);
  if (!text) return std::nullopt;
  if (kind == Cell(std::string()).index()) return Cell(*std::move(text));
  if (kind == Cell(Bytes{}).index()) return Cell(Bytes{*std::move(text)});
  return std::nullopt;
}

void Bind(const Cell& cell, Statement& statement) {
  if (const auto* integer = std::get_if<int64_t>(&cell)) {
    statement.Bind(*integer);
  } else if (const auto* text = std::get_if<std::string>(&cell)) {
    statement.BindText(*text);
  } else if (const auto* bytes = std::get_if<Bytes>(&cell)) {
    statement.BindBytes(bytes->bytes);
  } else {
    statement.BindNull();
  }
}

Cell CellAt(const Statement& statement, int column) {
  switch (statement.Kind(column)) {
    case SQLITE_INTEGER:
      return statement.Integer(column);
    case SQLITE_TEXT:
      return statement.Bytes(column);
    case SQLITE_BLOB:
      return sqlite::Bytes{statement.Bytes(column)};
    default:
      return std::monostate();
  }
}

}  // namespace

int64_t ChecksumOf(std::span<const Cell> cells) {
  std::string bytes;
  for (const Cell& cell : cells) Append(cell, &bytes);
  return Sha256(bytes).VoteBits();
}

std::string RowToBytes(const Row& row) {
  std::string bytes;
  for (const Cell& cell : row) Append(cell, &bytes);
  Append(static_cast<uint64_t>(Sha256(bytes).VoteBits()), &bytes);
  return bytes;
}

absl::StatusOr<Row> RowFromBytes(std::string_view bytes, const std::string& what) {
  const absl::Status damaged =
      absl::DataLossError(absl::StrCat(what, " does not fit its checksum"));
  if (bytes.size() < kNumberBytes) return damaged;
  const std::string_view cells = bytes.substr(0, bytes.size() - kNumberBytes);
  std::string_view rest = bytes.substr(cells.size());
  const std::optional<uint64_t> checksum = TakeNumber(&rest);
  const Digest digest = Sha256({cells.data(), cells.size()});
  if (*checksum != static_cast<uint64_t>(digest.VoteBits())) return damaged;
  Row row;
  for (rest = cells; !rest.empty();) {
    std::optional<Cell> cell = TakeCell(&rest);
    if (!cell) return absl::DataLossError(absl::StrCat(what, " has an unknown format"));
    row.push_back(*std::move(cell));
  }
  return row;
}

absl::Status Insert(Connection& connection, std::string_view table, std::string_view columns,
                    const Row& row, size_t first_checked) {
  std::string sql = absl::StrCat("INSERT OR REPLACE INTO ", std::string(table));
  if (!columns.empty()) absl::StrAppend(&sql, "(", std::string(columns), ")");
  absl::StrAppend(&sql, " VALUES (");
  for (size_t i = 0; i < row.size(); ++i) absl::StrAppend(&sql, "?, ");
  absl::StrAppend(&sql, "?)");
  EPLB_ASSIGN_OR_RETURN(Statement statement, connection.Prepare(sql));
  for (const Cell& cell : row) Bind(cell, statement);
  return statement.Bind(ChecksumOf(std::span<const Cell>(row).subspan(first_checked))).Run();
}

absl::Status ForEachRow(Statement statement, const std::string& what, size_t first_checked,
                        const std::function<absl::Status(const Row&)>& use) {
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, statement.Step());
    if (!more) return absl::OkStatus();
    const int checksum_column = statement.num_columns() - 1;
    Row row;
    for (int column = 0; column < checksum_column; ++column) {
      row.push_back(CellAt(statement, column));
    }
    const auto checked = std::span<const Cell>(row).subspan(first_checked);
    if (statement.Kind(checksum_column) != SQLITE_INTEGER ||
        statement.Integer(checksum_column) != ChecksumOf(checked)) {
      return absl::DataLossError(
          absl::StrCat(statement.path(), ": a row of ", what, " does not fit its checksum"));
    }
    EPLB_RETURN_IF_ERROR(use(row));
  }
}

}  // namespace eplb::sqlite
