// How long a proposal takes to every rank and back, alone and beside ranks that never read.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/wire/message_json.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"

namespace eplb::bench {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(120);
// A window is complete once this many ranks reported it: few, so that the proposal is measured and
// not the reports. report.min_coverage is at least 0.01.
int NumReporters(const Options& options) { return std::max(20, (options.num_sessions + 99) / 100); }

// Every round loads other experts, so that every round moves most of them.
LoadMatrix SkewedCounts(const Options& options, int round) {
  LoadMatrix counts(options.num_layers, options.num_experts);
  for (int layer = 0; layer < options.num_layers; ++layer) {
    for (int expert = 0; expert < options.num_experts; ++expert) {
      const uint32_t mixed = (static_cast<uint32_t>(expert) + 1) * 2654435761U *
                             static_cast<uint32_t>(2 * (layer + 100 * round) + 1);
      counts(layer, expert) = 100 + (mixed >> 16) % 8 * 400;
    }
  }
  return counts;
}

double Quantile(const std::vector<double>& sorted, double q) {
  const auto place = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(place, 1, sorted.size()) - 1];
}

absl::StatusOr<nlohmann::ordered_json> RunRound(const Options& options, int round,
                                                const ProposalTimes& proposals, JobDriver& driver) {
  driver.Report(SkewedCounts(options, round), NumReporters(options));
  EPLB_ASSIGN_OR_RETURN(const FanOut fan_out, driver.WaitForFanOut(kDeadline));
  EPLB_RETURN_IF_ERROR(driver.Apply(fan_out, kDeadline));
  const absl::Time begin = proposals.Of(fan_out.version);
  std::vector<double> seconds;
  for (const absl::Time ready : fan_out.ready) {
    seconds.push_back(absl::ToDoubleSeconds(ready - begin));
  }
  std::sort(seconds.begin(), seconds.end());
  return nlohmann::ordered_json{{"message_bytes", fan_out.message_bytes},
                                {"ready_p50_s", Quantile(seconds, 0.5)},
                                {"ready_p99_s", Quantile(seconds, 0.99)},
                                {"ready_max_s", seconds.back()},
                                {"all_acks_s", absl::ToDoubleSeconds(fan_out.all_counted - begin)}};
}

absl::StatusOr<nlohmann::ordered_json> RunRounds(const Options& options, int first_round,
                                                 const ProposalTimes& proposals,
                                                 JobDriver& driver) {
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array();
  std::vector<double> all_acks;
  std::vector<double> p99;
  for (int i = 0; i < options.num_rounds; ++i) {
    EPLB_ASSIGN_OR_RETURN(nlohmann::ordered_json round,
                          RunRound(options, first_round + i, proposals, driver));
    all_acks.push_back(round["all_acks_s"].get<double>());
    p99.push_back(round["ready_p99_s"].get<double>());
    rounds.push_back(std::move(round));
  }
  std::sort(all_acks.begin(), all_acks.end());
  std::sort(p99.begin(), p99.end());
  return nlohmann::ordered_json{{"rounds", rounds},
                                {"ready_p99_s", p99.back()},
                                {"all_acks_p50_s", Quantile(all_acks, 0.5)},
                                {"all_acks_p99_s", Quantile(all_acks, 0.99)},
                                {"sessions_lost", driver.num_ended()}};
}

// A job of one GPU has nothing to decide.
absl::Status CheckGpus(const char* option, int num_sessions, int num_gpus) {
  if (num_sessions % num_gpus == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", num_sessions, " is not a multiple of --gpus ", num_gpus));
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartDeciding(const Options& options,
                                                            ProposalTimes* proposals) {
  // A decision after every window of a few ranks, for as small a gain as there is.
  const double coverage = std::max(0.01, (NumReporters(options) - 0.5) / options.num_sessions);
  return StartDaemon(
      options,
      {absl::StrCat("EPLB_REPORT_MIN_COVERAGE=", std::min(1.0, coverage)),
       "EPLB_POLICY_EVERY_STEPS=1", "EPLB_POLICY_MIN_GAIN=0", "EPLB_POLICY_NAME=deepseek"},
      proposals);
}

JobDriver::Options DriverOptions(const Options& options, const ChildProcess& daemon,
                                 const std::string& job, int num_sessions, bool frozen) {
  return {.target = daemon.address(),
          .job = JobOf(options, job, num_sessions),
          .num_connections = ConnectionsOf(options, num_sessions),
          .num_threads = options.num_threads,
          .frozen = frozen};
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureFanOut(const Options& options) {
  EPLB_RETURN_IF_ERROR(CheckGpus("--sessions", options.num_sessions, options.num_gpus));
  ProposalTimes proposals;
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> daemon,
                        StartDeciding(options, &proposals));
  JobDriver driver(DriverOptions(options, *daemon, "fanout", options.num_sessions, false));
  EPLB_RETURN_IF_ERROR(driver.Start(kDeadline));
  EPLB_ASSIGN_OR_RETURN(nlohmann::ordered_json figures, RunRounds(options, 0, proposals, driver));
  figures["measurement"] = "fanout";
  figures["sessions"] = options.num_sessions;
  figures["connections"] = ConnectionsOf(options, options.num_sessions);
  figures["server_resident_bytes"] = daemon->ResidentBytes();
  return figures;
}

absl::StatusOr<nlohmann::ordered_json> MeasureFrozen(const Options& options) {
  EPLB_RETURN_IF_ERROR(CheckGpus("--sessions", options.num_sessions, options.num_gpus));
  EPLB_RETURN_IF_ERROR(CheckGpus("--frozen", options.num_frozen, options.num_gpus));
  ProposalTimes proposals;
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<ChildProcess> daemon,
                        StartDeciding(options, &proposals));
  JobDriver driver(DriverOptions(options, *daemon, "moving", options.num_sessions, false));
  EPLB_RETURN_IF_ERROR(driver.Start(kDeadline));
  EPLB_ASSIGN_OR_RETURN(const nlohmann::ordered_json without,
                        RunRounds(options, 0, proposals, driver));
  const int64_t resident = daemon->ResidentBytes();
  JobDriver frozen(DriverOptions(options, *daemon, "frozen", options.num_frozen, true));
  EPLB_RETURN_IF_ERROR(frozen.Start(kDeadline));
  frozen.Report(SkewedCounts(options, 0), options.num_frozen);  // a proposal that no rank reads
  EPLB_ASSIGN_OR_RETURN(const nlohmann::ordered_json with,
                        RunRounds(options, options.num_rounds, proposals, driver));
  EPLB_ASSIGN_OR_RETURN(const v1::JobStatus state, frozen.Status());
  return nlohmann::ordered_json{
      {"measurement", "frozen"},
      {"sessions", options.num_sessions},
      {"frozen_sessions", options.num_frozen},
      {"without", without},
      {"with", with},
      {"ratio", with["all_acks_p50_s"].get<double>() / without["all_acks_p50_s"].get<double>()},
      {"frozen_state", wire::EnumText(state.state())},
      {"frozen_bytes_per_session",
       static_cast<double>(daemon->ResidentBytes() - resident) / options.num_frozen}};
}

}  // namespace eplb::bench
