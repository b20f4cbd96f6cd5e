// Looks at what is on the path of a socket, and locks it.
#include "server/rpc/socket_claim.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/process/address.h"
#include "server/process/descriptor.h"

namespace eplb {

namespace {

// Returns true if a process accepts connections there. gRPC would take the path away from that
// process without a message.
bool IsServed(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof(address.sun_path)) return false;
  unix_path.copy(address.sun_path, unix_path.size());
  const Descriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (peer.get() < 0) return false;
  return connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;  // its backlog is full
}

}  // namespace

absl::Status CheckSocketPath(const std::string& path) {
  const auto no = [&path](const std::string& why) {
    return Unavailable("cannot listen on unix:", path, ": ", why);
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
