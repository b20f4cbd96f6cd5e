// `eplbctl set policy`.
#ifndef EPLB_CLIENT_CLI_DAEMON_SET_POLICY_H_
#define EPLB_CLIENT_CLI_DAEMON_SET_POLICY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::v1 {
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// Sets the field that `setting` names: "every_steps=100", also "policy.every_steps=100" as the
// daemon's configuration has it. Keys are those of PolicySettings; max_pause is a duration.
// returns: the key without its table.
// errors: InvalidArgument naming the setting and what is expected; another table's name before the
// key is no setting.
absl::StatusOr<std::string> ApplySetting(const std::string& setting, v1::PolicySettings* settings);

struct SetPolicyOptions {
  ChangeOptions change;
  std::vector<std::string> settings;  // KEY=VALUE
};

// Changes a job's own settings; the others stay.
Output RunSetPolicy(const SetPolicyOptions& options);

void AddSet(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_SET_POLICY_H_
