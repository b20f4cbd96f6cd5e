// A memory store whose writes of one kind fail while a test wants it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/store/checked_rows.h"
#include "server/store/keys.h"
#include "server/store/store.h"

namespace eplb {

// Kinds of writes that fail, and the events that were written.
struct StoreFaults {
  std::atomic<bool> fail_terms = false;
  std::atomic<bool> fail_jobs = false;
  std::atomic<bool> fail_events = false;  // plans too
  std::atomic<bool> fail_file = false;

  // False when no such event came within 20 s.
  bool WaitForEvent(const std::string& name) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return names_.contains(name); });
  }

 protected:
  bool Refuses(const std::string& key) const {
    if (key == kTermKey) return fail_terms;
    const bool is_of_job = key.starts_with(kJobKeys) && key.find("/plan/") == std::string::npos;
    return is_of_job ? fail_jobs : fail_events;
  }
  void Note(const std::string& row) {
    const absl::StatusOr<v1::JobEvent> event = EventOf(*sqlite::RowFromBytes(row, "event"));
    const std::lock_guard lock(mutex_);
    names_.insert(event->name());
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> names_;  // names of all events so far
};

class FailingStore : public StoreFaults, public Store {
 public:
  FailingStore() : Store(std::make_unique<FailingRows>(this), {}) {}

 private:
  class FailingRows : public KeyValues {
   public:
    explicit FailingRows(FailingStore* store) : store_(*store) {}
    absl::Status Read(const Reads& read) const override { return rows_.Read(read); }
    absl::Status Write(const Makes& make) override {
      bool refused = false;
      std::vector<Batch> written;
      EPLB_RETURN_IF_ERROR(rows_.Write([&](const KeyReader& reader) {
        written = make(reader);
        for (const Batch& batch : written) {
          refused |= store_.fail_jobs && !batch.deleted_prefixes.empty();
          for (const auto& [key, value] : batch.puts) refused |= store_.Refuses(key);
        }
        if (refused) written.clear();
        return written;
      }));
      for (const Batch& batch : written) {
        for (const auto& [key, value] : batch.puts) {
          if (key.starts_with(kEventKeys)) store_.Note(value);
        }
      }
      return refused ? absl::UnavailableError("store: disk full") : absl::OkStatus();
    }
    absl::Status Check() override {
      return store_.fail_file ? absl::UnavailableError("store: replaced") : absl::OkStatus();
    }
    void Close() override {}  // tests look into it after the daemon has ended

   private:
    FailingStore& store_;
    MemoryKeyValues rows_;
  };
};

}  // namespace eplb
