// Reads and checks whole tables of the store's database.
#ifndef EPLB_SERVER_STORE_TABLES_H_
#define EPLB_SERVER_STORE_TABLES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/store/sqlite.h"
#include "server/store/store.h"
#include "server/store/value_rows.h"

namespace eplb {

// errors of all: those of Connection; DataLoss for a row that does not fit its checksum or that
// eplbd did not write.

absl::StatusOr<Leadership> ReadLeadership(sqlite::Connection& connection);
absl::Status InsertLeadership(sqlite::Connection& connection, const Leadership& leadership);
// Returns all jobs by name, with placement, requests, plans and history.
absl::StatusOr<std::vector<core::StoredJob>> ReadAllJobs(sqlite::Connection& connection);
// Returns the windows by number; none from a schema without windows.
absl::StatusOr<std::vector<StoredWindow>> ReadAllWindows(sqlite::Connection& connection);
// Deletes all windows if one is damaged, because nothing but the chart of the past needs them.
// Returns true if it did.
absl::StatusOr<bool> DropDamagedWindows(sqlite::Connection& connection);
// Reads every row of every table except windows.
absl::Status CheckEveryRow(sqlite::Connection& connection);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_TABLES_H_
