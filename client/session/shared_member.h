// A Member between the training thread and the session's thread: one short lock around it, the
// messages that wait to be sent, and the load windows. The training thread takes it only when there
// is a proposal to vote on or something to tell: a lock that is free again after microseconds may
// be had milliseconds later when its holder, or who waits, loses the processor. No gRPC, so that it
// runs under ThreadSanitizer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "client/session/load_windows.h"
#include "client/session/member.h"

namespace eplb {

// Threads: safe. No call of the training thread waits for I/O; `on_prepared` may. Memory: bounded
// by kMaxMessages, kMaxKept windows and the window buffer.
class SharedMember {
 public:
  // Answers that wait while the daemon does not read. More than that and the connection is given
  // up: the next Hello says it all.
  static constexpr size_t kMaxMessages = 64;

  // Told the proposal and the last finished step before PREPARED can be voted on or is told to the
  // daemon. Called on the session's thread without the lock, so that a log on a stalled file system
  // delays no boundary; when the rank changes meanwhile, PREPARED does not follow.
  using OnPrepared = std::function<void(const Proposal&, int64_t step)>;

  // max_window_steps: as WindowBuffer.
  SharedMember(Member member, int64_t max_window_steps, OnPrepared on_prepared);

  // ---- training thread ----
  // Counts the step, keeps a finished window and says how long windows are now; returns what the
  // daemon asked for last, report_every 0 when it never asked. Without a wait: when the lock is
  // taken, the window and the answer follow at a later step.
  wire::SetReportInterval FinishStep(int64_t step, std::optional<wire::LoadReport> window,
                                     int32_t report_every);
  // Without a lock while this rank is PREPARED for nothing; so is its Decide.
  VoteSnapshot Enter();
  VoteDecision Decide(std::span<const int64_t> minimum);
  // True if a proposal was received that is neither applied, dropped nor rejected. Without a lock.
  bool knows_proposal() const { return is_checking_ || may_be_prepared_; }
  void OnApplied(int64_t received_bytes, double pause_seconds);
  void SetTransport(std::string_view name, std::string_view fallback_reason);
  void OnDropped(std::string_view reason);
  void OnEnded(std::string_view reason, std::span<const RankId> missing_ranks);
  // The last message; the first one given stays. After it nothing is sent and nothing is taken in:
  // no PREPARED may follow the stop in this rank's log.
  void SayGoodbye(wire::Goodbye goodbye);

  // ---- session thread ----
  // A connection begins: what waited is dropped, because Hello carries the truth.
  wire::Hello Connect();
  // Answers and outcomes first, then, if asked for, the oldest window, and Goodbye when it was
  // said. After that no more than one window leaves before it: a daemon that was kept up with then
  // has the last steps as well, and one that was not does not take the job's end for a crash.
  std::optional<wire::UpMessage> Next(bool with_windows);
  void OnDown(const wire::DownMessage& message);
  // True once when more than kMaxMessages waited: the connection has to begin anew.
  bool TakeOverflow();

  // ---- any thread ----
  int64_t dropped_steps() const;
  // Times the training thread waited longer than kLongWait for the lock.
  int64_t long_waits() const { return long_waits_; }
  static constexpr std::chrono::milliseconds kLongWait{1};
  static constexpr std::chrono::microseconds kSpin{100};  // before it sleeps for the lock

 private:
  // Windows that FinishStep keeps before it waits for the lock after all.
  static constexpr size_t kMaxKept = 16;

  // Takes the lock for the training thread, and counts when that takes long.
  std::unique_lock<std::mutex> LockForTraining();
  // Brings what only the training thread knows to where the lock guards it. REQUIRES: the lock, on
  // the training thread.
  void HandOver();
  // Tells the member what the training thread counted; Publish tells the training thread whether
  // a boundary has something to do. Each change of the member lies between the two. REQUIRES: the
  // lock.
  void Update();
  void Publish() { may_be_prepared_ = member_.prepared() != nullptr; }
  void Push(std::vector<wire::UpMessage> messages);  // REQUIRES: the lock
  void OnPropose(const wire::Propose& propose);

  const OnPrepared on_prepared_;
  std::atomic<int64_t> long_waits_ = 0;
  // Written by the training thread.
  std::atomic<int64_t> step_;
  std::atomic<int32_t> report_every_;
  // Written under the lock. False: Enter would find nothing PREPARED.
  std::atomic<bool> may_be_prepared_ = false;
  std::atomic<bool> is_checking_ = false;  // a proposal is being checked
  std::atomic<int64_t> num_report_intervals_ = 0;
  // Only the training thread uses the next members.
  std::vector<wire::LoadReport> kept_;  // windows that wait for the lock
  std::optional<VoteSnapshot> open_;    // the vote that was entered without the lock
  int64_t running_bits_;
  int64_t report_intervals_seen_ = 0;
  wire::SetReportInterval report_interval_seen_;

  // std::mutex: the packaged Abseil is built without ThreadSanitizer, which then does not see what
  // its mutex orders.
  mutable std::mutex mutex_;  // guards all that follows
  Member member_;
  int64_t num_sessions_ = 0;
  WindowBuffer windows_;
  std::deque<wire::UpMessage> messages_;
  std::optional<wire::Goodbye> goodbye_;
  bool last_window_left_ = false;            // the window before Goodbye was sent
  wire::SetReportInterval report_interval_;  // the newest
  bool overflow_ = false;
};

}  // namespace eplb
