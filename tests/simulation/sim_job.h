// One job of the simulated cluster: its launcher, its checkpoints and the logs of its ranks.
#ifndef EPLB_TESTS_SIMULATION_SIM_JOB_H_
#define EPLB_TESTS_SIMULATION_SIM_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "placement/history.h"
#include "placement/topology.h"
#include "tests/simulation/collective.h"
#include "tests/simulation/context.h"
#include "tests/simulation/sim_rank.h"
#include "tests/simulation/truth.h"

namespace eplb::simulation {

struct JobOptions {
  std::string name;
  TopologyOptions shape;
  int32_t vote_every = 2;
  int32_t report_every = 10;
  std::function<Stream*()> connect;  // as RankOptions
  // The daemons that new processes can reach remember this version of this job.
  std::function<bool(const std::string& job, int64_t version)> daemons_remember;
};

class SimJob {
 public:
  SimJob(Context* context, Truth* truth, JobOptions options);

  // Starts the first incarnation, or kills all processes and starts the next one from the newest
  // checkpoint.
  void Launch();
  // Soon, unless one is on its way.
  void LaunchLater();
  void StopReporting();
  // Some process has heard of every version that any was READY for.
  bool RanksRemember() const;

  const std::string& name() const { return options_.name; }
  int world_size() const { return options_.shape.num_gpus; }
  SimRank& rank(int index) { return *ranks_[index]; }
  // Ok when every rank trains and all run one version, which `running` then is.
  absl::Status CheckRanks(RunningPlacement& running) const;
  // What the validator finds in the logs of all ranks.
  void CheckLogs();

 private:
  void KillAll();
  LoadMatrix LoadAt(int rank, int64_t step) const;
  void OnRunning(int64_t first_step, const RunningPlacement& running);
  std::string Incarnation() const { return absl::StrCat("launch-", launches_); }

  Context& context_;
  Truth& truth_;
  const JobOptions options_;
  const Topology topology_;
  const int load_seed_;
  int launches_ = 0;
  bool launch_pending_ = false;
  bool reports_ = true;
  RunningPlacement checkpoint_;
  int64_t checkpoint_step_ = -1;  // last step before it
  int64_t highest_version_ = 0;   // that any rank was READY for
  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<std::unique_ptr<SimRank>>
      processes_;                // of all incarnations: callbacks may be under way
  std::vector<SimRank*> ranks_;  // of the newest one
  std::vector<std::vector<HistoryRecord>> logs_;
  std::vector<PlacementRecord> placements_;  // of the newest incarnation
};

}  // namespace eplb::simulation

#endif  // EPLB_TESTS_SIMULATION_SIM_JOB_H_
