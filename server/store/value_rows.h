// The store's values as rows, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/digest.h"
#include "placement/load_history.h"
#include "placement/placement.h"
#include "server/core/values/record.h"
#include "server/core/values/views.h"
#include "server/store/checked_rows.h"

namespace eplb {

using core::StoredWindow;

// The job's row without the placement. Its digest names one of the job's placement rows.
struct JobRow {
  std::string job;
  int64_t version = 0;
  int64_t next_version = 0;
  std::string digest;
  std::optional<v1::RunEnd> end;
  wire::JobMemory memory;
};
struct PlacementRow {
  int64_t version = 0;
  Placement placement;
};

// Rows have no checksum yet.

// Returns the digest as rows hold it.
std::string BytesOf(const Digest& digest);
sqlite::Row RowOf(const core::StoredJob& job);
// written: number that rises within a job. REQUIRES: job.placement.
sqlite::Row PlacementRowOf(const core::StoredJob& job, int64_t written);
sqlite::Row RowOf(const std::string& job, const core::DoneRequest& done);
sqlite::Row RowOf(const std::string& job, const v1::Plan& plan);
// Tokens are kept as float32. REQUIRES: loads of one shape, at least one.
sqlite::Row RowOf(const std::string& job, std::span<const TypicalLoad> loads);
sqlite::Row RowOf(v1::JobEvent event);
sqlite::Row RowOf(StoredWindow window);

// Texts are at most kMaxLongText bytes. errors of all: DataLoss for a row that RowOf did not write,
// and for a value that no daemon writes.
absl::StatusOr<JobRow> JobOf(const sqlite::Row& row);
// where: for the error. errors: also DataLoss if the digest is not the digest of the maps.
absl::StatusOr<PlacementRow> PlacementRowOf(const sqlite::Row& row, const std::string& where);
// Reads the version and the digest of a placement alone.
absl::StatusOr<core::RanVersion> RanVersionOf(const sqlite::Row& row);
absl::StatusOr<core::DoneRequest> RequestOf(const sqlite::Row& row);
absl::StatusOr<v1::Plan> PlanOf(const sqlite::Row& row);
absl::StatusOr<std::vector<TypicalLoad>> TypicalLoadsOf(const sqlite::Row& row);
absl::StatusOr<v1::JobEvent> EventOf(const sqlite::Row& row);
absl::StatusOr<StoredWindow> WindowOf(const sqlite::Row& row);

}  // namespace eplb
