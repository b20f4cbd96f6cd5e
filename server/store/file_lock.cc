// Takes a lock file with flock, and explains why a file system refuses.
#include "server/store/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

// Returns the usual name of the file system of `path`, if it is known for missing locks; otherwise
// an empty text.
const char* FileSystemOf(const std::string& path) {
  struct statfs found {};
  if (statfs(path.c_str(), &found) != 0) return "";
  constexpr std::pair<uint32_t, const char*> kNames[] = {
      {0x00006969, "NFS"}, {0x0bd00bd0, "Lustre"}, {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"},
      {0x01021997, "9p"},  {0x65735546, "FUSE"},   {0xff534d42, "SMB"},  {0xfe534d42, "SMB"}};
  for (const auto& [type, name] : kNames) {
    if (static_cast<uint32_t>(found.f_type) == type) return name;
  }
  return "";
}

}  // namespace

std::string NoLockText(const std::string& path, int error) {
  const std::string name = FileSystemOf(std::filesystem::path(path).parent_path());
  return absl::StrCat(path, ": its file system", name.empty() ? "" : " (", name,
                      name.empty() ? "" : ")", " takes no lock: ", std::strerror(error),
                      "; put it on a local disk, or mount with locks (Lustre: -o flock)");
}

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& guarded, std::string_view does) {
  const std::string path = guarded + ".lock";
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int why = errno;
  const bool forbidden = descriptor < 0 && (why == EACCES || why == EROFS);
  if (forbidden) descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const std::string text =
        absl::StrCat(guarded, ": cannot open ", path, ": ", std::strerror(why));
    return forbidden && errno == ENOENT ? PermissionDenied(text) : Unavailable(text);
  }
  FileLock lock{Descriptor(descriptor)};
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return Unavailable(NoLockText(guarded, errno));
  return Unavailable(guarded, ": another eplbd ", std::string(does), " (it holds ", path, ")");
}

}  // namespace eplb
