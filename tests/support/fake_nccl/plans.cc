#include "tests/support/fake_nccl/plans.h"

#include <deque>
#include <optional>
#include <set>

namespace eplb::fake_nccl {
namespace {

constexpr int32_t kPlanBatches = (4096 - 32) / 16;
constexpr size_t kSharedBatch = 8;  // works in one batch

using Queue = std::deque<size_t>;

std::optional<size_t> Take(Queue& queue) {
  if (queue.empty()) return std::nullopt;
  const size_t front = queue.front();
  queue.pop_front();
  return front;
}

// Fills plans batch row by batch row; a row is one batch on each channel.
class Rows {
 public:
  explicit Rows(int32_t channels) : channels_(channels) {}

  // The plan that takes one more work of `round`.
  std::vector<size_t>& PlanFor(int32_t round) {
    if (plans_.empty() || rounds_.size() == kSharedBatch || rounds_.contains(round)) StartRow();
    rounds_.insert(round);
    return plans_.back();
  }

  std::vector<std::vector<size_t>> plans() && { return std::move(plans_); }

 private:
  void StartRow() {
    if (plans_.empty() || batches_ + channels_ > kPlanBatches) {
      plans_.emplace_back();
      batches_ = 0;
    }
    batches_ += channels_;
    rounds_.clear();
  }

  int32_t channels_;
  int32_t batches_ = 0;       // of the last plan
  std::set<int32_t> rounds_;  // in the last row
  std::vector<std::vector<size_t>> plans_;
};

}  // namespace

std::vector<std::vector<size_t>> CutIntoPlans(const std::vector<Operation>& operations,
                                              const Planner& planner) {
  const auto num_ranks = static_cast<size_t>(planner.num_ranks);
  std::vector<Queue> sends(num_ranks);
  std::vector<Queue> receives(num_ranks);
  for (size_t i = 0; i < operations.size(); ++i) {
    auto& queues = operations[i].is_send ? sends : receives;
    queues[static_cast<size_t>(operations[i].peer)].push_back(i);
  }
  Rows rows(planner.channels);
  // In round r a rank sends r ranks ahead and receives from r ranks behind; both are one work.
  for (size_t left = operations.size(); left > 0;) {
    for (int32_t round = 0; round < planner.num_ranks; ++round) {
      const int32_t ahead = (planner.rank + round) % planner.num_ranks;
      const int32_t behind = (planner.rank - round + planner.num_ranks) % planner.num_ranks;
      const std::optional<size_t> send = Take(sends[static_cast<size_t>(ahead)]);
      const std::optional<size_t> receive = Take(receives[static_cast<size_t>(behind)]);
      if (!send && !receive) continue;
      std::vector<size_t>& plan = rows.PlanFor(round);
      if (send) plan.push_back(*send);
      if (receive) plan.push_back(*receive);
      left -= (send ? 1U : 0U) + (receive ? 1U : 0U);
    }
  }
  return std::move(rows).plans();
}

}  // namespace eplb::fake_nccl
