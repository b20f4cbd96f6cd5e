// The store of the daemon that leads, in etcd: every write is refused once another daemon leads.
//
// Keys below the prefix are those of Store, and three that are never part of it: the leader's key
// and knock/ADDRESS (see election.h), and serial (see fenced_rows.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/etcd/fenced_rows.h"
#include "server/store/store.h"

namespace eplb::etcd {

// etcd is no archive: what is kept of a job there is less than in SQLite.
inline constexpr StoreLimits kMostInEtcd = {.max_events = 500,
                                            .max_operator_events = 500,
                                            .max_history = 16,
                                            .max_plans = 64,
                                            .max_requests = 256};
// Each figure at most that of kMostInEtcd.
StoreLimits LimitsInEtcd(StoreLimits wanted);

struct EtcdStoreOptions {
  FencedRowsOptions rows;
  int64_t least_term = 0;  // ReadTerm gives no less
  StoreLimits limits = kMostInEtcd;
  size_t part_bytes = size_t{512} << 10;  // largest part of a large value
};

// Reads everything below the prefix; later reads ask a copy in memory. errors: those of Client;
// FailedPrecondition when a newer eplbd wrote there. An unreadable row is no error: it is skipped
// and kept, and opening_note names its key. If it is a job's record or current placement, the job
// is paused until an operator resumes it.
absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options);

// True if the store of the leader with this prefix has one of the jobs. Asks etcd once. errors:
// those of Client.
absl::StatusOr<bool> IsAnyStored(Client* client, const std::string& prefix,
                                 const std::set<std::string>& jobs, absl::Time deadline);

}  // namespace eplb::etcd
