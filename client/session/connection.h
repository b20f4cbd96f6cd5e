// One connection to the daemon: one bidirectional stream from Hello to its end.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "client/session/shared_member.h"
#include "proto/wire/messages.h"

namespace eplb {

// Which of several daemons a rank speaks to. Without I/O and clock.

// Threads: not safe.
class EndpointChoice {
 public:
  using Clock = std::chrono::steady_clock;
  // A daemon that has answered is tried for so long before another one is: it may be restarting,
  // and ranks at two daemons are balanced by neither.
  static constexpr std::chrono::seconds kStay{5};
  // One that was elected has been replaced when it restarts, and the others know by which.
  static constexpr std::chrono::seconds kStayElected{1};

  // endpoints: at least one, the first choice first. grace: for how long one that has never
  // answered is tried, e.g. while it starts.
  EndpointChoice(std::vector<std::string> endpoints, Clock::duration grace)
      : endpoints_(std::move(endpoints)), grace_(grace) {}

  const std::string& current() const { return endpoints_[current_]; }
  size_t position() const { return current_; }
  const std::vector<std::string>& endpoints() const { return endpoints_; }

  void OnAnswer(bool elected = false) {
    answered_ = true;
    elected_ = elected;
    failing_since_.reset();
    avoided_.erase(current());
  }
  // The current one did not answer, or its stream broke. True when it is the next one's turn.
  bool OnFailure(Clock::time_point now) {
    NoteMoveInVain(now);
    if (!failing_since_.has_value()) failing_since_ = now;
    const Clock::duration stay =
        answered_ ? Clock::duration(elected_ ? kStayElected : kStay) : grace_;
    if (endpoints_.size() == 1 || now - *failing_since_ < stay) return false;
    Take((current_ + 1) % endpoints_.size());
    return true;
  }
  // The current one refused the rank. One that had welcomed it knows what it says; one that never
  // did may be a stranger to the job, and the next one is asked.
  void OnRefusal(Clock::time_point now) {
    NoteMoveInVain(now);
    if (!answered_) Take((current_ + 1) % endpoints_.size());
  }
  // The current one stands by for the daemon at `leader`, empty when none leads.
  void OnStandby(const std::string& leader) {
    NoteMoveInVain(Clock::now());
    const auto found = std::ranges::find(endpoints_, leader);
    const auto named = static_cast<size_t>(found - endpoints_.begin());
    const bool is_another = found != endpoints_.end() && named != current_;
    Take(is_another ? named : (current_ + 1) % endpoints_.size());
  }
  // The daemon at `endpoint`, one of the list, leads this run.
  void GoTo(const std::string& endpoint) {
    const auto found = std::ranges::find(endpoints_, endpoint);
    if (found == endpoints_.end()) return;
    Take(static_cast<size_t>(found - endpoints_.begin()));
    was_sent_ = true;
  }
  // False for a while after a rank was sent there and not welcomed: that daemon leads, and has no
  // place for all ranks.
  bool MayGoTo(const std::string& endpoint, Clock::time_point now) const {
    const auto found = avoided_.find(endpoint);
    return found == avoided_.end() || now >= found->second.until;
  }

 private:
  struct Avoided {
    Clock::time_point until;
    std::chrono::minutes pause{1};  // twice as long each time
  };
  static constexpr std::chrono::minutes kLongestPause{16};

  void Take(size_t position) {
    current_ = position;
    answered_ = false;
    was_sent_ = false;
    failing_since_.reset();
  }
  void NoteMoveInVain(Clock::time_point now) {
    if (!std::exchange(was_sent_, false) || answered_) return;
    const auto [avoided, is_new] = avoided_.try_emplace(current());
    if (!is_new) avoided->second.pause = std::min(2 * avoided->second.pause, kLongestPause);
    avoided->second.until = now + avoided->second.pause;
  }

  std::vector<std::string> endpoints_;
  Clock::duration grace_;
  size_t current_ = 0;
  bool answered_ = false;                   // the current one, since it is the current one
  bool elected_ = false;                    // the one that answered last
  bool was_sent_ = false;                   // to the current one, by GoTo
  std::map<std::string, Avoided> avoided_;  // by endpoint
  std::optional<Clock::time_point> failing_since_;
};

// How long to wait before the next attempt to reach the daemon.

struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(200);
  absl::Duration longest = absl::Seconds(30);
  absl::Duration refused = absl::Seconds(30);  // at most, after a daemon that refused the rank
};

// Returns the back-off of a job of `world_size` ranks. Together the ranks make about 200 attempts a
// second, from 3,000 ranks on about world_size / 15. A small job finds a daemon that is back within
// seconds.
inline BackoffOptions BackoffFor(int32_t world_size) {
  const absl::Duration spread = absl::Seconds(world_size / 100.0);
  return {.longest = std::clamp(spread, absl::Seconds(2), absl::Seconds(30))};
}

// Full jitter: uniform between 0 and min(longest, first * 2^failures), so that the ranks of a job
// do not come back all at once. failures: attempts since the last Welcome, >= 0. uniform: in [0,
// 1).
inline absl::Duration BackoffDelay(const BackoffOptions& options, int32_t failures,
                                   double uniform) {
  const int64_t factor = int64_t{1} << std::min(failures, 20);  // 0.2 s * 2^20 is above any limit
  return uniform * std::min(options.longest, options.first * factor);
}

struct ConnectionOptions {
  wire::TlsFiles tls;                                   // read anew for every connection
  absl::Duration welcome_deadline = absl::Seconds(10);  // connecting and Welcome together
  absl::Duration goodbye_deadline = absl::Seconds(2);   // half-close to the end of the stream
  // The same on leaving a daemon that leads no more, and may hang.
  absl::Duration deposed_deadline = absl::Milliseconds(300);
  // How often the other daemons of the list are asked whether they lead this rank's run.
  absl::Duration leader_every = absl::Seconds(2);
  uint64_t seed = 0;  // seed of the jitter
  // On the thread of RunConnection; each may be empty.
  std::function<void(const wire::Welcome&)> on_welcome = {};
  std::function<void()> on_keep = {};                       // this run is the job's own
  std::function<void(const std::string&)> on_unknown = {};  // a message of a later daemon, once
};

struct SessionStats {
  bool connected = false;
  int64_t reconnects = 0;  // connections with a Welcome after the first
  int64_t reports_sent = 0;
  int64_t refusals = 0;             // streams that the daemon refused, each told or told before
  int64_t unknown_messages = 0;     // messages of kinds that this version does not know; skipped
  double disconnected_seconds = 0;  // since the session began
};

// The figures of all connections of a session. Threads: safe.
class ConnectionFigures {
 public:
  void OnWelcome();
  // figure: reports_sent, unknown_messages, or refusals, after one was told.
  void Add(int64_t SessionStats::*figure);
  void OnEnd();  // after the end of a connection, with or without a Welcome
  SessionStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable absl::Mutex mutex_;
  // The first Welcome is no reconnect. disconnected_seconds is not kept here.
  SessionStats stats_ ABSL_GUARDED_BY(mutex_) = {.reconnects = -1};
  Clock::duration away_ ABSL_GUARDED_BY(mutex_){};  // before away_since_
  Clock::time_point away_since_ ABSL_GUARDED_BY(mutex_) = Clock::now();
};

struct ConnectionEnd {
  absl::Status status;        // status of the stream; OK when the daemon ended it in order
  bool welcomed = false;      // Welcome came
  bool drained = false;       // the daemon asked us to retry later
  bool said_goodbye = false;  // Goodbye was sent: nothing is left to say
  // Another daemon leads this rank's run: the next stream is to that one.
  std::optional<wire::Moved> moved = std::nullopt;
  // The daemon stands by for this one; empty: for none.
  std::optional<std::string> standby = std::nullopt;
};

// Runs a stream to the current endpoint of `choice` to its end on the calling thread, which does
// all of gRPC's work; a message that comes to `member` from another thread leaves within
// kPollInterval. give_up: asked at every turn; true cancels the stream.
ConnectionEnd RunConnection(const ConnectionOptions& options, const EndpointChoice& choice,
                            SharedMember& member, const std::function<bool()>& give_up,
                            ConnectionFigures& figures);

inline constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

}  // namespace eplb
