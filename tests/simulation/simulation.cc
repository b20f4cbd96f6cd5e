#include "tests/simulation/simulation.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <utility>

#include "tests/simulation/context.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/sim_daemon.h"
#include "tests/simulation/sim_job.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/truth.h"

namespace eplb::simulation {
namespace {

constexpr absl::Duration kFaultyTime = absl::Minutes(12);
constexpr absl::Duration kRestTime = absl::Hours(2);  // far above every deadline
constexpr absl::Duration kSupervise = absl::Seconds(3);

core::Config MakeConfig(Context& context) {
  static constexpr std::array kPolicies = {"balanced", "incremental", "deepseek", "auto"};
  core::Config config;
  config.settings.policy = kPolicies[context.Below(kPolicies.size())];
  config.settings.every_steps = context.Chance(0.5) ? 5 : 20;
  config.settings.min_gain = 0.01;
  config.settings.layers_per_chunk = 1 + context.Below(2);
  config.voting_deadline = absl::Seconds(200);  // above the vote's 60 s and a transfer's
  if (context.Chance(0.3)) config.min_coverage = 0.5;
  return config;
}

class Run {
 public:
  Run(uint64_t seed, bool verbose)
      : context_(seed, verbose),
        truth_(&context_),
        promises_(&context_,
                  [this](const std::string& job, const Promises::Holds& holds) {
                    return FindJob(job).RanksCarry(holds);
                  }),
        fault_every_(context_.Between(absl::Seconds(4), absl::Seconds(60))) {
    const core::Config config = MakeConfig(context_);
    daemons_.push_back(
        std::make_unique<SimDaemon>(&context_, &truth_, &promises_, "eplbd", config));
    daemons_.push_back(
        std::make_unique<SimDaemon>(&context_, &truth_, &promises_, "other", config));
    const int num_jobs = 1 + context_.Below(3);
    for (int index = 0; index < num_jobs; ++index) AddJob(index);
  }

  Outcome Finish() {
    daemons_[0]->Start();
    Supervise();
    for (auto& job : jobs_) job->Run(Before::kKilled);
    context_.After(fault_every_, [this] { NextFault(); });
    const auto never = [] { return false; };
    context_.Run(absl::UnixEpoch() + kFaultyTime, never);
    StopFaults();
    const absl::Time end = context_.now() + kRestTime;
    absl::Status rests = absl::UnknownError("");
    while (context_.now() < end && !rests.ok()) {
      context_.Run(context_.now() + absl::Seconds(5), never);
      rests = CheckRest();
    }
    if (!rests.ok())
      context_.Violation("I12: no rest after ", absl::FormatDuration(kRestTime), ": ",
                         rests.ToString());
    for (const auto& job : jobs_) job->CheckLogs();
    return {context_.violations(), context_.counts()};
  }

 private:
  void AddJob(int index) {
    const int gpus = 2 + context_.Below(3);
    const int slots = gpus * (2 + context_.Below(2));
    const std::string name = absl::StrCat("job-", index);
    jobs_.push_back(std::make_unique<SimJob>(
        &context_, &truth_,
        JobOptions{
            .name = name,
            .shape = {.num_layers = 1 + context_.Below(4),
                      .num_experts = slots - context_.Below(2),
                      .num_slots = slots,
                      .num_gpus = gpus},
            .vote_every = 1 + context_.Below(4),
            .report_every = 5 * (1 + context_.Below(3)),
            .connect = [this](int daemon) { return Connect(daemon); },
            .find_leader = [this,
                            name](const std::string& run_id) { return FindLeader(name, run_id); },
            .daemons_remember = [this](const std::string& job,
                                       int64_t version) { return DaemonsRemember(job, version); },
            .on_older_ended = [this, name] { promises_.OlderEnded(name); },
            .on_forgotten = [this, name] { promises_.Forgotten(name); }}));
  }

  SimJob& FindJob(const std::string& name) {
    return **std::find_if(jobs_.begin(), jobs_.end(),
                          [&name](const auto& job) { return job->name() == name; });
  }

  bool DaemonsRemember(const std::string& job, int64_t version) const {
    return std::all_of(daemons_.begin(), daemons_.end(), [&](const auto& daemon) {
      if (daemon != daemons_[0] && !daemon->serves()) return true;
      const auto found = daemon->disk.jobs.find(job);
      return (found == daemon->disk.jobs.end() ? 1 : found->second.next_version) > version;
    });
  }

  bool AllRanksRemember() const {
    return std::all_of(jobs_.begin(), jobs_.end(),
                       [](const auto& job) { return job->RanksRemember(); });
  }

  Stream* Connect(int wanted) {
    if (context_.now() < partitioned_until_ && context_.Chance(0.7)) return nullptr;
    const int any = daemons_[1]->serves() ? context_.Below(2) : 0;
    const int place = wanted < 0 ? any : wanted;
    SimDaemon& daemon = *daemons_[static_cast<size_t>(place)];
    streams_.push_back(std::make_unique<Stream>(
        &context_,
        context_.Between(absl::Milliseconds(2), absl::Seconds(context_.Chance(0.1) ? 8 : 1)),
        place));
    return daemon.Accept(streams_.back().get()) ? streams_.back().get() : nullptr;
  }

  std::optional<Leader> FindLeader(const std::string& job, const std::string& run_id) const {
    std::optional<Leader> first;
    if (context_.now() < partitioned_until_) return first;
    for (int place = 0; place < 2; ++place) {
      const Leader leader{daemons_[static_cast<size_t>(place)]->Leads(job, run_id), place};
      if (leader.term > 0 && (!first || leader.IsAhead(*first))) first = leader;
    }
    return first;
  }

  // Restarts daemons, as systemd does.
  void Supervise() {
    if (!daemons_[0]->serves() && (!context_.faults || context_.Chance(0.3))) daemons_[0]->Start();
    context_.After(kSupervise, [this] { Supervise(); });
  }

  SimJob& AnyJob() { return *jobs_[context_.Below(static_cast<int>(jobs_.size()))]; }
  SimRank& AnyRank() {
    SimJob& job = AnyJob();
    return job.rank(context_.Below(job.world_size()));
  }

  void NextFault() {
    if (!context_.faults) return;
    Fault(context_.Below(116));
    context_.After(context_.Between(absl::Seconds(1), fault_every_), [this] { NextFault(); });
  }

  void Fault(int kind) {
    SimDaemon& daemon = *daemons_[0];
    if (kind < 25) {
      Note("stream_cut");
      AnyRank().CutStream();
    } else if (kind < 32) {
      Partition();
    } else if (kind < 42) {
      daemon.Kill();
    } else if (kind < 54) {
      daemon.KillSoon();
    } else if (kind < 60) {
      daemon.Freeze(context_.Between(absl::Seconds(1), absl::Seconds(90)));
    } else if (kind < 64) {
      daemon.Drain(absl::Seconds(5));
    } else if (kind < 72) {
      BreakDisk();
    } else if (kind < 76) {
      if (!AllRanksRemember()) return;
      ReplaceStore("store_lost", {});
    } else if (kind < 80) {
      Note("rank_killed");
      SimJob& job = AnyJob();
      job.rank(context_.Below(job.world_size())).Kill();
      job.RunLater();
    } else if (kind < 86) {
      Note("rank_hung");
      AnyRank().Hang(context_.Between(absl::Seconds(5), absl::Seconds(100)));
    } else if (kind < 94) {
      StartOther();
    } else if (kind < 96) {
      AnyRank().SpoilNextPlan();
    } else if (kind < 100) {
      FinishAJob();
    } else {
      FaultOfRunOrMemory(kind);
    }
  }

  void FaultOfRunOrMemory(int kind) {
    SimDaemon& daemon = *daemons_[0];
    if (kind < 107) {
      // A daemon that stands still receives the waiting messages in another order.
      if (daemon.is_frozen()) return;
      SimJob& job = AnyJob();
      job.Run(static_cast<Before>(1 + context_.Below(3)));
      if (daemons_[1]->serves()) OnSecondDaemon(job);
    } else if (kind < 109) {
      old_copy_ = daemon.disk;
    } else if (kind < 112) {
      if (!AllRanksRemember()) return;
      ReplaceStore("store_rolled_back", old_copy_);
    } else {
      const std::string& job = AnyJob().name();
      daemon.Ask(job, /*pause=*/!promises_.IsPaused("eplbd", job));
    }
  }

  void Note(const char* what) {
    context_.Count(what);
    context_.Trace("fault: ", what);
  }

  void Partition() {
    Note("partition");
    partitioned_until_ = context_.now() + context_.Between(absl::Seconds(5), absl::Seconds(90));
    for (auto& job : jobs_) {
      for (int rank = 0; rank < job->world_size(); ++rank) {
        if (context_.Chance(0.6)) job->rank(rank).CutStream();
      }
    }
  }

  void ReplaceStore(const char* what, const Disk& disk) {
    Note(what);
    daemons_[0]->Kill();
    daemons_[0]->ReplaceDisk(disk);
    for (auto& job : jobs_) {
      const auto stored = disk.jobs.find(job->name());
      const bool knows = stored != disk.jobs.end() && stored->second.memory.run_id == job->run_id();
      if (!knows) OnSecondDaemon(*job);
    }
  }

  void BreakDisk() {
    Note("disk_broken");
    daemons_[0]->disk.works = false;
    context_.After(context_.Between(absl::Seconds(1), absl::Seconds(60)),
                   [this] { daemons_[0]->disk.works = true; });
  }

  // Split brain: a daemon on an empty store, or on an old copy of the first one's.
  void StartOther() {
    SimDaemon& other = *daemons_[1];
    if (other.serves() || !AllRanksRemember()) return;
    Note("split_brain");
    if (context_.Chance(0.5)) old_copy_ = daemons_[0]->disk;
    other.ReplaceDisk(context_.Chance(0.5) ? old_copy_ : Disk{});
    other.Start();
    for (auto& job : jobs_) OnSecondDaemon(*job);
    for (auto& job : jobs_) {
      for (int rank = 0; rank < job->world_size(); ++rank) {
        if (context_.Chance(0.8)) job->rank(rank).CutStream();
      }
    }
    // The other one stays, and the ranks find together; or either is killed.
    SimDaemon& killed = *daemons_[context_.Below(2)];
    if (context_.Chance(0.3)) return;
    context_.After(context_.Between(absl::Seconds(10), absl::Seconds(150)),
                   [&killed] { killed.Kill(); });
  }

  void OnSecondDaemon(SimJob& job) {
    job.OnUnknowingDaemon();
    promises_.SecondDaemon(job.name());
  }

  void FinishAJob() {
    Note("job_finished");
    SimJob& job = AnyJob();
    for (int rank = 0; rank < job.world_size(); ++rank) job.rank(rank).Finish();
    job.RunLater();
  }

  void StopFaults() {
    context_.faults = false;
    context_.Trace("the faults stop");
    partitioned_until_ = context_.now();
    if (context_.Chance(0.5)) daemons_[1]->Kill();
    daemons_[0]->disk.works = true;
    for (auto& job : jobs_) job->StopReporting();
  }

  // The ranks run what a daemon is IDLE with, whichever of the two it is.
  absl::Status CheckRest() {
    for (const auto& job : jobs_) {
      RunningPlacement running;
      absl::Status status = job->CheckRanks(running);
      if (status.ok()) {
        status = daemons_[0]->CheckIdle(job->name(), job->run_id(), running);
        if (!status.ok() && daemons_[1]->CheckIdle(job->name(), job->run_id(), running).ok()) {
          status = absl::OkStatus();
        }
      }
      if (!status.ok()) {
        RelaunchRefused(*job);
        // An operator's way out of QUARANTINE.
        if (daemons_[0]->IsQuarantined(job->name()) || daemons_[1]->IsQuarantined(job->name())) {
          job->RunLater();
        }
        return absl::Status(status.code(),
                            absl::StrCat(job->name(), ": ", std::string(status.message())));
      }
    }
    return absl::OkStatus();
  }

  // Two daemons, or a store that forgot, may take the older one of two launches for the newer one
  // and end the other for good. An operator sees in doctor that it is refused, and starts it anew.
  void RelaunchRefused(SimJob& job) {
    const bool is_late = context_.now() > absl::UnixEpoch() + kFaultyTime + kRestTime / 4;
    if (!is_late || !promises_.WasDisputed(job.name())) return;
    if (!relaunched_.insert(job.name()).second) return;
    context_.Count("launch_refused_for_good");
    job.RunLater();
  }

  Context context_;
  Truth truth_;
  Promises promises_;
  const absl::Duration fault_every_;
  absl::Time partitioned_until_ = absl::InfinitePast();
  Disk old_copy_;
  std::set<std::string> relaunched_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<SimDaemon>> daemons_;
  std::vector<std::unique_ptr<SimJob>> jobs_;
};

}  // namespace

Outcome Simulate(uint64_t seed, bool verbose) { return Run(seed, verbose).Finish(); }

std::vector<std::string> FindBlindSpots(const std::map<std::string, int64_t>& counts,
                                        int64_t seeds) {
  // Per 1,000 seeds; about a third of what is seen.
  static constexpr std::pair<const char*, int64_t> kLeast[] = {
      {"committed", 3000},
      {"daemon_drained", 600},
      {"daemon_frozen", 900},
      {"daemon_killed_between_effects", 1000},
      {"disk_broken", 1600},
      {"run_ended", 2900},
      {"run_resumed", 800},
      {"job_finished", 800},
      {"launch_beside_hung", 180},
      {"launch_takes_over", 200},
      {"launch_waits", 190},
      {"nack_1", 1},
      {"operator_paused", 250},
      {"partition", 1400},
      {"pause_carried", 90},
      {"plan_before_checked", 9000},
      {"plan_seen_checked", 2200},
      {"plan_spoiled", 150},
      {"quarantined", 140},
      {"rank_dropped", 1800},
      {"rank_ended", 2000},
      {"rank_hung", 1200},
      {"rank_killed", 800},
      {"rank_moved", 2600},
      {"cancelling", 60},
      {"chunks_replaced", 130},
      {"session_refused", 8000},
      {"split_brain", 800},
      {"store_failed", 800},
      {"store_lost", 700},
      {"store_rolled_back", 390},
      {"stream_cut", 5000},
      {"stuck", 190},
      {"vote_not_agreed", 5000},
      {"vote_result_lost", 400},
      {"window_measured", 26000},
      {"window_of_parts_measured", 2200},
      {"window_unmeasured", 3000},
      {"withdrawn", 700}};
  std::vector<std::string> blind;
  for (const auto& [name, least] : kLeast) {
    const auto found = counts.find(name);
    const int64_t count = found == counts.end() ? 0 : found->second;
    if (count * 1000 >= least * seeds) continue;
    blind.push_back(absl::StrCat(name, " happened ", count, " times, at least ",
                                 least * seeds / 1000, " are expected"));
  }
  return blind;
}

}  // namespace eplb::simulation
