// Accepts the connections of one listening socket and hands them to gRPC once they speak, so that
// connections never take the descriptors that the store, probes and queries need.
#ifndef EPLB_SERVER_RPC_CONNECTION_ACCEPTOR_H_
#define EPLB_SERVER_RPC_CONNECTION_ACCEPTOR_H_

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

#include "server/descriptor.h"

namespace eplb {

// A client of gRPC speaks first, with TLS and without. A connection without a byte is therefore the
// first that must go when descriptors are short; a connection that spoke is never cut.
// threads: those of one thread, but for the thread that it owns and the counters.
class ConnectionAcceptor {
 public:
  static constexpr size_t kMaxSilent = 1024;
  struct Options {
    std::string address = {};  // for the log
    // A connection's descriptor must be below this. The kernel gives out the lowest free number, so
    // a higher one says that all below are in use.
    int32_t descriptors_below = std::numeric_limits<int32_t>::max();
    absl::Duration silence = absl::Seconds(10);  // from the connection to its first byte
    // Takes over a connection; called on the acceptor's thread.
    std::function<void(Descriptor)> serve = {};
  };
  // listener: does not block.
  ConnectionAcceptor(Descriptor listener, Options options);
  // As Stop.
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Accepts from now on. Once.
  void Start();
  // Accepts no more; closes the listener and what did not speak.
  void Stop();

  // Closed because descriptors or places for silent ones were short.
  int64_t crowded() const { return crowded_; }
  // Closed because they did not speak before the deadline.
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
  // The connection within the limits, for which the oldest silent one may be closed; else none.
  Descriptor Fit(Descriptor accepted);
  void LogClosed(absl::Time now);

  Descriptor listener_;
  const Descriptor stop_;  // an eventfd, readable once the thread must end
  const Options options_;
  std::list<Silent> waiting_;  // of the thread, oldest first; so are the next three
  absl::Time accept_from_ = absl::InfinitePast();
  absl::Time log_from_ = absl::InfinitePast();
  int64_t logged_ = 0;
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> silent_too_long_ = 0;
  std::thread thread_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_CONNECTION_ACCEPTOR_H_
