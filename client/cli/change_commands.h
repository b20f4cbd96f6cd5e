// Commands that change a job at the daemon: pause, resume, rebalance, rollback, forget and set.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::v1 {
class PolicySettings;
}  // namespace eplb::v1

namespace eplb::cli {

// Options of every command that changes something at the daemon.
struct ChangeOptions {
  QueryOptions query;
  std::string job;              // empty: the only one
  std::string request_id;       // empty: drawn at random
  int64_t expect_version = -1;  // < 0: the version that is current just before
  std::string comment;
  bool dry_run = false;  // ask what would happen, change nothing
};

// Stops proposals until `resume`.
Output RunPause(const ChangeOptions& options);

// Ends a pause and a QUARANTINE.
Output RunResume(const ChangeOptions& options);

struct RebalanceOptions {
  ChangeOptions change;
  bool force = false;  // even if it does not pay
  bool wait = false;   // for the end of the decision
  std::string wait_timeout = "10m";
};
// Decides now instead of at the next policy.every_steps. With `wait` the output is the decision, as
// `get plans` shows it, and the exit code 8 unless it was committed. With `change.dry_run` it
// waits, too: nothing is proposed, and the exit code is 8 unless the policy would change something.
Output RunRebalance(const RebalanceOptions& options);

struct RollbackOptions {
  ChangeOptions change;
  int64_t to = -1;  // version; < 0: the one before the newest rebalance
};
// Proposes an earlier placement and pauses the job.
Output RunRollback(const RollbackOptions& options);

struct ForgetOptions {
  ChangeOptions change;
  std::string job;  // or change.job: one of the two is needed, even if the daemon has only one job
};
// Removes a job without a connected rank; its audit log stays.
Output RunForget(const ForgetOptions& options);

// Sets the field that `setting` names: "every_steps=100", or "policy.every_steps=100" as in the
// daemon's configuration. Keys are those of PolicySettings; max_pause is a duration.
// returns: the key without its table.
// errors: InvalidArgument naming the setting and what is expected.
absl::StatusOr<std::string> ApplySetting(const std::string& setting, v1::PolicySettings* settings);

struct SetPolicyOptions {
  ChangeOptions change;
  std::vector<std::string> settings;  // KEY=VALUE
};
// `set policy`: changes a job's own settings; the others stay.
Output RunSetPolicy(const SetPolicyOptions& options);

void AddRebalance(const Flags& root);
void AddPause(const Flags& root);
void AddResume(const Flags& root);
void AddRollback(const Flags& root);
void AddSet(const Flags& root);
void AddForget(const Flags& root);

}  // namespace eplb::cli
