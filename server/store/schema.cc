// The text of the schema, its creation, migration and check.
#include "server/store/schema.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "server/store/opening.h"
#include "server/store/sqlite.h"
#include "server/store/tables.h"

namespace eplb {
namespace {

constexpr int64_t kApplicationId = 0x45504c42;  // "EPLB"

struct Entry {
  int64_t since;  // the schema that began with it
  const char* type;
  const char* name;
  const char* table;
  const char* sql;
};

// In the order of their names. The texts are compared with the file's: not a blank may change
// without a new kStoreSchema.
constexpr Entry kEntries[] = {
    // record: a JobEvent of proto/eplb/v1/query.proto, without what has a column.
    {1, "table", "events", "events",
     "CREATE TABLE events(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL,"
     " by_operator INTEGER NOT NULL, record BLOB NOT NULL, checksum INTEGER NOT NULL) STRICT"},
    {1, "index", "events_by_operator", "events",
     "CREATE INDEX events_by_operator ON events(job, by_operator, sequence)"},
    {1, "index", "events_of_job", "events", "CREATE INDEX events_of_job ON events(job, sequence)"},
    // version, digest: of its placement; 0 and empty without one. run_end, memory: a RunEnd, empty
    // while the run lives, and a JobMemory of proto/eplb/v1/types.proto.
    {1, "table", "jobs", "jobs",
     "CREATE TABLE jobs(job TEXT PRIMARY KEY, version INTEGER NOT NULL, digest BLOB NOT NULL,"
     " next_version INTEGER NOT NULL, run_end BLOB NOT NULL, memory BLOB NOT NULL,"
     " checksum INTEGER NOT NULL) STRICT"},
    // moved_aside_unix_micros: when a damaged database was, in whose place this one is.
    {1, "table", "leadership", "leadership",
     "CREATE TABLE leadership(only INTEGER PRIMARY KEY CHECK (only = 0), term INTEGER NOT NULL,"
     " schema INTEGER NOT NULL, moved_aside_unix_micros INTEGER, checksum INTEGER NOT NULL)"
     " STRICT"},
    {1, "table", "placements", "placements",
     "CREATE TABLE placements(job TEXT NOT NULL, version INTEGER NOT NULL, written INTEGER NOT "
     "NULL,"
     " placement BLOB NOT NULL, digest BLOB NOT NULL, checksum INTEGER NOT NULL,"
     " PRIMARY KEY (job, version, digest)) STRICT"},
    // record: a Plan of proto/eplb/v1/query.proto.
    {1, "table", "plans", "plans",
     "CREATE TABLE plans(job TEXT NOT NULL, plan INTEGER NOT NULL, record BLOB NOT NULL,"
     " checksum INTEGER NOT NULL, PRIMARY KEY (job, plan)) STRICT"},
    {1, "table", "requests", "requests",
     "CREATE TABLE requests(sequence INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL,"
     " request_id TEXT NOT NULL, outcome TEXT NOT NULL, checksum INTEGER NOT NULL,"
     " UNIQUE (job, request_id)) STRICT"},
    // record: a Window of proto/eplb/v1/query.proto, without what has a column.
    {2, "table", "windows", "windows",
     "CREATE TABLE windows(window INTEGER PRIMARY KEY, job TEXT NOT NULL, record BLOB NOT NULL,"
     " checksum INTEGER NOT NULL) STRICT"},
    {2, "index", "windows_of_job", "windows",
     "CREATE INDEX windows_of_job ON windows(job, window)"},
};

absl::Status Damaged(const std::string& path, const std::string& why) {
  return absl::DataLossError(absl::StrCat(path, ": the database is damaged: ", why));
}

// Adds the tables and indices that came after `schema` to a database of that schema.
absl::Status CreateTables(sqlite::Connection& connection, int64_t schema) {
  for (const Entry& entry : kEntries) {
    if (entry.since > schema) EPLB_RETURN_IF_ERROR(connection.Execute(entry.sql));
  }
  return connection.Execute(absl::StrCat("PRAGMA application_id=", kApplicationId,
                                         "; PRAGMA user_version=", kStoreSchema));
}

absl::Status CreateDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&connection));
  EPLB_RETURN_IF_ERROR(CreateTables(connection, /*schema=*/0));
  EPLB_RETURN_IF_ERROR(InsertLeadership(connection, {.moved_aside = MovedAsideAt(path)}));
  return transaction.Commit();
}

absl::Status CheckSchemaText(sqlite::Connection& connection, const std::string& path,
                             int64_t schema) {
  std::string expected;
  for (const Entry& entry : kEntries) {
    if (entry.since > schema) continue;
    absl::StrAppend(&expected, entry.type, " ", entry.name, " ", entry.table, " ", entry.sql, ";");
  }
  EPLB_ASSIGN_OR_RETURN(
      const std::string found,
      connection.FirstText("SELECT group_concat(type || ' ' || name || ' ' || tbl_name || ' ' || "
                           "sql || ';', '') FROM (SELECT * FROM sqlite_schema WHERE name NOT LIKE "
                           "'sqlite_%' ORDER BY name)"));
  return found == expected ? absl::OkStatus()
                           : Damaged(path, "its tables are not those of this schema");
}

// The schema in the row of leadership, which the file's header may contradict; 0 without a row.
int64_t SchemaOfRow(sqlite::Connection& connection) {
  const absl::StatusOr<Leadership> leadership = ReadLeadership(connection);
  return leadership.ok() ? leadership->schema : 0;
}

absl::Status CheckIntegrity(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string check, connection.FirstText("PRAGMA integrity_check(1)"));
  return check == "ok" ? absl::OkStatus() : Damaged(path, check);
}

absl::Status CheckVersion(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  const bool current = SchemaOfRow(connection) == kStoreSchema;
  if (version == kStoreSchema || current) {
    if (version != kStoreSchema || !current) return Damaged(path, "its schema version");
    return CheckSchemaText(connection, path, kStoreSchema);
  }
  if (version < kStoreSchema) return Damaged(path, absl::StrCat("schema version ", version));
  return absl::FailedPreconditionError(absl::StrCat(path, ": written by a newer eplbd (schema ",
                                                    version, ", this one knows ", kStoreSchema,
                                                    ")"));
}

// Brings a database of an earlier release up to date: all of it or, after a crash, nothing.
absl::Status Migrate(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  const bool is_older = version >= 1 && version < kStoreSchema;
  if (!is_older || SchemaOfRow(connection) != version) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(CheckSchemaText(connection, path, version));
  EPLB_ASSIGN_OR_RETURN(const Leadership leadership, ReadLeadership(connection));
  EPLB_ASSIGN_OR_RETURN(sqlite::Transaction transaction, sqlite::Transaction::Begin(&connection));
  EPLB_RETURN_IF_ERROR(CreateTables(connection, version));
  EPLB_RETURN_IF_ERROR(InsertLeadership(connection, leadership));
  return transaction.Commit();
}

}  // namespace

absl::Status PrepareDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t tables,
                        connection.FirstInteger("SELECT count(*) FROM sqlite_schema"));
  EPLB_ASSIGN_OR_RETURN(
      const int64_t ours,
      connection.FirstInteger("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN "
                              "('leadership', 'jobs', 'events')"));
  EPLB_ASSIGN_OR_RETURN(const int64_t id, connection.FirstInteger("PRAGMA application_id"));
  if (id != kApplicationId && ours < 3 && (tables > 0 || id != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": this is a database of another program"));
  }
  if (!connection.CanWrite()) {
    if (access(path.c_str(), W_OK) == 0) return Damaged(path, "its header forbids to write it");
    return absl::UnavailableError(absl::StrCat(path, ": the file cannot be written"));
  }
  EPLB_RETURN_IF_ERROR(
      connection.Execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                         "PRAGMA foreign_keys=ON;"));
  if (tables == 0 && id == 0) return CreateDatabase(connection, path);
  EPLB_RETURN_IF_ERROR(CheckIntegrity(connection, path));
  if (id != kApplicationId) return Damaged(path, "its application id");
  EPLB_RETURN_IF_ERROR(Migrate(connection, path));
  return CheckVersion(connection, path);
}

absl::Status CheckDatabase(sqlite::Connection& connection, const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const int64_t id, connection.FirstInteger("PRAGMA application_id"));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, connection.FirstInteger("PRAGMA user_version"));
  const bool is_older = version >= 1 && version < kStoreSchema;
  if (id != kApplicationId || (version != kStoreSchema && !is_older)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": no store of schema 1..", kStoreSchema, ", which alone can be read"));
  }
  EPLB_RETURN_IF_ERROR(CheckIntegrity(connection, path));
  if (!is_older || SchemaOfRow(connection) != version) return CheckVersion(connection, path);
  return CheckSchemaText(connection, path, version);  // until it can be written, and so migrated
}

}  // namespace eplb
