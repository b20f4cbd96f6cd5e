#include "server/core/ranks/hello.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/names.h"
#include "server/core/decisions/recovery.h"
#include "server/core/decisions/versions.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/expiry.h"
#include "server/core/ranks/report_interval.h"
#include "server/core/ranks/run.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr int64_t kMaxExpertBytes = int64_t{1} << 40;  // one expert of one layer
constexpr int32_t kMaxEvery = 1 << 20;                 // steps

absl::Status CheckNames(const wire::Hello& hello) {
  EPLB_RETURN_IF_ERROR(wire::CheckPlainName("hello: job", hello.job));
  if (hello.job == "." || hello.job == "..") {
    return InvalidInput("hello: job is ", hello.job, ", which has a meaning of its own in paths");
  }
  return wire::CheckPrintableName("hello: run", hello.run_id);
}

absl::Status CheckNumbers(const wire::Hello& hello) {
  struct Field {
    const char* name;
    int64_t value;
    int64_t least;
    int64_t most;
  };
  for (const Field& field : {Field{"running_version", hello.running_version, 0, kMaxNumber},
                             Field{"prepared_version", hello.prepared_version, 0, kMaxNumber},
                             Field{"highest_term", hello.highest_term, 0, kMaxNumber},
                             Field{"highest_version", hello.highest_version, 0, kMaxNumber},
                             Field{"step", hello.step, 0, kMaxNumber},
                             Field{"vote_every", hello.vote_every, 1, kMaxEvery},
                             Field{"report_every", hello.report_every, 1, kMaxReportEvery},
                             Field{"weight_bytes", hello.weight_bytes, 0, kMaxExpertBytes},
                             Field{"state_bytes", hello.state_bytes, 0, kMaxExpertBytes},
                             Field{"staging_rows", hello.staging_rows, 0, kMaxNumber},
                             Field{"staging_layers", hello.staging_layers, 0, kMaxNumber},
                             Field{"session_number", hello.session_number, 0, kMaxNumber},
                             Field{"run_number", hello.run_number, 0, kMaxNumber}}) {
    if (field.value >= field.least && field.value <= field.most) continue;
    return InvalidInput("hello: ", field.name, " is ", field.value, ", it must be in ", field.least,
                        "..", field.most);
  }
  return absl::OkStatus();
}

// Tables of a job have so many cells, and the core's thread fills them.
absl::Status CheckSize(const TopologyOptions& shape) {
  const int64_t slots = int64_t{shape.num_layers} * shape.num_slots;
  if (shape.num_layers > wire::kMaxLayers) {
    return InvalidInput("hello: shape: ", shape.num_layers, " layers, the daemon takes at most ",
                        wire::kMaxLayers);
  }
  if (slots > wire::kMaxSlotsOfAllLayers) {
    return InvalidInput("hello: shape: ", shape.num_layers, " layers of ", shape.num_slots,
                        " slots are ", slots, ", the daemon takes at most ",
                        wire::kMaxSlotsOfAllLayers);
  }
  const int64_t most_replicas = int64_t{shape.num_slots} - shape.num_experts + 1;
  if (int64_t{shape.num_layers} * shape.num_experts * most_replicas > Placement::kMaxReplicaCells) {
    return InvalidInput("hello: shape: ", shape.num_layers, " layers of ", shape.num_experts,
                        " experts with up to ", most_replicas, " replicas: their product is above ",
                        Placement::kMaxReplicaCells);
  }
  return absl::OkStatus();
}

absl::Status CheckRaise(const char* name, int64_t value, int64_t known) {
  if (value <= known + kMaxJump) return absl::OkStatus();
  return InvalidInput("hello: ", name, " is ", value, ", it must be at most ", kMaxJump,
                      " above what the daemon knows of this job, ", known);
}

// Numbers of this job that this daemon did not give out itself.
absl::Status CheckRaises(const State& state, const wire::Hello& hello) {
  const auto found = state.jobs.find(hello.job);
  const Job* job = found == state.jobs.end() ? nullptr : &found->second;
  const int64_t term = job == nullptr ? state.term : job->term;
  const int64_t version = job == nullptr ? 0 : job->versions.next;
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_term", hello.highest_term, term));
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_version", hello.highest_version, version));
  EPLB_RETURN_IF_ERROR(CheckRaise("running_version", hello.running_version, version));
  EPLB_RETURN_IF_ERROR(CheckRaise("prepared_version", hello.prepared_version, version));
  return CheckRaise("run_number", hello.run_number, job == nullptr ? 0 : job->owner.run_number);
}

absl::Status CheckPosition(const wire::Hello& hello, const Config& config) {
  if (hello.world_size > config.max_ranks_per_job) {
    return ResourceExhausted("hello: world_size is ", hello.world_size,
                             ", the daemon takes at most ", config.max_ranks_per_job,
                             " ranks per job");
  }
  const absl::StatusOr<RankGrid> grid = GridOf(hello);
  if (!grid.ok()) return InvalidInput("hello: ", grid.status().message());
  if (hello.rank < 0 || hello.rank >= hello.world_size) {
    return InvalidInput("hello: rank is ", hello.rank, ", it must be in 0..", hello.world_size - 1);
  }
  const int32_t gpu = grid->GpuOf(RankId{hello.rank}).value;
  const int32_t ep_group = grid->EpGroupOf(RankId{hello.rank});
  if (hello.gpu != gpu || hello.ep_group != ep_group) {
    return InvalidInput("hello: rank ", hello.rank, " of ", grid->num_gpus(),
                        " GPUs an EP group is GPU ", gpu, " of EP group ", ep_group, ", not GPU ",
                        hello.gpu, " of EP group ", hello.ep_group);
  }
  return absl::OkStatus();
}

absl::StatusOr<Job*> FindOrAddJob(DecisionContext& context, const std::string& name) {
  State& state = context.state;
  if (const auto found = state.jobs.find(name); found != state.jobs.end()) return &found->second;
  const auto limit = static_cast<size_t>(state.config.max_jobs);
  if (state.jobs.size() >= limit) MakeRoom(context);
  if (state.jobs.size() >= limit) {
    return ResourceExhausted("the daemon already knows ", state.jobs.size(),
                             " jobs whose ranks are connected, its limit; raise limits.max_jobs");
  }
  Job& job = state.jobs[name];
  job.name = name;
  job.settings = SettingsOf(state.config, name, {});
  job.term = state.term;
  std::erase_if(state.refusals, [&name](const RefusedJob& one) { return one.job == name; });
  SetPhase(context, job, Phase::kRecovering);
  return &job;
}

std::string ShapeText(const TopologyOptions& shape) {
  return absl::StrCat(shape.num_layers, " layers, ", shape.num_experts, " experts, ",
                      shape.num_slots, " slots, ", shape.num_gpus, " GPUs, ", shape.num_nodes,
                      " nodes, ", shape.num_groups, " groups");
}

std::string LayersText(const std::vector<int32_t>& layers) {
  return layers.empty() ? "not sent" : absl::StrJoin(layers, ",");
}

absl::Status CheckModelLayers(const wire::Hello& hello) {
  const std::vector<int32_t>& layers = hello.model_layers;
  if (layers.empty()) return absl::OkStatus();
  const bool rising = std::ranges::adjacent_find(layers, std::greater_equal<>()) == layers.end();
  if (std::ssize(layers) == hello.shape.num_layers && layers.front() >= 0 && rising) {
    return absl::OkStatus();
  }
  return InvalidInput("hello: model_layers has ", layers.size(), " numbers, expected none or ",
                      hello.shape.num_layers, " rising ones >= 0");
}

const char* ReduceName(wire::Reduce reduce) {
  return reduce == wire::Reduce::kRoot ? "root" : "rank";
}

// Not report_every: the ranks begin with the same one, and a change may have reached some before
// they came back.
absl::Status CheckFits(const Run& run, const wire::Hello& hello) {
  const auto mismatch = [&run](const char* field, const auto& mine, const auto& theirs) {
    return FailedPrecondition("hello: ", field, " is ", mine, ", the other ranks of run ", run.name,
                              " have ", theirs);
  };
  const std::string shape = ShapeText(hello.shape);
  if (const std::string theirs = ShapeText(run.shape); shape != theirs) {
    return mismatch("shape", shape, theirs);
  }
  if (hello.world_size != run.world_size()) {
    return mismatch("world_size", hello.world_size, run.world_size());
  }
  const RankGrid& grid = run.grid;
  if (hello.pipeline_parallel_size != grid.pipeline_parallel_size()) {
    return mismatch("pipeline_parallel_size", hello.pipeline_parallel_size,
                    grid.pipeline_parallel_size());
  }
  if (hello.expert_tensor_parallel != grid.expert_tensor_parallel()) {
    return mismatch("expert_tensor_parallel", hello.expert_tensor_parallel,
                    grid.expert_tensor_parallel());
  }
  if (hello.vote_every != run.vote_every) {
    return mismatch("vote_every", hello.vote_every, run.vote_every);
  }
  if (hello.reduce != run.reduce) {
    return mismatch("reduce", ReduceName(hello.reduce), ReduceName(run.reduce));
  }
  if (hello.split != run.split) {
    return mismatch("split", wire::SplitName(hello.split), wire::SplitName(run.split));
  }
  if (hello.model_layers != run.model_layers) {
    return mismatch("model_layers", LayersText(hello.model_layers), LayersText(run.model_layers));
  }
  return absl::OkStatus();
}

absl::Status CheckBinding(const Run& run, const wire::Hello& hello) {
  const Rank& rank = run.ranks[hello.rank];
  if (!rank.said_hello) return absl::OkStatus();
  if (rank.nonce == hello.nonce) {
    // A message of a cut stream may be read after the Hello of the next stream.
    if (hello.session_number >= rank.session_number) return absl::OkStatus();
    return Aborted("hello: session_number is ", hello.session_number,
                   ", this process has opened session ", rank.session_number, " since");
  }
  if (rank.session != 0) {
    return absl::AlreadyExistsError(absl::StrCat("DUPLICATE_RANK: another process speaks for rank ",
                                                 hello.rank, " of run ", run.name));
  }
  return FailedPrecondition("another process spoke for rank ", hello.rank, " of run ", run.name,
                            "; a restarted rank needs a new run");
}

void BindSession(DecisionContext& context, Sender sender, const wire::Hello& hello) {
  Run& run = sender.run;
  Rank& rank = sender.rank;
  CloseRank(context, run, rank, Aborted("replaced by a newer session of the same process"));
  if (!rank.said_hello) ++run.num_hello;
  if (rank.finished) --run.num_finished;
  ++run.num_connected;
  rank.said_hello = true;
  rank.finished = false;
  rank.failed = false;
  rank.cut = false;
  rank.nonce = hello.nonce;
  rank.session = sender.session;
  rank.session_number = hello.session_number;
  rank.away_since = absl::InfiniteFuture();
  rank.prepared_version = hello.prepared_version;
  rank.staging_rows = hello.staging_rows;
  rank.staging_layers = hello.staging_layers;
  rank.library_version = Clipped(hello.library_version, wire::kMaxNameLength);
  rank.transport = hello.transport;
  rank.report_every = hello.report_every;
  context.state.bindings[sender.session] = {hello.job, hello.run_id, hello.rank};
  const int64_t windows = context.state.config.max_pending_windows;
  if (CheckHello(run, hello.rank, hello.step, windows) == StepClaim::kBelieved) {
    rank.step = hello.step;
    Advance(run.front, hello.rank, rank.step);
  }
  // One that has owned the job is no newcomer any more.
  run.take_over |= hello.take_over && hello.run_number == 0;
  if (!sender.is_current()) {
    run.claimed = std::max(run.claimed, hello.run_number);
    return;
  }
  // The step is of this rank, or of the rank that it agrees with. No rank has it if it was not
  // believed.
  if (run.front.first < 0) return;
  sender.job.step = std::max(sender.job.step, run.front.first);
  NoteHelloStep(run, run.front.first, context.now);
}

void SetRunning(Rank& rank, const wire::Hello& hello) {
  rank.running_version = hello.running_version;
  rank.running_digest = hello.running_digest;
}

// Whatever the job's state asks of a rank that has just been welcomed.
void Follow(DecisionContext& context, Sender sender, const wire::Hello& hello) {
  Job& job = sender.job;
  Run& run = sender.run;
  if (!sender.is_current()) {
    SetRunning(sender.rank, hello);
    ServeCandidate(context, job);
    return;
  }
  if (job.proposal) {
    HandleRejoin(context, sender, hello);
    return;
  }
  SetRunning(sender.rank, hello);
  if (hello.prepared_version != 0) {
    SendTo(context, sender.rank,
           wire::Cancel{hello.prepared_version, "this daemon does not have it in flight"});
  }
  if (run.ending == Ending::kLost && run.num_connected == run.world_size()) {
    run.ending = Ending::kLive;
    run.moved.clear();
    RecordEvent(context, job, "run_resumed", job.last_known ? job.last_known->version : 0,
                absl::StrCat("all ranks of run ", run.name, " are back"));
  }
  Recheck(context, job, sender.index);
}

// Whoever has seen a term of this job sees a higher one here. It needs no write: the ranks that it
// reaches tell it to the daemons to come.
void RaiseTerm(Job& job, const wire::Hello& hello) {
  // Until this daemon has welcomed a rank of the job, its own number is another daemon's.
  const bool outbid =
      hello.highest_term > job.term || (hello.highest_term == job.term && job.first_hello == 0);
  if (!outbid) return;
  job.term = hello.highest_term + 1;
  // Otherwise the release remembers: until then a rank may bring a newer memory.
  if (job.current && job.current->num_hello == job.current->world_size()) Remember(job);
}

void Welcome(DecisionContext& context, Sender sender) {
  Job& job = sender.job;
  std::string waits;
  if (!sender.is_current()) {
    waits = CandidateWaitsFor(job, context.now);
    if (!waits.empty()) waits = absl::StrCat("waits for ", waits);
  }
  StoreTermIfNeeded(context);
  SendTo(context, sender.rank,
         wire::Welcome{job.term, context.state.config.server_version, std::move(waits),
                       context.state.config.elected ? context.state.term : 0});
  context.state.last_hello = sender.session;
  if (job.first_hello == 0) job.first_hello = sender.session;
  if (!sender.is_current()) return;
  TellMemory(context, job, sender.rank);
  RepeatReportInterval(context, sender);
}

int64_t HighestVersion(const wire::Hello& hello) {
  return std::max({hello.highest_version, hello.running_version, hello.prepared_version});
}

// The store was read and is behind the ranks: an older copy was restored, or another daemon led
// meanwhile. Told once, for the first rank alone is compared with what was read.
void TellStoreBehind(DecisionContext& context, Job& job, const wire::Hello& hello) {
  const bool was_read = job.last_known.has_value() && job.first_hello == 0;
  const int64_t seen = HighestVersion(hello);
  if (!was_read || hello.highest_term == 0 || seen < job.versions.next) return;
  ++context.state.counters.stores_behind;
  RecordEvent(context, job, "store_behind", job.last_known->version,
              absl::StrCat("rank ", hello.rank, " has seen version ", seen,
                           ", and the store knows none above ", job.versions.next - 1,
                           ": it is older than what runs; the next version is above both"));
}

absl::Status Admit(DecisionContext& context, SessionId session, const wire::Hello& hello) {
  if (context.state.draining) return Unavailable("the daemon drains; retry later");
  EPLB_RETURN_IF_ERROR(CheckHello(hello, context.state.config));
  EPLB_RETURN_IF_ERROR(CheckRaises(context.state, hello));
  EPLB_ASSIGN_OR_RETURN(Job * job, FindOrAddJob(context, hello.job));
  TellStoreBehind(context, *job, hello);
  RecallFrom(context, *job, hello);
  EPLB_ASSIGN_OR_RETURN(Run * run, FindOrAddRun(context, *job, hello));
  EPLB_RETURN_IF_ERROR(CheckFits(*run, hello));
  EPLB_RETURN_IF_ERROR(CheckBinding(*run, hello));
  Sender sender{*job, *run, run->ranks[hello.rank], hello.rank, session};
  BindSession(context, sender, hello);
  RaiseNextVersion(*job, HighestVersion(hello));
  RaiseTerm(*job, hello);
  Welcome(context, sender);
  TellReusedVersion(context, *job, *run, hello);
  Follow(context, sender, hello);
  return absl::OkStatus();
}

void NoteRefusedJob(DecisionContext& context, const std::string& name, const std::string& why) {
  if (!wire::CheckPlainName("job", name).ok()) return;
  std::deque<RefusedJob>& refusals = context.state.refusals;
  const auto found =
      std::ranges::find_if(refusals, [&name](const RefusedJob& one) { return one.job == name; });
  RefusedJob refused{.job = name, .reason = why, .count = 1, .at = context.now};
  if (found != refusals.end()) {
    refused.count += found->count;
    refusals.erase(found);
  }
  refusals.push_front(std::move(refused));
  if (refusals.size() > kMaxRefusedJobs) refusals.pop_back();
}

// Notes a refusal. A rank that should only retry later is shown as well, because the job waits for
// it.
void NoteRefusal(DecisionContext& context, const wire::Hello& hello, const absl::Status& status) {
  const bool later = absl::IsUnavailable(status) || absl::IsAborted(status);
  const std::string why =
      absl::StrCat("rank ", hello.rank,
                   " was refused: ", Clipped({status.message().data(), status.message().size()}));
  const auto found = context.state.jobs.find(hello.job);
  if (found == context.state.jobs.end()) {
    if (!later) NoteRefusedJob(context, hello.job, why);
    return;
  }
  Job& job = found->second;
  if (WasReplaced(job, hello)) return;
  job.refused.reason = why;
  job.refused.at = context.now;
  if (later) return;
  ++job.refused.count;
  job.refused.for_good = why;
  job.refused.for_good_at = context.now;
}

}  // namespace

absl::Status CheckHello(const wire::Hello& hello, const Config& config) {
  EPLB_RETURN_IF_ERROR(CheckNames(hello));
  EPLB_RETURN_IF_ERROR(CheckNumbers(hello));
  if (const absl::Status shape = Topology::Make(hello.shape).status(); !shape.ok()) {
    return InvalidInput("hello: shape: ", std::string(shape.message()));
  }
  EPLB_RETURN_IF_ERROR(CheckSize(hello.shape));
  EPLB_RETURN_IF_ERROR(CheckModelLayers(hello));
  return CheckPosition(hello, config);
}

absl::Status AdmitHello(DecisionContext& context, SessionId session, const wire::Hello& hello) {
  absl::Status status = Admit(context, session, hello);
  if (!status.ok()) NoteRefusal(context, hello, status);
  return status;
}

void HandleHello(DecisionContext& context, SessionId session, const wire::Hello& hello) {
  const absl::Status status = AdmitHello(context, session, hello);
  if (status.ok()) return;
  CloseRefused(context, session, absl::StrCat("rank ", hello.rank, " of job ", hello.job), status);
}

}  // namespace eplb::core
