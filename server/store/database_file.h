// The file of a database beside SQLite: who holds it, whether its path still names it, and who may
// read it.
#ifndef EPLB_SERVER_STORE_DATABASE_FILE_H_
#define EPLB_SERVER_STORE_DATABASE_FILE_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eplb {

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

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_DATABASE_FILE_H_
