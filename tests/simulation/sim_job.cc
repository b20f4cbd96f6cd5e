#include "tests/simulation/sim_job.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "placement/placement.h"

namespace eplb::simulation {
namespace {

constexpr int64_t kCheckpointEvery = 50;  // steps
constexpr absl::Duration kForGood = absl::Hours(24 * 365);
constexpr int64_t kDriftEvery = 60;  // steps between changes of which experts are hot

}  // namespace

SimJob::SimJob(Context* context, Truth* truth, JobOptions options)
    : context_(*context),
      truth_(*truth),
      options_(std::move(options)),
      topology_(Topology::Make(options_.shape).value()),
      load_seed_(context->Below(1000)) {
  const Placement initial = Placement::Static(topology_);
  checkpoint_ = {0, DigestOf(initial), std::make_shared<const Placement>(initial)};
  truth_.AddJob(options_.name, world_size(), topology_,
                [this](int rank, int64_t step) { return LoadAt(rank, step); });
}

void SimJob::Run(Before before) {
  launch_pending_ = false;
  const bool stays = before != Before::kKilled && MayStay();
  for (const auto& run : launches_) {
    if (!stays || run != launches_.back()) Kill(*run);
  }
  if (stays) {
    LeaveBeside(newest(), before);
  } else {
    ForgetIfNobodyRemembers();
  }
  Begin(/*take_over=*/stays && before == Before::kTrains);
}

bool SimJob::MayStay() const {
  if (launches_.empty() || !newest().lives) return false;
  return options_.daemons_remember(options_.name, HighestVersion()) &&
         std::all_of(newest().ranks.begin(), newest().ranks.end(), [](const auto& rank) {
           return rank->trains() && rank->kept().run_number > 0;
         });
}

void SimJob::LeaveBeside(OneRun& run, Before before) {
  if (before == Before::kHangs) {
    context_.Count("launch_beside_hung");
    for (const auto& rank : run.ranks) rank->Hang(kForGood);
  } else {
    context_.Count(before == Before::kTrains ? "launch_takes_over" : "launch_waits");
  }
  if (before != Before::kTrainsAWhile && context_.Chance(0.5)) return;  // it stays
  context_.After(context_.Between(absl::Seconds(20), absl::Seconds(300)),
                 [this, &run] { Kill(run); });
}

void SimJob::Kill(OneRun& run) {
  if (!std::exchange(run.lives, false)) return;
  for (const auto& rank : run.ranks) rank->Kill();
  if (IsAlone()) options_.on_older_ended();
}

bool SimJob::IsAlone() const {
  return std::none_of(launches_.begin(), std::prev(launches_.end()),
                      [](const auto& run) { return run->lives; });
}

// If the store is lost as well, no process knows the earlier versions. New processes know only the
// version of their checkpoint.
void SimJob::ForgetIfNobodyRemembers() {
  if (options_.daemons_remember(options_.name, HighestVersion())) return;
  context_.Count("job_forgotten");
  context_.Trace(options_.name, " is forgotten");
  is_forgotten_ = true;
  options_.on_forgotten();
}

void SimJob::OnUnknowingDaemon() {
  if (!IsAlone()) newest().begins_anew = true;
}

int64_t SimJob::HighestVersion() const {
  int64_t highest = checkpoint_.version;
  for (auto run = launches_.rbegin(); run != launches_.rend(); ++run) {
    highest = std::max(highest, (*run)->highest_version);
    if ((*run)->begins_anew) break;
  }
  return highest;
}

wire::Hello SimJob::IdentityOf(int rank, bool take_over) const {
  wire::Hello identity;
  identity.job = options_.name;
  identity.run_id = newest().name;
  identity.nonce = launches_.size() * 1000 + static_cast<uint64_t>(rank);
  identity.rank = rank;
  identity.world_size = world_size();
  identity.gpu = rank;
  identity.shape = options_.shape;
  identity.step = checkpoint_step_;
  identity.vote_every = options_.vote_every;
  identity.report_every = options_.report_every;
  identity.weight_bytes = 8;
  identity.staging_rows = 4;
  identity.take_over = take_over;
  return identity;
}

void SimJob::Begin(bool take_over) {
  launches_.push_back(std::make_unique<OneRun>());
  OneRun& run = newest();
  run.name = RunName(static_cast<int>(launches_.size()));
  run.begins_anew = std::exchange(is_forgotten_, false);
  context_.Count("launched");
  context_.Trace(options_.name, " ", run.name, " from version ", checkpoint_.version,
                 " after step ", checkpoint_step_);
  run.collective = std::make_unique<Collective>(&context_, world_size());
  run.logs.resize(static_cast<size_t>(world_size()));
  run.placements.push_back(
      {checkpoint_step_ + 1, checkpoint_.version, checkpoint_.digest, *checkpoint_.placement});
  truth_.Runs(options_.name, run.name, checkpoint_.version, checkpoint_.placement);
  for (int index = 0; index < world_size(); ++index) {
    run.ranks.push_back(std::make_unique<SimRank>(RankOptions{
        .context = &context_,
        .collective = run.collective.get(),
        .identity = IdentityOf(index, take_over),
        .running = checkpoint_,
        .log = &run.logs[static_cast<size_t>(index)],
        .connect = options_.connect,
        .find_leader = options_.find_leader,
        .load = [this, index](int64_t step) { return LoadAt(index, step); },
        .on_step =
            [this, index, &run](int64_t step, int64_t version) {
              truth_.Ran(options_.name, run.name, index, step, version);
            },
        .on_ended =
            [this, &run] {
              if (&run == &newest()) RunLater();
            },
        .on_prepared =
            [&run](int64_t version) {
              run.highest_version = std::max(run.highest_version, version);
            },
        .on_running = [this, &run](
                          int64_t first_step,
                          const RunningPlacement& running) { OnRunning(run, first_step, running); },
        .reports = reports_}));
  }
  for (const auto& rank : run.ranks) rank->Start();
}

bool SimJob::RanksRemember() const {
  const bool versions =
      std::any_of(newest().ranks.begin(), newest().ranks.end(),
                  [this](const auto& rank) { return rank->highest_version() >= HighestVersion(); });
  return versions &&
         (IsAlone() || std::all_of(newest().ranks.begin(), newest().ranks.end(),
                                   [](const auto& rank) { return rank->kept().run_number > 0; }));
}

bool SimJob::RanksCarry(const Promises::Holds& holds) const {
  return std::all_of(newest().ranks.begin(), newest().ranks.end(), [&holds](const auto& rank) {
    const std::optional<wire::JobMemory>& memory = rank->kept().memory.value;
    return rank->trains() && memory && holds(*memory);
  });
}

void SimJob::RunLater() {
  if (std::exchange(launch_pending_, true)) return;
  context_.After(context_.Between(absl::Seconds(2), absl::Seconds(40)),
                 [this] { Run(Before::kKilled); });
}

void SimJob::StopReporting() {
  reports_ = false;
  for (const auto& run : launches_) {
    for (const auto& rank : run->ranks) rank->StopReporting();
  }
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

void SimJob::OnRunning(OneRun& run, int64_t first_step, const RunningPlacement& running) {
  // A rank that did not get the vote's result writes nothing: the first one that did is taken.
  if (run.placements.back().version == running.version) return;
  run.placements.push_back({first_step, running.version, running.digest, *running.placement});
  truth_.Runs(options_.name, run.name, running.version, running.placement);
  if (&run != &newest()) return;
  // A checkpoint is written behind a commit every so often; all ranks are at this boundary.
  if (first_step - checkpoint_step_ < kCheckpointEvery || context_.Chance(0.3)) return;
  checkpoint_ = running;
  checkpoint_step_ = first_step - 1;
}

absl::Status SimJob::CheckRanks(RunningPlacement& running) const {
  for (const auto& rank : newest().ranks) {
    if (!rank->trains()) return absl::UnavailableError("a rank does not train");
    if (rank->running().version != newest().ranks[0]->running().version) {
      return absl::UnavailableError("a commit is on its way");
    }
  }
  running = newest().ranks[0]->running();
  return absl::OkStatus();
}

void SimJob::CheckLogs() {
  size_t first = 0;
  for (size_t next = 1; next <= launches_.size(); ++next) {
    if (next < launches_.size() && !launches_[next]->begins_anew) continue;
    CheckLogs(first, next);
    first = next;
  }
}

// The runs one after the other, also those that lived beside each other: a newer one begins
// above what the daemon had proposed to the older one.
void SimJob::CheckLogs(size_t first, size_t end) {
  std::vector<RankHistory> histories;
  for (int rank = 0; rank < world_size(); ++rank) {
    RankHistory& history = histories.emplace_back();
    history.rank = RankId{rank};
    for (size_t run = first; run < end; ++run) {
      const auto& log = launches_[run]->logs[static_cast<size_t>(rank)];
      history.records.insert(history.records.end(), log.begin(), log.end());
    }
  }
  for (const std::string& violation : FindViolations(histories, launches_[end - 1]->placements)) {
    context_.Violation(options_.name, ": ", violation);
  }
}

}  // namespace eplb::simulation
