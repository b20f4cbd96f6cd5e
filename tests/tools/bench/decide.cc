// CPU that the daemon spends until policy auto proposes, with as many ranks as a large job has.
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/status_macros.h"
#include "tests/tools/bench/commands.h"
#include "tests/tools/bench/daemon.h"

namespace eplb::bench {
namespace {

constexpr absl::Duration kDecisionDeadline = absl::Seconds(300);
constexpr double kSpread = 0.8;  // standard deviation of the logarithms of the experts' shares
constexpr double kDrift = 0.1;   // a window multiplies an expert's share by exp(this * normal)

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureDecide(const Options& options) {
  ProposalTimes proposals;
  EPLB_ASSIGN_OR_RETURN(
      const std::unique_ptr<ChildProcess> daemon,
      StartDaemon(options, {"EPLB_REPORT_MIN_COVERAGE=1", "EPLB_POLICY_EVERY_STEPS=1"},
                  &proposals));
  JobDriver driver({.target = daemon->address(),
                    .job = JobOf(options, "decide", options.num_sessions),
                    .num_connections = ConnectionsOf(options, options.num_sessions),
                    .num_threads = options.num_threads});
  EPLB_RETURN_IF_ERROR(driver.Start(kDecisionDeadline));
  std::mt19937_64 random(20260101);
  std::normal_distribution<double> normal;
  RealMatrix tokens = RealMatrix::Constant(options.num_layers, options.num_experts, 4096);
  nlohmann::ordered_json rounds = nlohmann::ordered_json::array();
  for (int round = 0; round < options.num_rounds; ++round) {
    for (double& cell : tokens.reshaped()) {
      cell *= std::exp((round == 0 ? kSpread : kDrift) * normal(random));
    }
    const absl::Time began = absl::Now();
    const absl::Duration before = daemon->ProcessorTime();
    driver.Report(tokens.round().cast<int64_t>(), options.num_sessions);
    EPLB_ASSIGN_OR_RETURN(const FanOut fan_out, driver.WaitForFanOut(kDecisionDeadline));
    rounds.push_back({{"cpu_s", absl::ToDoubleSeconds(daemon->ProcessorTime() - before)},
                      {"proposed_s", absl::ToDoubleSeconds(proposals.Of(fan_out.version) - began)},
                      {"message_bytes", fan_out.message_bytes}});
    EPLB_RETURN_IF_ERROR(driver.Apply(fan_out, kDecisionDeadline));
  }
  return nlohmann::ordered_json{{"measurement", "decide"},
                                {"sessions", options.num_sessions},
                                {"gpus", options.num_gpus},
                                {"rounds", std::move(rounds)}};
}

}  // namespace eplb::bench
