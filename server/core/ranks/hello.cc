#include "server/core/ranks/hello.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/clipped.h"
#include "base/status_macros.h"
#include "proto/wire/messages.h"
#include "server/core/decisions/held.h"
#include "server/core/decisions/proposal.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/expiry.h"
#include "server/core/ranks/incarnation.h"
#include "server/core/ranks/launch.h"
#include "server/core/ranks/pace.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr int64_t kMaxExpertBytes = int64_t{1} << 40;  // of one expert of one layer
constexpr int32_t kMaxEvery = 1 << 20;                 // steps

absl::Status CheckNames(const wire::Hello& hello) {
  EPLB_RETURN_IF_ERROR(wire::CheckPlainName("hello: job", hello.job));
  return wire::CheckPrintableName("hello: incarnation", hello.incarnation);
}

absl::Status CheckNumbers(const wire::Hello& hello) {
  struct Field {
    const char* name;
    int64_t value;
    int64_t least;
    int64_t most;
  };
  for (const Field& field : {Field{"running_version", hello.running_version, 0, kMaxNumber},
                             Field{"ready_version", hello.ready_version, 0, kMaxNumber},
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
                             Field{"launch", hello.launch, 0, kMaxNumber}}) {
    if (field.value >= field.least && field.value <= field.most) continue;
    return absl::InvalidArgumentError(absl::StrCat("hello: ", field.name, " is ", field.value,
                                                   ", it must be in ", field.least, "..",
                                                   field.most));
  }
  return absl::OkStatus();
}

// Tables of a job have so many cells, and the core's thread fills them.
absl::Status CheckSize(const TopologyOptions& shape) {
  const int64_t slots = int64_t{shape.num_layers} * shape.num_slots;
  if (shape.num_layers > wire::kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrCat("hello: shape: ", shape.num_layers,
                                                   " layers, the daemon takes at most ",
                                                   wire::kMaxLayers));
  }
  if (slots > wire::kMaxSlotsOfAllLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hello: shape: ", shape.num_layers, " layers of ", shape.num_slots, " slots are ", slots,
        ", the daemon takes at most ", wire::kMaxSlotsOfAllLayers));
  }
  const int64_t most_replicas = int64_t{shape.num_slots} - shape.num_experts + 1;
  if (int64_t{shape.num_layers} * shape.num_experts * most_replicas > Placement::kMaxReplicaCells) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: shape: ", shape.num_layers, " layers of ", shape.num_experts,
                     " experts with up to ", most_replicas, " replicas: their product is above ",
                     Placement::kMaxReplicaCells));
  }
  return absl::OkStatus();
}

absl::Status CheckRaise(const char* name, int64_t value, int64_t known) {
  if (value <= known + kMaxJump) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hello: ", name, " is ", value, ", it must be at most ", kMaxJump,
                   " above what the daemon knows of this job, ", known));
}

// Numbers of this job that this daemon did not give out itself.
absl::Status CheckRaises(const State& state, const wire::Hello& hello) {
  const auto found = state.jobs.find(hello.job);
  const Job* job = found == state.jobs.end() ? nullptr : &found->second;
  const int64_t term = job == nullptr ? state.term : job->term;
  const int64_t version = job == nullptr ? 0 : job->next_version;
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_term", hello.highest_term, term));
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_version", hello.highest_version, version));
  EPLB_RETURN_IF_ERROR(CheckRaise("running_version", hello.running_version, version));
  EPLB_RETURN_IF_ERROR(CheckRaise("ready_version", hello.ready_version, version));
  return CheckRaise("launch", hello.launch, job == nullptr ? 0 : job->launch);
}

absl::Status CheckPosition(const wire::Hello& hello, const Config& config) {
  if (hello.world_size > config.max_ranks_per_job) {
    return absl::ResourceExhaustedError(absl::StrCat("hello: world_size is ", hello.world_size,
                                                     ", the daemon takes at most ",
                                                     config.max_ranks_per_job, " ranks per job"));
  }
  const absl::StatusOr<RankGrid> grid = GridOf(hello);
  if (!grid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("hello: ", grid.status().message()));
  }
  if (hello.rank < 0 || hello.rank >= hello.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: rank is ", hello.rank, ", it must be in 0..", hello.world_size - 1));
  }
  const int32_t gpu = grid->GpuOf(RankId{hello.rank}).value;
  const int32_t lane = grid->LaneOf(RankId{hello.rank});
  if (hello.gpu != gpu || hello.lane != lane) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: rank ", hello.rank, " of ", grid->num_gpus(), " GPUs a lane is GPU ",
                     gpu, " of lane ", lane, ", not GPU ", hello.gpu, " of lane ", hello.lane));
  }
  return absl::OkStatus();
}

absl::StatusOr<Job*> FindOrAddJob(Turn& turn, const std::string& name) {
  State& state = turn.state;
  if (const auto found = state.jobs.find(name); found != state.jobs.end()) return &found->second;
  const auto limit = static_cast<size_t>(state.config.max_jobs);
  if (state.jobs.size() >= limit) MakeRoom(turn);
  if (state.jobs.size() >= limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the daemon already knows ", state.jobs.size(),
                     " jobs whose ranks are connected, its limit; raise limits.max_jobs"));
  }
  Job& job = state.jobs[name];
  job.name = name;
  job.settings = SettingsOf(state.config, name, {});
  job.term = state.term;
  std::erase_if(state.refusals, [&name](const RefusedJob& one) { return one.job == name; });
  SetPhase(turn, job, Phase::kHeld);
  return &job;
}

std::string ShapeText(const TopologyOptions& shape) {
  return absl::StrCat(shape.num_layers, " layers, ", shape.num_experts, " experts, ",
                      shape.num_slots, " slots, ", shape.num_gpus, " GPUs, ", shape.num_nodes,
                      " nodes, ", shape.num_groups, " groups");
}

std::string LayersText(const std::vector<int32_t>& layers) {
  return layers.empty() ? "not said" : absl::StrJoin(layers, ",");
}

absl::Status CheckModelLayers(const wire::Hello& hello) {
  const std::vector<int32_t>& layers = hello.model_layers;
  if (layers.empty()) return absl::OkStatus();
  const bool rising =
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
  if (std::ssize(layers) == hello.shape.num_layers && layers.front() >= 0 && rising) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("hello: model_layers has ", layers.size(),
                                                 " numbers, expected none or ",
                                                 hello.shape.num_layers, " rising ones >= 0"));
}

const char* ReduceName(wire::Reduce reduce) {
  return reduce == wire::Reduce::kRoot ? "root" : "rank";
}

// Not report_every: the ranks begin with the same one, and a change may have reached some before
// they came back.
absl::Status CheckFits(const Incarnation& incarnation, const wire::Hello& hello) {
  const auto mismatch = [&incarnation](const char* field, const auto& mine, const auto& theirs) {
    return absl::FailedPreconditionError(absl::StrCat("hello: ", field, " is ", mine,
                                                      ", the other ranks of incarnation ",
                                                      incarnation.name, " have ", theirs));
  };
  const std::string shape = ShapeText(hello.shape);
  if (const std::string theirs = ShapeText(incarnation.shape); shape != theirs) {
    return mismatch("shape", shape, theirs);
  }
  if (hello.world_size != incarnation.world_size()) {
    return mismatch("world_size", hello.world_size, incarnation.world_size());
  }
  const RankGrid& grid = incarnation.grid;
  if (hello.num_pipeline_ranks != grid.num_pipeline_ranks()) {
    return mismatch("num_pipeline_ranks", hello.num_pipeline_ranks, grid.num_pipeline_ranks());
  }
  if (hello.expert_tensor_parallel != grid.expert_tensor_parallel()) {
    return mismatch("expert_tensor_parallel", hello.expert_tensor_parallel,
                    grid.expert_tensor_parallel());
  }
  if (hello.vote_every != incarnation.vote_every) {
    return mismatch("vote_every", hello.vote_every, incarnation.vote_every);
  }
  if (hello.reduce != incarnation.reduce) {
    return mismatch("reduce", ReduceName(hello.reduce), ReduceName(incarnation.reduce));
  }
  if (hello.model_layers != incarnation.model_layers) {
    return mismatch("model_layers", LayersText(hello.model_layers),
                    LayersText(incarnation.model_layers));
  }
  return absl::OkStatus();
}

absl::Status CheckSeat(const Incarnation& incarnation, const wire::Hello& hello) {
  const Rank& rank = incarnation.ranks[hello.rank];
  if (!rank.said_hello) return absl::OkStatus();
  if (rank.nonce == hello.nonce) {
    // What was sent on a stream that was cut may be read after the Hello of the next stream.
    if (hello.session_number >= rank.session_number) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("hello: session_number is ", hello.session_number,
                                           ", this process has opened session ",
                                           rank.session_number, " since"));
  }
  if (rank.session != 0) {
    return absl::AlreadyExistsError(absl::StrCat("DUPLICATE_RANK: another process speaks for rank ",
                                                 hello.rank, " of incarnation ", incarnation.name));
  }
  return absl::FailedPreconditionError(absl::StrCat("another process spoke for rank ", hello.rank,
                                                    " of incarnation ", incarnation.name,
                                                    "; a restarted rank needs a new incarnation"));
}

void TakeSeat(Turn& turn, Speaker speaker, const wire::Hello& hello) {
  Incarnation& incarnation = speaker.incarnation;
  Rank& rank = speaker.rank;
  CloseRank(turn, incarnation, rank,
            absl::AbortedError("replaced by a newer session of the same process"));
  if (!rank.said_hello) ++incarnation.num_hello;
  if (rank.finished) --incarnation.num_finished;
  ++incarnation.num_connected;
  rank.said_hello = true;
  rank.finished = false;
  rank.failed = false;
  rank.cut = false;
  rank.nonce = hello.nonce;
  rank.session = speaker.session;
  rank.session_number = hello.session_number;
  rank.away_since = absl::InfiniteFuture();
  rank.ready_version = hello.ready_version;
  rank.staging_rows = hello.staging_rows;
  rank.staging_layers = hello.staging_layers;
  rank.library_version = hello.library_version.substr(0, wire::kMaxNameLength);
  rank.transport = hello.transport;
  rank.report_every = hello.report_every;
  turn.state.seats[speaker.session] = {hello.job, hello.incarnation, hello.rank};
  const int64_t windows = turn.state.config.max_pending_windows;
  if (JudgeHello(incarnation, hello.rank, hello.step, windows) == StepClaim::kBelieved) {
    rank.step = hello.step;
    Advance(incarnation.front, hello.rank, rank.step);
  }
  // One that has owned the job is no newcomer any more.
  incarnation.take_over |= hello.take_over && hello.launch == 0;
  if (!speaker.is_current()) {
    incarnation.claimed = std::max(incarnation.claimed, hello.launch);
    return;
  }
  // Of this rank, or of the one that it agrees with; nobody's when the step was not believed.
  if (incarnation.front.first < 0) return;
  speaker.job.step = std::max(speaker.job.step, incarnation.front.first);
  NoteHelloStep(incarnation, incarnation.front.first, turn.now);
}

void SetRunning(Rank& rank, const wire::Hello& hello) {
  rank.running_version = hello.running_version;
  rank.running_digest = hello.running_digest;
}

// Whatever the job's state asks of a rank that has just been welcomed.
void Follow(Turn& turn, Speaker speaker, const wire::Hello& hello) {
  Job& job = speaker.job;
  Incarnation& incarnation = speaker.incarnation;
  if (!speaker.is_current()) {
    SetRunning(speaker.rank, hello);
    ServeCandidate(turn, job);
    return;
  }
  if (job.proposal) {
    HandleRejoin(turn, speaker, hello);
    return;
  }
  SetRunning(speaker.rank, hello);
  if (hello.ready_version != 0) {
    SendTo(turn, speaker.rank,
           wire::Retract{hello.ready_version, "this daemon does not have it in flight"});
  }
  if (incarnation.ending == Ending::kLost &&
      incarnation.num_connected == incarnation.world_size()) {
    incarnation.ending = Ending::kLive;
    incarnation.moved.clear();
    RecordEvent(turn, job, "incarnation_resumed", job.known ? job.known->version : 0,
                absl::StrCat("all ranks of incarnation ", incarnation.name, " are back"));
  }
  Recheck(turn, job, speaker.index);
}

// Whoever has seen a term of this job sees a higher one here. It needs no write: the ranks that it
// reaches tell it to the daemons to come.
void RaiseTerm(Job& job, const wire::Hello& hello) {
  // Until this daemon has welcomed a rank of the job, its own number is another daemon's.
  const bool outbid =
      hello.highest_term > job.term || (hello.highest_term == job.term && job.first_hello == 0);
  if (!outbid) return;
  job.term = hello.highest_term + 1;
  // Else the release does: until then a rank may bring a memory that is newer than what is known.
  if (job.current && job.current->num_hello == job.current->world_size()) Remember(job);
}

void Welcome(Turn& turn, Speaker speaker) {
  Job& job = speaker.job;
  std::string waits;
  if (!speaker.is_current()) {
    waits = CandidateWaitsFor(job, turn.now);
    if (!waits.empty()) waits = absl::StrCat("waits for ", waits);
  }
  StoreTermIfNeeded(turn);
  SendTo(turn, speaker.rank,
         wire::Welcome{job.term, turn.state.config.server_version, std::move(waits)});
  turn.state.last_hello = speaker.session;
  if (job.first_hello == 0) job.first_hello = speaker.session;
  if (!speaker.is_current()) return;
  TellMemory(turn, job, speaker.rank);
  RepeatPace(turn, speaker);
}

absl::Status Admit(Turn& turn, SessionId session, const wire::Hello& hello) {
  if (turn.state.draining) return absl::UnavailableError("the daemon drains; come back later");
  EPLB_RETURN_IF_ERROR(CheckHello(hello, turn.state.config));
  EPLB_RETURN_IF_ERROR(CheckRaises(turn.state, hello));
  EPLB_ASSIGN_OR_RETURN(Job * job, FindOrAddJob(turn, hello.job));
  RecallFrom(turn, *job, hello);
  EPLB_ASSIGN_OR_RETURN(Incarnation * incarnation, FindOrAddLaunch(turn, *job, hello));
  EPLB_RETURN_IF_ERROR(CheckFits(*incarnation, hello));
  EPLB_RETURN_IF_ERROR(CheckSeat(*incarnation, hello));
  Speaker speaker{*job, *incarnation, incarnation->ranks[hello.rank], hello.rank, session};
  TakeSeat(turn, speaker, hello);
  RaiseNextVersion(*job,
                   std::max({hello.highest_version, hello.running_version, hello.ready_version}));
  RaiseTerm(*job, hello);
  Welcome(turn, speaker);
  TellReusedVersion(turn, *job, *incarnation, hello);
  Follow(turn, speaker, hello);
  return absl::OkStatus();
}

void NoteRefusedJob(Turn& turn, const std::string& name, const std::string& why) {
  if (!wire::CheckPlainName("job", name).ok()) return;
  std::deque<RefusedJob>& refusals = turn.state.refusals;
  const auto found = std::find_if(refusals.begin(), refusals.end(),
                                  [&name](const RefusedJob& one) { return one.job == name; });
  RefusedJob refused{.job = name, .reason = why, .count = 1, .at = turn.now};
  if (found != refusals.end()) {
    refused.count += found->count;
    refusals.erase(found);
  }
  refusals.push_front(std::move(refused));
  if (refusals.size() > kMaxRefusedJobs) refusals.pop_back();
}

// Who is only asked to come back later is shown as well: the job waits for it.
void NoteRefusal(Turn& turn, const wire::Hello& hello, const absl::Status& status) {
  const bool later = absl::IsUnavailable(status) || absl::IsAborted(status);
  const std::string why = absl::StrCat(
      "rank ", hello.rank,
      " was refused: ", wire::Clipped({status.message().data(), status.message().size()}));
  const auto found = turn.state.jobs.find(hello.job);
  if (found == turn.state.jobs.end()) {
    if (!later) NoteRefusedJob(turn, hello.job, why);
    return;
  }
  Job& job = found->second;
  if (WasReplaced(job, hello)) return;
  job.refusal = why;
  job.refused_at = turn.now;
  if (later) return;
  ++job.refused_hellos;
  job.turned_away = why;
  job.turned_away_at = turn.now;
}

}  // namespace

absl::Status CheckHello(const wire::Hello& hello, const Config& config) {
  EPLB_RETURN_IF_ERROR(CheckNames(hello));
  EPLB_RETURN_IF_ERROR(CheckNumbers(hello));
  if (const absl::Status shape = Topology::Make(hello.shape).status(); !shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("hello: shape: ", std::string(shape.message())));
  }
  EPLB_RETURN_IF_ERROR(CheckSize(hello.shape));
  EPLB_RETURN_IF_ERROR(CheckModelLayers(hello));
  return CheckPosition(hello, config);
}

void HandleHello(Turn& turn, SessionId session, const wire::Hello& hello) {
  const absl::Status status = Admit(turn, session, hello);
  if (status.ok()) return;
  NoteRefusal(turn, hello, status);
  CloseRefused(turn, session, absl::StrCat("rank ", hello.rank, " of job ", hello.job), status);
}

}  // namespace eplb::core
