// Settings of a job, and one row for each. Configuration, `eplbctl set policy`, protobuf, JSON and
// texts follow the rows. A new setting is a field of v1.PolicySettings, a member of the two structs
// here, and a row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/value_range.h"
#include "placement/policies/registry.h"
#include "placement/topology.h"
#include "proto/wire/gpu_settings.h"

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
  std::string policy_name{kServicePolicyName};
  bool observe = false;          // decides, explains and prices, and proposes nothing
  int32_t every_steps = 50;      // least steps between two decisions
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

// Changes of some settings; the others stay. CheckPatch finds values that are out of range.
struct SettingsPatch {
  std::optional<std::string> policy_name;
  std::optional<std::string> mode;  // apply, observe
  std::optional<int32_t> every_steps;
  std::optional<double> min_gain;
  std::optional<int64_t> horizon_steps;
  std::optional<std::string> freeze_steps;  // see ParseSteps
  std::optional<absl::Duration> max_pause;
  std::optional<int32_t> layers_per_chunk;
  std::optional<std::string> hierarchy;      // auto, strict, soft, none
  std::optional<std::string> gpu_speeds;     // off, observe, apply
  std::optional<std::string> stated_speeds;  // see ParseSpeeds
  std::optional<std::string> avoid_gpus;     // see ParseGpus

  bool empty() const { return *this == SettingsPatch(); }
  friend bool operator==(const SettingsPatch&, const SettingsPatch&) = default;
};

// One of PolicyNames().
struct PolicyRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

// Texts that ParseSteps accepts; the scalar is StepsText.
std::optional<std::string> CanonicalSteps(std::string_view text);
std::string StepsExpected();
inline constexpr TextRange kStepsRange{&CanonicalSteps, "never", &StepsExpected};

struct SettingRow {
  std::string_view name;   // in texts and flags: "min_gain"
  std::string_view table;  // in the daemon's configuration: "policy"
  std::string_view field;  // in v1.PolicySettings and JSON, which have durations in seconds
  std::variant<IntegerRange, NumberRange, DurationRange, WordRange, PolicyRange, TextRange> range;
  std::string_view help;  // effect of the setting: one sentence, at most 25 words
  Scalar (*get)(const Settings&);
  void (*set)(const Scalar&, Settings*);  // REQUIRES: Holds(value)
  std::optional<Scalar> (*get_given)(const SettingsPatch&);
  // The scalar has the type that `get` returns and may be out of range.
  void (*set_given)(const Scalar&, SettingsPatch*);

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
  // Returns the words in range; empty if the range is not a list of words.
  std::vector<std::string> Choices() const;
};

std::span<const SettingRow> SettingRows();
// Finds a setting by its name, or by "TABLE.NAME"; null if there is none.
const SettingRow* FindSetting(std::string_view name);

// errors: InvalidArgument, naming the field, its value and what is expected.
absl::Status CheckPatch(const SettingsPatch& patch);

// REQUIRES: CheckPatch(patch) is OK.
Settings Patched(Settings settings, const SettingsPatch& patch);
// Returns both patches as one. `later` wins if both give a setting.
SettingsPatch Merged(SettingsPatch earlier, const SettingsPatch& later);
// Returns a patch that gives all settings.
SettingsPatch PatchOf(const Settings& settings);

// Returns the settings that `patch` gives: "name=balanced mode=apply every_steps=200 ..".
std::string PatchText(const SettingsPatch& patch);
// Returns the values in `settings` of the settings that `patch` gives; all if it gives none.
std::string SettingsText(const Settings& settings, const SettingsPatch& patch);

}  // namespace eplb::wire
