// The store's values as rows, and back: for SQLite's tables and for the keys of etcd alike.
#ifndef EPLB_SERVER_STORE_VALUE_ROWS_H_
#define EPLB_SERVER_STORE_VALUE_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/placement.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"

namespace eplb {

// The schema of this eplbd, in user_version and in the row of leadership.
inline constexpr int64_t kStoreSchema = 2;

struct Leadership {
  int64_t term = 0;
  int64_t schema = kStoreSchema;
  std::optional<absl::Time> moved_aside = std::nullopt;  // see Store::ReadMovedAside
};

// The job's row without the placement. Its digest names one of the job's placement rows.
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

// Rows have no checksum yet. Their cells are in the order of the tables' columns.

// Returns the digest as rows hold it.
std::string BytesOf(const Digest& digest);
sqlite::Row RowOf(const Leadership& leadership);
sqlite::Row RowOf(const core::StoredJob& job);
// written: number that rises within a job. REQUIRES: job.placement.
sqlite::Row PlacementRowOf(const core::StoredJob& job, int64_t written);
sqlite::Row RowOf(const std::string& job, const core::DoneRequest& done);
sqlite::Row RowOf(const std::string& job, const core::Plan& plan);
sqlite::Row RowOf(const StoredEvent& event);
sqlite::Row RowOf(const StoredWindow& window);

// errors of all: DataLoss for a row that RowOf did not write.
absl::StatusOr<Leadership> LeadershipOf(const sqlite::Row& row);
absl::StatusOr<JobRow> JobOf(const sqlite::Row& row);
// where: for the error. errors: also DataLoss if the digest is not the digest of the maps.
absl::StatusOr<PlacementRow> PlacementRowOf(const sqlite::Row& row, const std::string& where);
absl::StatusOr<core::DoneRequest> RequestOf(const sqlite::Row& row);
absl::StatusOr<core::Plan> PlanOf(const sqlite::Row& row);
absl::StatusOr<StoredEvent> EventOf(const sqlite::Row& row);
absl::StatusOr<StoredWindow> WindowOf(const sqlite::Row& row);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_VALUE_ROWS_H_
