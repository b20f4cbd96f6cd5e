#include "tests/support/fake_nccl/plans.h"

#include <deque>
#include <set>

namespace eplb::fake_nccl {
namespace {

constexpr int32_t kPlanBatches = (4096 - 32) / 16;
constexpr size_t kSharedBatch = 8;  // works in one batch

using Queue = std::deque<size_t>;

void MoveFront(Queue& queue, std::vector<size_t>& plan) {
  if (queue.empty()) return;
  plan.push_back(queue.front());
  queue.pop_front();
}

// The batches of one plan, row by row; a row is one batch on each channel.
class Rows {
 public:
  explicit Rows(int32_t channels) : channels_(channels) {}

  // Adds a work of `round`; false if it has no place.
  bool Add(int32_t round) {
    if (batches_ == 0 || rounds_.size() == kSharedBatch || rounds_.contains(round)) {
      if (batches_ + channels_ > kPlanBatches) return false;
      batches_ += channels_;
      rounds_.clear();
    }
    rounds_.insert(round);
    return true;
  }

 private:
  int32_t channels_;
  int32_t batches_ = 0;
  std::set<int32_t> rounds_;  // in the last row
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
  std::vector<std::vector<size_t>> plans;
  for (size_t left = operations.size(); left > 0; left -= plans.back().size()) {
    plans.emplace_back();
    Rows rows(planner.channels);
    // In round r a rank sends r ranks ahead and receives from r ranks behind; both are one work.
    // Each plan begins with round 0 again, wherever the plan before was full: that is what brings
    // the ranks' orders apart.
    bool full = false;
    while (!full && plans.back().size() < left) {
      for (int32_t round = 0; round < planner.num_ranks; ++round) {
        Queue& send = sends[static_cast<size_t>((planner.rank + round) % planner.num_ranks)];
        Queue& receive = receives[static_cast<size_t>((planner.rank - round + planner.num_ranks) %
                                                      planner.num_ranks)];
        if (send.empty() && receive.empty()) continue;
        full = !rows.Add(round);
        if (full) break;
        MoveFront(send, plans.back());
        MoveFront(receive, plans.back());
      }
    }
  }
  return plans;
}

}  // namespace eplb::fake_nccl
