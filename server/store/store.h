// What survives the daemon: term, and per job placement, version counter and audit events.
#ifndef EPLB_SERVER_STORE_STORE_H_
#define EPLB_SERVER_STORE_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "server/core/core.h"

namespace eplb {

struct StoredEvent {
  int64_t sequence = 0;  // rising within the store
  absl::Time time;
  core::JobEvent event;
};

// Two implementations: SQLite and memory. Threads: safe.
class Store {
 public:
  virtual ~Store() = default;
  // The highest term ever written; 0 in a new store.
  virtual absl::StatusOr<int64_t> ReadTerm() = 0;
  virtual absl::Status WriteTerm(int64_t term) = 0;
  virtual absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() = 0;
  // Durable when it returns OK: a crash right after loses nothing. Replaces the job's record.
  virtual absl::Status WriteJob(const core::StoredJob& job) = 0;
  // Keeps the newest kMaxEventsPerJob of a job.
  virtual absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) = 0;
  // Newest first, at most `limit`.
  virtual absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job,
                                                              int32_t limit) = 0;

  static constexpr int32_t kMaxEventsPerJob = 10000;
};

// max_events: of a job, >= 1.
std::unique_ptr<Store> MakeMemoryStore(int32_t max_events = Store::kMaxEventsPerJob);
// Opens or creates the database (WAL, synchronous=FULL, STRICT tables, user_version) and holds
// `path`.lock while it is open, so that two daemons never write one database.
// errors: Unavailable when the file cannot be opened or written or another process holds it,
// DataLoss when it is not a sound database of ours, FailedPrecondition when a newer version of
// eplbd wrote it. Each names the path.
absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(
    const std::string& path, int32_t max_events = Store::kMaxEventsPerJob);

}  // namespace eplb

#endif  // EPLB_SERVER_STORE_STORE_H_
