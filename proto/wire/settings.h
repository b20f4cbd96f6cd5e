// How one job is balanced: the settings, and one row for each. Configuration, `eplbctl set policy`,
// Protobuf, JSON and texts go by these rows, so that a new setting is a field of v1.PolicySettings,
// of the two structs here, and a row.
// threads: safe, no state.
#ifndef EPLB_PROTO_WIRE_SETTINGS_H_
#define EPLB_PROTO_WIRE_SETTINGS_H_

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

// Both included; a range that ends before it begins holds no step.
struct StepRange {
  int64_t first = 0;
  int64_t last = -1;

  bool Holds(int64_t step) const { return first <= step && step <= last; }
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// "A:B" with 0 <= A <= B; "" or "never" for no step at all. errors: InvalidArgument.
absl::StatusOr<StepRange> ParseSteps(std::string_view text);
std::string StepsText(const StepRange& steps);  // "" for none

// What becomes of the GPU speeds that are measured from the ranks' step times.
enum class SpeedMode { kOff, kObserve, kApply };

// What is in force for a job.
struct Settings {
  std::string policy_name{kServicePolicyName};
  bool observe = false;          // decides, explains and prices, and proposes nothing
  int32_t every_steps = 50;      // decide at most once per so many steps
  double min_gain = 0.01;        // least fall of the predicted peak load, as a fraction of it
  int64_t horizon_steps = 1000;  // over which a saving is counted
  StepRange freeze_steps;        // nothing is decided while the job's step is in it
  absl::Duration max_pause = absl::Milliseconds(200);  // of one boundary, as predicted
  int32_t layers_per_chunk = 64;
  std::optional<Hierarchy> hierarchy;  // none: the policy's own rule
  SpeedMode gpu_speeds = SpeedMode::kObserve;
  std::vector<StatedSpeed> stated_speeds;  // over the measured ones
  std::vector<int32_t> avoid_gpus;         // to get the least load there is

  friend bool operator==(const Settings&, const Settings&) = default;
};

// Those that somebody gave; the others stay. A peer's may be out of range: CheckPatch.
struct SettingsPatch {
  std::optional<std::string> policy_name;
  std::optional<std::string> mode;  // apply, observe
  std::optional<int32_t> every_steps;
  std::optional<double> min_gain;
  std::optional<int64_t> horizon_steps;
  std::optional<std::string> freeze_steps;  // as ParseSteps
  std::optional<absl::Duration> max_pause;
  std::optional<int32_t> layers_per_chunk;
  std::optional<std::string> hierarchy;      // auto, strict, soft, none
  std::optional<std::string> gpu_speeds;     // off, observe, apply
  std::optional<std::string> stated_speeds;  // as ParseSpeeds
  std::optional<std::string> avoid_gpus;     // as ParseGpus

  bool empty() const { return *this == SettingsPatch(); }
  friend bool operator==(const SettingsPatch&, const SettingsPatch&) = default;
};

// One of PolicyNames().
struct PolicyRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

// As ParseSteps; the scalar is StepsText.
struct StepsRange {
  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

struct SettingRow {
  std::string_view name;   // "min_gain", as texts and flags say it
  std::string_view table;  // of the daemon's configuration: "policy"
  std::string_view field;  // of v1.PolicySettings, and of JSON; a duration is in seconds there
  std::variant<IntegerRange, NumberRange, DurationRange, WordRange, PolicyRange, StepsRange,
               SpeedsRange, GpusRange>
      range;
  std::string_view help;  // what it does: one sentence, at most 25 words
  Scalar (*get)(const Settings&);
  void (*set)(const Scalar&, Settings*);  // REQUIRES: Holds(value)
  std::optional<Scalar> (*get_given)(const SettingsPatch&);
  // Any scalar of the type that `get` gives, in range or not.
  void (*set_given)(const Scalar&, SettingsPatch*);

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
  // Where only these words are in range; else empty.
  std::vector<std::string> Choices() const;
};

std::span<const SettingRow> SettingRows();
// By its name, or "TABLE.NAME"; null: there is none.
const SettingRow* FindSetting(std::string_view name);

// errors: InvalidArgument, naming the field, its value and what is expected.
absl::Status CheckPatch(const SettingsPatch& patch);

// REQUIRES: CheckPatch(patch) is OK.
Settings Patched(Settings settings, const SettingsPatch& patch);
// `later` wins where both give a setting.
SettingsPatch Merged(SettingsPatch earlier, const SettingsPatch& later);
// One that gives all of them.
SettingsPatch PatchOf(const Settings& settings);

// "name=balanced mode=apply every_steps=200 .." of the settings that `patch` gives.
std::string PatchText(const SettingsPatch& patch);
// The values in `settings` of those that `patch` gives; all of them when it gives none.
std::string SettingsText(const Settings& settings, const SettingsPatch& patch);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_SETTINGS_H_
