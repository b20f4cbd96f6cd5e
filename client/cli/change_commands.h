// Commands that change something at the daemon: pause, resume, rebalance, rollback, forget and set.
#ifndef EPLB_CLIENT_CLI_CHANGE_COMMANDS_H_
#define EPLB_CLIENT_CLI_CHANGE_COMMANDS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::v1 {
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// The flags that all commands share that change something at the daemon.

struct ChangeOptions {
  QueryOptions query;
  std::string job;              // empty: the only one
  std::string request_id;       // empty: drawn
  int64_t expect_version = -1;  // < 0: the one in force just before
  std::string comment;
  bool dry_run = false;  // ask what would happen, change nothing
};

// --job, --expect-version, --request-id, --comment and those of a query.
void AddChangeOptions(CLI::App& app, ChangeOptions& options,
                      const std::set<ExitCode>& more_exit_codes = {});

// `eplbctl pause`.

struct PauseOptions {
  ChangeOptions change;
};

// No more proposals until `resume`.
Output RunPause(const PauseOptions& options);

void AddPause(CLI::App& root, Command& command);

// `eplbctl resume`.

struct ResumeOptions {
  ChangeOptions change;
};

// Ends a pause and a QUARANTINE.
Output RunResume(const ResumeOptions& options);

void AddResume(CLI::App& root, Command& command);

// `eplbctl rebalance`.

struct RebalanceOptions {
  ChangeOptions change;
  bool force = false;  // without asking whether it pays
  bool wait = false;   // for the end of the decision
  std::string wait_timeout = "10m";
};

// Decides now instead of at the next policy.every_steps. With `wait` the output is the decision, as
// `get plans` has it, and the exit code 8 unless it was committed. With `change.dry_run` it waits,
// too: nothing is proposed, and the exit code is 8 unless the policy would change something.
Output RunRebalance(const RebalanceOptions& options);

void AddRebalance(CLI::App& root, Command& command);

// `eplbctl rollback`.

struct RollbackOptions {
  ChangeOptions change;
  int64_t to = -1;  // version; < 0: the one before the newest rebalance
};

// Proposes an earlier placement and pauses the job.
Output RunRollback(const RollbackOptions& options);

void AddRollback(CLI::App& root, Command& command);

// `eplbctl forget`.

struct ForgetOptions {
  ChangeOptions change;  // its job is not empty: the only job of a daemon is not removed by chance
};

// Removes a job without a connected rank; its audit log stays.
Output RunForget(const ForgetOptions& options);

void AddForget(CLI::App& root, Command& command);

// `eplbctl set policy`.

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

#endif  // EPLB_CLIENT_CLI_CHANGE_COMMANDS_H_
