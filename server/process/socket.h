// Sockets that listen on a TCP address, for gRPC and for HTTP.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

#include "server/process/address.h"
#include "server/process/descriptor.h"

namespace eplb {

struct TcpListeners {
  std::vector<Descriptor> sockets;  // not blocking, at least one
  Address address;                  // with the port in use
};

// Listens on each address that the host's name stands for, on at most `most` and all with one port.
// Skips the addresses of a family that this machine lacks. backlog: connections that the kernel
// keeps until they are accepted. errors: Unavailable with the system's reason.
absl::StatusOr<TcpListeners> ListenTcp(const Address& address, int backlog, size_t most);

}  // namespace eplb
