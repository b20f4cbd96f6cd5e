// The tables of schema 1, of 0.1.0, and of schema 2, as the rows that they become.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "server/store/sqlite.h"

namespace eplb {

// Returns the schema that the old tables name; 0 without such tables, or if they are damaged.
int64_t SchemaOfOldTables(sqlite::Connection& connection);

// Puts everything that is in the old tables of `from` into the table of rows of `to`, which may be
// the same database. errors: DataLoss for a row that does not fit its checksum.
absl::Status CopyOldTables(sqlite::Connection& from, sqlite::Connection& to);

absl::Status DropOldTables(sqlite::Connection& connection);

}  // namespace eplb
