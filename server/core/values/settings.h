// How one job is balanced: the daemon's defaults, what its configuration says of the job, and what
// an operator set last, in this order.
#ifndef EPLB_SERVER_CORE_VALUES_SETTINGS_H_
#define EPLB_SERVER_CORE_VALUES_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"

namespace eplb::core {

// Both included; a range that ends before it begins holds no step.
struct StepRange {
  int64_t first = 0;
  int64_t last = -1;

  bool Holds(int64_t step) const { return first <= step && step <= last; }
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// "A:B" with 0 <= A <= B, or "" for no step at all. errors: InvalidArgument.
absl::StatusOr<StepRange> ParseSteps(const std::string& text);
std::string StepsText(const StepRange& steps);

struct Config;

struct Settings {
  std::string policy_name;
  bool observe = false;  // decides, explains and prices, and proposes nothing
  int32_t every_steps = 200;
  double min_gain = 0.05;
  int64_t horizon_steps = 1000;
  StepRange freeze_steps;
  absl::Duration max_pause = absl::Milliseconds(200);  // of one boundary, as predicted
  int32_t layers_per_chunk = 4;

  friend bool operator==(const Settings&, const Settings&) = default;
};

using SettingsPatch = wire::PolicyPatch;  // those that somebody gave; the others stay

// errors: InvalidArgument, naming the field, its value and what is expected.
absl::Status CheckPatch(const SettingsPatch& patch);

// REQUIRES: CheckPatch(patch) is OK.
Settings Patched(Settings settings, const SettingsPatch& patch);
// `later` wins where both give a setting.
SettingsPatch Merged(SettingsPatch earlier, const SettingsPatch& later);

// "name=balanced mode=apply every_steps=200 .." of the settings that `patch` gives; all of them
// when it gives none.
std::string SettingsText(const Settings& settings, const SettingsPatch& patch);

// What is in force for a job: the daemon's defaults, the configuration's own for this job, then
// `patch`, as far as it is valid.
Settings SettingsOf(const Config& config, const std::string& job, const SettingsPatch& patch);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_VALUES_SETTINGS_H_
