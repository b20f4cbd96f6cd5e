#include "server/rpc/listen_check.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

namespace eplb {

bool IsServed(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (unix_path.size() >= sizeof(address.sun_path)) return false;
  unix_path.copy(address.sun_path, unix_path.size());
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return false;
  const bool served =
      connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EAGAIN;  // its backlog is full
  (void)close(descriptor);
  return served;
}

}  // namespace eplb
