// Opens the database of a store: to write, or only to read while it cannot be written.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/store/sqlite.h"

namespace eplb {

// Refuses a file that is no database and has no file of eplbd beside it: such a text of a user must
// be neither opened nor moved aside. A damaged database of eplbd has its lock beside it. errors:
// FailedPrecondition with the path.
absl::Status CheckNotForeign(const std::string& path);

// Creates the database, or brings it up to date and checks it. errors: those of PrepareDatabase.
absl::StatusOr<sqlite::Connection> OpenToWrite(const std::string& path);

// Opens a sound database, also in a folder that takes no new files and so has
// no room for SQLite's files beside a database. errors: Unavailable when it cannot be read, or its
// write-ahead log cannot; those of CheckDatabase.
absl::StatusOr<sqlite::Connection> OpenToRead(const std::string& path);

// Returns when the newest damaged database of this path was moved aside, by the name of its copy;
// none without a copy.
std::optional<absl::Time> MovedAsideAt(const std::string& path);
// Returns how long ago `moved_aside` was by the wall clock, which gave the time; >= 0. None for
// none.
std::optional<absl::Duration> AgeOf(const std::optional<absl::Time>& moved_aside);

// Renames the database and SQLite's files beside it. Returns the new name of the database.
absl::StatusOr<std::string> MoveAside(const std::string& path);

}  // namespace eplb
