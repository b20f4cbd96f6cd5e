// The store of a daemon that keeps nothing, and the twin of the SQLite store in tests.
#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

#include "server/store/store.h"

namespace eplb {
namespace {

class MemoryStore : public Store {
 public:
  explicit MemoryStore(int32_t max_events) : max_events_(static_cast<size_t>(max_events)) {}

  absl::StatusOr<int64_t> ReadTerm() override {
    const std::lock_guard lock(mutex_);
    return term_;
  }

  absl::Status WriteTerm(int64_t term) override {
    const std::lock_guard lock(mutex_);
    term_ = std::max(term_, term);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override {
    const std::lock_guard lock(mutex_);
    std::vector<core::StoredJob> jobs;
    for (const auto& [name, job] : jobs_) jobs.push_back(job);
    return jobs;
  }

  absl::Status WriteJob(const core::StoredJob& job) override {
    const std::lock_guard lock(mutex_);
    jobs_.insert_or_assign(job.job, job);
    return absl::OkStatus();
  }

  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    const std::lock_guard lock(mutex_);
    std::deque<StoredEvent>& events = events_[event.job];
    events.push_front({.sequence = ++sequence_, .time = time, .event = event});
    if (events.size() > max_events_) events.pop_back();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job,
                                                      int32_t limit) override {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(job);
    if (found == events_.end()) return std::vector<StoredEvent>();
    const std::deque<StoredEvent>& events = found->second;
    const auto count = std::min<ptrdiff_t>(std::max(limit, 0), std::ssize(events));
    return std::vector<StoredEvent>(events.begin(), events.begin() + count);
  }

 private:
  const size_t max_events_;
  std::mutex mutex_;  // guards what follows
  int64_t term_ = 0;
  int64_t sequence_ = 0;
  std::map<std::string, core::StoredJob> jobs_;
  std::map<std::string, std::deque<StoredEvent>> events_;
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(int32_t max_events) {
  return std::make_unique<MemoryStore>(max_events);
}

}  // namespace eplb
