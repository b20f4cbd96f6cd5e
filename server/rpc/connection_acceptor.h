// Accepts the connections of one listening socket and hands them to gRPC once they send a byte. So
// connections never take the descriptors that the store, probes and queries need.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "server/process/descriptor.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}

namespace eplb {

// A client of gRPC sends first, with TLS and without. When descriptors are short, connections that
// sent no byte are therefore closed first. A connection that sent a byte is never closed.
// threads: those of one thread, but for the thread that it owns and the counters.
class ConnectionAcceptor {
 public:
  static constexpr size_t kMaxSilent = 1024;
  struct Options {
    std::string address = {};  // for the log
    // A connection's descriptor must be below this. The kernel gives out the lowest free number, so
    // a higher one means that all lower ones are in use.
    int32_t descriptors_below = std::numeric_limits<int32_t>::max();
    absl::Duration silence = absl::Seconds(10);  // from the connection to its first byte
    // Takes over a connection; called on the acceptor's thread.
    std::function<void(Descriptor)> serve = {};
  };
  // listener: does not block.
  ConnectionAcceptor(Descriptor listener, Options options);
  // Calls Stop.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Begins to accept. Called once.
  void Start();
  // Ends accepting; closes the listener and the connections that sent nothing.
  void Stop();

  // Connections closed because descriptors, or places for silent connections, were short.
  int64_t crowded() const { return crowded_; }
  // Connections closed because they sent nothing before the deadline.
  int64_t silent() const { return silent_too_long_; }

 private:
  struct Silent {
    Descriptor descriptor;
    absl::Time give_up;
  };
  void Loop();
  void ServeSpeaking(const std::vector<pollfd>& polled);
  void DropLate(absl::Time now);
  void AcceptWaiting(absl::Time now);
  // Returns the connection if it is within the limits, otherwise none. Closes the oldest silent
  // connection if that makes room.
  Descriptor Fit(Descriptor accepted);
  void LogClosed(absl::Time now);

  Descriptor listener_;
  const Descriptor stop_;  // an eventfd, readable once the thread must end
  const Options options_;
  std::list<Silent> waiting_;  // used by the thread, oldest first; so are the next three
  absl::Time accept_from_ = absl::InfinitePast();
  absl::Time log_from_ = absl::InfinitePast();
  int64_t logged_ = 0;
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> silent_too_long_ = 0;
  std::thread thread_;
};

// A connection is dropped if what was sent on it is not acknowledged for this time: the path or the
// rank is dead.
inline constexpr int kUnansweredMs = 5000;

// Makes a TCP connection one of gRPC's, with the options that gRPC's own listener sets.
void HandToGrpc(Descriptor connection, grpc::experimental::ExternalConnectionAcceptor& door);

}  // namespace eplb
