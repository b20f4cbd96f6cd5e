#include "client/cli/daemon/set_policy.h"

#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "client/cli/daemon/run_change.h"
#include "client/cli/duration_flag.h"
#include "placement/registry.h"
#include "placement/status_macros.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

absl::Status Wrong(const std::string& key, const std::string& value, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat(key, "=", value, ": expected ", expected));
}

absl::Status SetName(const std::string& value, v1::PolicySettings* settings) {
  std::string names;
  for (const std::string_view name : PolicyNames()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(name));
    if (name == value) {
      settings->set_name(value);
      return absl::OkStatus();
    }
  }
  return Wrong("name", value, "one of " + names);
}

absl::Status SetMode(const std::string& value, v1::PolicySettings* settings) {
  if (value != "apply" && value != "observe") return Wrong("mode", value, "apply or observe");
  settings->set_mode(value);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Steps(const std::string& key, const std::string& value, int64_t most) {
  int64_t number = 0;
  if (absl::SimpleAtoi(value, &number) && number >= 1 && number <= most) return number;
  return Wrong(key, value, absl::StrCat("an integer in 1..", most));
}

absl::Status SetMinGain(const std::string& value, v1::PolicySettings* settings) {
  double gain = 0;
  if (!absl::SimpleAtod(value, &gain) || !(gain >= 0 && gain <= 1)) {
    return Wrong("min_gain", value, "a number in 0..1");
  }
  settings->set_min_gain(gain);
  return absl::OkStatus();
}

absl::Status SetFreezeSteps(const std::string& value, v1::PolicySettings* settings) {
  const size_t colon = value.find(':');
  int64_t first = 0;
  int64_t last = 0;
  const bool range =
      colon != std::string::npos && absl::SimpleAtoi(value.substr(0, colon), &first) &&
      absl::SimpleAtoi(value.substr(colon + 1), &last) && 0 <= first && first <= last;
  if (!range && value != "never") {
    return Wrong("freeze_steps", value, "A:B with 0 <= A <= B, or never");
  }
  settings->set_freeze_steps(range ? value : "");
  return absl::OkStatus();
}

}  // namespace

absl::Status ApplySetting(const std::string& setting, v1::PolicySettings* settings) {
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  const size_t equals = setting.find('=');
  if (equals == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", setting, "\": expected KEY=VALUE, e.g. every_steps=100"));
  }
  const size_t dot = setting.find('.');
  const size_t begin = dot < equals ? dot + 1 : 0;  // policy., migration.
  const std::string key = setting.substr(begin, equals - begin);
  const std::string value = setting.substr(equals + 1);
  if (key == "name") return SetName(value, settings);
  if (key == "mode") return SetMode(value, settings);
  if (key == "min_gain") return SetMinGain(value, settings);
  if (key == "freeze_steps") return SetFreezeSteps(value, settings);
  if (key == "every_steps") {
    EPLB_ASSIGN_OR_RETURN(const int64_t steps, Steps(key, value, kMaxInt32));
    settings->set_every_steps(static_cast<uint32_t>(steps));
  } else if (key == "horizon_steps") {
    EPLB_ASSIGN_OR_RETURN(const int64_t steps, Steps(key, value, kMaxInt32));
    settings->set_horizon_steps(static_cast<uint64_t>(steps));
  } else if (key == "layers_per_chunk") {
    EPLB_ASSIGN_OR_RETURN(const int64_t layers, Steps(key, value, 1 << 20));
    settings->set_layers_per_chunk(static_cast<uint32_t>(layers));
  } else if (key == "max_pause") {
    EPLB_ASSIGN_OR_RETURN(const absl::Duration pause, ParseDuration(key, value));
    settings->set_max_pause_seconds(absl::ToDoubleSeconds(pause));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", key, "\": unknown setting, expected name, mode, every_steps, min_gain, ",
                     "horizon_steps, freeze_steps, max_pause, layers_per_chunk"));
  }
  return absl::OkStatus();
}

Output RunSetPolicy(const SetPolicyOptions& options) {
  v1::SetPolicyRequest request;
  std::set<std::string> given;
  for (const std::string& setting : options.settings) {
    if (const std::string key = setting.substr(0, setting.find('=')); !given.insert(key).second) {
      return Failure(kUsage, absl::InvalidArgumentError(absl::StrCat(key, " is given twice")));
    }
    if (const absl::Status status = ApplySetting(setting, request.mutable_settings());
        !status.ok()) {
      return Failure(kUsage, status);
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
