// Addresses, listening, connecting, and sending and receiving with a deadline.
#include "client/rows/control/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/wait_check.h"

namespace eplb {
namespace {

struct RawAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<RawAddress> RawTcp(const std::string& host, uint16_t port) {
  RawAddress raw;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&raw.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&raw.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    raw.length = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    raw.length = sizeof(sockaddr_in6);
  } else {
    return InvalidInput("address \"", host, "\" is not a numeric IPv4 or IPv6 address");
  }
  return raw;
}

absl::StatusOr<RawAddress> RawAbstract(const std::string& name) {
  RawAddress raw;
  auto* un = reinterpret_cast<sockaddr_un*>(&raw.storage);
  if (name.empty() || name.size() + 1 > sizeof(un->sun_path)) {
    return InvalidInput("socket name \"", name, "\" must have 1..", sizeof(un->sun_path) - 1,
                        " characters");
  }
  un->sun_family = AF_UNIX;
  std::memcpy(un->sun_path + 1, name.data(), name.size());
  raw.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return raw;
}

// Parses "@name", "host:port" or "[host]:port".
absl::StatusOr<RawAddress> ParseAddress(const std::string& address) {
  if (!address.empty() && address[0] == '@') return RawAbstract(address.substr(1));
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port == 0 || port > 65535) {
    return InvalidInput("address \"", address, "\" is not HOST:PORT or @NAME");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return RawTcp(host, static_cast<uint16_t>(port));
}

bool IsWildcard(const RawAddress& raw) {
  if (raw.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(&raw.storage)->sin_addr.s_addr == INADDR_ANY;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(&raw.storage)->sin6_addr;
  return std::memcmp(&v6, &in6addr_any, sizeof(v6)) == 0;
}

absl::StatusOr<Fd> NewSocket(int family) {
  Fd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ResourceExhausted("socket: ", ErrnoText(errno));
  return fd;
}

void SetNoDelay(int fd) {
  const int one = 1;  // unix sockets reject it, which is harmless
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

absl::StatusOr<Fd> BindAndListen(const RawAddress& raw, const std::string& shown) {
  EPLB_ASSIGN_OR_RETURN(Fd fd, NewSocket(raw.storage.ss_family));
  const int one = 1;
  if (raw.storage.ss_family != AF_UNIX) {
    (void)setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  }
  if (bind(fd.get(), raw.get(), raw.length) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return Unavailable("cannot listen on ", shown, ": ", ErrnoText(errno));
  }
  return fd;
}

// Moves all bytes with `some`, which does not wait; waits for `events` in between.
template <class Bytes, class Some>
absl::Status MoveAll(int fd, Bytes bytes, int16_t events, absl::Time deadline, Some some) {
  size_t done = 0;
  while (done < bytes.size()) {
    const IoResult result = some(fd, bytes.subspan(done));
    if (result.closed) return Unavailable("connection closed");
    done += result.bytes;
    if (result.bytes > 0) continue;
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    EPLB_ASSIGN_OR_RETURN(const int ready, PollUntil(std::span(&entry, 1), deadline));
    if (ready == 0) return DeadlineExceeded("no answer before the deadline");
  }
  return absl::OkStatus();
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::Reset() {
  if (fd_ >= 0) (void)close(fd_);
  fd_ = -1;
}

std::string JoinAddress(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsLoopbackAddress(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("[::1]:");
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

bool IsNumericAddress(const std::string& host) { return RawTcp(host, 0).ok(); }

absl::StatusOr<Listener> ListenTcp(const std::string& host, uint16_t port) {
  EPLB_ASSIGN_OR_RETURN(const RawAddress raw, RawTcp(host, port));
  if (IsWildcard(raw)) {
    return InvalidInput("address ", host,
                        " stands for every interface; give the one that the other ranks reach");
  }
  EPLB_ASSIGN_OR_RETURN(Fd fd, BindAndListen(raw, JoinAddress(host, port)));
  RawAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return Internal("getsockname: ", ErrnoText(errno));
  }
  const uint16_t chosen =
      ntohs(bound.storage.ss_family == AF_INET
                ? reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port
                : reinterpret_cast<const sockaddr_in6*>(&bound.storage)->sin6_port);
  return Listener{std::move(fd), JoinAddress(host, chosen)};
}

absl::StatusOr<Listener> ListenAbstract(const std::string& name) {
  EPLB_ASSIGN_OR_RETURN(const RawAddress raw, RawAbstract(name));
  EPLB_ASSIGN_OR_RETURN(Fd fd, BindAndListen(raw, absl::StrCat("@", name)));
  return Listener{std::move(fd), absl::StrCat("@", name)};
}

absl::StatusOr<Fd> Accept(int listener) {
  while (true) {
    Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      SetNoDelay(fd.get());
      return fd;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      return ResourceExhausted("accept: ", ErrnoText(errno));
    }
    return Fd();  // no connection waits, or the network dropped it
  }
}

absl::StatusOr<Fd> StartConnect(const std::string& address) {
  EPLB_ASSIGN_OR_RETURN(const RawAddress raw, ParseAddress(address));
  EPLB_ASSIGN_OR_RETURN(Fd fd, NewSocket(raw.storage.ss_family));
  SetNoDelay(fd.get());
  if (connect(fd.get(), raw.get(), raw.length) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return Unavailable("cannot connect to ", address, ": ", ErrnoText(errno));
  }
  return fd;
}

absl::Status FinishConnect(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return Unavailable("cannot connect: ", ErrnoText(error));
  // A port of the ephemeral range without a listener can connect to itself, and the owner could
  // then not bind it.
  RawAddress own;
  RawAddress peer;
  own.length = peer.length = sizeof(sockaddr_storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) == 0 &&
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) == 0 &&
      own.storage.ss_family != AF_UNIX && own.length == peer.length &&
      std::memcmp(&own.storage, &peer.storage, own.length) == 0) {
    return Unavailable("cannot connect: no process listens there");
  }
  return absl::OkStatus();
}

IoResult SendSome(int fd, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  while (true) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return {.bytes = static_cast<size_t>(sent)};
    if (errno == EINTR) continue;
    return {.closed = errno != EAGAIN && errno != EWOULDBLOCK};
  }
}

IoResult ReceiveSome(int fd, std::span<std::byte> bytes) {
  if (bytes.empty()) return {};
  while (true) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) return {.bytes = static_cast<size_t>(got)};
    if (got == 0) return {.closed = true};
    if (errno == EINTR) continue;
    return {.closed = errno != EAGAIN && errno != EWOULDBLOCK};
  }
}

absl::Status SendAll(int fd, std::span<const std::byte> bytes, absl::Time deadline) {
  return MoveAll(fd, bytes, POLLOUT, deadline, SendSome);
}

absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, absl::Time deadline) {
  return MoveAll(fd, bytes, POLLIN, deadline, ReceiveSome);
}

absl::StatusOr<int> PollUntil(std::span<pollfd> fds, absl::Time until) {
  while (true) {
    const absl::Duration left =
        std::clamp(until - MonotonicNow(), absl::ZeroDuration(), kBetweenWaitChecks);
    // Rounded up: a wait of 0.3 ms must not become a busy loop.
    const int wait_ms =
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    const int ready = poll(fds.data(), fds.size(), wait_ms);
    if (ready > 0) return ready;
    const bool interrupted = ready < 0 && errno == EINTR;
    if (ready < 0 && !interrupted) return Internal("poll: ", ErrnoText(errno));
    EPLB_RETURN_IF_ERROR(CheckWait(/*now=*/interrupted));
    if (MonotonicNow() >= until) return 0;
  }
}

}  // namespace eplb
