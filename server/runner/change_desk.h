// The calls that wait for the core's answer: changes of operators, and questions of ranks and
// engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/values/record.h"

namespace eplb {

// Every change that was taken is answered exactly once: by the core, by its deadline, or by
// FailAll. threads: safe; `done` is called without a lock held.
class ChangeDesk {
 public:
  using Done = std::function<void(const absl::StatusOr<core::ChangeOutcome>&)>;
  static constexpr size_t kMaxWaiting = 256;
  // Most waiting reservations of versions by ranks, so that operators always find a place.
  static constexpr size_t kMaxOfRanks = 32;
  static constexpr size_t kMaxOfEngines = 64;
  // From Take to the core's answer: a core that takes longer hangs in its store.
  static constexpr absl::Duration kDeadline = absl::Seconds(20);
  // The same for a question of an engine, which a placement may have to be computed for.
  static constexpr absl::Duration kEngineDeadline = absl::Minutes(1);

  // max_of_engines: most waiting questions of engines, beside kMaxWaiting others.
  explicit ChangeDesk(size_t max_of_engines = kMaxOfEngines) : max_of_engines_(max_of_engines) {}

  // The ticket for the change. errors: ResourceExhausted when too many wait, Unavailable after
  // FailAll; `done` is not called then.
  enum class Who { kOperator, kRank, kEngine };
  absl::StatusOr<int64_t> Take(Who who, Done done, absl::Time now);
  // Does nothing for a ticket that was answered before.
  void Answer(int64_t ticket, const absl::StatusOr<core::ChangeOutcome>& outcome);
  // Forgets a change without an answer; false when it was answered before.
  bool Drop(int64_t ticket);
  // Answers what waits too long with DeadlineExceeded: the change may still be done, and asking
  // again with its request_id tells.
  void Expire(absl::Time now);
  // Answers all that wait, and every later one.
  void FailAll(const absl::Status& status);

 private:
  struct Waiting {
    Done done;
    absl::Time deadline;
    Who who = Who::kOperator;
  };
  size_t NumOf(Who who) const;  // under the lock

  const size_t max_of_engines_;

  std::mutex mutex_;  // guards what follows
  std::map<int64_t, Waiting> waiting_;
  int64_t last_ticket_ = 0;
  absl::Status closed_;
};

}  // namespace eplb
