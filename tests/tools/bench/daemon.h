// The daemon under measurement, and the job that the commands run on it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/load.h"
#include "tests/tools/bench/child_process.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/job_driver.h"

namespace eplb::bench {

// Threads: safe.
class ProposalTimes {
 public:
  // A line of the daemon's log. It says "proposed" just before the first rank is told.
  void OnLine(std::string_view line);
  // When `version` was proposed; InfinitePast when no line said so.
  absl::Time Of(int64_t version) const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::map<int64_t, absl::Time> times_;
};

// environment: configuration beside what every measurement needs, e.g.
// "EPLB_REPORT_MIN_COVERAGE=1".
absl::StatusOr<std::unique_ptr<ChildProcess>> StartDaemon(
    const Options& options, const std::vector<std::string>& environment,
    ProposalTimes* proposals = nullptr);

BenchJob JobOf(const Options& options, const std::string& name, int world_size);

int ConnectionsOf(const Options& options, int num_sessions);

// Raises the limit of open files to the hard limit. errors: FailedPrecondition if that is not
// enough for the daemon's or the load generator's side of so many connections.
absl::Status AllowFilesFor(int num_connections);

}  // namespace eplb::bench
