#include "client/cli/daemon/set_policy.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

#include "client/cli/daemon/run_change.h"
#include "placement/registry.h"
#include "placement/status_macros.h"
#include "placement/suggestion.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr int64_t kMaxSteps = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 1 << 20;

// As a configuration file has numbers: no sign, no blanks, decimal.
bool OnlyDigits(const std::string& text) {
  return text.find_first_not_of("0123456789") == std::string::npos;
}
bool IsDecimal(const std::string& text) {
  return text.find_first_of("0123456789.") == 0 &&
         text.find_first_not_of("0123456789.eE-") == std::string::npos;
}

absl::Status WrongValue(const std::string& key, const std::string& value,
                        const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(key, "=", value, ": expected ", expected));
}

absl::Status SetName(const std::string& value, v1::PolicySettings* settings) {
  std::vector<std::string> names;
  for (const std::string_view name : PolicyNames()) names.emplace_back(name);
  if (std::find(names.begin(), names.end(), value) != names.end()) {
    settings->set_name(value);
    return absl::OkStatus();
  }
  return WrongValue("name", value,
                    absl::StrCat("one of ", absl::StrJoin(names, ", "), Suggestion(value, names)));
}

absl::Status SetMode(const std::string& value, v1::PolicySettings* settings) {
  if (value != "apply" && value != "observe") return WrongValue("mode", value, "apply or observe");
  settings->set_mode(value);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Count(const char* key, const std::string& value, int64_t most) {
  int64_t number = 0;
  if (OnlyDigits(value) && absl::SimpleAtoi(value, &number) && number >= 1 && number <= most) {
    return number;
  }
  return WrongValue(key, value, absl::StrCat("an integer in 1..", most));
}

absl::Status SetEverySteps(const std::string& value, v1::PolicySettings* settings) {
  EPLB_ASSIGN_OR_RETURN(const int64_t steps, Count("every_steps", value, kMaxSteps));
  settings->set_every_steps(static_cast<uint32_t>(steps));
  return absl::OkStatus();
}

absl::Status SetHorizonSteps(const std::string& value, v1::PolicySettings* settings) {
  EPLB_ASSIGN_OR_RETURN(const int64_t steps, Count("horizon_steps", value, kMaxSteps));
  settings->set_horizon_steps(static_cast<uint64_t>(steps));
  return absl::OkStatus();
}

absl::Status SetLayersPerChunk(const std::string& value, v1::PolicySettings* settings) {
  EPLB_ASSIGN_OR_RETURN(const int64_t layers, Count("layers_per_chunk", value, kMaxLayers));
  settings->set_layers_per_chunk(static_cast<uint32_t>(layers));
  return absl::OkStatus();
}

absl::Status SetMinGain(const std::string& value, v1::PolicySettings* settings) {
  double gain = 0;
  if (!IsDecimal(value) || !absl::SimpleAtod(value, &gain) || !(gain >= 0 && gain <= 1)) {
    return WrongValue("min_gain", value, "a number in 0..1");
  }
  settings->set_min_gain(gain);
  return absl::OkStatus();
}

absl::Status SetFreezeSteps(const std::string& value, v1::PolicySettings* settings) {
  const size_t colon = value.find(':');
  int64_t first = 0;
  int64_t last = 0;
  const bool range = colon != std::string::npos && OnlyDigits(value.substr(0, colon)) &&
                     absl::SimpleAtoi(value.substr(0, colon), &first) &&
                     OnlyDigits(value.substr(colon + 1)) &&
                     absl::SimpleAtoi(value.substr(colon + 1), &last) && first <= last;
  if (!range && value != "never") {
    return WrongValue("freeze_steps", value, "A:B with 0 <= A <= B, or never");
  }
  settings->set_freeze_steps(range ? value : "");
  return absl::OkStatus();
}

// Unlike a flag's duration it needs its unit, as in a configuration file.
absl::Status SetMaxPause(const std::string& value, v1::PolicySettings* settings) {
  absl::Duration pause;
  const bool begins_well = IsDecimal(value.substr(0, 1));
  if (!begins_well || !absl::ParseDuration(value, &pause) || pause < absl::Milliseconds(1) ||
      pause > absl::Hours(1)) {
    return WrongValue("max_pause", value, "a duration with its unit, e.g. 200ms, in 1ms..1h");
  }
  settings->set_max_pause_seconds(absl::ToDoubleSeconds(pause));
  return absl::OkStatus();
}

// A setting, and the table of the daemon's configuration that it stands in.
struct Setting {
  const char* key;
  const char* table;
  absl::Status (*set)(const std::string& value, v1::PolicySettings* settings);
};

constexpr Setting kSettings[] = {{"name", "policy", &SetName},
                                 {"mode", "policy", &SetMode},
                                 {"every_steps", "policy", &SetEverySteps},
                                 {"min_gain", "policy", &SetMinGain},
                                 {"horizon_steps", "policy", &SetHorizonSteps},
                                 {"freeze_steps", "policy", &SetFreezeSteps},
                                 {"max_pause", "migration", &SetMaxPause},
                                 {"layers_per_chunk", "migration", &SetLayersPerChunk}};

}  // namespace

absl::StatusOr<std::string> ApplySetting(const std::string& setting, v1::PolicySettings* settings) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", setting, "\": expected KEY=VALUE, e.g. every_steps=100"));
  }
  const std::string given = setting.substr(0, equals);
  std::vector<std::string> known;
  std::vector<std::string> short_names;
  for (const Setting& one : kSettings) {
    const std::string full = absl::StrCat(one.table, ".", one.key);
    if (given == one.key || given == full) {
      EPLB_RETURN_IF_ERROR(one.set(setting.substr(equals + 1), settings));
      return one.key;
    }
    known.push_back(full);
    short_names.push_back(one.key);
  }
  std::string nearest = Suggestion(given, known);
  if (nearest.empty()) nearest = Suggestion(given, short_names);
  return absl::InvalidArgumentError(absl::StrCat("\"", given, "\": unknown setting, expected ",
                                                 absl::StrJoin(known, ", "), nearest));
}

Output RunSetPolicy(const SetPolicyOptions& options) {
  v1::SetPolicyRequest request;
  std::set<std::string> given;
  for (const std::string& setting : options.settings) {
    const absl::StatusOr<std::string> key = ApplySetting(setting, request.mutable_settings());
    if (!key.ok()) return Failure(kUsage, key.status());
    if (!given.insert(*key).second) {
      return Failure(kUsage, absl::InvalidArgumentError(absl::StrCat(*key, " is given twice")));
    }
  }
  return RunChange(options.change, std::move(request));
}

void AddSet(CLI::App& root, Command& command) {
  CLI::App& set = *root.add_subcommand("set", "Change settings of a job: policy");
  set.require_subcommand(1);
  const auto options = std::make_shared<SetPolicyOptions>();
  CLI::App& app = *set.add_subcommand("policy", "How a job is balanced; the others stay");
  app.add_option("settings", options->settings,
                 "name, mode, every_steps, min_gain, horizon_steps, freeze_steps, max_pause, "
                 "layers_per_chunk")
      ->required()
      ->type_name("KEY=VALUE");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunSetPolicy(*options); };
  });
}

}  // namespace eplb::cli
