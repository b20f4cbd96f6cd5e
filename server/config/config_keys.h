// The keys of the configuration: one row each with its range and its place in DaemonConfig.
#ifndef EPLB_SERVER_CONFIG_CONFIG_KEYS_H_
#define EPLB_SERVER_CONFIG_CONFIG_KEYS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "server/config/config.h"
#include "server/config/config_values.h"

namespace eplb {

struct ConfigKey {
  std::string_view name;      // "policy.min_gain"
  std::string_view expected;  // "a number in 0..1"; empty: ExpectedOf lists the policies
  std::string_view help;      // what it does: one sentence, at most 25 words
  // False when the value is not what `expected` says.
  bool (*set)(const ConfigValue& value, DaemonConfig* config);
  // The value in `config` as a variable would give it; empty: none.
  std::string (*text)(const DaemonConfig& config);
};

std::span<const ConfigKey> ConfigKeys();
std::string ExpectedOf(const ConfigKey& key);

// Sets one key, also jobs.NAME.KEY, which is not among ConfigKeys(): a setting of one job, where
// KEY is the last word of a key of policy.* or migration.*. errors: InvalidArgument, without the
// source: "policy.min_gain = 2: expected ...", or for an unknown key the nearest known one.
absl::Status SetConfigKey(std::string_view name, const ConfigValue& value, DaemonConfig* config);
// As SetConfigKey, and notes who set it. source: "eplbd.toml:12", "EPLB_POLICY_NAME".
absl::Status SetConfigKeyFrom(const std::string& source, std::string_view name,
                              const ConfigValue& value, DaemonConfig* config);

}  // namespace eplb

#endif  // EPLB_SERVER_CONFIG_CONFIG_KEYS_H_
