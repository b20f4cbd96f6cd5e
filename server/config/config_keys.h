// The table of the configuration: one row for each key. eplbd reads, prints, checks and explains
// its configuration by these rows alone. The rows of a job's settings are made from SettingRows().
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"

#include "base/value_range.h"
#include "proto/wire/settings.h"
#include "server/config/config.h"
#include "server/config/config_values.h"

namespace eplb {

using ConfigRange =
    std::variant<IntegerRange, NumberRange, DurationRange, WordRange, wire::PolicyRange, TextRange,
                 BandwidthRange, AddressRange, SocketPathRange, PathRange, HostNameRange,
                 BooleanRange, EtcdEndpointsRange, FileTable>;

// A flag of its own, besides --set.
struct ConfigFlag {
  const char* name = nullptr;  // "--listen"; null: none
  const char* help = nullptr;
};

struct ConfigKey {
  std::string name;  // "policy.min_gain"
  ConfigRange range;
  std::string_view help;  // effect of the key: one sentence, at most 25 words
  std::function<Scalar(const DaemonConfig&)> get;  // an empty text: not set, or empty
  std::function<void(const Scalar&, DaemonConfig*)> set;
  const wire::SettingRow* setting = nullptr;  // set if a job may have its own value
  ConfigFlag flag = {};
  std::string_view default_help = {};  // for a default that depends on the environment

  // Name of the table, and name in the table: "policy" and "min_gain".
  std::string_view table() const { return std::string_view(name).substr(0, name.find('.')); }
  std::string_view own_name() const { return std::string_view(name).substr(name.find('.') + 1); }
  std::optional<Scalar> Read(const WrittenValue& written) const;
  std::string Expected() const;
};

std::span<const ConfigKey> ConfigKeys();

// Sets one key, also jobs.NAME.KEY, where KEY is the name of a setting. errors: InvalidArgument,
// without the source: "policy.min_gain = 2: expected ...", or for an unknown key the nearest known
// one.
absl::Status SetConfigKey(std::string_view name, const WrittenValue& value, DaemonConfig* config);
// Sets a key and notes its source: "eplbd.toml:12" or "EPLB_POLICY_NAME". errors: as SetConfigKey.
absl::Status SetConfigKeyFrom(const std::string& source, std::string_view name,
                              const WrittenValue& value, DaemonConfig* config);

// Returns "EPLB_POLICY_NAME" for "policy.name".
std::string VariableOf(std::string_view key);

// errors: InvalidArgument unless it is 1..128 characters of [A-Za-z0-9._-], as in a rank's Hello.
absl::Status CheckJobName(std::string_view name);

}  // namespace eplb
