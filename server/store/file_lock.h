// The exclusive right to one path among processes; given up when the process ends, however.
#ifndef EPLB_SERVER_STORE_FILE_LOCK_H_
#define EPLB_SERVER_STORE_FILE_LOCK_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eplb {

// "PATH: its file system (Lustre) takes no lock: ..": why and what to do, for an errno of flock.
std::string NoLockText(const std::string& path, int error);

// A file of its own, `guarded`.lock. A database: SQLite's locks on it would be lost when a second
// descriptor on it is closed, and it may be moved aside. A socket: it is replaced when it is bound.
class FileLock {
 public:
  // One that cannot be written is held as well. errors: PermissionDenied when there is none and
  // none can be made, so that nobody without other rights holds it either; Unavailable when it
  // cannot be opened otherwise, when its file system takes no locks, or when another process holds
  // it: "another eplbd `does`".
  static absl::StatusOr<FileLock> Acquire(const std::string& guarded, std::string_view does);
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
