#include "server/store/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace eplb {

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& guarded, std::string_view does) {
  const std::string path = guarded + ".lock";
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int why = errno;
  const bool forbidden = descriptor < 0 && (why == EACCES || why == EROFS);
  if (forbidden) descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const std::string text =
        absl::StrCat(guarded, ": cannot open ", path, ": ", std::strerror(why));
    return forbidden && errno == ENOENT ? absl::PermissionDeniedError(text)
                                        : absl::UnavailableError(text);
  }
  FileLock lock(descriptor);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        absl::StrCat(guarded, ": another eplbd ", std::string(does), " (it holds ", path, ")"));
  }
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ >= 0) (void)close(descriptor_);
}

}  // namespace eplb
