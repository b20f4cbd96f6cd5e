// The store's values as rows of its tables.
#ifndef EPLB_SERVER_STORE_VALUE_ROWS_H_
#define EPLB_SERVER_STORE_VALUE_ROWS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/placement.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"

namespace eplb {

// errors of every read: those of Connection; DataLoss for a row that does not fit its checksum or
// that no writer of ours wrote.

// The schema of this eplbd, in user_version and in the row of leadership.
inline constexpr int64_t kStoreSchema = 2;

struct Leadership {
  int64_t term = 0;
  int64_t schema = kStoreSchema;
  std::optional<absl::Time> moved_aside = std::nullopt;  // as Store
};
absl::StatusOr<Leadership> ReadLeadership(sqlite::Connection& connection);
absl::Status InsertLeadership(sqlite::Connection& connection, const Leadership& leadership);

// Values as rows without their checksums, and back. Cells are in the order of the tables' columns.

// The job's row without the placement; its digest names one of the job's placement rows.
struct JobRow {
  std::string job;
  int64_t version = 0;
  int64_t next_version = 0;
  std::string digest;
  std::optional<core::RunEnd> end;
  wire::JobMemory memory;
};
struct PlacementRow {
  int64_t version = 0;
  Placement placement;
};

// As the rows hold it.
std::string BytesOf(const Digest& digest);
sqlite::Row RowOf(const core::StoredJob& job);
// REQUIRES: job.placement.
sqlite::Row PlacementRowOf(const core::StoredJob& job, int64_t written);
sqlite::Row RowOf(const std::string& job, const core::DoneRequest& done);
sqlite::Row RowOf(const std::string& job, const core::Plan& plan);
sqlite::Row RowOf(const StoredEvent& event);
sqlite::Row RowOf(const StoredWindow& window);
absl::StatusOr<JobRow> JobOf(const sqlite::Row& row);
// where: for the error.
absl::StatusOr<PlacementRow> PlacementRowOf(const sqlite::Row& row, const std::string& where);
absl::StatusOr<core::DoneRequest> RequestOf(const sqlite::Row& row);
absl::StatusOr<core::Plan> PlanOf(const sqlite::Row& row);
absl::StatusOr<StoredEvent> EventOf(const sqlite::Row& row);
absl::StatusOr<StoredWindow> WindowOf(const sqlite::Row& row);

// The job's record, without its placement.
absl::Status InsertJob(sqlite::Connection& connection, const core::StoredJob& job);
// The job's placement as its newest one. written: rising within a job. REQUIRES: job.placement.
absl::Status InsertPlacement(sqlite::Connection& connection, const core::StoredJob& job,
                             int64_t written);
absl::Status InsertRequest(sqlite::Connection& connection, const std::string& job,
                           const core::DoneRequest& done);
absl::Status InsertPlan(sqlite::Connection& connection, const std::string& job,
                        const core::Plan& plan);
// With its sequence, or as the next one when that is 0.
absl::Status InsertEvent(sqlite::Connection& connection, const StoredEvent& event);
absl::Status InsertWindow(sqlite::Connection& connection, const StoredWindow& window);

// All jobs by name, with placement, requests and plans.
absl::StatusOr<std::vector<core::StoredJob>> ReadAllJobs(sqlite::Connection& connection);
absl::StatusOr<std::vector<StoredEvent>> ReadSomeEvents(sqlite::Connection& connection,
                                                        const std::string& job, int32_t limit,
                                                        int64_t after_sequence);
// Of all jobs, as Store::ReadEventsOfAll.
absl::StatusOr<std::vector<StoredEvent>> ReadEventsOfAllJobs(sqlite::Connection& connection,
                                                             std::optional<int64_t> after_sequence,
                                                             int32_t limit);
// By number; none in a schema that has no windows. errors: DataLoss for a damaged row.
absl::StatusOr<std::vector<StoredWindow>> ReadAllWindows(sqlite::Connection& connection);
// Deletes all windows if one is damaged: they are figures to look back at, and nothing else needs
// them. returns: true if it did.
absl::StatusOr<bool> DropDamagedWindows(sqlite::Connection& connection);
// The first that was kept under this number. errors: also NotFound.
absl::StatusOr<Placement> ReadOnePlacement(sqlite::Connection& connection, const std::string& job,
                                           int64_t version);
// Reads every row of every table but of windows.
absl::Status CheckEveryRow(sqlite::Connection& connection);

// The placement in these bytes. errors: DataLoss, naming path and job, also when the digest is not
// that of its maps.
absl::StatusOr<Placement> PlacementOf(const std::string& bytes, const std::string& digest,
                                      const std::string& path, const std::string& job);

// A placement as bytes in the store.

// "EPLBPLC1", then little-endian int32: L, E, S, G, N, K, physical_to_logical_map [L, S],
// replica_rank [L, S]. 58 layers x 288 slots are 134 KB.
std::string PlacementToBytes(const Placement& placement);

// errors: DataLoss for bytes that PlacementToBytes did not write: wrong magic or length, a shape or
// a map that is not valid.
absl::StatusOr<Placement> PlacementFromBytes(std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_VALUE_ROWS_H_
