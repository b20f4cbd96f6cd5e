// The listener of a Unix socket without TLS. It accepts the connections itself and hands them to
// gRPC, because only the kernel has the user at the other end and gRPC's own listener does not ask.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/process/descriptor.h"
#include "server/rpc/connection_acceptor.h"

namespace grpc {
class Server;
}

namespace eplb {

// Begin of context.peer() on a connection of a UnixAcceptor; its descriptor follows.
inline constexpr std::string_view kAcceptedPeer = "fd:";

// The users at the other end of accepted connections. memory: one entry a descriptor number.
// threads: safe.
class UnixPeers {
 public:
  void Note(int descriptor, uid_t user);
  // peer: context.peer() of a call. Returns none for a call on another connection.
  std::optional<uid_t> UserOf(std::string_view peer) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, uid_t> users_;  // by descriptor; guarded by mutex_
};

// Returns "uid 1000 (alice)", or "uid 1000" if the user database has no name. cost: may wait for
// the directory service of the machine, so only rare calls use it.
std::string DescribeUser(uid_t user);

// threads: those of one thread, but for the thread that it owns and the counters.
class UnixAcceptor {
 public:
  struct Options {
    UnixPeers* peers = nullptr;  // outlives the acceptor
    // See ConnectionAcceptor::Options.
    int32_t descriptors_below = std::numeric_limits<int32_t>::max();
    absl::Duration silence = absl::Seconds(10);
  };
  // Replaces a socket on which no process accepts. The umask decides which users may connect.
  // errors: Unavailable with the system's reason.
  static absl::StatusOr<std::unique_ptr<UnixAcceptor>> Listen(const std::string& path,
                                                              Options options);
  // Begins to accept. server: started, and shut down only after this object's end. Called once.
  void Serve(grpc::Server* server);
  // Calls Stop.
  ~UnixAcceptor();
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

  // Ends accepting, and removes the socket.
  void Stop();

  const ConnectionAcceptor& connections() const { return acceptor_; }

 private:
  UnixAcceptor(std::string path, Descriptor listener, Options options);
  void Hand(Descriptor connection);

  const std::string path_;
  const Options options_;
  grpc::Server* server_ = nullptr;
  bool stopped_ = false;
  int connections_ = 0;  // handed over so far; of the acceptor's thread
  ConnectionAcceptor acceptor_;
};

}  // namespace eplb
