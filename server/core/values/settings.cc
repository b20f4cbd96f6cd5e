#include "server/core/values/settings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "placement/policies/registry.h"
#include "server/core/values/config.h"

namespace eplb::core {
namespace {

constexpr int32_t kMaxLayers = 1 << 20;
constexpr size_t kMaxStepsText = 39;  // two numbers of 19 digits
constexpr absl::Duration kLeastPause = absl::Milliseconds(1);
constexpr absl::Duration kMostPause = absl::Hours(1);

absl::Status CheckName(const std::string& name) {
  const std::vector<std::string_view> names = PolicyNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  std::vector<std::string> known(names.begin(), names.end());
  return absl::InvalidArgumentError(
      absl::StrCat("name is \"", name, "\", expected one of ", absl::StrJoin(known, ", ")));
}

absl::Status CheckRange(const char* field, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", expected 1..", most));
}

}  // namespace

absl::StatusOr<StepRange> ParseSteps(const std::string& text) {
  if (text.empty()) return StepRange();
  const size_t colon = text.find(':');
  StepRange steps;
  // SimpleAtoi takes any number of blanks and zeros.
  if (text.size() <= kMaxStepsText && colon != std::string::npos &&
      absl::SimpleAtoi(text.substr(0, colon), &steps.first) &&
      absl::SimpleAtoi(text.substr(colon + 1), &steps.last) && steps.first >= 0 &&
      steps.last >= steps.first) {
    return steps;
  }
  return absl::InvalidArgumentError(absl::StrCat("freeze_steps is \"",
                                                 wire::Clipped(text, kMaxStepsText),
                                                 "\", expected A:B with 0 <= A <= B, or nothing"));
}

std::string StepsText(const StepRange& steps) {
  return steps.last < steps.first ? "" : absl::StrCat(steps.first, ":", steps.last);
}

absl::Status CheckPatch(const SettingsPatch& patch) {
  constexpr int64_t kMostSteps = std::numeric_limits<int32_t>::max();
  if (patch.policy_name) EPLB_RETURN_IF_ERROR(CheckName(*patch.policy_name));
  if (patch.mode && *patch.mode != "apply" && *patch.mode != "observe") {
    return absl::InvalidArgumentError(
        absl::StrCat("mode is \"", *patch.mode, "\", expected apply or observe"));
  }
  if (patch.every_steps) {
    EPLB_RETURN_IF_ERROR(CheckRange("every_steps", *patch.every_steps, kMostSteps));
  }
  if (patch.min_gain && !(*patch.min_gain >= 0 && *patch.min_gain <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_gain is ", *patch.min_gain, ", expected 0..1"));
  }
  if (patch.horizon_steps) {
    EPLB_RETURN_IF_ERROR(CheckRange("horizon_steps", *patch.horizon_steps, kMostSteps));
  }
  if (patch.freeze_steps) EPLB_RETURN_IF_ERROR(ParseSteps(*patch.freeze_steps).status());
  if (patch.max_pause && (*patch.max_pause < kLeastPause || *patch.max_pause > kMostPause)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pause is ", absl::FormatDuration(*patch.max_pause), ", expected ",
                     absl::FormatDuration(kLeastPause), "..", absl::FormatDuration(kMostPause)));
  }
  if (patch.layers_per_chunk) {
    EPLB_RETURN_IF_ERROR(CheckRange("layers_per_chunk", *patch.layers_per_chunk, kMaxLayers));
  }
  return absl::OkStatus();
}

Settings Patched(Settings settings, const SettingsPatch& patch) {
  if (patch.policy_name) settings.policy_name = *patch.policy_name;
  if (patch.mode) settings.observe = *patch.mode == "observe";
  if (patch.every_steps) settings.every_steps = *patch.every_steps;
  if (patch.min_gain) settings.min_gain = *patch.min_gain;
  if (patch.horizon_steps) settings.horizon_steps = *patch.horizon_steps;
  if (patch.freeze_steps) settings.freeze_steps = ParseSteps(*patch.freeze_steps).value();
  if (patch.max_pause) settings.max_pause = *patch.max_pause;
  if (patch.layers_per_chunk) settings.layers_per_chunk = *patch.layers_per_chunk;
  return settings;
}

SettingsPatch Merged(SettingsPatch earlier, const SettingsPatch& later) {
  const auto take = [](auto& to, const auto& from) {
    if (from) to = from;
  };
  take(earlier.policy_name, later.policy_name);
  take(earlier.mode, later.mode);
  take(earlier.every_steps, later.every_steps);
  take(earlier.min_gain, later.min_gain);
  take(earlier.horizon_steps, later.horizon_steps);
  take(earlier.freeze_steps, later.freeze_steps);
  take(earlier.max_pause, later.max_pause);
  take(earlier.layers_per_chunk, later.layers_per_chunk);
  return earlier;
}

std::string SettingsText(const Settings& settings, const SettingsPatch& patch) {
  std::vector<std::string> parts;
  const bool all = patch.empty();
  const auto add = [&parts, all](bool given, const char* key, const auto& value) {
    if (given || all) parts.push_back(absl::StrCat(key, "=", value));
  };
  add(patch.policy_name.has_value(), "name", settings.policy_name);
  add(patch.mode.has_value(), "mode", settings.observe ? "observe" : "apply");
  add(patch.every_steps.has_value(), "every_steps", settings.every_steps);
  add(patch.min_gain.has_value(), "min_gain", settings.min_gain);
  add(patch.horizon_steps.has_value(), "horizon_steps", settings.horizon_steps);
  add(patch.freeze_steps.has_value(), "freeze_steps", StepsText(settings.freeze_steps));
  add(patch.max_pause.has_value(), "max_pause", absl::FormatDuration(settings.max_pause));
  add(patch.layers_per_chunk.has_value(), "layers_per_chunk", settings.layers_per_chunk);
  return absl::StrJoin(parts, " ");
}

Settings SettingsOf(const Config& config, const std::string& job, const SettingsPatch& patch) {
  Settings settings{.policy_name = config.policy_name,
                    .observe = config.observe,
                    .every_steps = config.policy_every_steps,
                    .min_gain = config.min_gain,
                    .horizon_steps = config.costs.horizon_steps,
                    .freeze_steps = {config.freeze_first_step, config.freeze_last_step},
                    .max_pause = config.max_pause,
                    .layers_per_chunk = config.layers_per_chunk};
  if (const auto own = config.job_settings.find(job); own != config.job_settings.end()) {
    settings = Patched(std::move(settings), own->second);
  }
  // One that another version of the daemon stored may name what this one does not have.
  return CheckPatch(patch).ok() ? Patched(std::move(settings), patch) : settings;
}

}  // namespace eplb::core
