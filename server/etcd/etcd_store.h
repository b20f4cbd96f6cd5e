// The store of the daemon that leads, in etcd: every write is refused once another daemon leads.
//
// Keys below the prefix, each value a row with its checksum as in SQLite:
//   leader                           see election.h
//   knock/ADDRESS                    likewise; never part of the store
//   term                             the highest term ever written
//   serial                           every write compares and changes it: writes keep their order
//   job/JOB/record                   the job without its placement
//   job/JOB/placement/WRITTEN/PART   a placement in parts, for etcd bounds a request
//   job/JOB/plan/NUMBER, job/JOB/request/NUMBER, event/JOB/d|o/SEQUENCE
#ifndef EPLB_SERVER_ETCD_ETCD_STORE_H_
#define EPLB_SERVER_ETCD_ETCD_STORE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/etcd/client.h"
#include "server/etcd/election.h"
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
  Client* client = nullptr;  // outlives the store
  std::string prefix;
  Fence fence;
  int64_t least_term = 0;  // ReadTerm gives no less
  StoreLimits limits = kMostInEtcd;
  // OK while a write may be made, and until when; see Election.
  std::function<absl::Status()> may_write = [] { return absl::OkStatus(); };
  std::function<absl::Time()> write_until = [] { return absl::InfiniteFuture(); };
  // Called, perhaps several times, when etcd refuses a write because another daemon leads.
  std::function<void(const std::string& why)> lost = [](const std::string&) {};
  size_t part_bytes = size_t{512} << 10;  // of a placement
};

// Reads everything below the prefix; later reads ask a copy in memory. A write that etcd does not
// answer fails, and the next one learns first whether it happened: writes never change their order.
// errors: those of Client; DataLoss naming the key of a row that does not fit its checksum.
absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(EtcdStoreOptions options);

}  // namespace eplb::etcd

#endif  // EPLB_SERVER_ETCD_ETCD_STORE_H_
