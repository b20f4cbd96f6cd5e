#include "tests/tools/chaos/proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb::chaos {
namespace {

constexpr size_t kChunkBytes = 16 << 10;

absl::StatusOr<sockaddr_in> ParseAddress(const std::string& text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port > 65535 || inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": expected a numeric HOST:PORT"));
  }
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

const sockaddr* Generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

int OpenSocket() { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

absl::StatusOr<std::unique_ptr<Proxy>> Proxy::Make(const std::string& listen,
                                                   const std::string& target, uint64_t seed) {
  auto proxy = std::unique_ptr<Proxy>(new Proxy());
  EPLB_ASSIGN_OR_RETURN(sockaddr_in address, ParseAddress(listen));
  EPLB_ASSIGN_OR_RETURN(proxy->target_, ParseAddress(target));
  proxy->listener_ = Descriptor(OpenSocket());
  proxy->random_.seed(seed);
  const int one = 1;
  (void)setsockopt(proxy->listener_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  socklen_t size = sizeof(address);
  if (bind(proxy->listener_.get(), Generic(address), size) != 0 ||
      ::listen(proxy->listener_.get(), SOMAXCONN) != 0 ||
      getsockname(proxy->listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::UnavailableError(absl::StrCat(listen, ": ", std::strerror(errno)));
  }
  std::array<char, INET_ADDRSTRLEN> host{};
  (void)inet_ntop(AF_INET, &address.sin_addr, host.data(), host.size());
  proxy->address_ = absl::StrCat(host.data(), ":", ntohs(address.sin_port));
  return proxy;
}

void Proxy::Turn(absl::Time now, const Faults& faults, absl::Duration max_wait, int also_wake) {
  if (std::exchange(cuts_done_, faults.cuts) < faults.cuts) Cut();
  std::vector<pollfd> polled = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                {.fd = also_wake, .events = POLLIN, .revents = 0}};
  absl::Duration wait = max_wait;
  for (const Connection& connection : connections_) {
    for (int side = 0; side < 2; ++side) {
      const Direction& out = connection.directions[side];     // read here
      const Direction& in = connection.directions[1 - side];  // written here
      short events = 0;
      if (!faults.stall && !out.ended && out.buffered < kMaxBuffered) events |= POLLIN;
      if (!in.chunks.empty()) {
        const absl::Time due = std::max(in.chunks.front().release, in.next_write);
        if (due <= now) events |= POLLOUT;
        wait = std::min(wait, std::max(due - now, absl::ZeroDuration()));
      }
      // A socket that nothing is wanted from must not report its hang-up in a busy loop.
      const int descriptor = events == 0 ? -1 : connection.sockets[side].get();
      polled.push_back({.fd = descriptor, .events = events, .revents = 0});
    }
  }
  // Writable sockets end the wait at once, so their due time, which is past, must not.
  const bool writable = std::any_of(polled.begin(), polled.end(),
                                    [](const pollfd& p) { return (p.events & POLLOUT) != 0; });
  if (writable) wait = max_wait;
  const auto milliseconds = absl::ToInt64Milliseconds(wait + absl::Microseconds(999));
  if (poll(polled.data(), polled.size(), static_cast<int>(milliseconds)) <= 0) return;
  size_t index = 2;
  for (Connection& connection : connections_) {
    const short client = polled[index++].revents;
    const short target = polled[index++].revents;
    for (int from = 0; from < 2; ++from) {
      const short source = from == 0 ? client : target;
      const short sink = from == 0 ? target : client;
      if ((sink & (POLLOUT | POLLERR)) != 0) Write(now, faults, connection, from);
      if ((source & (POLLIN | POLLHUP | POLLERR)) != 0) Read(now, faults, connection, from);
    }
  }
  connections_.remove_if([](const Connection& connection) {
    return connection.broken ||
           (connection.directions[0].closed && connection.directions[1].closed);
  });
  if ((polled[0].revents & POLLIN) != 0) Accept();
}

void Proxy::Accept() {
  Descriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (client.get() < 0) return;
  Descriptor target(OpenSocket());
  if (target.get() < 0) return;
  const int one = 1;
  (void)setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  (void)setsockopt(target.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (connect(target.get(), Generic(target_), sizeof(target_)) != 0 && errno != EINPROGRESS) return;
  Connection& connection = connections_.emplace_back();
  connection.sockets[0] = std::move(client);
  connection.sockets[1] = std::move(target);
}

void Proxy::Read(absl::Time now, const Faults& faults, Connection& connection, int from) {
  Direction& direction = connection.directions[from];
  if (faults.stall || direction.ended || direction.buffered >= kMaxBuffered) return;
  std::string bytes(kChunkBytes, '\0');
  const ssize_t size = read(connection.sockets[from].get(), bytes.data(), bytes.size());
  if (size < 0) {
    connection.broken = connection.broken || !WouldBlock();
    return;
  }
  if (size == 0) {
    direction.ended = true;
    if (direction.chunks.empty()) Write(now, faults, connection, from);
    return;
  }
  if (faults.drop) return;
  bytes.resize(static_cast<size_t>(size));
  if (std::bernoulli_distribution(faults.corrupt)(random_)) {
    bytes[random_() % bytes.size()] ^= static_cast<char>(1U << (random_() % 8));
  }
  const double share = std::uniform_real_distribution<double>()(random_);
  absl::Time release = now + faults.delay + share * faults.jitter;
  if (!direction.chunks.empty()) release = std::max(release, direction.chunks.back().release);
  direction.buffered += bytes.size();
  direction.chunks.push_back({release, std::move(bytes)});
}

void Proxy::Write(absl::Time now, const Faults& faults, Connection& connection, int from) {
  Direction& direction = connection.directions[from];
  const int sink = connection.sockets[1 - from].get();
  while (!direction.chunks.empty() && direction.chunks.front().release <= now &&
         direction.next_write <= now) {
    std::string& bytes = direction.chunks.front().bytes;
    const ssize_t size = send(sink, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size < 0) {
      connection.broken = connection.broken || !WouldBlock();
      return;
    }
    if (faults.bytes_per_second > 0) {
      direction.next_write = now + absl::Seconds(static_cast<double>(size)) /
                                       static_cast<double>(faults.bytes_per_second);
    }
    direction.buffered -= static_cast<size_t>(size);
    bytes.erase(0, static_cast<size_t>(size));
    if (bytes.empty()) direction.chunks.pop_front();
  }
  if (direction.ended && direction.chunks.empty() && !direction.closed) {
    direction.closed = true;
    (void)shutdown(sink, SHUT_WR);
  }
}

// A linger of 0 makes close() send RST and drop what waits in the kernel.
void Proxy::Cut() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  for (Connection& connection : connections_) {
    for (const Descriptor& socket : connection.sockets) {
      (void)setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
  }
  connections_.clear();
}

}  // namespace eplb::chaos
