#include "server/rpc/unix_socket.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "server/address.h"
#include "server/rpc/listen_check.h"

namespace eplb {

absl::Status CheckSocketPath(const std::string& path) {
  const auto no = [&path](const std::string& why) {
    return absl::UnavailableError(absl::StrCat("cannot listen on unix:", path, ": ", why));
  };
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : no(std::strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return no("it is there and is no socket");
  return IsServed(path) ? no("another process serves there") : absl::OkStatus();
}

absl::StatusOr<FileLock> ClaimSocket(const std::string& path) {
  EPLB_RETURN_IF_ERROR(ParseAddress(absl::StrCat("unix:", path)).status());
  EPLB_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(path, "listens there"));
  EPLB_RETURN_IF_ERROR(CheckSocketPath(path));
  return lock;
}

}  // namespace eplb
