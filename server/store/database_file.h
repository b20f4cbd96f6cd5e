// The file of a database beside SQLite: which process holds it, whether its path still names it,
// and which users may read it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "server/process/descriptor.h"

namespace eplb {

// Returns the whole path without symbolic links, as far as it exists, so that one database has one
// lock beside it.
std::string CanonicalPath(const std::string& path);

// Takes all rights of other users from the database, its lock and SQLite's files beside it. Files
// of another user stay as they are.
void RestrictToOwner(const std::string& path);

// An open descriptor on a database. It outlives SQLite's descriptors: when a process closes any
// descriptor of a file, the system drops the locks that SQLite took on that file. threads: one at a
// time.
class DatabaseFile {
 public:
  // Opens the file, to read if it cannot be written. If there is none, makes an empty file that its
  // owner alone may read. errors: Unavailable with the path.
  static absl::StatusOr<DatabaseFile> Open(const std::string& path);

  // Takes the exclusive right to the file among processes, by whatever name they open it. The right
  // ends with this object. errors: Unavailable if another process has it.
  absl::Status Lock();
  void Unlock();

  // Notes the write-ahead log that SQLite has just opened and keeps until it closes.
  void NoteLog();

  // Checks that the path still names this file, and the log's path the noted log. errors:
  // Unavailable with what to do.
  absl::Status CheckPath() const;

 private:
  DatabaseFile(Descriptor descriptor, std::string path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  Descriptor descriptor_;
  std::string path_;
  std::optional<ino_t> log_;  // absent: nothing was written yet
};

}  // namespace eplb
