// Ranks as processes of their own: CUDA cannot be used in a fork of a process that has used it, so
// the test program starts itself again with a rank's arguments.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace eplb {

class RankProcesses {
 public:
  RankProcesses() = default;
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses();  // kills those that were not waited for

  // This program with these arguments; `variables`, e.g. "A=b", go before the environment. False
  // when it cannot be started.
  bool Start(std::vector<std::string> arguments, std::vector<std::string> variables);
  // Returns the status of each, in the order of Start; kills those that do not end before the
  // deadline.
  std::vector<int> Ends(absl::Duration patience);

 private:
  std::vector<pid_t> running_;
};

// With which NCCL takes `host`'s rank on device 0 beside ranks of other hosts there.
std::vector<std::string> NcclVariables(const std::string& host);

}  // namespace eplb
