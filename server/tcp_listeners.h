// Sockets that listen on an address of TCP, for gRPC and for HTTP.
#ifndef EPLB_SERVER_TCP_LISTENERS_H_
#define EPLB_SERVER_TCP_LISTENERS_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

#include "server/address.h"
#include "server/descriptor.h"

namespace eplb {

struct TcpListeners {
  std::vector<Descriptor> sockets;  // not blocking, at least one
  Address address;                  // with the port in use
};

// One socket for each address that the host's name stands for, at most `most` and all with one
// port. Those of a family that this machine lacks are left out. backlog: connections that the
// kernel keeps until they are accepted. errors: Unavailable, with the system's reason.
absl::StatusOr<TcpListeners> ListenTcp(const Address& address, int backlog, size_t most);

}  // namespace eplb

#endif  // EPLB_SERVER_TCP_LISTENERS_H_
