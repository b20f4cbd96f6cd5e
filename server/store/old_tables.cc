// Reads each old table whose rows, but for their key, were encoded as rows are today.
#include "server/store/old_tables.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "server/store/keys.h"
#include "server/store/sqlite_rows.h"

namespace eplb {
namespace {

using sqlite::Row;

int64_t IntegerAt(const Row& row, size_t column) {
  const auto* integer = column < row.size() ? std::get_if<int64_t>(&row[column]) : nullptr;
  return integer != nullptr ? *integer : 0;
}

std::string TextAt(const Row& row, size_t column) {
  const auto* text = column < row.size() ? std::get_if<std::string>(&row[column]) : nullptr;
  return text != nullptr ? *text : "";
}

struct OldTable {
  const char* name;
  int64_t since;         // schema
  size_t first_checked;  // column
  size_t first_kept;     // column
  std::string (*key)(const Row&);
};

// A comment names the columns before the checksum.
constexpr OldTable kTables[] = {
    // job, version, digest, next_version, run_end, memory
    {"jobs", 1, 0, 0, [](const Row& row) { return JobKey(TextAt(row, 0), "record"); }},
    // job, version, written, placement, digest
    {"placements", 1, 0, 0,
     [](const Row& row) {
       return PartKey(JobKey(TextAt(row, 0), "placement/"), IntegerAt(row, 2), 0);
     }},
    // job, plan, record
    {"plans", 1, 0, 0,
     [](const Row& row) { return Numbered(JobKey(TextAt(row, 0), "plan/"), IntegerAt(row, 1)); }},
    // sequence, job, request_id, outcome
    {"requests", 1, 1, 1,
     [](const Row& row) {
       return Numbered(JobKey(TextAt(row, 1), "request/"), IntegerAt(row, 0));
     }},
    // sequence, job, by_operator, record
    {"events", 1, 1, 0,
     [](const Row& row) {
       return Numbered(EventsKey(TextAt(row, 1), IntegerAt(row, 2) != 0), IntegerAt(row, 0));
     }},
    // window, job, record
    {"windows", 2, 0, 0,
     [](const Row& row) { return Numbered(WindowsKey(TextAt(row, 1)), IntegerAt(row, 0)); }}};

// Calls `use` with the row of leadership: only, term, schema, moved_aside_unix_micros.
absl::Status ReadLeadership(sqlite::Connection& connection,
                            const std::function<absl::Status(const Row&)>& use) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows, connection.Prepare("SELECT * FROM leadership"));
  return sqlite::ForEachRow(std::move(rows), "leadership", 1, use);
}

}  // namespace

int64_t SchemaOfOldTables(sqlite::Connection& connection) {
  int64_t schema = 0;
  const absl::Status read = ReadLeadership(connection, [&schema](const Row& row) {
    schema = IntegerAt(row, 2);
    return absl::OkStatus();
  });
  return read.ok() ? schema : 0;
}

absl::Status CopyOldTables(sqlite::Connection& from, sqlite::Connection& to) {
  const absl::Status copied = ReadLeadership(from, [&to](const Row& row) -> absl::Status {
    EPLB_RETURN_IF_ERROR(sqlite::PutRow(to, kTermKey, absl::StrCat(IntegerAt(row, 1))));
    const int64_t moved_aside = IntegerAt(row, 3);
    if (moved_aside == 0) return absl::OkStatus();
    return sqlite::PutRow(to, kMovedAsideKey, absl::StrCat(moved_aside));
  });
  EPLB_RETURN_IF_ERROR(copied);
  const int64_t schema = SchemaOfOldTables(from);
  for (const OldTable& table : kTables) {
    if (table.since > schema) continue;
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                          from.Prepare(absl::StrCat("SELECT * FROM ", table.name)));
    EPLB_RETURN_IF_ERROR(
        sqlite::ForEachRow(std::move(rows), table.name, table.first_checked, [&](const Row& row) {
          const Row kept(row.begin() + static_cast<ptrdiff_t>(table.first_kept), row.end());
          return sqlite::PutRow(to, table.key(row), sqlite::RowToBytes(kept));
        }));
  }
  return absl::OkStatus();
}

absl::Status DropOldTables(sqlite::Connection& connection) {
  for (const OldTable& table : kTables) {
    EPLB_RETURN_IF_ERROR(connection.Execute(absl::StrCat("DROP TABLE IF EXISTS ", table.name)));
  }
  return connection.Execute("DROP TABLE leadership");
}

}  // namespace eplb
