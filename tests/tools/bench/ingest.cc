// Reports a second of the daemon against a server that throws the same bytes away.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"

namespace eplb::bench {
namespace {

absl::Duration RoundDeadline(const Options& options) {
  return absl::Seconds(120) + absl::Milliseconds(1) * options.num_sessions * options.num_windows;
}

struct Round {
  double seconds = 0;
  double server_seconds = 0;  // processor time of the server
  uint64_t windows_given_up = 0;
};

LoadMatrix SomeCounts(const Options& options) {
  LoadMatrix counts(options.num_layers, options.num_experts);
  for (Eigen::Index i = 0; i < counts.size(); ++i) counts.data()[i] = 1000 + i % 97;
  return counts;
}

// The same streams, connections and bytes as the daemon gets.
absl::StatusOr<Round> RunRaw(const Options& options, const ChildProcess& sink) {
  const int num_sessions = options.num_sessions;
  const BenchJob job = JobOf(options, "raw", num_sessions);
  const Placement running = Placement::Static(*Topology::Make(job.shape));
  std::mutex mutex;
  std::condition_variable changed;
  int num_written = 0;
  Fleet fleet({.target = sink.address(),
               .num_sessions = num_sessions,
               .num_connections = ConnectionsOf(options, num_sessions),
               .num_threads = options.num_threads},
              {.on_written = [&](int) {
                const std::lock_guard lock(mutex);
                if (++num_written == num_sessions) changed.notify_all();
              }});
  for (int rank = 0; rank < num_sessions; ++rank) fleet.Send(rank, HelloOf(job, rank, running));
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, absl::ToChronoMilliseconds(RoundDeadline(options)),
                          [&] { return num_written == num_sessions; })) {
      return absl::DeadlineExceededError("the raw sink took no first message");
    }
  }
  std::vector<grpc::ByteBuffer> windows;
  windows.reserve(static_cast<size_t>(options.num_windows));
  for (int i = 0; i < options.num_windows; ++i) {
    windows.push_back(ReportOf(job, i, SomeCounts(options)));
  }
  const absl::Duration busy = sink.ProcessorTime();
  const absl::Time begin = absl::Now();
  for (int rank = 0; rank < num_sessions; ++rank) {
    for (const grpc::ByteBuffer& window : windows) fleet.Send(rank, window);
    fleet.HalfClose(rank);
  }
  if (!fleet.WaitForEnds(RoundDeadline(options))) {
    return absl::DeadlineExceededError("the raw sink did not read to the end");
  }
  return Round{absl::ToDoubleSeconds(absl::Now() - begin),
               absl::ToDoubleSeconds(sink.ProcessorTime() - busy)};
}

absl::StatusOr<Round> RunDaemon(const Options& options, const ChildProcess& daemon, int round) {
  JobDriver driver({.target = daemon.address(),
                    .job = JobOf(options, absl::StrCat("ingest-", round), options.num_sessions),
                    .num_connections = ConnectionsOf(options, options.num_sessions),
                    .num_threads = options.num_threads});
  EPLB_RETURN_IF_ERROR(driver.Start(RoundDeadline(options)));
  const absl::Duration busy = daemon.ProcessorTime();
  const absl::Time begin = absl::Now();
  EPLB_RETURN_IF_ERROR(
      driver.Ingest(options.num_windows, SomeCounts(options), RoundDeadline(options)));
  const absl::Duration spent = absl::Now() - begin;
  EPLB_ASSIGN_OR_RETURN(const v1::JobStatus job, driver.Status());
  return Round{absl::ToDoubleSeconds(spent), absl::ToDoubleSeconds(daemon.ProcessorTime() - busy),
               job.windows_given_up()};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureIngest(const Options& options) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> sink,
                        ChildProcess::Start({BesideThisProgram("eplb-bench"), "raw-sink"}, {}, {}));
  // Every report counts, and nothing is decided meanwhile.
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> daemon,
                        StartDaemon(options, {"EPLB_REPORT_MIN_COVERAGE=1",
                                              "EPLB_POLICY_FREEZE_STEPS=0:4611686018427387904"}));
  const double reports = static_cast<double>(options.num_sessions) * options.num_windows;
  const double report_bytes = static_cast<double>(
      ReportOf(JobOf(options, "bytes", options.num_sessions), 0, SomeCounts(options)).Length());
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array();
  std::vector<double> ratios;
  for (int i = 0; i < options.num_rounds; ++i) {
    EPLB_ASSIGN_OR_RETURN(const Round raw, RunRaw(options, *sink));
    EPLB_ASSIGN_OR_RETURN(const Round ours, RunDaemon(options, *daemon, i));
    ratios.push_back(raw.seconds / ours.seconds);
    rounds.push_back({{"raw_reports_per_s", reports / raw.seconds},
                      {"reports_per_s", reports / ours.seconds},
                      {"bytes_per_s", reports * report_bytes / ours.seconds},
                      {"ratio", ratios.back()},
                      {"raw_server_us_per_report", raw.server_seconds / reports * 1e6},
                      {"server_us_per_report", ours.server_seconds / reports * 1e6},
                      {"windows_given_up", ours.windows_given_up}});
  }
  return nlohmann::ordered_json{{"measurement", "ingest"},
                                {"sessions", options.num_sessions},
                                {"connections", ConnectionsOf(options, options.num_sessions)},
                                {"layers", options.num_layers},
                                {"experts", options.num_experts},
                                {"report_bytes", report_bytes},
                                {"rounds", rounds},
                                {"server_resident_bytes", daemon->ResidentBytes()},
                                {"ratio", Median(ratios)},
                                {"ratio_min", *std::min_element(ratios.begin(), ratios.end())}};
}

}  // namespace eplb::bench
