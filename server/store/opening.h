// Opens the database of a store: to write, or only to read while it cannot be written.
#ifndef EPLB_SERVER_STORE_OPENING_H_
#define EPLB_SERVER_STORE_OPENING_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/store/sqlite.h"

namespace eplb {

// A file that is no database and has nothing beside it that an eplbd leaves is somebody's text, and
// must be neither opened nor moved aside. A damaged database of ours has its lock beside it.
// errors: FailedPrecondition, naming the path.
absl::Status CheckNotForeign(const std::string& path);

// Creates it, or brings it up to date and checks it. errors: those of PrepareDatabase and
// CheckEveryRow; DataLoss for a damaged file.
absl::StatusOr<sqlite::Connection> OpenToWrite(const std::string& path);

// A sound database of the current schema, also in a folder that takes no new files and so has no
// room for what SQLite keeps beside a database. errors: Unavailable when it cannot be read, or its
// write-ahead log cannot; those of CheckDatabase and CheckEveryRow.
absl::StatusOr<sqlite::Connection> OpenToRead(const std::string& path);

// When the newest damaged database of this path was moved aside, as its copy's name tells; none
// without a copy.
std::optional<absl::Time> MovedAsideAt(const std::string& path);

// Renames the database and what SQLite keeps beside it; the new name of the database.
absl::StatusOr<std::string> MoveAside(const std::string& path);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_OPENING_H_
