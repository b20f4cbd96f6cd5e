// The exclusive right to one database among processes; given up when the process ends, however.
#ifndef EPLB_SERVER_STORE_FILE_LOCK_H_
#define EPLB_SERVER_STORE_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace eplb {

// A file of its own, `database`.lock: SQLite's locks on the database would be lost when a second
// descriptor on the database is closed, and the database may be moved aside.
class FileLock {
 public:
  // One that cannot be written is held as well. errors: PermissionDenied when there is none and
  // none can be made, so that nobody without other rights holds it either; Unavailable when it
  // cannot be opened otherwise or another process holds it.
  static absl::StatusOr<FileLock> Acquire(const std::string& database);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_FILE_LOCK_H_
