// Settings of a job. Each is a field of v1.PolicySettings, whose options describe it, and a member
// of Settings. Configuration, `eplbctl set policy`, JSON and texts follow the fields.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/value_range.h"
#include "placement/policies/registry.h"
#include "placement/topology.h"
#include "proto/wire/gpu_settings.h"
#include "proto/wire/setting_field.h"

namespace eplb::wire {

// Range of steps, both ends included. A range that ends before it begins holds no step.
struct StepRange {
  int64_t first = 0;
  int64_t last = -1;

  bool Holds(int64_t step) const { return first <= step && step <= last; }
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// Parses "A:B" with 0 <= A <= B; "" or "never" for no step. errors: InvalidArgument.
absl::StatusOr<StepRange> ParseSteps(std::string_view text);
std::string StepsText(const StepRange& steps);  // "" for none

// Use of the GPU speeds that are measured from the ranks' step times.
enum class SpeedMode { kOff, kObserve, kApply };

// Current settings of a job.
struct Settings {
  NamedPolicy policy = kServicePolicyName;
  bool observe = false;          // decides, explains and prices, and proposes nothing
  int32_t every_steps = 0;       // least steps between two decisions; 0: as the policy needs
  double min_gain = 0.01;        // least fall of the predicted peak load, as a fraction of it
  int64_t horizon_steps = 1000;  // steps over which a saving is counted
  StepRange freeze_steps;        // steps without decisions
  absl::Duration max_pause = absl::Milliseconds(200);  // predicted pause of one boundary
  int32_t layers_per_chunk = 64;
  std::optional<Hierarchy> hierarchy;  // absent: the policy's own rule
  SpeedMode gpu_speeds = SpeedMode::kObserve;
  std::vector<StatedSpeed> stated_speeds;  // replace the measured speeds
  std::vector<int32_t> avoid_gpus;         // get the experts with the fewest tokens

  friend bool operator==(const Settings&, const Settings&) = default;
};

// Values of some settings by name, "min_gain"; the others stay. A value has the type that
// SettingRow::get returns, and may be out of range, which CheckPatch finds.
using SettingsPatch = std::map<std::string, Scalar, std::less<>>;

struct SettingRow : SettingField {
  Scalar (*get)(const Settings&);
  void (*set)(const Scalar&, Settings*);  // REQUIRES: Holds(value)

  // Returns the words in range; empty if the range is not a list of words.
  std::vector<std::string> Choices() const;
};

std::span<const SettingRow> SettingRows();
// Finds a setting by its name, or by "TABLE.NAME"; null if there is none.
const SettingRow* FindSetting(std::string_view name);

// errors: InvalidArgument, naming the setting, its value and what is expected.
absl::Status CheckPatch(const SettingsPatch& patch);

// REQUIRES: CheckPatch(patch) is OK.
Settings Patched(Settings settings, const SettingsPatch& patch);
// Returns both patches as one. `later` wins if both give a setting.
SettingsPatch Merged(SettingsPatch earlier, SettingsPatch later);
// Returns a patch that gives all settings.
SettingsPatch PatchOf(const Settings& settings);

// Returns the settings that `patch` gives: "name=balanced mode=apply every_steps=200 ..".
std::string PatchText(const SettingsPatch& patch);
// Returns the values in `settings` of the settings that `patch` gives; all if it gives none.
std::string SettingsText(const Settings& settings, const SettingsPatch& patch);

}  // namespace eplb::wire
