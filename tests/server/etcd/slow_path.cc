#include "tests/server/etcd/slow_path.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/monotonic_clock.h"

namespace eplb::etcd {
namespace {

constexpr int kPollMs = 5;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int NewSocket() {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) std::abort();
  return made;
}

bool IsReadable(int descriptor, int timeout_ms) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, timeout_ms) > 0;
}

}  // namespace

SlowPath::SlowPath(int port) : port_(port), listener_(NewSocket()) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  endpoint_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  acceptor_ = std::thread([this] { Accept(); });
}

SlowPath::~SlowPath() {
  stopping_ = true;
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  for (const int one : sockets_) (void)close(one);
  (void)close(listener_);
}

void SlowPath::Accept() {
  while (!stopping_) {
    if (!IsReadable(listener_, kPollMs)) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int server = NewSocket();
    const std::lock_guard lock(mutex_);
    sockets_.insert(sockets_.end(), {client, server});
    const sockaddr_in address = Loopback(port_);
    if (client < 0 ||
        connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      continue;
    }
    const int on = 1;
    for (const int one : {client, server}) {
      (void)setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    threads_.emplace_back([this, client, server] { Forward(client, server); });
    threads_.emplace_back([this, client, server] { Forward(server, client); });
  }
}

void SlowPath::Forward(int from, int to) {
  std::deque<std::pair<absl::Time, std::string>> late;
  bool open = true;
  while (!stopping_ && (open || !late.empty())) {
    if (open && IsReadable(from, kPollMs)) {
      std::array<char, 65536> bytes;
      const ssize_t size = recv(from, bytes.data(), bytes.size(), 0);
      open = size > 0;
      if (open) {
        late.emplace_back(MonotonicNow() + absl::Milliseconds(delay_ms_ / 2),
                          std::string(bytes.data(), static_cast<size_t>(size)));
      }
    } else if (!open) {
      absl::SleepFor(absl::Milliseconds(kPollMs));
    }
    for (; !late.empty() && MonotonicNow() >= late.front().first; late.pop_front()) {
      (void)send(to, late.front().second.data(), late.front().second.size(), MSG_NOSIGNAL);
    }
  }
  (void)shutdown(to, SHUT_WR);
}

}  // namespace eplb::etcd
