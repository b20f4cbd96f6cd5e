// The daemon's decisions: a deterministic library without gRPC, threads, clock or I/O.
// Events enter one at a time with the time as a value. Effects leave in the order in which they
// must happen.
//
// Duties of the caller:
// - It stores `term()` durably before it serves any rank, or hands in StoreFailed of a StoreTerm as
//   the first event. It executes the effects of one decision in order before the next event.
// - When a Store, StoreTerm or required Forget fails, it drops the rest of that decision and hands
// in
//   StoreFailed as the very next event (job empty for a StoreTerm). Any other event means that they
//   succeeded.
// - A Send or Close to a session that is gone does nothing. After a Close it hands in nothing more
// of
//   that session except its SessionClosed.
// - It hands in a Tick at least once a second, because only a Tick checks deadlines and graces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "server/core/values/config.h"
#include "server/core/values/core_lock.h"
#include "server/core/values/counters.h"
#include "server/core/values/events.h"
#include "server/core/values/record.h"
#include "server/core/values/views.h"

#include "eplb/v1/query.pb.h"

namespace eplb::core {

struct State;

// Threads: not safe; the caller serialises. While Handle has released its lock the const functions
// may be called on other threads, one at a time. Memory: bounded by Config's limits.
class Core {
 public:
  // stored_term: the highest term ever stored; this core leads with stored_term + 1, which the
  // caller stores (from `term()`) before it serves.
  Core(Config config, int64_t stored_term, std::vector<StoredJob> stored_jobs, absl::Time now);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Never fails: what is wrong with an event is answered on its session. lock: held by the caller,
  // released while something long is computed and held again at the end; null: no other thread
  // reads.
  Decision Handle(const Event& event, absl::Time now, CoreLock* lock = nullptr);

  int64_t term() const;
  // Texts are as the ranks sent them; wire::ClipTexts makes them fit to be sent.
  std::vector<v1::JobStatus> Jobs(absl::Time now) const;                               // by name
  absl::StatusOr<v1::JobStatus> Job(const std::string& job, absl::Time now) const;     // NotFound
  absl::StatusOr<wire::PlacementBody> PlacementInForce(const std::string& job) const;  // NotFound
  // Above every version ever given out under this name, by this daemon and those before it.
  absl::StatusOr<int64_t> NextVersion(const std::string& job) const;  // NotFound
  // Newest first, at most kMaxPlans and `limit`, without their times. NotFound for an unknown job.
  absl::StatusOr<std::vector<v1::Plan>> Plans(const std::string& job, int32_t limit) const;
  // NotFound for an unknown job, and for a plan that is not kept.
  absl::StatusOr<v1::Plan> OnePlan(const std::string& job, int64_t plan) const;
  // NotFound for an unknown job and before the first complete window.
  absl::StatusOr<WindowView> NewestWindow(const std::string& job) const;
  // The version that a Rollback goes to: the one asked for, or the one before the decision that led
  // to the current version. NotFound for an unknown job, FailedPrecondition when that is not known.
  absl::StatusOr<int64_t> RollbackTarget(const std::string& job,
                                         std::optional<int64_t> to_version) const;
  // NotFound unless this is the current run of a job that is known.
  absl::StatusOr<LeaderView> Leader(const std::string& job, const std::string& run_id) const;
  // Returns refusals of jobs that the daemon does not know, newest first, at most 16.
  std::vector<v1::Refusal> Refusals(absl::Time now) const;
  const Counters& counters() const;
  // Returns the bytes of the loads in the windows of all jobs.
  int64_t window_bytes() const;
  // Ok when proposals can be made; else the reason in one sentence: the daemon drains, or what must
  // be stored first cannot be stored. A job that is RECOVERING does not count: its ranks still have
  // to reach this daemon.
  absl::Status Readiness() const;

 private:
  friend struct CorePeer;  // for the tests that explore: reads the state and goes on from a copy

  std::unique_ptr<State> state_;
};

}  // namespace eplb::core
