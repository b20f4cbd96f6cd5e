// The keys of the configuration: the fields of v1.Configuration. eplbd reads, prints, checks and
// explains its configuration by them alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "base/value_range.h"
#include "proto/wire/setting_field.h"
#include "server/config/config.h"

namespace eplb {

struct ConfigKey : wire::SettingField {
  std::vector<const google::protobuf::FieldDescriptor*> tables;  // from v1.Configuration inwards

  // Returns the value, or its default. An empty text: not set, or empty.
  Scalar Get(const DaemonConfig& config) const;
  void Set(const Scalar& value, DaemonConfig* config) const;
  bool of_jobs() const;  // a job may have its own value
};

// In the order of their declaration.
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
