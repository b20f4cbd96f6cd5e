// The rank's line to the daemon: one background thread that connects, talks and comes back.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "client/session/connection.h"
#include "client/session/log_line.h"
#include "client/session/shared_member.h"

namespace eplb {

struct SessionOptions {
  std::vector<std::string> endpoints;  // at least one, each HOST:PORT or unix:PATH
  ConnectionOptions connection;
  BackoffOptions backoff;
  absl::Duration close_deadline = absl::Seconds(2);  // limit of Close
  uint64_t seed = 0;                                 // seed of the jitter
  int32_t rank = 0;                                  // for what is told
  // True if this rank logs when the daemon is lost, when it is back, whether it balances this run,
  // and when the ranks change to another daemon. One rank of a job does.
  bool speaks_for_all = true;
};

// A refused session (ALREADY_EXISTS, FAILED_PRECONDITION, INVALID_ARGUMENT, PERMISSION_DENIED,
// UNAUTHENTICATED) is logged once per reason, by each rank, and tried again at the longest delay.
// Of several endpoints one is spoken to, by EndpointChoice, until another daemon leads this run.
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
  void OnWelcome(const wire::Welcome& welcome);
  void OnKeep();
  // How long until the next stream. failures: streams since the last Welcome.
  // Which daemon is next.
  void Choose(const ConnectionEnd& end);
  absl::Duration DelayAfter(const ConnectionEnd& end, int32_t failures);
  // Once for each time that the daemon is away. why: begins a sentence's second half.
  void TellAway(const std::string& why);
  void TellBack();
  // Past the deadline of Close.
  bool GiveUp() const;
  // Waits `delay`, or until Close is called.
  void Wait(absl::Duration delay);
  bool closing() const;
  // True if the thread has nothing left to do; waits at most `time` for it.
  bool EndsWithin(absl::Duration time) const;

  const SessionOptions options_;
  SharedMember& member_;
  ConnectionFigures figures_;
  // The session's thread only, up to the mutex.
  EndpointChoice choice_;
  int32_t refusals_ = 0;  // since the last Welcome
  LogOnce log_;
  // Time at which the loss of a daemon was logged, and its name.
  std::optional<Clock::time_point> away_since_;
  std::string away_;
  int64_t times_away_ = 0;
  bool told_waits_ = false;  // this run is not balanced yet
  std::mt19937_64 jitter_;
  mutable absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  Clock::time_point close_by_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace eplb
