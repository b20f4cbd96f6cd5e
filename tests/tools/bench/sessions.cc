// Measures what an open session costs the daemon.
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"

namespace eplb::bench {

absl::StatusOr<nlohmann::ordered_json> MeasureSessions(const Options& options) {
  constexpr absl::Duration kSessionsDeadline = absl::Seconds(120);
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> daemon, StartDaemon(options, {}));
  const int64_t before = daemon->ResidentBytes();
  const absl::Time begin = absl::Now();
  JobDriver driver({.target = daemon->address(),
                    .job = JobOf(options, "recovering", options.num_sessions),
                    .num_connections = ConnectionsOf(options, options.num_sessions),
                    .num_threads = options.num_threads});
  EPLB_RETURN_IF_ERROR(driver.Start(kSessionsDeadline));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  absl::SleepFor(options.hold);
  EPLB_ASSIGN_OR_RETURN(const v1::JobStatus job, driver.Status());
  const int64_t after = daemon->ResidentBytes();
  return nlohmann::ordered_json{
      {"measurement", "sessions"},
      {"sessions", options.num_sessions},
      {"connections", ConnectionsOf(options, options.num_sessions)},
      {"seconds_to_open", seconds},
      {"seconds_held", absl::ToDoubleSeconds(options.hold)},
      {"lost", options.num_sessions - static_cast<int>(job.connected_ranks())},
      {"server_resident_bytes", after},
      {"bytes_per_session", static_cast<double>(after - before) / options.num_sessions}};
}

}  // namespace eplb::bench
