#include "server/core/hello.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "placement/status_macros.h"
#include "proto/wire/clipped.h"
#include "proto/wire/names.h"
#include "server/core/answers.h"
#include "server/core/ending.h"
#include "server/core/expiry.h"
#include "server/core/held.h"
#include "server/core/incarnation.h"
#include "server/core/memory.h"
#include "server/core/pace.h"
#include "server/core/step_rate.h"

namespace eplb::core {
namespace {

constexpr int64_t kMaxNumber = int64_t{1} << 62;  // versions, terms and steps: room to add
// What a rank may raise the daemon's own terms and versions to. Far below kMaxNumber, or they would
// come back in every later Hello as numbers that are refused.
constexpr int64_t kMaxRaised = int64_t{1} << 61;
constexpr int64_t kMaxSlotsOfAllLayers = int64_t{1} << 20;  // four times 128 layers of 2048 slots
constexpr int64_t kMaxBytes = int64_t{1} << 40;             // of one expert of one layer
constexpr int32_t kMaxEvery = 1 << 20;                      // steps

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
                             Field{"weight_bytes", hello.weight_bytes, 0, kMaxBytes},
                             Field{"state_bytes", hello.state_bytes, 0, kMaxBytes},
                             Field{"staging_rows", hello.staging_rows, 0, kMaxNumber},
                             Field{"staging_layers", hello.staging_layers, 0, kMaxNumber},
                             Field{"session_number", hello.session_number, 0, kMaxNumber}}) {
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
  if (slots > kMaxSlotsOfAllLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("hello: shape: ", shape.num_layers, " layers of ", shape.num_slots,
                     " slots are ", slots, ", the daemon takes at most ", kMaxSlotsOfAllLayers));
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
  if (value <= std::max(known, kMaxRaised)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("hello: ", name, " is ", value, ", above ",
                                                 kMaxRaised, " and all that the daemon knows"));
}

// Terms and versions that this daemon did not give out itself.
absl::Status CheckRaises(const State& state, const wire::Hello& hello) {
  const auto job = state.jobs.find(hello.job);
  const int64_t next_version = job == state.jobs.end() ? 0 : job->second.next_version;
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_term", hello.highest_term, state.term));
  EPLB_RETURN_IF_ERROR(CheckRaise("highest_version", hello.highest_version, next_version));
  EPLB_RETURN_IF_ERROR(CheckRaise("running_version", hello.running_version, next_version));
  return CheckRaise("ready_version", hello.ready_version, next_version);
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
    return absl::ResourceExhaustedError(absl::StrCat("the daemon already knows ", state.jobs.size(),
                                                     " jobs that have not ended, its limit"));
  }
  Job& job = state.jobs[name];
  job.name = name;
  job.settings = SettingsOf(state.config, name, {});
  SetPhase(turn, job, Phase::kHeld);
  return &job;
}

bool MayNotComeBack(const Job& job, const std::string& incarnation) {
  return std::any_of(job.gone.begin(), job.gone.end(),
                     [&](const wire::GoneLaunch& one) { return one.incarnation == incarnation; });
}

// A process that was taken for lost is alive after all: it only lost its stream.
void NoteAlive(Turn& turn, Job& job, const wire::Hello& hello) {
  if (!job.current || job.current->name != hello.incarnation) return;
  if (hello.rank >= job.current->world_size()) return;
  Rank& rank = job.current->ranks[hello.rank];
  if (!rank.cut || rank.nonce != hello.nonce) return;
  rank.cut = false;
  AmendEnding(turn, job);
}

absl::StatusOr<Incarnation*> FindOrAddIncarnation(Turn& turn, Job& job, const wire::Hello& hello) {
  if (MayNotComeBack(job, hello.incarnation)) {
    NoteAlive(turn, job, hello);
    const RunEnd* end = EndOf(job);
    const bool is_newest = end != nullptr && end->incarnation == hello.incarnation;
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", hello.incarnation, " of job ", job.name, " has ended",
                     is_newest ? absl::StrCat(": ", end->reason) : ""));
  }
  if (job.current && job.current->name == hello.incarnation) return &*job.current;
  if (job.candidate && job.candidate->name == hello.incarnation) return &*job.candidate;
  EPLB_ASSIGN_OR_RETURN(Incarnation fresh, MakeIncarnation(hello));
  if (job.known && !(job.known->placement->topology() == fresh.topology)) {
    fresh.fresh_version = job.next_version;
  }
  if (!job.current || job.current->ending != Ending::kLive) {
    StartIncarnation(turn, job, std::move(fresh));
    return &*job.current;
  }
  if (job.candidate && job.candidate->num_connected > 0) {
    return absl::UnavailableError(absl::StrCat(
        "incarnation ", job.candidate->name, " of job ", job.name, " is gathering its ranks (",
        job.candidate->num_hello, " of ", job.candidate->world_size(), "); come back later"));
  }
  job.candidate = std::move(fresh);
  return &*job.candidate;
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
  rank.step = hello.step;
  rank.staging_rows = hello.staging_rows;
  rank.staging_layers = hello.staging_layers;
  rank.library_version = hello.library_version.substr(0, wire::kMaxNameLength);
  rank.transport = hello.transport;
  rank.report_every = hello.report_every;
  turn.state.seats[speaker.session] = {hello.job, hello.incarnation, hello.rank};
  if (!speaker.is_current()) return;
  speaker.job.step = std::max(speaker.job.step, rank.step);
  NoteHelloStep(incarnation, rank.step, turn.now);
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
    if (incarnation.num_hello < incarnation.world_size()) return;
    StartCandidate(turn, job);
    EnterHeld(turn, job, "every rank of the new incarnation said Hello");
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
    RecordEvent(turn, job, "incarnation_resumed", job.known ? job.known->version : 0,
                absl::StrCat("all ranks of incarnation ", incarnation.name, " are back"));
  }
  Recheck(turn, job, speaker.index);
}

absl::Status Admit(Turn& turn, SessionId session, const wire::Hello& hello) {
  if (turn.state.draining) return absl::UnavailableError("the daemon drains; come back later");
  EPLB_RETURN_IF_ERROR(CheckHello(hello, turn.state.config));
  EPLB_RETURN_IF_ERROR(CheckRaises(turn.state, hello));
  EPLB_ASSIGN_OR_RETURN(Job * job, FindOrAddJob(turn, hello.job));
  RecallFrom(turn, *job, hello);
  EPLB_ASSIGN_OR_RETURN(Incarnation * incarnation, FindOrAddIncarnation(turn, *job, hello));
  EPLB_RETURN_IF_ERROR(CheckFits(*incarnation, hello));
  EPLB_RETURN_IF_ERROR(CheckSeat(*incarnation, hello));
  Speaker speaker{*job, *incarnation, incarnation->ranks[hello.rank], hello.rank, session};
  TakeSeat(turn, speaker, hello);
  RaiseNextVersion(*job,
                   std::max({hello.highest_version, hello.running_version, hello.ready_version}));
  // Until this daemon has welcomed somebody, its own number seen by a rank is another daemon's.
  if (hello.highest_term > turn.state.term ||
      (hello.highest_term == turn.state.term && turn.state.first_hello == 0)) {
    turn.state.term = hello.highest_term + 1;
    turn.state.term_stored = false;
  }
  StoreTermIfNeeded(turn);
  SendTo(turn, speaker.rank, wire::Welcome{turn.state.term, turn.state.config.server_version});
  turn.state.last_hello = session;
  if (turn.state.first_hello == 0) turn.state.first_hello = session;
  if (speaker.is_current()) TellMemory(turn, *job, speaker.rank);
  RepeatPace(turn, speaker);
  Follow(turn, speaker, hello);
  return absl::OkStatus();
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
  const auto job = turn.state.jobs.find(hello.job);
  const std::string who = absl::StrCat("rank ", hello.rank);
  if (job != turn.state.jobs.end()) {
    job->second.refusal = absl::StrCat(
        who, " was refused: ", wire::Clipped({status.message().data(), status.message().size()}));
  }
  CloseRefused(turn, session, absl::StrCat(who, " of job ", hello.job), status);
}

}  // namespace eplb::core
