// The tables of the store's database, and what a file must show to be taken for it.
#ifndef EPLB_SERVER_STORE_SCHEMA_H_
#define EPLB_SERVER_STORE_SCHEMA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "server/store/sqlite.h"

namespace eplb {

// Makes an empty file ours; else checks that it is ours and sound (SQLite's integrity check, the
// text of the schema).
// errors: DataLoss for a damaged file or one that is no database, FailedPrecondition for another
// program's or one of another schema, those of Connection.
absl::Status PrepareDatabase(sqlite::Connection& connection, const std::string& path);

// Only checks: for a database that cannot be written. errors: likewise.
absl::Status CheckDatabase(sqlite::Connection& connection, const std::string& path);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_SCHEMA_H_
