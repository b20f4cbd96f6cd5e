// Sockets of the daemon: addresses, listeners and descriptors that close themselves.
#ifndef EPLB_SERVER_PROCESS_SOCKET_H_
#define EPLB_SERVER_PROCESS_SOCKET_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

// Where eplbd listens: "127.0.0.1:29610", "[::1]:29610", "localhost:0" or
// "unix:/run/eplb/eplbd.sock".

struct Address {
  std::string host = {};       // without brackets; empty for a Unix socket
  int32_t port = 0;            // 0 = any free one
  std::string unix_path = {};  // empty for TCP

  bool is_unix() const { return !unix_path.empty(); }
  // True when only processes of this machine can reach it.
  bool IsLoopback() const;
  // As given, IPv6 hosts in brackets.
  std::string Text() const;
  Address WithPort(int32_t real_port) const;
};

// errors: InvalidArgument, saying what is expected: no port, a port above 65535, an empty host or
// path, a Unix path longer than the 107 bytes of sockaddr_un.
absl::StatusOr<Address> ParseAddress(std::string_view text);

// Owns a file descriptor.

class Descriptor {
 public:
  Descriptor() = default;  // none
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) (void)close(value_);
  }

  int get() const { return value_; }  // -1: none
  // The caller closes it from now on.
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_ = -1;
};

// Sockets that listen on an address of TCP, for gRPC and for HTTP.

struct TcpListeners {
  std::vector<Descriptor> sockets;  // not blocking, at least one
  Address address;                  // with the port in use
};

// One socket for each address that the host's name stands for, at most `most` and all with one
// port. Those of a family that this machine lacks are left out. backlog: connections that the
// kernel keeps until they are accepted. errors: Unavailable, with the system's reason.
absl::StatusOr<TcpListeners> ListenTcp(const Address& address, int backlog, size_t most);

}  // namespace eplb

#endif  // EPLB_SERVER_PROCESS_SOCKET_H_
