// Listens on all addresses of a host's name.
#include "server/process/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

absl::Status CannotListen(const Address& address, const char* why) {
  return Unavailable("cannot listen on ", address.Text(), ": ", why);
}

int PortOf(int descriptor) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  std::array<char, NI_MAXSERV> port{};
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port.data(), port.size(),
                  NI_NUMERICSERV) != 0) {
    return 0;
  }
  return static_cast<int>(std::strtol(port.data(), nullptr, 10));
}

// Returns no descriptor, with errno, if it cannot listen. port: 0 for any.
Descriptor ListenOn(const addrinfo& where, int port, int backlog) {
  Descriptor listener(
      socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, where.ai_protocol));
  if (listener.get() < 0) return {};
  sockaddr_storage bound{};
  std::memcpy(&bound, where.ai_addr, where.ai_addrlen);
  const auto in_network_order = htons(static_cast<uint16_t>(port));
  const int yes = 1;
  const int no = 0;
  if (where.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port = in_network_order;
    // "[::]" is every address of the machine, also those of IPv4.
    (void)setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  } else {
    reinterpret_cast<sockaddr_in*>(&bound)->sin_port = in_network_order;
  }
  // Without SO_REUSEPORT: a second daemon must not bind the same port and get every other rank.
  if (setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&bound), where.ai_addrlen) != 0 ||
      listen(listener.get(), backlog) != 0) {
    return {};
  }
  return listener;
}

// /etc/hosts may give a name the same address twice.
bool IsRepeated(const addrinfo& one, const addrinfo* first) {
  for (const addrinfo* before = first; before != &one; before = before->ai_next) {
    if (before->ai_addrlen == one.ai_addrlen &&
        std::memcmp(before->ai_addr, one.ai_addr, one.ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

bool IsFamilyMissing(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL; }

}  // namespace

absl::StatusOr<TcpListeners> ListenTcp(const Address& address, int backlog, size_t most) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, &freeaddrinfo);
  TcpListeners listeners;
  int port = address.port;
  int reason = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (listeners.sockets.size() == most) break;
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    if (IsRepeated(*one, found)) continue;
    Descriptor listener = ListenOn(*one, port, backlog);
    if (listener.get() < 0) {
      reason = errno;
      if (IsFamilyMissing(reason)) continue;
      return CannotListen(address, std::strerror(reason));
    }
    port = PortOf(listener.get());
    listeners.sockets.push_back(std::move(listener));
  }
  if (listeners.sockets.empty()) return CannotListen(address, std::strerror(reason));
  listeners.address = address.WithPort(port);
  return listeners;
}

}  // namespace eplb
