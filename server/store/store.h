// State that survives the daemon: term, and per job placements, version counter, memory, changes,
// plans, audit events and figures of load windows.
#ifndef EPLB_SERVER_STORE_STORE_H_
#define EPLB_SERVER_STORE_STORE_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/values/record.h"
#include "server/core/values/views.h"

namespace eplb {

using core::StoredEvent;
using core::StoredWindow;

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

// Three implementations: SQLite, memory, and etcd (server/etcd). Threads: safe.
class Store {
 public:
  virtual ~Store() = default;
  // The highest term ever written; 0 in a new store.
  virtual absl::StatusOr<int64_t> ReadTerm() = 0;
  virtual absl::Status WriteTerm(int64_t term) = 0;
  // When a damaged database was moved aside, in whose place this store began; none when it never
  // was.
  virtual absl::StatusOr<std::optional<absl::Time>> ReadMovedAside() { return std::nullopt; }
  // By name, with their newest requests and plans, and what the history holds, oldest first.
  virtual absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() = 0;
  // Durable when it returns OK: a crash right after loses nothing. Replaces the job's record, adds
  // its placement to the history and job.done to the changes that were done; all or nothing. A
  // second placement of one version takes the place of none.
  virtual absl::Status WriteJob(const core::StoredJob& job) = 0;
  // Replaces the plan of this number.
  virtual absl::Status WritePlan(const std::string& job, const core::Plan& plan) = 0;
  // Removes everything of the job but its audit events.
  virtual absl::Status ForgetJob(const std::string& job) = 0;
  // The placement that the job first ran as `version`. errors: NotFound when it is not kept.
  virtual absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) = 0;
  virtual absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) = 0;
  // Newest first, at most `limit`, only those above `after_sequence`.
  virtual absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                              int64_t after_sequence) = 0;
  // False for a store that keeps no load windows: the next two then do nothing.
  virtual bool KeepsWindows() const { return false; }
  // Adds windows, numbers rising and above all that are there; all or nothing. Windows of a job
  // that is not in the store are left out, because the job was forgotten meanwhile.
  virtual absl::Status WriteWindows(std::span<const StoredWindow> /*windows*/) {
    return absl::OkStatus();
  }
  // By number, rising.
  virtual absl::StatusOr<std::vector<StoredWindow>> ReadWindows() {
    return std::vector<StoredWindow>();
  }
  // Checks that writes still reach the file that the next daemon will read; to be called once a
  // second. errors: Unavailable with what to do; writes are refused until the file is well again.
  virtual absl::Status CheckFile() { return absl::OkStatus(); }
  // Everything written is in the database's own file afterwards; every later call is Unavailable.
  virtual void Close() = 0;
  // Returns one sentence about what is wrong with the service behind the store; empty if nothing is
  // wrong. Never waits.
  virtual std::string warning() const { return ""; }
  // Returns one sentence about the opening that an operator must know; empty if there is none.
  virtual std::string opening_note() const { return ""; }
};

// A store that ends with the process: a SQLite database in memory.
absl::StatusOr<std::unique_ptr<Store>> MakeMemoryStore(StoreLimits limits = {});

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

#endif  // EPLB_SERVER_STORE_STORE_H_
