// Actions of the daemon, and actions on it and on the job as a whole.
#include <algorithm>
#include <utility>

#include "tests/simulation/explorer/expansion.h"

namespace eplb::explorer {

// ---- daemon ----

void Model::Expansion::UpMoves(const World& world, int run, int rank) {
  const Cell& cell = model.ranks_[world.cells[run][rank]];
  Step step{.move = Move::kUp, .run = run, .rank = rank};
  if (!cell.up.empty()) Hear(world, step);
  for (size_t index = 0; index < cell.old.size(); ++index) {
    const OldStream& old = cell.old[index];
    step.stream = static_cast<int>(index);
    step.move = Move::kUp;
    if (!old.up.empty()) Hear(world, step);
    step.move = Move::kOldEnds;
    if (old.up.empty() || !old.orderly) OldEnds(world, step);
  }
}

void Model::Expansion::Hear(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const Cell& cell = model.ranks_[id];
  const size_t waiting = step.stream < 0 ? cell.up.size() : cell.old[step.stream].up.size();
  for (int arrival = 0; arrival < kArrivals; ++arrival) {
    step.arrival = static_cast<Arrival>(arrival);
    if (step.arrival == Arrival::kOvertaken && waiting < 2) continue;
    World next = world;
    if (step.arrival != Arrival::kInOrder && !MayDisorder(next)) continue;
    const UpStep& taken = model.ranks_.TakeUp(id, step.stream, step.arrival);
    next.cells[step.run][step.rank] = taken.cell;
    if (!taken.message) {
      Emit(next, step);
      continue;
    }
    const SessionName session{step.run, step.rank, taken.number};
    const Turned& turned = model.cores_.OnMessage(next.core, session, *taken.message);
    heard = &model.messages_.up[*taken.message];
    if (turned.asks_for_body && !told_apart) {
      TurnInEveryOrder(next, session, *taken.message, step);
    } else if (model.check_symmetry && !IsSymmetric(next, turned, session, *taken.message)) {
      Emit(next, step, "the core treats ranks differently by their numbers");
    } else {
      Turn(next, turned, step);
    }
    heard = nullptr;
  }
}

bool Model::Expansion::IsSymmetric(const World& world, const Turned& turned, SessionName session,
                                   uint32_t message) const {
  for (int order = 1; order < kPermutations; ++order) {
    std::array<int, kRuns> orders{};
    orders[session.run] = order;
    SessionName there = session;
    there.rank = kAllPermutations[order][session.rank];
    const uint32_t renamed = model.cores_.Renamed(world.core, orders[0], orders[1]);
    const uint32_t after = model.cores_.OnMessage(renamed, there, message).core;
    if (after != model.cores_.Renamed(turned.core, orders[0], orders[1])) return false;
  }
  return true;
}

void Model::Expansion::TurnInEveryOrder(const World& world, SessionName session, uint32_t message,
                                        Step step) {
  for (int order = 0; order < kPermutations; ++order) {
    const Permutation& to = kAllPermutations[order];
    World renamed = world;
    std::array<int, kRuns> orders{};
    orders[session.run] = order;
    renamed.core = model.cores_.Renamed(world.core, orders[0], orders[1]);
    for (int rank = 0; rank < kRanks; ++rank) {
      renamed.cells[session.run][to[rank]] = world.cells[session.run][rank];
    }
    SessionName there = session;
    there.rank = to[session.rank];
    const Turned& turned = model.cores_.OnMessage(renamed.core, there, message);
    Expansion in_order{model,
                       [this, orders](Successor successor) {
                         successor.permutation = orders;
                         visit(std::move(successor));
                       },
                       heard};
    in_order.Turn(renamed, turned, step);
  }
}

void Model::Expansion::OldEnds(const World& world, Step step) {
  const uint32_t id = world.cells[step.run][step.rank];
  const int number = model.ranks_[id].old[step.stream].number;
  World next = world;
  next.cells[step.run][step.rank] = model.ranks_.DropOld(id, step.stream).cell;
  Turn(next, model.cores_.OnClosed(next.core, {step.run, step.rank, number}), step);
}

// Executes one decision. A crash is tried after all of its effects, and before each write that has
// an effect before it: a message that was sent just before the crash may still be lost with its
// stream, so a crash between two messages leads nowhere else. A crash between two decisions is one
// after the first: what ranks do meanwhile they can do after it as well.
void Model::Expansion::Turn(const World& world, const Turned& turned, Step step) {
  const int64_t proposed = model.cores_.Info(world.core).proposed;
  const int64_t proposes = model.cores_.Info(turned.core).proposed;
  World next = world;
  next.core = turned.core;
  term_before = model.cores_.Info(world.core).job_term;
  if (std::string wrong = CheckReplacing(world, next, step); !wrong.empty()) {
    Emit(next, std::move(step), std::move(wrong));
    return;
  }
  if (proposes != 0 && proposes != proposed) --next.left.chunks;
  std::vector<CoreEffect> reordered;
  const auto is_write = [](const CoreEffect& effect) {
    return effect.kind == CoreEffect::Kind::kStore || effect.kind == CoreEffect::Kind::kStoreTerm;
  };
  const auto is_job = [](const CoreEffect& effect) {
    return effect.kind == CoreEffect::Kind::kStore;
  };
  if (model.mutant_ == Mutant::kSentBeforeStored) {
    reordered = turned.effects;
    std::stable_partition(reordered.begin(), reordered.end(),
                          [&](const CoreEffect& effect) { return !is_job(effect); });
  }
  const std::vector<CoreEffect>& effects = reordered.empty() ? turned.effects : reordered;
  for (size_t i = 0; i < effects.size(); ++i) {
    if (i > 0 && is_write(effects[i]) && world.left.crashes > 0) {
      step.crashed_before = static_cast<int>(i);
      Crash(next, step);
    }
    if (std::string wrong = Execute(next, effects[i]); !wrong.empty()) {
      step.crashed_before = -1;
      Emit(next, std::move(step), std::move(wrong));
      return;
    }
  }
  step.crashed_before = static_cast<int>(effects.size());
  if (world.left.crashes > 0) Crash(next, step);
  step.crashed_before = -1;
  std::string wrong = NoteOwner(next);
  Emit(next, std::move(step), std::move(wrong));
}

// Past RECOVERING the job is the current run's own. A store that knows of the newer one never leads
// the older one again.
std::string Model::Expansion::NoteOwner(World& world) const {
  const CoreInfo& info = model.cores_.Info(world.core);
  if (!info.has_job || info.current < 0 || info.phase == core::Phase::kRecovering) return "";
  if (model.bounds_.runs + model.bounds_.beside == 0) return "";  // there is no other
  Stored stored = model.stores_[world.stored];
  if (info.current == stored.owner) return "";
  if ((stored.replaced >> info.current & 1) != 0) {
    return "a run that was replaced owns the job again";
  }
  if (stored.owner >= 0) stored.replaced |= 1U << stored.owner;
  stored.owner = info.current;
  world.stored = model.Keep(stored);
  return "";
}

// Deadlines say that steps do not advance any more; a run that owned the job under another
// daemon, later, does not wait.
std::string Model::Expansion::CheckReplacing(const World& before, World& after,
                                             const Step& step) const {
  const CoreInfo& was = model.cores_.Info(before.core);
  const CoreInfo& is = model.cores_.Info(after.core);
  const bool replaced = was.current >= 0 && was.current != is.current && was.live;
  const bool claims = model.messages_.carries && is.claimed > was.claimed;
  if (replaced && step.move == Move::kUp && claims) {
    Stored stored = model.stores_[after.stored];
    stored.replaced &= ~(1U << is.current);
    stored.owner = is.current;  // the other one makes way, and was not replaced
    after.stored = model.Keep(stored);
    return "";
  }
  if (!replaced || !was.any_connected) return "";
  if (step.move == Move::kDeadlines || step.move == Move::kGrace) return "";
  // A rank that failed ends its run: without it no vote passes, so steps do not advance for
  // long.
  const auto* goodbye = heard == nullptr ? nullptr : std::get_if<wire::Goodbye>(heard);
  if (goodbye != nullptr && goodbye->failed && step.run == was.current) return "";
  return "a newcomer took over a job whose steps advance";
}

// Returns what is wrong with it, or nothing.
std::string Model::Expansion::Execute(World& world, const CoreEffect& effect) const {
  Stored stored = model.stores_[world.stored];
  uint32_t& cell = world.cells[effect.session.run][effect.session.rank];
  switch (effect.kind) {
    case CoreEffect::Kind::kSend: {
      const wire::DownMessage& message = model.messages_.down[effect.message];
      const auto* welcome = std::get_if<wire::Welcome>(&message);
      if (welcome != nullptr && welcome->term > std::max(stored.term, KnownTerm(world) + 1)) {
        return "I6: a term was sent before it was stored, and no rank has seen the one below it";
      }
      const auto* propose = std::get_if<wire::Propose>(&message);
      const StoredJob& job = model.messages_.jobs[stored.job];
      if (propose != nullptr && (!job || propose->term > std::max(stored.term, job->memory.term) ||
                                 job->next_version <= propose->version)) {
        return "I6: a version was proposed before it was stored";
      }
      cell = model.ranks_.PushDown(cell, effect.session.number, effect.message).cell;
      return "";
    }
    case CoreEffect::Kind::kClose:
      cell = model.ranks_.CloseByDaemon(cell, effect.session.number).cell;
      return "";
    case CoreEffect::Kind::kStore:
      stored.job = effect.job;
      break;
    case CoreEffect::Kind::kStoreTerm:
      stored.term = effect.term;
      break;
  }
  world.stored = model.Keep(stored);
  return "";
}

int64_t Model::Expansion::KnownTerm(const World& world) const {
  const StoredJob& job = model.messages_.jobs[model.stores_[world.stored].job];
  int64_t highest = std::max(kEarlierTerm, job ? job->memory.term : 0);
  // The process of a rank that had seen it may be dead: what it said is in the daemon's term of the
  // job, or is heard in this context.
  highest = std::max(highest, term_before - 1);
  if (const auto* hello = heard == nullptr ? nullptr : std::get_if<wire::Hello>(heard)) {
    highest = std::max(highest, hello->highest_term);
  }
  for (const auto& cells : world.cells) {
    for (const uint32_t id : cells) {
      const Cell& cell = model.ranks_[id];
      if (cell.has_process()) highest = std::max(highest, model.ranks_.HighestTerm(cell));
    }
  }
  return highest;
}

// The daemon is killed and starts again from what was stored, before any rank comes back. Where the
// store is lost, the launches' order is too: an older one may own the job until the newer one says
// what it carries.
void Model::Expansion::Crash(const World& world, Step step) {
  World crashed = world;
  --crashed.left.crashes;
  for (auto& cells : crashed.cells) {
    for (uint32_t& cell : cells) cell = model.ranks_.LoseDaemon(cell).cell;
  }
  const Stored stored = model.stores_[world.stored];
  StartAgain(crashed, stored, step);
  // A loss is worth its states only with runs beside each other.
  const bool may_be_lost = model.bounds_.beside == 0 || model.Exists(world, 1);
  if (world.left.losses == 0 || !may_be_lost || !RanksRemember(world)) return;
  --crashed.left.losses;
  step.loss = ", its store is lost";
  StartAgain(crashed, {}, step);
  if (stored.job_before == 0) return;
  step.loss = ", its store is that from before the run";
  StartAgain(crashed, {.term = stored.term_before, .job = stored.job_before}, step);
}

void Model::Expansion::StartAgain(World world, const Stored& stored, const Step& step) {
  Stored started = stored;
  world.core = model.cores_.Start(started);
  started.term = model.cores_.Info(world.core).term;
  world.stored = model.Keep(started);
  const StoredJob& job = model.messages_.jobs[stored.job];
  const bool stands = job && !job->memory.quarantine.empty();
  Emit(world, step, stands && !model.IsQuarantined(world) ? "QUARANTINE was forgotten" : "");
}

bool Model::Expansion::RanksRemember(const World& world) const {
  int64_t highest = world.committed;
  int64_t remembered = 0;
  for (int run = 0; run < kRuns; ++run) {
    for (const uint32_t id : world.cells[run]) {
      const Cell& cell = model.ranks_[id];
      if (!cell.has_process()) continue;
      const Member& member = model.ranks_.MemberOf(cell);
      highest = std::max(highest, member.running().version);
      if (member.prepared()) highest = std::max(highest, member.prepared()->propose.version);
      if (model.IsOlder(world, run)) continue;
      remembered = std::max(remembered, model.ranks_.HighestVersion(cell));
    }
  }
  return remembered >= highest;
}

// ---- the rest ----

void Model::Expansion::DaemonMoves(const World& world) {
  const CoreInfo& info = model.cores_.Info(world.core);
  const int chunks = world.left.chunks;
  if (info.phase == core::Phase::kIdle && info.all_connected && info.live && chunks > 0 &&
      Better(*info.known->placement, chunks)) {
    Turn(world, model.cores_.On(world.core, CoreEvent::kReport), {.move = Move::kReport});
  }
  if (world.left.replaced > 0 && info.has_rest && info.all_connected && !info.solving &&
      (info.phase == core::Phase::kPreparing || info.phase == core::Phase::kVoting)) {
    World replaced = world;
    --replaced.left.replaced;
    Turn(replaced, model.cores_.On(world.core, CoreEvent::kReport), {.move = Move::kReport});
  }
  if (info.solving) {
    Turn(world, model.cores_.On(world.core, CoreEvent::kSolved, chunks), {.move = Move::kSolved});
  }
  World hurried = world;
  --hurried.left.cancels;
  const bool in_doubt = info.phase == core::Phase::kPreparing || info.phase == core::Phase::kVoting;
  if (model.IsStill(world)) {
    // A deadline is far longer than a message needs: where nothing is under way it passes for free.
    const bool waits = info.phase != core::Phase::kIdle || info.has_candidate;
    if (info.has_job && waits && !model.IsQuarantined(world)) {
      Turn(world, model.cores_.On(world.core, CoreEvent::kDeadlines), {.move = Move::kDeadlines});
    }
  } else if (hurried.left.cancels >= 0 && in_doubt) {
    Turn(hurried, model.cores_.On(world.core, CoreEvent::kDeadlines), {.move = Move::kDeadlines});
  }
  if (hurried.left.cancels >= 0 && info.somebody_away) {
    Turn(hurried, model.cores_.On(world.core, CoreEvent::kGrace), {.move = Move::kGrace});
  }
  if (world.left.runs > 0) StartRun(world);
  if (world.left.beside > 0) StartRunBeside(world);
}

// All processes of the job die, and new ones begin.
void Model::Expansion::StartRun(const World& world) {
  if (!model.Exists(world, 0) || model.Exists(world, 1)) return;
  World next = world;
  --next.left.runs;
  EmitRun(next, Move::kRun);
}

// New ones begin beside the old ones, which hang or train on.
void Model::Expansion::StartRunBeside(const World& world) {
  if (!model.Exists(world, 0) || model.Exists(world, 1)) return;
  // If no daemon has led either of two runs yet, none is the older one.
  const CoreInfo& info = model.cores_.Info(world.core);
  if (info.current != 0 || info.phase == core::Phase::kRecovering) return;
  World next = world;
  --next.left.beside;
  for (const bool hung : {false, true}) {
    next.hung = hung;
    EmitRun(next, Move::kRunBeside);
  }
}

// From the checkpoint that the old ones began with, or from one of the newest version that all of
// them ran.
void Model::Expansion::EmitRun(World world, Move move) {
  RunningPlacement newest = model.ranks_.MemberOf(model.ranks_[world.cells[0][0]]).running();
  for (const uint32_t id : world.cells[0]) {
    const RunningPlacement& running = model.ranks_.MemberOf(model.ranks_[id]).running();
    if (running.version < newest.version) newest = running;
  }
  if (move == Move::kRun) {
    for (uint32_t& id : world.cells[0]) id = model.ranks_.Kill(id).cell;
  }
  Stored stored = model.stores_[world.stored];
  if (world.left.losses > 0) {
    stored.term_before = stored.term;
    stored.job_before = stored.job;
    world.stored = model.Keep(stored);
  }
  const auto start_run = [&](int64_t version, const Digest& digest) {
    world.cells[1].fill(model.ranks_.Run(version, digest, 0, 0));
    Step step{.move = move, .run = 1};
    HistoryRecord start{.kind = HistoryRecord::Kind::kStart};
    start.version = version;
    start.digest = digest;
    for (int rank = 0; rank < kRanks; ++rank) step.log.push_back({1, rank, start});
    Emit(world, std::move(step));
  };
  if (newest.version != kStartVersion) start_run(newest.version, newest.digest);
  start_run(kStartVersion, DigestOf(StartPlacement()));
}

}  // namespace eplb::explorer
