// The store of a daemon that keeps nothing, and the twin of the SQLite store in tests.
#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "server/store/store.h"

namespace eplb {
namespace {

class MemoryStore : public Store {
 public:
  explicit MemoryStore(StoreLimits limits) : limits_(limits) {}

  absl::StatusOr<int64_t> ReadTerm() override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    return term_;
  }

  absl::Status WriteTerm(int64_t term) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    term_ = std::max(term_, term);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    std::vector<core::StoredJob> jobs;
    for (const auto& [name, kept] : jobs_) {
      jobs.push_back(kept.job);
      jobs.back().requests.assign(kept.requests.begin(), kept.requests.end());
      for (const auto& [number, plan] : kept.plans) jobs.back().plans.push_back(plan);
      for (const auto& [version, placement] : kept.history) {
        jobs.back().history.push_back({version, DigestOf(placement)});
      }
    }
    return jobs;
  }

  absl::Status WriteJob(const core::StoredJob& job) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    Kept& kept = jobs_.try_emplace(job.job, Kept{job}).first->second;
    kept.job = job;
    if (auto done = std::exchange(kept.job.done, std::nullopt)) {
      kept.requests.push_back(*std::move(done));
      if (std::ssize(kept.requests) > limits_.max_requests) kept.requests.pop_front();
    }
    if (job.placement) AddToHistory(job.version, *job.placement, kept);
    return absl::OkStatus();
  }

  absl::Status WritePlan(const std::string& job, const core::Plan& plan) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return absl::OkStatus();  // forgotten meanwhile
    std::map<int64_t, core::Plan>& plans = found->second.plans;
    plans.insert_or_assign(plan.plan, plan);
    if (std::ssize(plans) > limits_.max_plans) plans.erase(plans.begin());
    return absl::OkStatus();
  }

  absl::Status ForgetJob(const std::string& job) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    jobs_.erase(job);
    std::erase_if(windows_, [&job](const StoredWindow& one) { return one.job == job; });
    TrimOrphans();
    return absl::OkStatus();
  }

  bool KeepsWindows() const override { return true; }

  absl::Status WriteWindows(std::span<const StoredWindow> windows) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    for (const StoredWindow& window : windows) {
      if (!jobs_.contains(window.job)) continue;
      windows_.push_back(window);
      windows_.back().figures.has_loads = false;
      const auto of_job = [&window](const StoredWindow& one) { return one.job == window.job; };
      if (std::count_if(windows_.begin(), windows_.end(), of_job) > limits_.max_windows) {
        windows_.erase(std::find_if(windows_.begin(), windows_.end(), of_job));
      }
      if (std::ssize(windows_) > limits_.max_windows_of_all) windows_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredWindow>> ReadWindows() override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    return std::vector<StoredWindow>(windows_.begin(), windows_.end());
  }

  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    if (const auto found = jobs_.find(job); found != jobs_.end()) {
      for (const auto& [kept, placement] : found->second.history) {
        if (kept == version) return placement;
      }
    }
    return absl::NotFoundError(absl::StrCat("version ", version, " of job ", job, " is not kept"));
  }

  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    std::deque<StoredEvent>& events = events_[event.job];
    events.push_front({.sequence = ++sequence_, .time = time, .event = event});
    const bool of_operators = IsOfOperator(events.front());
    const auto alike = std::count_if(events.begin(), events.end(), [&](const StoredEvent& one) {
      return IsOfOperator(one) == of_operators;
    });
    if (alike <= KeptOf(of_operators)) return absl::OkStatus();
    const auto oldest = std::find_if(events.rbegin(), events.rend(), [&](const StoredEvent& one) {
      return IsOfOperator(one) == of_operators;
    });
    events.erase(std::next(oldest).base());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                      int64_t after_sequence) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    std::vector<StoredEvent> result;
    const auto found = events_.find(job);
    if (found == events_.end()) return result;
    for (const StoredEvent& event : found->second) {
      const bool full = after_sequence == 0 && std::ssize(result) >= limit;
      if (full || event.sequence <= after_sequence) break;
      result.push_back(event);
    }
    // Of those after a point the oldest, so that who reads on misses none.
    const auto surplus = std::ssize(result) - std::max(limit, 0);
    if (surplus > 0) result.erase(result.begin(), result.begin() + surplus);
    return result;
  }

  absl::StatusOr<std::vector<StoredEvent>> ReadEventsOfAll(std::optional<int64_t> after_sequence,
                                                           int32_t limit) override {
    const std::lock_guard lock(mutex_);
    EPLB_RETURN_IF_ERROR(CheckOpen());
    std::vector<const StoredEvent*> found;
    for (const auto& [job, events] : events_) {  // of a job the newest comes first
      for (const StoredEvent& event : events) {
        if (event.sequence <= after_sequence.value_or(0)) break;
        found.push_back(&event);
      }
    }
    std::sort(found.begin(), found.end(),
              [](const StoredEvent* a, const StoredEvent* b) { return a->sequence < b->sequence; });
    const auto kept = std::min<ptrdiff_t>(std::ssize(found), std::max(limit, 0));
    const auto first = after_sequence ? found.begin() : found.end() - kept;
    std::vector<StoredEvent> result;
    std::transform(first, first + kept, std::back_inserter(result),
                   [](const StoredEvent* one) { return *one; });
    return result;
  }

  void Close() override {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  struct Kept {
    core::StoredJob job;
    std::deque<core::DoneRequest> requests = {};
    std::map<int64_t, core::Plan> plans = {};
    std::deque<std::pair<int64_t, Placement>> history = {};  // version, as written
  };

  void AddToHistory(int64_t version, const Placement& placement, Kept& kept) const {
    for (const auto& [known, other] : kept.history) {
      if (known == version && other == placement) return;
    }
    kept.history.emplace_back(version, placement);
    if (std::ssize(kept.history) > limits_.max_history) kept.history.pop_front();
  }

  absl::Status CheckOpen() const {
    return open_ ? absl::OkStatus() : absl::UnavailableError("the store is closed");
  }

  static bool IsOfOperator(const StoredEvent& stored) { return !stored.event.actor.empty(); }
  int32_t KeptOf(bool operators) const {
    return operators ? limits_.max_operator_events : limits_.max_events;
  }

  // The oldest events of jobs that are not known any more go first.
  void TrimOrphans() {
    for (const bool of_operators : {false, true}) {
      std::vector<int64_t> sequences;
      for (const auto& [job, events] : events_) {
        if (jobs_.contains(job)) continue;
        for (const StoredEvent& event : events) {
          if (IsOfOperator(event) == of_operators) sequences.push_back(event.sequence);
        }
      }
      if (std::ssize(sequences) <= KeptOf(of_operators)) continue;
      std::sort(sequences.rbegin(), sequences.rend());
      const int64_t newest_to_go = sequences[static_cast<size_t>(KeptOf(of_operators))];
      for (auto& [job, events] : events_) {
        if (jobs_.contains(job)) continue;
        std::erase_if(events, [&](const StoredEvent& event) {
          return IsOfOperator(event) == of_operators && event.sequence <= newest_to_go;
        });
      }
    }
    std::erase_if(events_, [](const auto& one) { return one.second.empty(); });
  }

  const StoreLimits limits_;
  std::mutex mutex_;  // guards what follows
  bool open_ = true;
  int64_t term_ = 0;
  int64_t sequence_ = 0;
  std::map<std::string, Kept> jobs_;
  std::deque<StoredWindow> windows_;                       // numbers rising
  std::map<std::string, std::deque<StoredEvent>> events_;  // newest first
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(StoreLimits limits) {
  return std::make_unique<MemoryStore>(limits);
}

}  // namespace eplb
