// The schema of the store's database, and what a file must show to be taken for it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "server/store/sqlite.h"

namespace eplb {

// The schema of this eplbd, in user_version: one table of rows. Schema 1 is that of 0.1.0.
inline constexpr int64_t kStoreSchema = 3;

// Creates the table in an empty file and migrates a database of an earlier schema. Checks that the
// file is sound: SQLite's integrity check, the text of the schema, the checksum of every row but
// load windows. errors: DataLoss for a damaged file or one that is no database, FailedPrecondition
// for another program's or one of a later schema, those of Connection.
absl::Status PrepareDatabase(sqlite::Connection& connection, const std::string& path);

// Only checks: for a database that cannot be written. Replaces the connection to an earlier schema
// by one to a migrated copy in memory. errors: likewise.
absl::Status CheckDatabase(sqlite::Connection& connection, const std::string& path);

}  // namespace eplb
