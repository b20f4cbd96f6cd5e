#include "server/rpc/listen_check.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace eplb {

std::string WhyNotListening(const Address& address) {
  if (address.is_unix()) return "not a writable place for a socket";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return gai_strerror(error);
  const int descriptor = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = descriptor >= 0 && bind(descriptor, found->ai_addr, found->ai_addrlen) == 0;
  std::string why = bound ? "the address was in use a moment ago" : std::strerror(errno);
  if (descriptor >= 0) (void)close(descriptor);
  freeaddrinfo(found);
  return why;
}

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
