// One connection to the daemon: one bidirectional stream from Hello to its end.
#ifndef EPLB_CLIENT_SESSION_CONNECTION_H_
#define EPLB_CLIENT_SESSION_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "client/session/endpoint_choice.h"
#include "client/session/shared_member.h"
#include "proto/wire/tls_files.h"

namespace eplb {

struct ConnectionOptions {
  wire::TlsFiles tls;                                   // read anew for every connection
  absl::Duration welcome_deadline = absl::Seconds(10);  // connecting and Welcome together
  absl::Duration goodbye_deadline = absl::Seconds(2);   // half-close to the end of the stream
  // How often the other daemons of the list are asked whether they lead this rank's launch.
  absl::Duration leader_every = absl::Seconds(2);
  uint64_t seed = 0;  // of the jitter
  // On the thread of RunConnection; each may be empty.
  std::function<void(const wire::Welcome&)> on_welcome = {};
  std::function<void()> on_keep = {};                       // this launch is the job's own
  std::function<void(const std::string&)> on_unknown = {};  // a message of a later daemon, once
};

struct SessionStats {
  bool connected = false;
  int64_t reconnects = 0;  // connections with a Welcome after the first
  int64_t reports_sent = 0;
  int64_t refusals = 0;             // streams that the daemon refused, each told or told before
  int64_t unknown_messages = 0;     // of kinds that this version does not know; skipped
  double disconnected_seconds = 0;  // since the session began
};

// The figures of all connections of a session. Threads: safe.
class ConnectionFigures {
 public:
  void OnWelcome();
  void OnReport();
  void OnRefusal();  // after it was told
  void OnUnknown();
  void OnEnd();  // of a connection, with or without a Welcome
  SessionStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable absl::Mutex mutex_;
  int64_t welcomes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reports_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t unknown_ ABSL_GUARDED_BY(mutex_) = 0;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::duration away_ ABSL_GUARDED_BY(mutex_){};  // before away_since_
  Clock::time_point away_since_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

struct ConnectionEnd {
  absl::Status status;        // of the stream; OK when the daemon ended it in order
  bool welcomed = false;      // Welcome came
  bool drained = false;       // the daemon asked us to come back later
  bool said_goodbye = false;  // Goodbye was sent: nothing is left to say
  // Another daemon leads this rank's launch: the next stream is to that one.
  std::optional<wire::Moved> moved = std::nullopt;
};

// Runs a stream to the current endpoint of `choice` to its end on the calling thread, which does
// all of gRPC's work; a message that comes to `member` from another thread leaves within
// kPollInterval. give_up: asked at every turn; true cancels the stream.
ConnectionEnd RunConnection(const ConnectionOptions& options, const EndpointChoice& choice,
                            SharedMember& member, const std::function<bool()>& give_up,
                            ConnectionFigures& figures);

inline constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_CONNECTION_H_
