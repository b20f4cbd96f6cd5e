// Opens, locks and watches the file of a database.
#include "server/store/database_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/errors.h"

namespace eplb {

namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr mode_t kRightsOfOthers = 077;
constexpr char kReplaced[] =
    ": the database was deleted or replaced under the daemon, so nothing is written any more; stop "
    "the daemon, put the right database there, then start it";

constexpr char kLogReplaced[] =
    ": SQLite's write-ahead log was deleted or replaced under the daemon, so nothing is written "
    "any more; stop the daemon with SIGTERM, which saves what that log held, then start it";

std::string LogPath(const std::string& path) { return path + "-wal"; }

std::optional<ino_t> InodeOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return std::nullopt;
  return found.st_ino;
}

// Returns the descriptor, or none with errno.
Descriptor OpenOrCreate(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;  // a pipe of this name must not block
  Descriptor created(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, kOwnerOnly));
  if (created.get() >= 0) {
    (void)fchmod(created.get(), kOwnerOnly);  // the umask has no say
    return created;
  }
  Descriptor found(open(path.c_str(), O_RDWR | kFlags));
  return found.get() >= 0 ? std::move(found) : Descriptor(open(path.c_str(), O_RDONLY | kFlags));
}

}  // namespace

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  const std::filesystem::path canonical =
      error ? std::filesystem::path() : std::filesystem::weakly_canonical(whole, error);
  return error || canonical.empty() ? path : canonical.string();
}

void RestrictToOwner(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) {
    const std::string name = path + suffix;
    struct stat found {};
    if (lstat(name.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if ((found.st_mode & kRightsOfOthers) == 0) continue;
    (void)chmod(name.c_str(), found.st_mode & ~kRightsOfOthers & 07777);
  }
}

absl::StatusOr<DatabaseFile> DatabaseFile::Open(const std::string& path) {
  Descriptor descriptor = OpenOrCreate(path);
  if (descriptor.get() < 0) return Unavailable(path, ": cannot be opened: ", std::strerror(errno));
  return DatabaseFile(std::move(descriptor), path);
}

absl::Status DatabaseFile::Lock() {
  if (flock(descriptor_.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK)
    return absl::OkStatus();  // not a lock of this file system: `path`.lock guards it
  return Unavailable(path_,
                     ": another eplbd has this store open by another name of the file, such as a "
                     "hard link; give each daemon a database of its own");
}

void DatabaseFile::Unlock() { (void)flock(descriptor_.get(), LOCK_UN); }

void DatabaseFile::NoteLog() { log_ = InodeOf(LogPath(path_)); }

absl::Status DatabaseFile::CheckPath() const {
  struct stat open_one {};
  struct stat named {};
  const bool is_ours = fstat(descriptor_.get(), &open_one) == 0 &&
                       stat(path_.c_str(), &named) == 0 && open_one.st_dev == named.st_dev &&
                       open_one.st_ino == named.st_ino;
  if (!is_ours) return Unavailable(path_, kReplaced);
  if (log_ && InodeOf(LogPath(path_)) != log_) return Unavailable(LogPath(path_), kLogReplaced);
  return absl::OkStatus();
}

}  // namespace eplb
