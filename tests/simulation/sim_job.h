// One job of the simulated cluster: its launcher, its checkpoints and the logs of its ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/run_log/history.h"
#include "placement/topology.h"
#include "tests/simulation/collective.h"
#include "tests/simulation/context.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sim_rank.h"
#include "tests/simulation/truth.h"

namespace eplb::simulation {

// Fate of the processes of a run when the next one starts.
enum class Before {
  kKilled,
  kHangs,         // its training threads do nothing more, its sessions live
  kTrains,        // it trains on; the new one says that it takes over
  kTrainsAWhile,  // it trains on until it is killed; the new one waits
};

struct JobOptions {
  std::string name;
  TopologyOptions shape;
  int32_t vote_every = 2;
  int32_t report_every = 10;
  std::function<Stream*(int daemon)> connect;  // see RankOptions, like the next
  std::function<std::optional<Leader>(const std::string& run_id)> find_leader;
  // The daemons that new processes can reach remember this version of this job.
  std::function<bool(const std::string& job, int64_t version)> daemons_remember;
  std::function<void()> on_older_ended;  // no older run lives any more
  std::function<void()> on_forgotten;    // no process remembers the job any more
};

class SimJob {
 public:
  SimJob(Context* context, Truth* truth, JobOptions options);

  // Starts the first run, or the next one from the newest checkpoint. The run before the one
  // before is killed.
  void Run(Before before);
  // Soon, behind processes that are killed, unless a run is on its way.
  void RunLater();
  void StopReporting();
  // Some process of the newest run has heard of every version that any was PREPARED for. Beside an
  // older run that lives, all of them also carry the number of theirs.
  bool RanksRemember() const;
  // Every rank of the newest run carries a memory of which `holds` is true.
  bool RanksCarry(const Promises::Holds& holds) const;

  const std::string& name() const { return options_.name; }
  // Returns the id of the newest run.
  const std::string& run_id() const { return newest().name; }
  int world_size() const { return options_.shape.num_gpus; }
  // Returns a rank of the newest run.
  SimRank& rank(int index) { return *newest().ranks[static_cast<size_t>(index)]; }
  // A daemon may lead a run that lives beside the newest one, and not know of the newest: a second
  // daemon, or one whose store is lost or older.
  void OnUnknowingDaemon();
  // Ok when every rank trains and all run one version, which `running` then is.
  absl::Status CheckRanks(RunningPlacement& running) const;
  // Checks the logs of all runs with the validator.
  void CheckLogs();

 private:
  struct OneRun {
    std::string name;
    bool lives = true;
    // Daemons that led it did not know what the runs before it ran: to the validator it begins
    // another job.
    bool begins_anew = false;
    int64_t highest_version = 0;  // highest that any rank was PREPARED for
    std::unique_ptr<Collective> collective;
    std::vector<std::unique_ptr<SimRank>> ranks;   // also of dead ones: callbacks may be under way
    std::vector<std::vector<HistoryRecord>> logs;  // by rank
    std::vector<PlacementRecord> placements;
  };

  OneRun& newest() { return *launches_.back(); }
  const OneRun& newest() const { return *launches_.back(); }
  void Kill(OneRun& run);
  bool IsAlone() const;  // no run but the newest one lives
  // The newest run lives, a daemon has led it, or of two launches none were the older one, and
  // the next one can be told what it ran.
  bool MayStay() const;
  void LeaveBeside(OneRun& run, Before before);
  void ForgetIfNobodyRemembers();
  void Begin(bool take_over);
  wire::Hello IdentityOf(int rank, bool take_over) const;
  // Returns the highest version for which any rank of these launches was PREPARED, or with which it
  // began.
  int64_t HighestVersion() const;
  void CheckLogs(size_t first, size_t end);
  LoadMatrix LoadAt(int rank, int64_t step) const;
  void OnRunning(OneRun& run, int64_t first_step, const RunningPlacement& running);

  Context& context_;
  Truth& truth_;
  const JobOptions options_;
  const Topology topology_;
  const int load_seed_;
  bool launch_pending_ = false;
  bool reports_ = true;
  RunningPlacement checkpoint_;
  int64_t checkpoint_step_ = -1;  // last step before it
  bool is_forgotten_ = false;     // no process remembers what ran before the next run
  std::vector<std::unique_ptr<OneRun>> launches_;
};

}  // namespace eplb::simulation
