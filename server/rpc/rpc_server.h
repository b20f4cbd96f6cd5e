// The gRPC side of the daemon: Balancer, Query, Admin, health and reflection on one address.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "server/config/tls_options.h"
#include "server/process/socket.h"
#include "server/rpc/gate.h"
#include "server/rpc/rendezvous.h"
#include "server/rpc/rpc_times.h"
#include "server/runner/runner.h"

namespace eplb {

// Streams that ended since the start.
struct StreamEnds {
  int64_t goodbye = 0;
  int64_t closed = 0;  // by the daemon
  int64_t lost = 0;    // without Goodbye
};

struct RpcOptions {
  Address listen;
  // A second address beside one of TCP, for processes of this machine and never with TLS: a
  // socket's path; empty: none. Its file's mode says who may connect.
  std::string unix_socket = {};
  bool unix_socket_optional = false;   // start without it, and log why, when it cannot be opened
  bool unix_socket_for_group = false;  // sockets have the mode 0660, else 0600
  Runner* runner = nullptr;            // outlives the server
  int32_t messages_per_second = 100;
  Rendezvous::Limits rendezvous = {};
  TlsOptions tls = {};
  PeerLimits::Options peers = {};
  int32_t max_streams_per_connection = 128;
  size_t max_memory_bytes = size_t{1} << 30;              // gRPC's buffers of all connections
  absl::Duration handshake_deadline = absl::Seconds(10);  // also for a connection's first byte
  // Connections whose descriptors are not below these are closed; see ConnectionAcceptor.
  int32_t tcp_below = std::numeric_limits<int32_t>::max();
  int32_t unix_below = std::numeric_limits<int32_t>::max();
  std::string server_version = {};
  std::string store = {};   // see GetStatusResponse
  std::string leader = {};  // see GetStatusResponse
};

// threads: safe.
class RpcServer {
 public:
  static constexpr int kMaxReceiveBytes = wire::kMaxMessageBytes;  // one message of a rank

  // errors: Unavailable when the address cannot be listened on, with the system's reason;
  // InvalidArgument naming a file of options.tls.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcOptions options);
  // Calls Shutdown with no grace.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  // With the port in use.
  const Address& address() const;
  // The path of the second address; empty: none.
  const std::string& unix_socket() const;
  // The health service says NOT_SERVING, new streams and all-gathers are refused, waiting
  // all-gathers end with Unavailable.
  void StopServing();
  // Ends what is open with Unavailable, cancels what is still there after `grace` and returns.
  void Shutdown(absl::Duration grace);

  // StopServing was called.
  bool draining() const;
  // Since the start; kHandshake: see grpc_log.h.
  int64_t refusals(Refusal refusal) const;
  StreamEnds stream_ends() const;
  std::vector<RpcTimes::Series> rpc_times() const;

 private:
  struct Parts;
  explicit RpcServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace eplb
