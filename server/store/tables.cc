// Queries over whole tables, whose rows become the store's values.
#include "server/store/tables.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "server/store/checked_rows.h"

namespace eplb {
namespace {

using sqlite::Bytes;
using sqlite::Row;

// Returns which placements are kept, in the order in which they were written.
absl::StatusOr<std::vector<core::RanVersion>> ReadHistory(sqlite::Connection& connection,
                                                          const std::string& job) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT version, digest FROM placements WHERE job = ? ORDER BY written",
                         {job}));
  std::vector<core::RanVersion> history;
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return history;
    core::RanVersion ran{.version = rows.Integer(0)};
    const std::string digest = rows.Bytes(1);
    if (digest.size() != ran.digest.bytes.size()) {
      return absl::DataLossError("a row of placements has an unknown format");
    }
    std::copy(digest.begin(), digest.end(), ran.digest.bytes.begin());
    history.push_back(ran);
  }
}

// Returns the placement that the job's own row names; none if the row names none.
absl::StatusOr<std::optional<Placement>> CurrentPlacement(sqlite::Connection& connection,
                                                          const JobRow& job) {
  if (job.digest.empty()) return std::nullopt;
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT * FROM placements WHERE job = ? AND version = ? AND digest = ?",
                         {job.job, job.version, Bytes{job.digest}}));
  const std::string path = rows.path();
  EPLB_ASSIGN_OR_RETURN(std::vector<PlacementRow> found,
                        Collect(std::move(rows), "placements", 0,
                                [&path](const Row& row) { return PlacementRowOf(row, path); }));
  if (!found.empty()) return std::move(found.front().placement);
  return absl::DataLossError(
      absl::StrCat("version ", job.version, " of job ", job.job, " is not kept"));
}

}  // namespace

absl::StatusOr<Leadership> ReadLeadership(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(
      sqlite::Statement rows,
      connection.Prepare("SELECT term, schema, moved_aside_unix_micros, checksum FROM leadership"));
  EPLB_ASSIGN_OR_RETURN(const std::vector<Leadership> found,
                        Collect(std::move(rows), "leadership", 0, &LeadershipOf));
  if (found.size() == 1) return found.front();
  return absl::DataLossError(absl::StrCat("leadership has ", found.size(), " rows, expected 1"));
}

absl::Status InsertLeadership(sqlite::Connection& connection, const Leadership& leadership) {
  Row row = RowOf(leadership);
  row.insert(row.begin(), int64_t{0});
  return Insert(connection, "leadership", "only, term, schema, moved_aside_unix_micros, checksum",
                row, 1);
}

absl::StatusOr<std::vector<core::StoredJob>> ReadAllJobs(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement job_rows,
                        connection.Prepare("SELECT * FROM jobs ORDER BY job"));
  EPLB_ASSIGN_OR_RETURN(std::vector<JobRow> found, Collect(std::move(job_rows), "jobs", 0, &JobOf));
  std::vector<core::StoredJob> jobs;
  for (JobRow& row : found) {
    EPLB_ASSIGN_OR_RETURN(std::optional<Placement> placement, CurrentPlacement(connection, row));
    core::StoredJob job{.job = std::move(row.job),
                        .version = row.version,
                        .next_version = row.next_version,
                        .placement = std::move(placement),
                        .memory = std::move(row.memory),
                        .end = std::move(row.end)};
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement requests,
                          connection.Prepare("SELECT job, request_id, outcome, checksum FROM "
                                             "requests WHERE job = ? ORDER BY sequence",
                                             {job.job}));
    EPLB_ASSIGN_OR_RETURN(job.requests, Collect(std::move(requests), "requests", 0, &RequestOf));
    EPLB_ASSIGN_OR_RETURN(
        sqlite::Statement plans,
        connection.Prepare("SELECT * FROM plans WHERE job = ? ORDER BY plan", {job.job}));
    EPLB_ASSIGN_OR_RETURN(job.plans, Collect(std::move(plans), "plans", 0, &PlanOf));
    EPLB_ASSIGN_OR_RETURN(job.history, ReadHistory(connection, job.job));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

absl::StatusOr<std::vector<StoredWindow>> ReadAllWindows(sqlite::Connection& connection) {
  EPLB_ASSIGN_OR_RETURN(const int64_t tables,
                        connection.FirstInteger("SELECT count(*) FROM sqlite_schema WHERE type = "
                                                "'table' AND name = 'windows'"));
  if (tables == 0) return std::vector<StoredWindow>();
  EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows,
                        connection.Prepare("SELECT * FROM windows ORDER BY window"));
  return Collect(std::move(rows), "windows", 0, &WindowOf);
}

absl::StatusOr<bool> DropDamagedWindows(sqlite::Connection& connection) {
  const absl::Status read = ReadAllWindows(connection).status();
  if (!absl::IsDataLoss(read)) return read.ok() ? absl::StatusOr<bool>(false) : read;
  EPLB_RETURN_IF_ERROR(connection.Execute("DELETE FROM windows"));
  return true;
}

absl::Status CheckEveryRow(sqlite::Connection& connection) {
  struct Table {
    const char* query;
    size_t first_checked;
  };
  for (const Table& table :
       {Table{"SELECT * FROM leadership", 1}, Table{"SELECT * FROM placements", 0},
        Table{"SELECT * FROM plans", 0}, Table{"SELECT * FROM requests", 1},
        Table{"SELECT * FROM events", 1}}) {
    EPLB_ASSIGN_OR_RETURN(sqlite::Statement rows, connection.Prepare(table.query));
    EPLB_RETURN_IF_ERROR(ForEachRow(std::move(rows), table.query, table.first_checked,
                                    [](const Row&) { return absl::OkStatus(); }));
  }
  EPLB_RETURN_IF_ERROR(ReadLeadership(connection).status());
  return ReadAllJobs(connection).status();
}

}  // namespace eplb
