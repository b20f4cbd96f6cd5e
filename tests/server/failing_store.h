// A memory store whose writes of one kind fail while a test says so.
#ifndef EPLB_TESTS_SERVER_FAILING_STORE_H_
#define EPLB_TESTS_SERVER_FAILING_STORE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/store/store.h"

namespace eplb {

class FailingStore : public Store {
 public:
  std::atomic<bool> fail_terms = false;
  std::atomic<bool> fail_jobs = false;
  std::atomic<bool> fail_events = false;
  std::atomic<bool> fail_file = false;

  absl::StatusOr<int64_t> ReadTerm() override { return store_->ReadTerm(); }
  absl::Status WriteTerm(int64_t term) override {
    return fail_terms ? Full() : store_->WriteTerm(term);
  }
  absl::StatusOr<std::optional<absl::Time>> ReadMovedAside() override {
    return store_->ReadMovedAside();
  }
  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override { return store_->ReadJobs(); }
  absl::Status WriteJob(const core::StoredJob& job) override {
    return fail_jobs ? Full() : store_->WriteJob(job);
  }
  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override {
    if (fail_events) return Full();
    EPLB_RETURN_IF_ERROR(store_->AppendEvent(time, event));
    const std::lock_guard lock(mutex_);
    names_.insert(event.name);
    changed_.notify_all();
    return absl::OkStatus();
  }
  // False when no such event came within 20 s.
  bool WaitForEvent(const std::string& name) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return names_.contains(name); });
  }
  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                      int64_t after_sequence) override {
    return store_->ReadEvents(job, limit, after_sequence);
  }
  absl::Status WritePlan(const std::string& job, const core::Plan& plan) override {
    return fail_events ? Full() : store_->WritePlan(job, plan);
  }
  absl::Status ForgetJob(const std::string& job) override {
    return fail_jobs ? Full() : store_->ForgetJob(job);
  }
  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) override {
    return store_->ReadPlacement(job, version);
  }
  absl::Status CheckFile() override {
    return fail_file ? absl::UnavailableError("store: replaced") : absl::OkStatus();
  }
  void Close() override {}  // tests look into it after the daemon has ended

 private:
  static absl::Status Full() { return absl::UnavailableError("store: disk full"); }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> names_;  // of all events so far
  const std::unique_ptr<Store> store_ = MakeMemoryStore().value();
};

}  // namespace eplb

#endif  // EPLB_TESTS_SERVER_FAILING_STORE_H_
