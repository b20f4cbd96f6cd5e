// Sockets of the control channel and the host transport: non-blocking, closed on exec, and every
// wait has an absolute deadline on the calling thread.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb {

// Owns a file descriptor. Closing never shuts a connection down, so a forked child that drops its
// copy does not disturb the parent.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
};

struct Listener {
  Fd fd;
  std::string address;  // for StartConnect: "10.0.0.1:4711", "[::1]:4711" or "@name"
};

bool IsNumericAddress(const std::string& host);
// True for "127.0.0.1:80" and "[::1]:80", addresses that no other host reaches.
bool IsLoopbackAddress(const std::string& address);
// Returns /proc/sys/kernel/random/boot_id, equal for processes of one running kernel; empty if it
// cannot be read.
std::string BootId();
// Listens on a numeric IPv4 or IPv6 address of one interface; with port 0 the kernel chooses.
// errors: InvalidArgument for a name or a wildcard, which peers could not reach; Unavailable if it
// cannot be bound, naming address and port.
absl::StatusOr<Listener> ListenTcp(const std::string& host, uint16_t port);
// Listens on an abstract unix socket, visible only in this network namespace while its owner lives.
absl::StatusOr<Listener> ListenAbstract(const std::string& name);
// Returns "127.0.0.1:80" for "127.0.0.1" and 80; IPv6 gets brackets.
std::string JoinAddress(const std::string& host, uint16_t port);

// Returns the next waiting connection, or an invalid Fd if none waits. errors: ResourceExhausted if
// the process has no descriptors left.
absl::StatusOr<Fd> Accept(int listener);
// Begins to connect; the socket is writable once the outcome is known. errors: Unavailable if it
// failed at once.
absl::StatusOr<Fd> StartConnect(const std::string& address);
// Returns the outcome of StartConnect. errors: Unavailable, with the kernel's reason.
absl::Status FinishConnect(int fd);

// Result of a send or receive that does not wait.
struct IoResult {
  size_t bytes = 0;
  bool closed = false;  // the peer is lost
};
IoResult SendSome(int fd, std::span<const std::byte> bytes);
IoResult ReceiveSome(int fd, std::span<std::byte> bytes);

// Move all bytes. errors: Unavailable if the peer is lost, DeadlineExceeded.
absl::Status SendAll(int fd, std::span<const std::byte> bytes, absl::Time deadline);
absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, absl::Time deadline);

// Polls, at least once, until an entry is ready or `until` has passed; signals do not end it.
// Returns the number of ready entries. errors: Internal; that of the thread's WaitCheck.
absl::StatusOr<int> PollUntil(std::span<pollfd> fds, absl::Time until);

}  // namespace eplb
