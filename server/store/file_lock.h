// The exclusive right to one path among processes; given up when the process ends, however.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

#include "server/process/descriptor.h"

namespace eplb {

// Returns "PATH: its file system (Lustre) takes no lock: ..", with the reason and what to do.
// error: errno of flock.
std::string NoLockText(const std::string& path, int error);

// The lock is on a file of its own, `guarded`.lock, because the guarded file may be replaced: a
// database is moved aside when it is damaged, a socket is replaced when it is bound. Besides,
// SQLite's locks on a database would be lost when a second descriptor on it is closed.
class FileLock {
 public:
  // Takes the lock, also on a lock file that cannot be written. errors: PermissionDenied if there
  // is no lock file and none can be made, so that no process without other rights holds it either;
  // Unavailable if the lock file cannot be opened for another reason, if its file system takes no
  // locks, or if another process holds it: "another eplbd `does`".
  static absl::StatusOr<FileLock> Acquire(const std::string& guarded, std::string_view does);

 private:
  explicit FileLock(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}
  Descriptor descriptor_;
};

}  // namespace eplb
