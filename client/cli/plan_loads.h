// The loads of `eplbctl plan`: one, or several that one placement must serve (scenarios).
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "placement/load.h"
#include "placement/scenario_medoids.h"
#include "placement/scenarios.h"

namespace eplb::cli {

struct LoadOptions {
  std::vector<std::string> paths;  // at least one; several: each is a scenario
  LoadReading reading;
  std::string window = "sum";        // how the windows of a file become one load
  std::optional<int32_t> scenarios;  // the only file's windows to choose as scenarios
  std::string weights;               // "2,1", one per path; empty: all 1
  std::string objective;             // mean, worst; empty: mean

  bool has_scenarios() const { return paths.size() > 1 || scenarios.has_value(); }
};

struct PlannedLoads {
  Load load;                             // planned for; the mean of the scenarios if there are any
  std::vector<Load> batches;             // a job that splits by batch splits each exactly
  std::vector<Scenario> scenarios = {};  // empty for one load
  std::vector<std::string> names = {};   // [scenarios]
  ScenarioObjective objective = ScenarioObjective::kMean;
  std::optional<ScenarioChoice> choice = {};  // absent unless windows of a trace were chosen
};

// Checks the flags without the files. errors: InvalidArgument, naming the flag.
absl::Status CheckLoadOptions(const LoadOptions& options);

// Reads each file. notes: receives the messages about the files.
// errors, beginning with the path: as ReadLoadFile; InvalidArgument for a load of another shape
// than the first, and if windows are to be chosen from a file that has only one.
absl::StatusOr<std::vector<LoadFile>> ReadLoads(const LoadOptions& options, std::string& notes);

// The loads of the only file, or of these of its windows.
// errors, beginning with the path: as CombineWindows and ChooseScenarios; as CheckLayerSums for a
// chosen window, whose number follows the path.
absl::StatusOr<PlannedLoads> LoadsOfTrace(const LoadOptions& options,
                                          std::span<const LoadWindow> windows);

// The loads of all files. errors, beginning with the path: as LoadsOfTrace; InvalidArgument if one
// of several files has no tokens; as CheckLayerSums; naming the flag, for a weight that is none.
absl::StatusOr<PlannedLoads> LoadsOfFiles(const LoadOptions& options,
                                          std::span<const LoadFile> files);

}  // namespace eplb::cli
