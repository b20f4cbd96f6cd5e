// State that survives the daemon: term, and per job placements, version counter, memory, changes,
// plans, audit events and figures of load windows; as rows in a database of ordered keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/values/record.h"
#include "server/core/values/views.h"
#include "server/store/key_values.h"
#include "server/store/value_rows.h"

namespace eplb {

// Rows that are kept of a job, each limit >= 1; older ones are removed. The audit log of unknown
// jobs is bounded by max_events and max_operator_events for all of them together.
struct StoreLimits {
  int32_t max_events = 10000;           // events of the daemon and the ranks
  int32_t max_operator_events = 10000;  // those with an actor: ranks cannot push them out
  int32_t max_history = 64;             // placements
  int32_t max_plans = core::kMaxPlans;
  int32_t max_requests = core::kMaxDoneRequests;
  int32_t max_windows = core::kMaxPastWindows;
  int32_t max_windows_of_all = core::kMaxPastWindowsOfAll;  // all jobs together
};

struct StoreOptions {
  StoreLimits limits = {};
  std::string where = {};  // precedes a key in messages: "etcd key /eplb/v1/"
  int64_t least_term = 0;  // ReadTerm returns no less
  size_t part_bytes = std::numeric_limits<size_t>::max();  // largest part of a large value
  bool keeps_windows = true;
};

// Keys, each value a row with its checksum (checked_rows.h):
//   schema: of these keys and rows, written with the term.
//   term: the highest term ever written. moved_aside: see ReadMovedAside.
//   job/JOB/record: the job without its placement.
//   job/JOB/placement/WRITTEN/PART: a placement in parts, because etcd bounds a request.
//   job/JOB/plan/NUMBER, job/JOB/request/NUMBER, event/JOB/d|o/SEQUENCE, window/JOB/NUMBER.
//   typical_loads/JOB/WRITTEN/PART: the typical loads of a job, in parts.
//   damaged/KEY: an unreadable row of a job that the job's next write replaced.
// An unreadable row is skipped and kept. If it is a job's record or current placement, the job is
// paused until an operator resumes it. threads: safe.
class Store {
 public:
  Store(std::unique_ptr<KeyValues> rows, StoreOptions options);
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Reads all keys; to be called before all others. Returns a sentence for each unreadable
  // row. errors: those of the database; FailedPrecondition if a newer eplbd wrote there.
  absl::StatusOr<std::vector<std::string>> Load();
  void set_opening_note(std::string note) { note_ = std::move(note); }

  // The highest term ever written; 0 in a new store.
  absl::StatusOr<int64_t> ReadTerm() const;
  absl::Status WriteTerm(int64_t term);
  // When a damaged database was moved aside, in whose place this store began; none when it never
  // was.
  absl::StatusOr<std::optional<absl::Time>> ReadMovedAside() const;
  // By name, with their newest requests and plans, and what the history holds, oldest first.
  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() const;
  // Durable when it returns OK: a crash right after loses nothing. Replaces the job's record, adds
  // its placement to the history and job.done to the changes that were done; all or nothing. A
  // second placement of one version takes the place of none.
  absl::Status WriteJob(const core::StoredJob& job);
  // Replaces the plan of this number. Does nothing for a job that is not in the store, because the
  // job was forgotten meanwhile.
  absl::Status WritePlan(const std::string& job, const v1::Plan& plan);
  // Replaces the job's typical loads, also unreadable ones. Does nothing for a job that is not in
  // the store. A crash meanwhile leaves those before.
  absl::Status WriteTypicalLoads(const std::string& job, std::span<const TypicalLoad> loads);
  // Removes everything of the job but its audit events.
  absl::Status ForgetJob(const std::string& job);
  // The placement that the job first ran as `version`. errors: NotFound when it is not kept.
  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) const;
  absl::Status AppendEvent(absl::Time time, v1::JobEvent event);
  // Newest first, at most `limit`. Above 0, `after_sequence` selects the oldest `limit` above it,
  // so that a reader that goes on misses none.
  absl::StatusOr<std::vector<v1::JobEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                       int64_t after_sequence) const;
  // False for a store that keeps no load windows: the next two then do nothing.
  bool KeepsWindows() const { return options_.keeps_windows; }
  // Adds windows, numbers rising and above all that are there; all or nothing. Windows of a job
  // that is not in the store are left out, because the job was forgotten meanwhile.
  absl::Status WriteWindows(std::span<const StoredWindow> windows);
  // By number, rising.
  absl::StatusOr<std::vector<StoredWindow>> ReadWindows() const;
  // Deletes all windows if one is damaged, and likewise all typical loads: a job learns both again.
  // Returns what it deleted; empty if nothing was damaged.
  absl::StatusOr<std::string> DropDamagedHistory();
  // Checks that writes still reach the database that the next daemon will read; to be called once a
  // second. errors: Unavailable with what to do; writes are refused until the database is well
  // again.
  absl::Status CheckFile() { return rows_->Check(); }
  // Everything written is in the database's own file afterwards; every later call is Unavailable.
  void Close() { rows_->Close(); }
  // Returns one sentence about what is wrong with the service behind the store; empty if nothing is
  // wrong. Never waits.
  std::string warning() const { return rows_->warning(); }
  // Returns one sentence about the opening that an operator must know; empty if there is none.
  const std::string& opening_note() const { return note_; }

 private:
  class View;
  // Versions of complete placements by job and key, because reading a placement costs its bytes.
  struct RanVersions {
    std::mutex mutex;
    std::map<std::string, std::map<std::string, core::RanVersion>> by_job = {};
  };
  // 0 when there is none.
  absl::StatusOr<int64_t> ReadNumber(const std::string& key) const;
  std::vector<Batch> CopiesOfDamaged(const KeyReader& reader, const std::string& job) const;
  void AddPlacement(const KeyReader& reader, const core::StoredJob& job, std::vector<Batch>* before,
                    Batch* batch) const;
  int32_t KeptEvents(bool of_operators) const {
    return of_operators ? options_.limits.max_operator_events : options_.limits.max_events;
  }

  const StoreOptions options_;
  const std::unique_ptr<KeyValues> rows_;
  std::string note_;
  std::set<std::string> damaged_jobs_;  // paused; written by Load alone
  std::mutex appending_;
  int64_t newest_event_ = 0;  // sequence; guarded by appending_ after Load
  mutable RanVersions ran_versions_;
};

// A store that ends with the process.
std::unique_ptr<Store> MakeMemoryStore(StoreLimits limits = {});

// Opens or creates the database (WAL, synchronous=FULL, STRICT tables, user_version, a checksum in
// every row). Holds `path`.lock and the file itself while it is open, so that two daemons never
// write one database, by whatever name. Only the owner can read its files. A damaged database of
// eplbd is moved aside to `path`.corrupt-<UTC time>, with an error in the log. The store then
// starts empty, and the ranks report what runs. Opening succeeds on a full disk. A database that
// cannot be written is opened for reading. Each write then retries the open, and fails until the
// file is writable. errors: Unavailable if the file can neither be written nor read or another
// process holds it, FailedPrecondition if it is another program's or has another schema. Each names
// the path, without symbolic links.
absl::StatusOr<std::unique_ptr<Store>> MakeSqliteStore(const std::string& path,
                                                       StoreLimits limits = {});

}  // namespace eplb
