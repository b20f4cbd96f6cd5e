#include "client/cli/plan_loads.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"

namespace eplb::cli {
namespace {

absl::StatusOr<std::vector<double>> WeightsOf(const LoadOptions& options) {
  if (options.weights.empty()) return std::vector<double>(options.paths.size(), 1);
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> weights,
                        ParseNumbers("--weights", options.weights));
  if (weights.size() != options.paths.size()) {
    return InvalidInput("--weights has ", Counted(weights.size(), "number"), " for ",
                        options.paths.size(), " loads");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] >= 1 / kMaxScenarioWeight && weights[i] <= kMaxScenarioWeight) continue;
    return InvalidInput("--weights: the weight of ", options.paths[i], " is ", weights[i],
                        ", expected 1e-9..1e9");
  }
  return weights;
}

// The files' names without suffix, each in as many of its folders as make all names different. The
// paths if no number of folders does.
std::vector<std::string> NamesOf(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> folders(paths.begin(), paths.end());
  std::vector<std::string> names;
  for (std::filesystem::path& folder : folders) {
    names.push_back(folder.stem().string());
    folder = folder.parent_path();
  }
  while (std::set<std::string>(names.begin(), names.end()).size() < names.size()) {
    if (std::ranges::none_of(folders, &std::filesystem::path::has_filename)) return paths;
    for (size_t i = 0; i < names.size(); ++i) {
      names[i] = (folders[i].filename() / names[i]).string();
      folders[i] = folders[i].parent_path();
    }
  }
  return names;
}

// REQUIRES: at least one scenario, all of one shape and with tokens.
PlannedLoads LoadsOfScenarios(const LoadOptions& options, std::vector<Scenario> scenarios,
                              std::vector<std::string> names) {
  std::vector<Load> batches;
  batches.reserve(scenarios.size());
  for (const Scenario& scenario : scenarios) batches.push_back(scenario.load);
  return {.load = scenarios.size() == 1 ? scenarios.front().load : MeanOfScenarios(scenarios),
          .batches = std::move(batches),
          .scenarios = std::move(scenarios),
          .names = std::move(names),
          .objective =
              options.objective == "worst" ? ScenarioObjective::kWorst : ScenarioObjective::kMean};
}

}  // namespace

absl::Status CheckLoadOptions(const LoadOptions& options) {
  EPLB_RETURN_IF_ERROR(ParseWindowRule(options.window).status());
  const size_t loads = options.paths.size();
  if (loads > kMaxScenarios) {
    return InvalidInput("--load is given ", loads, " times, expected at most ", kMaxScenarios);
  }
  if (options.scenarios.has_value() && loads > 1) {
    return InvalidInput("--scenarios chooses windows of one load, --load is given ", loads,
                        " times");
  }
  const int32_t most = static_cast<int32_t>(kMaxScenarios);
  if (options.scenarios.value_or(1) < 1 || options.scenarios.value_or(1) > most) {
    return InvalidInput("--scenarios is ", *options.scenarios, ", expected 1..", most);
  }
  if (!options.objective.empty() && !options.has_scenarios()) {
    return InvalidInput("--objective needs several loads: repeat --load, or give --scenarios");
  }
  if (options.weights.empty()) return absl::OkStatus();
  if (loads == 1) return InvalidInput("--weights needs several loads: repeat --load");
  return WeightsOf(options).status();
}

absl::StatusOr<std::vector<LoadFile>> ReadLoads(const LoadOptions& options, std::string& notes) {
  std::vector<LoadFile> files;
  for (const std::string& path : options.paths) {
    EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadLoadFile(path, options.reading));
    notes = JoinMessages({notes, NotesOn(path, file)});
    if (options.scenarios.has_value() && file.windows.size() == 1) {
      return InvalidInput(path, ": has one window, --scenarios chooses among those of a trace");
    }
    files.push_back(std::move(file));
    const Load& load = files.back().windows.front().load;
    const Load& first = files.front().windows.front().load;
    if (load.num_layers() == first.num_layers() && load.num_experts() == first.num_experts()) {
      continue;
    }
    return InvalidInput(path, ": load has ", load.num_layers(), " layers x ", load.num_experts(),
                        " experts, ", options.paths.front(), " has ", first.num_layers(), " x ",
                        first.num_experts());
  }
  return files;
}

absl::StatusOr<PlannedLoads> LoadsOfTrace(const LoadOptions& options,
                                          std::span<const LoadWindow> windows) {
  const std::string& path = options.paths.front();
  if (!options.scenarios.has_value()) {
    EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
    EPLB_ASSIGN_OR_RETURN(Load load, InFile(path, CombineWindows(windows, rule)));
    return PlannedLoads{.load = std::move(load), .batches = BatchesOf(windows, rule)};
  }
  std::vector<const Load*> loads;
  for (const LoadWindow& window : windows) loads.push_back(&window.load);
  EPLB_ASSIGN_OR_RETURN(ScenarioChoice choice,
                        InFile(path, ChooseScenarios(loads, *options.scenarios)));
  std::vector<Scenario> scenarios;
  std::vector<std::string> names;
  for (size_t i = 0; i < choice.windows.size(); ++i) {
    scenarios.push_back({*loads[choice.windows[i]], choice.weights[i]});
    names.push_back(absl::StrCat("window ", choice.windows[i]));
    EPLB_RETURN_IF_ERROR(
        InFile(absl::StrCat(path, ": ", names.back()), CheckLayerSums(scenarios.back().load)));
  }
  PlannedLoads planned = LoadsOfScenarios(options, std::move(scenarios), std::move(names));
  planned.choice = std::move(choice);
  return planned;
}

absl::StatusOr<PlannedLoads> LoadsOfFiles(const LoadOptions& options,
                                          std::span<const LoadFile> files) {
  if (files.size() == 1) return LoadsOfTrace(options, files.front().windows);
  EPLB_ASSIGN_OR_RETURN(const WindowRule rule, ParseWindowRule(options.window));
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> weights, WeightsOf(options));
  std::vector<Scenario> scenarios;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& path = options.paths[i];
    EPLB_ASSIGN_OR_RETURN(Load load, InFile(path, CombineWindows(files[i].windows, rule)));
    if (!load.has_tokens()) return InvalidInput(path, ": the load has no tokens");
    EPLB_RETURN_IF_ERROR(InFile(path, CheckLayerSums(load)));
    scenarios.push_back({std::move(load), weights[i]});
  }
  return LoadsOfScenarios(options, std::move(scenarios), NamesOf(options.paths));
}

}  // namespace eplb::cli
