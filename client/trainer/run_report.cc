#include "client/trainer/run_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include "client/files/atomic_write.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using Json = nlohmann::ordered_json;

Json Summary(const RunReport& report) {
  double sum = 0, sum_static = 0, sum_after = 0, sum_static_after = 0;
  int64_t after = 0;
  for (const StepRecord& step : report.steps) {
    sum += step.balancedness;
    sum_static += step.balancedness_static;
    if (report.switches.empty() || step.step <= report.switches.front().step) continue;
    sum_after += step.balancedness;
    sum_static_after += step.balancedness_static;
    ++after;
  }
  const auto mean = [](double total, int64_t count) {
    return count == 0 ? 1.0 : total / static_cast<double>(count);
  };
  const auto num_steps = static_cast<int64_t>(report.steps.size());
  int64_t bytes = 0;
  double pause = 0;
  for (const SwitchRecord& change : report.switches) {
    bytes += change.bytes_moved;
    pause = std::max(pause, change.pause_seconds);
  }
  return {{"balancedness_mean", mean(sum, num_steps)},
          {"balancedness_static_mean", mean(sum_static, num_steps)},
          {"balancedness_mean_after_first_switch", mean(sum_after, after)},
          {"balancedness_static_mean_after_first_switch", mean(sum_static_after, after)},
          {"rebalances", CountRebalances(report.switches)},
          {"switches", report.switches.size()},
          {"bytes_moved", bytes},
          {"pause_seconds_max", pause}};
}

}  // namespace

int64_t CountRebalances(const std::vector<SwitchRecord>& switches) {
  std::set<std::pair<int64_t, int64_t>> decisions;
  for (const SwitchRecord& change : switches) {
    decisions.emplace(change.decided_first_step, change.decided_last_step);
  }
  return static_cast<int64_t>(decisions.size());
}

std::string RunReportToJson(const RunReport& report) {
  Json json = {{"format", "eplb.run.v1"},
               {"job", report.job},
               {"incarnation", report.incarnation},
               {"world_size", report.world_size},
               {"num_layers", report.num_layers},
               {"num_logical_experts", report.num_experts},
               {"num_slots", report.num_slots},
               {"transport", report.transport},
               {"steps_asked", report.steps_asked},
               {"steps_run", report.steps.size()},
               {"bytes_verified", report.bytes_verified},
               {"boundary_seconds", report.boundary_seconds},
               {"error", report.error},
               {"summary", Summary(report)},
               {"switches", Json::array()},
               {"steps", Json::array()}};
  for (const SwitchRecord& change : report.switches) {
    json["switches"].push_back({{"step", change.step},
                                {"version", change.version},
                                {"decided_first_step", change.decided_first_step},
                                {"decided_last_step", change.decided_last_step},
                                {"reason", change.reason},
                                {"bytes_moved", change.bytes_moved},
                                {"pause_seconds", change.pause_seconds},
                                {"bytes_verified", change.bytes_verified}});
  }
  for (const StepRecord& step : report.steps) {
    json["steps"].push_back({{"step", step.step},
                             {"version", step.version},
                             {"balancedness", step.balancedness},
                             {"balancedness_static", step.balancedness_static},
                             {"seconds", step.seconds}});
  }
  // Reasons come from the daemon: bytes that are not UTF-8 must not end the program.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status WriteRunReport(const RunReport& report, const std::string& path) {
  return WriteFileAtomically(path, RunReportToJson(report));
}

}  // namespace eplb
