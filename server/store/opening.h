// Opens the database of a store: to write, or only to read while it cannot be written.
#ifndef EPLB_SERVER_STORE_OPENING_H_
#define EPLB_SERVER_STORE_OPENING_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/store/sqlite.h"

namespace eplb {

// The file of a database beside SQLite: who holds it, whether its path still names it, and who may
// read it.

// The whole path without symbolic links, as far as it exists: one database has one lock beside it.
std::string CanonicalPath(const std::string& path);

// Takes all rights of other users from the database, its lock and what SQLite keeps beside it. What
// belongs to somebody else stays as it is.
void RestrictToOwner(const std::string& path);

// An open descriptor on a database. It outlives SQLite's: when a process closes any descriptor of a
// file, the system drops the locks that SQLite took on that file. threads: one at a time.
class DatabaseFile {
 public:
  // Makes an empty file that its owner alone may read when there is none. A file that cannot be
  // written is opened to read. errors: Unavailable, naming the path.
  static absl::StatusOr<DatabaseFile> Open(const std::string& path);
  DatabaseFile(DatabaseFile&& other) noexcept;
  DatabaseFile& operator=(DatabaseFile&& other) noexcept;
  DatabaseFile(const DatabaseFile&) = delete;
  DatabaseFile& operator=(const DatabaseFile&) = delete;
  ~DatabaseFile();

  // The exclusive right to the file among processes, whatever name they open it by. Given up with
  // this object. errors: Unavailable when another one has it.
  absl::Status Lock();
  void Unlock();

  // SQLite has opened the database to write: the write-ahead log beside it is the one that SQLite
  // keeps until it closes.
  void NoteLog();

  // Whether the path names this file, and the log's path that log. errors: Unavailable, with what
  // to do.
  absl::Status CheckPath() const;

 private:
  DatabaseFile(int descriptor, std::string path)
      : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_;
  std::string path_;
  std::optional<ino_t> log_;  // none: nothing is written by it
};

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
// How long ago that was by the wall clock, which gave the time; >= 0. None of none.
std::optional<absl::Duration> AgeOf(const std::optional<absl::Time>& moved_aside);

// Renames the database and what SQLite keeps beside it; the new name of the database.
absl::StatusOr<std::string> MoveAside(const std::string& path);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_OPENING_H_
