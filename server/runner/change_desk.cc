#include "server/runner/change_desk.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace eplb {

size_t ChangeDesk::NumOf(Who who) const {
  return static_cast<size_t>(
      std::ranges::count_if(waiting_, [who](const auto& one) { return one.second.who == who; }));
}

absl::StatusOr<int64_t> ChangeDesk::Take(Who who, Done done, absl::Time now) {
  const std::lock_guard lock(mutex_);
  if (!closed_.ok()) return closed_;
  const size_t engines = NumOf(Who::kEngine);
  if (who == Who::kEngine) {
    if (engines >= max_of_engines_) {
      return ResourceExhausted(engines, " questions of engines wait for the core already, as many ",
                               "as limits.max_plan_questions allows");
    }
  } else if (const size_t others = waiting_.size() - engines; others >= kMaxWaiting) {
    return ResourceExhausted(others, " changes wait for the core already, retry later");
  }
  if (who == Who::kRank && NumOf(Who::kRank) >= kMaxOfRanks) {
    return ResourceExhausted(kMaxOfRanks, " reservations wait for the core already, retry later");
  }
  const absl::Duration patience = who == Who::kEngine ? kEngineDeadline : kDeadline;
  waiting_.emplace(++last_ticket_, Waiting{std::move(done), now + patience, who});
  return last_ticket_;
}

void ChangeDesk::Answer(int64_t ticket, const absl::StatusOr<core::ChangeOutcome>& outcome) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) return;
    done = std::move(found->second.done);
    waiting_.erase(found);
  }
  done(outcome);
}

bool ChangeDesk::Drop(int64_t ticket) {
  const std::lock_guard lock(mutex_);
  return waiting_.erase(ticket) > 0;
}

void ChangeDesk::Expire(absl::Time now) {
  std::vector<std::pair<int64_t, Who>> late;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [ticket, waiting] : waiting_) {
      if (waiting.deadline <= now) late.emplace_back(ticket, waiting.who);
    }
  }
  for (const auto& [ticket, who] : late) {
    const bool engine = who == Who::kEngine;
    Answer(ticket,
           DeadlineExceeded("the core did not answer within ",
                            absl::FormatDuration(engine ? kEngineDeadline : kDeadline),
                            engine ? "; the next answer has what it decides meanwhile"
                                   : "; ask again with the same request_id to learn whether it "
                                     "was done"));
  }
}

void ChangeDesk::FailAll(const absl::Status& status) {
  std::map<int64_t, Waiting> waiting;
  {
    const std::lock_guard lock(mutex_);
    closed_ = status;
    waiting.swap(waiting_);
  }
  for (const auto& [ticket, one] : waiting) one.done(status);
}

}  // namespace eplb
