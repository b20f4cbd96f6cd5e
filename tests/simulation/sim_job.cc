#include "tests/simulation/sim_job.h"

#include <algorithm>
#include <utility>

#include "placement/placement.h"

namespace eplb::simulation {
namespace {

constexpr int64_t kCheckpointEvery = 50;  // steps
constexpr int64_t kDriftEvery = 60;       // steps between changes of which experts are hot

}  // namespace

SimJob::SimJob(Context* context, Truth* truth, JobOptions options)
    : context_(*context),
      truth_(*truth),
      options_(std::move(options)),
      topology_(Topology::Make(options_.shape).value()),
      load_seed_(context->Below(1000)),
      logs_(options_.shape.num_gpus) {
  const Placement initial = Placement::Static(topology_);
  checkpoint_ = {0, DigestOf(initial), std::make_shared<const Placement>(initial)};
  truth_.AddJob(options_.name, world_size(), topology_,
                [this](int rank, int64_t step) { return LoadAt(rank, step); });
}

void SimJob::Launch() {
  launch_pending_ = false;
  KillAll();
  ++launches_;
  context_.Count("launched");
  context_.Trace(options_.name, " launch ", launches_, " from version ", checkpoint_.version,
                 " after step ", checkpoint_step_);
  collectives_.push_back(std::make_unique<Collective>(&context_, world_size()));
  placements_.push_back(
      {checkpoint_step_ + 1, checkpoint_.version, checkpoint_.digest, *checkpoint_.placement});
  truth_.Runs(options_.name, Incarnation(), checkpoint_.version, checkpoint_.placement);
  for (int index = 0; index < world_size(); ++index) {
    wire::Hello identity;
    identity.job = options_.name;
    identity.incarnation = Incarnation();
    identity.nonce = static_cast<uint64_t>(launches_) * 1000 + static_cast<uint64_t>(index);
    identity.rank = index;
    identity.world_size = world_size();
    identity.gpu = index;
    identity.shape = options_.shape;
    identity.step = checkpoint_step_;
    identity.vote_every = options_.vote_every;
    identity.report_every = options_.report_every;
    identity.weight_bytes = 8;
    identity.staging_rows = 4;
    processes_.push_back(std::make_unique<SimRank>(RankOptions{
        .context = &context_,
        .collective = collectives_.back().get(),
        .identity = identity,
        .running = checkpoint_,
        .log = &logs_[index],
        .connect = options_.connect,
        .load = [this, index](int64_t step) { return LoadAt(index, step); },
        .on_step =
            [this, index, incarnation = identity.incarnation](int64_t step, int64_t version) {
              truth_.Ran(options_.name, incarnation, index, step, version);
            },
        .on_ended = [this] { LaunchLater(); },
        .on_ready =
            [this](int64_t version) { highest_version_ = std::max(highest_version_, version); },
        .on_running = [this](int64_t first_step,
                             const RunningPlacement& running) { OnRunning(first_step, running); },
        .reports = reports_}));
    ranks_.push_back(processes_.back().get());
  }
  for (SimRank* rank : ranks_) rank->Start();
}

// Where the store is lost, too, nobody is left who knows which versions there were: new processes
// only know that of their checkpoint. What follows is another job to the validator.
void SimJob::KillAll() {
  for (SimRank* rank : ranks_) rank->Kill();
  ranks_.clear();
  if (!options_.daemons_remember(options_.name, highest_version_)) {
    context_.Count("job_forgotten");
    context_.Trace(options_.name, " is forgotten");
    CheckLogs();
    for (auto& log : logs_) log.clear();
    highest_version_ = checkpoint_.version;
  }
  placements_.clear();
}

bool SimJob::RanksRemember() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const SimRank* rank) {
    return rank->highest_version() >= highest_version_;
  });
}

void SimJob::LaunchLater() {
  if (std::exchange(launch_pending_, true)) return;
  context_.After(context_.Between(absl::Seconds(2), absl::Seconds(40)), [this] { Launch(); });
}

void SimJob::StopReporting() {
  reports_ = false;
  for (SimRank* rank : ranks_) rank->StopReporting();
}

// Two experts of each layer take most tokens, and others after a while. No two steps and ranks
// count alike, so that a step under the wrong placement, or none, shows in every sum.
LoadMatrix SimJob::LoadAt(int rank, int64_t step) const {
  LoadMatrix load = LoadMatrix::Constant(options_.shape.num_layers, options_.shape.num_experts, 10);
  const int64_t phase = step / kDriftEvery + load_seed_;
  for (int32_t layer = 0; layer < load.rows(); ++layer) {
    for (int64_t hot = 0; hot < 2; ++hot) {
      load(layer, (phase * 7 + layer * 3 + hot * (1 + phase % 3)) % load.cols()) = 100;
    }
    for (int32_t expert = 0; expert < load.cols(); ++expert) {
      load(layer, expert) += (step * 131 + rank * 31 + layer * 17 + expert * 7) % 11 * (1 + rank);
    }
  }
  return load;
}

void SimJob::OnRunning(int64_t first_step, const RunningPlacement& running) {
  // A rank that did not get the vote's result writes nothing: the first one that did is taken.
  if (placements_.back().version == running.version) return;
  placements_.push_back({first_step, running.version, running.digest, *running.placement});
  truth_.Runs(options_.name, Incarnation(), running.version, running.placement);
  // A checkpoint is written behind a commit every so often; all ranks are at this boundary.
  if (first_step - checkpoint_step_ < kCheckpointEvery || context_.Chance(0.3)) return;
  checkpoint_ = running;
  checkpoint_step_ = first_step - 1;
}

absl::Status SimJob::CheckRanks(RunningPlacement& running) const {
  for (const SimRank* rank : ranks_) {
    if (!rank->trains()) return absl::UnavailableError("a rank does not train");
    if (rank->running().version != ranks_[0]->running().version) {
      return absl::UnavailableError("a commit is on its way");
    }
  }
  running = ranks_[0]->running();
  return absl::OkStatus();
}

void SimJob::CheckLogs() {
  std::vector<RankHistory> histories;
  for (int rank = 0; rank < world_size(); ++rank) {
    histories.push_back({.rank = RankId{rank}, .records = logs_[rank]});
  }
  for (const std::string& violation : FindViolations(histories, placements_)) {
    context_.Violation(options_.name, ": ", violation);
  }
}

}  // namespace eplb::simulation
