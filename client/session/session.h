// The rank's line to the daemon: one background thread that connects, talks and comes back.
#ifndef EPLB_CLIENT_SESSION_SESSION_H_
#define EPLB_CLIENT_SESSION_SESSION_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "client/session/backoff.h"
#include "client/session/connection.h"
#include "client/session/log_line.h"
#include "client/session/shared_member.h"

namespace eplb {

struct SessionOptions {
  ConnectionOptions connection;
  BackoffOptions backoff;
  absl::Duration close_deadline = absl::Seconds(2);  // of Close
  uint64_t seed = 0;                                 // of the jitter
  int32_t rank = 0;                                  // for what is told
  // Whether this rank tells when the daemon goes away and when it is back: one rank of a job does.
  bool speaks_for_all = true;
};

// A refused session (ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT, PERMISSION_DENIED,
// UNAUTHENTICATED) is logged once per reason, by each rank, and tried again at the longest delay.
// The training thread never waits for this one, except in Close. Threads: safe.
class Session {
 public:
  // Starts the thread. member: outlives the session.
  Session(SessionOptions options, SharedMember& member);
  // Closes if that was not done.
  ~Session();

  // Lets what `member` has to say, Goodbye last, reach the daemon; bounded by close_deadline.
  // REQUIRES: SayGoodbye or OnEnded was called on `member`.
  void Close();
  SessionStats stats() const { return figures_.stats(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  void Tell(const ConnectionEnd& end);
  // Once for each time that the daemon is away. why: begins a sentence's second half.
  void TellAway(const std::string& why);
  void TellBack();
  // Past the deadline of Close.
  bool GiveUp() const;
  // Waits `delay`, or until Close is called.
  void Wait(absl::Duration delay);
  bool closing() const;

  const SessionOptions options_;
  SharedMember& member_;
  ConnectionFigures figures_;
  LogOnce log_;  // the session's thread only
  // Of the time that was told that the daemon is away; the session's thread only.
  std::optional<Clock::time_point> away_since_;
  int64_t times_away_ = 0;  // the session's thread only
  std::mt19937_64 jitter_;  // the session's thread only
  mutable absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point close_by_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_SESSION_H_
