// Sockets of the control channel and the host transport: non-blocking, closed on exec, and every
// wait has an absolute deadline on the calling thread.
#ifndef EPLB_CLIENT_ROWS_CONTROL_SOCKET_H_
#define EPLB_CLIENT_ROWS_CONTROL_SOCKET_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  std::string address;  // what StartConnect takes: "10.0.0.1:4711", "[::1]:4711" or "@name"
};

bool IsNumericAddress(const std::string& host);
// True for "127.0.0.1:80" and "[::1]:80": an address that no other host reaches.
bool IsLoopbackAddress(const std::string& address);
// /proc/sys/kernel/random/boot_id: equal for processes of one running kernel; empty when unknown.
std::string BootId();
// host: a numeric IPv4 or IPv6 address of one interface; port 0 lets the kernel choose. errors:
// InvalidArgument for a name or a wildcard, which peers could not reach; Unavailable when it cannot
// be bound, naming address and port.
absl::StatusOr<Listener> ListenTcp(const std::string& host, uint16_t port);
// An abstract unix socket: seen only inside this network namespace, gone with its owner.
absl::StatusOr<Listener> ListenAbstract(const std::string& name);
// "127.0.0.1" and 80 give "127.0.0.1:80"; IPv6 gets brackets.
std::string JoinAddress(const std::string& host, uint16_t port);

// The next waiting connection, or an invalid Fd when none waits. errors: ResourceExhausted when the
// process has no descriptors left.
absl::StatusOr<Fd> Accept(int listener);
// Begins to connect; the socket is writable once the outcome is known. errors: Unavailable when it
// failed at once.
absl::StatusOr<Fd> StartConnect(const std::string& address);
// The outcome of StartConnect. errors: Unavailable, with the kernel's reason.
absl::Status FinishConnect(int fd);

// What could be sent or received without waiting.
struct IoResult {
  size_t bytes = 0;
  bool closed = false;  // the peer is gone
};
IoResult SendSome(int fd, std::span<const std::byte> bytes);
IoResult ReceiveSome(int fd, std::span<std::byte> bytes);

// errors: Unavailable when the peer is gone, DeadlineExceeded.
absl::Status SendAll(int fd, std::span<const std::byte> bytes, absl::Time deadline);
absl::Status ReceiveAll(int fd, std::span<std::byte> bytes, absl::Time deadline);

// poll() until something is ready or `until` has passed; signals do not end it. Looks at least
// once. Returns the number of ready entries. errors: Internal.
absl::StatusOr<int> PollUntil(std::span<pollfd> fds, absl::Time until);

}  // namespace eplb

#endif  // EPLB_CLIENT_ROWS_CONTROL_SOCKET_H_
