// One connection to the daemon: one bidirectional stream from Hello to its end.
#ifndef EPLB_CLIENT_SESSION_CONNECTION_H_
#define EPLB_CLIENT_SESSION_CONNECTION_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "client/session/shared_member.h"
#include "proto/wire/tls_files.h"

namespace eplb {

struct ConnectionOptions {
  std::string endpoint;                                 // HOST:PORT or unix:PATH
  wire::TlsFiles tls;                                   // read anew for every connection
  absl::Duration welcome_deadline = absl::Seconds(10);  // connecting and Welcome together
  absl::Duration goodbye_deadline = absl::Seconds(2);   // half-close to the end of the stream
  std::function<void()> on_welcome = {};  // on the thread of RunConnection; may be empty
};

struct SessionStats {
  bool connected = false;
  int64_t reconnects = 0;  // connections with a Welcome after the first
  int64_t reports_sent = 0;
  int64_t refusals = 0;             // streams that the daemon refused, each told or told before
  double disconnected_seconds = 0;  // since the session began
};

// The figures of all connections of a session. Threads: safe.
class ConnectionFigures {
 public:
  void OnWelcome();
  void OnReport();
  void OnRefusal();  // after it was told
  void OnEnd();      // of a connection, with or without a Welcome
  SessionStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable absl::Mutex mutex_;
  int64_t welcomes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reports_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::duration away_ ABSL_GUARDED_BY(mutex_){};  // before away_since_
  Clock::time_point away_since_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

struct ConnectionEnd {
  absl::Status status;        // of the stream; OK when the daemon ended it in order
  bool welcomed = false;      // Welcome came
  bool drained = false;       // the daemon asked us to come back later
  bool said_goodbye = false;  // Goodbye was sent: nothing is left to say
};

// Runs a stream to its end on the calling thread, which does all of gRPC's work; a message that
// comes to `member` from another thread leaves within kPollInterval. give_up: asked at every turn;
// true cancels the stream.
ConnectionEnd RunConnection(const ConnectionOptions& options, SharedMember& member,
                            const std::function<bool()>& give_up, ConnectionFigures& figures);

inline constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_CONNECTION_H_
