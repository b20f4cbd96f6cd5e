// Memory of the daemon after many jobs have registered, reported and left.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"

namespace eplb::bench {

absl::StatusOr<nlohmann::ordered_json> MeasureJobs(const Options& options) {
  constexpr absl::Duration kDeadline = absl::Seconds(120);
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> daemon, StartDaemon(options, {}));
  const int64_t before = daemon->ResidentBytes();
  const LoadMatrix counts = LoadMatrix::Constant(options.num_layers, options.num_experts, 1000);
  int64_t most = before;
  for (int i = 0; i < options.num_jobs; ++i) {
    JobDriver driver({.target = daemon->address(),
                      .job = JobOf(options, absl::StrCat("job-", i), options.num_sessions),
                      .num_connections = ConnectionsOf(options, options.num_sessions),
                      .num_threads = options.num_threads});
    EPLB_RETURN_IF_ERROR(driver.Start(kDeadline));
    EPLB_RETURN_IF_ERROR(driver.Ingest(options.num_windows, counts, kDeadline));
    most = std::max(most, daemon->ResidentBytes());
    EPLB_RETURN_IF_ERROR(driver.Leave(kDeadline));
  }
  const int64_t left = daemon->ResidentBytes();
  absl::SleepFor(options.hold);
  return nlohmann::ordered_json{{"measurement", "jobs"},
                                {"jobs", options.num_jobs},
                                {"sessions", options.num_sessions},
                                {"windows", options.num_windows},
                                {"resident_bytes_before", before},
                                {"resident_bytes_most", most},
                                {"resident_bytes_when_the_last_left", left},
                                {"seconds_held", absl::ToDoubleSeconds(options.hold)},
                                {"resident_bytes_after", daemon->ResidentBytes()}};
}

}  // namespace eplb::bench
