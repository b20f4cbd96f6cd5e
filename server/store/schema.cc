// The table of rows: its text, creation and check, and the migration of older databases.
#include "server/store/schema.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/store/keys.h"
#include "server/store/old_tables.h"
#include "server/store/opening.h"
#include "server/store/sqlite_rows.h"

namespace eplb {
namespace {

constexpr int64_t kApplicationId = 0x45504c42;  // "EPLB"
constexpr char kFileSchemaKey[] =
    "file_schema";  // user_version again, because a header has no checksum

// The text is compared with the file's: not a blank may change without a new kStoreSchema.
constexpr char kTable[] =
    "CREATE TABLE rows(key TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT "
    "NULL) STRICT";

absl::Status Damaged(const std::string& path, const std::string& why) {
  return DataLoss(path, ": the database is damaged: ", why);
}

absl::Status CreateTable(sqlite::Connection& connection) {
  EPLB_RETURN_IF_ERROR(connection.Execute(absl::StrCat(
      kTable, "; PRAGMA application_id=", kApplicationId, "; PRAGMA user_version=", kStoreSchema)));
  return sqlite::PutRow(connection, kFileSchemaKey, absl::StrCat(kStoreSchema));
}

absl::Status CreateDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_RETURN_IF_ERROR(CreateTable(connection));
  const std::optional<absl::Time> moved_aside = MovedAsideAt(path);
  if (!moved_aside) return absl::OkStatus();
  return sqlite::PutRow(connection, kMovedAsideKey, absl::StrCat(absl::ToUnixMicros(*moved_aside)));
}

absl::Status CheckIntegrity(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string check, connection.FirstText("PRAGMA integrity_check(1)"));
  return check == "ok" ? absl::OkStatus() : Damaged(path, check);
}

// Checks version, table and rows.
absl::Status CheckContent(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  const bool is_current =
      sqlite::ConnectionReader(&connection).Get(kFileSchemaKey) == absl::StrCat(kStoreSchema);
  if (version > kStoreSchema && !is_current) {
    return FailedPrecondition(path, ": written by a newer eplbd (schema ", version,
                              ", this one knows ", kStoreSchema, ")");
  }
  if (version != kStoreSchema) return Damaged(path, absl::StrCat("schema version ", version));
  EPLB_ASSIGN_OR_RETURN(
      const std::string found,
      connection.FirstText(
          "SELECT group_concat(sql, ';') FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"));
  if (found != kTable) return Damaged(path, "its tables are not those of this schema");
  if (!is_current) return Damaged(path, "its schema version");
  return sqlite::CheckEveryRow(connection);
}

// True for a sound header of an earlier schema.
absl::StatusOr<bool> IsOlder(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  return version >= 1 && version < kStoreSchema && SchemaOfOldTables(connection) == version;
}

absl::Status Migrate(sqlite::Connection& connection) {
  EPLB_RETURN_IF_ERROR(CreateTable(connection));
  EPLB_RETURN_IF_ERROR(CopyOldTables(connection, connection));
  return DropOldTables(connection);
}

}  // namespace

absl::Status PrepareDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t tables,
                        connection.FirstInteger("SELECT count(*) FROM sqlite_schema"));
  // Counts the table of today as the three old ones: one table of another program may have a name
  // of them.
  EPLB_ASSIGN_OR_RETURN(
      const int64_t ours,
      connection.FirstInteger("SELECT sum(iif(sql = ?1, 3, 1)) FROM sqlite_schema WHERE sql = ?1 "
                              "OR (type = 'table' AND name IN ('leadership', 'jobs', 'events'))",
                              {std::string(kTable)}));
  EPLB_ASSIGN_OR_RETURN(const int64_t id, connection.FirstInteger("PRAGMA application_id"));
  if (id != kApplicationId && ours < 3 && (tables > 0 || id != 0)) {
    return FailedPrecondition(path, ": this is a database of another program");
  }
  if (!connection.CanWrite()) {
    if (access(path.c_str(), W_OK) == 0) return Damaged(path, "its header forbids to write it");
    return Unavailable(path, ": the file cannot be written");
  }
  EPLB_RETURN_IF_ERROR(connection.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"));
  if (tables == 0 && id == 0) {
    return connection.Transact(sqlite::kToWrite, [&] { return CreateDatabase(connection, path); });
  }
  EPLB_RETURN_IF_ERROR(CheckIntegrity(connection, path));
  if (id != kApplicationId) return Damaged(path, "its application id");
  EPLB_ASSIGN_OR_RETURN(const bool is_older, IsOlder(connection));
  if (is_older) {
    EPLB_RETURN_IF_ERROR(
        connection.Transact(sqlite::kToWrite, [&connection] { return Migrate(connection); }));
  }
  return CheckContent(connection, path);
}

absl::Status CheckDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t id, connection.FirstInteger("PRAGMA application_id"));
  EPLB_ASSIGN_OR_RETURN(const bool is_older, IsOlder(connection));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  if (id != kApplicationId || (version != kStoreSchema && !is_older)) {
    return FailedPrecondition(path, ": no store of schema 1..", kStoreSchema,
                              ", which alone can be read");
  }
  EPLB_RETURN_IF_ERROR(CheckIntegrity(connection, path));
  if (!is_older) return CheckContent(connection, path);
  // The file stays as it is until it can be written. Until then its content is read from memory.
  EPLB_ASSIGN_OR_RETURN(sqlite::Connection copy, sqlite::Connection::Open(":memory:", false));
  EPLB_RETURN_IF_ERROR(CreateTable(copy));
  EPLB_RETURN_IF_ERROR(CopyOldTables(connection, copy));
  connection = std::move(copy);
  return absl::OkStatus();
}

}  // namespace eplb
