// One rank of a job, as a process: the real client over the TCP control channel and one of the
// transports, which trains guarded memory and is told proposals by a script.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "tests/client/fault_points/fault.h"
#include "tests/client/fault_points/journal.h"

namespace eplb {

enum class Rows { kShared, kTcp, kNccl };

struct JobSpec {
  int32_t world_size = 4;
  Rows rows = Rows::kShared;
  Fault fault;
  absl::Duration transfer_deadline = absl::Seconds(10);
  absl::Duration vote_deadline = absl::Seconds(20);
  absl::Duration abort_timeout = absl::Seconds(20);  // limit of a communicator
  int32_t num_commits = 3;                           // after so many the job has finished
  int32_t max_steps = 14;  // or, with chunks that were dropped, after so many steps
  std::string nccl_log;    // EPLB_FAKE_NCCL_LOG

  std::string Name() const;
};

// Runs the rank to its end and writes its journal. A proposal comes every second step, so that
// steps without one are run as well.
void RunRank(const JobSpec& spec, int32_t rank, SharedWorld& world);

}  // namespace eplb
