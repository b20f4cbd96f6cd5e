#include "tests/tools/bench/window_flow.h"

#include <algorithm>
#include <utility>

namespace eplb::bench {

void WindowFlow::Begin(Fleet& fleet, std::vector<grpc::ByteBuffer> windows) {
  grpc::ByteBuffer first;
  {
    const std::lock_guard lock(mutex_);
    windows_ = std::move(windows);
    ranks_done_.assign(windows_.size(), 0);
    std::fill(written_by_.begin(), written_by_.end(), 0);
    first = windows_.front();
  }
  for (int rank = 0; rank < fleet.num_sessions(); ++rank) fleet.Send(rank, first);
}

void WindowFlow::OnWritten(Fleet& fleet, int rank) {
  std::vector<std::pair<int, grpc::ByteBuffer>> next;
  {
    const std::lock_guard lock(mutex_);
    if (windows_.empty()) return;
    const size_t written = ++written_by_[static_cast<size_t>(rank)];
    const bool complete = ++ranks_done_[written - 1] == written_by_.size();
    waiting_.push_back(rank);
    const auto may_go_on = [this](int waiting) {
      const size_t window = written_by_[static_cast<size_t>(waiting)];
      return window < windows_.size() &&
             (window < kMaxAhead || ranks_done_[window - kMaxAhead] == written_by_.size());
    };
    if (complete) {
      for (const int waiting : waiting_) {
        if (may_go_on(waiting)) {
          next.emplace_back(waiting, windows_[written_by_[static_cast<size_t>(waiting)]]);
        }
      }
      std::erase_if(waiting_, may_go_on);
    } else if (may_go_on(rank)) {
      waiting_.pop_back();
      next.emplace_back(rank, windows_[written_by_[static_cast<size_t>(rank)]]);
    }
    if (written_by_[static_cast<size_t>(rank)] == windows_.size()) std::erase(waiting_, rank);
  }
  for (const auto& [ready, window] : next) fleet.Send(ready, window);
}

}  // namespace eplb::bench
